from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterbench.cases import Reading
from clusterbench.cases.parts import parts_of
from clusterbench.cases.prices import PartOff, PricedCase, parts_off
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.formulas.attribution import Part
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import few, plural

_ON_IT = "that were measured on this machine: clusterbench calibrate RUN, docs/prediction.md"
_TAKES = f"rates {_ON_IT}"


class SlowerThanExpected(Diagnosis):
    """Training steps that take longer than rates measured on this machine allow.

    What it looks for
    -----------------
    Steps whose time, noise taken off, is above the one-sided bound of 99 % of their price, where the run has rates that
    were measured on this machine or calibrated by runs of it: rates.yaml, or report --rates. A price that rests on
    figures of datasheets or of other machines is shown beside the time and not judged, and so is one of parallelisms of
    which no price was ever held against a measurement. Where a traced step was recorded, its parts are held against
    those of the price, and the one that is farthest off is named.

    Why it matters
    --------------
    All ranks of a step may be slow alike, so that none is slower than its peers, and a slow layout looks like any other
    layout. The rates say what this machine did before.

    How to confirm
    --------------
    Run the case again, and one of the layouts by which the rates were calibrated: if that is slow, too, the machine has
    changed; if not, the layout has a cost that the price does not know.

    What usually fixes it
    ---------------------
    More computing than priced: clocks, power limit, heat, or another build of kernels. More communication: a link that
    is down, a network shared with others, another NCCL. More of the rest: cores too slow or too busy to launch kernels.
    Where nothing is wrong with the machine, a new calibration that has such a layout in it.
    """

    def answer(self, reading: Reading) -> Answer:
        prices = reading.prices.by_case
        measured = [row for row in reading.rows_of("step_time") if row.value is not None and row.case in prices]
        judged = [row for row in measured if prices[row.case].is_judged]
        parts = parts_of(reading.rows_of("step_part"), "step_part")
        slow = sorted((row for row in judged if _is_slow(row, prices[row.case])), key=lambda row: -_over(row, prices))
        within = len(judged) - len(slow)
        healthy = (f"{plural(within, 'step')} within the 99 % bound of their price",) if within else ()
        return Answer(
            tuple(_finding(row, prices[row.case], parts.get(row.case, {})) for row in slow),
            healthy,
            (*_doubted(measured, prices), *_unpriced(reading)),
        )


def _is_slow(row: Row, of_case: PricedCase) -> bool:
    return row.interval[0] > of_case.price.limit_s


def _over(row: Row, prices: Mapping[str, PricedCase]) -> float:
    assert row.value is not None
    return row.value / prices[row.case].price.limit_s


def _finding(row: Row, of_case: PricedCase, measured: Mapping[Part, float]) -> Finding:
    assert row.value is not None
    price = of_case.price
    slower = f"{100 * (row.value / price.step_s - 1):.0f} % slower than priced"
    what = (
        f"{format_value(row.value, 's')}, {slower}: {format_value(price.step_s, 's')}, and 99 % of steps are shorter "
        f"than {format_value(price.limit_s, 's')}"
    )
    off = parts_off(price, measured)
    return Finding(row.case, what, "warning", f"{_wrong_part(off, measured)}; {of_case.basis}", brief=slower)


def _wrong_part(off: Sequence[PartOff], measured: Mapping[Part, float]) -> str:
    """``communication took 2 s, priced 0.5 s (tp 1.5 s, dp 0.5 s)``, of the part that is longer than priced by most."""
    if not off:
        return "which part is longer is not known: no step was traced"
    worst = max(off, key=lambda part: part.off_s)
    axes = {axis: seconds for (_, axis), seconds in measured.items() if axis and seconds}
    each = ", ".join(f"{axis} {format_value(seconds, 's')}" for axis, seconds in axes.items())
    along = f" ({each})" if worst.name == "communication" and each else ""
    took, priced = format_value(worst.measured_s, "s"), format_value(worst.priced_s, "s")
    return f"the part that is longer by most is {worst.name}: {took}{along}, priced {priced}"


def _doubted(measured: Iterable[Row], prices: Mapping[str, PricedCase]) -> Iterator[NotJudged]:
    """Prices that are shown and not judged, with all their reasons."""
    doubted = [of_case for row in measured if not (of_case := prices[row.case]).is_judged]
    if not doubted:
        return
    rates = dict.fromkeys(name for of_case in doubted for name in of_case.price.unmeasured)
    why = [f"their prices rest on {', '.join(rates)}, not measured on this machine"] if rates else []
    why += dict.fromkeys(doubt for of_case in doubted for doubt in of_case.doubts)
    takes = f"rates of {few([*rates], 3)} {_ON_IT}" if rates else _TAKES
    yield NotJudged(f"{plural(len(doubted), 'step')} against their price", "; ".join(why), takes)


def _unpriced(reading: Reading) -> Iterator[NotJudged]:
    reasons = reading.prices.reasons
    if reasons:
        why = "; ".join(dict.fromkeys(reasons.values()))
        yield NotJudged(f"{plural(len(reasons), 'step')} without a price", why, "a step that can be priced")
    for why in reading.prices.unused:
        yield NotJudged("steps against their price", why, _TAKES)
