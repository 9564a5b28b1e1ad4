from tests.facts.machine import planted

NUM_DEVICES = 8
COUNTERS = (
    *("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
HW_COUNTERS = ("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err")


def address(number):
    """PCIe address of the card, beside the GPU of the same number."""
    return f"0000:{0x18 + number * 0x11:02x}:00.0"


def devinfo(link_layer="InfiniBand", mtu="4096 (5)"):
    """What ``ibv_devinfo`` prints of all cards."""
    rows = []
    for number in range(NUM_DEVICES):
        rows += [
            f"hca_id: mlx5_{number}",
            "\ttransport:\t\t\tInfiniBand (0)",
            "\tphys_port_cnt:\t\t\t1",
            "\t\tport:\t1",
        ]
        rows += [f"\t\t\tactive_mtu:\t\t{mtu}", f"\t\t\tlink_layer:\t\t{link_layer}", ""]
    return "\n".join(rows)


def plant(machine):
    machine.programs["ibv_devinfo"] = devinfo()
    machine.environment.setdefault("variables", {})
    for number in range(NUM_DEVICES):
        device = f"/sys/class/infiniband/mlx5_{number}"
        card = f"/sys/devices/pci{number:04x}:00/{address(number)}"
        machine.links[f"{device}/device"] = f"../../..{card.removeprefix('/sys')}"
        machine.links[f"{card}/driver"] = "../../../bus/pci/drivers/mlx5_core"
        machine.files |= planted(card, {"numa_node": number // 4, f"net/ibs{number}/mtu": 4092})
        machine.files |= planted(
            device, {"node_type": "1: CA", "fw_ver": "28.39.2048", "hca_type": "MT4129", "board_id": "MT_0000000838"}
        )
        port = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "lid": f"0x{number + 0x11:x}",
            "sm_lid": "0x1",
            "gids/0": f"fe80:0000:0000:0000:a088:c203:00e1:{number:04x}",
            "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
            "gid_attrs/types/0": "IB/RoCE v1",
            "gid_attrs/ndevs/0": f"ibs{number}",
        }
        machine.files |= planted(f"{device}/ports/1", port)
        traffic = {"port_xmit_packets": 315_487_941_081, "port_rcv_packets": 315_487_941_081}
        machine.files |= planted(f"{device}/ports/1/counters", dict.fromkeys(COUNTERS, 0) | traffic)
        machine.files |= planted(f"{device}/ports/1/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
