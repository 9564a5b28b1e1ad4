"""A comparison in words: the verdict and what is undecided first, then a table sorted by change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from clusterbench.compare import EXCLUDED, SHOWN, UNDECIDED, VERDICTS, Comparing, Difference
from clusterbench.compare.repeats import Change
from clusterbench.types import MOST_REPEATS
from clusterbench.units import format_value
from clusterbench.words import aligned, comment, few, plural

HEADER = (
    "case",
    "figure",
    "base",
    "new",
    "change",
    "interval of the change",
    "smallest change this would have shown",
    "repeats",
    "verdict",
)
_MULTIPLE, _NOTHING = 3.0, 100.0
_WORDS = {
    EXCLUDED: "NO REGRESSION beyond {margin}",
    SHOWN: "REGRESSION (margin {margin})",
    UNDECIDED: "UNDECIDED whether there is a regression beyond {margin}",
}


def as_text(comparing: Comparing) -> str:
    """For the terminal."""
    told = [line for sentence in summary(comparing) for line in comment(sentence)]
    behind = [line for note in notes(comparing) for line in comment(note)]
    return "\n".join([*told, "#", *aligned(HEADER, rows(comparing)), *(["#", *behind] if behind else [])])


def as_markdown(comparing: Comparing) -> str:
    """The same for a pull request."""
    verdict, *rest = summary(comparing)
    lines = [f"**{verdict}**", "", *rest, "", f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(comparing)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(comparing))])


def summary(comparing: Comparing) -> list[str]:
    """The verdict, the run as a whole, what is undecided and what would decide it, and which runs these are."""
    sentences = [_verdict(comparing)]
    if comparing.whole is not None:
        changed = f"{_change(comparing.whole)}, {comparing.whole_verdict}{_but(comparing)}"
        sentences.append(f"The run as a whole, its typical case: {changed}.")
    sentences += _undecided(comparing)
    sentences += _of_one_run(comparing)
    return [*sentences, f"base: {comparing.base}; new: {comparing.new}"]


def _verdict(comparing: Comparing) -> str:
    margin = f"{comparing.margin:.1%}"
    timed = _timed(comparing)
    counted = [each.verdict(comparing.margin) for each in comparing.judged if each.figure.how == "exact"]
    told = ["the run as a whole is worse"] if comparing.whole_verdict == "worse" else []
    told.append(_tally(timed) or _nothing_timed(counted))
    if changed := _tally([verdict for verdict in counted if verdict != "same"]):
        told.append(f"of what is counted {changed}")
    for cases, what in ((comparing.broken, "ended badly"), (comparing.untold, "not measured")):
        if cases:
            told.append(f"{plural(len(cases), 'case')} {what} that ran before: {few(cases)}")
    if comparing.gone:
        told.append(f"{plural(len(comparing.gone), 'case')} of base that new does not have: {few(comparing.gone)}")
    if comparing.unproven:
        told.append(f"{plural(len(comparing.unproven), 'case')} not proven now: {few(comparing.unproven, 1)}")
    if comparing.void:
        without = f"{plural(len(comparing.void), 'case')} of which one run has no time that counts"
        told.append(f"{without}: {few(comparing.void)}")
    worst = next((found for found in _sorted(comparing) if found.verdict(comparing.margin) == "worse"), None)
    if worst is not None:
        told.append(f"worst: {worst.quantity} of {worst.case}, {_ratio(worst)}")
    return f"{_WORDS[comparing.exit_code].format(margin=margin)}: {'; '.join(told)}."


def _timed(comparing: Comparing) -> list[str]:
    """The verdicts of what repeats decide, one of each samples."""
    timed = {each.samples: each for each in comparing.judged if each.figure.how != "exact"}
    return [each.verdict(comparing.margin) for each in timed.values()]


def _but(comparing: Comparing) -> str:
    """What the typical case is not, where that did not get slower: the cases that did are no half of all."""
    timed = _timed(comparing)
    worse = timed.count("worse")
    if not worse or comparing.whole_verdict not in ("same", "better"):
        return ""
    verb = "is" if worse == 1 else "are"
    return f": that is the median of {len(timed):,} changes, of which {worse:,} {verb} worse"


def _nothing_timed(counted: Sequence[str]) -> str:
    if not counted:
        return "nothing was compared"
    alike = all(verdict == "same" for verdict in counted)
    return (
        f"no time is compared, and all {len(counted):,} counted figures are the same"
        if alike
        else "no time is compared"
    )


def _tally(verdicts: Sequence[str]) -> str:
    counts = Counter(verdicts)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _undecided(comparing: Comparing) -> Iterator[str]:
    """What keeps a regression from being excluded, and what would decide it."""
    blocking = comparing.blocking
    single = [difference for difference in blocking if difference.has_single_repeats]
    unlike = [difference for difference in blocking if difference.figure.how == "exact"]
    noisy = {
        difference: needed
        for difference in blocking
        if not difference.has_single_repeats and (needed := difference.needed(comparing.margin)) is not None
    }
    if single:
        are_imported = all(difference.case.startswith("imported/") for difference in single)
        where = "Run a suite here with 'repeats: 10'" if are_imported else "Add 'repeats: 10' to the suite"
        yield (
            f"Undecided: {plural(len(single), 'figure')} with one repeat in each run, which does not show how far "
            f"another would differ. {where}: it tells twice the margin from noise of 2 %."
        )
    if noisy:
        noisiest = max(noisy, key=lambda difference: noisy[difference])
        most, half = noisy[noisiest], sorted(noisy.values())[(len(noisy) - 1) // 2]
        enough = f"More than {MOST_REPEATS:,} repeats" if most > MOST_REPEATS else plural(most, "repeat")
        some = f" {plural(half, 'repeat')} of each run would decide half of them." if half < most else ""
        yield (
            f"Undecided: {plural(len(noisy), 'figure')}.{some} {enough} of each run would decide all, if noise stays "
            f"as it is; most are needed for {noisiest.quantity} of {noisiest.case}."
        )
    by_run = [
        difference
        for difference in blocking
        if difference not in (*single, *unlike) and difference.needed(comparing.margin) is None
    ]
    if by_run:
        yield (
            f"Undecided: {plural(len(by_run), 'figure')} in which the runs of the baseline differ by more than their "
            "repeats, so that new counts as one run more. It takes a baseline of more runs."
        )
    if comparing.gone:
        yield (
            "Undecided: what new leaves out is not compared. Measure it again, or say --fewer-cases where that is on "
            "purpose."
        )
    if unlike:
        named = few([f"{difference.quantity} of {difference.case}" for difference in unlike])
        yield f"Undecided: {plural(len(unlike), 'figure')} whose repeats should all be alike and are not: {named}."


def _of_one_run(comparing: Comparing) -> Iterator[str]:
    """What no number of repeats can tell."""
    worse = [
        difference
        for difference in comparing.judged
        if difference.figure.how == "repeats" and difference.verdict(comparing.margin) == "worse"
    ]
    of_one = all(difference.figure.base_runs == 1 for difference in comparing.judged)
    if of_one and (worse or comparing.whole_verdict == "worse"):
        yield (
            "Base is one run, which does not show how far runs differ by themselves: before you look for a cause, run "
            "base and new again in turn, or compare with a baseline of several runs."
        )


def _sorted(comparing: Comparing) -> list[Difference]:
    return sorted(comparing.judged, key=lambda difference: -difference.worsening)


def rows(comparing: Comparing) -> list[list[str]]:
    """The lines of the table, the worst first, under :data:`HEADER`.

    Of figures from the same samples the first stands for all that did not change.
    """
    shown = []
    told: set[int] = set()
    for difference in _sorted(comparing):
        changed = difference.verdict(comparing.margin) in ("worse", "better")
        undecided = difference.verdict(comparing.margin) == "undecided"
        if changed or (difference.samples not in told and (undecided or difference.figure.how == "repeats")):
            shown.append(_row(difference, comparing.margin))
        told.add(difference.samples)
    return shown


def _row(difference: Difference, margin: float) -> list[str]:
    verdict: str = difference.verdict(margin)
    if verdict == "undecided" and difference.excludes_regression(margin):
        verdict = "undecided, not worse"
    return [
        difference.case,
        difference.quantity,
        format_value(difference.base, difference.figure.kind.unit),
        format_value(difference.new, difference.figure.kind.unit),
        _ratio(difference),
        _interval(difference),
        _shown_from(difference),
        _repeats(difference),
        verdict,
    ]


def _ratio(difference: Difference) -> str:
    return "from 0" if difference.ratio is None else f"{difference.ratio - 1:+.1%}"


def _interval(difference: Difference) -> str:
    if difference.figure.how == "exact":
        return "exact"
    if difference.interval is None:
        return "too few repeats"
    return _between(*difference.interval)


def _between(low: float, high: float) -> str:
    """Of a ratio. Percents say nothing where it is a multiple."""
    if high > _MULTIPLE or low < 1 / _MULTIPLE:
        return f"{low:.2g} to {high:.2g} times" if high < _NOTHING else "anything"
    return f"{low - 1:+.1%} to {high - 1:+.1%}"


def _shown_from(difference: Difference) -> str:
    if difference.figure.how == "exact" or difference.interval is None or difference.change is None:
        return ""
    half_width = float(difference.change.half_width)
    if half_width > math.log(_NOTHING):
        return f"over {_NOTHING:g} times"
    smallest = math.exp(half_width)
    return f"{smallest:.2g} times" if smallest > _MULTIPLE else f"{smallest - 1:.1%}"


def _repeats(difference: Difference) -> str:
    base, new = len(difference.figure.base), len(difference.figure.new)
    return str(base) if base == new else f"{base}, then {new}"


def _change(change: Change) -> str:
    log, half_width = float(change.log), float(change.half_width)
    if not math.isfinite(half_width):
        return f"{math.expm1(log):+.1%}, too few repeats for an interval"
    between = _between(math.exp(log - half_width), math.exp(min(log + half_width, math.log(_NOTHING))))
    return f"{math.expm1(log):+.1%} ({between})"


def notes(comparing: Comparing) -> Iterator[str]:
    """What may also be behind a difference, and what is not in the table, as sentences."""
    yield from comparing.cautions
    yield from (f"machine: {sentence}" for sentence in comparing.environment)
    yield from comparing.ended_otherwise
    for name, cases in (("base", comparing.only_base), ("new", comparing.only_new)):
        if cases:
            yield f"only in {name}: {few(cases, 5)}"
    yield from _not_in_the_table(comparing)


def _not_in_the_table(comparing: Comparing) -> Iterator[str]:
    exact = [difference for difference in comparing.judged if difference.figure.how == "exact"]
    same = [difference for difference in exact if difference.verdict(comparing.margin) == "same"]
    for are_deviations, within in ((False, f"the same within {comparing.margin:.1%}"), (True, "within its tolerance")):
        names = {each.figure.kind.name for each in same if bool(each.figure.limit) == are_deviations}
        if names:
            yield f"counted, and {within}: {', '.join(sorted(names))}"
    together: dict[str, set[str]] = {}
    first: dict[int, Difference] = {}
    for difference in comparing.judged:
        leader = first.setdefault(difference.samples, difference)
        if leader is not difference:
            together.setdefault(leader.quantity, set()).add(difference.figure.kind.name)
    for quantity, others in together.items():
        yield f"from the same samples as {quantity}, and changed as it: {', '.join(sorted(others))}"
    once = sorted({difference.figure.kind.name for difference in comparing.differences if difference.change is None})
    if once:
        yield f"taken once a run, or 0, so not judged: {', '.join(once)}"
