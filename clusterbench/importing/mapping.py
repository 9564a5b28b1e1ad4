"""The mapping file: which column of a table means what. It names and scales; nothing in it is evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, get_args

from clusterbench.benchmarks.imported import Imported
from clusterbench.cluster import find_accelerator, nearest_accelerator, unlike_a_drivers
from clusterbench.errors import SuiteError, nearest
from clusterbench.formulas.transformer import CONVENTIONS
from clusterbench.layout import AXES, RIDERS
from clusterbench.options import as_yaml
from clusterbench.rows import COLUMNS, DETAILS
from clusterbench.types import Status, metric_key, split_key
from clusterbench.yaml_lines import MOST_BYTES, Items, Node, Scalar, Table, Value, read_yaml

COUNTS = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_len", "size_bytes")
TEXTS = ("shape", "op", "dtype")
DEGREES = (*AXES, *RIDERS)
CASE = ("shape", "op", "layout", *DEGREES, "world_size", "num_nodes", *COUNTS, "dtype")
FLOPS = ("num_parameters", "embedding_parameters", "num_layers", "attention_width")
STATUSES: Mapping[str, Status] = {status: status for status in get_args(Status) if status != "refused"}

_TOP = (
    "import",
    "question",
    "source",
    "device",
    "gpu",
    "gpus_per_node",
    "attempts",
    "status",
    "case",
    "keep",
    "figures",
    "flops",
)
_CELL = ("column", "columns", "value", "after", "before", "words", "scale", "unit", "optional")
_STATUS = ("column", "equals", "contains", "otherwise")

FIGURES = {kind.name: kind.unit for kind in Imported.metrics if kind.name != "mfu_over_recomputed"}
FACTORS: Mapping[str, Mapping[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "B": {"B": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30},
    "B/s": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "MiB/s": 2.0**20, "GiB/s": 2.0**30, "Gbit/s": 1.25e8},
    "FLOP/s": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "fraction": {"fraction": 1.0, "%": 0.01},
    "tokens/s": {"tokens/s": 1.0},
    "1/s": {"1/s": 1.0},
    "1": {"1": 1.0},
}
"""Unit of a metric -> units a file may print it in, and what one of them is in it."""

MAY_BE_EMPTY = ("shape", "micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_len", "dtype")
"""Parts of a case without which it still is one."""

_BY_ITSELF = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Cell:
    """Where a value stands in a row, and what is done with its text.

    Attributes
    ----------
    columns
        Columns by what is written before each where there are several; one column has the name ''.
    value
        What holds for every row, where no column is named.
    after, before
        The value is what stands between the two in the text of the cell.
    words
        What each text means; empty where the text is the value. A text that is not among them is a mistake.
    factor
        What a number is multiplied by.
    optional
        Whether the cell may be empty.
    """

    line: int
    columns: Mapping[str, str] = field(default_factory=dict)
    value: Value = None
    after: str = ""
    before: str = ""
    words: Mapping[str, Value] = field(default_factory=dict)
    factor: float = 1.0
    optional: bool = False


@dataclass(frozen=True)
class StatusCell:
    """Which words of a column say how a case ended; ``otherwise`` is None where every text must be known."""

    line: int
    column: str
    equals: Mapping[str, Status]
    contains: Mapping[str, Status]
    otherwise: Status | None


@dataclass(frozen=True)
class Flops:
    """What MFU is computed again from: a convention of formulas/transformer.py, a peak, and cells of the model."""

    line: int
    convention: str
    peak_flops_per_s: float
    peak_source: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Mapped:
    """A mapping file that has no mistake of its own."""

    path: str
    text: bytes
    name: str
    question: str
    source: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    gpus_per_node: int | None
    attempts: bool
    status: StatusCell | None
    case: Mapping[str, Cell]
    keep: Mapping[str, Cell]
    figures: Mapping[str, Cell]
    flops: Flops | None

    @property
    def is_training(self) -> bool:
        return "size_bytes" not in self.case

    def columns(self) -> Iterable[tuple[str, int]]:
        """Every column that is asked for, and the line that asks."""
        tables = [self.case, self.keep, self.figures, self.flops.cells if self.flops else {}]
        for table in tables:
            for cell in table.values():
                yield from ((column, cell.line) for column in cell.columns.values())
        if self.status:
            yield self.status.column, self.status.line


def load_mapping(path: Path) -> Mapped:
    """The mapping in a file.

    Raises
    ------
    SuiteError
        For every mistake that the file alone shows, with file, line, what was given and what is allowed.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None
    return read_mapping(data, str(path))


def read_mapping(data: bytes, path: str) -> Mapped:
    """The same from bytes; ``path`` is what messages name."""
    if not data.strip():
        raise SuiteError(f"{path} is empty. A mapping needs at least 'import', 'case' and 'figures'.")
    return _MappingReader(path).mapping(read_yaml(data, path), data)


class _MappingReader:
    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, line: int, what: str) -> NoReturn:
        raise SuiteError(f"{self.path}:{line}: {what}")

    def mapping(self, root: Node, data: bytes) -> Mapped:
        top = self.table(root, "a mapping", _TOP)
        for key in ("import", "case", "figures"):
            if key not in top.values:
                self.fail(top.line, f"a mapping needs '{key}'.")
        gpu = self.text(top, "gpu") or None
        if gpu and (of_drivers := unlike_a_drivers(gpu)):
            self.fail(top.lines["gpu"], f"'gpu' is {of_drivers}")
        device = self.text(top, "device") or "cuda"
        if device not in ("cpu", "cuda"):
            self.fail(top.lines["device"], f"'device' must be cpu or cuda, not {as_yaml(device)}.")
        name = self.text(top, "import")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}", name):
            self.fail(
                top.lines["import"],
                f"'import' names the run's folder: letters, digits, '_', '.' and '-', not {as_yaml(name)}.",
            )
        attempts = self.plain(top, "attempts", False)
        if not isinstance(attempts, bool):
            self.fail(top.lines["attempts"], f"'attempts' must be true or false, not {as_yaml(attempts)}.")
        per_node = self.plain(top, "gpus_per_node", None)
        if per_node is not None and (type(per_node) is not int or not 1 <= per_node <= 1024):
            self.fail(
                top.lines["gpus_per_node"],
                f"'gpus_per_node' must be a whole number from 1 to 1024, not {as_yaml(per_node)}.",
            )
        case = self.cells(top, "case", CASE)
        mapped = Mapped(
            path=self.path,
            text=data,
            name=name,
            question=self.text(top, "question"),
            source=self.text(top, "source"),
            device="cpu" if device == "cpu" else "cuda",
            gpu=gpu,
            gpus_per_node=per_node if isinstance(per_node, int) else None,
            attempts=attempts,
            status=self.status(top),
            case=case,
            keep=self.keep(top),
            figures=self.figures(top),
            flops=self.flops(top, gpu, case),
        )
        self.check(mapped, top)
        return mapped

    def check(self, mapped: Mapped, top: Table) -> None:
        """What no key alone can show."""
        line = top.lines["case"]
        for name, cell in mapped.case.items():
            if cell.optional and (name not in MAY_BE_EMPTY or (name == "seq_len" and mapped.flops)):
                why = "'flops' reads it" if name in MAY_BE_EMPTY else "without it a row is no case"
                self.fail(cell.line, f"'{name}' cannot be optional: {why}.")
        has_axes = any(axis in mapped.case for axis in DEGREES)
        if mapped.is_training:
            if not has_axes and "layout" not in mapped.case:
                self.fail(line, f"'case' needs a layout ('layout', or some of {', '.join(DEGREES)}) or 'size_bytes'.")
            if has_axes and "layout" in mapped.case:
                self.fail(line, "'case' has 'layout' and axes of one; say one of the two.")
            if not {"step_time", "tokens_per_s", "tokens_per_s_per_rank"} & set(mapped.figures):
                self.fail(
                    top.lines["figures"],
                    "'figures' of training needs one of step_time, tokens_per_s, tokens_per_s_per_rank.",
                )
        else:
            for name in ("op", "world_size"):
                if name not in mapped.case:
                    self.fail(line, f"'case' of a collective (it has 'size_bytes') needs '{name}'.")
            if not any(split_key(key)[0] in ("latency", "algbw") for key in mapped.figures):
                self.fail(top.lines["figures"], "'figures' of a collective needs 'latency' or 'algbw'.")
        if mapped.gpus_per_node is None and "num_nodes" not in mapped.case:
            self.fail(line, "how many nodes a case ran on is not said: give 'gpus_per_node', or 'num_nodes' in 'case'.")

    def status(self, top: Table) -> StatusCell | None:
        if "status" not in top.values:
            return None
        line = top.lines["status"]
        table = self.table(top.values["status"], "'status'", _STATUS)
        if "column" not in table.values:
            self.fail(line, "'status' needs 'column'.")
        meanings: dict[str, dict[str, Status]] = {"equals": {}, "contains": {}}
        for kind, meant in meanings.items():
            if kind in table.values:
                words = self.table(table.values[kind], f"'{kind}'", None)
                for word, node in words.values.items():
                    meant[word] = self.outcome(node, words.lines[word])
        if not any(meanings.values()):
            self.fail(line, "'status' needs 'equals' or 'contains': which words of the column mean what.")
        if "" in meanings["contains"]:
            self.fail(line, "'contains' an empty text is true of every cell; say it under 'equals'.")
        otherwise = (
            self.outcome(table.values["otherwise"], table.lines["otherwise"]) if "otherwise" in table.values else None
        )
        return StatusCell(line, self.text(table, "column"), meanings["equals"], meanings["contains"], otherwise)

    def outcome(self, node: Node, line: int) -> Status:
        word = str(self.scalar(node, "an outcome"))
        if word not in STATUSES:
            self.fail(
                line, f"{as_yaml(word)} is no outcome.{nearest(word, STATUSES)}\nOutcomes: {', '.join(STATUSES)}."
            )
        return STATUSES[word]

    def keep(self, top: Table) -> dict[str, Cell]:
        if "keep" not in top.values:
            return {}
        table = self.table(top.values["keep"], "'keep'", None)
        for name in table.values:
            if not _BY_ITSELF.fullmatch(name) or name in (*CASE, *COLUMNS, *DETAILS, "attempt"):
                self.fail(
                    table.lines[name],
                    f"'keep' cannot name an option '{name}': a lower-case word that no column of a run's rows and no "
                    "key of 'case' has.",
                )
        return {name: self.cell(node, name, table.lines[name]) for name, node in table.values.items()}

    def cells(self, top: Table, key: str, allowed: Sequence[str]) -> dict[str, Cell]:
        table = self.table(top.values[key], f"'{key}'", allowed)
        return {name: self.cell(node, name, table.lines[name]) for name, node in table.values.items()}

    def figures(self, top: Table) -> dict[str, Cell]:
        table = self.table(top.values["figures"], "'figures'", None)
        figures = {}
        for key, node in table.values.items():
            line = table.lines[key]
            if not re.fullmatch(r"[a-z_]+(\[[a-z_]+=\w+(,[a-z_]+=\w+)*\])?", key):
                self.fail(line, f"{as_yaml(key)} is no metric; write it as 'peak_memory' or 'peak_memory[category=x]'.")
            name, details = split_key(key)
            if name not in FIGURES:
                self.fail(line, f"there is no metric '{name}'.{nearest(name, FIGURES)}\nMetrics: {', '.join(FIGURES)}.")
            for detail in details:
                if detail not in DETAILS or detail == "source":
                    allowed = [word for word in DETAILS if word != "source"]
                    self.fail(line, f"figures have no detail '{detail}'. Details: {', '.join(allowed)}.")
            if name in ("mfu", "hfu"):
                details = {**details, "source": "imported"}
            figures[metric_key(name, **details)] = self.cell(node, key, line, FIGURES[name])
        return figures

    def flops(self, top: Table, gpu: str | None, case: Mapping[str, Cell]) -> Flops | None:
        if "flops" not in top.values:
            return None
        line = top.lines["flops"]
        table = self.table(top.values["flops"], "'flops'", ("convention", *FLOPS))
        convention = self.text(table, "convention") or "palm"
        if convention not in CONVENTIONS:
            self.fail(
                table.lines["convention"],
                f"unknown convention {as_yaml(convention)}.{nearest(convention, CONVENTIONS)} "
                f"Conventions: {', '.join(CONVENTIONS)}.",
            )
        needed = [name for name in FLOPS if name != "embedding_parameters" or convention != "palm_6n"]
        for name in needed:
            if name not in table.values:
                self.fail(line, f"'flops' by the convention {convention} needs '{name}'.")
        for name in ("seq_len", "dtype"):
            if name not in case:
                self.fail(line, f"'flops' needs '{name}' in 'case'.")
        accelerator = find_accelerator(gpu) if gpu else None
        if accelerator is None:
            near = nearest_accelerator(gpu) if gpu else None
            hint = f" Did you mean '{near}'?" if near else ""
            self.fail(
                line,
                f"'flops' needs a peak, and none is on record for 'gpu' {as_yaml(gpu)}.{hint}\n"
                "hint: name the GPU as its driver does, e.g. 'NVIDIA H100 80GB HBM3'",
            )
        dtype = case["dtype"].value
        if dtype not in accelerator.peak_flops_per_s:
            self.fail(
                case["dtype"].line,
                f"'flops' needs one dtype for all rows, {{value: ...}} with one of "
                f"{', '.join(accelerator.peak_flops_per_s)}.",
            )
        cells = {
            name: self.cell(node, name, table.lines[name])
            for name, node in table.values.items()
            if name != "convention"
        }
        return Flops(line, convention, accelerator.peak_flops_per_s[str(dtype)], accelerator.source, cells)

    def cell(self, node: Node, name: str, line: int, unit: str = "") -> Cell:
        if isinstance(node, Scalar):
            if unit and unit != "tokens/s":
                self.fail(line, f"figure '{name}' needs a unit: {{column: {node.text}, unit: {_units(unit)}}}.")
            if node.text == "":
                self.fail(line, f"'{name}' names no column.")
            return Cell(line, {"": node.text})
        table = self.table(node, f"'{name}'", _CELL)
        if sum(key in table.values for key in ("column", "columns", "value")) != 1:
            self.fail(line, f"'{name}' needs one of column, columns and value.")
        if "value" in table.values:
            if extra := [key for key in table.values if key not in ("value", "unit")]:
                self.fail(table.lines[extra[0]], f"'{extra[0]}' has no effect on a value that holds for every row.")
            return Cell(line, value=self.plain(table, "value", None), factor=self.factor(table, name, unit, line))
        columns = {"": self.text(table, "column")}
        if "columns" in table.values:
            if name not in ("shape", "op") and unit == "" and name in CASE:
                self.fail(table.lines["columns"], f"'columns' makes a text of several; '{name}' takes one column.")
            parts = self.table(table.values["columns"], "'columns'", None)
            columns = {part: self.text(parts, part) for part in parts.values}
        for text in columns.values():
            if not text:
                self.fail(line, f"'{name}' names no column.")
        words: dict[str, Value] = {}
        if "words" in table.values:
            word_table = self.table(table.values["words"], "'words'", None)
            words = {word: self.scalar(meant, f"the meaning of '{word}'") for word, meant in word_table.values.items()}
        optional = self.plain(table, "optional", False)
        if not isinstance(optional, bool):
            self.fail(table.lines["optional"], f"'optional' must be true or false, not {as_yaml(optional)}.")
        return Cell(
            line,
            columns,
            after=self.text(table, "after"),
            before=self.text(table, "before"),
            words=words,
            factor=self.factor(table, name, unit, line),
            optional=optional,
        )

    def factor(self, table: Table, name: str, unit: str, line: int) -> float:
        """What a number of this cell is multiplied by: of a figure by its unit, of anything else by 'scale'."""
        if not unit:
            if "unit" in table.values:
                self.fail(table.lines["unit"], f"'unit' is for figures; '{name}' takes 'scale'.")
            scale = self.plain(table, "scale", 1)
            if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
                self.fail(table.lines["scale"], f"'scale' must be a number above 0, not {as_yaml(scale)}.")
            return float(scale)
        if "scale" in table.values:
            self.fail(table.lines["scale"], f"'scale' of a figure is its 'unit': {_units(unit)}.")
        file_unit = self.text(table, "unit") or ("tokens/s" if unit == "tokens/s" else "")
        if file_unit not in FACTORS[unit]:
            what = f"not {as_yaml(file_unit)}" if file_unit else "and has none"
            self.fail(table.lines.get("unit", line), f"figure '{name}' needs a unit, {_units(unit)}, {what}.")
        return FACTORS[unit][file_unit]

    def table(self, node: Node, what: str, allowed: Sequence[str] | None) -> Table:
        if not isinstance(node, Table):
            self.fail(node.line, f"{what} must be keys and values.")
        for key in node.values if allowed is not None else ():
            if key not in (allowed or ()):
                self.fail(
                    node.lines[key],
                    f"{what} has no key '{key:.80}'.{nearest(key, allowed or ())}\nKeys: {', '.join(allowed or ())}.",
                )
        return node

    def scalar(self, node: Node, what: str) -> Value:
        if isinstance(node, (Table, Items)):
            self.fail(node.line, f"{what} must be one value.")
        return node.value

    def plain(self, table: Table, key: str, default: Value) -> Value:
        return self.scalar(table.values[key], f"'{key}'") if key in table.values else default

    def text(self, table: Table, key: str) -> str:
        """The text as it is written: a column may be called 8 or true."""
        node = table.values.get(key)
        if node is None:
            return ""
        if not isinstance(node, Scalar):
            self.fail(node.line, f"'{key}' must be one text.")
        return node.text


def _units(unit: str) -> str:
    units = list(FACTORS[unit])
    return units[0] if len(units) == 1 else f"{', '.join(units[:-1])} or {units[-1]}"
