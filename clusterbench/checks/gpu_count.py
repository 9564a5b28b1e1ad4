from __future__ import annotations

import re
from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host
from clusterbench.facts.cgroup import Cgroup
from clusterbench.facts.gpus import BUS, BusGpu, Gpu, Gpus
from clusterbench.facts.virtualization import Virtualization
from clusterbench.words import plural

GIVEN_AWAY = ("vfio-pci", "pci-stub")
_ON_BOARDS = re.compile(r"SXM|H100 80GB HBM3|NVIDIA (H200|H800|H20|B200|GB200|GB300)$")
_USUAL = (1, 2, 4, 8, 16)
_JOB = re.compile(r"/job_|kubepods|docker|containerd|libpod|lxc|/k8s")


class GpuCount(HostCheck):
    """GPUs that the PCIe bus shows and the driver does not, that do not answer, or an odd number of them.

    One that has fallen off the bus reads as all ones (Xid 79; DCGM, FALLEN_OFF_BUS). A job or container may be allowed
    fewer GPUs than the bus shows: then a missing one is not judged. GPUs that were given to a virtual machine
    (``vfio-pci``) are not missed. SXM boards hold 4, 8 or 16 GPUs (NVIDIA's HGX data sheets), and clouds hand out 1, 2,
    4 or 8: any other number is a warning.
    """

    number = 31
    question = "Does the driver show every GPU that the PCIe bus shows, and does each answer?"
    severity = "error"
    source = f"NVML, {BUS}"
    confirm = "nvidia-smi -L; lspci -d 10de: | grep -E '3D|VGA'; dmesg | grep -E 'Xid|fallen off the bus'"
    fix = "reboot; if it stays away, reseat the GPU or its board and look at its power; else RMA"

    def judge(self, host: Host) -> Judged:
        facts, gpus = host.of(Gpus), _seen(host)
        if not gpus and not facts.on_bus:
            return Judged(not_applicable="no NVIDIA GPUs here")
        missing = _missing(facts, gpus)
        faults, unknown = [*_lost(gpus, missing)], []
        named = {fault.where for fault in faults}
        for card in (each for each in missing if f"GPU at {each.address}" not in named):
            fault = _why_missing(card, facts)
            if fault is None and _is_confined(host):
                unknown.append(
                    Unknown(f"the driver does not show GPU {card.address} to this job", "a look outside of it")
                )
            else:
                faults.append(fault or _not_shown(card, facts))
        if not (faults or unknown):
            faults += _odd_number(gpus)
        if not facts.on_bus:
            why = f"{BUS} is not there" if facts.on_bus is None else f"{BUS} shows none of {plural(len(gpus), 'GPU')}"
            unknown.append(Unknown(why, f"a host that shows {BUS}"))
        well = sum(gpu.error is None for gpu in gpus)
        healthy = f"{plural(well, 'NVIDIA GPU')} of {len(_own(facts))} on the PCIe bus" if facts.on_bus and well else ""
        return Judged(tuple(faults), healthy, tuple(unknown))


def _seen(host: Host) -> tuple[Gpu, ...]:
    """GPUs of the driver; none where it shows none and the bus tells why."""
    facts = host.of(Gpus)
    return facts.gpus if any(_why_missing(card, facts) for card in _own(facts)) else gpus_of(host)


def _own(facts: Gpus) -> tuple[BusGpu, ...]:
    return tuple(card for card in facts.on_bus or () if card.driver not in GIVEN_AWAY)


def _missing(facts: Gpus, gpus: tuple[Gpu, ...]) -> list[BusGpu]:
    shown = {gpu.address for gpu in gpus}
    return [card for card in _own(facts) if card.address not in shown]


def _lost(gpus: tuple[Gpu, ...], missing: list[BusGpu]) -> Iterator[Fault]:
    """GPUs with an error; one whose address the driver could not even say is a missing one of the bus."""
    nameless = iter(missing)
    for gpu in gpus:
        if gpu.error is not None:
            card = None if gpu.address else next(nameless, None)
            where = f"GPU at {card.address}" if card else gpu.place
            yield Fault(where, f"does not answer: {gpu.error}", f"NVML: {gpu.error}")


def _why_missing(card: BusGpu, facts: Gpus) -> Fault | None:
    """What the bus itself tells of a GPU that the driver does not show."""
    if any(gpu.address == card.address for gpu in facts.gpus):
        return None
    where, path = f"GPU at {card.address}", f"{BUS}/{card.address}"
    if card.answers is False:
        return Fault(where, "has fallen off the bus: it reads as all ones", f"{path}/config: ff ff ff ff")
    if card.driver is None:
        return Fault(where, "has no driver", f"{path}/driver: is not there")
    if card.driver != "nvidia":
        return Fault(where, f"is held by the driver {card.driver}", f"{path}/driver: {card.driver}")
    return None


def _not_shown(card: BusGpu, facts: Gpus) -> Fault:
    evidence = f"NVML shows {len(facts.gpus)} GPUs, {BUS} {len(_own(facts))}"
    return Fault(f"GPU at {card.address}", "is on the PCIe bus, and the driver does not show it", evidence)


def _is_confined(host: Host) -> bool:
    """Whether a container or a job's control group may hide GPUs."""
    return host.of(Virtualization).container not in (None, "none") or bool(_JOB.search(host.of(Cgroup).path or ""))


def _odd_number(gpus: tuple[Gpu, ...]) -> Iterator[Fault]:
    names = {gpu.name for gpu in gpus if gpu.name}
    if len(names) == 1 and _ON_BOARDS.search(name := names.pop()) and len(gpus) not in _USUAL:
        what = f"has {len(gpus)} GPUs of the kind {name}, whose boards hold 4, 8 or 16"
        yield Fault("", what, f"NVML: {len(gpus)} GPUs", severity="warning")
