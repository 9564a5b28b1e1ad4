"""A baseline as a file: a line of JSON for the file, for each machine, and for each figure of the machine before it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from clusterbench.baseline import Baseline, MachineBaseline
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import Fingerprint
from clusterbench.recorded import FEWEST, Recorded
from clusterbench.run_folder.records import parsed, record_of
from clusterbench.units import UNITS
from clusterbench.words import few, short

VERSION = 1
MOST_BYTES = 2**30

_AGREE = 1e-9  # numbers are written with all of their digits
_REMEDY = "hint: write it again with 'clusterbench baseline RUN... --out FILE'"

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class _Head:
    """The first line; its counts show a file that was cut off."""

    clusterbench_baseline: int
    num_machines: int
    num_figures: int


@dataclass(frozen=True)
class _Machine:
    machine: Fingerprint
    runs: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class _Figure:
    """``value``, ``low`` and ``high`` are for who reads the file: they follow from ``samples``.

    Where these are few they follow from ``within``, too, and only there it is said. ``by_run`` are the samples of
    each run.
    """

    case: str
    hash: str
    metric: str
    unit: str
    num_samples: int
    samples: tuple[float, ...]
    within: tuple[float, ...] = ()
    by_run: tuple[int, ...] = ()
    value: float | None = None
    low: float | None = None
    high: float | None = None


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises
    ------
    SuiteError
        If it cannot be read, is no baseline, of another version or damaged, with the line and what to do.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SuiteError(f"{path} is larger than 1 GiB, and no baseline is.")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None
    return Baseline(str(path), tuple(_machines(path, lines)))


def _machines(path: Path, lines: Sequence[bytes]) -> Iterator[MachineBaseline]:
    head = _head(path, lines)
    machines: list[tuple[_Machine, list[tuple[int, _Figure]]]] = []
    for number, line in enumerate(lines[1:], 2):
        fields = _fields(path, number, line)
        if "machine" in fields:
            machines.append((_record(path, number, _Machine, fields), []))
        elif machines:
            machines[-1][1].append((number, _record(path, number, _Figure, fields)))
        else:
            raise _damaged(path, number, "a figure stands before any machine")
    found = len(machines), sum(len(figures) for _, figures in machines)
    if found != (head.num_machines, head.num_figures):
        said = f"{head.num_machines} machines and {head.num_figures} figures, but it has {found[0]} and {found[1]}"
        raise _damaged(path, 1, f"it says {said}")
    for machine, figures in machines:
        yield _machine(path, machine, figures)


def _head(path: Path, lines: Sequence[bytes]) -> _Head:
    try:
        fields = parsed(lines[0]) if lines else None
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or "clusterbench_baseline" not in fields:
        raise SuiteError(
            f'{path}:1: this is no baseline, whose first line begins {{"clusterbench_baseline":.\n{_REMEDY}'
        )
    if fields["clusterbench_baseline"] != VERSION:
        version = short(json.dumps(fields["clusterbench_baseline"]), 60)
        raise SuiteError(
            f"{path}:1: a baseline of version {version}, and this clusterbench reads {VERSION}.\n{_REMEDY}, or read it "
            "with the clusterbench that wrote it"
        )
    return _record(path, 1, _Head, fields)


def _fields(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        fields = parsed(line)
    except ValueError:
        raise _damaged(path, number, "the line is no whole JSON") from None
    if not isinstance(fields, dict):
        raise _damaged(path, number, "the line is no record")
    return fields


def _record(path: Path, number: int, kind: type[Kind], fields: Mapping[str, Any]) -> Kind:
    try:
        return record_of(kind, fields)
    except ValueError as error:
        raise _damaged(path, number, str(error)) from None


def _machine(path: Path, record: _Machine, figures: Sequence[tuple[int, _Figure]]) -> MachineBaseline:
    cases: dict[str, str] = {}
    of_cases: dict[str, dict[str, Recorded]] = {}
    for number, figure in figures:
        of_case = of_cases.setdefault(figure.hash, {})
        if figure.metric in of_case:
            raise _damaged(path, number, f"{figure.metric} of {figure.case} is there twice")
        cases[figure.hash] = figure.case
        of_case[figure.metric] = _recorded(path, number, figure, few(record.runs))
    return MachineBaseline(record.machine, record.runs, record.hosts, cases, of_cases)


def _recorded(path: Path, number: int, figure: _Figure, source: str) -> Recorded:
    if not figure.samples or len(figure.samples) != figure.num_samples:
        raise _damaged(path, number, f"'num_samples' is {figure.num_samples}, and there are {len(figure.samples)}")
    if len(figure.within) != (2 if len(figure.samples) < FEWEST else 0):
        raise _damaged(path, number, f"'within' is two numbers beside one or two samples, and not beside {FEWEST}")
    if figure.by_run and (min(figure.by_run) < 1 or sum(figure.by_run) != len(figure.samples)):
        must = f"each must be 1 or more, and all together the {len(figure.samples)} that there are"
        raise _damaged(path, number, f"'by_run' is {short(str([*figure.by_run]))}: {must}")
    if figure.unit not in UNITS:
        raise _damaged(path, number, f"'{short(figure.unit)}' is no unit")
    within = (min(figure.within), max(figure.within)) if figure.within else None
    recorded = Recorded(figure.unit, figure.samples, within, source, figure.by_run)
    for name, follows in _quantiles(recorded).items():
        said = getattr(figure, name)
        agree = said is follows if said is None or follows is None else math.isclose(said, follows, rel_tol=_AGREE)
        if not agree:
            raise _damaged(path, number, f"'{name}' is {said}, and its samples come to {follows}")
    return recorded


def _quantiles(recorded: Recorded) -> dict[str, float | None]:
    known = recorded.expectation
    if known is None:
        return {"value": None, "low": None, "high": None}
    return {"value": known.value, "low": known.low, "high": known.high}


def _damaged(path: Path, number: int, why: str) -> SuiteError:
    return SuiteError(f"{path}:{number}: damaged: {why}.\n{_REMEDY}")


def baseline_text(baseline: Baseline) -> str:
    """A file that :func:`read_baseline` reads as this."""
    records: list[_Machine | _Figure] = []
    for machine in baseline.machines:
        records.append(_Machine(machine.machine, machine.runs, machine.hosts))
        for case, figures in machine.figures.items():
            records += [_figure(machine.cases[case], case, key, figure) for key, figure in figures.items()]
    head = _Head(VERSION, len(baseline.machines), sum(isinstance(record, _Figure) for record in records))
    return "".join(f"{_line(record)}\n" for record in (head, *records))


def _figure(case: str, hash: str, metric: str, recorded: Recorded) -> _Figure:
    samples, within = recorded.samples, recorded.within or ()
    return _Figure(
        case, hash, metric, recorded.unit, len(samples), samples, within, recorded.by_run, **_quantiles(recorded)
    )


def _line(record: _Head | _Machine | _Figure) -> str:
    """What a person looks for first, and what is not known left out."""
    fields = asdict(record)
    if isinstance(record, _Machine):
        fields["machine"] = {name: value for name, value in fields["machine"].items() if value}
    first = ("case", "metric", "unit", "value", "low", "high")
    ordered = {name: fields[name] for name in first if name in fields} | fields
    return json.dumps({name: value for name, value in ordered.items() if value not in (None, ())})
