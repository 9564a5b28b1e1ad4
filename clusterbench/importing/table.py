"""A CSV file read by a mapping: each row a case, or one error with file and line."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterbench.benchmarks.imported import ImportedModel
from clusterbench.csv_lines import rows_of
from clusterbench.errors import LayoutError, SuiteError, nearest
from clusterbench.formulas.collectives import as_spelled_here
from clusterbench.importing.mapping import COUNTS, DEGREES, FIGURES, Cell, Mapped
from clusterbench.importing.records import ImportedCase, nodes
from clusterbench.layout import MOST_RANKS, RIDERS, ParallelLayout
from clusterbench.measured.bounds import MARGIN
from clusterbench.options import as_yaml
from clusterbench.types import Status, split_key
from clusterbench.units import format_value
from clusterbench.yaml_lines import Value

MOST_ROWS = 100_000

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,30}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_LIKENESS = 0.02  # files round: a rate of three digits is within half a percent
_ABOVE_ROUNDING = 1e8  # B/s; nccl-tests prints 0.01 GB/s as its smallest


def read_table(path: Path, mapped: Mapped) -> list[ImportedCase]:
    """Every row of the file as a case, in its order.

    Raises
    ------
    SuiteError
        ``file:line:`` and what is wrong: a column that is missing, a cell that is no number, a row with too few cells,
        a row that contradicts itself.
    """
    rows = rows_of(path)
    line, header = next(rows, (1, []))
    _expect_columns(path, line, header, mapped)
    cases: list[ImportedCase] = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise SuiteError(
                f"{path.name}:{line}: the row has {len(cells)} cells and the header {len(header)}: the file is cut or "
                "not separated by commas."
            )
        if len(cases) == MOST_ROWS:
            raise SuiteError(f"{path.name}:{line}: more than {MOST_ROWS} rows are too many for one run.")
        cases.append(_TableRow(mapped, f"{path.name}:{line}", dict(zip(header, cells, strict=True))).case())
    if not cases:
        raise SuiteError(f"{path.name} has a header and no rows, so there is nothing to import.")
    return cases


def header_of(path: Path) -> list[str]:
    """The names of the columns."""
    return next(rows_of(path), (1, []))[1]


def _expect_columns(path: Path, line: int, header: Sequence[str], mapped: Mapped) -> None:
    times = Counter(header)
    for column, mapping_line in mapped.columns():
        if not times[column]:
            raise SuiteError(
                f"{path.name}:{line}: there is no column {as_yaml(column)}, which {mapped.path}:{mapping_line} names."
                f"{nearest(column, header)}\nColumns: {', '.join(header)}."
            )
        if times[column] > 1:
            raise SuiteError(
                f"{path.name}:{line}: {times[column]} columns are called {as_yaml(column)}, which "
                f"{mapped.path}:{mapping_line} names.\nhint: rename one of them"
            )


@dataclass(frozen=True)
class _TableRow:
    """One row of a table, read as the mapping says. ``where`` is file and line."""

    mapped: Mapped
    where: str
    cells: Mapping[str, str]

    def fail(self, what: str) -> SuiteError:
        return SuiteError(f"{self.where}: {what}")

    def case(self) -> ImportedCase:
        status, reason = self.status()
        point = self.point()
        world_size = self.world_size(point)
        figures = self.figures() if status == "ok" else {}
        time_s = self.time_s(point, world_size, figures) if status == "ok" else None
        model = self.model() if status == "ok" else None
        if model and time_s:
            self.expect_possible(model, self.tokens_per_s(point, figures, time_s, world_size) / world_size)
        return ImportedCase(
            where=self.where,
            point=point,
            world_size=world_size,
            num_nodes=self.num_nodes(world_size),
            status=status,
            reason=reason,
            figures=figures,
            time_s=time_s,
            model=model,
        )

    def status(self) -> tuple[Status, str]:
        cell = self.mapped.status
        if cell is None:
            return "ok", ""
        text = self.cells[cell.column]
        if text in cell.equals:
            statuses = {cell.equals[text]}
        else:
            statuses = {status for word, status in cell.contains.items() if word in text}
        if len(statuses) > 1:
            raise self.fail(
                f"column '{cell.column}' holds {as_yaml(text)}, which means {' and '.join(sorted(statuses))} by "
                f"{self.mapped.path}:{cell.line}."
            )
        status = next(iter(statuses), cell.otherwise)
        if status is None:
            words = ", ".join(as_yaml(word) for word in (*cell.equals, *cell.contains))
            raise self.fail(
                f"column '{cell.column}' holds {as_yaml(text)}, and {self.mapped.path}:{cell.line} does not say what "
                f"that means.{nearest(text, (*cell.equals, *cell.contains))}\nKnown: {words}; 'otherwise' is for all "
                "others."
            )
        return status, "" if status == "ok" else f"{self.where} says {as_yaml(text)}"

    def point(self) -> dict[str, Any]:
        case = self.mapped.case
        point: dict[str, Any] = {}
        if "shape" in case:
            point["shape"] = self.text("shape", case["shape"])
        if "op" in case:
            op = self.text("op", case["op"])
            point["op"] = op and as_spelled_here(op)
        if self.mapped.is_training:
            point["layout"] = self.layout()
        for name in COUNTS:
            if name in case and (value := self.number(name, case[name])) is not None:
                point[name] = self.whole(name, value)
        if self.mapped.is_training:
            self.complete_batch(point)
        if "dtype" in case:
            point["dtype"] = self.text("dtype", case["dtype"])
        for name, cell in self.mapped.keep.items():
            point[name] = self.value(name, cell)
        return point

    def layout(self) -> str:
        case = self.mapped.case
        try:
            if "layout" in case:
                return str(ParallelLayout.parse(str(self.text("layout", case["layout"]))))
            degrees = {axis: self.degree(axis, case[axis]) for axis in DEGREES if axis in case}
            # Frameworks print their mode of sequence parallelism where one rank has nothing to split, too.
            for name, rider in RIDERS.items():
                if rider.over:
                    degrees[name] = bool(degrees.get(name)) and degrees.get(rider.over, 1) > 1
            return str(ParallelLayout(**degrees))
        except LayoutError as error:
            raise self.fail(str(error)) from None

    def degree(self, axis: str, cell: Cell) -> Any:
        rider = RIDERS.get(axis)
        if rider is None or not rider.stands_alone:
            return self.count(axis, cell, least=rider.idle if rider else 1)
        value = self.value(axis, cell)
        if value in (True, False, "true", "false", "True", "False", 0, 1):
            return value in (True, "true", "True", 1)
        raise self.fail(
            f"'{axis}' is {as_yaml(value)}, which is neither true nor false; 'words' can say what it means."
        )

    def complete_batch(self, point: dict[str, Any]) -> None:
        """The batch in all its words, held against each other: global = micro x accumulation x dp."""
        micro, steps = point.get("micro_batch_size"), point.get("gradient_accumulation_steps")
        dp = ParallelLayout.parse(point["layout"]).dp
        if micro is None or steps is None:
            return
        product = micro * steps * dp
        global_batch_size = point.setdefault("global_batch_size", product)
        if global_batch_size != product:
            raise self.fail(
                f"global_batch_size is {global_batch_size}, but micro_batch_size {micro} x "
                f"gradient_accumulation_steps {steps} x dp {dp} is {product}.\n"
                "hint: leave the one that is only a label out of 'case'; it may stand under 'keep'"
            )

    def world_size(self, point: Mapping[str, Any]) -> int:
        case = self.mapped.case
        world_size = self.count("world_size", case["world_size"]) if "world_size" in case else None
        if not self.mapped.is_training:
            assert world_size is not None  # a mapping without it is refused
            return self.at_most(world_size)
        layout = ParallelLayout.parse(point["layout"])
        if world_size is not None and world_size != layout.world_size:
            raise self.fail(f"layout '{layout}' needs {layout.world_size} ranks, but world_size is {world_size}.")
        return self.at_most(layout.world_size)

    def at_most(self, world_size: int) -> int:
        if world_size > MOST_RANKS:
            raise self.fail(f"{world_size} ranks are more than {MOST_RANKS}.")
        return world_size

    def num_nodes(self, world_size: int) -> int:
        case, per_node = self.mapped.case, self.mapped.gpus_per_node
        if "num_nodes" not in case:
            assert per_node is not None  # a mapping without both is refused
            return nodes(world_size, per_node)
        num_nodes = self.count("num_nodes", case["num_nodes"])
        if num_nodes > world_size or (per_node is not None and num_nodes * per_node < world_size):
            room = f"{num_nodes} nodes x {per_node} GPUs" if per_node is not None else f"{num_nodes} nodes"
            raise self.fail(f"{world_size} ranks do not fit {room}.")
        return num_nodes

    def figures(self) -> dict[str, float]:
        figures = {}
        for key, cell in self.mapped.figures.items():
            value = self.number(key, cell)
            if value is None:
                continue
            name = split_key(key)[0]
            if value < 0:
                raise self.fail(f"{key} is {value:g}; no figure is below 0.")
            if FIGURES[name] == "fraction" and value > 1:
                raise self.fail(f"{key} is {value:g}, more than the whole.\nhint: 'unit: \"%\"' in the mapping")
            figures[key] = value
        return figures

    def time_s(self, point: Mapping[str, Any], world_size: int, figures: Mapping[str, float]) -> float:
        """The imported time; from a rate where the file has none, and held against the rate where it has both."""
        if self.mapped.is_training:
            return self.step_time_s(point, world_size, figures)
        latency = next((value for key, value in figures.items() if split_key(key)[0] == "latency"), None)
        algbw = next((value for key, value in figures.items() if split_key(key)[0] == "algbw"), None)
        if not latency and not algbw:
            raise self.fail("the row has neither a latency nor an algbw above 0, so it holds no measurement.")
        if latency and algbw and algbw > _ABOVE_ROUNDING:
            self.expect_alike("algbw", algbw, point["size_bytes"] / latency, "size_bytes over latency")
        return latency or point["size_bytes"] / algbw

    def step_time_s(self, point: Mapping[str, Any], world_size: int, figures: Mapping[str, float]) -> float:
        per_rank = figures.get("tokens_per_s_per_rank")
        rate = figures.get("tokens_per_s", 0.0 if per_rank is None else per_rank * world_size)
        if per_rank is not None and "tokens_per_s" in figures:
            self.expect_alike("tokens_per_s", rate, per_rank * world_size, "tokens_per_s_per_rank times world_size")
        tokens = point.get("global_batch_size", 0) * point.get("seq_len", 0)
        step_time_s = figures.get("step_time")
        if step_time_s:
            if rate and tokens:
                self.expect_alike(
                    "tokens_per_s", rate, tokens / step_time_s, f"{tokens} tokens of a step over step_time"
                )
            return step_time_s
        if not rate:
            raise self.fail("the row has neither a step time nor a throughput above 0, so it holds no measurement.")
        if not tokens:
            raise self.fail(
                "the row has no step time, and without seq_len and global_batch_size (or micro_batch_size and "
                "gradient_accumulation_steps) none follows from its throughput."
            )
        return float(tokens / rate)

    def expect_alike(self, name: str, figure: float, follows: float, how: str) -> None:
        if not math.isclose(figure, follows, rel_tol=_LIKENESS):
            raise self.fail(f"{name} is {figure:.6g}, but {how} gives {follows:.6g}: the row contradicts itself.")

    def model(self) -> ImportedModel | None:
        flops = self.mapped.flops
        if flops is None:
            return None
        values: dict[str, Any] = {
            "convention": flops.convention,
            "peak_flops_per_s": flops.peak_flops_per_s,
            "peak_source": flops.peak_source,
        }
        for name, cell in flops.cells.items():
            value = self.number(name, cell)
            if value is None or value <= 0:
                raise self.fail(f"{name} is {'empty' if value is None else f'{value:g}'}; it must be above 0.")
            values[name] = value
        return ImportedModel(**values)

    @staticmethod
    def tokens_per_s(point: Mapping[str, Any], figures: Mapping[str, float], time_s: float, world_size: int) -> float:
        """Of all ranks."""
        per_rank = figures.get("tokens_per_s_per_rank")
        if per_rank is not None:
            return per_rank * world_size
        tokens = int(point.get("global_batch_size", 0)) * int(point.get("seq_len", 0))
        return figures.get("tokens_per_s", tokens / time_s)

    def expect_possible(self, model: ImportedModel, tokens_per_s: float) -> None:
        """Products with each weight, without attention, are the least that a token takes by any convention."""
        parameters = model.num_parameters - model.embedding_parameters
        flops_per_s = 6 * parameters * tokens_per_s
        if flops_per_s > model.peak_flops_per_s * (1 + MARGIN):
            raise self.fail(
                f"{tokens_per_s:,.0f} tokens/s of one rank are {format_value(flops_per_s, 'FLOP/s')} by products with "
                f"{parameters:.3g} parameters alone, more than the peak, "
                f"{format_value(model.peak_flops_per_s, 'FLOP/s')}.\n"
                "hint: a rate of all ranks is 'tokens_per_s'; 'num_parameters' are those that a token meets"
            )

    def value(self, name: str, cell: Cell) -> Value:
        """What stands there, as YAML would read it."""
        if not cell.columns:
            return cell.value
        if "" not in cell.columns:
            return "-".join(f"{prefix}{self.cells[column]}" for prefix, column in cell.columns.items())
        column = cell.columns[""]
        text = self.cells[column]
        if cell.after or cell.before:
            text = self.between(column, text, cell)
        if text == "" and "" not in cell.words:
            if cell.optional:
                return None
            raise self.fail(f"column '{column}' is empty, where {self.mapped.path}:{cell.line} reads '{name}'.")
        if not cell.words:
            return text
        if text not in cell.words:
            raise self.fail(
                f"column '{column}' holds {as_yaml(text)}, and {self.mapped.path}:{cell.line} does not say what that "
                f"means.{nearest(text, cell.words)}\nKnown: {', '.join(as_yaml(word) for word in cell.words)}."
            )
        return cell.words[text]

    def between(self, column: str, text: str, cell: Cell) -> str:
        _, separator, rest = text.partition(cell.after) if cell.after else ("", "x", text)
        if not separator:
            raise self.fail(f"column '{column}' holds {as_yaml(text)}, in which there is no {as_yaml(cell.after)}.")
        return (rest.partition(cell.before)[0] if cell.before else rest).strip()

    def text(self, name: str, cell: Cell) -> str | None:
        value = self.value(name, cell)
        return None if value is None else str(value)

    def number(self, name: str, cell: Cell) -> float | None:
        value = self.value(name, cell)
        if value is None:
            return None
        text = str(value)
        if isinstance(value, bool) or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            column = cell.columns.get("", "")
            what = f"column '{column}' holds" if column else f"'{name}' is"
            raise self.fail(f"{what} {as_yaml(text)}, where '{name}' needs a number.")
        return float(text) * cell.factor

    def count(self, name: str, cell: Cell, least: int = 1) -> int:
        value = self.number(name, cell)
        assert value is not None  # a mapping in which this is optional is refused
        return self.whole(name, value, least)

    def whole(self, name: str, value: float, least: int = 1) -> int:
        if value != int(value) or not least <= value <= 2**53:
            raise self.fail(f"'{name}' is {value:g}; it must be a whole number of at least {least}.")
        return int(value)
