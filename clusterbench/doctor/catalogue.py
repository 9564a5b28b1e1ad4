"""All checks of the doctor by their numbers: those of hosts, those of runs, and those that are still to be made.

The first 94 are the field's: what people who run GPU clusters look for, from NVIDIA's guides, the tools of Azure,
imbue, leptonai, DCGM and Primus, and threads of NCCL's users. Numbers from 95 on are our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from clusterbench.checks import checks
from clusterbench.diagnoses import diagnoses
from clusterbench.doctor.nccl_log import RULES
from clusterbench.types import SEVERITIES, Severity

State = Literal[
    "every run and doctor --quick", "runs and doctor", "doctor --log", "doctor --hosts, --launch", "not yet"
]
KNOWN = 94
LOG_TEST = "tests/doctor/test_logs.py"


@dataclass(frozen=True)
class Entry:
    """One check. ``by`` is the name of the check, diagnosis or rule of logs; ``waits`` says why there is none.

    ``programs`` are run for it; empty where none is. ``in_logs`` are other names under which ``doctor --log`` finds the
    same.
    """

    number: int
    question: str
    by: str
    severity: Severity | Literal[""]
    right: str
    source: str
    test: str
    state: State
    waits: str = ""
    programs: str = ""
    in_logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class OfLogs:
    """A check that files at hand alone answer: what is asked, and from what. ``names`` are those of its findings."""

    names: tuple[str, ...]
    question: str
    severity: Severity
    source: str
    test: str = LOG_TEST
    state: State = "doctor --log"


@dataclass(frozen=True)
class OfRuns:
    """A check that a diagnosis makes over what a run recorded: its name, what is asked, and from what."""

    diagnosis: str
    question: str
    severity: Severity
    source: str
    programs: str = ""


_LOG = "NCCL's log, which nccl_transport reads"
_CASE = "what each rank reported"
_SAMPLED = "NVML, sampled during each case"
_RAS = "NCCL's RAS, asked twice at a time limit"
OF_RUNS: dict[int, OfRuns] = {
    1: OfRuns("wrong_transport", "Does every channel between hosts use GPUDirect RDMA?", "error", _LOG),
    2: OfRuns("wrong_transport", "Is GPUDirect RDMA on for every card?", "error", _LOG),
    6: OfRuns("wrong_transport", "Can this GPU do GPUDirect RDMA at all?", "note", "the product's name"),
    7: OfRuns(
        "slow_gpu_memory", "Is RDMA from GPU memory as fast as from host memory?", "error", "perftest", "ib_write_bw"
    ),
    13: OfRuns("slow_pcie", "Does each GPU's PCIe link reach its generation under load?", "error", _SAMPLED),
    22: OfRuns("throttling", "Did clocks stay up while it was measured?", "error", _SAMPLED),
    27: OfRuns("failed_case", "Does a GPU that is busy also work?", "error", "NVML, at a time limit"),
    28: OfRuns("straggler", "Is every GPU as fast as its peers?", "error", "matmul, device_copy of all ranks"),
    33: OfRuns("slow_link", "Do NVLinks run without errors?", "warning", "NVML's counters before and after a case"),
    38: OfRuns("wrong_transport", "Do GPUs of one host talk over NVLink or PCIe and not over memory?", "error", _LOG),
    39: OfRuns("wrong_transport", "Is NVLS there where the hardware has it?", "note", _LOG),
    40: OfRuns("slow_link", "Is every pair of GPUs as fast as its peers?", "error", "peer_copy, link_matrix"),
    45: OfRuns("wrong_transport", "Does NCCL use RDMA and not sockets?", "error", _LOG),
    81: OfRuns("unlike_hosts", "Is NCCL one version on all hosts?", "warning", "what workers loaded"),
    84: OfRuns("failed_case", "Has every rank the world it was asked for?", "error", _CASE),
    87: OfRuns(
        "allocator_retries", "Was memory free of retries while steps were timed?", "warning", "PyTorch's allocator"
    ),
    88: OfRuns("first_iteration", "What does the first iteration cost?", "note", _CASE),
    89: OfRuns("unstable", "Are the iterations of a case alike?", "warning", _CASE),
    90: OfRuns("failed_case", "Did every operation give the right result?", "error", _CASE),
    91: OfRuns("beyond_bound", "Is every figure below what is physically possible?", "error", "data sheets"),
    92: OfRuns("failed_case", "In which phase did a case stop, and which rank was behind?", "error", _CASE),
    93: OfRuns("failed_case", "Did all ranks start the same collectives?", "error", _RAS),
    94: OfRuns("failed_case", "Do collectives make progress?", "error", _RAS),
    147: OfRuns(
        "slow_disk", "Is every host's disk as fast as its peers'?", "warning", "file_io, small_files of all hosts"
    ),
    148: OfRuns("drift", "Does every case keep its time while a run goes on?", "warning", _CASE),
    155: OfRuns(
        "slow_host_memory",
        "Are the memory of every host and its copies to GPUs as fast as those of the others?",
        "warning",
        "host_copy, cpu_memory of all hosts",
    ),
    158: OfRuns(
        "idle_port",
        "Does every network port carry its share on every host?",
        "warning",
        "/sys/class/infiniband/*/ports/*/counters beside collectives of three hosts or more",
    ),
}

IN_LOGS: dict[int, tuple[str, ...]] = {
    1: ("without_gpu_direct",),
    13: ("weak_copy",),
    20: ("page_retirement", "unrepairable_memory"),
    26: ("gpu_spins",),
    28: ("slow_rank",),
    31: ("gpu_lost", "missing_copy"),
    32: ("nvlink_inactive", "nvlink_pairs"),
    34: ("fabric_state", "fabric_manager_log"),
    38: ("network_within_host", "memory_within_host"),
    39: ("nvlink_sharp",),
    40: ("weak_pair",),
    42: ("slow_card",),
    44: ("wrong_card",),
    45: ("sockets",),
    63: ("open_files",),
    79: ("driver_mismatch",),
    83: ("forbidden_way", "pinned_setting"),
    90: ("wrong_result",),
    93: ("mismatched_collectives",),
    94: ("collective_timeout",),
    113: ("driver_not_loaded",),
    116: ("rdma_device_failed", "device_lost"),
    140: ("dram_ecc",),
}
"""Names under which ``doctor --log`` finds what a check or a diagnosis of a run asks about; rules have their own."""

OF_LOGS: dict[int, OfLogs] = {
    142: OfLogs(
        ("gpu_sensor", "gpu_inforom"),
        "Does every GPU answer for all of its values?",
        "warning",
        "what nvidia-smi printed, as a file",
    ),
    143: OfLogs(
        ("nvlink_slow",),
        "Does every NVLink run at its rate?",
        "error",
        "what nvidia-smi nvlink -s printed, as a file",
    ),
    144: OfLogs(
        ("slowed_by_peer_access",),
        "Are copies between GPUs no slower with peer access than without?",
        "error",
        "what p2pBandwidthLatencyTest printed, as a file",
    ),
    145: OfLogs(
        ("nccl_warning",), "Is NCCL's log free of warnings that no rule here knows?", "note", "NCCL's log, as a file"
    ),
    146: OfLogs(
        ("not_reached",),
        "Is every host reached that was asked for?",
        "error",
        "ssh, or the launcher",
        "tests/doctor/test_verb.py",
        "doctor --hosts, --launch",
    ),
    149: OfLogs(
        ("peer_gone", "rank_killed"),
        "Did every rank stay until the others were done?",
        "warning",
        "NCCL's or PyTorch's log, as a file",
    ),
    150: OfLogs(
        ("cuda_failure", "nccl_failed", "failed_collective", "nvbandwidth"),
        "Did CUDA and NCCL do what they were asked for?",
        "warning",
        "NCCL's or PyTorch's log, or what nccl-tests or nvbandwidth printed, as a file",
    ),
    160: OfLogs(
        ("dcgm_diag", "dcgm_health"),
        "Does every GPU pass DCGM's tests, and do its watches report nothing?",
        "error",
        "what dcgmi diag or dcgmi health -c printed, as a file",
        "tests/doctor/readers/test_dcgmi_diag.py",
    ),
    162: OfLogs(
        ("burn_in",),
        "Does every GPU compute right, and as fast as the others, while all of them work?",
        "error",
        "what gpu-burn or gpu-fryer printed, as a file",
        "tests/doctor/readers/test_gpu_burn.py",
    ),
    163: OfLogs(
        ("xgmi_errors",),
        "Are the links between GPUs of AMD free of errors?",
        "warning",
        "what rocm-smi --showxgmierr printed, as a file",
        "tests/doctor/readers/test_rocm_smi.py",
    ),
    164: OfLogs(
        ("nvlink_errors",),
        "Have NVLinks sent few packets again, and never had to train again?",
        "warning",
        "what nvidia-smi nvlink -e or dcgmi nvlink -e printed, as a file",
        "tests/doctor/readers/test_nvlink_errors.py",
    ),
    165: OfLogs(
        ("ethernet_link",),
        "Does every Ethernet port run at the speed of both its ends?",
        "warning",
        "what ethtool NIC printed, as a file",
        "tests/doctor/readers/test_ethtool_settings.py",
    ),
    166: OfLogs(
        ("optical_module",),
        "Does every optical module get enough light, and raise no alarm?",
        "warning",
        "what ethtool -m printed, as a file",
        "tests/doctor/readers/test_ethtool_module.py",
    ),
    167: OfLogs(
        ("link_signal",),
        "Does the firmware of network cards find nothing wrong with the signal of their ports?",
        "error",
        "what mlxlink printed, as a file",
        "tests/doctor/readers/test_mlxlink.py",
    ),
    168: OfLogs(
        ("memory_bandwidth",),
        "Is every NUMA node's own memory as fast as that of its siblings?",
        "warning",
        "what mlc printed, as a file",
        "tests/doctor/readers/test_mlc.py",
    ),
    169: OfLogs(
        ("cpus_online", "cpu_boost"),
        "Are all CPUs on-line, as many on every NUMA node, and may their clocks rise?",
        "warning",
        "what lscpu printed, as a file",
        "tests/doctor/readers/test_lscpu.py",
    ),
    170: OfLogs(
        ("memory_modules", "memory_speed", "numa_memory"),
        "Has every socket its memory modules, as many and as fast as the others?",
        "warning",
        "what dmidecode, numactl --hardware or lstopo printed, as a file",
        "tests/doctor/readers/test_dmidecode.py",
    ),
    171: OfLogs(
        ("firmware_state",),
        "Does the firmware say of no processor, chassis or power supply that it is broken or off?",
        "warning",
        "what dmidecode printed, as a file",
        "tests/doctor/readers/test_dmidecode.py",
    ),
    172: OfLogs(
        ("fabric_links",),
        "Does every link of the InfiniBand fabric run at the width and speed of both its ends?",
        "error",
        "what iblinkinfo or ibnetdiscover printed, as a file",
        "tests/doctor/readers/test_iblinkinfo.py",
    ),
    173: OfLogs(
        ("rdma_transfer",),
        "Did every transfer over RDMA end without an error?",
        "error",
        "what perftest printed, as a file",
        "tests/doctor/readers/test_perftest.py",
    ),
    175: OfLogs(
        ("disk_full",),
        "Had every file of a job room on its disk?",
        "error",
        "PyTorch's log, as a file",
        "tests/doctor/test_torch_log.py",
    ),
}
"""By numbers from 140 on."""

QUESTIONS: dict[int, str] = {
    3: "Is nvidia_peermem loaded, or DMA-BUF there?",
    4: "Is nvidia_peermem free of invalid contexts?",
    5: "Can DMA-BUF be used with this kernel and driver?",
    8: "Is each GPU near the network card it uses?",
    9: "Is PCIe relaxed ordering on for network cards?",
    10: "Is gdrdrv there?",
    11: "Is ACS off on the bridges between GPUs and cards?",
    12: "Is the IOMMU off or in pass-through?",
    14: "Has each GPU all of its PCIe lanes?",
    15: "Has each network card its PCIe speed and lanes?",
    16: "Are PCIe links free of replays and errors?",
    17: "Has each network card enough power?",
    18: "Is the kernel log free of Xid errors?",
    19: "Is the kernel log free of NVSwitch errors?",
    20: "Is no row of GPU memory waiting to be remapped, or lost?",
    21: "Is GPU memory free of uncorrectable errors?",
    23: "May each GPU clock as high as it can?",
    24: "Is each GPU's power limit its default?",
    25: "Is persistence mode on?",
    26: "Is no foreign process on a GPU?",
    29: "Does nvidia-smi answer quickly?",
    30: "Have all GPUs one VBIOS and driver?",
    31: "Are all GPUs there?",
    32: "Are all NVLinks up?",
    34: "Is the fabric manager running, and the fabric trained?",
    35: "Is the IMEX domain up?",
    36: "Has this host a channel of the IMEX domain?",
    37: "Is peer access on between GPUs that NVLink joins?",
    41: "Is every RDMA port up?",
    42: "Does every port run at its rate?",
    43: "Have all hosts as many RDMA devices?",
    44: "Does training use the training network's cards?",
    46: "Has each RoCE port an address that can be routed?",
    47: "Is NCCL left to choose the GID?",
    48: "Do hosts agree in the GID's index?",
    49: "Is the network of one kind, InfiniBand or RoCE?",
    50: "Is the MTU one and large enough?",
    51: "Is a subnet manager there?",
    52: "Do error counters of ports stand still?",
    53: "Is RDMA free of retransmissions?",
    54: "Is RoCE free of congestion?",
    55: "Did every link stay up?",
    56: "Is every cable and transceiver cool?",
    57: "Have cards of one name one firmware and model?",
    58: "Are there several queue pairs a connection where paths are many?",
    59: "Do cards of different rails reach each other?",
    60: "Does every pair of hosts reach each other over verbs?",
    61: "Is each card on the PCIe switch of its GPU?",
    62: "May a process lock as much memory as RDMA registers?",
    63: "May a process open as many files as a large job needs?",
    64: "Is the stack of threads limited?",
    65: "Is /dev/shm large enough?",
    66: "Is shared memory left alone when a user logs out?",
    67: "Has each GPU enough CPUs?",
    68: "Does a process run on the CPUs near its GPUs?",
    69: "Is NUMA balancing off?",
    70: "Do CPUs run at full clock, without deep sleep?",
    71: "How are huge pages set?",
    72: "Is swap off, and memory not short?",
    73: "Is no task stuck, and no CPU locked up?",
    74: "Are there enough ports for a job's connections?",
    75: "Do the clocks of hosts agree?",
    76: "Does a container show /sys and devices?",
    77: "Is this bare metal?",
    78: "Can NCCL allocate host memory through CUDA?",
    79: "Can NVIDIA's libraries be loaded?",
    80: "Is the NCCL that is loaded the one that was installed?",
    82: "Is the network plug-in there that this machine needs?",
    83: "Does no variable switch off what makes NCCL fast?",
    85: "Has every rank as many network devices?",
    86: "Did NCCL find a path for its rings and trees?",
}
"""Of those that no check or diagnosis of a run has; for checks their own question counts."""

WAITS: dict[int, str] = {
    59: "hardware: two rails",
    60: "hardware: RDMA cards",
}


def names_in_logs(number: int) -> tuple[str, ...]:
    """Names under which files at hand, and they alone, show what a number asks about."""
    of_rules = (rule.name for rule in RULES if rule.number == number)
    of_logs = OF_LOGS[number].names if number in OF_LOGS else ()
    return tuple(dict.fromkeys((*of_rules, *IN_LOGS.get(number, ()), *of_logs)))


def entries() -> Iterator[Entry]:
    """All checks by number."""
    of_hosts = {kind.number for kind in checks().values()}
    for number in sorted({*range(1, KNOWN + 1), *of_hosts, *OF_RUNS, *OF_LOGS}):
        entry = _entry(number)
        others = (name for name in names_in_logs(number) if name != entry.by)
        yield replace(entry, in_logs=tuple(others))


def _entry(number: int) -> Entry:
    of_hosts = {kind.number: (name, kind) for name, kind in checks().items()}
    of_rules = {rule.number: rule for rule in RULES}
    if number in of_hosts:
        name, kind = of_hosts[number]
        test = f"tests/checks/test_{name}.py"
        state: State = "runs and doctor" if kind.needs_workers else "every run and doctor --quick"
        said = (kind.question, name, kind.severity, kind.right, kind.source)
        return Entry(number, *said, test, state, programs=kind.programs)
    if number in OF_RUNS:
        of = OF_RUNS[number]
        test = f"tests/diagnoses/test_{of.diagnosis}.py"
        said = (of.question, of.diagnosis, of.severity, "", of.source)
        return Entry(number, *said, test, "runs and doctor", programs=of.programs)
    if number in OF_LOGS:
        log = OF_LOGS[number]
        return Entry(number, log.question, log.names[0], log.severity, "", log.source, log.test, log.state)
    if number in of_rules:
        rule, source, test = of_rules[number], "NCCL's log, as a file", LOG_TEST
        return Entry(number, QUESTIONS[number], rule.name, rule.severity, "", source, test, "doctor --log")
    return Entry(number, QUESTIONS[number], "", "", "", "", "", "not yet", WAITS.get(number, ""))


def sources() -> dict[str, str]:
    """By the name of a finding about hosts or a run: the files or the program that it is read from."""
    found: dict[str, str] = {}
    for entry in entries():
        found.setdefault(entry.by, entry.source)
    return found


def severities() -> dict[str, Severity]:
    """By the name of a finding the worst that rows of it say; figures that are not steady are notes to the doctor."""
    found: dict[str, Severity] = {}
    for entry in entries():
        for name in (entry.by, *entry.in_logs):
            if name and entry.severity:
                found[name] = min(found.get(name, "note"), entry.severity, key=SEVERITIES.index)
    return found | {name: "note" for name, kind in diagnoses().items() if kind.subject == "figures"}


def markdown() -> str:
    """The table of ``docs/doctor.md``."""
    rows = ["| | question | by | severity | source | test | where |", "|---|---|---|---|---|---|---|"]
    for entry in entries():
        state = f"{entry.state}: waits for {entry.waits}" if entry.waits else entry.state
        right = f" ({entry.right})" if entry.right else ""
        by, test = entry.by, f"[test](../{entry.test})" if entry.test else ""
        if entry.in_logs:
            by += f"; in logs: {', '.join(entry.in_logs)}"
            test += "" if entry.test == LOG_TEST else f", [logs](../{LOG_TEST})"
        cells = (entry.number, entry.question, by, entry.severity, f"{entry.source}{right}", test, state)
        rows.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"
