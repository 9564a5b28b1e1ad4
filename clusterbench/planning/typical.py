"""What others measured on healthy GPUs and published, from ``hardware/typical/*.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from clusterbench.cluster import accelerators
from clusterbench.expectation import Expectation
from clusterbench.types import Place, Point

_FOLDER = Path(__file__).parent.parent / "hardware" / "typical"


@dataclass(frozen=True)
class TypicalFigure:
    """A published figure of one benchmark on several GPUs, and the points it holds for.

    Attributes
    ----------
    of
        Values by the GPU's name in ``hardware/``.
    where, least
        What options of a point equal, and what they reach.
    num_gpus
        Of the one host that it holds for, all of them taking part; 0 where that does not matter. Of several hosts each
        may be one where every one talks within itself.
    """

    benchmark: str
    metric: str
    unit: str
    source: str
    of: Mapping[str, float]
    where: Mapping[str, Any] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    num_gpus: int = 0

    def holds_for(self, point: Point, place: Place) -> bool:
        alone = (place.num_nodes, place.world_size) == (1, self.num_gpus) or self._is_group_a_host(point, place)
        one_host = not self.num_gpus or alone
        same = all(name in point and point[name] == value for name, value in self.where.items())
        return one_host and same and all(float(point.get(name, 0)) >= least for name, least in self.least.items())

    def _is_group_a_host(self, point: Point, place: Place) -> bool:
        """Whether the ranks along the axis are those of one host: tp is the innermost, and passes no network."""
        is_inner = point.get("axis") == "tp" and point.get("rank_order", "megatron") == "megatron"
        return is_inner and point.get("group_size") == self.num_gpus == place.cluster.ranks_per_node


@cache
def typical_figures() -> Sequence[TypicalFigure]:
    """All figures that are on record."""
    figures = []
    for path in sorted(_FOLDER.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["figure"]:
            figure = TypicalFigure(**entry)
            if unknown := sorted(set(figure.of) - accelerators().keys()):
                raise ValueError(f"hardware/typical/{path.name}: {figure.benchmark} names unknown GPUs {unknown}.")
            figures.append(figure)
    return figures


def typical_of(benchmark: str, point: Point, place: Place) -> dict[str, Expectation]:
    """The published figures of a case by metric key, each with its source; none for a GPU that is not on record.

    Who publishes one figure says nothing of how far another healthy machine is from it: it is its own interval.
    """
    card = place.cluster.accelerator
    if card is None:
        return {}
    return {
        figure.metric: Expectation(of, figure.unit, of, of, "typical", f"published by {figure.source}")
        for figure in typical_figures()
        if figure.benchmark == benchmark and (of := figure.of.get(card.name)) and figure.holds_for(point, place)
    }
