"""Every case as one line of a table: columns of plain values, which the page sorts, filters and pages through."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar
from urllib.parse import quote

from clusterbench.cases import Reading
from clusterbench.cases.trained import TOTAL_MEMORY
from clusterbench.layout import FOLLOWS_LAYOUT
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.shape import OWN_SHAPE
from clusterbench.types import Case, Point
from clusterbench.units import UNITS, digits, format_value, scale

Value = TypeVar("Value")

FIRST_PAGE = 50
MOST_METRICS = 14
MOST_OPTIONS = 6
MOST_FIGURES = 20_000
"""Beyond this many rows the page holds one line a case, and the rest is in rows.csv."""

MOST_SAMPLED, MOST_SAMPLES = 2_000, 200
"""Cases up to which the page holds samples, and how many of each case."""

# Said by the flags 'unstable' and 'not settled' instead; and what a textbook's algorithm would take, which no case has
# measured.
_NO_COLUMN = ("", "time_cv", "time_max_over_median", "warm_up_drift", "model_latency")


@dataclass(frozen=True)
class CaseColumn:
    """``kind`` is ``text``, ``status`` or ``number``; numbers are scaled to ``unit`` and cut to the digits that
    count. What ``describes`` cases is told by their names, too: a narrow screen has room for figures only."""

    name: str
    unit: str
    kind: str
    values: list[Any]
    describes: bool = False

    def text(self, line: int) -> str:
        value = self.values[line]
        if value is None:
            return ""
        if self.kind == "status":
            return str(value).replace("_", " ")
        return digits(value) if self.kind == "number" else str(value)

    def packed(self) -> dict[str, Any]:
        """For the page."""
        return {"name": self.name, "unit": self.unit, "kind": self.kind, **packed(self.values, self.kind == "number")}


def packed(values: Sequence[Any], are_numbers: bool) -> dict[str, Any]:
    """Values as the page's script reads them: words that come again and again are sent once, and numbers into them.

    >>> packed(["ok", "ok", "failed", "ok", "ok"], False), packed([1.0, math.nan, None], True)
    ({'words': ['ok', 'failed'], 'values': [0, 0, 1, 0, 0]}, {'values': [1.0, None, None]})
    """
    if are_numbers:
        return {"values": [None if value is None or not math.isfinite(value) else value for value in values]}
    values = [value if _is_plain(value) else str(value) for value in values]
    words = list(dict.fromkeys(values))
    if len(words) * 2 < len(values):
        index = {word: number for number, word in enumerate(words)}
        return {"words": words, "values": [index[value] for value in values]}
    return {"values": values}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def columns(reading: Reading, most: int | None = None) -> list[CaseColumn]:
    """One value per case in each column, in the order of the plan; of the first ``most`` of them."""
    histories = reading.histories[:most]
    lines = [reading.by_case.get(history.case.id, []) for history in histories]
    flags = [_flag(history, rows, reading) for history, rows in zip(histories, lines, strict=True)]
    candidates = [
        CaseColumn("case", "", "text", [history.case.id for history in histories]),
        CaseColumn("outcome", "", "status", [*map(_outcome, histories)]),
        CaseColumn("note", "", "text", flags),  # beside the outcome: behind all figures it is beyond the edge
        CaseColumn(
            "layout",
            "",
            "text",
            [history.case.layout or history.case.point.get("layout") for history in histories],
            True,
        ),
        CaseColumn("nodes", "", "number", [history.case.num_nodes for history in histories], True),
        CaseColumn("ranks", "", "number", [history.case.world_size for history in histories], True),
        *_options(histories),
        *_metrics(lines, _priced(histories, reading)),
    ]
    return [column for column in candidates if column.name in ("case", "outcome", "ranks") or _says_something(column)]


def _says_something(column: CaseColumn) -> bool:
    return len(set(column.values)) > 1 if column.name == "nodes" else any(value is not None for value in column.values)


def details(reading: Reading) -> list[dict[str, Any]] | None:
    """What unfolds below a line: how the case went and every figure of it; None when there are too many."""
    if len(reading.rows) > MOST_FIGURES:
        return None
    by_case: dict[str, list[list[str]]] = defaultdict(list)
    for row in reading.rows:
        if row.metric:
            by_case[row.case].append(_figure(row))
    are_sampled = len(reading.histories) <= MOST_SAMPLED
    return [
        {
            "about": list(_about(history)),
            "figures": by_case.get(history.case.id, []),
            "samples": _samples(history) if are_sampled and history.observations else None,
        }
        for history in reading.histories
    ]


def _samples(history: History) -> dict[str, Any]:
    """The time of each iteration, from its slowest rank, for each repeat: the first of them, and what they come to."""
    repeats = [(observation.repeat, iteration_times(observation)) for observation in history.observations]
    of = scale("s", [time_s for _, times_s in repeats for time_s in times_s])
    most = max(1, MOST_SAMPLES // len(repeats))
    return {
        "unit": of.unit,
        "repeats": [
            {
                "repeat": repeat + 1,
                "count": len(times_s),
                "summary": [of.text(value) for value in (min(times_s), median(times_s), max(times_s))],
                "values": [_cut(of(time_s)) for time_s in times_s[:most]],
            }
            for repeat, times_s in repeats[:MOST_SAMPLES]
        ],
    }


def case_link(case: str, places: Mapping[str, int]) -> str:
    """Where the page shows a case; nothing where it has no line of its own, because it was refused."""
    return f"#case={quote(case, safe='/+=,.')}" if case in places else ""


def _figure(row: Row) -> list[str]:
    detail = ", ".join(row.detail.values())
    spread = f"{_text(row.low, row.unit)} – {_text(row.high, row.unit)}" if row.low is not None else ""
    name = f"{row.metric} ({detail})" if detail else row.metric
    return [name, _text(row.value, row.unit), spread, _text(row.expected, row.unit), row.basis]


def _about(history: History) -> Iterator[tuple[str, str]]:
    case = history.case
    if case.source:
        yield "asked for at", case.source
    yield "identity", case.hash
    options = ", ".join(f"{name} {value}" for name, value in case.point.items() if value is not None)
    if options:
        yield "options", options
    if case.environment:
        yield "environment", " ".join(f"{name}={value}" for name, value in case.environment.items())
    for outcome in history.outcomes:
        where = f" · rank {outcome.rank}" if outcome.rank is not None else ""
        where += f" · {outcome.host}" if outcome.host else ""
        where += f" · {outcome.phase}" if outcome.phase and outcome.status != "ok" else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        took = f" · {outcome.elapsed_s:.1f} s" if outcome.elapsed_s else ""
        name = f"repeat {outcome.repeat + 1}, attempt {outcome.attempt}"
        yield name, f"{outcome.status.replace('_', ' ')}{where}{took}{why}"
    if history.observations:
        yield "samples of every rank", f"observations.jsonl, the lines with identity {case.hash}"
    for log in dict.fromkeys(outcome.log for outcome in history.outcomes if outcome.log):
        yield "log", log


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit in ("1", "fraction") and 0 < abs(value) < 1e-3:
        return f"{value:.1e}"  # parity deviations
    return format_value(value, unit) if unit in UNITS else f"{digits(value)} {unit}"


def _options(histories: Sequence[History]) -> Iterator[CaseColumn]:
    """Options that differ between cases of one benchmark: what the suite sweeps."""
    points: dict[str, list[Point]] = defaultdict(list)
    for history in histories:
        points[history.case.benchmark].append(_told(history.case))
    silent = FOLLOWS_LAYOUT | {OWN_SHAPE}  # the option shape has the name
    names = dict.fromkeys(name for history in histories for name in _told(history.case) if name not in silent)
    swept = [
        name
        for name in names
        if any(len({point[name] for point in own if name in point}) > 1 for own in points.values())
    ]
    options = {name: [history.case.point.get(name) for history in histories] for name in swept}
    for name, values in _of_many(options, MOST_OPTIONS):
        numbers = all(value is None or type(value) in (int, float) for value in values)
        yield CaseColumn(name, "B" if name.endswith("_bytes") else "", "number" if numbers else "text", values, True)


def _told(case: Case) -> Point:
    """The options of a case but for one that only repeats the number of ranks, which has its column already."""
    if case.point.get("num_ranks") != case.world_size:
        return case.point
    return {name: value for name, value in case.point.items() if name != "num_ranks"}


def _priced(histories: Sequence[History], reading: Reading) -> list[float | None]:
    """Seconds that the step of each case should have taken; nothing where no rates were known."""
    by_case = reading.prices.by_case
    prices = [by_case.get(history.case.id) for history in histories] if by_case else []
    return [None if of_case is None else of_case.price.step_s for of_case in prices]


def _metrics(lines: Sequence[Sequence[Row]], priced: Sequence[float | None]) -> Iterator[CaseColumn]:
    units: dict[str, str] = {}
    figures: dict[str, list[float | None]] = {}
    for line, rows in enumerate(lines):
        for row in rows:
            values = figures.get(row.metric)
            if values is not None and values[line] is not None:
                continue  # the first stands
            if row.metric in _NO_COLUMN or row.value is None or not math.isfinite(row.value) or not _is_headline(row):
                continue
            if values is None:
                values = figures[row.metric] = [None] * len(lines)
            units[row.metric] = row.unit
            values[line] = row.value
    kept = _of_many(figures, MOST_METRICS)
    rates = [value for name, values in kept if units[name] == "B/s" for value in values if value is not None]
    for name, values in kept:
        # One unit for all rates of bytes: columns of algbw and busbw are compared with each other.
        alike = rates if units[name] == "B/s" else [value for value in values if value is not None]
        of = scale(units[name], alike)
        if of.unit == "" and name.startswith("parity"):
            yield CaseColumn(name, "", "number", [None if v is None else float(f"{v:.1e}") for v in values])
        else:
            yield CaseColumn(name, of.unit, "number", [None if v is None else _cut(of(v)) for v in values])
        if name == "step_time" and priced:
            yield CaseColumn("priced", of.unit, "number", [None if v is None else _cut(of(v)) for v in priced])


def _of_many(columns: Mapping[str, list[Value]], most: int) -> list[tuple[str, list[Value]]]:
    """The first columns; where they are too many to read, without those that fewer than a quarter have a value for.

    A suite of many benchmarks would else be mostly empty cells. Nothing is lost: it is below each line and in rows.csv.
    """
    kept = list(columns.items())
    if len(kept) > most // 2:
        kept = [
            (name, values) for name, values in kept if sum(value is not None for value in values) * 4 >= len(values)
        ]
    return kept[:most]


def _is_headline(row: Row) -> bool:
    """One figure a metric and case: the whole rather than a part, the first rather than another convention."""
    if row.metric == "peak_memory":
        return row.detail.get("category", "") in TOTAL_MEMORY
    return "axis" not in row.detail and "category" not in row.detail


def _cut(value: float) -> float | int:
    """The digits that are shown and no more, so that the page stays small."""
    cut = float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    return int(cut) if cut == int(cut) else cut


def _outcome(history: History) -> str:
    """How a case ended; that the suite expects it is no failure."""
    is_expected = history.status != "ok" and history.status in history.case.expected_outcomes
    return f"{history.status}_as_expected" if is_expected else history.status


def _flag(history: History, rows: Sequence[Row], reading: Reading) -> str | None:
    if history.pooled is None:
        return rows[0].basis[:300] if rows else None
    flags = []
    if history.case.id in reading.unsteady:
        flags.append("unstable")
    if history.case.id in reading.unsettled:
        flags.append("not settled")
    if len(history.faults):
        flags.append(f"{len(history.faults)} of {history.num_repeats} repeats ended badly")
    elif any(outcome.status != "ok" for outcome in history.outcomes):
        flags.append("an earlier attempt failed")
    return ", ".join(flags) or None


def facts(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested record as flat pairs, for the environment."""
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from facts(value, f"{name} · ")
        elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
            yield from facts({str(number): item for number, item in enumerate(value)}, f"{name} · ")
        elif value not in (None, "", [], {}):
            yield name, ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
