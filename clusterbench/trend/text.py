"""A trend for a terminal, and as an object of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterbench.cases.series import ALPHA
from clusterbench.errors import SuiteError
from clusterbench.trend import Course, Trend
from clusterbench.units import format_value
from clusterbench.words import aligned, comment, few, plural

HEADER = ("case", "figure", "verdict", "what", "change", "first", "last", "runs", "p")


def as_text(trend: Trend) -> str:
    """The verdict, the worst first; behind the table, what each step came with and what is not judged."""
    shown = [*trend.of("worse"), *trend.of("better")]
    lines = [*comment(summary(trend), indent="  ")]
    if shown:
        lines += aligned(HEADER, [_row(course, trend) for course in shown])
    for course in shown:
        if course.between is not None:
            lines += comment(_about_step(course, trend), indent="  ")
    for note in _notes(trend):
        lines += comment(note, indent="  ")
    return "\n".join(lines)


def summary(trend: Trend) -> str:
    counts = {verdict: len(trend.of(verdict)) for verdict in ("worse", "better", "steady", "too few runs")}
    first = "WORSE" if counts["worse"] else "NOTHING SHOWN TO BE WORSE" if trend.is_judged else "NOTHING JUDGED"
    told = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items() if count)
    figures = plural(len(trend.courses), "figure")
    since = f"{trend.started[0]} to {trend.started[-1]}"
    in_runs = f"in {len(trend.runs)} runs, {since}. Of {figures}: {told}."
    if trend.broken:
        cases = f"{plural(len(trend.broken), 'case')} ended badly in the last run that ran before: {few(trend.broken)}"
        return f"WORSE: {cases}; {first.lower()} by {trend.threshold:.1%} or more {in_runs}"
    return f"{first} by {trend.threshold:.1%} or more {in_runs}" if trend.is_judged else f"{first} {in_runs}"


def _row(course: Course, trend: Trend) -> list[str]:
    series = course.series
    return [
        series.case,
        series.key,
        course.verdict(trend.threshold),
        str(course.what),
        f"{course.change:+.1%}",
        format_value(series.values[0], series.kind.unit),
        format_value(series.values[-1], series.kind.unit),
        str(len(series.runs)),
        f"{course.p:.2g}",
    ]


def _about_step(course: Course, trend: Trend) -> str:
    assert course.between is not None
    before, after = (trend.runs[number] for number in course.between)
    where = f"{course.series.key} of {course.series.case}: {course.change:+.1%} between {before} and {after}"
    return f"{where}: {'; '.join(course.changed)}"


def _at_last(course: Course) -> str:
    *_, before, last = course.series.values
    return f"{course.series.key} of {course.series.case} ({last / before - 1:+.1%})"


def _notes(trend: Trend) -> Iterator[str]:
    if few_runs := trend.of("too few runs"):
        yield (
            f"{plural(len(few_runs), 'figure')} with too few runs: of so many figures, not "
            f"even the clearest step would be shown at {ALPHA:g}. Name more runs."
        )
    if worse := trend.worse_at_last:
        before, last = trend.runs[-2:]
        yield (
            f"the last run alone is worse than all before it, which is no step yet: {few(list(map(_at_last, worse)))}. "
            f"Hold it against an earlier one: clusterbench compare {before} {last}"
        )
    if trend.short:
        yield f"of fewer than 5 runs, so not judged: {few([f'{each.key} of {each.case}' for each in trend.short])}"
    if trend.left_out:
        yield f"left out: {few(trend.left_out)}"


def write_json(trend: Trend, path: Path) -> None:
    """Everything that was found into a file.

    Raises
    ------
    SuiteError
        If it cannot be written.
    """
    try:
        path.write_text(json.dumps(as_json(trend), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SuiteError(f"--json {path} cannot be written: {error.strerror}.") from None


def as_json(trend: Trend) -> dict[str, Any]:
    return {
        "threshold": trend.threshold,
        "alpha": ALPHA,
        "runs": [{"run": run, "started": at} for run, at in zip(trend.runs, trend.started, strict=True)],
        "figures": [_as_json(course, trend) for course in trend.courses],
        "not_judged": [{"case": each.case, "figure": each.key, "runs": len(each.runs)} for each in trend.short],
        "left_out": list(trend.left_out),
        "broken": list(trend.broken),
    }


def _as_json(course: Course, trend: Trend) -> dict[str, Any]:
    series = course.series
    return {
        "case": series.case,
        "figure": series.key,
        "unit": series.kind.unit,
        "verdict": course.verdict(trend.threshold),
        "what": course.what,
        "change": course.change if course.is_shown else None,
        "p": course.p,
        "between": None if course.between is None else [trend.runs[number] for number in course.between],
        "changed": list(course.changed),
        "values": [[trend.runs[number], value] for number, value in zip(series.runs, series.values, strict=True)],
    }
