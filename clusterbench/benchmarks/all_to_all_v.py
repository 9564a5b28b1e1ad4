"""All-to-all of unequal parts: what an expert layer sends when its router prefers some experts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks._collective import ITEM_BYTES, Collective, Exchange
from clusterbench.errors import SuiteError
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig

MOST_BYTES = 2**18  # it travels in every point, and so in every row
_GENERATED = ("uniform", "skewed")

Matrix = tuple[tuple[float, ...], ...]
"""``matrix[source][destination]``: how much goes from one rank to another, in any unit."""


@dataclass(frozen=True, kw_only=True)
class AllToAllV(Collective):
    """How fast every rank sends every other a part of its own size, by a matrix of traffic.

    The matrix is ``uniform``, ``skewed`` (rank 0 receives ``imbalance`` times the average, as that with the busiest
    expert does), or a file of comma-separated numbers, a line for each sender; what it holds is scaled to every size.
    ``size_bytes`` is the most that any rank sends or receives, as the bandwidth convention of nccl-tests wants it.
    """

    operation: ClassVar[str] = "all_to_all_v"
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        *Collective.metrics,
        MetricKind("imbalance", "1", "neither", "the most that a rank receives, over the average"),
    )
    refused_options: ClassVar[Mapping[str, str]] = {
        "in_place": "ranks would overwrite what they still have to send; nccl-tests has none either"
    }

    matrix: str = option("skewed", "uniform, skewed, or a file of numbers, from where the run is started")
    imbalance: float = option(2.0, "the busiest rank's share over the average, of skewed", minimum=1, maximum=1_000_000)

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        yield from super().ineffective(keys, place)
        if self.matrix != "skewed" and "imbalance" in keys:
            yield "imbalance", f"it belongs to the matrix 'skewed', and the matrix is '{self.matrix}'"

    def manner(self, place: Place) -> dict[str, Any]:
        options: dict[str, Any] = {"matrix": self.matrix}
        if self.matrix == "skewed":
            options["imbalance"] = self.imbalance
        elif self.matrix not in _GENERATED:
            options["traffic"] = read_matrix(self.matrix)
        return {**super().manner(place), **options}

    def sizes(self, common: Point) -> Iterable[Point]:
        item, sizes = ITEM_BYTES[str(common["dtype"])], set()
        for size in self.wanted_sizes():
            most = size // item
            size_bytes = size if _objection_to_matrix(common) else busiest(counts_of(matrix_of(common), most)) * item
            if size_bytes not in sizes:
                sizes.add(size_bytes)
                yield {"size_bytes": size_bytes, "busiest_elements": most}

    def label(self, point: Point) -> str:
        word = f"x{point['imbalance']:g}" if point["matrix"] == "skewed" else Path(str(point["matrix"])).stem
        return f"{super().label(point)}-{word}"

    def objection(self, point: Point, place: Place) -> str | None:
        return super().objection(point, place) or _objection_to_matrix(point)

    @classmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        dtype, n, me = str(point["dtype"]), comm.world_size, comm.rank
        counts = counts_of(matrix_of(point), int(point["busiest_elements"]))
        send_counts, receive_counts = counts[me], [row[me] for row in counts]
        sent, received = rig.empty(sum(send_counts), dtype), rig.empty(sum(receive_counts), dtype)

        def fill() -> None:
            rig.forget(received)
            rig.write(sent, [(count, rig.block(dtype, me * n + peer)) for peer, count in enumerate(send_counts)])

        def verify() -> Mapping[str, float]:
            pieces = [(count, rig.block(dtype, peer * n + me)) for peer, count in enumerate(receive_counts)]
            return rig.expect(cls.operation, received, pieces)

        return Exchange(
            call=lambda: comm.all_to_all(received, sent, receive_counts, send_counts), fill=fill, verify=verify
        )

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        yield from super().derive(case, observation, place)
        counts = counts_of(matrix_of(case.point), int(case.point["busiest_elements"]))
        received = [sum(column) for column in zip(*counts, strict=True)]
        yield Metric("imbalance", "1", max(received) * len(received) / sum(received))


# Traffic matrices


def _objection_to_matrix(point: Point) -> str | None:
    group_size = int(point["group_size"])
    if point["matrix"] == "skewed" and float(point["imbalance"]) > group_size:
        return (
            f"imbalance is {point['imbalance']:g}, but one of {group_size} ranks receives at most {group_size} times "
            "the average"
        )
    if point["matrix"] not in _GENERATED and (senders := len(matrix_of(point))) != group_size:
        return f"{point['matrix']} is of {senders} ranks, but {group_size} exchange"
    return None


def matrix_of(point: Point) -> Matrix:
    """The traffic matrix of a point, in any unit."""
    imbalance = float(point["imbalance"]) if point["matrix"] == "skewed" else 1.0
    return _matrix(str(point.get("traffic", "")), int(point["group_size"]), imbalance)


@lru_cache(maxsize=8)
def _matrix(traffic: str, num_ranks: int, imbalance: float) -> Matrix:
    if traffic:
        return tuple(tuple(map(float, line.split(","))) for line in traffic.split(";"))
    other_share = (num_ranks - imbalance) / (num_ranks - 1) if num_ranks > 1 else 0.0
    return ((imbalance, *(other_share for _ in range(num_ranks - 1))),) * num_ranks


@lru_cache(maxsize=8)
def counts_of(matrix: Matrix, most: int) -> tuple[tuple[int, ...], ...]:
    """Elements from each rank to each: the matrix scaled so that no rank sends or receives more than ``most``.

    Rounded down; where that leaves nothing at all, what is not 0 becomes one element.

    >>> counts_of(((0.0, 3.0), (1.0, 2.0)), 10)
    ((0, 6), (2, 4))
    """
    scale = most / busiest(matrix)
    # What is whole but for the last bit must not lose an element.
    counts = tuple(tuple(int(amount * scale * (1 + 1e-12)) for amount in row) for row in matrix)
    if any(map(any, counts)):
        return counts
    return tuple(tuple(1 if amount else 0 for amount in row) for row in matrix)


def busiest(matrix: Sequence[Sequence[Any]]) -> Any:
    """The most that any rank sends or receives."""
    return max(*map(sum, matrix), *(sum(column) for column in zip(*matrix, strict=True)))


def read_matrix(path: str) -> str:
    """The matrix in a file as short text, ``0,3;1,2``: a line for each sender, a number for each receiver.

    Lines that begin with ``#`` are passed over.

    Raises
    ------
    SuiteError
        If it cannot be read, is not square, holds what is no number of at least 0, or nothing but zeros.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise SuiteError(
            f"matrix is '{path}', which is neither 'uniform' nor 'skewed' and cannot be read as a file: {why}"
        ) from None
    if len(data) > MOST_BYTES:
        raise SuiteError(f"matrix '{path}' has more than {MOST_BYTES // 2**10} KiB")
    rows = list(_rows(path, text))
    for line, row in rows:
        if len(row) != len(rows):
            raise SuiteError(f"matrix '{path}', line {line}: {len(row)} numbers, but there are {len(rows)} senders")
    if not any(amount for _, row in rows for amount in row):
        raise SuiteError(f"matrix '{path}' sends nothing: it holds no number above 0")
    return ";".join(",".join(f"{amount:.12g}" for amount in row) for _, row in rows)


def _rows(path: str, text: str) -> Iterator[tuple[int, list[float]]]:
    for line, cells in enumerate(csv.reader(text.splitlines()), start=1):
        if not cells or cells[0].lstrip().startswith("#"):
            continue
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            row = [-1.0]
        if not all(0 <= amount < 1e15 for amount in row):
            raise SuiteError(f"matrix '{path}', line {line}: '{','.join(cells)[:80]}' are not numbers of at least 0")
        yield line, row
