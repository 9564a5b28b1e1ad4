"""``nvidia-smi``'s table, ``nvidia-smi -L``, and what it prints where there is no GPU to list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, NotJudged
from clusterbench.doctor.readers._nvidia_smi import inforoms, smi
from clusterbench.doctor.said import HostText, Said
from clusterbench.facts.gpus import (
    COMPUTE_MODE,
    ECC,
    MIG,
    PERSISTENCE,
    Gpu,
    Gpus,
)
from clusterbench.tools import nvidia_smi_table
from clusterbench.types import Severity
from clusterbench.words import few, plural

_OF_TABLES = ("persistence_mode", "compute_mode", "mig_mode", "ecc_mode")
_MANY_UNANSWERED = 3
"""Columns of the table; a fan alone may not answer."""
_HELD_BYTES = 2**30
"""As for ``gpu_memory_held``."""
_SPINS, _CONTEXT_BYTES = 0.9, 100 * 2**20
"""Share of the time; a process that computes holds a context, which takes some hundred MiB."""
_RELOAD = "reboot, or load the module of the libraries' version; see NVRM in the kernel's log"
_NO_TABLE = {
    "mismatch": (
        "driver_mismatch",
        "programs have NVIDIA's libraries of another version than the kernel's module",
        _RELOAD,
    ),
    "no driver": ("driver_not_loaded", "the kernel's module of NVIDIA's driver does not answer", _RELOAD),
    "no device": ("gpu_lost", "the driver shows no GPU", _RELOAD),
    "no permission": (
        "gpu_lost",
        "no GPU can be opened: often a container that lost its devices when systemd was reloaded on the host",
        "start the container again; if nvidia-smi on the host says it too, see NVRM in the kernel's log",
    ),
}


class NvidiaSmiTable(HostText):
    """GPUs for the checks of hosts, values that a GPU does not answer, and why there is no table."""

    kind = "nvidia-smi"

    def holds(self, text: str) -> bool:
        return nvidia_smi_table.is_table(text) or nvidia_smi_table.listed(text) > 0

    def read(self, text: str, name: str) -> Said:
        if (failure := nvidia_smi_table.failure(text)) is not None:
            kind, line = failure
            check, what, fix = _NO_TABLE[kind]
            return Said(found=(smi(check, "error", name, "", what, line, fix),), hosts=(name,))
        if number := nvidia_smi_table.listed(text):
            why = f"a list of {plural(number, 'GPU')} says nothing of their health, nor how many there should be"
            return Said(not_judged=(NotJudged("gpu_count", (name,), why, "nvidia-smi -q"),), hosts=(name,))
        gpus = nvidia_smi_table.parse(text)
        if not gpus:
            why = "the text ends before the first GPU"
            return Said(not_judged=(NotJudged("nvidia_smi_table", (name,), why, "the whole table"),), hosts=(name,))
        facts = Gpus(gpus=tuple(map(_gpu_of_table, gpus)), driver_version=None, on_bus=())
        places = {gpu.address: f"GPU {gpu.number} ({gpu.address})" for gpu in gpus}
        found = (*_found(gpus, name), *inforoms(text, name, places), *_in_use(gpus, text, name))
        return Said((facts,), _OF_TABLES, found, hosts=(name,))


def _in_use(gpus: Sequence[nvidia_smi_table.TableGpu], text: str, name: str) -> Iterator[Found]:
    """A note: whose job it was when the table was printed is not known."""
    held = {gpu.number: used for gpu in gpus if (used := gpu.memory_used_bytes or 0) > _HELD_BYTES}
    if held:
        by = [process for gpu, process in nvidia_smi_table.processes(text) if gpu in held]
        whose = f"by {few(by)}" if by else "by no process that is listed, as none is in a container"
        most = f"{'at most ' if len(held) > 1 else ''}{max(held.values()) / 2**30:.1f} GiB"
        what = f"memory was in use when this was printed, {most}, {whose}: it should be free before a run of your own"
        fix = "end what holds it (fuser -v /dev/nvidia* as root, outside of containers); else nvidia-smi --gpu-reset"
        yield smi(
            "gpu_memory_held", "note", name, f"GPU{'s' * (len(held) > 1)} {few([*held])}", what, "Memory-Usage", fix
        )


def _gpu_of_table(gpu: nvidia_smi_table.TableGpu) -> Gpu:
    absent = {PERSISTENCE: gpu.persistence, COMPUTE_MODE: gpu.compute_mode, MIG: gpu.mig, ECC: gpu.ecc}
    return Gpu(
        index=gpu.number,
        lacks=tuple(function for function, said in absent.items() if said is None),
        name=gpu.name,
        address=gpu.address,
        persistence=gpu.persistence,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
        ecc=gpu.ecc,
    )


def _found(gpus: Sequence[nvidia_smi_table.TableGpu], name: str) -> Iterator[Found]:
    for gpu in gpus:
        place = f"GPU {gpu.number} ({gpu.address})"
        if gpu.unanswered:
            what = f"answers ERR! for {few(gpu.unanswered)}"
            is_lost = len(gpu.unanswered) >= _MANY_UNANSWERED
            severity: Severity = "error" if is_lost else "warning"
            fix = "Xids in the kernel's log say why; nvidia-smi --gpu-reset or reboot; if it stays so, replace it"
            yield smi("gpu_lost" if is_lost else "gpu_sensor", severity, name, place, what, "ERR!", fix)
        used, busy = gpu.memory_used_bytes, gpu.busy
        if gpu.persistence and busy is not None and busy >= _SPINS and used is not None and used < _CONTEXT_BYTES:
            said = f"GPU-Util: {100 * busy:.0f} %, memory: {used / 2**20:.0f} MiB"
            fix = "Xids in the kernel's log may say why; nvidia-smi --gpu-reset or reboot; if it comes back, replace it"
            yield smi("gpu_spins", "warning", name, place, "is busy though no process computes on it", said, fix)
        if gpu.uncorrectable:
            said = f"Volatile Uncorr. ECC: {gpu.uncorrectable}"
            what = f"{plural(gpu.uncorrectable, 'ECC error')} could not be corrected since the driver was loaded"
            fix = "nvidia-smi -q -d ECC,ROW_REMAPPER says of which memory; reset the GPU; if they come back, RMA"
            yield smi("uncorrectable_ecc", "warning", name, place, what, said, fix)
