from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.trained import in_order, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.panel import Panel, Story
from clusterbench.expected.fits import fit
from clusterbench.job.dry import DRY, DryRank
from clusterbench.job.turns import lines_in_order
from clusterbench.rows import Row
from clusterbench.units import format_bytes
from clusterbench.words import legible, plural

MOST = 24
MOST_LINES = 200
"""Of what a rank sends in order."""


@dataclass(frozen=True)
class Held:
    """One case: its fullest rank, or how it ended without one."""

    case: str
    label: str
    status: str
    rank: DryRank | None
    peaks: Mapping[str, Row]
    """By category, of any rank and at any moment."""

    @property
    def total(self) -> int:
        return self.rank.memory["total"] if self.rank else 0

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by category at the moment of the peak."""
        parts = Counter[str]()
        for held in self.rank.held if self.rank else ():
            parts[held.category] += held.size_bytes
        return dict(parts)


@dataclass(frozen=True)
class Dry:
    cases: list[Held]
    card: str
    memory_bytes: float | None


class DryRun(Chart[Dry]):
    """What the fullest rank of a step holds at the moment of its peak, worked out on tensors without data.

    How to read it
    --------------
    One bar a case: what is alive when most is, by category, so that the parts add up to what is needed. The dotted line
    is the memory of the card as its data sheet has it. A case that needs more does not fit; one above nine tenths of it
    is close, since the allocator's rounding, workspaces, NCCL's buffers and the CUDA context are not seen. Right: the
    most that any rank holds of each category, at whatever moment; a tick is what its formula says. Choose a bar on the
    left to read what that rank sends, in order.
    """

    title: ClassVar[str] = "Memory at the moment of the peak, without a machine"
    section: ClassVar[Section] = "step"

    def select(self, reading: Reading) -> Dry | None:
        histories = [history for history in reading.histories if history.case.benchmark == "dry_step"]
        first = {case: rows[0] for case, rows in reading.by_case.items()}
        name = names([first[history.case.id] for history in histories])
        cases = []
        for history in histories:
            ranks = [rank for rank in (DRY.readable(history.pooled) if history.pooled else ()) if rank is not None]
            fullest = max(ranks, key=lambda rank: rank.memory["total"], default=None)
            peaks = {
                row.detail["category"]: row
                for row in reading.by_case[history.case.id]
                if row.metric == "peak_memory" and row.detail["category"] != "total"
            }
            cases.append(Held(history.case.id, name(first[history.case.id]), history.status, fullest, peaks))
        cluster = reading.plan.cluster
        memory_bytes = cluster.accelerator.memory_bytes if cluster.accelerator else None
        return Dry(cases, cluster.gpu_name or "", memory_bytes) if any(case.rank for case in cases) else None

    def draw(self, data: Dry) -> list[Panel]:
        shown = data.cases[:MOST]
        parts = [case.parts for case in shown]
        categories = in_order({category for case in shown for category in case.peaks})
        colours = memory_colours(categories)
        return [
            _with_stories(
                shown,
                Bars(
                    "Memory of the fullest rank at its peak",
                    [case.label for case in shown],
                    {said(name): [of_case.get(name) for of_case in parts] for name in categories},
                    "B",
                    missing={number: case.status for number, case in enumerate(shown) if case.rank is None},
                    cases=[case.case for case in shown],
                    colours=colours,
                    limit=("capacity as sold", data.memory_bytes) if data.memory_bytes else None,
                ).panel(),
            ),
            Bars(
                "Each category at its own peak, any rank",
                [case.label for case in shown],
                {said(name): [_value(case, name) for case in shown] for name in categories},
                "B",
                expected={said(name): [_expected(case, name) for case in shown] for name in categories},
                cases=[case.case for case in shown],
                colours=colours,
            ).panel(),
        ]

    def answer(self, data: Dry) -> str:
        known = [case for case in data.cases if case.rank is not None]
        fullest, leanest = (pick(known, key=lambda case: case.total) for pick in (max, min))
        most = f"{legible(fullest.label)} needs {fullest.total / 1e9:.3g} GB"
        if len(known) > 1:
            most = (
                f"{legible(fullest.label)} needs most, {fullest.total / 1e9:.3g} GB, and {legible(leanest.label)} "
                f"least, {leanest.total / 1e9:.3g} GB"
            )
        if not data.memory_bytes:
            return f"{most}; no card is named to hold that against."
        fits = Counter(fit(case.total, data.memory_bytes) for case in known)
        of_card = f"the {data.memory_bytes / 1e9:g} GB of {data.card}"
        words = [f"{fits['fits']} of {plural(len(known), 'case')} {'fits' if fits['fits'] == 1 else 'fit'} {of_card}"]
        words += [f"{number} close, to be measured" for number in [fits["close, measure it"]] if number]
        words += [f"{number} too large" for number in [fits["does not fit"]] if number]
        return f"{', '.join(words)}. {most}."

    def left_out(self, data: Dry) -> str:
        return curves_note(len(data.cases), MOST, "cases")


def _with_stories(cases: Sequence[Held], panel: Panel) -> Panel:
    """The same, each bar with what its rank sends."""
    entries = [replace(entry, story=_story(case)) for case, entry in zip(cases, panel.entries, strict=True)]
    return replace(panel, entries=tuple(entries))


def _story(case: Held) -> Story | None:
    if case.rank is None:
        return None
    lines = lines_in_order(case.rank.sent)
    sentences = [f"Rank {case.rank.rank} holds most in {case.rank.peak_at or 'the step'}."]
    chain = " + ".join(f"{count} on {axis}" for axis, count in case.rank.chain.items())
    if chain:
        sentences.append(f"Longest chain of collectives that wait for one another: {chain}.")
    if len(lines) > MOST_LINES:
        sentences.append(f"The table has the first {MOST_LINES} of {len(lines)} lines.")
    table = [
        (line.words("\u2003"), format_bytes(line.sent.size_bytes) if line.sent else "") for line in lines[:MOST_LINES]
    ]
    return Story(legible(case.label), tuple(sentences), ("sent, in order", "each") if table else (), tuple(table))


def _value(case: Held, category: str) -> float | None:
    return case.peaks[category].value if category in case.peaks else None


def _expected(case: Held, category: str) -> float | None:
    return case.peaks[category].expected if category in case.peaks else None
