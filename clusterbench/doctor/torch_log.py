"""What PyTorch prints when a job of many ranks fails: collectives that do not end, failed calls, ranks that are killed.

Source: pytorch/pytorch, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` (2.0 to 2.7), ``NCCLUtils.cpp``,
``socket.cpp``, ``TCPStore.cpp``, ``torch/csrc/DataLoader.cpp``, ``torch/distributed/elastic/multiprocessing/errors``;
pytorch/gloo, ``gloo/transport/tcp/pair.cc``; CUDA, ``cudaGetErrorString``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from clusterbench.doctor import Found, NotJudged, nccl_log
from clusterbench.doctor.said import File, Said
from clusterbench.tools._prefix import PlainLine
from clusterbench.types import Severity
from clusterbench.words import few, plural

_TIMEOUT = re.compile(
    r"(?:\[[^\]]*Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?P<work>.*)\) ran for (?P<ms>\d+) milliseconds"
)
_ENDED = re.compile(
    r"Some NCCL operations have failed or timed out|Timeout at NCCL work: \d+"
    r"|failure detected by watchdog at work sequence id: \d+|timed out in blocking wait"
)
"""What the watchdog says beside the reason, or where the reason was left out."""
_SEQUENCE, _OP = re.compile(r"SeqNum=(\d+)"), re.compile(r"OpType=(\w+)")


@dataclass(frozen=True)
class Message:
    """A line that tells of a failure; ``{}`` are its groups."""

    name: str
    severity: Severity
    pattern: str
    what: str
    fix: str


MESSAGES = (
    Message(
        "collective_timeout",
        "error",
        r"watchdog got stuck for (\d+) seconds without making progress",
        "a call of CUDA or NCCL did not return for {} s",
        "Xids in the kernel's log; py-spy dump of the rank; is a GPU lost?",
    ),
    Message(
        "uncorrectable_ecc",
        "error",
        r"CUDA error: uncorrectable ECC error encountered",
        "a GPU's memory had an error that ECC could not correct",
        "nvidia-smi -q -d ECC,ROW_REMAPPER says which GPU; reset it; if errors come back, RMA",
    ),
    Message(
        "cuda_failure",
        "error",
        r"(?:CUDA error: (uncorrectable NVLink error detected\w*|.*[Hh]ardware (?:stack )?error.*|"
        r"unknown error)|CUDA_ERROR_(CONTAINED\b.*))",
        "CUDA reports a fault of driver or hardware: {}",
        "Xids in the kernel's log; nvidia-smi -q; nvidia-smi nvlink -e; reset the GPU",
    ),
    Message(
        "fabric_state",
        "error",
        r"(?:CUDA error|Error 802): system not yet initialized",
        "CUDA does not start (error 802): the fabric manager does not run, or is not done with the NVSwitches",
        "start nvidia-fabricmanager, of the driver's version; then its log; in a virtual machine: the host's",
    ),
    Message(
        "cuda_failure",
        "note",
        r"(CUDA out of memory)\. Tried to allocate",
        "{}: the job asked for more than its GPU has",
        "a smaller batch; nvidia-smi: does another process hold memory?",
    ),
    Message(
        "cuda_failure",
        "warning",
        r"(?:(?:CUDA|HIP) error: ([a-z][\w ,-]+|CUDA-capable device\(s\) is/are busy or unavailable|CUBLAS_STATUS_\w+)"
        r"|(No CUDA GPUs are available|CUDA driver initialization failed|CUDA unknown error))",
        "a call of CUDA failed: {}",
        "Xids in the kernel's log; CUDA_LAUNCH_BLOCKING=1 shows the call; one GPU again and again: its diagnostics",
    ),
    Message(
        "host_not_reached",
        "error",
        r"The client socket has timed out after (\S+) while trying to connect to \((\S+), \d+\)",
        "no answer within {} from {}, where the ranks meet",
        "does rank 0 run there? MASTER_ADDR and MASTER_PORT alike on all hosts; firewall; ip route get",
    ),
    Message(
        "host_not_reached",
        "error",
        r"Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "within {} s only {} of {} processes joined the job",
        "the first error in the logs of the hosts that did not join; MASTER_ADDR alike on all; firewall",
    ),
    Message(
        "address_in_use",
        "error",
        r"The server socket has failed to (?:listen on|bind to) .*(?:EADDRINUSE|[Aa]ddress already in use)",
        "a port that is taken was to be listened on",
        "end what an earlier job left; another MASTER_PORT",
    ),
    Message(
        "shared_memory_full",
        "error",
        r"DataLoader worker \(pid[^)]*\)+ is killed by signal: Bus error"
        r"|unable to (?:write to file|allocate shared memory\(shm\) for file) </torch_",
        "/dev/shm is too small for what loads data",
        "docker --shm-size=8g or --ipc=host; an emptyDir of medium Memory in Kubernetes; fewer workers",
    ),
    Message(
        "peer_gone",
        "warning",
        r"gloo/transport/\S+\] Connection closed by peer"
        r"|is setting up NCCL communicator and retrieving ncclUniqueId .* (?:Connection reset by peer|Broken pipe)",
        "a connection between ranks broke, most often because another rank failed first",
        "the first error in the logs of the other ranks; Xids and killed processes on their hosts",
    ),
    Message(
        "peer_gone",
        "warning",
        r"^(?:\[rank\d+\]: )?ncclRemoteError: ",
        "a connection between ranks broke, most often because another rank failed first",
        "the first error in the logs of the other ranks; Xids and killed processes on their hosts",
    ),
    Message(
        "nccl_failed",
        "warning",
        r"^(?:\[rank\d+\]: )?(nccl(?:SystemError|UnhandledCudaError|InternalError|InvalidUsage|InvalidArgument)): ",
        "a call of NCCL failed: {}",
        "NCCL_DEBUG=WARN says why; Xids in the kernel's log",
    ),
    Message(
        "cuda_failure",
        "warning",
        r"(?:cuDNN error: |\b)(CUDNN_STATUS_(?!SUCCESS)\w+)",
        "a call of cuDNN failed: {}",
        "most often too little GPU memory is left, or LD_LIBRARY_PATH has another cuDNN than PyTorch's; then Xids",
    ),
    Message(
        "driver_mismatch",
        "error",
        r"The NVIDIA driver on your system is too old \(found version (\d+)\)",
        "NVIDIA's driver is older than the CUDA of this PyTorch: it knows version {} (12040 is CUDA 12.4)",
        "a driver of PyTorch's CUDA or later, or a PyTorch built for the driver's: nvidia-smi, torch.version.cuda",
    ),
    Message(
        "mismatched_collectives",
        "error",
        r"Detected mismatch between collectives on ranks\. Rank (\d+) is running (?:inconsistent )?collective: "
        r".*OpType=(\w+).*but Rank (\d+) is running collective: .*?(?:OpType=)?([A-Z_]{4,})\b",
        "rank {} called {} where rank {} called {}: the calls or the sizes differ",
        "the program: a branch, a batch or a parameter that only some ranks have; the line says what differs",
    ),
    Message(
        "mismatched_collectives",
        "error",
        r"Detected mismatch between collectives on ranks\. Rank (\d+) is running ",
        "rank {} called another collective than the others, or with another size",
        "the program: a branch, a batch or a parameter that only some ranks have; the line says what differs",
    ),
    Message(
        "open_files",
        "error",
        r"\[Errno 24\] Too many open files|errno: 24 - Too many|Too many open files\. Communication"
        r"|received 0 items of ancdata",
        "a process had as many files open as it may",
        "ulimit -n 1048576 (LimitNOFILE of slurmd or the container's engine); fewer workers of the DataLoader; "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Message(
        "disk_full",
        "error",
        r"\[Errno 28\] No space left on device|PytorchStreamWriter failed writing file",
        "a file could not be written: its disk is full, or a quota is used up",
        "df -h and df -i of that folder, and quota; /tmp, /dev/shm and ~/.cache fill up, too",
    ),
    Message(
        "rank_killed",
        "warning",
        r"Fatal Python error: (Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)",
        "a process of Python ended: {}",
        "the lines below name the call; Bus error: /dev/shm or a disk is full; Aborted: the error above it; again and "
        "again on one host: its memory (EDAC) and CPUs",
    ),
    Message(
        "nccl_failed",
        "warning",
        r"NCCL Error \d+: (unhandled \w+ error|internal error|invalid \w+|remote process exited\b.*)",
        "a call of NCCL failed: {}",
        "NCCL_DEBUG=WARN says why; Xids in the kernel's log",
    ),
)
WORDS = (
    *("watchdog got stuck", "CUDA", "HIP error", "Error 802", "client socket has timed out", "waiting for clients"),
    *(
        "server socket has failed",
        "DataLoader worker",
        "</torch_",
        "Connection closed by peer",
        "retrieving ncclUniqueId",
    ),
    *("ncclRemoteError", "ncclSystemError", "ncclUnhandledCudaError", "ncclInternalError", "ncclInvalid"),
    *("CUDNN_STATUS_", "NVIDIA driver on your system", "Detected mismatch", "Too many open files", "of ancdata"),
    *("No space left on device", "PytorchStreamWriter", "Fatal Python error", "NCCL Error "),
)
"""One of these stands in whatever a pattern of :data:`MESSAGES` matches: most lines hold none, and are passed over."""
_COMPILED = tuple((message, re.compile(message.pattern)) for message in MESSAGES)
_RANK = r"(?:\[rank\d+\]: ?)?"
_LAST_ERROR = re.compile(rf"{_RANK}Last error: ?(?P<words>.*)")
"""NCCL's own words, on the next line, behind PyTorch's word for their kind."""
_OF_NCCL = tuple((rule, re.compile(rule.pattern)) for rule in nccl_log.RULES)
_KINDS_OF_NCCL = ("nccl_failed", "peer_gone")
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV"}
"""Those of Linux by which a rank dies that did not end itself; SIGTERM and SIGINT are the launcher's."""
_FIELD = re.compile(r"\s*(host|rank)\s+: (\S+)")
_ENDED_BY = re.compile(r"Signal (\d+) \(SIG\w+\) received by PID (\d+)")
_EXITED = re.compile(r"failed \(exitcode: -(\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_KILLED_FIX = (
    "SIGKILL: 'Killed process' in the kernel's log; SIGBUS: /dev/shm is full; SIGSEGV, SIGABRT: the rank's own log"
)
_NONE = "PyTorch's log names what failed, and nothing of what is well"


def read(file: File) -> list[tuple[str, Said]]:
    """What it tells, host by host; ranks of one host are judged together, since one is behind what others wait for."""
    by_host = sorted(file.lines, key=lambda line: _host(line, file.host))
    texts = {host: [*lines] for host, lines in groupby(by_host, key=lambda line: _host(line, file.host))}
    return [(host, said) for host, lines in texts.items() if (said := _judged(lines, host)) is not None]


def _host(line: PlainLine, name: str) -> str:
    return line.origin if line.origin and " " not in line.origin else name


def _judged(lines: Sequence[PlainLine], host: str) -> Said | None:
    found = (*_timeouts(lines, host), *_messages(lines, host), *_killed(lines, host))
    if all(each.severity == "note" for each in found):
        found = (*_ended(lines, host), *found)
    if not found:
        return None
    notes = all(each.severity == "note" for each in found)
    unknown = (NotJudged("collective_timeout", (host,), _NONE, "clusterbench doctor"),) if notes else ()
    hosts = dict.fromkeys(name for each in found for name in each.hosts)
    return Said(found=found, not_judged=unknown, hosts=tuple(hosts))


def _timeouts(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """Collectives that timed out, as one finding: with the ranks that stand at an earlier one than the others."""
    caught = [line for line in lines if "Watchdog caught" in line.text]
    timeouts = [(line, match) for line in caught if (match := _TIMEOUT.search(line.text))]
    if not timeouts:
        return
    works = Counter(_work(match["work"]) for _, match in timeouts)
    work, _ = works.most_common(1)[0]
    line, match = next((line, match) for line, match in timeouts if _work(match["work"]) == work)
    ranks = sorted({int(match["rank"]) for _, match in timeouts if match["rank"]})
    waited = f" on {plural(len(ranks), 'rank')} ({few(ranks)})" if ranks else ""
    what = f"{work} did not end in {int(match['ms']) / 1000:.0f} s{waited}"
    behind = _behind([match for _, match in timeouts])
    if behind:
        what += f"; behind the others: {few([f'rank {rank}' for rank in behind])}"
    fix = "the rank that is behind or has no such line: its own log, Xids and killed processes on its host"
    confirm = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000; NCCL_DEBUG=INFO; dmesg -T"
    where = f"rank {behind[0]}" if len(behind) == 1 else ""
    yield Found("collective_timeout", "error", (host,), where, what, f"{host}: {line.text.strip()}", confirm, fix)


def _ended(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """That the watchdog ended ranks, where no line says why."""
    ended = [line.text.strip() for line in lines if _ENDED.search(line.text)]
    if ended:
        what = "PyTorch's watchdog ended the job: a collective failed or did not end, and no line here says which"
        fix = "the whole log of every rank; Xids and killed processes on their hosts"
        confirm = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000; NCCL_DEBUG=INFO; dmesg -T"
        yield Found("collective_timeout", "error", (host,), "", what, f"{host}: {ended[0][:300]}", confirm, fix)


def _work(said: str) -> str:
    """``ALLREDUCE (SeqNum 1580)``."""
    op, sequence = _OP.search(said), _SEQUENCE.search(said)
    return f"{op[1] if op else 'a collective'}{f' (SeqNum {sequence[1]})' if sequence else ''}"


def _behind(timeouts: Sequence[re.Match[str]]) -> list[int]:
    """Ranks whose first collective in time-out is an earlier one than that of most."""
    first: dict[int, int] = {}
    for match in timeouts:
        if match["rank"] and (sequence := _SEQUENCE.search(match["work"])):
            rank, number = int(match["rank"]), int(sequence[1])
            first[rank] = min(first.get(rank, number), number)
    usual, many = Counter(first.values()).most_common(1)[0] if first else (0, 0)
    return sorted(rank for rank, number in first.items() if number < usual) if 2 * many > len(first) else []


@dataclass(frozen=True)
class _Told:
    """What one line tells, as a finding has it."""

    name: str
    severity: Severity
    what: str
    fix: str


def _messages(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """Each kind of message once, with how often; where NCCL's own words follow on its kind of error, those alone."""
    told: list[tuple[_Told, PlainLine]] = []
    warned = {line.text.partition(" NCCL WARN ")[2] for line in lines}
    announced: set[str] = set()  # of whom the next line has the words
    there = _there(WORDS, lines)
    for line in lines:
        last = _LAST_ERROR.match(line.text) if "Last error:" in line.text else None
        words = last["words"] if last else re.sub(f"^{_RANK}", "", line.text) if line.origin in announced else ""
        announced.discard(line.origin)
        if last and not words:
            announced.add(line.origin)
        elif words and (of_nccl := _told(words, _OF_NCCL)):
            _drop_kind(told, line.origin)
            told += [] if words.strip() in warned else [(of_nccl, line)]
        elif any(word in line.text for word in there) and (other := _told(line.text, _COMPILED)):
            told.append((other, line))
    often = Counter(each for each, _ in told)
    first = dict(reversed(told))
    for message, number in often.items():
        times = f", {number:,} times" if number > 1 else ""
        evidence = f"{host}: {first[message].text.strip()[:300]}"
        what = f"{message.what}{times}"
        yield Found(message.name, message.severity, (host,), "", what, evidence, "dmesg -T", message.fix)


def _there(words: Sequence[str], lines: Sequence[PlainLine]) -> list[str]:
    """Those that stand anywhere: the others need not be looked for in each line."""
    whole = "\n".join(line.text for line in lines)
    return [word for word in words if word in whole]


def _told(words: str, patterns: Sequence[tuple[Message | nccl_log.Rule, re.Pattern[str]]]) -> _Told | None:
    """By the first pattern that matches."""
    for rule, pattern in patterns:
        if match := pattern.search(words):
            what = rule.what.format(*(group.strip() for group in match.groups() if group))
            return _Told(rule.name, rule.severity, what, rule.fix)
    return None


def _drop_kind(told: list[tuple[_Told, PlainLine]], origin: str) -> None:
    """Takes out the kind of NCCL's error that a rank named last."""
    for index, (each, line) in reversed([*enumerate(told)]):
        if line.origin == origin and each.name in _KINDS_OF_NCCL:
            del told[index]
            return


@dataclass(frozen=True)
class _Killed:
    """A rank that a signal ended; ``rank`` is empty where it is not said which."""

    host: str
    rank: str
    line: str


def _killed(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """Ranks that a signal ended, by signal and host; the summary of torchrun says host and rank better than its log."""
    by_signal: dict[tuple[str, str], list[_Killed]] = defaultdict(list)
    for signal, killed in _of_processes(lines, host).values():
        by_signal[killed.host, signal].append(killed)
    for (at, signal), same in by_signal.items():
        what = f"{plural(len(same), 'rank')} were killed: {signal}"
        if len(same) == 1:
            what = f"was killed: {signal}" if same[0].rank else f"a rank was killed: {signal}"
        where = few([killed.rank for killed in same if killed.rank])
        evidence = f"{host}: {same[0].line.strip()[:300]}"
        yield Found("rank_killed", "warning", (at,), where, what, evidence, "dmesg -T", _KILLED_FIX)


def _of_processes(lines: Sequence[PlainLine], host: str) -> dict[str, tuple[str, _Killed]]:
    """By the number of the process its signal and rank."""
    of_process: dict[str, tuple[str, _Killed]] = {}
    fields: dict[str, str] = {}
    for line in lines:
        if field := _FIELD.match(line.text):
            fields[field[1]] = field[2]
        elif (exited := _EXITED.search(line.text)) and int(exited[1]) in _SIGNALS:
            killed = _Killed(host, f"local rank {exited[2]}", line.text)
            of_process.setdefault(exited[3], (_SIGNALS[int(exited[1])], killed))
        elif (ended := _ENDED_BY.search(line.text)) and int(ended[1]) in _SIGNALS:
            at = _host(line, "") or fields.get("host", host)
            killed = _Killed(at, f"rank {fields['rank']}" if "rank" in fields else "", line.text)
            of_process[ended[2]] = (_SIGNALS[int(ended[1])], killed)
            fields = {}
    return of_process
