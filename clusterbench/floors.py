"""What a suite may ask of a figure under ``at_least`` and ``at_most``, and what that comes to in a case.

Floors are judgements and no part of what is measured: a case with and without them is the same case.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from clusterbench.cluster import SHARES_OF_PEAK
from clusterbench.errors import nearest
from clusterbench.expectation import Expectation
from clusterbench.recorded import Recorded
from clusterbench.types import Expected, Floor, MetricKind, Side, split_key
from clusterbench.units import UNITS, format_value, parse_value
from clusterbench.words import short

Reference = Literal["expected", "typical", "baseline"]
"""What a floor may be a share of: what is expected of the case, what others published of this GPU, a baseline."""

SIDES: tuple[Side, ...] = get_args(Side)
_BETTER: Mapping[str, Side] = {"higher": "at_least", "lower": "at_most"}
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?) +of +([a-z]+)")
_BEST = "best "
_KEY = re.compile(r"([A-Za-z0-9_]+)(\[[a-z_]+=[^][,=]+(?:,[a-z_]+=[^][,=]+)*\])?")
_MOST = 100.0  # times a reference


@dataclass(frozen=True)
class AskedFloor:
    """A floor as a suite has it: a value of its own, or a share of a reference, of each case or of the best."""

    metric: str
    side: Side
    text: str
    unit: str
    value: float
    of: Reference | None = None
    line: int = 0
    best: bool = False


def read_floor(
    side: Side,
    metric: str,
    written: object,
    kinds: Collection[MetricKind],
    predicts: Collection[str],
    line: int = 0,
    has_choices: bool = False,
) -> AskedFloor:
    """A line under ``at_least`` or ``at_most``.

    Parameters
    ----------
    kinds
        Metrics of the benchmark.
    predicts
        Names of those that it may have an expectation of.
    has_choices
        Whether it has several ways to do the same work, of which one is the best.

    Raises
    ------
    ValueError
        With what was given, what is allowed and what to do about it.
    """
    match = _KEY.fullmatch(metric)
    names = {kind.name: kind for kind in kinds}
    if match is None or match[1] not in names:
        raise ValueError(f"no metric '{short(metric)}'.{nearest(metric, names)}\nMetrics: {', '.join(sorted(names))}.")
    kind, text = names[match[1]], " ".join(str(written).split())
    if not may_be_under(side, kind):
        right = _BETTER[kind.better]
        raise ValueError(
            f"'{kind.name}' under '{side}', but its better side is {kind.better}: write it under '{right}'."
        )
    if best := text.startswith(_BEST):
        text = text.removeprefix(_BEST)
        if not has_choices:
            raise ValueError(
                f"'{kind.name}: {_BEST}{short(text)}', but it has no two ways to do the same work, of which one is the "
                f"best: write '{short(text)}'."
            )
    if share := _SHARE.fullmatch(text):
        asked = _share(side, metric, kind, text, float(share[1]), share[2], predicts, line)
        return replace(asked, best=best)
    is_plain = isinstance(written, (str, int, float)) and not isinstance(written, bool)
    try:
        value = parse_value(text if is_plain else "", kind.unit)
    except ValueError as error:
        raise ValueError(
            f"'{kind.name}: {short(text)}', which is in {UNITS[kind.unit]}: write {error}, or a share such as "
            f"'0.8 of {'expected' if kind.name in predicts else 'baseline'}'."
        ) from None
    return AskedFloor(metric, side, text, kind.unit, value, None, line, best)


def may_be_under(side: Side, kind: MetricKind) -> bool:
    """Whether a metric may be asked for there: under its better side, or under both where it has none."""
    return _BETTER.get(kind.better, side) == side


def _share(
    side: Side, metric: str, kind: MetricKind, text: str, share: float, of: str, predicts: Collection[str], line: int
) -> AskedFloor:
    if not 0 < share <= _MOST:
        raise ValueError(f"'{kind.name}: {text}': the share must be above 0 and at most {_MOST:g}.")
    if of == "expected" and kind.name not in predicts:
        has = f"it has one of {', '.join(sorted(predicts))}" if predicts else "it has none of any metric"
        raise ValueError(f"'{kind.name}: {text}', but it has no expectation of that metric: {has}.")
    for reference in get_args(Reference):
        if of == reference:
            return AskedFloor(metric, side, text, kind.unit, share, reference, line)
    references = get_args(Reference)
    raise ValueError(f"'{kind.name}: {text}': a share is one of {', '.join(references)}.{nearest(of, references)}")


def floors_of(
    asked: AskedFloor,
    expected: Mapping[str, Expected],
    typical: Mapping[str, Expectation],
    baseline: Mapping[str, Recorded],
    of_baseline: str,
    machine: str,
    has_other_peak: bool = False,
) -> Iterator[Floor]:
    """What a floor comes to in one case: one for each figure that it is a share of.

    Parameters
    ----------
    expected, typical, baseline
        What is known of the case's figures, by key; ``of_baseline`` is the name of the file or run.
    machine
        In words, for the reason where nothing is known.
    has_other_peak
        Whether the baseline is of a device whose peak is another, or may be: shares of it say nothing here.
    """
    if asked.of is None:
        yield Floor(
            asked.metric,
            asked.side,
            asked.text,
            asked.unit,
            asked.value,
            basis="the suite's own figure",
            best=asked.best,
        )
        return
    references = {
        "expected": {key: (what.value, 0.0, what.basis) for key, what in expected.items()},
        "typical": {key: (what.value, 0.0, what.source) for key, what in typical.items()},
        "baseline": {
            key: (known.value, recorded.doubt, known.source)
            for key, recorded in baseline.items()
            if (known := recorded.expectation) is not None
        },
    }[asked.of]
    is_of_another = asked.of == "baseline" and has_other_peak and split_key(asked.metric)[0] in SHARES_OF_PEAK
    if is_of_another:
        references = {}
    meant = {key: reference for key, reference in references.items() if is_meant(asked.metric, key)}
    if not meant:
        why = {
            "expected": f"nothing is expected of it on {machine}",
            "typical": f"no published figure of it on {machine} is on record",
            "baseline": f"{of_baseline} has it as a share of another device's peak; ask for tokens_per_s instead"
            if is_of_another
            else f"{of_baseline} has no such figure of this case",
        }[asked.of]
        yield Floor(asked.metric, asked.side, asked.text, asked.unit, None, basis=why, best=asked.best)
    for key, (value, doubt, basis) in meant.items():
        bound, about = asked.value * value, f"{format_value(value, asked.unit)}: {basis}"
        yield Floor(key, asked.side, asked.text, asked.unit, bound, asked.value * doubt, about, asked.best)


def is_meant(asked: str, key: str) -> bool:
    """Whether the figure ``key`` is one that ``asked`` means: a name alone means every figure of that name.

    >>> is_meant("busbw", "busbw[axis=tp]"), is_meant("busbw[axis=tp]", "busbw")
    (True, False)
    """
    (name, detail), (other, its_detail) = split_key(asked), split_key(key)
    return name == other and detail.items() <= its_detail.items()
