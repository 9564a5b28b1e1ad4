"""What NCCL's RAS says of its communicators in JSON, and what two of its answers say of a program that stands still.

Sources: NCCL user guide, "RAS", JSON output (since 2.28.7); NCCL issues 1730 (equal counts that do not move) and 1911
(of ranks that differ those that lag are few or many: the lowest count tells, not the smaller party).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clusterbench.errors import ToolError
from clusterbench.run_folder.records import parsed

_MISSING_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s*"status")')
"""NCCL 2.28.7 and 2.28.9 leave out the comma behind ``nvml_dev`` of a rank that is missing (ray pull request 64928)."""

_UNLIKE_A_NAME = re.compile(r"[^\w.:%-]", re.ASCII)

MOST_NAMED = 8
"""Ranks that a :class:`Stall` names of each kind: it travels in a message and stands in a sentence."""


@dataclass(frozen=True)
class Process:
    """A rank of a communicator: where it runs, by the address or name that RAS gives, and on which GPU."""

    rank: int
    host: str
    pid: int
    gpu: int


@dataclass(frozen=True)
class Communicator:
    """One communicator.

    Attributes
    ----------
    counts
        Collectives that each rank has launched, by kind.
    missing
        Ranks that did not answer RAS.
    """

    name: str
    size: int
    counts: Mapping[Process, Mapping[str, int]]
    missing: tuple[Process, ...]


@dataclass(frozen=True)
class Lag:
    """Ranks of one communicator that have launched fewer collectives of one kind than the others."""

    size: int
    operation: str
    lowest: int
    highest: int
    num_behind: int
    behind: tuple[Process, ...]


@dataclass(frozen=True)
class Stall:
    """What two answers say together.

    Attributes
    ----------
    state
        ``lagging``: ranks are behind, in both. ``missing``: ranks do not answer. ``stuck``: all have launched equally
        many, and none more meanwhile. ``moving``: more were launched. ``silent``: there is nothing to count.
    missing, num_missing, size
        Of the communicator from which most are missing.
    """

    state: Literal["lagging", "missing", "stuck", "moving", "silent"]
    lag: Lag | None = None
    missing: tuple[Process, ...] = ()
    num_missing: int = 0
    size: int = 0

    def in_words(self, apart_s: float) -> str:
        """The end of a sentence about a time limit.

        >>> Stall("stuck").in_words(2.0)
        '; NCCL says that all ranks launched equally many collectives and none more within 2 s: they are stuck in one'
        """
        lag = self.lag
        if self.state == "lagging" and lag is not None:
            have = "has" if lag.num_behind == 1 else "have"
            who = f"{_named(lag.behind, lag.num_behind)} of a communicator of {lag.size}"
            return f"; NCCL says that {who} {have} launched {lag.lowest} {lag.operation}, others {lag.highest}"
        if self.state == "missing":
            do = "does" if self.num_missing == 1 else "do"
            who = _named(self.missing, self.num_missing)
            return f"; NCCL says that {who} of a communicator of {self.size} {do} not answer"
        if self.state == "stuck":
            return (
                "; NCCL says that all ranks launched equally many collectives and none more within "
                f"{apart_s:g} s: they are stuck in one"
            )
        return f"; NCCL says that ranks still launch collectives after {apart_s:g} s" if self.state == "moving" else ""


def _named(processes: Sequence[Process], number: int) -> str:
    said = ", ".join(f"{each.rank} (GPU {each.gpu}, process {each.pid} on {each.host})" for each in processes)
    more = f" and {number - len(processes)} more" if number > len(processes) else ""
    return f"{'rank' if number == 1 else 'ranks'} {said}{more}"


def communicators(answer: bytes) -> list[Communicator]:
    """The communicators of one answer.

    Raises
    ------
    ToolError
        If it is not of the documented form, naming what is missing or of another kind. Fields that are not needed may
        be there or not: each version of NCCL adds some.
    """
    try:
        whole = parsed(_MISSING_COMMA.sub(rb"\1,\2", answer))
        return [_communicator(each) for each in _list(whole, "communicators")]
    except ValueError as error:
        raise ToolError(f"NCCL's RAS gave no JSON of the documented form: {error}") from None


def _communicator(said: Any) -> Communicator:
    counts = {_process(rank): _counts(rank) for rank in _list(said, "ranks")}
    missing = tuple(_process(rank) for rank in _list(said, "missing_ranks"))
    name = f"{_of(said, 'hash', str)}/{_of(said, 'secondary_hash', str)}"
    return Communicator(name, _of(said, "size", int), counts, missing)


def _process(said: Any) -> Process:
    host = _UNLIKE_A_NAME.sub("?", _of(said, "host", str)[:64])
    return Process(_of(said, "rank", int), host, _of(said, "pid", int), _of(said, "cuda_dev", int))


def _counts(said: Any) -> dict[str, int]:
    counts = _of(said, "collective_counts", dict)
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise ValueError("'collective_counts' holds what is no count")
    return {name[:32]: count for name, count in counts.items()}


def _list(said: Any, name: str) -> list[Any]:
    value: list[Any] = _of(said, name, list)
    return value


def _of(said: Any, name: str, kind: type) -> Any:
    value = said.get(name) if isinstance(said, dict) else None
    if type(value) is not kind:
        raise ValueError(f"'{name}' is not there as {kind.__name__}")
    return value


def stall(first: Sequence[Communicator], second: Sequence[Communicator]) -> Stall:
    """What two answers say, the second some seconds after the first.

    Ranks lag that are behind in both and have launched nothing between them: others may just be about to. Of several
    communicators that is taken in which they are furthest behind.
    """
    before = {each.name: each for each in first}
    lags = [lag for each in second if each.name in before for lag in _lags(before[each.name], each)]
    if lags:
        return Stall("lagging", max(lags, key=lambda lag: (lag.highest - lag.lowest, lag.size)))
    without = max(second, key=lambda each: len(each.missing), default=None)
    if without is not None and without.missing:
        return Stall("missing", None, without.missing[:MOST_NAMED], len(without.missing), without.size)
    launched = sum(sum(counts.values()) for each in second for counts in each.counts.values())
    if not launched:
        return Stall("silent")
    is_still = {each.name: each.counts for each in first} == {each.name: each.counts for each in second}
    return Stall("stuck" if is_still else "moving")


def _lags(before: Communicator, now: Communicator) -> Iterator[Lag]:
    for operation in sorted({name for counts in now.counts.values() for name in counts}):
        by_rank = {rank: counts[operation] for rank, counts in now.counts.items() if operation in counts}
        lowest, highest = min(by_rank.values()), max(by_rank.values())
        behind = [rank for rank, count in by_rank.items() if count == lowest]
        stood = all(before.counts.get(rank, {}).get(operation) == lowest for rank in behind)
        was_highest = max((counts.get(operation, 0) for counts in before.counts.values()), default=0)
        if lowest < highest and stood and was_highest > lowest:
            behind.sort(key=lambda rank: rank.rank)
            yield Lag(now.size, operation, lowest, highest, len(behind), tuple(behind[:MOST_NAMED]))
