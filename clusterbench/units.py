"""Sizes as people write them, values as people read them, and one unit for a whole column or axis.

Inside, everything is in base units; this is the edge. Sizes are binary (MiB is 2**20 bytes), rates are decimal (GB/s is
1e9 bytes per second), as in nccl-tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

UNITS: dict[str, str] = {
    "s": "seconds",
    "B": "bytes",
    "B/s": "bytes per second",
    "FLOP": "floating-point operations",
    "FLOP/s": "floating-point operations per second",
    "tokens": "tokens",
    "tokens/s": "tokens per second",
    "fraction": "a part of one",
    "1": "a count",
    "1/s": "a count per second",
    "J": "joules",
    "W": "watts",
    "Hz": "clock cycles per second",
    "C": "degrees Celsius",
}

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_DECIMAL = ("KB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_TIME_OF_DAY = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d)(?::([0-5]\d))?")
_SIZE_HELP = "Write a whole number of bytes, or one with a unit: 8B, 64KiB, 1MiB, 4GiB."


SIZE_FORM = rf"\s*(?:[0-9]+(?:\.[0-9]+)?) ?(?:{'|'.join(_BINARY)})?\s*"
TIME_FORM = f"{_TIME.pattern}|{_TIME_OF_DAY.pattern}"
"""What :func:`parse_bytes` and :func:`parse_time` read, as patterns that other programs can hold a text against."""


def parse_bytes(text: str | int) -> int:
    """Bytes in a size, exact.

    Raises
    ------
    ValueError
        If it is not a size, is not a whole number of bytes, or has a unit that is decimal (MB) or read both ways (M):
        nccl-tests' ``1M`` is 2**20 and a disk's is 1e6.

    Examples
    --------
    >>> parse_bytes("64KiB"), parse_bytes("1.5MiB"), parse_bytes(4096)
    (65536, 1572864, 4096)
    """
    if isinstance(text, bool):
        raise ValueError(f"{text} is not a size. {_SIZE_HELP}")
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"{text} is not a size: it is negative. {_SIZE_HELP}")
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a size. {_SIZE_HELP}")
    number, unit = match.groups()
    unit = unit or "B"
    if unit not in _BINARY:
        raise ValueError(f"'{text}' is not a size: {_unit_hint(number, unit)}")
    whole, _, decimals = number.partition(".")
    numerator = int(whole + decimals) * _BINARY[unit]
    denominator: int = 10 ** len(decimals)
    size, rest = divmod(numerator, denominator)
    if rest:
        raise ValueError(f"'{text}' is not a whole number of bytes. {_SIZE_HELP}")
    return size


def _unit_hint(number: str, unit: str) -> str:
    folded = {name.lower(): name for name in _BINARY}
    if unit.lower() in folded:
        return f"write '{number}{folded[unit.lower()]}'."
    if f"{unit.upper()}iB" in _BINARY:
        binary = f"{unit.upper()}iB"
        return f"'{unit}' is read both ways; write '{number}{binary}' for {number} x {_BINARY[binary]} bytes."
    if unit.upper() in _DECIMAL:
        return f"sizes are binary here; write '{number}{unit[0].upper()}iB', or the number of bytes."
    return f"unknown unit '{unit}'. {_SIZE_HELP}"


def format_bytes(size_bytes: float) -> str:
    """A size in the largest binary unit that keeps it at 1 or more; exact powers have no decimals.

    >>> format_bytes(65536), format_bytes(85899345920), format_bytes(1000)
    ('64KiB', '80GiB', '1000B')
    >>> format_bytes(1.5e9)
    '1.40GiB'
    """
    magnitude = abs(size_bytes)
    unit = "B"
    for name, size in _BINARY.items():  # from small to large
        if size > magnitude:
            break
        unit = name
    if unit == "KiB" and magnitude % 2**10 and magnitude < 10_000:
        unit = "B"
    scaled = size_bytes / _BINARY[unit]
    return f"{scaled:.0f}{unit}" if scaled == int(scaled) else f"{scaled:.2f}{unit}"


def format_value(value: float, unit: str) -> str:
    """A value of a row as a person reads it; the inverse of nothing, for tables and messages only.

    Parameters
    ----------
    value
        In base units.
    unit
        One of ``UNITS``.

    Raises
    ------
    ValueError
        If the unit is not one a row may have.

    Examples
    --------
    >>> format_value(375.8e9, "B/s"), format_value(0.00123, "s"), format_value(0.4099, "fraction")
    ('375.8 GB/s', '1.230 ms', '41.0 %')
    >>> format_value(989e12, "FLOP/s"), format_value(40150, "tokens/s")
    ('989.0 TFLOP/s', '40,150 tokens/s')
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit '{unit}'. Known: {', '.join(UNITS)}.")
    if math.isnan(value) or math.isinf(value):
        return f"{value} {unit}".removesuffix(" 1")
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return _seconds(value)
    if unit == "B/s":
        return _rate(value, "B/s")
    if unit in ("FLOP", "FLOP/s", "Hz"):
        return _rate(value, unit)
    if unit == "tokens/s":
        return f"{value:,.0f} tokens/s" if abs(value) >= 100 else f"{value:.3g} tokens/s"
    if unit == "fraction":
        return f"{100 * value:.1f} %"
    if unit == "1/s":
        return _rate(value, "/s")
    if unit == "1":
        return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
    if unit == "J" and abs(value) < 10:
        return f"{value:.3g} J"  # of a token
    return f"{value:.1f} °C" if unit == "C" else f"{value:,.1f} {unit}"


_WRITTEN: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "B/s": {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0},
    "FLOP": {"TFLOP": 1e12, "GFLOP": 1e9, "FLOP": 1.0},
    "FLOP/s": {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GFLOP/s": 1e9, "FLOP/s": 1.0},
    "Hz": {"GHz": 1e9, "MHz": 1e6, "Hz": 1.0},
    "fraction": {"%": 0.01, "": 1.0},
    "1": {"": 1.0},
    "1/s": {"M/s": 1e6, "k/s": 1e3, "/s": 1.0},
}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?) ?(\D*)")


def parse_value(text: str, unit: str) -> float:
    """What a person wrote for a figure of this unit, in base units.

    Raises
    ------
    ValueError
        If it is no number of 0 or more with one of the unit's forms; the message names them.

    Examples
    --------
    >>> parse_value("200 GB/s", "B/s"), parse_value("3 ms", "s"), parse_value("40 %", "fraction")
    (200000000000.0, 0.003, 0.4)
    >>> parse_value("200 GB", "B/s")
    Traceback (most recent call last):
    ValueError: a number with TB/s, GB/s, MB/s, kB/s or B/s
    """
    if unit == "B":
        try:
            return float(parse_bytes(text))
        except ValueError:
            raise ValueError("a size such as 64MiB") from None
    forms = _WRITTEN.get(unit, {unit: 1.0})
    match = _WITH_UNIT.fullmatch(text.strip())
    if match is None or match[2] not in forms:
        named = [form for form in forms if form]
        words = f"{', '.join(named[:-1])} or {named[-1]}" if len(named) > 1 else "".join(named)
        bare = " or without a unit" if "" in forms and named else ""
        raise ValueError(f"a number with {words}{bare}" if named else "a number without a unit")
    return float(match[1]) * forms[match[2]]


def parse_time(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``30m``, ``2h``, ``1d``, and of ``1:30:00`` as batch systems write it.

    Raises
    ------
    ValueError
        If it is none of these, or less than a second; the message follows the name of what was given.

    >>> parse_time("1.5h"), parse_time("1:30:00"), parse_time("2-00:00"), parse_time("5:00")
    (5400.0, 5400.0, 172800.0, 300.0)
    """
    if match := _TIME.fullmatch(text):
        seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]
    elif match := _TIME_OF_DAY.fullmatch(text):
        days, first, second, third = (int(part or 0) for part in match.groups())
        hours_first = match[4] is not None or match[1] is not None
        seconds = days * 86_400.0 + (first * 3600 + second * 60 + third if hours_first else first * 60 + second)
    else:
        raise ValueError(f"must be a time such as 90s, 30m, 2h or 1:30:00, not {text!r}")
    if seconds < 1:
        raise ValueError(f"must be one second or more, not {text!r}")
    return seconds


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes where that is enough.

    >>> duration(0.4), duration(75), duration(3 * 3600 + 120)
    ('0:00', '1:15', '3:02 h')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 60}:{whole % 60:02d}"


def _seconds(time_s: float) -> str:
    magnitude = abs(time_s)
    if magnitude == 0:
        return "0 s"
    if magnitude < 1e-3:
        return f"{time_s * 1e6:.2f} us"
    if magnitude < 1:
        return f"{time_s * 1e3:.3f} ms"
    return f"{time_s:.3f} s" if magnitude < 100 else f"{time_s:,.1f} s"


def _rate(value: float, unit: str) -> str:
    """Decimal prefixes; bytes stop at GB/s, because links are compared in it."""
    prefixes = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
    if unit == "B/s":
        prefixes = {"G": 1e9, "M": 1e6, "k": 1e3}
    if unit == "FLOP/s":
        prefixes.pop("P")  # peaks are quoted in TFLOP/s
    for prefix, factor in prefixes.items():
        if abs(value) >= factor:
            decimals = 2 if (prefix, unit) == ("G", "Hz") else 1  # GPUs that differ do so by tens of MHz
            return f"{value / factor:,.{decimals}f} {prefix}{unit}"
    return f"{value:,.0f} {unit}" if value == int(value) else f"{value:.4g} {unit}"


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


def quotient(number: int, by: int) -> str:
    """Of what does not divide, so that it does not look whole.

    >>> quotient(32, 3), quotient(8, 3), quotient(32003, 4), quotient(1, 2)
    ('10.67', '2.667', '8000.75', '0.5')
    """
    value = number / by
    return f"{value:.{4 if value < 100 else len(str(number // by)) + 3}g}"


def divisors(number: int) -> list[int]:
    """In order, with 1 and the number.

    >>> divisors(12), divisors(1), divisors(9)
    ([1, 2, 3, 4, 6, 12], [1], [1, 3, 9])
    """
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
