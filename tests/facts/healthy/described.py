"""What ``host_environment`` says of a host beside its facts."""

from tests.facts.healthy.infiniband import address

NUM_GPUS = 8
CPUS_OF_NODES = ("0-55,112-167", "56-111,168-223")


def gpu_address(number):
    """Two functions on: the card of the same number is its neighbour."""
    return address(number).replace(":00.0", ":01.0")


def plant(machine):
    gpus = [{"index": number, "name": "NVIDIA H100 80GB HBM3"} for number in range(NUM_GPUS)]
    cards = [
        {"address": gpu_address(number), "kind": "display", "id": "10de:2330", "names": [], "numa_node": number // 4}
        for number in range(NUM_GPUS)
    ]
    nodes = [{"node": node, "cpus": cpus, "memory_bytes": 2**40} for node, cpus in enumerate(CPUS_OF_NODES)]
    machine.environment |= {"gpus": gpus, "pcie": cards, "numa_nodes": nodes, "memory_bytes": 2 * 2**40}
    machine.environment |= {"num_usable_cpus": 224, "num_logical_cpus": 224, "variables": {"NCCL_DEBUG": "WARN"}}
    machine.environment |= {"packages": {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"}, "clock_offset_s": 0.001}
    machine.environment["loaded"] = {
        "torch": "2.8.0",
        "nccl": "2.27.3",
        "nccl_path": "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2",
    }
