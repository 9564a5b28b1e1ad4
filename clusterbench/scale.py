"""One unit for a whole column or axis, so that figures in it can be compared by eye."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_STEPS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "FLOP": ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz")),
    "fraction": ((0.01, "%"),),
    "1": ((1.0, ""),),
}


@dataclass(frozen=True)
class Scale:
    """Divide by ``divisor`` and write ``unit`` over the column."""

    divisor: float
    unit: str

    def __call__(self, value: float) -> float:
        return value / self.divisor

    def text(self, value: float, count: int = 4) -> str:
        """The value as a person reads it, without its unit: ``count`` digits that count, thousands apart.

        >>> Scale(1e9, "GB/s").text(375.84e9), Scale(1.0, "tokens/s").text(40150), Scale(1.0, "").text(0)
        ('375.8', '40,150', '0')
        """
        return digits(value / self.divisor, count)


def scale(unit: str, values: Iterable[float]) -> Scale:
    """The unit in which the largest of ``values`` is at least 1, or the smallest unit there is.

    >>> scale("s", [0.012, 0.4]), scale("B", [3 * 2**30])
    (Scale(divisor=0.001, unit='ms'), Scale(divisor=1073741824.0, unit='GiB'))
    """
    steps = _STEPS.get(unit, ((1.0, unit),))
    largest = max((abs(value) for value in values), default=0.0)
    fitting = [step for step in steps if largest >= step[0]]
    return Scale(*(fitting[0] if fitting else steps[-1]))


def digits(value: float, count: int = 4) -> str:
    """``count`` digits that count, and no exponent where a person would not write one.

    >>> digits(1629.96), digits(12.3456), digits(0.00012345), digits(3.0), digits(2.5e-9)
    ('1,630', '12.35', '0.0001234', '3', '2.5e-09')
    """
    if value != value or abs(value) == float("inf"):
        return str(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.{count}g}"
    return f"{value:.7f}".rstrip("0") if "e-" in text and abs(value) >= 1e-4 else text
