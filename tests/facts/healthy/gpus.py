"""Eight H100 as NVML describes them, and as the PCIe bus shows them."""

from clusterbench.facts.gpus import FABRIC_OLD, BusGpu, Gpu, Gpus
from tests.facts.healthy.described import NUM_GPUS, gpu_address


def gpu(index):
    return Gpu(
        index,
        lacks=(FABRIC_OLD,),
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        serial=f"16500000{index:05d}",
        address=gpu_address(index),
        vbios="96.00.74.00.01",
        pcie_generation=5,
        most_pcie_generation=5,
        gpu_pcie_generation=5,
        pcie_width=16,
        most_pcie_width=16,
        pcie_replays=0,
        persistence=True,
        compute_mode="default",
        mig=False,
        power_limit_w=700.0,
        default_power_limit_w=700.0,
        application_clock_hz=1.98e9,
        default_application_clock_hz=1.98e9,
        max_clock_hz=1.98e9,
        ecc=True,
        sram_uncorrectable=0,
        sram_threshold_exceeded=False,
        volatile_uncorrectable=0,
        remapped_correctable=0,
        remapped_uncorrectable=0,
        remap_pending=False,
        remap_failed=False,
        slowdowns=(),
        recovery_action="None",
        memory_bytes=81_559 * 2**20,
        memory_used_bytes=2**20,
        processes=(),
        fabric_state="completed",
        fabric_status="success",
    )


def facts(**changed):
    described = {
        "gpus": tuple(gpu(index) for index in range(NUM_GPUS)),
        "driver_version": "550.90.07",
        "on_bus": tuple(BusGpu(gpu_address(index), "nvidia", True) for index in range(NUM_GPUS)),
    }
    return Gpus(**{**described, **changed})


def plant(machine):
    machine.give(facts())
