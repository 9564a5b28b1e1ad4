"""Two runs side by side: what became slower, by how much at least, and what the noise would have hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.derive import read
from clusterbench.diagnoses.unlike_hosts import differences as host_differences
from clusterbench.errors import SuiteError
from clusterbench.formulas.comparison import Comparison, compare_samples
from clusterbench.formulas.statistics import median
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import FAULTS, History, iteration_times
from clusterbench.types import SAMPLES, Observation, split_key
from clusterbench.units import format_value
from clusterbench.words import aligned, comment

FEWEST_REPEATS = 4
"""With so many repeats each is one sample: iterations of one start are not independent, and intervals too narrow."""
TIME = "time of an iteration"

Verdict = Literal["worse", "better", "same", "unsure"]
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Difference:
    """One quantity of one case in both runs. ``base`` and ``new`` are medians, in ``unit``."""

    case: str
    quantity: str
    unit: str
    better: Better
    base: float
    new: float
    comparison: Comparison
    of_repeats: bool

    def verdict(self, threshold: float) -> Verdict:
        """Worse or better where the change is sure and beyond the threshold; unsure where noise could hide it."""
        change = self.comparison.ratio - 1
        if self.comparison.low is None:
            return "unsure"
        if self.comparison.differs and abs(change) > threshold and self.better != "neither":
            return "better" if (change > 0) == (self.better == "higher") else "worse"
        smallest = self.comparison.smallest
        return "unsure" if smallest is not None and smallest > threshold else "same"


@dataclass(frozen=True)
class Comparing:
    """The differences between two runs of one suite.

    Attributes
    ----------
    ended_otherwise
        Cases that ended well in one run only, as sentences; ``broken`` are those that did in the base.
    environment
        Differences between the machines, as sentences.
    cautions
        Other possible causes of a difference, as sentences.
    """

    base: str
    new: str
    differences: tuple[Difference, ...]
    ended_otherwise: tuple[str, ...]
    broken: tuple[str, ...]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]
    environment: tuple[str, ...]
    cautions: tuple[str, ...]

    def worse(self, threshold: float) -> list[Difference]:
        return [difference for difference in self.differences if difference.verdict(threshold) == "worse"]

    def is_regression(self, threshold: float) -> bool:
        """Whether anything is surely worse by more than the threshold, or does not run any more."""
        return bool(self.worse(threshold) or self.broken)


def compare_runs(base: Path, new: Path) -> Comparing:
    """Compares all cases that both runs have.

    Raises
    ------
    SuiteError
        If they have no case in common, with what they differ in.
    """
    before, after = read(RunFolder.open(base)), read(RunFolder.open(new))
    firsts = {history.case.hash: history for history in before.histories}
    seconds = {history.case.hash: history for history in after.histories}
    common = [key for key in firsts if key in seconds]
    if not common:
        raise SuiteError(
            f"{base} and {new} have no case in common, so there is nothing to compare.{_why(before, after)}"
        )
    differences = [difference for key in common for difference in _differences(firsts[key], seconds[key])]
    pairs = [(firsts[key], seconds[key]) for key in common]
    return Comparing(
        base=str(base),
        new=str(new),
        differences=tuple(differences),
        ended_otherwise=tuple(_ended(first, second) for first, second in pairs if first.status != second.status),
        broken=tuple(first.case.id for first, second in pairs if first.status == "ok" and second.status in FAULTS),
        only_base=tuple(history.case.id for key, history in firsts.items() if key not in seconds),
        only_new=tuple(history.case.id for key, history in seconds.items() if key not in firsts),
        environment=tuple(_environment(before, after)),
        cautions=tuple(_cautions(before, after, differences)),
    )


def _why(before: Reading, after: Reading) -> str:
    """What differs between the first two cases with the same id; without such cases, the names of the suites."""
    named = {history.case.id: history.case for history in after.histories}
    for history in before.histories:
        if namesake := named.get(history.case.id):
            case = history.case
            unlike = [
                f"{name} is {getattr(case, name)!r} and {getattr(namesake, name)!r}"
                for name in ("version", "device", "iterations", "warmup", "world_size", "rank_order")
                if getattr(case, name) != getattr(namesake, name)
            ] + [
                f"{name} is {case.point.get(name)!r} and {namesake.point.get(name)!r}"
                for name in sorted({*case.point, *namesake.point})
                if case.point.get(name) != namesake.point.get(name)
            ]
            return f" Both have '{case.id}', but {', '.join(unlike) or 'its environment differs'}."
    return f" The first ran the suite '{before.plan.suite}', the second '{after.plan.suite}'."


def _ended(base: History, new: History) -> str:
    reason = (new.outcome.reason if new.outcome else "") or (base.outcome.reason if base.outcome else "")
    return f"{base.case.id}: {base.status}, then {new.status}" + (f" ({reason})" if reason else "")


def _differences(base: History, new: History) -> Iterator[Difference]:
    if not base.observations or not new.observations:
        return
    benchmark = benchmarks().get(base.case.benchmark)
    kinds = {kind.name: kind for kind in benchmark.metrics} if benchmark else {}
    firsts, seconds = _quantities(base.observations), _quantities(new.observations)
    sampled = any(key != TIME for key in firsts)
    for key in firsts:
        if key not in seconds or (key == TIME and sampled):  # a program's own figures, not for how long it ran
            continue
        first, second, of_repeats = _samples(firsts[key], seconds[key])
        if min(*first, *second) <= 0:
            continue  # a rate of nothing has no ratio
        kind = kinds.get(split_key(key)[0])
        yield Difference(
            case=base.case.id,
            quantity=key,
            unit=kind.unit if kind else "s",
            better=kind.better if kind else "lower",
            base=median(first),
            new=median(second),
            comparison=compare_samples(first, second),
            of_repeats=of_repeats,
        )


def _quantities(observations: Sequence[Observation]) -> dict[str, list[list[float]]]:
    """Samples of each quantity, a list for each repeat."""
    samples: dict[str, list[list[float]]] = {TIME: [iteration_times(observation) for observation in observations]}
    for observation in observations:
        of_repeat: dict[str, list[float]] = {}
        for rank in observation.passes.get(SAMPLES, ()):
            for key, values in rank.items():
                of_repeat.setdefault(key, []).extend(values)
        for key, values in of_repeat.items():
            samples.setdefault(key, []).append(values)
    return samples


def _samples(base: list[list[float]], new: list[list[float]]) -> tuple[list[float], list[float], bool]:
    """Medians of repeats where both runs have enough of them, otherwise every iteration."""
    if min(len(base), len(new)) >= FEWEST_REPEATS:
        return [median(values) for values in base], [median(values) for values in new], True
    return [value for values in base for value in values], [value for values in new for value in values], False


def _environment(before: Reading, after: Reading) -> Iterator[str]:
    """What differs between the first host of each run."""
    described: dict[str, Any] = {"hosts": {}, "loaded": {}}
    for name, reading in (("base", before), ("new", after)):
        for part in described:
            of_hosts = reading.environment.get(part)
            if isinstance(of_hosts, Mapping) and of_hosts:
                host = next(iter(of_hosts.values()))
                # A difference of clocks says something about the hosts of one run only.
                described[part][name] = {key: value for key, value in host.items() if not key.startswith("clock")}
    if len(described["hosts"]) == 2:
        yield from (difference.sentence for difference in host_differences(described))
    else:
        yield "environment.json of one run names no host, so machines cannot be compared"


def _cautions(before: Reading, after: Reading, differences: Sequence[Difference]) -> Iterator[str]:
    base, new = before.plan.cluster, after.plan.cluster
    if (base.gpu_name or base.cpu_name) != (new.gpu_name or new.cpu_name):
        yield f"the devices are not alike: {base.gpu_name or base.cpu_name} and {new.gpu_name or new.cpu_name}"
    if base.hosts and new.hosts and set(base.hosts) != set(new.hosts):
        yield f"other hosts took part: {', '.join(base.hosts)}, then {', '.join(new.hosts)}"
    if any(not difference.of_repeats for difference in differences):
        yield (
            f"where a case has fewer than {FEWEST_REPEATS} repeats its iterations are compared; they ran in one start "
            "and are not independent, so that intervals are too narrow ('repeats: 5' in the suite helps)"
        )
    if any(difference.comparison.low is None for difference in differences):
        yield "cases with three samples or fewer have no interval"


# As text.


def as_text(comparing: Comparing, threshold: float) -> str:
    """A table for the terminal, worst first."""
    lines = [*comment(f"{comparing.base} (base) and {comparing.new} (new)"), *_notes(comparing)]
    header = ["case", "quantity", "base", "new", "change", "95 % interval", "shows from", "verdict"]
    return "\n".join(
        [*lines, "#", *aligned(header, _rows(comparing, threshold)), *comment(verdict(comparing, threshold))]
    )


def as_markdown(comparing: Comparing, threshold: float) -> str:
    """The same for a pull request."""
    lines = [f"**{verdict(comparing, threshold)}**", "", f"base `{comparing.base}`, new `{comparing.new}`", ""]
    lines += [
        "| case | quantity | base | new | change | 95 % interval | shows from | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _rows(comparing, threshold)]
    if notes := _notes(comparing):
        lines += ["", *(f"- {note.removeprefix('# ')}" for note in notes)]
    return "\n".join(lines)


def verdict(comparing: Comparing, threshold: float) -> str:
    """One sentence: worse or not, and what was unsure."""
    words = dict.fromkeys(("worse", "better", "same", "unsure"), 0)
    for difference in comparing.differences:
        words[difference.verdict(threshold)] += 1
    counts = ", ".join(f"{count} {word}" for word, count in words.items() if count) or "nothing was compared"
    if comparing.broken:
        counts += f"; {len(comparing.broken)} do not run any more"
    word = "REGRESSION" if comparing.is_regression(threshold) else "NO REGRESSION"
    return f"{word} beyond {threshold:.1%}: {counts}"


def _rows(comparing: Comparing, threshold: float) -> list[list[str]]:
    order = ("worse", "unsure", "better", "same")
    ordered = sorted(
        comparing.differences,
        key=lambda difference: (order.index(difference.verdict(threshold)), -abs(difference.comparison.ratio - 1)),
    )
    return [
        [
            difference.case,
            difference.quantity,
            format_value(difference.base, difference.unit),
            format_value(difference.new, difference.unit),
            f"{difference.comparison.ratio - 1:+.1%}",
            _interval(difference.comparison),
            "" if difference.comparison.smallest is None else f"{difference.comparison.smallest:.1%}",
            difference.verdict(threshold),
        ]
        for difference in ordered
    ]


def _interval(comparison: Comparison) -> str:
    if comparison.low is None or comparison.high is None:
        return "too few samples"
    return f"{comparison.low - 1:+.1%} to {comparison.high - 1:+.1%}"


def _notes(comparing: Comparing) -> list[str]:
    notes = [
        *comparing.cautions,
        *(f"machine: {sentence}" for sentence in comparing.environment),
        *comparing.ended_otherwise,
    ]
    for name, cases in (("base", comparing.only_base), ("new", comparing.only_new)):
        if cases:
            more = f" and {len(cases) - 5} more" if len(cases) > 5 else ""
            notes.append(f"only in {name}: {', '.join(cases[:5])}{more}")
    return [line for note in notes for line in comment(note)]
