"""What PyTorch prints when a job of many ranks fails: collectives that do not end, failed calls, ranks that are killed.

Source: pytorch/pytorch, ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` (2.0 to 2.7), ``NCCLUtils.cpp``,
``torch/distributed/elastic/multiprocessing/errors``; CUDA, ``cudaGetErrorString``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from clusterbench.doctor import Found, NotJudged
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
        "cuda_failure",
        "note",
        r"(CUDA out of memory)\. Tried to allocate",
        "{}: the job asked for more than its GPU has",
        "a smaller batch; nvidia-smi: does another process hold memory?",
    ),
    Message(
        "cuda_failure",
        "warning",
        r"CUDA error: ([a-z][\w ,-]+)",
        "a call of CUDA failed: {}",
        "Xids in the kernel's log; CUDA_LAUNCH_BLOCKING=1 shows the call; one GPU again and again: its diagnostics",
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
        "rank_killed",
        "warning",
        r"Signal \d+ \((SIG(?:KILL|BUS|SEGV|ABRT|ILL))\) received by PID",
        "a rank was killed: {}",
        "SIGKILL: 'Killed process' in the kernel's log; SIGBUS: /dev/shm is full; SIGSEGV, SIGABRT: the rank's own log",
    ),
)
_COMPILED = tuple((message, re.compile(message.pattern)) for message in MESSAGES)
_NONE = "PyTorch's log names what failed, and nothing of what is well"


def read(file: File) -> list[tuple[str, Said]]:
    """What it tells, host by host; ranks of one host are judged together, since one is behind what others wait for."""
    by_host = sorted(file.lines, key=lambda line: _host(line, file.host))
    texts = {host: [*lines] for host, lines in groupby(by_host, key=lambda line: _host(line, file.host))}
    return [(host, said) for host, lines in texts.items() if (said := _judged(lines, host)) is not None]


def _host(line: PlainLine, name: str) -> str:
    return line.origin if line.origin and " " not in line.origin else name


def _judged(lines: Sequence[PlainLine], host: str) -> Said | None:
    found = (*_timeouts(lines, host), *_messages(lines, host))
    if all(each.severity == "note" for each in found):
        found = (*_ended(lines, host), *found)
    if not found:
        return None
    notes = all(each.severity == "note" for each in found)
    unknown = (NotJudged("collective_timeout", (host,), _NONE, "clusterbench doctor"),) if notes else ()
    return Said(found=found, not_judged=unknown, hosts=(host,))


def _timeouts(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """Collectives that timed out, as one finding: with the ranks that stand at an earlier one than the others."""
    timeouts = [(line, match) for line in lines if (match := _TIMEOUT.search(line.text))]
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


def _messages(lines: Sequence[PlainLine], host: str) -> Iterator[Found]:
    """Each kind of message once, with how often."""
    often: Counter[tuple[Message, str]] = Counter()
    first: dict[tuple[Message, str], str] = {}
    for line in lines:
        told = next(((message, match) for message, pattern in _COMPILED if (match := pattern.search(line.text))), None)
        if told is None:
            continue
        message, match = told
        key = message, message.what.format(*(group.strip() for group in match.groups() if group))
        often[key] += 1
        first.setdefault(key, line.text.strip())
    for (message, what), number in often.items():
        times = f", {number:,} times" if number > 1 else ""
        evidence = f"{host}: {first[message, what][:300]}"
        yield Found(message.name, message.severity, (host,), "", f"{what}{times}", evidence, "dmesg -T", message.fix)
