from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host
from clusterbench.facts.nccl_conf import Effective, effective
from clusterbench.types import Severity
from clusterbench.words import plural

_SUSPICIOUS: Mapping[tuple[str, str], tuple[Severity, str]] = {
    ("NCCL_P2P_DISABLE", "1"): ("error", "GPUs of a host do not reach each other's memory"),
    ("NCCL_P2P_LEVEL", "LOC"): ("error", "GPUs of a host do not reach each other's memory"),
    ("NCCL_SHM_DISABLE", "1"): ("error", "ranks of a host do not share its memory"),
    ("NCCL_IB_DISABLE", "1"): ("error", "InfiniBand and RoCE are not used"),
    ("NCCL_NET", "SOCKET"): ("error", "InfiniBand and RoCE are not used"),
    ("NCCL_NET_GDR_LEVEL", "LOC"): ("error", "network cards do not reach GPU memory"),
    ("NCCL_NET_GDR_LEVEL", "0"): ("error", "network cards do not reach GPU memory"),
    ("NCCL_NVLS_ENABLE", "0"): ("warning", "NVLink switches do not reduce"),
    ("NCCL_IGNORE_NET_MISMATCH", "1"): ("warning", "ranks with unlike networks are not refused"),
    ("NCCL_DEBUG", "TRACE"): ("warning", "every call is logged"),
    ("NCCL_CHECKS_DISABLE", "1"): ("warning", "NCCL does not check its arguments"),
    ("NCCL_IGNORE_CPU_AFFINITY", "1"): ("warning", "NCCL moves its threads off the CPUs that the launcher chose"),
    ("CUDA_LAUNCH_BLOCKING", "1"): ("error", "every kernel is waited for, so that nothing overlaps"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): ("warning", "every collective is waited for by its rank"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): ("warning", "every collective is checked against all ranks first"),
    ("NVIDIA_TF32_OVERRIDE", "0"): ("warning", "matrix products of 32 bit do not use tensor cores"),
}
"""What each costs: NCCL's user guide, environment variables; CUDA's and torch's documentation."""

_PINNED = {
    "NCCL_ALGO": "the algorithm is pinned for all sizes",
    "NCCL_PROTO": "the protocol is pinned for all sizes",
    "NCCL_MAX_NCHANNELS": "the number of channels is bounded",
    "NCCL_MAX_CTAS": "the number of channels is bounded",
    "NCCL_BUFFSIZE": "the size of buffers is pinned",
    "NCCL_NTHREADS": "the threads of a block are pinned",
    "NCCL_TOPO_FILE": "the machine's topology is read from a file",
    "NCCL_GRAPH_FILE": "the paths between GPUs are read from a file",
}
"""Whatever their value: left from a measurement, they cost on another machine."""


class NcclSettings(HostCheck):
    """Variables that take a way or an algorithm from NCCL, or make CUDA and torch wait.

    They are right for a test and left behind in images, in modules and in nccl.conf. What a suite sets for a case is
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
        faults = tuple(_faults(settings))
        number = sum(name.startswith("NCCL_") for name in settings)
        healthy = (
            f"{plural(number, 'variable')} of NCCL set, none that forbids or pins" if number else "NCCL is not tuned"
        )
        return Judged(faults, "" if faults else healthy)


def _faults(settings: Mapping[str, Effective]) -> Iterator[Fault]:
    for name, setting in settings.items():
        value = _plain(setting.value)
        severity, costs = _SUSPICIOUS.get((name, value), ("warning", _PINNED.get(name, "")))
        if costs and value:
            evidence = f"{setting.said_by}: {name}={setting.value}"
            yield Fault("", f"{name}={setting.value} is set: {costs}", evidence, severity=severity)


def _plain(value: str) -> str:
    """Words are taken in either case, and ``01`` is 1."""
    word = value.strip()
    return str(int(word)) if word.isascii() and word.isdecimal() else word.upper()
