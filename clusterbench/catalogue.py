"""Benchmarks, charts, suites and other things in the folders: a line about each of a kind, or all about one."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clusterbench.cluster import Accelerator, accelerators
from clusterbench.errors import SuiteError, nearest
from clusterbench.options import Option, as_yaml, options_of
from clusterbench.suite import SUITE_FOLDERS
from clusterbench.terminal import columns
from clusterbench.units import format_bytes
from clusterbench.words import aligned, comment


def kinds() -> tuple[str, ...]:
    """Names of all kinds."""
    return tuple(_KINDS)


def listing(kind: str) -> str:
    """The things of one kind, a line each.

    Raises
    ------
    SuiteError
        If there is no such kind.
    """
    things = _things(kind)
    room = columns() - 4 - max(map(len, (kind, *things)))
    rows = [[name, textwrap.shorten(_line_about(thing), room, placeholder=" ...")] for name, thing in things.items()]
    return "\n".join(aligned([kind, "what it is"], rows))


def about(kind: str, name: str) -> str:
    """All about one thing: what it is, and what a suite may set.

    Raises
    ------
    SuiteError
        If there is no such kind or thing.
    """
    things = _things(kind)
    if name not in things:
        names = ", ".join(things) or "none"
        raise SuiteError(
            f"there is no '{name}' among the {kind}.{nearest(name, things)}\n{kind.capitalize()}: {names}."
        )
    thing = things[name]
    if isinstance(thing, Path):
        return thing.read_text(encoding="utf-8", errors="replace").rstrip()
    lines = [f"# {line}".rstrip() for line in _doc(thing).splitlines()]
    if not inspect.isclass(thing):
        values = [[field.name, _in_words(getattr(thing, field.name))] for field in fields(thing)]
        return "\n".join([*comment(f"{name}: {_line_about(thing)}"), *aligned(["field", "value"], values)])
    for table in (_options(thing), _metrics(thing)):
        lines += ["#", *table] if table else []
    return "\n".join(lines)


def _things(kind: str) -> Mapping[str, Any]:
    if kind not in _KINDS:
        within = [f"'clusterbench list {known} {kind}'" for known, things in _KINDS.items() if kind in things()]
        elsewhere = f"\nhint: {within[0]} shows it" if within else ""
        elsewhere = "\nhint: 'clusterbench doctor --list' shows the checks" if kind == "checks" else elsewhere
        kinds = ", ".join(_KINDS)
        raise SuiteError(f"there are no '{kind}' to list.{nearest(kind, _KINDS)}\nKinds: {kinds}.{elsewhere}")
    return _KINDS[kind]()


def _options(thing: type) -> list[str]:
    """A line for each key a suite may write, and one more for what it accepts."""
    options: Mapping[str, Option] = {}
    if hasattr(thing, "options"):
        options = thing.options()
    elif is_dataclass(thing):
        options = options_of(thing)
    rows = [[name, _kind_of(option), _default_of(option), option.help] for name, option in options.items()]
    lines = aligned(["option", "type", "default", "what it changes"], rows) if rows else []
    allowed = [
        line for name, option in options.items() for line in comment(f"{name}: {option.allowed()}", indent="    ")
    ]
    return [*lines, "#", "# Accepted:", *allowed] if rows else []


def _metrics(thing: type) -> list[str]:
    """A line for each figure of a benchmark, as rows.csv and floors name it."""
    rows = [[kind.name, kind.unit, kind.better, kind.meaning] for kind in getattr(thing, "metrics", ())]
    return aligned(["metric", "unit", "better", "what it is"], rows) if rows else []


def _kind_of(option: Option) -> str:
    name = "size" if option.unit == "B" else {int: "int", float: "float", bool: "bool", str: "text"}[option.kind]
    return f"list of {name}" if option.is_list else name


def _default_of(option: Option) -> str:
    if option.required:
        return "required"
    if option.is_list:
        return f"[{', '.join(map(str, option.default))}]"
    if option.unit == "B":
        return format_bytes(option.default)
    return "-" if option.default is None else as_yaml(option.default).strip("'")


def _line_about(thing: Any) -> str:
    if isinstance(thing, Path):
        return _question(thing)
    if inspect.isclass(thing):
        return _doc(thing).partition("\n\n")[0].replace("\n", " ")
    if isinstance(thing, Accelerator):
        return _line_about_card(thing)
    billions = thing.num_parameters / 1e9
    size = f"{billions:.3g} billion" if billions >= 1 else f"{1e3 * billions:.3g} million"
    return f"{size} parameters; {thing.source}"


def _line_about_card(card: Accelerator) -> str:
    dtype, peak = next(iter(card.peak_flops_per_s.items()))
    memory = f"{card.memory_bytes / 1e9:g} GB" if card.memory_bytes else "memory not on record"
    server = f"; {card.gpus_per_node} in a server" if card.gpus_per_node else ""
    return f"{memory}, {peak / 1e12:,.0f} TFLOP/s in {dtype}{server}"


def _in_words(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {of:g}" for name, of in value.items())
    if isinstance(value, tuple):
        return ", ".join(value)
    return "-" if value in (None, "") else f"{value:,.12g}" if isinstance(value, float) else value


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or "no description"


def _question(path: Path) -> str:
    from clusterbench.suite import load_suite

    try:
        suite = load_suite(path)
    except SuiteError as error:
        return f"mistaken: {str(error).splitlines()[0]}"
    return suite.question or "asks no question"


def _things_in(module: str, base: str) -> Mapping[str, Any]:
    import importlib

    from clusterbench.discover import things

    return things(module, getattr(importlib.import_module(module), base))


def _shapes() -> Mapping[str, Any]:
    from clusterbench.shape import SHAPES

    return SHAPES


def _suites() -> Mapping[str, Any]:
    """Those that a name finds: of the working directory, and of the package where that has none of the name."""
    files = {path.stem: path for folder in reversed(SUITE_FOLDERS) for path in folder.glob("*.yaml")}
    return dict(sorted(files.items()))


_KINDS: dict[str, Callable[[], Mapping[str, Any]]] = {
    "benchmarks": partial(_things_in, "clusterbench.benchmarks", "Benchmark"),
    "parallelisms": partial(_things_in, "clusterbench.parallel", "Parallelism"),
    "trainers": partial(_things_in, "clusterbench.trainers", "Trainer"),
    "shapes": _shapes,
    "cards": accelerators,
    "suites": _suites,
    "charts": partial(_things_in, "clusterbench.charts", "Chart"),
    "diagnoses": partial(_things_in, "clusterbench.diagnoses", "Diagnosis"),
    "profiles": partial(_things_in, "clusterbench.pricing.profiles", "Profile"),
}
