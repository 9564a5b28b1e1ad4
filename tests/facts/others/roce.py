"""Eight H100 with the same cards on Ethernet: RoCE v2 with an IPv4 address on each, and large frames."""

from tests.facts.healthy.ethernet import add_interface
from tests.facts.healthy.infiniband import NUM_DEVICES, address, devinfo
from tests.facts.machine import planted


def change(machine):
    machine.environment["variables"]["NCCL_IB_QPS_PER_CONNECTION"] = "4"
    machine.programs["ibv_devinfo"] = devinfo(link_layer="Ethernet")
    for number in range(NUM_DEVICES):
        card = f"/sys/devices/pci{number:04x}:00/{address(number)}"
        machine.without(f"{card}/net")
        machine.files |= planted(card, {f"net/eth{number}/mtu": 9000})
        add_interface(machine, f"eth{number}", address(number))
        port = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        machine.without(f"{port}/gids", f"{port}/gid_attrs")
        congestion = {"np_ecn_marked_roce_packets": 40_000, "np_cnp_sent": 9_000, "rp_cnp_handled": 9_000}
        machine.files |= planted(f"{port}/hw_counters", congestion)
        local = f"fe80:0000:0000:0000:a088:c2ff:fee1:{number:04x}"
        ipv4 = f"0000:0000:0000:0000:0000:ffff:0a00:{number:02x}01"
        machine.files |= planted(port, {"link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0"})
        for index, (gid, kind) in enumerate([(local, 1), (local, 2), (ipv4, 1), (ipv4, 2)]):
            attributes = {
                f"gids/{index}": gid,
                f"gid_attrs/types/{index}": "IB/RoCE v1" if kind == 1 else "RoCE v2",
                f"gid_attrs/ndevs/{index}": f"eth{number}",
            }
            machine.files |= planted(port, attributes)
