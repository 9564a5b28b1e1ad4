"""Rows of a table that is cut over ranks: each rank asks for some by their ids, and gives back gradients of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._collective import ITEM_BYTES, sweeps_of
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import SAMPLES, Case, Metric, MetricKind, Observation, Place, Point, Step, metric_key
from clusterbench.units import format_bytes
from clusterbench.words import Word

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig
    from clusterbench.rows import Row

_BATCHES = 2
_PRIME = 113
"""What a table holds is below, so that it is exact in every dtype."""
_DIGITS = 5
_LARGEST_GRADIENT = 7
_AT_ONCE = 2**22
_SAMPLED = 5
LARGEST_COUNT = {"float32": 2**24 - _PRIME, "float64": 2**53 - _PRIME}
"""Updates of a row that are exact whatever their order."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingLookup(Benchmark):
    """How fast ranks read and update rows of a table which none of them could hold.

    Each rank keeps its share of the rows. In an iteration it has ids of its own, asks the keeper of each, and has the
    rows in the order of its ids: how many are asked for, the ids and the rows travel in three all-to-alls of unequal
    parts. With ``updates`` gradients of the rows go back in a fourth, and keepers add them to what they have. That is
    the row-wise sharded embedding of recommender models, and a parameter server of which each rank is a part.

    Ids are ``uniform``, or fall off as a power of their rank (``zipf``), as those of words and users do. Then one
    keeper is asked for most where rows are kept in ``blocks``, and less is sent with ``duplicates: removed``, where a
    rank asks once for what it needs several times. Iterations take two batches of ids in turn.

    Every element that arrives is compared, and with ``updates`` every element of the table. ``of_all_to_all`` is the
    time that an all_to_all of the rows which the busiest rank sends takes in the same run, over that of the whole:
    what is left is sorting, reading and waiting.

    Source
    ------
    Naumov et al. 2019, arXiv:1906.00091 (DLRM); Ivchenko et al. 2022, doi:10.1145/3523227.3547387 (TorchRec, row-wise);
    Li et al., OSDI 2014 (parameter server).
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "one look-up of all ranks, with its update; from the slowest rank"),
        MetricKind("lookups_per_s", "1/s", "higher", "ids of all ranks over the latency"),
        MetricKind("row_bandwidth", "B/s", "higher", "rows that all ranks asked for, in bytes, over the latency"),
        MetricKind("sent_bytes", "B", "neither", "rows that a rank sends to others, counted; the busiest rank's"),
        MetricKind("sent_fraction", "fraction", "neither", "of the rows that ranks asked for, those that travel"),
        MetricKind("imbalance", "1", "neither", "ids that the busiest keeper is asked for, over the average"),
        MetricKind("part_time", "s", "lower", "of a look-up with a wait behind each part; the slowest rank's"),
        MetricKind(
            "of_all_to_all",
            "fraction",
            "higher",
            "time of an all_to_all with as many bytes, from this run, over the latency",
        ),
    )
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "Zipf",
            "A distribution as of words: the share of the r-th most frequent falls off as a power of r.",
            "[Zz]ipf",
        ),
        Word(
            "embedding",
            "A table with a row of numbers for each token, word or user, of which a step reads those that occur.",
            "embeddings?",
        ),
    )

    num_rows: int = option(2**18, "rows of the whole table", minimum=1, maximum=2**40, label="{} rows")
    width: int = option(128, "elements of a row", minimum=1, maximum=2**16)
    lookups: tuple[int, ...] = option(
        (1024, 16384), "ids that each rank looks up at once", minimum=1, maximum=2**26, label="{} ids"
    )
    dtype: str = option("float32", "element type of the table", choices=("float32", "bfloat16", "float16", "float64"))
    ids: str = option("uniform", "how often each row is asked for", choices=("uniform", "zipf"), label="{}")
    exponent: float = option(1.05, "how fast shares fall off with zipf", minimum=0.01, maximum=10.0)
    placement: str = option(
        "cyclic",
        "which rows a rank keeps: every n-th of n ranks, or so many in a row",
        choices=("cyclic", "blocks"),
        label="{}",
    )
    duplicates: str = option(
        "kept",
        "whether a rank asks again for a row that it needs several times",
        choices=("kept", "removed"),
        label="duplicates {}",
    )
    updates: bool = option(True, "whether gradients of the rows go back to their keepers", label="updates")

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if self.ids == "uniform" and "exponent" in keys:
            yield "exponent", "it belongs to ids 'zipf', and they are 'uniform'"

    def points(self, place: Place) -> Iterable[Point]:
        for lookups in self.lookups:
            yield {
                "size_bytes": lookups * self.width * ITEM_BYTES[self.dtype],
                "num_rows": self.num_rows,
                "width": self.width,
                "lookups": lookups,
                "dtype": self.dtype,
                "ids": self.ids,
                **({"exponent": self.exponent} if self.ids == "zipf" else {}),
                "placement": self.placement,
                "duplicates": self.duplicates,
                "updates": self.updates,
            }

    def label(self, point: Point) -> str:
        words = [f"{point['num_rows']}x{point['width']}", str(point["dtype"]), f"{point['lookups']}ids"]
        words += [f"zipf{point['exponent']:g}"] if point["ids"] == "zipf" else []
        words += [str(point["placement"])] if point["placement"] != "cyclic" else []
        words += ["unique"] if point["duplicates"] == "removed" else []
        words += ["read"] if not point["updates"] else []
        return "-".join(words)

    def objection(self, point: Point, place: Place) -> str | None:
        num_rows, dtype = int(point["num_rows"]), str(point["dtype"])
        if num_rows < place.world_size:
            return f"a table of {num_rows} rows has none for some of {place.world_size} ranks"
        if not point["updates"]:
            return None
        if dtype not in LARGEST_COUNT:
            return f"sums of updates are rounded in {dtype}, so that no result can be checked exactly; 'updates: false'"
        if not _largest_gradient(point, place.world_size):
            times = _updates_of_first(point, place.world_size)
            return (
                f"the most frequent row is updated up to {times:,} times, and beyond {LARGEST_COUNT[dtype]:,} their "
                f"sum is rounded in {dtype}, so that no result can be checked exactly: fewer lookups, or float64"
            )
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        part = _Share(rig, point)
        step = Step.proven(part.look_up, part.forget, part.verify)
        return Step(step.run, step.check, {SAMPLES: part.samples}, step.confirm)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return int(point["size_bytes"]) * (2 if point["updates"] else 1)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time_s = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("latency", "s", time_s.value, time_s.low, time_s.high, time_s.n)
        for name, unit, each in (
            ("lookups_per_s", "1/s", int(case.point["lookups"])),
            ("row_bandwidth", "B/s", int(case.point["size_bytes"])),
        ):
            # The slow end of the time is the low end of the rate.
            value, low, high = (each * case.world_size / s for s in (time_s.value, time_s.high, time_s.low))
            yield Metric(name, unit, value, low, high, time_s.n)
        yield from cls.sampled(observation)

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        sweeps = sweeps_of(rows, "all_to_all")
        sent = {(row.run, row.case): row.value for row in rows if row.metric == "sent_bytes"}
        for row in rows:
            if row.benchmark == "embedding_lookup" and row.metric == "latency" and row.value:
                yield _beside_all_to_all(row, sent.get((row.run, row.case)), sweeps)


def _beside_all_to_all(row: Row, sent_bytes: float | None, sweeps: Sequence[Sequence[Row]]) -> Row:
    """The share of a look-up that an all_to_all of what the busiest rank sends would take."""

    def said(value: float | None, basis: str) -> Row:
        return row._replace(
            metric="of_all_to_all", unit="fraction", value=value, low=None, high=None, expected=None, basis=basis
        )

    same = (row.run, row.device, row.num_nodes, row.world_size)
    sweep = next(
        (
            of
            for of in sweeps
            if (of[0].run, of[0].device, of[0].num_nodes, of[0].world_size) == same
            and int(of[0].point["group_size"]) == row.world_size
        ),
        None,
    )
    if not sent_bytes:
        return said(None, "nothing is sent" if sent_bytes == 0 else "what was sent is not known")
    if sweep is None:
        return said(None, "no all_to_all of these ranks was measured in this run")
    # nccl-tests counts the part that stays
    size_bytes = sent_bytes * row.world_size / (row.world_size - 1)
    smallest, largest = (int(sweep[end].point["size_bytes"]) for end in (0, -1))
    if not smallest <= size_bytes <= largest:
        measured = f"{format_bytes(smallest)} to {format_bytes(largest)}"
        return said(None, f"an all_to_all of {format_bytes(size_bytes)} was not measured, only {measured}")
    time_s = _between(sweep, size_bytes)
    return said(time_s / (row.value or math.inf), f"an all_to_all of {format_bytes(size_bytes)} takes {time_s:.3g} s")


def _between(sweep: Sequence[Row], size_bytes: float) -> float:
    """The time at a size between two measured ones, by their logarithms."""
    points = [(int(row.point["size_bytes"]), row.value or 0.0) for row in sweep]
    for (small, fast_s), (large, slow_s) in pairwise(points):
        if small <= size_bytes <= large:
            share = math.log(size_bytes / small) / math.log(large / small)
            return math.exp(math.log(fast_s) * (1 - share) + math.log(slow_s) * share)
    return points[0][1]


# Ids


def _share_of_first(point: Point) -> float:
    """How often an id is the most frequent one."""
    return 1 / int(point["num_rows"]) if point["ids"] == "uniform" else _below(2, point)


def _updates_of_first(point: Point, world_size: int) -> int:
    """How often the most frequent row is updated at most, before the same is taken back."""
    return int(1.1 * _share_of_first(point) * int(point["lookups"]) * world_size * _BATCHES + 100)


def _largest_gradient(point: Point, world_size: int) -> int:
    """What a look-up adds to an element at most, so that the sum is exact in whatever order; 0 where no number is."""
    return min(_LARGEST_GRADIENT, LARGEST_COUNT[str(point["dtype"])] // _updates_of_first(point, world_size))


def _below(rank: float, point: Point) -> float:
    """How often an id is one of the first, ``rank`` - 1 of them: continuous, between 1 and all rows and one."""
    power, end = 1 - float(point["exponent"]), int(point["num_rows"]) + 1
    if abs(power) < 1e-9:
        return math.log(rank) / math.log(end)
    return math.expm1(power * math.log(rank)) / math.expm1(power * math.log(end))


def ids_of(point: Point, rank: int, batch: int) -> torch.Tensor:
    """What a rank asks for in one batch, int64 (lookups,): the same on every rank that works it out."""
    import torch

    num_rows, lookups = int(point["num_rows"]), int(point["lookups"])
    draw = torch.Generator().manual_seed(rank * _BATCHES + batch)
    share = torch.rand(lookups, dtype=torch.float64, generator=draw)
    if point["ids"] == "uniform":
        place = share * num_rows
    else:  # the inverse of _below
        power, end = 1 - float(point["exponent"]), num_rows + 1
        log_end = math.log(end)
        log_rank = share * log_end if abs(power) < 1e-9 else torch.log1p(share * math.expm1(power * log_end)) / power
        place = log_rank.exp() - 1
    return place.long().clamp_(0, num_rows - 1)


def content(ids: torch.Tensor, width: int) -> torch.Tensor:
    """What a table holds in these rows, int64 (len(ids), width), from 0 to 112.

    The digits of an id are a polynomial's coefficients, and a column is where it is evaluated, by a prime: rows of two
    ids are alike in four columns at most.
    """
    import torch

    column = torch.arange(1, width + 1, device=ids.device)
    values = torch.zeros(len(ids), width, dtype=torch.int64, device=ids.device)
    for digit in reversed(range(_DIGITS)):
        values = (values * column + (ids // _PRIME**digit % _PRIME)[:, None]) % _PRIME
    return values


def gradient(ids: torch.Tensor, width: int, largest: int) -> torch.Tensor:
    """What each look-up of a row adds to it, int64 (len(ids), width), from 0 to ``largest``."""
    return content(ids, width) % (largest + 1)


class _Share:
    """One rank: the rows that it keeps, and what it asks for.

    Calls take the batches in turn, and every second turn takes back what the one before has added: so rows stay small,
    and after any number of calls it is known what they hold.
    """

    def __init__(self, rig: Rig, point: Point) -> None:
        self.rig, self.point = rig, point
        self.num_rows, self.width, self.dtype = int(point["num_rows"]), int(point["width"]), str(point["dtype"])
        self.in_blocks, self.in_a_block = point["placement"] == "blocks", -(-self.num_rows // rig.world_size)
        self.batches = [ids_of(point, rig.rank, batch).to(rig.device) for batch in range(_BATCHES)]
        self.gradients = [self._rows(len(ids)) for ids in self.batches] if point["updates"] else []
        self.largest_gradient = _largest_gradient(point, rig.world_size) if point["updates"] else 0
        self.got = self._rows(len(self.batches[0]))
        self.table = self._rows(self._num_kept())
        self.calls = 0

    # Whose rows are where

    def _num_kept(self) -> int:
        if self.in_blocks:
            return max(0, min(self.in_a_block, self.num_rows - self.rig.rank * self.in_a_block))
        return -(-(self.num_rows - self.rig.rank) // self.rig.world_size)

    def _keepers(self, ids: torch.Tensor) -> torch.Tensor:
        return ids // self.in_a_block if self.in_blocks else ids % self.rig.world_size

    def _places(self, ids: torch.Tensor) -> torch.Tensor:
        """Where in its table this rank has rows of its own."""
        return ids - self.rig.rank * self.in_a_block if self.in_blocks else ids // self.rig.world_size

    def _kept(self, places: torch.Tensor) -> torch.Tensor:
        """The ids of rows of its table."""
        if self.in_blocks:
            return places + self.rig.rank * self.in_a_block
        return places * self.rig.world_size + self.rig.rank

    # What is timed

    def look_up(self) -> None:
        self._look_up(lambda part: None)

    def _look_up(self, ended: Callable[[str], object]) -> tuple[list[int], list[int]]:
        """One iteration; how many rows each rank was asked for, and has asked this one for."""
        import torch

        comm, batch, sign = self.rig.comm, self.calls % _BATCHES, 1 - 2 * (self.calls // _BATCHES % 2)
        ids, which = self.batches[batch], None
        if self.point["duplicates"] == "removed":
            ids, which = torch.unique(ids, return_inverse=True)
        keepers = self._keepers(ids)
        order, asked = torch.argsort(keepers, stable=True), torch.bincount(keepers, minlength=comm.world_size)
        ended("sort")

        answered = torch.empty_like(asked)
        comm.all_to_all(answered, asked)
        ask_counts, answer_counts = asked.tolist(), answered.tolist()
        wanted = ids.new_empty(sum(answer_counts))
        comm.all_to_all(wanted, ids[order], answer_counts, ask_counts)
        ended("ids")

        places = self._places(wanted)
        read = self.table[places]
        ended("read")

        arrived = self._rows(len(ids))
        comm.all_to_all(arrived, read, ask_counts, answer_counts)
        ended("rows")

        rows = torch.empty_like(arrived) if which is not None else self.got
        rows[order] = arrived
        if which is not None:
            torch.index_select(rows, 0, which, out=self.got)
        ended("order")

        if self.gradients:
            gradient = self.gradients[batch]
            if which is not None:
                gradient = torch.zeros_like(rows).index_add_(0, which, gradient)
            given = self._rows(len(wanted))
            comm.all_to_all(given, gradient[order], answer_counts, ask_counts)
            ended("gradients")
            self.table.index_add_(0, places, given, alpha=sign)
            ended("update")
        self.calls += 1
        return ask_counts, answer_counts

    def samples(self) -> dict[str, list[float]]:
        """Times of the parts, and what is sent: rank 0's word, which is that of all."""
        import torch

        device, me, found = self.rig.device, self.rig.rank, dict[str, list[float]]()
        row_bytes = self.width * ITEM_BYTES[self.dtype]

        def of_all(value: float, op: str) -> float:
            whole = torch.tensor(value, dtype=torch.float64, device=device)
            self.rig.comm.all_reduce(whole, op)
            return float(whole)

        def ended(part: str) -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times_s.append((part, time.perf_counter()))

        for _ in range(_SAMPLED):
            self.rig.comm.barrier()
            times_s = [("", time.perf_counter())]
            asked, answered = self._look_up(ended)
            for (_, before_s), (part, after_s) in pairwise(times_s):
                found.setdefault(metric_key("part_time", part=part), []).append(of_all(after_s - before_s, "max"))
            rows = sum(answered) - answered[me]
            sent = rows + sum(asked) - asked[me] if self.gradients else rows
            looked_up = self.rig.world_size * len(self.got)
            found.setdefault("sent_bytes", []).append(of_all(sent, "max") * row_bytes)
            found.setdefault("sent_fraction", []).append(of_all(rows, "sum") / looked_up)
            average = of_all(sum(answered), "sum") / self.rig.world_size
            found.setdefault("imbalance", []).append(of_all(sum(answered), "max") / average)
        return found if me == 0 else {}

    # What is proven

    def forget(self) -> None:
        """The table as it was made, and nothing looked up."""
        for places in _stretches(len(self.table), self.width, self.rig.device):
            self.table[places] = content(self._kept(places), self.width).to(self.table.dtype)
        for gradients, ids in zip(self.gradients, self.batches, strict=False):
            for places in _stretches(len(ids), self.width, self.rig.device):
                given = gradient(ids[places], self.width, self.largest_gradient)
                gradients[places] = given.to(gradients.dtype)
        self.rig.forget(self.got.view(-1))
        self.calls = 0

    def verify(self) -> Mapping[str, float]:
        """Compares each element of the rows that were looked up last, and of the table where it is updated."""
        ids = self.batches[(self.calls - 1) % _BATCHES]
        evidence = self._compare("the rows looked up", self.got, lambda places: ids[places], self.calls - 1)
        if not self.gradients:
            return evidence
        return self._compare("the updated table", self.table, self._kept, self.calls)

    def _compare(
        self, what: str, rows: torch.Tensor, ids_at: Callable[[torch.Tensor], torch.Tensor], calls: int
    ) -> Mapping[str, float]:
        """Each element with what it is after so many calls."""
        in_effect = [] if not self.gradients else [self._all_ids(batch) for batch in _in_effect(calls)]

        def pairs() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
            for places in _stretches(len(rows), self.width, self.rig.device):
                ids = ids_at(places)
                expected = content(ids, self.width)
                for asked in in_effect:
                    of_each = gradient(ids, self.width, self.largest_gradient)
                    expected += _occurrences(ids, asked)[:, None] * of_each
                yield int(places[0]) * self.width, rows[places].flatten(), expected.to(rows.dtype).flatten()

        return self.rig.expect_stretches(what, rows.numel(), pairs())

    def _all_ids(self, batch: int) -> torch.Tensor:
        """What all ranks ask for in a batch, sorted."""
        import torch

        ids = torch.cat([ids_of(self.point, rank, batch) for rank in range(self.rig.world_size)])
        return ids.to(self.rig.device).sort().values

    def _rows(self, count: int) -> torch.Tensor:
        return self.rig.empty(count * self.width, self.dtype).view(count, self.width)


def _in_effect(calls: int) -> list[int]:
    """Batches whose updates are in the table after so many calls.

    >>> [_in_effect(calls) for calls in range(5)]
    [[], [0], [0, 1], [1], []]
    """
    turns = [len(range(batch, calls, _BATCHES)) for batch in range(_BATCHES)]
    return [batch for batch, times in enumerate(turns) if times % 2]


def _occurrences(ids: torch.Tensor, in_order: torch.Tensor) -> torch.Tensor:
    """How often each of the ids is among others, which are sorted."""
    import torch

    ids = ids.contiguous()
    return torch.searchsorted(in_order, ids, right=True) - torch.searchsorted(in_order, ids)


def _stretches(rows: int, width: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Indices of some consecutive rows after others: what is worked out for them is eight bytes an element."""
    import torch

    at_once = max(1, _AT_ONCE // width)
    for start in range(0, rows, at_once):
        yield torch.arange(start, min(rows, start + at_once), device=device)
