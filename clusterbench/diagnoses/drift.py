from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged, Subject
from clusterbench.formulas.statistics import median
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.types import MOST_REPEATS, Observation
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.cases.series import Shift

LEAST = 0.05
"""Of a case's time: less is nobody's fault, however sure it is."""

FEWEST, MOST = 5, 24
"""Stretches of a run that are held against each other; where there are more repeats, some go into one."""


class Drift(Diagnosis):
    """Cases that became slower while the run went on.

    What it looks for
    -----------------
    The time of each repeat of a case, in order: one step, or a slow drift, of 5 % or more from start to end, clearer
    than 95 in 100 runs of the same times in any order would show among all cases together (Pettitt's and Mann and
    Kendall's tests of ranks, Holm's correction). It takes ten repeats, and more where cases are many: ``repeats`` in
    the suite, or ``for: 2h``, of which it is also said where they were too few. More than 24 repeats are taken
    together, some and some, so that a single slow one does not count. A case that became faster is a note: it was
    measured before something had settled.

    A case kept its time only where the whole interval of its change from start to end (Sen's, of 95 % for all cases
    together) is within 5 %. Of the others it is said how large a change might not have shown; where no case is steady,
    nothing is judged. A change in less than a fifth of the run, at its beginning or end, does not show.

    Why it matters
    --------------
    Half an hour under load shows what a minute does not: cooling that does not keep up, power that is capped for a
    rack, a link on which errors grow, a file system that slows down as it fills.

    How to confirm
    --------------
    Look when it began, and at clocks, temperatures and error counters of the cases before and behind that in the run's
    telemetry. Run the case alone, once when the machine is cold and once behind ten minutes of load.

    What usually fixes it
    ---------------------
    Fans, cold plates and filters; power limits of the rack; the cable or module whose errors grew; on a shared machine,
    to have it alone.
    """

    subject: ClassVar[Subject] = "machine"

    def answer(self, reading: Reading) -> Answer:
        from clusterbench.cases.series import ALPHA, holm, shift_of  # numpy, only now

        repeated = [history for history in reading.histories if len(history.observations) >= FEWEST]
        histories = {whole.case.id: whole for whole in repeated}
        times = {case: of_case for case, whole in histories.items() if (of_case := _times(whole))}
        series = {case: _stretches(of_repeats) for case, of_repeats in times.items() if len(of_repeats) >= FEWEST}
        enough = {case: values for case, values in series.items() if _would_show(len(values), len(series))}
        shifts = {case: shift_of(values) for case, values in enough.items()}
        sure = dict(zip(shifts, holm([shift.p for shift in shifts.values()]), strict=True))
        found = {
            case: _finding(histories[case], shift, enough[case], sure[case])
            for case, shift in shifts.items()
            if sure[case] < ALPHA and abs(math.expm1(shift.log)) >= LEAST
        }
        hidden = {case: _hidden(enough[case], len(enough)) for case in enough if case not in found}
        steady = [len(times[case]) for case, change in hidden.items() if change <= LEAST]
        noisy = {case: change for case, change in hidden.items() if change > LEAST}
        open_ = []
        timed = sum(bool(_times(history)) for history in reading.histories) if reading.plan.for_s else 0
        if timed > len(enough):
            needs = next((number for number in range(FEWEST, MOST) if _would_show(number, timed)), MOST)
            what = f"drift of {plural(timed - len(enough), 'case')}"
            open_.append(NotJudged(what, "too few repeats to tell it from noise", f"{needs} repeats or more"))
        if noisy and not steady:
            open_.append(_too_noisy(noisy, times))
        findings = sorted(found.values(), key=lambda finding: (finding.severity == "note", finding.where))
        return Answer(tuple(findings), (_kept(steady, noisy),) if steady else (), tuple(open_))


def _repeats(history: History) -> list[Observation]:
    """In order, those on the same hosts: another host may take longer, and is no drift."""
    same = history.by_hosts[0].observations if history.observations else ()
    return sorted((seen for seen in same if seen.seconds), key=lambda observation: observation.repeat)


def _times(history: History) -> list[float]:
    """Seconds of an iteration in each repeat of a case, in order; none where one took no time."""
    times = [median(iteration_times(observation)) for observation in _repeats(history)]
    return times if all(time > 0 for time in times) else []


def _stretches(times: Sequence[float]) -> list[float]:
    """The same, of many repeats some and some together."""
    parts = min(len(times), MOST)
    bounds = [len(times) * part // parts for part in range(parts + 1)]
    return [median(times[begin:end]) for begin, end in pairwise(bounds)]


def _would_show(num_stretches: int, num_cases: int) -> bool:
    from clusterbench.cases.series import ALPHA, least_probability

    return least_probability(num_stretches) * num_cases < ALPHA


def _hidden(values: Sequence[float], num_cases: int) -> float:
    """The largest change from start to end that such a series may have and not show, all cases together."""
    from clusterbench.cases.series import ALPHA, slope_interval

    slopes = slope_interval([math.log(value) for value in values], ALPHA / num_cases)
    return max(abs(math.expm1(slope * (len(values) - 1))) for slope in slopes)


def _kept(repeats: Sequence[int], noisy: Mapping[str, float]) -> str:
    steady = (
        f"{plural(len(repeats), 'case')} of {min(repeats)} repeats or more kept their time within {100 * LEAST:.0f} %"
    )
    return f"{steady}; of {plural(len(noisy), 'other')} {_not_shown(noisy)}" if noisy else steady


def _not_shown(hidden: Mapping[str, float]) -> str:
    return f"a change of up to {100 * max(hidden.values()):.0f} % might not have shown"


def _too_noisy(hidden: Mapping[str, float], times: Mapping[str, Sequence[float]]) -> NotJudged:
    # The interval shrinks with the root of the number of repeats.
    excess = {case: math.log1p(change) / math.log1p(LEAST) for case, change in hidden.items()}
    wanted = max(math.ceil(max(1.1, excess[case]) ** 2 * len(times[case])) for case in hidden)
    takes = f"about {wanted} repeats" if wanted <= MOST_REPEATS else "a quieter machine"
    return NotJudged(f"drift of {plural(len(hidden), 'case')}", f"with this noise {_not_shown(hidden)}", takes)


def _finding(history: History, shift: Shift, values: Sequence[float], p: float) -> Finding:
    change, repeats = math.expm1(shift.log), _repeats(history)
    num_repeats = len(repeats)
    first_slow = repeats[num_repeats * shift.before // len(values)].repeat + 1
    where = f"from repeat {first_slow} of {history.num_repeats} on" if shift.kind == "step" else "more and more"
    what = f"{100 * abs(change):.0f} % {'slower' if change > 0 else 'faster'} {where}"
    first, last = (format_value(value, "s") for value in (values[0], values[-1]))
    evidence = (
        f"{first} an iteration at the beginning of {plural(num_repeats, 'repeat')}, {last} at their end; p {p:.1g} for "
        "all cases together"
    )
    return Finding(history.case.id, what, "warning" if change > 0 else "note", evidence, brief=what)
