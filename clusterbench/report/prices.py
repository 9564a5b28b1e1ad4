"""Measured steps beside their prices, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.cases import Reading
from clusterbench.cases.prices import PricedCase
from clusterbench.units import scale
from clusterbench.words import aligned, comment, plural

MOST = 20


def prices_text(reading: Reading) -> str:
    """Each training step as it was measured and as it was priced; empty where no rates were known."""
    return "\n".join(_lines(reading))


def _lines(reading: Reading) -> Iterator[str]:
    for why in reading.prices.unused:
        yield from comment(f"no step is priced: {why}", indent="  ")
    if not reading.prices.by_case:
        return
    rows = reading.rows_of("step_time")
    both = [
        (row.case, row.value, priced)
        for row in rows
        if row.value is not None and (priced := reading.prices.by_case.get(row.case)) is not None
    ]
    if not both:
        return
    of = scale("s", [value for _, value, _ in both])
    lines = [
        [case, *(of.text(seconds, 4) for seconds in (value, *_prices(priced))), f"{value / priced.price.step_s:.2f}"]
        for case, value, priced in both[:MOST]
    ]
    heads = ["case", "step", "priced", "from", "to", "measured"]
    yield from aligned(heads, lines, ["", *[f"({of.unit})"] * 4, "(x price)"])
    if len(both) > MOST:
        yield f"# {plural(len(both) - MOST, 'more case')}: rows.csv and the page"


def _prices(priced: PricedCase) -> tuple[float, float, float]:
    return priced.price.step_s, priced.price.low_s, priced.price.high_s
