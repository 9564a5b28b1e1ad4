"""What a suite asks for: benchmarks, their options and what is swept, every value with the line that says so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterbench.baseline import Baseline
from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.errors import ClusterbenchError, SuiteError, nearest
from clusterbench.floors import SIDES, AskedFloor, read_floor
from clusterbench.launchers import is_launchers
from clusterbench.options import Option, as_yaml, option, options_of
from clusterbench.run_folder import copy_of_named
from clusterbench.run_folder.redaction import FROM_ENVIRONMENT, is_secret_name, redacted, redacted_value
from clusterbench.shape import ModelShape, numbers_of, written
from clusterbench.shape_file import is_path, shape_in, shape_in_file
from clusterbench.tools.nccl_variables import meant_variable
from clusterbench.types import FAIL_ON, MOST_REPEATS, Side
from clusterbench.units import parse_time
from clusterbench.yaml_lines import MOST_BYTES, Items, Node, Scalar, Table, read_yaml

OWN_SUITES = Path(__file__).parent / "suites"
SUITE_FOLDERS = (Path("suites"), OWN_SUITES)
"""Suites of the working directory, and those that come with the package."""

NAME, VARIABLE = "[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", "[A-Za-z_][A-Za-z0-9_]*"
"""What a suite may be called, and a variable under ``environment``."""

MOST_CHARACTERS = 4096
"""Of the value of such a variable."""


@dataclass(frozen=True)
class Written:
    """One value where it stands in the file; ``name`` is the key it was given for."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True)
class Setting:
    """A key and what it was given.

    ``is_list`` tells a list that is one value (``layouts``) from values that are tried in turn.
    """

    name: str
    line: int
    values: tuple[Written, ...]
    is_list: bool = False


Settings = Mapping[str, Setting]
Floors = Mapping[tuple[Side, str], AskedFloor]
"""By side and metric, as written."""


@dataclass(frozen=True)
class Item:
    """One item of ``benchmarks``.

    Attributes
    ----------
    kind
        The benchmark's class.
    settings, environment
        Options and variables as written, by name.
    own_settings
        Names of the settings that were written for this kind of device where it has its own, else of all.
    by_device
        What the item itself changes under ``cpu`` or ``gpu``; this overrides the suite's block.
    floors
        What is asked of its figures.
    """

    benchmark: str
    kind: type[Benchmark]
    line: int
    settings: Settings
    environment: Settings
    own_settings: tuple[str, ...] = ()
    by_device: Mapping[str, Item] = field(default_factory=dict)
    floors: Floors = field(default_factory=dict)


@dataclass(frozen=True)
class Override:
    """What the block ``cpu`` or ``gpu`` changes; None where it says nothing."""

    num_ranks: int | None = None
    num_nodes: tuple[int, ...] | None = None
    repeats: int | None = None
    for_s: float = 0.0
    environment: Settings = field(default_factory=dict)
    items: Mapping[str, Item] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite as it was read, for every kind of device at once.

    Attributes
    ----------
    path
        As the user gave it; messages begin with it.
    num_nodes
        On how many nodes each benchmark runs; none where the suite does not say, which is all that there are.
    all_nodes
        Whether also on all that there are, beside ``num_nodes``.
    text
        The file, byte for byte.
    fail_on
        What makes its runs fail beside what always does.
    for_s
        Until its cases have taken so many seconds together they are run again.
    baseline
        What floors may be shares of; None where nothing names one.
    named_files
        The files that it names, byte for byte, by their paths as written.
    """

    name: str
    question: str
    num_nodes: tuple[int, ...]
    repeats: int
    items: tuple[Item, ...]
    environment: Settings
    cpu: Override
    gpu: Override
    path: str
    text: bytes
    fail_on: tuple[str, ...] = ()
    baseline: Baseline | None = None
    named_files: Mapping[str, bytes] = field(default_factory=dict)
    all_nodes: bool = False
    for_s: float = 0.0

    def on(self, device: str) -> Suite:
        """The suite for ``cpu`` or ``cuda``: its block applied, every item complete.

        Raises
        ------
        SuiteError
            If an item lacks an option that has no default.
        """
        name, block = ("gpu", self.gpu) if device == "cuda" else ("cpu", self.cpu)
        common = {**self.environment, **block.environment}
        applied = replace(
            self,
            num_nodes=block.num_nodes or self.num_nodes,
            repeats=block.repeats or self.repeats,
            for_s=block.for_s or self.for_s,
            items=tuple(
                _overridden(item, [block.items.get(item.benchmark), item.by_device.get(name)], common)
                for item in self.items
            ),
            environment=common,
        )
        for item in applied.items:
            applied._expect_complete(item, name)
        return applied

    def where(self, line: int) -> str:
        """``path:line``."""
        return f"{self.path}:{line}"

    def mistake(self, line: int, what: object) -> SuiteError:
        """The error that says what is wrong with ``line``."""
        return SuiteError(f"{self.where(line)}: {what}")

    def _expect_complete(self, item: Item, device: str) -> None:
        for name, key in item.kind.options().items():
            if key.required and name not in item.settings:
                raise self.mistake(
                    item.line,
                    f"benchmark '{item.benchmark}' needs '{name}', {key.allowed()}.\n"
                    f"hint: write '{name}: ...' here or under '{device}: {item.benchmark}:'",
                )


def _overridden(item: Item, overrides: Iterable[Item | None], environment: Settings) -> Item:
    settings, variables, own_settings = (
        dict(item.settings),
        {**environment, **item.environment},
        dict.fromkeys(item.settings),
    )
    floors = dict(item.floors)
    blocks = [override for override in overrides if override]
    for override in blocks:
        settings |= override.settings
        variables |= override.environment
        floors |= override.floors
    if any(override.settings or override.environment for override in blocks):
        # A block may leave an inherited key without effect; neither of the two is then a mistake.
        own_settings = dict.fromkeys(name for override in blocks for name in override.settings)
    return replace(item, settings=settings, environment=variables, own_settings=tuple(own_settings), floors=floors)


def load_suite(
    path: Path | str,
    kinds: Mapping[str, type[Benchmark]] | None = None,
    baseline: Path | None = None,
    is_planned: bool = False,
) -> Suite:
    """The suite in a file, or of a name: ``tp_scale``, of the working directory's folder ``suites`` or the package's.

    Parameters
    ----------
    path
        A file; where there is none and it has neither folder nor ending, a name.
    kinds
        Benchmarks by name; by default all in the folder.
    baseline
        What floors may be shares of, in place of what the suite names.
    is_planned
        Whether there is a plan of it, with the bounds of its floors, so that no baseline is read.

    Raises
    ------
    SuiteError
        For every mistake that the file alone shows, with file, line, what was given and what is allowed.
    """
    file = _named(Path(path))
    return suite_of(_read(file), str(file), kinds, baseline, is_planned)


def suite_of(
    data: bytes,
    path: str,
    kinds: Mapping[str, type[Benchmark]] | None = None,
    baseline: Path | None = None,
    is_planned: bool = False,
) -> Suite:
    """The suite that a text is; messages begin with ``path``."""
    reader = _SuiteReader(path, benchmarks() if kinds is None else kinds, baseline, is_planned)
    return reader.suite(read_yaml(data, path), data)


def _named(path: Path) -> Path:
    """The file that is meant."""
    if path.is_file() or path != Path(path.stem):
        return path
    files = (folder / f"{path}.yaml" for folder in SUITE_FOLDERS)
    return next(filter(Path.is_file, files), path)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        folders = dict.fromkeys((path.parent, *SUITE_FOLDERS))
        there = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*.yaml"))}
        close = difflib.get_close_matches(path.stem, there)
        meant = f" Did you mean '{_said(there[close[0]])}'?" if close else ""
        hint = "" if meant else "\nhint: 'clusterbench list suites' shows those that come with it"
        raise SuiteError(f"{path}: there is no such file.{meant}{hint}") from None
    except IsADirectoryError:
        raise SuiteError(f"{path} is a folder; name one suite in it, e.g. {path / 'tp_scale.yaml'}") from None
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _said(file: Path) -> str:
    """As it can be asked for: what comes with the package by its name, wherever that is installed."""
    return file.stem if file.parent == OWN_SUITES else str(file)


@dataclass(frozen=True)
class SuiteKeys:
    """A suite's own keys are options like any other."""

    suite: str = option(help="its name; the folders of its runs carry it")
    question: str = option("", "what the run answers")
    num_nodes: tuple[int, ...] = option(
        (), "node counts, within the allocation; all of its nodes by default", minimum=1, maximum=100_000
    )
    all_nodes: bool = option(False, "whether also on all nodes of the allocation, beside num_nodes")
    repeats: int = option(1, "of the whole list, interleaved", minimum=1, maximum=MOST_REPEATS)
    fail_on: tuple[str, ...] = option((), "beside incomplete and suspect: what makes its runs fail", choices=FAIL_ON)
    baseline: str = option("", "file of a baseline, or folder of a run, that floors 'of baseline' are shares of")


@dataclass(frozen=True)
class BlockKeys:
    """What ``cpu`` and ``gpu`` may change beside the options of benchmarks."""

    num_ranks: int = option(help="CPU ranks per node", minimum=1, maximum=4096)
    num_nodes: tuple[int, ...] = option(help="instead of the suite's", minimum=1, maximum=100_000)
    repeats: int = option(help="instead of the suite's", minimum=1, maximum=MOST_REPEATS)


class _SuiteReader:
    """Reads the nodes of one file; holds what every message needs."""

    def __init__(
        self, path: str, kinds: Mapping[str, type[Benchmark]], baseline: Path | None, is_planned: bool
    ) -> None:
        self.path = path
        self.kinds = kinds
        self.named_files: dict[str, bytes] = {}
        self.own_shapes: dict[str, tuple[ModelShape, int]] = {}
        self.said_baseline = baseline
        self.is_planned = is_planned

    def mistake(self, line: int, what: object) -> SuiteError:
        return SuiteError(f"{self.path}:{line}: {what}")

    def suite(self, root: Node, text: bytes) -> Suite:
        suite_keys = options_of(SuiteKeys)
        table = self.table(root, "a suite", [*suite_keys, "for", "environment", "benchmarks", "cpu", "gpu"])
        for required in ("suite", "benchmarks"):
            if required not in table.values:
                raise self.mistake(table.line, f"a suite needs '{required}'.")
        values = {name: self.fixed(key, table) for name, key in suite_keys.items()}
        if "all_nodes" in table.values and not values["num_nodes"]:
            what = "'all_nodes' has no effect without 'num_nodes': such a suite runs on all nodes anyway."
            raise self.mistake(table.lines["all_nodes"], what)
        name = self.name(table)
        items = self.items(table.values["benchmarks"])
        listed = {item.benchmark for item in items}
        cpu, gpu = (self.override(device, table, listed) for device in ("cpu", "gpu"))
        return Suite(
            name=name,
            question=str(values["question"] or ""),
            num_nodes=values["num_nodes"] or suite_keys["num_nodes"].default,
            repeats=values["repeats"] or suite_keys["repeats"].default,
            fail_on=values["fail_on"] or (),
            items=items,
            environment=self.environment(table),
            cpu=cpu,
            gpu=gpu,
            path=self.path,
            text=text,
            baseline=self.baseline(table, values["baseline"], [*items, *cpu.items.values(), *gpu.items.values()]),
            named_files=self.named_files,
            all_nodes=bool(values["all_nodes"]),
            for_s=self.time(table),
        )

    def baseline(self, suite: Table, named: str | None, items: Iterable[Item]) -> Baseline | None:
        """That of the command line, or under ``baseline``: there where a floor is a share of it, and only there."""
        inner = (item for outer in items for item in (outer, *outer.by_device.values()))
        asked = [floor for item in inner for floor in item.floors.values() if floor.of == "baseline"]
        if self.is_planned:
            return None
        if asked and not named and self.said_baseline is None:
            raise self.mistake(
                asked[0].line,
                f"'{asked[0].metric}: {asked[0].text}' needs a baseline to hold it against.\n"
                "hint: write 'baseline: FILE' beside 'suite', or say --baseline FILE: what 'clusterbench baseline' "
                "wrote, or the folder of a run",
            )
        if named and not asked:
            raise self.mistake(
                suite.lines["baseline"],
                "'baseline' has no effect: no floor under at_least or at_most is 'of baseline'.",
            )
        if self.said_baseline is not None and not asked:
            raise SuiteError(
                f"--baseline has no effect on {self.path}: no floor under at_least or at_most is 'of baseline'.\n"
                f"hint: 'clusterbench compare {self.said_baseline} RUN' holds every figure of a run against it"
            )
        if self.said_baseline is None and not named:
            return None
        from clusterbench.derive.baseline import baseline_at

        if self.said_baseline is not None:
            return baseline_at(self.said_baseline)
        try:
            return baseline_at(Path(str(named)))
        except ClusterbenchError as error:
            line = suite.lines["baseline"]
            raise self.mistake(line, f"'baseline' must be a baseline's file or the folder of a run: {error}") from None

    def name(self, table: Table) -> str:
        node = table.values["suite"]
        text = node.text if isinstance(node, Scalar) else ""
        if not re.fullmatch(NAME, text):
            raise self.mistake(
                node.line, "'suite' is the name of a folder: letters, digits, '_', '-' and '.', such as tp_scale."
            )
        return text

    def items(self, node: Node) -> tuple[Item, ...]:
        if not isinstance(node, Items) or not node.items:
            raise self.mistake(node.line, "'benchmarks' must be a list, with an item '- benchmark: NAME' for each.")
        return tuple(self.item(inner) for inner in node.items)

    def item(self, node: Node) -> Item:
        name_node = node.values.get("benchmark") if isinstance(node, Table) else None
        if not isinstance(name_node, Scalar):
            raise self.mistake(node.line, "an item of 'benchmarks' begins with '- benchmark: NAME'.")
        name = name_node.text
        if name not in self.kinds:
            raise self.mistake(
                name_node.line,
                f"there is no benchmark {as_yaml(name)}.{nearest(name, self.kinds)}\n"
                f"Benchmarks: {', '.join(sorted(self.kinds))}.",
            )
        assert isinstance(node, Table)
        by_device: dict[str, Item] = {
            device: self.options(
                name, self.any_table(node.values[device], f"'{device}'", "options and their values"), []
            )
            for device in ("cpu", "gpu")
            if device in node.values
        }
        return replace(self.options(name, node, ["benchmark", "cpu", "gpu"]), by_device=by_device)

    def options(self, benchmark: str, table: Table, more: list[str]) -> Item:
        """The options of ``benchmark`` in ``table``, which may hold ``more`` keys."""
        kind = self.kinds[benchmark]
        options = kind.options()
        refused: Mapping[str, str] = getattr(kind, "refused_options", {})
        for name, line in table.lines.items():
            if name in refused:
                raise self.mistake(line, f"benchmark '{benchmark}' has no option '{name}': {refused[name]}")
            if name not in options and name not in ("environment", *SIDES, *more):
                raise self.mistake(
                    line,
                    f"benchmark '{benchmark}' has no option {as_yaml(name)}.{nearest(name, options)}\n"
                    f"Options: {', '.join(sorted(options))}.",
                )
        of = f"benchmark '{benchmark}': option "
        settings = {name: self.setting(options[name], table, of) for name in table.values if name in options}
        environment, floors = self.environment(table), dict(self.floors(kind, benchmark, table))
        return Item(benchmark, kind, table.line, settings, environment, tuple(settings), floors=floors)

    def floors(
        self, kind: type[Benchmark], benchmark: str, table: Table
    ) -> Iterator[tuple[tuple[Side, str], AskedFloor]]:
        for side in SIDES:
            if side not in table.values:
                continue
            asked = self.any_table(table.values[side], f"'{side}'", "metrics and what is asked of each")
            for metric, node in asked.values.items():
                line = asked.lines[metric]
                written = node.value if isinstance(node, Scalar) else None
                try:
                    floor = read_floor(
                        side, metric, written, kind.metrics, kind.predicts, line, has_choices=kind.has_choices()
                    )
                except ValueError as error:
                    raise self.mistake(line, f"benchmark '{benchmark}': {side}: {error}") from None
                yield (side, metric), floor

    def override(self, device: str, suite: Table, listed: Iterable[str]) -> Override:
        if device not in suite.values:
            return Override()
        block_keys = options_of(BlockKeys)
        node = suite.values[device]
        if device == "gpu" and isinstance(node, Table) and "num_ranks" in node.lines:
            raise self.mistake(node.lines["num_ranks"], "'gpu' has no key 'num_ranks': every GPU is one rank.")
        keys = [name for name in block_keys if device == "cpu" or name != "num_ranks"]
        table = self.table(node, f"'{device}'", [*keys, "for", "environment", *sorted(self.kinds)])
        items = {}
        for name in table.values:
            if name not in self.kinds:
                continue
            if name not in listed:
                raise self.mistake(
                    table.lines[name], f"'{name}' is not among the suite's benchmarks; this has no effect."
                )
            options = self.any_table(table.values[name], f"'{name}' under '{device}'", "options and their values")
            items[name] = self.options(name, options, [])
        values = {name: self.fixed(key, table) for name, key in block_keys.items()}
        return Override(**values, for_s=self.time(table), environment=self.environment(table), items=items)

    def table(self, node: Node, what: str, keys: list[str]) -> Table:
        """``node`` as a mapping that has none but these keys."""
        table = self.any_table(node, what, f"keys and values; the keys are {', '.join(sorted(keys))}")
        for name, line in table.lines.items():
            if name not in keys:
                raise self.mistake(
                    line, f"{what} has no key {as_yaml(name)}.{nearest(name, keys)}\nKeys: {', '.join(sorted(keys))}."
                )
        return table

    def any_table(self, node: Node, what: str, form: str) -> Table:
        if not isinstance(node, Table):
            raise self.mistake(node.line, f"{what} must be {form}.")
        return node

    def fixed(self, key: Option, table: Table) -> Any:
        """The one value of an option that cannot be swept; None where it is not given."""
        if key.name not in table.values:
            return None
        setting = self.setting(key, table)
        values = tuple(written.value for written in setting.values)
        if key.is_list:
            return values
        if isinstance(table.values[key.name], Items):
            raise self.mistake(setting.line, f"'{key.name}' must be one value: {key.allowed()}, not a list.")
        return values[0]

    def setting(self, key: Option, table: Table, of: str = "") -> Setting:
        name = key.name
        what = f"{of}'{name}'"

        def parse(node: Node) -> Any:
            if key.is_shape and (isinstance(node, Table) or (isinstance(node, Scalar) and is_path(node.value))):
                return written(self.own_shape(node))
            scalar = self.scalar(node, what, key.allowed())
            try:
                return key.parse(scalar.value)
            except ValueError as error:
                hint = "\nhint: one of your own is a mapping, or the path of its config.json" if key.is_shape else ""
                raise self.mistake(scalar.line, f"{what} {error}{hint}") from None

        values = self.values(name, table.values[name], what, key.allowed(), parse)
        return Setting(name, table.lines[name], values, key.is_list)

    def own_shape(self, node: Scalar | Table) -> ModelShape:
        """A model that is not on record; one name is one model in all of a suite."""
        shape = shape_in(node, self.path) if isinstance(node, Table) else self.shape_in_file(node)
        before, line = self.own_shapes.setdefault(shape.name, (shape, node.line))
        if numbers_of(before) != numbers_of(shape):
            raise self.mistake(
                node.line,
                f"the shape '{shape.name}' has other numbers in line {line}, and figures tell models by their names.\n"
                "hint: give one of them another name",
            )
        return shape

    def shape_in_file(self, node: Scalar) -> ModelShape:
        """The model in a file, whose path is relative to the suite's; in a run's folder in the copy that it has."""
        folder, told = Path(self.path).parent, node.text
        copy = copy_of_named(folder, told)
        try:
            shape, self.named_files[told] = shape_in_file(copy if copy.is_file() else folder / told, told)
        except SuiteError as error:
            raise self.mistake(node.line, error) from None
        return shape

    def scalar(self, node: Node, what: str, allowed: str) -> Scalar:
        if not isinstance(node, Scalar):
            form = "a list" if isinstance(node, Items) else "keys and values"
            raise self.mistake(node.line, f"{what} must be {allowed}, not {form}.")
        return node

    def values(
        self, name: str, node: Node, what: str, allowed: str, parse: Callable[[Node], Any]
    ) -> tuple[Written, ...]:
        """One value, or the items of a list; each once."""
        if isinstance(node, Items) and not node.items:
            raise self.mistake(node.line, f"{what} is an empty list. Leave it out, or give {allowed}.")
        written: list[Written] = []
        for item in node.items if isinstance(node, Items) else (node,):
            value = parse(item)
            if isinstance(item, Scalar) and redacted(item.text) != item.text:
                raise self.mistake(
                    item.line,
                    f"{what} holds what looks like a secret, and every run keeps a copy of its suite.\n"
                    "hint: leave it out, and give it to the program in a file or a variable",
                )
            if any(value == earlier.value and type(value) is type(earlier.value) for earlier in written):
                raise self.mistake(item.line, f"{what} lists {as_yaml(value)} twice.")
            written.append(Written(name, value, item.line))
        return tuple(written)

    def time(self, table: Table) -> float:
        """Seconds for which the list is run again and again: ``for: 2h``; 0 where nothing is said."""
        if "for" not in table.values:
            return 0.0
        scalar = self.scalar(table.values["for"], "'for'", "a time such as 90s, 30m or 2h")
        try:
            return parse_time(scalar.text)
        except ValueError as error:
            raise self.mistake(scalar.line, f"'for' {error}.") from None

    def environment(self, table: Table) -> Settings:
        if "environment" not in table.values:
            return {}
        variables = self.any_table(table.values["environment"], "'environment'", "variables and their values")
        return {name: self.variable(name, variables) for name in variables.values}

    def variable(self, name: str, table: Table) -> Setting:
        line = table.lines[name]
        if not re.fullmatch(VARIABLE, name):
            raise self.mistake(line, f"{as_yaml(name)} is not the name of an environment variable.")
        if is_launchers(name):
            raise self.mistake(line, f"environment variable '{name}' is set by the launcher; a suite cannot change it.")
        if meant := meant_variable(name):
            raise self.mistake(
                line,
                f"environment variable '{name}' has no effect: no NCCL reads it. Did you mean '{meant}'?\n"
                "hint: if a newer one does, set it where clusterbench is started",
            )
        what = f"environment variable '{name}'"

        def parse(of: Node) -> str:
            node = self.scalar(of, what, "text")
            if node.value is None:
                raise self.mistake(node.line, f"{what} has no value. Write '' for an empty one.")
            if len(node.text) > MOST_CHARACTERS:
                raise self.mistake(
                    node.line, f"{what} has {len(node.text)} characters; {MOST_CHARACTERS} are the most."
                )
            if redacted_value(name, node.text) != node.text:
                why = "is the name of a secret" if is_secret_name(name) else "has a value that looks like a secret"
                raise self.mistake(
                    node.line,
                    f"environment variable '{name}' {why}, and every run keeps a copy of its suite.\n"
                    f"hint: write '{name}: {FROM_ENVIRONMENT}', and set it where clusterbench is started",
                )
            return node.text

        return Setting(name, line, self.values(name, table.values[name], what, "text", parse))
