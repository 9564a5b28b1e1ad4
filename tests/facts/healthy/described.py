"""What ``host_environment`` says of a host beside its facts."""

from tests.facts.healthy.infiniband import address

NUM_GPUS = 8
CPUS_OF_NODES = ("0-55,112-167", "56-111,168-223")


def gpu_address(number):
    """Two functions on: the card of the same number is its neighbour."""
    return address(number).replace(":00.0", ":01.0")


def gpu_card(number):
    """Below the same switch as the network card of its number."""
    about = {"address": gpu_address(number), "kind": "display", "id": "10de:2330", "names": []}
    return about | {"numa_node": number // 4, "path": [*switch(number), f"0000:{number:02x}:08.0"]}


def network_card(number):
    about = {"address": address(number), "kind": "network", "id": "15b3:1021"}
    about |= {"names": [f"ibs{number}", f"mlx5_{number}"], "numa_node": number // 4}
    return about | {"path": [*switch(number), f"0000:{number:02x}:09.0"]}


def switch(number):
    """The root port and the upper side of a PCIe switch, one for each pair of GPU and network card."""
    bus = int(address(number)[5:7], 16)
    return [f"0000:{bus - 1:02x}:01.0", f"0000:{bus:02x}:10.0"]


def plant(machine):
    gpus = [{"index": number, "name": "NVIDIA H100 80GB HBM3"} for number in range(NUM_GPUS)]
    cards = [*map(gpu_card, range(NUM_GPUS)), *map(network_card, range(NUM_GPUS))]
    nodes = [{"node": node, "cpus": cpus, "memory_bytes": 2**40} for node, cpus in enumerate(CPUS_OF_NODES)]
    machine.environment |= {"gpus": gpus, "pcie": cards, "numa_nodes": nodes, "memory_bytes": 2 * 2**40}
    machine.environment |= {"num_usable_cpus": 224, "num_logical_cpus": 224, "variables": {"NCCL_DEBUG": "WARN"}}
    machine.environment |= {"packages": {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"}, "clock_offset_s": 0.001}
    machine.environment["loaded"] = {
        "torch": "2.8.0",
        "nccl": "2.27.3",
        "nccl_path": "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2",
    }
