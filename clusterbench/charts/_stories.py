"""The text beside a ranking: the fastest, its margin, and a line for every case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from clusterbench.cases.ranking import (
    DIFFERS,
    EXPOSED,
    Contest,
    Mfu,
    Ranking,
    best,
    configuration,
    imported_mfu,
    longer_by,
    mfus,
    named,
    outcome,
    percent,
    ranked,
    sound,
    throughput,
    why,
)
from clusterbench.cases.trained import Trained
from clusterbench.drawing.panel import Story
from clusterbench.run_folder.attempts import NOT_RUN
from clusterbench.units import digits, format_bytes, format_value
from clusterbench.words import legible

MOST_LINES = 40
"""Cases that a story lists; it counts the others."""

LONGEST_REASON = 140
_ENDS = ("ok", "wrong", "failed", "timeout", "out_of_memory", "skipped", NOT_RUN, "refused")


def speed_story(title: str, contest: Contest, mfu: Mfu | None, noun: str) -> Story:
    """The fastest, its margin, and a line for every case; ``noun`` is what a rank is called."""
    listed = [*_listed(contest.cases, throughput), *_without_figure(contest.cases)]
    lines = _lines(contest, listed[:MOST_LINES])
    reasons = [line[-1] for line in lines]
    sentences = [*_fastest_is(contest.fastest, mfu, noun), *_margin_is(contest), *_bound_is(contest.fastest)]
    if any(" points " in reason for reason in reasons):
        sentences.append("Points are hundredths of the fastest step, shared out as in one traced step of each case.")
    if any(EXPOSED in reason for reason in reasons):
        sentences.append("Exposed communication is that of one traced step, which takes longer than a timed one.")
    if any(DIFFERS in reason for reason in reasons):
        sentences.append("Where it is not known what a step was spent on, the table says what differs.")
    sentences += _counts(listed)
    columns = ("place", "configuration", "tokens/s", "step longer by", "peak memory", "why")
    return Story(title, tuple(sentences), columns, tuple(lines), _linked_cases(listed))


def _lines(contest: Contest, listed: Sequence[Trained]) -> list[tuple[str, ...]]:
    """One for each case: place, configuration, figure, distance, memory, and why it is not the fastest."""
    alike = {case.row.case for case in contest.not_told_apart}
    order = ranked(contest.cases, throughput)
    place = {id(case): number for number, attempts in enumerate(order, 1) for case in attempts}
    firsts = {id(attempts[0]) for attempts in order}
    lines: list[tuple[str, ...]] = []
    for case in listed:
        memory = sound(case.whole_memory())
        size = format_bytes(memory) if memory else ""
        if not throughput(case):
            lines.append(("", named(case), "", "", size, ended(case)))
            continue
        behind, number = longer_by(case, contest.fastest[0]), f"{place[id(case)]}"
        if id(case) not in firsts:
            number, reason = "", f"another attempt at place {number}"
        elif not behind:
            number, reason = "1", "as fast" if len(contest.fastest) > 1 else "the fastest"
        else:
            reason = why(case, contest.fastest[0])
            reason = f"not told apart; {reason}" if case.row.case in alike else reason
        speed = digits(throughput(case))
        lines.append((number, named(case), speed, percent(behind) if behind else "", size, reason))
    return lines


def mfu_story(title: str, cases: Sequence[Trained]) -> Story | None:
    """What an imported MFU chooses, beside what throughput does; None where no case has one."""
    listed, fastest = _listed(cases, imported_mfu), best(cases, throughput)
    if not listed:
        return None
    highest = best(cases, imported_mfu)
    sentences = [f"The highest imported MFU, {percent(imported_mfu(listed[0]))}, is of {_names(highest)}."]
    if not {*map(configuration, highest)} & {*map(configuration, fastest)} and fastest:
        sentences.append(f"By tokens/s the fastest is {_names(fastest)}.")
    if ratio := sound(listed[0].value("mfu_over_recomputed")):
        sentences.append(f"As imported it is {ratio:.3f} times the MFU that its tokens/s give.")
    if len(listed) > MOST_LINES:
        sentences.append(f"The first {MOST_LINES} of {len(listed):,} are listed.")
    lines = []
    for number, case in enumerate(listed[:MOST_LINES], 1):
        ratio, speed = sound(case.value("mfu_over_recomputed")), throughput(case)
        share = percent(imported_mfu(case)), f"{ratio:.3f}" if ratio else ""
        lines.append((str(number), named(case), *share, digits(speed) if speed else ""))
    columns = ("place", "configuration", "imported MFU", "over recomputed", "tokens/s")
    return Story(title, tuple(sentences), columns, tuple(lines), _linked_cases(listed))


def _names(cases: Iterable[Trained]) -> str:
    return " and ".join(map(named, cases))


def ended(case: Trained) -> str:
    """How a case without a figure ended, with its reason."""
    how, reason = outcome(case), "" if case.figures else " ".join(case.row.basis[: 4 * LONGEST_REASON].split())
    return legible(reason if not reason or reason.startswith(how) else f"{how}: {reason}", LONGEST_REASON) or how


def _fastest_is(fastest: Sequence[Trained], mfu: Mfu | None, noun: str) -> Iterator[str]:
    if not fastest:
        yield "Nothing here has a figure."
        return
    speed = throughput(fastest[0])
    per_rank = format_value(speed / fastest[0].layout.world_size, "tokens/s")
    counted = mfus(fastest[0])
    share = f", MFU {percent(counted[mfu])} ({mfu.words})" if mfu is not None and mfu in counted else ""
    figure = f"{format_value(speed, 'tokens/s')}, {per_rank} per {noun}{share}"
    if len(fastest) == 1:
        yield f"The fastest is {named(fastest[0])}: {figure}."
    else:
        yield f"As fast as each other, and the fastest, are {_names(fastest)}: {figure}."


def _margin_is(contest: Contest) -> Iterator[str]:
    margin = contest.margin
    if margin is not None:
        longer = percent(margin.longer_by)
        yield f"The runner-up, {named(margin.runner_up)}, takes {longer} longer for a step. {margin.noise}"
        if len(contest.not_told_apart) > 1:
            yield f"{len(contest.not_told_apart)} configurations are not told apart from the fastest."
    elif contest.fastest:
        yield "Nothing else has a figure to compare it with."


def _bound_is(fastest: Sequence[Trained]) -> Iterator[str]:
    row = fastest[0].figures.get(("tokens_per_s",)) if fastest else None
    if row is None or row.expected is None or not sound(row.expected):
        return
    reached = percent(throughput(fastest[0]) / row.expected)
    basis = legible(" ".join(row.basis[:600].split()), 200)
    bound = format_value(row.expected, "tokens/s")
    if basis.startswith("at most; "):
        yield f"No layout can exceed {bound} ({basis.removeprefix('at most; ')}): this reaches {reached} of it."
    else:
        yield f"Expected were {bound} ({basis}): this is {reached} of it."


def _counts(listed: Sequence[Trained]) -> Iterator[str]:
    """How many cases there are, where the table does not show it."""
    rest = listed[MOST_LINES:]
    if rest or not all(map(throughput, listed)):
        yield f"Of {len(listed):,} cases: {tally(listed)}."
    if rest:
        yield f"The first {MOST_LINES} are listed; the others: {tally(rest)}."


def tally(cases: Iterable[Trained]) -> str:
    """``25 with a figure, 64 failed``."""
    ends = Counter("with a figure" if throughput(case) else outcome(case) for case in cases)
    return ", ".join(f"{number:,} {end}" for end, number in ends.items())


def _without_figure(cases: Iterable[Trained]) -> list[Trained]:
    """What went wrong first, what could not be last."""
    place = {status: number for number, status in enumerate(_ENDS)}
    return sorted((case for case in cases if not throughput(case)), key=lambda case: place.get(case.row.status, 0))


def _listed(cases: Iterable[Trained], figure: Ranking) -> list[Trained]:
    """Those with a figure, the highest first."""
    return sorted(filter(figure, cases), key=figure, reverse=True)


def _linked_cases(listed: Sequence[Trained]) -> tuple[str, ...]:
    """Ids of the cases that the lines are of; a refusal is none."""
    return tuple("" if case.row.status == "refused" else case.row.case for case in listed[:MOST_LINES])
