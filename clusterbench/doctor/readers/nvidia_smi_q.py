"""``nvidia-smi -q``: all that the driver says of each GPU."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.doctor import Found, NotJudged
from clusterbench.doctor.readers._nvidia_smi import inforoms, smi
from clusterbench.doctor.said import HostText, Said
from clusterbench.facts import Facts
from clusterbench.facts.gpus import (
    COMPUTE_MODE,
    DEFAULT_POWER_LIMIT,
    ECC,
    GENERATION,
    GPU_GENERATION,
    MIG,
    MOST_GENERATION,
    MOST_WIDTH,
    PERSISTENCE,
    POWER_LIMIT,
    REMAPPED,
    SRAM,
    SRAM_OLD,
    VBIOS,
    WIDTH,
    Gpu,
    Gpus,
)
from clusterbench.facts.virtualization import Virtualization
from clusterbench.tools import nvidia_smi_q
from clusterbench.words import plural

_OF_GPUS = (
    *("row_remapping", "sram_ecc", "power_limit", "pcie_width", "pcie_generation", "persistence_mode", "mig_mode"),
    *("compute_mode", "ecc_mode", "vbios"),
)
_MANY_UNKNOWN = 5
"""Single values that a driver cannot say are common."""
_MOST_PAGES = 64
"""NVIDIA, GPU memory error management, "Row Remapping", which compares it with page retirement."""
_MANY_PAGES = 60


class NvidiaSmiQuery(HostText):
    """GPUs for the checks of hosts, and what the driver alone knows: slowdowns, the fabric, a reset that is due."""

    kind = "nvidia-smi -q"

    def holds(self, text: str) -> bool:
        return nvidia_smi_q.is_query(text)

    def read(self, text: str, name: str) -> Said:
        query = nvidia_smi_q.parse(text)
        gpus = tuple(_gpu(number, gpu) for number, gpu in enumerate(query.gpus))
        facts: tuple[Facts, ...] = (Gpus(gpus=gpus, driver_version=query.driver_version, on_bus=()),) if gpus else ()
        virtual = {gpu.is_virtual for gpu in query.gpus}
        if gpus and None not in virtual:
            machine = "a hypervisor" if True in virtual else "none"
            facts = (*facts, Virtualization(machine=machine, container=None, maker=None, product=None))
        places = {gpu.address: f"GPU {number} ({gpu.address})" for number, gpu in enumerate(query.gpus)}
        found = (*_lost(query, name), *_found(query, name), *inforoms(text, name, places))
        unknown: tuple[NotJudged, ...] = ()
        if query.is_cut:
            why = f"the text ends within the part of {gpus[-1].place}"
            unknown = (NotJudged("nvidia_smi_query", (name,), why, "the whole output"),)
        return Said(facts, _OF_GPUS if gpus else (), found, not_judged=unknown, hosts=(name,))


def _lost(query: nvidia_smi_q.SmiQuery, name: str) -> Iterator[Found]:
    """GPUs that are not in the list, or are in it and say nothing."""
    fix = "Xids in the kernel's log say why; nvidia-smi --gpu-reset or reboot; if it stays away, reseat or replace it"
    for address, line in query.lost:
        yield smi("gpu_lost", "error", name, f"GPU {address}", "does not answer the driver", line, fix)
    for number, gpu in enumerate(query.gpus):
        if gpu.num_unknown >= _MANY_UNKNOWN:
            place = f"GPU {number} ({gpu.address})"
            what = f"answers {gpu.num_unknown} of its values with an error"
            yield smi("gpu_lost", "error", name, place, what, "Unknown Error", fix)
    listed, attached = len(query.gpus), query.num_attached or 0
    if not (query.lost or query.is_cut) and attached / 2 < listed < attached:
        what = f"{listed} of {attached} attached GPUs are listed: the others do not answer, or the text was cut"
        yield smi("gpu_lost", "error", name, "", what, "Attached GPUs", fix)


def _gpu(number: int, gpu: nvidia_smi_q.SmiGpu) -> Gpu:
    """A GPU as NVML would say it; what ``nvidia-smi`` answers with N/A the board does not have."""
    lacks = {
        (REMAPPED,): gpu.remap_failed is None or gpu.remap_pending is None or gpu.remapped_uncorrectable is None,
        (SRAM, SRAM_OLD): gpu.sram_uncorrectable is None,
        (POWER_LIMIT, DEFAULT_POWER_LIMIT): gpu.power_limit_w is None or gpu.default_power_limit_w is None,
        (WIDTH, MOST_WIDTH): gpu.pcie_width is None or gpu.most_pcie_width is None,
        (PERSISTENCE,): gpu.persistence is None,
        (MIG,): gpu.mig is None,
        (VBIOS,): gpu.vbios is None,
        (COMPUTE_MODE,): gpu.compute_mode is None,
        (ECC,): gpu.ecc is None,
        (GENERATION, MOST_GENERATION, GPU_GENERATION): None
        in (gpu.pcie_generation, gpu.most_pcie_generation, gpu.gpu_pcie_generation),
    }
    return Gpu(
        index=number,
        lacks=tuple(function for functions, absent in lacks.items() if absent for function in functions),
        name=gpu.name,
        uuid=gpu.uuid,
        address=gpu.address,
        pcie_generation=gpu.pcie_generation,
        most_pcie_generation=gpu.most_pcie_generation,
        gpu_pcie_generation=gpu.gpu_pcie_generation,
        pcie_width=gpu.pcie_width,
        most_pcie_width=gpu.most_pcie_width,
        ecc=gpu.ecc,
        persistence=gpu.persistence,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
        vbios=gpu.vbios,
        power_limit_w=gpu.power_limit_w,
        default_power_limit_w=gpu.default_power_limit_w,
        sram_uncorrectable=gpu.sram_uncorrectable,
        sram_threshold_exceeded=gpu.sram_threshold_exceeded,
        remapped_correctable=gpu.remapped_correctable,
        remapped_uncorrectable=gpu.remapped_uncorrectable,
        remap_pending=gpu.remap_pending,
        remap_failed=gpu.remap_failed,
    )


def _found(query: nvidia_smi_q.SmiQuery, name: str) -> Iterator[Found]:
    """What the doctor measures on hosts, or asks elsewhere: reasons of low clocks, the fabric, a reset that is due."""
    for number, gpu in enumerate(query.gpus):
        place = f"GPU {number} ({gpu.address})"
        if gpu.slowdowns:
            said = ", ".join(gpu.slowdowns)
            what = f"its clocks are lowered: {said}"
            fix = "look at power supplies, fans, air flow and inlet temperature of the host"
            yield smi("gpu_slowdown", "warning", name, place, what, f"{said}: Active", fix)
        if (gpu.fabric_state or "completed") != "completed" or (gpu.fabric_status or "Success") != "Success":
            answers = {"State": gpu.fabric_state, "Status": gpu.fabric_status}
            known = {name: answer for name, answer in answers.items() if answer}
            said = f"Fabric {'; '.join(f'{name}: {answer}' for name, answer in known.items())}"
            what = f"NVLink's fabric has not taken it in: {', '.join(known.values())}"
            fix = "restart the fabric manager, then its log; is its version the driver's?"
            yield smi("fabric_state", "error", name, place, what, said, fix)
        elif gpu.fabric_ills:
            said = ", ".join(gpu.fabric_ills)
            fix = "the fabric manager's log (NMX-C on GB200) and the switches' ports; reset the GPU, then its tray"
            yield smi("fabric_state", "error", name, place, f"NVLink's fabric is ill: {said}", gpu.fabric_ills[0], fix)
        if gpu.dram_uncorrectable:
            what = (
                f"{plural(gpu.dram_uncorrectable, 'memory error')} could not be corrected since the driver was loaded"
            )
            fix = "reset the GPU, so that the rows are replaced; if rows are used up, RMA"
            said = f"{'DRAM Uncorrectable' if gpu.double_bit is None else 'Double Bit'}: {gpu.dram_uncorrectable}"
            yield smi("dram_ecc", "warning", name, place, what, said, fix)
        if (others := (gpu.double_bit or 0) - (gpu.dram_uncorrectable or 0)) > 0:
            errors = plural(others, "error of caches or registers", "errors of caches or registers")
            what = f"{errors} could not be corrected since the driver was loaded"
            fix = "reset the GPU; if they come back, RMA"
            yield smi("uncorrectable_ecc", "warning", name, place, what, f"Double Bit: {gpu.double_bit}", fix)
        if gpu.pages_pending:
            fix = "reboot, or reset the GPU; if more pages follow, RMA"
            said, what = "Pending Page Blacklist: Yes", "pages of its memory wait to be retired"
            yield smi("page_retirement", "error", name, place, what, said, fix)
        elif (gpu.pages_retired or 0) >= _MANY_PAGES:
            what = f"{gpu.pages_retired} pages of its memory are retired, and at most {_MOST_PAGES} can be"
            fix = "the vendor's field diagnostics; RMA"
            yield smi("page_retirement", "warning", name, place, what, f"Retired Pages: {gpu.pages_retired}", fix)
        if gpu.unrepairable:
            what, fix = "its memory has errors that cannot be repaired", "the vendor's field diagnostics; RMA"
            yield smi("unrepairable_memory", "error", name, place, what, "Unrepairable Memory: Yes", fix)
        if could := _slower_root_port(gpu, query):
            has = gpu.host_pcie_generation
            what = f"the root port above it allows PCIe generation {has}, those of other GPUs {could}"
            fix = "look at the slot's speed in the BIOS; at riser and cable between the CPU and the switch"
            yield smi("pcie_generation", "error", name, place, what, f"Host Max: {has}", fix)
        if (gpu.recovery_action or "None") != "None":
            said, what = f"GPU Recovery Action: {gpu.recovery_action}", f"asks for recovery: {gpu.recovery_action}"
        elif gpu.reset_required:
            said, what = "Reset Required: Yes", "asks for a reset"
        elif gpu.repairs:
            said = f"{gpu.repairs[0]} Repair Pending: Yes"
            parts = " and ".join(gpu.repairs).replace("Channel", "memory channel")
            what = f"waits for a reset to repair its {parts}"
        else:
            continue
        fix = "end its programs, then nvidia-smi --gpu-reset, or reboot; look for Xids in the kernel's log"
        yield smi("gpu_reset_due", "error", name, place, f"the driver {what}", said, fix)


def _slower_root_port(gpu: nvidia_smi_q.SmiGpu, query: nvidia_smi_q.SmiQuery) -> int:
    """What root ports above other GPUs of its kind allow, where its own allows less than they and it could; else 0.

    Where all are alike the host may be built so, with switches of a newer generation than its CPU.
    """
    others = [other.host_pcie_generation or 0 for other in query.gpus if other.name == gpu.name]
    could = min(max(others), gpu.gpu_pcie_generation or 0)
    is_slower = gpu.host_pcie_generation is not None and gpu.host_pcie_generation < could
    return could if is_slower and not gpu.is_virtual else 0
