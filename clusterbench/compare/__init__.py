"""Two runs side by side: what became worse, what is the same, and what these repeats cannot tell.

Figures (``figures.py``) are compared by the statistics of ``repeats.py``, where the design and its sources stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

from clusterbench.cases import Reading
from clusterbench.compare.figures import LARGEST, Figure, Found, figures_of, independent
from clusterbench.compare.hosts import machine_differences
from clusterbench.compare.repeats import (
    Change,
    compare_run,
    excludes_regression,
    is_better,
    is_same,
    is_worse,
    repeats_needed,
    tail_of,
)
from clusterbench.derive import read
from clusterbench.diagnoses import wrong_figures
from clusterbench.errors import SuiteError
from clusterbench.formulas.statistics import median
from clusterbench.measured.disturbed import disturbances
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import FAULTS, History
from clusterbench.words import few

Verdict = Literal["worse", "undecided", "better", "same"]
VERDICTS: tuple[Verdict, ...] = ("worse", "undecided", "better", "same")

EXCLUDED, SHOWN, UNDECIDED = 0, 1, 3
"""Exit codes: a regression beyond the margin is excluded, is shown, or neither. 2 is a mistaken command line."""


@dataclass(frozen=True, eq=False)
class Difference:
    """One figure of one case in both runs.

    Attributes
    ----------
    change
        Above 0 where new is worse; of an exact deviation in shares of its limit, otherwise a logarithm. None where the
        figure was timed in a single pass and is not judged.
    samples
        Figures that come from the same samples have the same number, and count once.
    tail
        Probability on either side of the interval.
    """

    figure: Figure
    change: Change | None
    samples: int
    tail: float

    @property
    def case(self) -> str:
        return self.figure.case

    @property
    def quantity(self) -> str:
        return self.figure.key

    @property
    def base(self) -> float:
        """In its unit, as ``new``: the geometric mean of repeats, so that their ratio is the estimate of the change."""
        return self._typical(self.figure.base)

    @property
    def new(self) -> float:
        return self._typical(self.figure.new)

    def _typical(self, values: Sequence[float]) -> float:
        return geometric_mean(values) if self.figure.how == "repeats" else median(values)

    @property
    def worsening(self) -> float:
        """The estimate of the change, for sorting; of a figure that is not judged, that of its medians."""
        return float((self.change or self.figure.exact_change).log)

    def verdict(self, margin: float) -> Verdict:
        if self.change is None:
            return "undecided"
        if self.figure.how == "exact":
            low, high = _bounds(self.change)
            room = math.log1p(margin)
            return "worse" if low > room else "better" if high < -room else "undecided" if high > room else "same"
        return verdict_of(self.change, margin)

    def excludes_regression(self, margin: float) -> bool:
        if self.change is None:
            return True  # not judged
        if self.figure.how == "exact":
            return _bounds(self.change)[1] <= math.log1p(margin)
        return bool(excludes_regression(self.change, margin))

    def needed(self, margin: float) -> int | None:
        """Repeats of each run with which this noise would decide; None where it is not known."""
        return None if self.change is None else repeats_needed(self.change, margin, self.tail)

    @property
    def has_single_repeats(self) -> bool:
        return self.figure.how == "repeats" and len(self.figure.base) == len(self.figure.new) == 1

    @property
    def ratio(self) -> float | None:
        """New over base; None where base is 0."""
        return self.new / self.base if self.base else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the ratio; None where there is none: too few repeats, an exact figure, or one that is not judged."""
        if self.change is None or self.figure.how != "repeats" or not math.isfinite(float(self.change.half_width)):
            return None
        low, high = _bounds(self.change)
        if self.figure.kind.better == "higher":
            low, high = -high, -low
        return math.exp(low), math.exp(min(high, LARGEST))


def verdict_of(change: Change, margin: float) -> Verdict:
    """Of a change that repeats decide."""
    if is_worse(change, margin):
        return "worse"
    if is_better(change, margin):
        return "better"
    return "same" if is_same(change, margin) else "undecided"


def _bounds(change: Change) -> tuple[float, float]:
    return float(change.log - change.half_width), float(change.log + change.half_width)


@dataclass(frozen=True)
class Comparing:
    """The differences between two runs of one suite, for a margin.

    Attributes
    ----------
    margin
        The change, as a fraction, beyond which a slowdown is a regression.
    differences
        Of all figures that both runs have and that have a better side.
    whole
        The change of the typical case; None where one quantity alone is judged by repeats.
    ended_otherwise
        Cases that ended well in one run only, as sentences; ``broken`` are those of which a repeat failed in the new
        run and none in the base, ``untold`` those that were not measured there for another reason.
    void
        Timed cases of which one of the runs has no time that counts: each repeat was disturbed, ranks shared GPUs,
        or its record is lost.
    gone
        Cases with figures that only base has, unless new was to have fewer.
    unproven
        Training cases that were proven in base and are not in new: whether their speed is that of a right step is not
        known.
    environment
        Differences between the machines, as sentences.
    cautions
        Other possible causes of a difference, and what could not be compared, as sentences.
    """

    base: str
    new: str
    margin: float
    differences: tuple[Difference, ...]
    whole: Change | None
    ended_otherwise: tuple[str, ...]
    broken: tuple[str, ...]
    untold: tuple[str, ...]
    void: tuple[str, ...]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]
    gone: tuple[str, ...]
    unproven: tuple[str, ...]
    environment: tuple[str, ...]
    cautions: tuple[str, ...]

    @property
    def judged(self) -> list[Difference]:
        return [difference for difference in self.differences if difference.change is not None]

    @property
    def whole_verdict(self) -> Verdict | None:
        return None if self.whole is None else verdict_of(self.whole, self.margin)

    @property
    def is_regression(self) -> bool:
        """Whether anything is shown to be worse, or fails now."""
        worse = any(difference.verdict(self.margin) == "worse" for difference in self.judged)
        return worse or bool(self.broken) or self.whole_verdict == "worse"

    @property
    def blocking(self) -> list[Difference]:
        """Figures of which a regression beyond the margin is neither shown nor excluded, one of each samples."""
        found: dict[int, Difference] = {}
        for difference in self.judged:
            if difference.verdict(self.margin) != "worse" and not difference.excludes_regression(self.margin):
                found.setdefault(difference.samples, difference)
        return list(found.values())

    @property
    def exit_code(self) -> int:
        if self.is_regression:
            return SHOWN
        if self.blocking or self.untold or self.void or self.gone or self.unproven or not self.judged:
            return UNDECIDED
        return EXCLUDED if self.whole is None or excludes_regression(self.whole, self.margin) else UNDECIDED


def compare_runs(base: Path, new: Path, margin: float = 0.05, has_fewer_cases: bool = False) -> Comparing:
    """Compares all cases that both runs have.

    Parameters
    ----------
    has_fewer_cases
        Whether ``new`` leaves out cases of ``base`` on purpose, so that a regression in these need not be excluded.

    Raises
    ------
    SuiteError
        If they are one run, or have no case in common, with what they differ in.
    """
    before, after = read(RunFolder.open(base)), read(RunFolder.open(new))
    return compare_readings(before, after, str(base), str(new), margin, has_fewer_cases)


def compare_readings(
    before: Reading, after: Reading, base: str, new: str, margin: float = 0.05, has_fewer_cases: bool = False
) -> Comparing:
    """The same of runs that were read already; ``base`` and ``new`` are what they are called."""
    firsts, seconds = comparable(before), comparable(after)
    num_alone = max(len(before.lone_ranks), len(after.lone_ranks))
    common = [key for key in firsts if key in seconds]
    if not common:
        alone = next((f" {words[0].upper()}{words[1:]}." for words in left_out_alone(num_alone)), "")
        raise SuiteError(
            f"{base} and {new} have no case in common, so there is nothing to compare.{alone or _why(before, after)}"
        )
    pairs = [(firsts[key], seconds[key]) for key in common]
    if copied := [first.case.id for first, second in pairs if _have_one_record(first, second)]:
        raise SuiteError(
            f"{base} and {new} hold the same records of {few(copied)}: one is the other or begins with its copy, and "
            "nothing would have changed.\nhint: name two runs, each of which measured these cases itself"
        )
    left_out = [history for key, history in firsts.items() if key not in seconds]
    clusters = (before.plan.cluster, after.plan.cluster)
    compared = {first.case.id: figures_of(first, second, clusters) for first, second in pairs}
    differences, whole = differences_of([found.figures for found in compared.values()])
    lacking = {key: case for case, found in compared.items() for key in found.lacking}
    ended_well = [(first, second) for first, second in pairs if first.status == "ok"]
    return Comparing(
        base=base,
        new=new,
        margin=margin,
        differences=tuple(differences),
        whole=whole,
        ended_otherwise=tuple(_ended(first, second) for first, second in pairs if first.status != second.status),
        broken=tuple(
            first.case.id
            for first, second in ended_well
            if second.status in FAULTS or (second.faults and not first.faults)
        ),
        untold=tuple(
            first.case.id
            for first, second in ended_well
            if second.status not in FAULTS and first.observations and not second.observations
        ),
        void=tuple(case for case, found in compared.items() if found.is_void),
        only_base=tuple(history.case.id for history in left_out),
        only_new=tuple(history.case.id for key, history in seconds.items() if key not in firsts),
        gone=tuple(history.case.id for history in left_out if history.observations and not has_fewer_cases),
        unproven=tuple(
            f"{second.case.id} ({after.unproven[second.case.id]})"
            for first, second in pairs
            if first.observations and first.case.id not in before.unproven and second.case.id in after.unproven
        ),
        environment=tuple(machine_differences(before.environment, after.environment)),
        cautions=(
            *_cautions(before, after, lacking),
            *left_out_shares(compared.values()),
            *_failed_in_both(pairs),
            *_not_compared(firsts.values(), seconds.values()),
            *(
                words
                for name, histories in zip(("base", "new"), zip(*pairs, strict=True), strict=True)
                for words in left_out_repeats(name, histories)
            ),
            *left_out_alone(num_alone),
        ),
    )


def _have_one_record(base: History, new: History) -> bool:
    """Whether a repeat of both was timed at one moment, with the same seconds: it is one repeat."""
    records = [(seen.timing, seen.seconds) for seen in base.observations if seen.timing]
    return any((seen.timing, seen.seconds) in records for seen in new.observations)


def comparable(reading: Reading) -> dict[str, History]:
    """By hash, all cases but those of one rank that computed alone: they are of no layout that anybody runs.

    One whose figures cannot be right is wrong here, and has none: the speed of a wrong result is no result.
    """
    alone = {history.case.hash for history in reading.lone_ranks}
    wrong = wrong_figures(reading)
    return {
        history.case.hash: history.refuted(wrong[history.case.id]) if history.case.id in wrong else history
        for history in reading.histories
        if history.case.hash not in alone
    }


def left_out_alone(most: int) -> Iterator[str]:
    """That so many cases of one rank alone are not compared, if there are any."""
    if most:
        cases = "a case" if most == 1 else f"{most:,} cases"
        yield f"{cases} of one rank that computed alone, with nothing sent, cannot be compared"


def differences_of(cases: Sequence[Sequence[Figure]]) -> tuple[list[Difference], Change | None]:
    """All figures of all cases, with their changes; and that of the run as a whole."""
    groups = [group for found in cases for group in independent(found)]
    pairs = [group[0].logarithms for group in groups]
    changes, whole = compare_run([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    tail = tail_of(len(groups) + (whole is not None))
    number_of = {id(figure): number for number, group in enumerate(groups) for figure in group}
    differences = []
    others = len(groups)
    for figure in (figure for found in cases for figure in found):
        number = number_of.get(id(figure))
        if number is not None:
            differences.append(Difference(figure, changes[number], number, tail))
        else:
            change = figure.exact_change if figure.how == "exact" else None
            differences.append(Difference(figure, change, others, tail))
            others += 1
    return differences, whole


def _why(before: Reading, after: Reading) -> str:
    """What differs between the first two cases with the same id; without such cases, the suites or what both have."""
    for both in _namesakes(before.histories, after.histories):
        return f" {both}."
    if before.plan.suite != after.plan.suite:
        return f" The first ran the suite '{before.plan.suite}', the second '{after.plan.suite}'."
    first, second = (few([history.case.id for history in reading.histories]) for reading in (before, after))
    return f" The first has {first or 'no case'}, the second {second or 'no case'}."


def _namesakes(before: Iterable[History], after: Iterable[History]) -> Iterator[str]:
    """In what cases differ that have the same id and are not the same."""
    named = {history.case.id: history.case for history in after}
    for case in (history.case for history in before):
        namesake = named.get(case.id)
        if namesake is None or namesake.hash == case.hash:
            continue
        unlike = [
            f"{name} is {getattr(case, name)!r} and {getattr(namesake, name)!r}"
            for name in ("version", "device", "iterations", "warmup", "world_size", "rank_order")
            if getattr(case, name) != getattr(namesake, name)
        ] + [
            f"{name} is {case.point.get(name)!r} and {namesake.point.get(name)!r}"
            for name in sorted({*case.point, *namesake.point})
            if case.point.get(name) != namesake.point.get(name)
        ]
        yield f"Both have '{case.id}', but {', '.join(unlike) or 'its environment differs'}"


def _not_compared(before: Iterable[History], after: Iterable[History]) -> Iterator[str]:
    """What stands among those that only one run has, and has the same name in both."""
    if found := list(_namesakes(before, after)):
        more = f"; and {len(found) - 1:,} more such cases, not compared" if len(found) > 1 else "; it is not compared"
        yield f"{found[0][0].lower()}{found[0][1:]}{more}"


def _ended(base: History, new: History) -> str:
    reason = (new.outcome.reason if new.outcome else "") or (base.outcome.reason if base.outcome else "")
    return f"{base.case.id}: {base.status}, then {new.status}" + (f" ({reason})" if reason else "")


def left_out_shares(compared: Iterable[Found]) -> Iterator[str]:
    """Metrics whose change may be that of the peak they are a share of."""
    if shares := sorted({name for found in compared for name in found.shares}):
        yield f"not compared, as they are shares of another peak in each run: {few(shares)}"


def _failed_in_both(pairs: Sequence[tuple[History, History]]) -> Iterator[str]:
    both = [
        f"{first.case.id} ({first.status})"
        for first, second in pairs
        if first.faults and second.faults and not first.observations and not second.observations
    ]
    if both:
        yield f"failed or wrong in both runs, so not compared: {few(both)}"


def left_out_repeats(name: str, histories: Sequence[History]) -> Iterator[str]:
    """Of cases that ended well in other repeats: they are compared by these."""
    failed, disturbed = [], []
    for history in histories:
        if history.observations and history.faults:
            how = few(list(dict.fromkeys(outcome.status for outcome in history.faults)))
            failed.append(f"{len(history.faults)} of {history.case.id} ({how})")
        reasons = [why for each in history.observations if (why := next(disturbances(each), ""))]
        if reasons:
            disturbed.append(f"{len(reasons)} of {history.case.id} ({few(list(dict.fromkeys(reasons)), 1)})")
    if failed:
        yield f"repeats of {name} that failed and are left out: {few(failed)}"
    if disturbed:
        yield f"repeats of {name} that were disturbed, so that their times are left out: {few(disturbed)}"


def _cautions(before: Reading, after: Reading, lacking: dict[str, str]) -> Iterator[str]:
    base, new = before.plan.cluster, after.plan.cluster
    if (base.gpu_name or base.cpu_name) != (new.gpu_name or new.cpu_name):
        yield f"the devices are not alike: {base.gpu_name or base.cpu_name} and {new.gpu_name or new.cpu_name}"
    if base.hosts and new.hosts and set(base.hosts) != set(new.hosts):
        yield f"other hosts took part: {few(base.hosts)}, then {few(new.hosts)}"
    for name, reading in (("base", before), ("new", after)):
        described, hosts = reading.environment.get("hosts") or {}, reading.plan.cluster.hosts
        if described and (silent := [host for host in hosts if host not in described]):
            yield f"environment.json of {name} does not describe {few(silent)}"
        if reading.shares_gpus:
            yield f"{reading.plan.cluster.ranks_per_gpu} ranks share each GPU in {name}, so that no time of it counts"
        if reading.problems:
            more = f", and {len(reading.problems) - 1} more" if len(reading.problems) > 1 else ""
            yield f"records of {name} that cannot be read: {reading.problems[0]}{more}"
    if lacking:
        yield f"figures that one run lacks: {few([f'{key} of {case}' for key, case in lacking.items()])}"
