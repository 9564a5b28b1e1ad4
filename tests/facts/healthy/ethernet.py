from tests.facts.machine import planted

PAUSES = "Pause parameters for {0}:\nAutonegotiate:\toff\nRX:\t\t{1}\nTX:\t\t{1}\n"
ABOUT = "driver: mlx5_core\nversion: 24.10-0.7.0\nfirmware-version: 28.39.2048 (MT_0000000838)\nbus-info: {}\n"


def statistics(**counters):
    """What ``ethtool -S`` prints of a card of NVIDIA, beside some thousand others."""
    shown = {"rx_packets": 315_487_941, "rx_discards_phy": 0, "tx_discards_phy": 0, "rx_crc_errors_phy": 0}
    shown |= {"tx_pause_storm_warning_events": 0, "tx_pause_storm_error_events": 0, "rx_prio3_pause": 0} | counters
    return "NIC statistics:\n" + "".join(f"     {name}: {count}\n" for name, count in shown.items())


def add_interface(machine, name, address, speed=400_000, mtu=9000):
    """A physical interface with its answers to ``ethtool``."""
    card = f"/sys/devices/pci00ee:00/{address}"
    machine.links[f"/sys/class/net/{name}/device"] = f"../../..{card.removeprefix('/sys')}"
    machine.links.setdefault(f"{card}/driver", "../../../bus/pci/drivers/mlx5_core")
    about = {"type": 1, "operstate": "up", "speed": speed, "mtu": mtu, "carrier_down_count": 1}
    machine.files |= planted(f"/sys/class/net/{name}", about)
    machine.programs[f"ethtool -i {name}"] = ABOUT.format(address)
    machine.programs[f"ethtool -a {name}"] = PAUSES.format(name, "off")
    machine.programs[f"ethtool -S {name}"] = statistics()


def plant(machine):
    machine.programs["ethtool --version"] = "ethtool version 6.7\n"
    add_interface(machine, "eno1", "0000:01:00.0", speed=25_000, mtu=1500)
    machine.files |= planted("/sys/class/net/lo", {"type": 772, "operstate": "unknown", "mtu": 65536})
