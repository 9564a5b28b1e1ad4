"""A table of steps to price: the columns in which training runs are published, a step a row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterbench.cluster import GPUS_OF_A_NODE, find_card, meant_card
from clusterbench.errors import LayoutError, SuiteError
from clusterbench.expected.fits import SHOWN
from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.formulas.transformer import hardware_flops, model_flops
from clusterbench.job import MOST_TOKENS, TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import as_yaml
from clusterbench.pricing.probes import Probe
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.published_models import published_model
from clusterbench.pricing.published_speed import COUNTS
from clusterbench.pricing.table_file import written_rows
from clusterbench.pricing.table_layout import NODE, WORDS_OF_SHARDING, CannotRead, cells_of_layout, sharing_in
from clusterbench.pricing.table_words import (
    NOT_MEASURED,
    NOT_SAID,
    OF_MEMORY,
    OF_THE_CARD,
    OUT_OF_MEMORY,
    Meaning,
    has_units_of_memory,
    hint_for,
    is_memory,
    is_result,
    meaning_of,
    name_on_record,
    names_experts,
    of_memory,
    without_marks,
)
from clusterbench.shape import ModelShape
from clusterbench.shape_file import SUFFIXES, shape_in_file
from clusterbench.words import plural

MOST_ROWS = 100_000

MODEL = ("layers", "hidden", "ffn", "heads", "vocab")
OF_SHAPE = ("layers", "hidden", "heads")
"""Of a model whose shape is not on record, what nothing else tells."""
STEP = ("seq", "gpus", "mbs", "gbs")
DEGREES = ("tp", "pp", "dp", "cp", "ep")
MEASURED = ("step_s", "tokens_per_s_per_gpu", "mem_gb")
FIGURES = (*MEASURED, "tokens_per_s_of_all", "tflops_per_gpu", "mfu")
COLUMNS = (
    *("source", "model", "params_b", *MODEL, "kv_heads", *STEP, "gpu", "gpus_per_node", "precision", *DEGREES),
    *("sp", "vpp", "zero", "dp_overlap", "recompute", *MEASURED, "tflops_per_gpu", "mfu", "note"),
)
_PUBLISHED = (
    *("ga", "fsdp", "checkpointing", "num_nodes", "layout", "shard_group_size", "dp_replicate", "flops_convention"),
    *("reduce_dtype", "tokens_per_s_of_all"),
)
"""Of other tables, which say by them what ours say by ``dp``, ``zero`` and ``recompute``.

Columns that are not known are an error: a figure in one would be left out unseen."""

SEQ_LEN, VOCAB_SIZE = 2048, 51_200
"""Taken where a table does not say."""

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:[eE][-+]?[0-9]{1,3})?")
MOST, MOST_OF = 10**9, {"layers": 10_000}
"""The largest whole number of a cell."""

PRICED_PRECISIONS = ("bf16", "bfloat16", "fp16", "float16")
"""Of products; a GPU multiplies both at one rate. An empty cell is taken for bfloat16."""

_PRICED = ("bfloat16", "float16")
_WORDS_OF_PRECISION = {"amp", "mixed", "precision", "true", "pure"}
_OF_EITHER_HALF = {"amp"}
"""What multiplies in float16 or bfloat16, which a GPU does at one rate: torch.amp has no other types on CUDA."""

_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_SPACED = re.compile(r"[1-9][0-9]{0,2}(?:[ '’\u00a0\u202f][0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_WITH_POINTS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){1,4},[0-9]{1,15}")
_POINT_OF_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{3}")
_FRACTION = re.compile(r"(?:0|[1-9][0-9]{0,14}),(?:[0-9]{1,2}|[0-9]{4,15})|0,[0-9]{3}")
"""A comma that parts no thousands."""
_WITH_UNIT = re.compile(r"([0-9.,]{1,20}) ?([a-zA-Z/%]{1,20})")
_UNITS: Mapping[str, Mapping[str, float]] = {
    "mem_gb": OF_MEMORY,
    "step_s": {"s": 1.0, "sec": 1.0, "ms": 1e-3},
    "params_b": {"b": 1.0, "m": 1e-3},
    "tflops_per_gpu": {"tflop/s": 1.0, "tflops": 1.0},
    "tokens_per_s_per_gpu": {"k": 1e3},
    "mfu": {"%": 0.01},
    "gpus": {"gpus": 1.0},
    "num_nodes": {"nodes": 1.0},
    "seq": {"tokens": 1.0},
}
_OF_FEW_DIGITS = ("step_s", "params_b", "mem_gb", "tflops_per_gpu", "mfu")
"""Columns in which a comma may part thousands or a fraction."""

_REDUCED_IN = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
_YES = ("1", "true", "yes", "y", "on", "enabled", "✓", "✔")
_NO = ("0", "false", "no", "n", "off", "disabled", "✗", "✘")
_YES_OR_NO = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}
_FLAGS = ", ".join((*_YES[:3], *_NO[:3]))
_IN_WORDS = ("source", "model", "gpu", "note", *FIGURES)
"""Columns of which a cell is read as it stands."""
_WITH_NONE = ("recompute", "checkpointing", "zero", "fsdp", "precision", "sp", "dp_overlap", "layout")
"""Those of which ``none`` says something."""
_OF_A_NODE = re.compile(r"\b([0-9]{1,4}) ?(?:/|per) ?node\b")
_OF_CARDS = re.compile(r"([0-9]{1,7}) ?[x×*] ?(.+)")
_AGAIN = {
    "no": "none",
    "off": "none",
    "false": "none",
    "yes": "full",
    "on": "full",
    "true": "full",
    "selective op": "selective",
    "op": "selective",
}
"""What tables call recomputation, and whether layers are computed again; torchtitan's selective goes by operators."""

MOST_OF_FACT = {"params_b": 1e5, "tflops_per_gpu": 1e5, "mfu": 1.0}
"""Beyond any model and card: the unit is another one."""

_ABOUT_ZERO = "so each rank of dp holds all of the optimizer's states"

_SIZE_OF_PARAMETERS = 0.02  # a published number of parameters is rounded
_SAME_MODEL = 1.2  # a name's number is rounded, and may leave out tables
_ANOTHER_MODEL = 2.0
"""By how much a published number of parameters may be off before columns are those of another model."""

_SAME_SPEED = 0.05  # step_s and tokens/s of one row, beside the rounding of step_s
_SIZE_OF_FLOPS = 0.01  # so are FLOP/s, and formulas leave out norms
_SEQ_LENS = [2**exponent for exponent in range(7, 21)]
_BY_FLOPS = {"none": "none", "full": "megatron_full"}
"""What a table calls recomputation, and the formula that counts it."""


@dataclass(frozen=True)
class TableRow:
    """A row as it may be priced.

    Attributes
    ----------
    model, gpu
        As the table has them.
    priced
        None where it cannot be told what ran; ``reason`` then says why.
    step_s, memory_gb
        Measured, where they were.
    elsewhere
        Of a case that needs more nodes than its run had: the step that it would be.
    says_zero, says_recompute
        Whether it names a stage of ZeRO, and what is computed again.
    tflops, mfu, convention
        FLOP/s of a GPU in units of 1e12 and their share of its peak, as published, and how they were counted, where
        the table says so.
    rounding
        What figures are rounded to at most, by column, in our units.
    out_of_memory
        Whether it did not run for that.
    is_unread
        Whether the reason is a cell that cannot be read.
    """

    line: int
    model: str
    gpu: str
    priced: PricedJob | None = None
    reason: str = ""
    step_s: float | None = None
    memory_gb: float | None = None
    elsewhere: PricedJob | None = None
    says_zero: bool = True
    says_recompute: bool = True
    tflops: float | None = None
    mfu: float | None = None
    convention: str = ""
    rounding: Mapping[str, float] = field(default_factory=dict)
    out_of_memory: bool = False
    is_unread: bool = False


@dataclass(frozen=True)
class StepTable:
    """All rows of a table, or cases of a run, and what was taken for empty cells, in words.

    ``has_lines`` tells a table from a run, whose cases are counted from 1; ``machine`` is that of the run, and
    ``probes`` are its figures of products, copies, collectives and messages. ``memory`` says which memory was measured,
    as the column's name has it, and ``not_read`` are columns of results.
    """

    name: str
    rows: Sequence[TableRow]
    defaults: Sequence[str] = ()
    has_lines: bool = True
    machine: Fingerprint = UNKNOWN
    probes: Sequence[Probe] = ()
    memory: str = ""
    not_read: Sequence[str] = ()

    def place(self, row: TableRow) -> str:
        """Where a row stands: ``steps.csv:12``, or the case of a run."""
        return f"{self.name}:{row.line}" if self.has_lines else f"{self.name}: {row.model}"


def read_steps(path: Path, gpus_per_node: int | None, gpu: str | None = None) -> StepTable:
    """The steps of a CSV file.

    Parameters
    ----------
    gpus_per_node
        Where the table does not say; None for the usual server of each row's card.
    gpu
        The card of all rows, in place of the table's column.

    Raises
    ------
    SuiteError
        ``file:line:`` and what is wrong, where a column is missing or not known, or no row can be read. A row that
        cannot be read or priced has a reason, and the others are priced.
    """
    if path.suffix in (".yaml", ".yml"):
        raise SuiteError(
            f"{path.name} is no table: a row of a CSV, or of Markdown, is a step.\n"
            f"hint: 'clusterbench run {path}' runs a suite, and the folder it writes can be priced"
        )
    rows = written_rows(path)
    line, header = next(rows, (1, []))
    header = [without_marks(name) for name in header]
    written = [(line, cells) for line, cells in rows]
    columns = _columns(path, line, header, written)
    defaults: Counter[str] = Counter()
    marked: list[str] = []
    read: list[TableRow] = []
    columns, about_mfu = _with_share(columns, written)
    meanings = {meaning.column: meaning for meaning in columns.values()}
    numbers = [number for number, meaning in columns.items() if meaning.column in FIGURES]
    has_decimal_commas = any(_is_decimal(cells[at]) for _, cells in written for at in numbers if at < len(cells))
    for line, cells in written:
        if len(read) == MOST_ROWS:
            raise SuiteError(f"{path.name}:{line}: more than {MOST_ROWS} rows.")
        while len(cells) > len(header) and not cells[-1]:
            cells = cells[:-1]
        if len(cells) != len(header):
            why = f"the row has {len(cells)} cells and the header {len(header)}"
            read.append(TableRow(line, "", "", reason=why, is_unread=True))
            continue
        of_columns = {meaning.column: cells[number] for number, meaning in columns.items()}
        row = _Row(path, line, of_columns, meanings, gpus_per_node, gpu)
        row.has_decimal_commas = has_decimal_commas
        read.append(row.as_step())
        defaults.update(row.defaults)
        marked += row.marked
    if not read:
        raise SuiteError(f"{path.name} has a header and no rows, so there is nothing to price.")
    if all(row.is_unread for row in read):
        raise SuiteError(f"{path.name}:{read[0].line}: {read[0].reason}.")
    said = [f"{words}: {number} of {len(read)} rows" for words, number in defaults.items()]
    if marked:
        said.append(f"marks of footnotes are left out, as of {marked[0]}: {plural(len(marked), 'cell')}")
    not_read = [name for number, name in enumerate(header) if number not in columns]
    memory = next((meaning.said for meaning in columns.values() if meaning.column == "mem_gb"), "")
    about = [*_about_columns(header, columns), *about_mfu]
    return StepTable(path.name, read, [*about, *said], memory=memory, not_read=not_read)


def _with_share(
    columns: Mapping[int, Meaning], rows: Sequence[tuple[int, Sequence[str]]]
) -> tuple[dict[int, Meaning], list[str]]:
    """The columns with the factor that makes shares of MFU, which tables have in percent or not, and what to say."""
    found, said = dict(columns), []
    for number, meaning in columns.items():
        if meaning.column != "mfu":
            continue
        cells = [without_marks(cells[number]) for _, cells in rows if number < len(cells)]
        values = [float(cell) for cell in cells if _NUMBER.fullmatch(cell)]
        if not values:
            continue
        in_percent = max(values) > 1
        if in_percent != (meaning.factor != 1):
            found[number] = meaning._replace(factor=0.01 if in_percent else 1.0)
            said.append(
                f"mfu is taken for {'percent' if in_percent else 'a share of 1'}, as its largest is {max(values):g}"
            )
    return found, said


def _columns(
    path: Path, line: int, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> dict[int, Meaning]:
    """What each column is in our words, without those that are results of no use here."""
    names = [name.lower() for name in header]
    for name, number in Counter(names).items():
        if number > 1:
            raise SuiteError(f"{path.name}:{line}: column {as_yaml(name)} is there {number} times.")
    known = (*COLUMNS, *_PUBLISHED)
    meanings = {number: Meaning(name) if name in known else meaning_of(name) for number, name in enumerate(names)}
    for number, name in enumerate(names):
        if meanings[number] is None and is_memory(name):
            cells = [without_marks(cells[number]) for _, cells in rows if number < len(cells)]
            if has_units_of_memory(cells):
                meanings[number] = of_memory(name)
    unknown = [name for number, name in enumerate(names) if meanings[number] is None and not is_result(name)]
    if unknown:
        which = f"unknown column{'s' if unknown[1:] else ''} {', '.join(map(as_yaml, unknown))}"
        hints = "".join(f"\nhint: {as_yaml(name)}: {hint_for(name)}" for name in unknown)
        raise SuiteError(f"{path.name}:{line}: {which}.\nColumns: {', '.join(known)}.{hints}")
    columns = {number: meaning for number, meaning in meanings.items() if meaning is not None}
    for column, count in Counter(meaning.column for meaning in columns.values()).items():
        if count > 1:
            both = [as_yaml(header[number]) for number, meaning in columns.items() if meaning.column == column]
            raise SuiteError(f"{path.name}:{line}: columns {' and '.join(both)} are both {column}.")
    there = {meaning.column for meaning in columns.values()}
    needed = (*OF_SHAPE, *STEP) if "model" not in there or there & {*OF_SHAPE} else STEP
    instead = {"gpus"} if there & {"num_nodes", "gpu"} else set()  # which may say how many
    if missing := [name for name in needed if name not in there | instead]:
        hint = (
            ""
            if "model" in there
            else "\nhint: a column 'model' with shapes on record may stand for those of the shape"
        )
        raise SuiteError(f"{path.name}:{line}: no column {missing[0]!r}. Needed: {', '.join(needed)}.{hint}")
    return columns


def _about_columns(header: Sequence[str], columns: Mapping[int, Meaning]) -> Iterator[str]:
    """Which columns were taken for which, and which were not read."""
    taken = [
        f"{header[number]} for {meaning.column}{f' x {meaning.factor:.4g}' if meaning.factor != 1 else ''}"
        f"{f' ({meaning.said})' if meaning.said else ''}"
        for number, meaning in columns.items()
        if header[number].lower() != meaning.column
    ]
    if taken:
        yield f"columns are taken as published: {', '.join(taken)}"
    if results := [name for number, name in enumerate(header) if number not in columns]:
        yield f"columns not read, as they say nothing of what ran: {', '.join(results)}"


def as_usual(table: StepTable, zero: int, dp_overlap: str, reduce_dtype: str = "") -> StepTable:
    """The table with what a profile takes of rows that do not say it; see :class:`~.profiles.Profile`.

    A row that says whether gradients are hidden has a reason where that is no choice.
    """
    rows, said = [], Counter[str]()
    for row in table.rows:
        of = row.priced
        if of is not None and of.job.layout.degree(of.job.layout.data_axis) > 1:
            if not row.says_zero:
                of = replace(of, job=replace(of.job, layout=replace(of.job.layout, zero=zero)))
                row = replace(row, priced=of, says_zero=True)
                said[f"zero is not said: {zero} taken, {_ABOUT_ZERO if zero == 0 else 'as the profile has it'}"] += 1
            if dp_overlap and of.dp_overlap is None:
                said[f"dp_overlap is not said: {dp_overlap}"] += of.job.layout.zero == 1
            elif not dp_overlap and of.dp_overlap is not None:
                row = replace(row, priced=None, reason="dp_overlap is said, and is no choice in this profile")
            if reduce_dtype and not of.reduce_dtype:
                said[f"reduce_dtype is not said: gradients are sent in {reduce_dtype}"] += 1
            elif not reduce_dtype and of.reduce_dtype not in ("", "float32"):
                why = f"reduce_dtype is {of.reduce_dtype}, and this profile sends gradients in float32"
                row = replace(row, priced=None, reason=why)
        rows.append(row)
    words = [f"{what}: {number} of {len(rows)} rows" for what, number in said.items() if number]
    return replace(table, rows=rows, defaults=[*table.defaults, *words])


def _plain(name: str, text: str) -> tuple[str, float | None]:
    """A cell's number without what parts thousands, and what its unit makes of it; None without a unit.

    >>> _plain("tokens_per_s_per_gpu", "20,000"), _plain("mem_gb", "60 GB"), _plain("step_s", "1,420")
    (('20000', None), ('60', 1.0), ('1,420', None))
    >>> _plain("step_s", "0,42"), _plain("mfu", "57.1%"), _plain("gbs", "2 048"), _plain("tokens_per_s_per_gpu", "3.7k")
    (('0.42', None), ('57.1', 0.01), ('2048', None), ('3.7', 1000.0))
    """
    if text.isascii() and text.isdigit():
        return text, None  # most cells
    factor = None
    if (match := _WITH_UNIT.fullmatch(text)) is not None:
        unit = match[2].lower()
        found = _UNITS.get(name, {}).get(unit)
        if found is None and (meaning := meaning_of(unit)) is not None and meaning.column == name:
            found = meaning.factor  # 3760 token/gpu/sec
        if found is not None:
            text, factor = match[1], found
    if _WITH_POINTS.fullmatch(text):
        return text.replace(".", "").replace(",", "."), factor
    if _SPACED.fullmatch(text):
        return re.sub(r"[^0-9.]", "", text), factor
    if name in (*_OF_FEW_DIGITS, "tokens_per_s_per_gpu") and _FRACTION.fullmatch(text):
        return text.replace(",", "."), factor
    grouped = name not in _OF_FEW_DIGITS and _GROUPED.fullmatch(text)
    return (text.replace(",", "") if grouped else text), factor


def _is_decimal(text: str) -> bool:
    """Whether the comma of a cell parts a fraction."""
    return _FRACTION.fullmatch(text) is not None or _WITH_POINTS.fullmatch(text) is not None


def _hint(name: str, text: str) -> str:
    """What a person may have meant, where that is more than one number."""
    if name in _OF_FEW_DIGITS and _GROUPED.fullmatch(text):
        return f": {text.replace(',', '')} or {text.replace(',', '.', 1).replace(',', '')}"
    if (match := re.fullmatch(r"([0-9]{1,5})[kK]", text)) is not None:
        return f": {int(match[1]) * 1000} or {int(match[1]) * 1024}"
    if re.fullmatch(r"[0-9.,]{1,20} ?\([0-9.,]{1,20}\)", text) is not None:
        return ": two, of which a row has one"
    if re.fullmatch(r"-[0-9.,]{1,20}", text) is not None:
        return " of 0 and more"
    return f": write {text[1:].strip()} if it is near enough" if text[:1] in "~≈" else ""


class _CannotPrice(Exception):
    """A row that can be read, of which it cannot be told what ran."""


class _Row:
    """One row, and what was taken for its empty cells."""

    def __init__(
        self,
        table: Path,
        line: int,
        cells: Mapping[str, str],
        meanings: Mapping[str, Meaning],
        gpus_per_node: int | None,
        gpu: str | None,
    ) -> None:
        self.folder, self.line, self.where = table.parent, line, f"{table.name}:{line}"
        plain = {name: text if name in ("source", "note") else without_marks(text) for name, text in cells.items()}
        self.marked = [f"{as_yaml(cells[name])} in line {line}" for name in cells if plain[name] != cells[name]]
        self.cells = cells = {name: "" if _says_nothing(name, text) else text for name, text in plain.items()}
        self.meanings = meanings
        self.recompute = ""
        self.cards = _OF_CARDS.fullmatch(cells.get("gpu", ""))
        if self.cards is not None:
            cells["gpu"] = self.cards[2]
        named = gpu or cells.get("gpu", "")
        self.card = card = find_card(named) or meant_card(named)
        self.gpus_per_node = gpus_per_node or (GPUS_OF_A_NODE if card is None else card.usual_gpus_per_node)
        self.is_usual_node = gpus_per_node is None
        self.defaults: list[str] = []
        self.is_gated = True
        self.has_decimal_commas = False

    def as_step(self) -> TableRow:
        row = TableRow(self.line, self.cells.get("model", ""), self.cells.get("gpu", ""))
        try:
            return self._step(row)
        except (_CannotPrice, CannotRead) as why:
            return replace(row, reason=str(why))
        except SuiteError as error:  # a cell that cannot be read ends no row but its own
            said = str(error).removeprefix(f"{self.where}: ").partition("\n")[0].removesuffix(".")
            return replace(row, reason=said, is_unread=True)

    def _step(self, row: TableRow) -> TableRow:
        self._take_apart()
        gpus, of_node = self._gpus()
        per_node = min(gpus, of_node) if gpus is not None else of_node
        is_sharded = self.cells.get("fsdp", "").lower() not in ("", "0", "false", "no")
        is_said = [self.cells.get(name) for name in ("zero", "shard_group_size", "dp_replicate")]
        figures = self._number("tflops_per_gpu") or None, self._number("mfu") or None
        row = replace(
            row,
            says_zero=is_sharded or any(is_said),
            says_recompute=bool(self.cells.get("recompute") or self.cells.get("checkpointing")),
            memory_gb=self._memory_gb(),
            tflops=figures[0],
            mfu=figures[1],
            convention=self._convention(),
            rounding={name: self._rounding(name) for name in FIGURES if self._number(name)},
            out_of_memory=any(self.cells.get(name, "").lower() in OUT_OF_MEMORY for name in FIGURES),
        )
        try:
            self._expect_priced_precision()
            self._read_recomputation()
            layout, group = self._layout(gpus, per_node)
            if gpus is None:
                per_node = min(layout.world_size, of_node)
                self.defaults.append(f"gpus is {_how(self.cells, 'gpus')}: those of the layout")
            job = self._job(layout)
            self._expect_batch(job)
            measured_s = self._measured_step(job)
        except (_CannotPrice, CannotRead) as why:
            return replace(row, reason=str(why))
        chunks = self._whole("vpp")
        if chunks is None and layout.pp > 1:
            self.defaults.append("vpp is not said: stages of pp taken without interleaving")
        priced = PricedJob(
            job,
            per_node,
            chunks or 1,
            self.recompute or "none",
            {"shard_group_size": group} if group else {},
            is_gated=self.is_gated,
            dp_overlap=self._flag("dp_overlap"),
            reduce_dtype=self._reduce_dtype(),
        )
        return replace(row, priced=priced, step_s=measured_s)

    def _take_apart(self) -> None:
        """Puts what a cell of several degrees says where the columns of each are empty."""
        if not (text := self.cells.get("layout", "")):
            return
        for column, value in cells_of_layout(text, self.meanings["layout"].order).items():
            if (there := self.cells.get(column, "")) and there != value:
                raise _CannotPrice(f"layout is {as_yaml(text)}, and {column} is {there}: one of them is another step's")
            self.cells[column] = value

    def _gpus(self) -> tuple[int | None, int]:
        """How many there are, where the row says that, and how many a node has."""
        gpus, nodes = self._whole("gpus"), self._whole("num_nodes")
        of_node = self._whole("gpus_per_node")
        if of_node is None:
            of_node = self.gpus_per_node
            if self.is_usual_node and (words := _OF_A_NODE.search(self.cells.get("gpu", "").lower())):
                of_node = int(words[1]) or of_node
                how = as_yaml(self.cells["gpu"])
                self.defaults.append(f"gpus_per_node is {_how(self.cells, 'gpus_per_node')}: {of_node}, as {how} says")
            elif self.is_usual_node and gpus != 1:
                whose = f", as in the usual server of {self.card.name}" if self.card is not None else ""
                self.defaults.append(f"gpus_per_node is {_how(self.cells, 'gpus_per_node')}: {of_node} taken{whose}")
        if gpus is None and nodes is not None:
            return nodes * of_node, of_node
        if gpus is None and self.cards is not None:
            self.defaults.append(f"gpus is {_how(self.cells, 'gpus')}: the number before the card")
            return int(self.cards[1]), of_node
        if gpus is not None and nodes is not None and not (nodes - 1) * of_node < gpus <= nodes * of_node:
            raise _CannotPrice(f"gpus is {gpus} and num_nodes {nodes}, and a node has {of_node} GPUs")
        return gpus, of_node

    def _memory_gb(self) -> float | None:
        value = self._number("mem_gb") or None
        if value is None or not self.meanings["mem_gb"].said.endswith(OF_THE_CARD):
            return value
        if self.card is None or self.card.memory_bytes is None:
            self.defaults.append("mem_gb is in percent of a card that is not known: not compared")
            return None
        return value * SHOWN * self.card.memory_bytes / 1e9

    def _reduce_dtype(self) -> str:
        said = self.cells.get("reduce_dtype", "").lower()
        if said and said not in _REDUCED_IN:
            raise SuiteError(
                f"{self.where}: reduce_dtype is {as_yaml(said)}, and must be one of {', '.join(_REDUCED_IN)}."
            )
        return _REDUCED_IN.get(said, "")

    def _convention(self) -> str:
        said = self.cells.get("flops_convention", "").lower()
        if said and said not in COUNTS:
            raise SuiteError(
                f"{self.where}: flops_convention is {as_yaml(said)}, and must be one of {', '.join(COUNTS)}."
            )
        return said or (self.meanings["tflops_per_gpu"].said if "tflops_per_gpu" in self.meanings else "")

    def _expect_priced_precision(self) -> None:
        given = self.cells.get("precision", "")
        words = set(re.findall(r"[a-z0-9]+", given.lower()))
        words = words - _WORDS_OF_PRECISION or words & _OF_EITHER_HALF
        if given and not (words and words <= {*PRICED_PRECISIONS, *_OF_EITHER_HALF}):
            raise _CannotPrice(
                f"precision {as_yaml(given)}: rates of products are those of bf16 and fp16, and other products are "
                "faster or slower"
            )
        if not given and self.card is not None and "float8" in self.card.peak_flops_per_s:
            self.defaults.append(
                "precision is not said: products in bf16 taken, and such a card multiplies in fp8, too"
            )
        if (
            self.card is not None
            and "bfloat16" not in self.card.peak_flops_per_s
            and not words & {"fp16", "float16", *_OF_EITHER_HALF}
        ):
            said = f"precision {as_yaml(given)}" if given else "precision is empty, taken for bf16"
            raise _CannotPrice(f"{said}: {self.card.name} multiplies in fp16, and not in bf16")

    def _layout(self, gpus: int | None, per_node: int) -> tuple[ParallelLayout, int]:
        """How ranks share a step, and of HSDP how many of them shard; 0 where all do."""
        degrees = {name: self._default(name, 1) for name in DEGREES if name != "dp"}
        others = degrees["tp"] * degrees["pp"] * degrees["cp"]
        dp = self._whole("dp")
        if dp is None:
            if gpus is None or gpus % others:
                raise _CannotPrice("neither dp nor the number of GPUs says how many copies there are")
            dp = gpus // others
            self.defaults.append(f"dp is {_how(self.cells, 'dp')}: the GPUs that tp, pp and cp leave")
        zero, group = self._sharing(dp * degrees["cp"], per_node // degrees["tp"])
        try:
            shards = zero if dp * degrees["cp"] > 1 else 0
            layout = ParallelLayout(**degrees, dp=dp, zero=shards, sp=self._is_sequence_parallel(degrees["tp"]))
        except LayoutError as error:
            raise _CannotPrice(str(error)) from None
        if gpus is not None and gpus != layout.world_size:
            raise _CannotPrice(f"{layout} needs {layout.world_size} GPUs, and the row has {gpus}")
        return layout, group

    def _sharing(self, copies: int, of_node: int) -> tuple[int, int]:
        """A stage of ZeRO, and of HSDP how many ranks shard, which is 0 where all of them do.

        Parameters
        ----------
        copies
            Ranks that hold the same weights.
        of_node
            Of them those in one node.
        """
        stage, said = self._fully_sharded(copies)
        name = "fsdp" if stage else "zero"
        if not stage or self.cells.get("zero"):
            of_zero, of_words = self._stage("zero", copies)
            if stage and of_zero < 2:
                fsdp, zero = (as_yaml(self.cells[each]) for each in ("fsdp", "zero"))
                raise _CannotPrice(f"fsdp is {fsdp}, and zero is {zero}: FSDP is ZeRO 2 or 3")
            stage, said = of_zero, of_words or said
        group = self._said_group(copies) or said
        if said not in (None, NODE, group):
            text = as_yaml(self.cells[name])
            raise _CannotPrice(f"{name} is {text}, and the column of groups that shard makes them {group}")
        if group is None or copies == 1:
            return stage, 0
        if not self.cells.get("zero") and not stage:
            stage = 3  # who names groups that shard names HSDP
        if stage < 2:
            raise _CannotPrice(
                f"groups of {group} ranks that shard, and zero is {stage}: HSDP shards weights, ZeRO 2 or 3"
            )
        if group == NODE:
            text = as_yaml(self.cells[name])
            if copies <= of_node:
                self.defaults.append(f"{name} is {text}, and all ranks are in one node: all of them shard")
                return stage, 0
            if of_node < 2 or copies % of_node:
                raise _CannotPrice(
                    f"{name} is {text}, which shards within a node, and of the {copies} ranks with the same weights a "
                    f"node has {of_node}: a column shard_group_size says how many shard"
                )
            self.defaults.append(
                f"{name} is {text}: groups of {of_node} ranks, those of a node, as PyTorch's HYBRID_SHARD has it; a "
                "column shard_group_size says otherwise"
            )
            group = of_node
        if group == 1 or copies % group:
            raise _CannotPrice(f"groups of {group} ranks that shard do not divide the {copies} ranks of dp x cp")
        if said == group < copies and name == "fsdp" and self.cells["fsdp"].isdigit():
            self.defaults.append(
                f"fsdp is {group}, and {copies} ranks have the same weights: the others are copies (HSDP)"
            )
        return stage, 0 if group == copies else group

    def _said_group(self, copies: int) -> int | None:
        shard, replicas = self._whole("shard_group_size"), self._whole("dp_replicate")
        if replicas is not None and (copies % replicas or (shard is not None and shard * replicas != copies)):
            of = f" of {shard} ranks that shard" if shard is not None else ""
            raise _CannotPrice(f"dp_replicate {replicas}{of} does not make the {copies} ranks of dp x cp")
        return copies // replicas if shard is None and replicas is not None else shard

    def _fully_sharded(self, copies: int) -> tuple[int, int | None]:
        """3 where a column ``fsdp`` says so, by a word, or by over how many ranks; 0 where it says none."""
        text = self.cells.get("fsdp", "").lower()
        said = _YES_OR_NO.get(text) if text != "1" else None
        if not text or said is False or copies == 1:
            return 0, None
        if said is None and text == "1":
            raise _CannotPrice("fsdp is 1, which may be 'yes' or a degree: write zero in its place")
        if said is None and not text[0].isdigit():
            return self._stage("fsdp", copies)
        return 3, self._whole("fsdp") if said is None else None

    def _read_recomputation(self) -> None:
        """``recompute``; or ``checkpointing``, of whole layers where it is a yes, as Composer and DeepSpeed have it."""
        name = "recompute" if self.cells.get("recompute") else "checkpointing"
        text = self.cells.get(name, "").lower()
        if not text or (name == "recompute" and text not in _AGAIN):
            self.recompute = text.removesuffix("+sp") + "+SP" * text.endswith("+sp")
            return
        said = text if text in ("none", "selective", "full") else _AGAIN.get(text)
        if said is None and text not in _YES_OR_NO:
            raise _CannotPrice(
                f"{name} is {as_yaml(text)}, and prices are of none, selective and full: of every layer, not of some"
            )
        if said is None and (flag := self._flag("checkpointing")) is not None:
            said = "full" if flag else "none"
        assert said is not None
        self.recompute = said
        if said != text and said == "full":
            self.defaults.append("activation checkpointing is said: whole layers computed again")

    def _expect_batch(self, job: TrainingJob) -> None:
        """Refuses a batch that is not what the row's other numbers make of it."""
        if job.tokens_per_step > MOST_TOKENS:
            raise _CannotPrice(
                f"{job.global_batch_size} sequences of {job.seq_len} are {job.tokens_per_step / 1e9:.3g} billion "
                "tokens a step: gbs must be in sequences"
            )
        forwards, per_forward = self._whole("ga"), job.micro_batch_size * job.layout.dp
        if forwards is not None and forwards * per_forward != job.global_batch_size:
            raise _CannotPrice(
                f"mbs {job.micro_batch_size} x dp {job.layout.dp} x {forwards} accumulations are "
                f"{forwards * per_forward}, and gbs is {job.global_batch_size}"
            )

    def _is_sequence_parallel(self, tp: int) -> bool:
        """Whether ranks of tp share the sequence between its products, which ``selective+SP`` says, too."""
        said = self._flag("sp")
        if tp == 1:
            return False  # nothing to share
        if said is not None:
            return said
        if not self.recompute.lower().endswith("+sp"):
            self.defaults.append("sp is not said: tp taken with sequence parallelism, as is usual")
        return True

    def _flag(self, name: str) -> bool | None:
        """Of a cell; None where it is empty."""
        text = self.cells.get(name, "").lower()
        if text and text not in _YES_OR_NO:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be one of {_FLAGS}.")
        return _YES_OR_NO[text] if text else None

    def _job(self, layout: ParallelLayout) -> TrainingJob:
        shape, mbs, gbs = self._shape(), self._whole("mbs"), self._whole("gbs")
        if gbs is None:
            raise _CannotPrice("gbs is empty")
        seq = self._seq_len(shape, layout.world_size, gbs)
        if mbs is None:
            mbs = max(1, gbs // layout.dp) if layout.pp == 1 else 1
            self.defaults.append("mbs is empty: 1 with stages, else the whole batch of a dp rank")
        return TrainingJob(shape, layout, seq, gbs, mbs, "bfloat16", device="cuda")

    def _seq_len(self, shape: ModelShape, world_size: int, gbs: int) -> int:
        """Of a sequence, and what is computed again; where those are empty, as the published FLOP/s tell them."""
        told = self._told_by_flops(shape, world_size, gbs)
        if told is not None and not self.recompute:
            self.recompute = told[1]
            self.defaults.append("recompute is empty: told by step_s and tflops_per_gpu")
        elif not self.recompute:
            how = "empty" if "recompute" in self.cells else "not said"
            self.defaults.append(f"recompute is {how}: none taken")
        if told is not None and self._whole("seq") is None:
            self.defaults.append("seq is empty: told by step_s and tflops_per_gpu")
            return told[0]
        return self._default("seq", SEQ_LEN)

    def _told_by_flops(self, shape: ModelShape, world_size: int, gbs: int) -> tuple[int, str] | None:
        """The one sequence and recomputation from which published FLOP/s follow; None where there are more, or none.

        Those of Narayanan et al. 2021, arXiv:2104.04473, equation 3, count what is computed again.
        """
        step_s, tflops, seq = self._number("step_s"), self._number("tflops_per_gpu"), self._whole("seq")
        if not step_s or not tflops or (seq is not None and self.recompute):
            return None
        published = 1e12 * tflops * step_s * world_size
        found = {
            (seq_len, words)
            for seq_len in ([seq] if seq else _SEQ_LENS)
            for words, counted in _BY_FLOPS.items()
            for convention in ("palm", "causal")
            if self.recompute in ("", words)
            and abs(hardware_flops(shape, seq_len, gbs, counted, convention) / published - 1) <= _SIZE_OF_FLOPS
        }
        return found.pop() if len(found) == 1 else None

    def _shape(self) -> ModelShape:
        if not any(self.cells.get(name) for name in ("layers", "hidden", "heads")):
            return self._known_shape()
        if names_experts(model := self.cells.get("model", "")):
            raise _CannotPrice(
                f"{as_yaml(model)} has experts, of which columns say nothing: leave layers, hidden and heads empty, "
                "with the path of its config.json as model"
            )
        layers, hidden, heads = (self._needed(name) for name in ("layers", "hidden", "heads"))
        vocab = self._default("vocab", VOCAB_SIZE)
        kv_heads = self._whole("kv_heads")
        if kv_heads is None:
            kv_heads = heads
            self.defaults.append(f"kv_heads is {_how(self.cells, 'kv_heads')}: as many as heads")
        if hidden % heads:
            raise _CannotPrice(f"hidden {hidden} is no multiple of heads {heads}")
        of_head = hidden // heads
        attention = 2 * hidden * of_head * (heads + kv_heads)
        ffn, tied = self._feed_forward(layers, hidden, vocab, attention, kv_heads == heads)
        try:
            return ModelShape(
                name=self.cells.get("model") or f"row of {self.where}",
                num_layers=layers,
                hidden_size=hidden,
                ffn_hidden_size=ffn,
                num_heads=heads,
                num_kv_heads=kv_heads,
                vocab_size=vocab,
                head_dim=of_head,
                tied_embeddings=tied,
                rope_theta=10_000.0,
                norm_eps=1e-5,
                source=self.where,
            )
        except SuiteError as error:
            raise _CannotPrice(str(error)) from None

    def _known_shape(self) -> ModelShape:
        """The published shape of a model of this name, or the one in a file that the table names."""
        given = self.cells.get("model", "")
        if given.endswith(SUFFIXES):  # a slash alone may be of words: DeepSeekV3 (w/o MTP), meta-llama/Llama-3.1-8B
            try:
                return shape_in_file(self.folder / given, given)[0]
            except SuiteError as error:
                raise SuiteError(f"{self.where}: {error}") from None
        name = name_on_record(given)
        found = published_model(name)
        if found is None:
            raise _CannotPrice(
                f"layers, hidden and heads are empty, and {as_yaml(given.lower())} is no shape on record: write them, "
                "or the path of its config.json as model"
            )
        self.is_gated = found.is_gated
        size = found.shape.num_parameters / 1e9
        self.defaults.append(
            f"the shape is empty: {name} as on record, {size:.3g} B parameters, a vocabulary of "
            f"{found.shape.vocab_size:,}"
        )
        parameters = self._number("params_b")
        if parameters is not None and not 1 / _SAME_MODEL <= parameters / size <= _SAME_MODEL:
            raise _CannotPrice(f"params_b is {parameters:g}, and {name} on record has {size:.3g}: another model")
        return found.shape

    def _feed_forward(
        self, layers: int, hidden: int, vocab: int, attention: int, has_own_keys: bool
    ) -> tuple[int, bool]:
        """Width of a gated feed-forward, and whether the tables are tied, by what comes nearest to ``params_b``.

        A feed-forward of two matrices stands as a gated one of two thirds of its width: as many products. Where nothing
        comes near, one of four times the hidden size without shared keys is of two matrices (Vaswani et al. 2017;
        gated ones are of two thirds of that, Shazeer 2020, arXiv:2002.05202).
        """
        ffn, parameters = self._whole("ffn"), self._number("params_b")
        if ffn is None:
            how = _how(self.cells, "ffn")
            if parameters is None:
                raise _CannotPrice(f"ffn is {how}, and without params_b it cannot be worked out")
            if has_own_keys and (tables := self._tables_of_a_gpt(layers, hidden, vocab, attention, parameters)):
                self.is_gated = False
                self.defaults.append(
                    f"ffn is {how}: 4 x hidden of two matrices, as params_b tells, priced as a gated one of 2/3"
                )
                return 8 * hidden // 3, tables == 1
            rest = 1e9 * parameters - 2 * vocab * hidden - layers * attention
            if rest <= 0:
                raise _CannotPrice(f"ffn is {how}, and {parameters:g} B parameters leave nothing for it")
            self.defaults.append(f"ffn is {how}: worked out from params_b, gated, tables not tied")
            return max(1, round(rest / (3 * layers * hidden))), False
        positions = (self._whole("seq") or SEQ_LEN) * hidden  # GPT, OPT and MPT learn those
        kinds = {
            (matrices, tables, learned): layers * (attention + matrices * hidden * ffn)
            + tables * vocab * hidden
            + learned * positions
            for matrices, learned in ((3, 0), (2, 0), (2, 1))
            for tables in (2, 1)
        }
        why = "is empty"
        if parameters is not None:
            off = {kind: abs(number / (1e9 * parameters) - 1) for kind, number in kinds.items()}
            matrices, tables, _ = min(off, key=lambda kind: off[kind])
            if min(off.values()) <= _SIZE_OF_PARAMETERS:
                self.is_gated = matrices == 3
                if matrices == 2:
                    self.defaults.append("params_b tells a feed-forward of two matrices: priced as a gated one of 2/3")
                return (2 * ffn // 3 if matrices == 2 else ffn), tables == 1
            nearest_b = min(kinds.values(), key=lambda number: abs(math.log(number / (1e9 * parameters)))) / 1e9
            if not 1 / _ANOTHER_MODEL <= nearest_b / parameters <= _ANOTHER_MODEL:
                raise _CannotPrice(
                    f"params_b is {parameters:g}, and layers, hidden, ffn and vocab make {nearest_b:.3g}: another model"
                )
            why = "fits no such model to 2 %"
        if ffn == 4 * hidden and has_own_keys:
            self.is_gated = False
            self.defaults.append(
                f"params_b {why}, ffn is 4 x hidden: a feed-forward of two matrices, priced as a gated one of 2/3, "
                "tables not tied"
            )
            return 2 * ffn // 3, False
        self.defaults.append(f"params_b {why}: a gated feed-forward, tables not tied")
        return ffn, False

    def _tables_of_a_gpt(self, layers: int, hidden: int, vocab: int, attention: int, parameters: float) -> int:
        """How many tables a model of two matrices of four times the hidden size has, by its parameters; 0 for none."""
        of_layers = layers * (attention + 2 * hidden * 4 * hidden)
        off = {tables: abs((of_layers + tables * vocab * hidden) / (1e9 * parameters) - 1) for tables in (2, 1)}
        tables = min(off, key=lambda tables: off[tables])
        return tables if off[tables] <= max(_SIZE_OF_PARAMETERS, self._rounding("params_b") / parameters) else 0

    def _measured_step(self, job: TrainingJob) -> float | None:
        """Of the row, by tokens/s where it has both, as that has more digits; refused where it cannot have been."""
        step_s, per_rank = self._number("step_s"), self._number("tokens_per_s_per_gpu")
        of_all = self._number("tokens_per_s_of_all")
        if per_rank and of_all and abs(of_all / per_rank / job.layout.world_size - 1) > _SAME_SPEED:
            raise _CannotPrice(
                f"tokens_per_s_of_all is {of_all:g}, and tokens_per_s_per_gpu makes "
                f"{per_rank * job.layout.world_size:g} of it on {job.layout.world_size} GPUs"
            )
        speed = per_rank * job.layout.world_size if per_rank else of_all
        told = job.tokens_per_step / speed if speed else None
        if told and step_s and abs(told - step_s) > self._rounding("step_s") + _SAME_SPEED * step_s:
            raise _CannotPrice(
                f"step_s is {step_s:g} s, and {'tokens_per_s_per_gpu' if per_rank else 'tokens_per_s_of_all'} makes "
                f"{told:.4g} s of it with this batch and as many GPUs: one of them is of something else"
            )
        measured = told or step_s
        peak = max(self.card.peak_flops_per_s.get(name, 0.0) for name in _PRICED) if self.card else 0.0
        if measured and peak:
            share = model_flops(job.shape, job.seq_len, job.global_batch_size, "causal")
            share /= measured * job.layout.world_size * peak
            if share > 1:
                raise _CannotPrice(
                    f"as measured it would be {share:.1f} times the card's peak: is the speed that of all GPUs, or gbs "
                    "not in sequences, or were products in another precision?"
                )
        return measured

    def _rounding(self, name: str) -> float:
        """Half of the last digit of a figure that is there."""
        written, unit = _plain(name, self.cells[name])
        return 0.5 * 10.0 ** -len(written.partition(".")[2]) * (unit or self.meanings[name].factor)

    def _needed(self, name: str) -> int:
        value = self._whole(name)
        if value is None:
            raise _CannotPrice(f"{name} is empty")
        return value

    def _default(self, name: str, default: int) -> int:
        value = self._whole(name)
        if value is None and (name in self.cells or name == "vocab") and default > 1:
            self.defaults.append(f"{name} is {_how(self.cells, name)}: {default} taken")
        return default if value is None else value

    def _stage(self, name: str, copies: int) -> tuple[int, int | None]:
        """A stage of ZeRO, as ``3 (FSDP)`` and ``FULL_SHARD`` have it, and how many ranks shard where not all do."""
        text = self.cells.get(name, "")
        if not text:
            return 0, None
        found = sharing_in(text, copies)
        if found is None:
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, and must begin with a whole number or be one of "
                f"{WORDS_OF_SHARDING}."
            )
        if found.group not in (None, NODE) and found.group * found.group != copies and "shard" not in text.lower():
            self.defaults.append(
                f"{name} is {as_yaml(text)}: {copies // found.group} copies of {found.group} ranks that shard, in the "
                "order of the mesh of PyTorch's fully_shard"
            )
        return found

    def _whole(self, name: str) -> int | None:
        value = self._number(name)
        if value is None:
            return None
        most = MOST_OF.get(name, MOST)
        if not 1 <= value <= most or value != int(value):
            given = f"{name} is {self.cells[name]}"
            raise SuiteError(f"{self.where}: {given}, and must be a whole number from 1 to {most:,}.")
        return int(value)

    def _number(self, name: str) -> float | None:
        text = self.cells.get(name, "")
        if not text:
            return None
        is_nothing = text.lower() in NOT_MEASURED or re.fullmatch(r"0+(?:\.0*)?", text)
        if name in FIGURES and is_nothing:
            if (said := f"{name} is {as_yaml(text)}: not measured") not in self.defaults:
                self.defaults.append(said)
            return None
        written, unit = _plain(name, text)
        if self.has_decimal_commas and _POINT_OF_THOUSANDS.fullmatch(text):
            whole = text.replace(".", "")
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, which may be {whole} or {text}: elsewhere in the table a "
                "comma parts fractions."
            )
        if _NUMBER.fullmatch(written) is None:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be a number{_hint(name, text)}.")
        value = float(written)
        if value == math.inf:
            raise SuiteError(f"{self.where}: {name} is {text}, which is too large.")
        factor = self.meanings[name].factor if name in self.meanings else 1.0
        is_plain = unit is None and written.replace(".", "").isdigit()
        if factor != 1 and unit != factor and not is_plain:
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, and must be a number alone: its column has the unit."
            )
        value *= factor if unit is None else unit
        if value > (most := MOST_OF_FACT.get(name, math.inf)):
            raise SuiteError(f"{self.where}: {name} is {text}, and no more than {most:g} in its unit makes sense.")
        return value


def _how(cells: Mapping[str, str], name: str) -> str:
    return "empty" if name in cells else "not said"


def _says_nothing(name: str, text: str) -> bool:
    """Whether a cell stands for an empty one."""
    return name not in _IN_WORDS and (text.lower() in NOT_SAID or (text.lower() == "none" and name not in _WITH_NONE))
