from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.fabric import BUS, FABRIC_MANAGER, Fabric
from clusterbench.facts.gpus import COMPLETED, FABRIC, FABRIC_OLD, Gpu
from clusterbench.words import plural

_UNSUPPORTED = "not supported"


class FabricManager(HostCheck):
    """NVSwitches whose links are not trained: CUDA then fails to start, or GPUs do not reach each other over NVLink.

    From the H100 on each GPU says whether the fabric took it in (``nvmlGpuFabricState_t``, nvml.h). Before, and where
    switches are on the PCIe bus, the service nvidia-fabricmanager must run (NVIDIA's fabric manager user guide; DCGM,
    FABRIC_MANAGER_TRAINING_ERROR). On NVL72 racks it runs on the switches, and only the GPUs are asked.
    """

    number = 34
    question = "Has the NVLink fabric taken in every GPU?"
    severity = "error"
    source = f"NVML, fabric state; {FABRIC_MANAGER}"
    programs = "systemctl"
    confirm = "nvidia-smi -q | grep -A3 'Fabric'; systemctl status nvidia-fabricmanager"
    fix = (
        "systemctl enable --now nvidia-fabricmanager, in the driver's version; then look at /var/log/fabricmanager.log"
    )

    def judge(self, host: Host) -> Judged:
        gpus, fabric = gpus_of(host), host.of(Fabric)
        members = [gpu for gpu in gpus if not {FABRIC, FABRIC_OLD} <= {*gpu.lacks} and gpu.fabric_state != _UNSUPPORTED]
        switches = known(fabric, fabric.num_switches, BUS) if gpus else 0
        if not members and not switches:
            return Judged(not_applicable="no NVSwitch and no GPU of an NVLink fabric here")
        faults, unknown = [*_outside(members)], [*_silent(members)]
        joined = sum(gpu.fabric_state == COMPLETED and gpu.fabric_status == "success" for gpu in members)
        if switches:
            try:
                faults += _not_running(fabric, switches, everyone_in=0 < joined == len(gpus))
            except NotKnown as error:
                unknown.append(Unknown(error.why, error.takes))
        said = [f"the fabric took in {plural(joined, 'GPU')}"] if joined else []
        said += [f"the fabric manager runs, with {plural(switches, 'NVSwitch', 'NVSwitches')}"] if _runs(fabric) else []
        return Judged(tuple(faults), "; ".join(said), tuple(dict.fromkeys(unknown)))


def _runs(fabric: Fabric) -> bool:
    return fabric.manager == "active" and bool(fabric.num_switches)


def _outside(members: list[Gpu]) -> Iterator[Fault]:
    for gpu in members:
        if gpu.fabric_state is None:
            continue
        evidence = f"NVML fabric state: {gpu.fabric_state}; status: {gpu.fabric_status}"
        if gpu.fabric_state != COMPLETED:
            yield Fault(gpu.place, f"is not part of the NVLink fabric: {gpu.fabric_state}", evidence)
        elif gpu.fabric_status != "success":
            yield Fault(gpu.place, f"could not join the NVLink fabric: {gpu.fabric_status}", evidence)


def _silent(members: list[Gpu]) -> Iterator[Unknown]:
    for gpu in members:
        if gpu.fabric_state is None:
            why = (
                f"{gpu.place}: {gpu.error}" if gpu.error else "the driver does not say whether the fabric took GPUs in"
            )
            yield Unknown(why, "a GPU that answers" if gpu.error else "NVIDIA's driver 535 or later")


def _not_running(fabric: Fabric, switches: int, everyone_in: bool) -> list[Fault]:
    """A stopped service is a warning where it has already done its work."""
    state = known(fabric, fabric.manager, FABRIC_MANAGER)
    if state == "active":
        return []
    what = f"the fabric manager is {state}, with {plural(switches, 'NVSwitch', 'NVSwitches')} on the PCIe bus"
    return [Fault("", what, f"{FABRIC_MANAGER}: {state}", severity="warning" if everyone_in else None)]
