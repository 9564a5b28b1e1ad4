"""Which of several configurations is the fastest, by how much, how sure that is, and why the others are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple

from clusterbench.cases.trained import Trained, said
from clusterbench.formulas.comparison import Comparison, compare_samples
from clusterbench.formulas.statistics import median
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.units import scale
from clusterbench.words import legible

METRICS = ("tokens_per_s", "mfu", "mfu_over_recomputed", "peak_memory", "step_part", "exposed_communication", "bubble")
"""What a ranking reads of a case."""

FEWEST_REPEATS = 4
"""From here on each repeat is one sample: iterations of one start have one fate, and overstate what is known."""

_MOST_COMPARED = 6  # configurations whose samples are held against the fastest's
_MOST_PARTS, _LEAST_POINTS = 2, 1.0
_AS_MUCH = 0.02  # of a step: a smaller difference is no reason
DIFFERS = "differs: "
EXPOSED = "exposed communication of a traced step"
OF_BFLOAT16 = "datasheet bfloat16"
"""The peak that a step with eight-bit products is held against beside that of eight bits."""
DEGREES = ("dp", "tp", "pp", "cp", "ep")
"""In the order in which a heatmap's cell and what lost in it say them."""

Ranking = Callable[[Trained], float]
"""What cases of a cell are ranked by; 0 where a case has no such figure."""


def throughput(case: Trained) -> float:
    """Tokens per second of all ranks."""
    return sound(case.value("tokens_per_s"))


def imported_mfu(case: Trained) -> float:
    """MFU as the file printed it that the case comes from."""
    return sound(case.value("mfu", "imported"))


def sound(value: float | None) -> float:
    return value if value is not None and 0 < value < inf else 0.0


class Mfu(NamedTuple):
    """How an MFU is counted: its numerator, its denominator, and where it is from if not from this run."""

    convention: str
    peak: str
    source: str

    @property
    def preference(self) -> tuple[object, ...]:
        """Of several the least is shown: measured here before recomputed before imported, palm, a datasheet's peak."""
        return self.source != "", self.source != "recomputed", self.convention != "palm", self.peak != "datasheet", self

    @property
    def words(self) -> str:
        """For the key of a figure.

        >>> Mfu("palm", "measured", "").words, Mfu("", "", "imported").words
        ('palm convention, peak as a matmul reached it here', 'as imported')
        """
        peaks = {"datasheet": "peak of the datasheet", "measured": "peak as a matmul reached it here"}
        sources = {"recomputed": "recomputed from tokens/s", "imported": "as imported"}
        convention = f"{self.convention} convention" if self.convention else ""
        parts = convention, peaks.get(self.peak, self.peak), sources.get(self.source, self.source)
        return ", ".join(legible(part, 40) for part in parts if part)


def mfus(case: Trained) -> dict[Mfu, float]:
    """Every MFU of a case, by how it is counted."""
    rows = (row for (metric, *_), row in case.figures.items() if metric == "mfu")
    return {
        Mfu(row.detail.get("flops_convention", ""), row.detail.get("peak", ""), row.detail.get("source", "")): row.value
        for row in rows
        if row.value is not None and sound(row.value)
    }


def share_of_peak(case: Trained, convention: str = "palm") -> float | None:
    """Of the datasheet's, as a fraction; of a step with eight-bit products that of bfloat16."""
    of_bfloat16 = case.value("mfu", convention, OF_BFLOAT16)
    return case.value("mfu", convention, "datasheet") if of_bfloat16 is None else of_bfloat16


def used_of_peak(case: Trained) -> str:
    """``, 41.0 % of the peak (MFU, palm)`` behind a speed; nothing where the peak is not known, as of a CPU."""
    share = share_of_peak(case)
    peak = "the peak" if case.value("mfu", "palm", OF_BFLOAT16) is None else "bfloat16's peak"
    return f", {100 * share:.1f} % of {peak} (MFU, palm)" if share else ""


# Who is ahead


def configuration(case: Trained) -> tuple[object, ...]:
    """What was chosen, whatever attempt it was."""
    point = case.row.point
    micro_batch_size, steps = point.get("micro_batch_size"), point.get("gradient_accumulation_steps")
    return (
        str(case.layout),
        micro_batch_size if isinstance(micro_batch_size, int) else None,
        steps if isinstance(steps, int) else None,
    )


def named(case: Trained) -> str:
    """``pp2-dp4+zero1, GAS 16, MBS 4``."""
    layout, micro_batch_size, steps = configuration(case)
    parts = (f"GAS {steps}" if steps else "", f"MBS {micro_batch_size}" if micro_batch_size else "")
    return ", ".join([str(layout), *filter(None, parts)])


def ranked(cases: Iterable[Trained], figure: Ranking) -> list[list[Trained]]:
    """Configurations with the highest figure first, each with all of its attempts that have one, the best first."""
    attempts_of: dict[tuple[object, ...], list[Trained]] = defaultdict(list)
    for case in sorted((case for case in cases if figure(case)), key=figure, reverse=True):
        attempts_of[configuration(case)].append(case)
    return list(attempts_of.values())


def best(cases: Sequence[Trained], figure: Ranking) -> list[Trained]:
    """The cases with the highest figure, one of each configuration; several where they tie, none without a figure."""
    first = [attempts[0] for attempts in ranked(cases, figure)]
    return [case for case in first if figure(case) == figure(first[0])]


def longer_by(case: Trained, fastest: Trained) -> float:
    """How much longer a token takes, as a fraction: 1.0 is twice as long."""
    return throughput(fastest) / throughput(case) - 1


@dataclass(frozen=True)
class Margin:
    """How far the fastest is ahead of the next configuration that is not as fast.

    Attributes
    ----------
    longer_by
        Of the runner-up, as a fraction.
    is_told_apart
        Whether the samples show more than noise; None where they cannot say.
    noise
        The same in words.
    """

    runner_up: Trained
    longer_by: float
    is_told_apart: bool | None
    noise: str


@dataclass(frozen=True)
class Contest:
    """All cases of one workload on one number of ranks.

    Attributes
    ----------
    cases
        Those without a figure, too.
    histories
        By case, with the samples; a case that is not there has none at hand.
    """

    cases: Sequence[Trained]
    histories: Mapping[str, History] = field(default_factory=dict)

    @cached_property
    def fastest(self) -> list[Trained]:
        return best(self.cases, throughput)

    @cached_property
    def margin(self) -> Margin | None:
        """None where nothing is slower than the fastest."""
        order = ranked(self.cases, throughput)
        behind = [attempts for attempts in order if longer_by(attempts[0], order[0][0])]
        if not behind:
            return None
        margin = longer_by(behind[0][0], order[0][0])
        told_apart, words = self._noise(order[0], behind[0], margin)
        return Margin(behind[0][0], margin, told_apart, words)

    @cached_property
    def not_told_apart(self) -> list[Trained]:
        """Slower configurations whose samples show no more than noise, from the fastest of them on."""
        order = ranked(self.cases, throughput)
        close = []
        for attempts in order[1 : 1 + _MOST_COMPARED]:
            margin = longer_by(attempts[0], order[0][0])
            if not margin:
                continue
            if self._noise(order[0], attempts, margin)[0] is not False:
                break
            close.append(attempts[0])
        return close

    def _noise(self, fastest: Sequence[Trained], other: Sequence[Trained], margin: float) -> tuple[bool | None, str]:
        """Whether the margin is more than noise, and a sentence about it."""
        spread = max(longer_by(attempts[-1], attempts[0]) for attempts in (fastest, other))
        if spread:
            words = f"at the same configuration differ by up to {percent(spread)}"
            if spread >= margin:
                return False, f"They are not told apart: attempts {words}."
            return None, f"Attempts {words}, which is less."
        return noise(fastest[0], other[0], self.histories)


def noise(fastest: Trained, other: Trained, histories: Mapping[str, History]) -> tuple[bool | None, str]:
    """Whether samples show that one is slower, None where they cannot say, and a sentence about it."""
    first, second = (_repeats(histories.get(case.row.case)) for case in (fastest, other))
    if not first or not second:
        return None, "Their samples are not at hand, so nothing is known of the noise."
    of_repeats = min(len(first), len(second)) >= FEWEST_REPEATS
    base, new = (_samples(repeats, of_repeats) for repeats in (first, second))
    if min(len(base), len(new)) == 1:
        return None, "With one sample nothing is known of the noise."
    compared = compare_samples(base, new)
    if compared.low is None:
        return None, f"{_counted(compared, of_repeats)} are too few to tell the margin from noise."
    return compared.differs, _interval(compared, of_repeats)


def doubt(fastest: Trained, other: Trained, histories: Mapping[str, History]) -> str:
    """What is to be said beside a margin that samples do not tell from noise; nothing where they do or cannot say."""
    differs, words = noise(fastest, other, histories)
    return words if differs is False else ""


def _repeats(history: History | None) -> list[list[float]]:
    """Seconds of each iteration, a list for each repeat."""
    return [iteration_times(observation) for observation in history.observations] if history else []


def _samples(repeats: Sequence[Sequence[float]], of_repeats: bool) -> list[float]:
    return [median(times) for times in repeats] if of_repeats else [time for times in repeats for time in times]


def _counted(compared: Comparison, of_repeats: bool) -> str:
    """``10 iterations against 20``."""
    return f"{compared.num_new} {'repeats' if of_repeats else 'iterations'} against {compared.num_base}"


def _interval(compared: Comparison, of_repeats: bool) -> str:
    assert compared.low is not None
    assert compared.high is not None
    assert compared.smallest is not None
    between = f"from {percent(compared.low - 1)} to {percent(compared.high - 1)}"
    of = f"{_counted(compared, of_repeats)}{'' if of_repeats else '; another start may differ by more'}"
    if not compared.differs:
        return (
            f"They are not told apart: with 95 % confidence the difference is {between} ({of}), and one below "
            f"{percent(compared.smallest)} would not show."
        )
    return f"That is more than noise: with 95 % confidence {between} ({of})."


# Why the others are not


def why(case: Trained, fastest: Trained) -> str:
    """What a slower case loses, from the measured parts of its step; without them what else was measured or differs."""
    own, least = step_parts(case), step_parts(fastest)
    if own and least:
        return _by_parts(own, least)
    return "; ".join(_by_other_figures(case, fastest)) or DIFFERS + _by_choice(case, fastest)


def step_parts(case: Trained) -> dict[str, float]:
    """Seconds of a step by what they went into, as it is called in a sentence."""
    parts: dict[str, float] = defaultdict(float)
    for (metric, *_), row in case.figures.items():
        if metric == "step_part" and row.value is not None and -inf < row.value < inf:
            axis = row.detail.get("axis")
            parts[legible(said(row.detail.get("part", "")) + (f" along {axis}" if axis else ""), 60)] += row.value
    return dict(parts)


def _by_parts(own: Mapping[str, float], least: Mapping[str, float]) -> str:
    """Points of the fastest step: they sum to what the case is slower by."""
    whole = sum(least.values())
    if whole <= 0:
        return ""
    points = {name: 100 * (own.get(name, 0.0) - least.get(name, 0.0)) / whole for name in {**least, **own}}
    order = sorted(points, key=lambda name: -points[name])
    more = [name for name in order if points[name] >= _LEAST_POINTS][:_MOST_PARTS]
    less = order[-1]
    words = [f"{_rounded(points[name])}{'' if number else ' points'} {name}" for number, name in enumerate(more)]
    if more and points[less] <= -max(_LEAST_POINTS, points[more[0]] / 4):
        words.append(f"but {_rounded(-points[less])} less {less}")
    return ", ".join(words) or "no part of the step is a point longer"


def _by_other_figures(case: Trained, fastest: Trained) -> Iterator[str]:
    """What was seen in steps of their own, where it is more than in the fastest."""
    own, other = case.value("bubble", "measured"), fastest.value("bubble", "measured")
    if own is not None and own - (other or 0.0) >= _AS_MUCH:
        least = "has no pipeline" if other is None else percent(other)
        yield f"idle in the pipeline {percent(own)} of a step, the fastest {least}"
    own, other = case.value("exposed_communication"), fastest.value("exposed_communication")
    if own is not None and other is not None and own > (1 + _AS_MUCH) * other:
        of = scale("s", [own])
        yield f"{EXPOSED} {of.text(own, 3)} {of.unit}, of the fastest {of.text(other, 3)} {of.unit}"


def _by_choice(case: Trained, fastest: Trained) -> str:
    """In what the configurations differ: no reason, but all that is known."""
    own, other = case.layout, fastest.layout
    pairs: dict[str, tuple[object, object]] = {name.upper(): (own.degree(name), other.degree(name)) for name in DEGREES}
    pairs |= {"ZeRO": (own.zero, other.zero), "MBS": (configuration(case)[1], configuration(fastest)[1])}
    words = [f"{name} {mine} instead of {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]
    if own.sp != other.sp:
        words.append("with SP" if own.sp else "without SP")
    return ", ".join(words)


def percent(fraction: float) -> str:
    """``0.8 %``, ``31 %``: as fine as it is told."""
    return f"{_rounded(100 * fraction)} %"


def _rounded(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


def outcome(case: Trained) -> str:
    """One or two words."""
    return "no figure" if case.row.status == "ok" else legible(said(case.row.status), 24)
