from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import apart, names, sharing
from clusterbench.cases.ranking import doubt, percent, share_of_peak, used_of_peak
from clusterbench.cases.trained import Trained, are_most, groups_of, said, unlike
from clusterbench.charts import Chart, Section, bars_note, curves_note, said_of_each
from clusterbench.drawing.bars import Bars
from clusterbench.run_folder.attempts import History
from clusterbench.units import format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_BARS = 4, 12
FEWEST = 3
OF_THE_JOB = ("micro_batch_size", "gradient_accumulation_steps", "precision", "gradient_dtype")
"""Options that say how a step is done, beside those of parallelisms."""


@dataclass(frozen=True)
class Choices:
    """Cases of one layout and workload, group by group; samples by case."""

    groups: list[list[Trained]]
    histories: Mapping[str, History]


class Ways(Chart[Choices]):
    """One layout's step, done in one way after the other, ranked by tokens per second and rank.

    How to read it
    --------------
    Bars of one panel train the same model on the same batch with the same layout; what differs is how: precision,
    compiler, kernels, recomputation, micro-batches. A bar beside it is the MFU by the palm convention, the diamond the
    one that counts the embedding as well (palm_6n), both over the datasheet's peak of what is computed in; of a step
    with eight-bit products over that of bfloat16, so that bars can be compared. Of many the fastest twelve are drawn,
    and the table behind the bars has all. Ways that compute in fewer bits do not compute the same; how far they may be
    from one rank stands with their proof. On CPU ranks the order says nothing about GPUs.
    """

    title: ClassVar[str] = "Ways to do one step, ranked by throughput per rank"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "layouts"

    def select(self, reading: Reading) -> Choices | None:
        cases = reading.trained_with("tokens_per_s_per_rank", "mfu")
        groups = groups_of(cases, lambda case: (case.layout, case.row.num_nodes), {*sharing(), *OF_THE_JOB})
        groups = [group for group in groups if _is_a_choice(group)]
        return Choices(groups, reading.history_of) if groups and are_most(groups, cases) else None

    def draw(self, data: Choices) -> list[Panel]:
        return [panel for group in data.groups[:MOST] for panel in _panels(group, _title(group, data.groups))]

    def answer(self, data: Choices) -> str:
        groups = data.groups
        names = (_title(group, groups) if len(groups) > 1 else "" for group in groups[:MOST])
        return said_of_each(names, (_sentence(group, data.histories) for group in groups))

    def left_out(self, data: Choices) -> str:
        groups = data.groups
        cut = bars_note([len(group) for group in groups[:MOST]], MOST_BARS, "fastest", "a layout and workload")
        return " ".join(filter(None, (curves_note(len(groups), MOST, "layouts and workloads"), cut)))


def _is_a_choice(group: Sequence[Trained]) -> bool:
    """Several that were timed and that differ in more than one option: of one there are charts of its own."""
    timed = [case for case in group if _speed(case)]
    return len(timed) >= FEWEST and len(unlike([case.point for case in timed], ())) > 1


def _speed(case: Trained) -> float:
    return case.value("tokens_per_s_per_rank") or 0.0


def _title(group: Sequence[Trained], data: Sequence[Sequence[Trained]]) -> str:
    if len(data) == 1:
        return f"\n{group[0].layout}"
    return "\n" + names((case.row for case, *_ in data), without=[*sharing(), *OF_THE_JOB])(group[0].row)


def _ways(group: Sequence[Trained]) -> dict[str, str]:
    """Case -> what tells its way from the others; *plain* where it asks for nothing."""
    said = apart([case.row for case in group])
    return {case.row.case: words or "plain" for case, words in zip(group, said, strict=True)}


def _panels(group: Sequence[Trained], under: str) -> list[Panel]:
    ways = _ways(group)
    shown = sorted(group, key=lambda case: -_speed(case))
    best = f"\n{MOST_BARS} of {len(shown):,}, the fastest first" if len(shown) > MOST_BARS else ""
    cases = [case.row.case for case in shown]
    labels = [ways[case] for case in cases]
    missing = {number: said(case.row.status) for number, case in enumerate(shown) if not _speed(case)}
    speeds = [case.value("tokens_per_s_per_rank") for case in shown]
    panels = [
        Bars(
            f"Throughput per rank{under}{best}",
            labels,
            {"throughput": speeds},
            "tokens/s",
            missing=missing,
            cases=cases,
            most=MOST_BARS,
        ).panel()
    ]
    shares = [share_of_peak(case, "palm") for case in shown]
    if any(shares):
        with_embedding = [share_of_peak(case, "palm_6n") for case in shown]
        panels.append(
            Bars(
                f"MFU, of the datasheet's peak{under}{best}",
                labels,
                {"palm": shares},
                "fraction",
                markers=with_embedding,
                marker_name="palm_6n",
                missing=missing,
                cases=cases,
                most=MOST_BARS,
            ).panel()
        )
    return panels


def _sentence(group: Sequence[Trained], histories: Mapping[str, History]) -> str:
    timed = sorted((case for case in group if _speed(case)), key=_speed)
    best, runner_up, slowest = timed[-1], timed[-2], timed[0]
    ways, noise = _ways(group), doubt(timed[-1], timed[-2], histories)
    of = f" of {best.point['shape']}" if best.point.get("shape") else ""
    alike = noise and f" The first two{noise.removeprefix('They')}"
    return (
        f"The fastest of {len(timed)} ways to do a step{of} with {best.layout} is {ways[best.row.case]}: "
        f"{format_value(_speed(best), 'tokens/s')} per rank{used_of_peak(best)}. "
        f"The runner-up, {ways[runner_up.row.case]}, takes "
        f"{percent(_speed(best) / _speed(runner_up) - 1)} longer; the slowest, {ways[slowest.row.case]}, "
        f"{percent(_speed(best) / _speed(slowest) - 1)}.{alike}"
    )
