"""Where the FLOPs and the bytes of a step are, as a table; with a card, how fast it could be at best. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterbench.cluster import Accelerator
from clusterbench.job.dry import HOST, Work
from clusterbench.job.flops import CAUSAL_ATTENTION, FLOAT8_GRADIENTS, FLOAT8_PRODUCTS
from clusterbench.words import aligned

LINES = 11
"""Of the table, before what is left is summed up."""


@dataclass(frozen=True)
class Roofline:
    """What a card computes and moves in a second at best, by its data sheet.

    Attributes
    ----------
    float8_flops_per_s
        Of products in eight bits; None where the tables do not have it.

    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """

    flops_per_s: float
    bytes_per_s: float
    float8_flops_per_s: float | None = None

    def bound_s(self, work: Work) -> float:
        """Seconds that work takes at least; none on the card for what the host does.

        Attention under the causal mask is counted whole, and a kernel may leave out what the mask hides.
        """
        if work.where == HOST:
            return 0.0
        flops = work.flops / 2 if work.kind == CAUSAL_ATTENTION else work.flops
        peak = (self.float8_flops_per_s if work.kind in _FLOAT8 else None) or self.flops_per_s
        return max(flops / peak, work.moved_bytes / self.bytes_per_s)


_FLOAT8 = (FLOAT8_PRODUCTS, FLOAT8_GRADIENTS)


def roofline_of(card: Accelerator | None, dtype: str) -> Roofline | None:
    """None where the tables do not have both peaks."""
    peak = card.peak_flops_per_s.get(dtype) if card else None
    if card is None or not peak or not card.memory_bytes_per_s:
        return None
    return Roofline(peak, card.memory_bytes_per_s, card.peak_flops_per_s.get("float8"))


def work_text(work: Sequence[Work], card: Accelerator | None, dtype: str) -> Iterator[str]:
    """The table: work of one kind in one part of all layers is a line, forward and backward together.

    Parameters
    ----------
    dtype
        Of the arithmetic, by which the peak of ``card`` is taken.
    """
    if not work:  # runs recorded earlier
        return
    kinds = {each.kind for each in work}
    is_float8, roofline = not kinds.isdisjoint(_FLOAT8), roofline_of(card, dtype)
    if is_float8 and roofline and roofline.float8_flops_per_s is None:
        dtype, roofline = "float8", None
    by_line: dict[tuple[str, str], list[Work]] = {}
    for each in work:
        by_line.setdefault((re.sub(r"^layers\.\d+", "layers.*", each.where), each.kind), []).append(each)
    lines = [_Line.summing(*names, some, roofline) for names, some in by_line.items()]
    total = _Line.summing("total", "", work, roofline)
    lines.sort(key=lambda line: -max(line.flops / (total.flops or 1), line.moved_bytes / (total.moved_bytes or 1)))
    if len(lines) > LINES + 1:
        shown = {(line.where, line.kind) for line in lines[:LINES]}
        left = [each for names, some in by_line.items() if names not in shown for each in some]
        lines = [*lines[:LINES], _Line.summing("the rest", "", left, roofline)]
    header = ["computed in a step", "", "operators", "FLOPs", "moved", "FLOPs a byte", "at least"]
    units = ["", "", "", "(TFLOP)", "(GB)", "", "(ms)"]
    columns = len(header) if roofline else len(header) - 1
    yield from aligned(header[:columns], [line.cells()[:columns] for line in [*lines, total]], units[:columns])
    if roofline and card:
        peak = f"{roofline.flops_per_s / 1e12:.0f} TFLOP/s"
        if is_float8 and roofline.float8_flops_per_s:
            peak += f" ({roofline.float8_flops_per_s / 1e12:.0f} in float8)"
        half = "; of attention under the causal mask half of what is counted" if CAUSAL_ATTENTION in kinds else ""
        yield (
            f"at least: the bound of {card.name}'s roofline, no prediction: each operator at the data sheet's "
            f"{peak} or {roofline.bytes_per_s / 1e12:.2f} TB/s, whichever takes longer, one after the other, every "
            f"operand from memory, nothing sent, and without what the host does{half}"
        )
    elif card:
        yield f"no bound: the tables have no FLOP/s of {card.name} in {dtype}, or no memory bandwidth"


@dataclass(frozen=True)
class _Line:
    where: str
    kind: str
    count: int
    flops: int
    moved_bytes: int
    bound_s: float

    @classmethod
    def summing(cls, where: str, kind: str, work: Iterable[Work], roofline: Roofline | None) -> _Line:
        some = list(work)
        return cls(
            where,
            kind,
            sum(each.count for each in some),
            sum(each.flops for each in some),
            sum(each.moved_bytes for each in some),
            sum(roofline.bound_s(each) for each in some) if roofline else 0.0,
        )

    def cells(self) -> list[str]:
        return [
            self.where,
            self.kind,
            str(self.count),
            f"{self.flops / 1e12:.3f}",
            f"{self.moved_bytes / 1e9:.3f}",
            f"{self.flops / self.moved_bytes:.1f}" if self.moved_bytes else "0.0",
            f"{self.bound_s * 1e3:.2f}",
        ]
