"""The long table: one row per figure of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from clusterbench.formulas.statistics import Summary, median_interval
from clusterbench.types import NO_DETAIL, Point
from clusterbench.words import few

_CASE = (
    "run",
    "case",
    "hash",
    "benchmark",
    "version",
    "status",
    "shape",
    "layout",
    "num_nodes",
    "world_size",
    "hosts",
    "device",
)
DETAILS = ("category", "axis", "flops_convention", "peak", "source", "part")
_FIGURE = ("metric", *DETAILS, "unit", "value", "low", "high", "iterations", "expected", "basis")
COLUMNS = [*_CASE, *_FIGURE]
"""Columns every table has; the point's own follow, and the variables that its case was started with."""


class Row(NamedTuple):
    """One figure. ``value`` is None where nothing could be said, and ``basis`` then says why.

    ``detail`` tells figures of one metric apart; its keys are among :data:`DETAILS`. ``hash`` is that of the case, the
    same in every run that measures it; empty for a refusal. A tuple, not a dataclass: a large run has half a million,
    and a report of it takes seconds less.
    """

    run: str
    case: str
    benchmark: str
    version: int
    status: str
    point: Point
    num_nodes: int
    world_size: int
    hosts: str
    device: str
    metric: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    iterations: int = 0
    expected: float | None = None
    basis: str = ""
    detail: Mapping[str, str] = NO_DETAIL
    hash: str = ""

    def beside(
        self,
        metric: str,
        unit: str,
        value: float | None,
        low: float | None,
        high: float | None,
        detail: Mapping[str, str],
        basis: str,
        expected: float | None = None,
    ) -> Row:
        """Another figure of the same case, from as many iterations: ``_replace`` takes twice as long."""
        figure = metric, unit, value, low, high, self.iterations, expected, basis, detail, self.hash
        return Row._make((*self[:_METRIC], *figure))

    @property
    def interval(self) -> tuple[float, float]:
        """Where the figure would lie with endlessly many iterations; of one that was taken once, the figure itself.

        Raises
        ------
        ValueError
            If there is no figure.
        """
        if self.value is None:
            raise ValueError(f"{self.case} has no figure of {self.metric}.")
        low, high = (self.value if bound is None else bound for bound in (self.low, self.high))
        return median_interval(Summary(self.value, low, high, self.iterations))


_METRIC = Row._fields.index("metric")


ENVIRONMENT_RATIO = "environment_ratio"
"""A figure with one value of a variable over the same with another; its detail is the figure and ``NAME=value/first``,
its basis ends with what the variable decides."""


def variables_of(row: Row) -> dict[str, str]:
    """Variables that the row's case was started with; a point's options have names in lower case."""
    return {name: str(value) for name, value in row.point.items() if name.isupper()}


class Placed(Protocol):
    """A point of a curve: on how many ranks it was measured, and on which hosts, apart by spaces."""

    @property
    def world_size(self) -> int: ...

    @property
    def hosts(self) -> str: ...


Where = TypeVar("Where", bound=Placed)


def moved(points: Iterable[Where]) -> list[tuple[Where, str]]:
    """Points that ran without some host of the points before them, each with those hosts; nothing where all stayed.

    What lies between two such points is the difference of hosts, too. ``points`` are one curve, the smallest first; one
    without hosts has no figure and is passed over.
    """
    before: dict[str, None] = {}
    moved_points = []
    for point in points:
        hosts = dict.fromkeys(point.hosts.split())
        if not hosts:
            continue
        if before.keys() <= hosts.keys():
            before |= hosts
        else:
            moved_points.append((point, " ".join(before)))
    return moved_points


def moved_sentence(world_size: int, hosts: str, before: str) -> str:
    """What to say of such a point.

    >>> moved_sentence(4, "cb3 cb4", "cb1 cb2")
    '4 ranks ran on cb3, cb4, the smaller ones on cb1, cb2'
    """
    return f"{world_size} ranks ran on {few(hosts.split())}, the smaller ones on {few(before.split())}"
