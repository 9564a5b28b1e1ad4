from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, num_gpus, trains
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.nccl_conf import Effective, effective
from clusterbench.tools.nccl_ways import BETWEEN_GPUS, CHOSEN, as_read, forbidden
from clusterbench.types import Severity
from clusterbench.words import plural

_SUSPICIOUS: Mapping[tuple[str, str], tuple[Severity, str]] = {
    ("NCCL_IGNORE_NET_MISMATCH", "1"): ("warning", "ranks with unlike networks are not refused"),
    ("NCCL_DEBUG", "TRACE"): ("warning", "every call is logged"),
    ("CUDA_LAUNCH_BLOCKING", "1"): ("error", "every kernel is waited for, so that nothing overlaps"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): ("warning", "every collective is waited for by its rank"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): ("warning", "every collective is checked against all ranks first"),
    ("NVIDIA_TF32_OVERRIDE", "0"): ("note", "matrix products of 32 bit do not use tensor cores"),
}
"""What each costs, beside those that take a way from NCCL: NCCL's user guide; CUDA's and torch's documentation."""

_OF_RDMA = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL")

_PINNED = {
    "NCCL_MAX_NCHANNELS": "the number of channels is bounded",
    "NCCL_MAX_CTAS": "the number of channels is bounded",
    "NCCL_BUFFSIZE": "the size of buffers is not NCCL's choice",
    "NCCL_NTHREADS": "the threads of a block are not NCCL's choice",
    "NCCL_TOPO_FILE": "the machine's topology is read from a file",
    "NCCL_GRAPH_FILE": "the paths between GPUs are read from a file",
}
"""Notes, whatever their value: right on the machine they were measured on, left behind on another."""


class NcclSettings(HostCheck):
    """Variables that take a way or an algorithm from NCCL, or make CUDA and torch wait.

    They are right for a test and left behind in images, in modules and in nccl.conf; on a host that has nothing to lose
    by one, such as one GPU or no RDMA device, it is a note. What a suite sets for a case is
    not here: these are the variables that clusterbench was started with. NCCL issue 2428 is a job slowed by one.
    """

    number = 83
    question = "Is NCCL left to choose its ways?"
    severity = "warning"
    source = "variables of the environment, /etc/nccl.conf, ~/.nccl.conf"
    confirm = "env | grep -E 'NCCL|CUDA|TORCH'; cat /etc/nccl.conf ~/.nccl.conf"
    fix = "unset it where it was set: image, module, ~/.bashrc, scheduler's prolog, nccl.conf"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        settings = effective(host)
        faults = tuple(_faults(host, settings))
        number = sum(name.startswith("NCCL_") for name in settings)
        healthy = (
            f"{plural(number, 'variable')} of NCCL set, none that forbids or pins" if number else "NCCL is not tuned"
        )
        return Judged(faults, "" if faults else healthy)


def _faults(host: Host, settings: Mapping[str, Effective]) -> Iterator[Fault]:
    for name, setting in settings.items():
        severity, costs = _judged(name, as_read(setting.value))
        if costs and (lacks := _lacks(host, name)):
            severity, costs = "note", f"{costs}; {lacks}"
        if costs:
            evidence = f"{setting.said_by}: {name}={setting.value}"
            yield Fault("", f"{name}={setting.value} is set: {costs}", evidence, severity=severity)


def _lacks(host: Host, name: str) -> str:
    """Why a setting takes nothing from this host; empty where it may."""
    if name in BETWEEN_GPUS and num_gpus(host) == 1:
        return "this host has one GPU"
    if name in _OF_RDMA and all(device.kind == "software" for device in host.of(Infiniband).devices):
        return "this host has no RDMA device"
    return ""


def _judged(name: str, value: str) -> tuple[Severity, str]:
    """The severity and what it costs; nothing where it takes nothing."""
    if not value:
        return "note", ""
    if lost := forbidden(name, value):
        return "warning" if name == "NCCL_NVLS_ENABLE" else "error", lost
    if name in CHOSEN:  # several, or one that is excluded (^LL128), are a note: some clouds ask for it
        return ("warning", CHOSEN[name]) if value.isalnum() else ("note", "NCCL chooses among some only")
    return _SUSPICIOUS.get((name, value), ("note", _PINNED.get(name, "")))
