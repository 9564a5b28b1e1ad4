"""A table of steps to price: the columns in which training runs are published, a step a row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterbench.cluster import GPUS_OF_A_NODE, find_card, meant_card
from clusterbench.csv_lines import rows_of
from clusterbench.errors import LayoutError, SuiteError, nearest
from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.formulas.transformer import hardware_flops
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import as_yaml
from clusterbench.pricing.probes import Probe
from clusterbench.pricing.profiles import PricedJob
from clusterbench.shape import SHAPES, ModelShape
from clusterbench.shape_file import is_path, shape_in_file

MOST_ROWS = 100_000

MODEL = ("layers", "hidden", "ffn", "heads", "vocab")
STEP = ("seq", "gpus", "mbs", "gbs")
DEGREES = ("tp", "pp", "dp", "cp", "ep")
MEASURED = ("step_s", "tokens_per_s_per_gpu", "mem_gb")
COLUMNS = (
    *("source", "model", "params_b", *MODEL, "kv_heads", *STEP, "gpu", "gpus_per_node", "precision", *DEGREES),
    *("sp", "vpp", "zero", "dp_overlap", "recompute", *MEASURED, "tflops_per_gpu", "mfu", "note"),
)
"""All that are known. Others are an error: a figure in an unknown column would be left out unseen."""

SEQ_LEN, VOCAB_SIZE = 2048, 51_200
"""Taken where a table does not say."""

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][-+]?[0-9]{1,3})?")
_STAGE = re.compile(r"(?:(?:zero|stage)[- ]?(?:stage[- ]?)?)?([0-9]{1,15})", re.IGNORECASE)
MOST, MOST_OF = 10**9, {"layers": 10_000}
"""The largest whole number of a cell."""

PRICED_PRECISIONS = ("bf16", "bfloat16", "fp16", "float16")
"""Of products; a GPU multiplies both at one rate. An empty cell is taken for bfloat16."""

_WORDS_OF_PRECISION = {"amp", "mixed", "precision", "true", "pure"}
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_WITH_UNIT = re.compile(r"([0-9.,]{1,20}) ?([a-zA-Z/]{1,20})")
_UNITS = {"mem_gb": "gb", "step_s": "s", "params_b": "b", "tflops_per_gpu": "tflop/s"}
_OF_FEW_DIGITS = ("step_s", "params_b", "mem_gb", "tflops_per_gpu", "mfu")
"""Columns in which a comma may part thousands or a fraction."""

_YES_OR_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NOT_MEASURED = ("oom", "n/a", "-")
_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}
"""ZeRO's stages as FSDP calls them: pytorch/pytorch, torch/distributed/fsdp/api.py, ShardingStrategy."""

_SIZE_OF_PARAMETERS = 0.02  # a published number of parameters is rounded
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
    says_zero
        Whether it names a stage of ZeRO.
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


@dataclass(frozen=True)
class StepTable:
    """All rows of a table, or cases of a run, and what was taken for empty cells, in words.

    ``has_lines`` tells a table from a run, whose cases are counted from 1; ``machine`` is that of the run, and
    ``probes`` are its figures of products, copies, collectives and messages.
    """

    name: str
    rows: Sequence[TableRow]
    defaults: Sequence[str] = ()
    has_lines: bool = True
    machine: Fingerprint = UNKNOWN
    probes: Sequence[Probe] = ()

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
        ``file:line:`` and what is wrong, where a cell cannot be read or a column is missing or not known. A row that
        can be read and not priced is no mistake of the file.
    """
    rows = rows_of(path)
    line, header = next(rows, (1, []))
    header = [name.lower() for name in header]
    _check_columns(path, line, header)
    defaults: Counter[str] = Counter()
    read: list[TableRow] = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise SuiteError(f"{path.name}:{line}: the row has {len(cells)} cells and the header {len(header)}.")
        if len(read) == MOST_ROWS:
            raise SuiteError(f"{path.name}:{line}: more than {MOST_ROWS} rows.")
        row = _Row(path, line, dict(zip(header, cells, strict=True)), gpus_per_node, gpu)
        read.append(row.as_step())
        defaults.update(row.defaults)
    if not read:
        raise SuiteError(f"{path.name} has a header and no rows, so there is nothing to price.")
    said = [f"{words}: {number} of {len(read)} rows" for words, number in defaults.items()]
    return StepTable(path.name, read, said)


def _check_columns(path: Path, line: int, header: Sequence[str]) -> None:
    for separator in (";", "\t"):
        if len(header) == 1 and separator in header[0]:
            raise SuiteError(
                f"{path.name}:{line}: columns are separated by {as_yaml(separator)}, and must be by commas."
            )
    for name, number in Counter(header).items():
        if number > 1:
            raise SuiteError(f"{path.name}:{line}: column {as_yaml(name)} is there {number} times.")
        if name not in COLUMNS:
            raise SuiteError(
                f"{path.name}:{line}: unknown column {as_yaml(name)}.{nearest(name, COLUMNS)}\n"
                f"Columns: {', '.join(COLUMNS)}."
            )
    if missing := [name for name in (*MODEL, *STEP) if name not in header]:
        raise SuiteError(f"{path.name}:{line}: no column {missing[0]!r}. Needed: {', '.join((*MODEL, *STEP))}.")


def as_usual(table: StepTable, zero: int, dp_overlap: str) -> StepTable:
    """The table with what a profile takes of rows that do not say it; see :class:`~.profiles.Profile`.

    A row that says whether gradients are hidden has a reason where that is no choice.
    """
    rows, said = [], Counter[str]()
    for row in table.rows:
        of = row.priced
        if of is not None and of.job.layout.degree(of.job.layout.data_axis) > 1:
            if zero and not row.says_zero:
                of = replace(of, job=replace(of.job, layout=replace(of.job.layout, zero=zero)))
                row = replace(row, priced=of)
                said[f"zero is not said: {zero} taken, as the profile has it"] += 1
            if dp_overlap and of.dp_overlap is None:
                said[f"dp_overlap is not said: {dp_overlap}"] += of.job.layout.zero == 1
            elif not dp_overlap and of.dp_overlap is not None:
                row = replace(row, priced=None, reason="dp_overlap is said, and is no choice in this profile")
        rows.append(row)
    words = [f"{what}: {number} of {len(rows)} rows" for what, number in said.items() if number]
    return replace(table, rows=rows, defaults=[*table.defaults, *words])


def _plain(name: str, text: str) -> str:
    """A cell's number without its unit and without the commas that part thousands.

    >>> _plain("tokens_per_s_per_gpu", "20,000"), _plain("mem_gb", "60 GB"), _plain("step_s", "1,420")
    ('20000', '60', '1,420')
    """
    if name in _UNITS and (match := _WITH_UNIT.fullmatch(text)) is not None and match[2].lower() == _UNITS[name]:
        text = match[1]
    return text.replace(",", "") if name not in _OF_FEW_DIGITS and _GROUPED.fullmatch(text) else text


def _hint(name: str, text: str) -> str:
    """What a person may have meant, where that is more than one number."""
    if name in _OF_FEW_DIGITS and _GROUPED.fullmatch(text):
        return f": {text.replace(',', '')} or {text.replace(',', '.', 1).replace(',', '')}"
    if (match := re.fullmatch(r"([0-9]{1,5})[kK]", text)) is not None:
        return f": {int(match[1]) * 1000} or {int(match[1]) * 1024}"
    return f": write {text[1:].strip()} if it is near enough" if text[:1] in "~≈" else ""


class _CannotPrice(Exception):
    """A row that can be read, of which it cannot be told what ran."""


class _Row:
    """One row, and what was taken for its empty cells."""

    def __init__(
        self, table: Path, line: int, cells: Mapping[str, str], gpus_per_node: int | None, gpu: str | None
    ) -> None:
        self.folder, self.line, self.where = table.parent, line, f"{table.name}:{line}"
        self.cells, self.recompute = cells, cells.get("recompute", "")
        named = gpu or cells.get("gpu", "")
        self.card = card = find_card(named) or meant_card(named)
        self.gpus_per_node = gpus_per_node or (GPUS_OF_A_NODE if card is None else card.usual_gpus_per_node)
        self.defaults: list[str] = []
        self.is_gated = True

    def as_step(self) -> TableRow:
        gpus = self._whole("gpus")
        per_node = min(gpus or 1, self._default("gpus_per_node", self.gpus_per_node))
        says_zero = bool(self.cells.get("zero"))
        row = TableRow(self.line, self.cells.get("model", ""), self.cells.get("gpu", ""), says_zero=says_zero)
        try:
            self._expect_priced_precision()
            layout = self._layout(gpus)
            job = self._job(layout)
        except _CannotPrice as why:
            return replace(row, reason=str(why))
        priced = PricedJob(
            job,
            per_node,
            self._default("vpp", 1),
            self.recompute or "none",
            is_gated=self.is_gated,
            dp_overlap=self._flag("dp_overlap"),
        )
        measured = self._measured_step(job), self._number("mem_gb") or None
        return replace(row, priced=priced, step_s=measured[0], memory_gb=measured[1])

    def _expect_priced_precision(self) -> None:
        given = self.cells.get("precision", "")
        words = set(re.findall(r"[a-z0-9]+", given.lower())) - _WORDS_OF_PRECISION
        if given and not (words and words <= set(PRICED_PRECISIONS)):
            raise _CannotPrice(
                f"precision {as_yaml(given)}: rates of products are those of bf16 and fp16, and other products are "
                "faster or slower"
            )
        if self.card is not None and "bfloat16" not in self.card.peak_flops_per_s and not words & {"fp16", "float16"}:
            said = f"precision {as_yaml(given)}" if given else "precision is empty, taken for bf16"
            raise _CannotPrice(f"{said}: {self.card.name} multiplies in fp16, and not in bf16")

    def _layout(self, gpus: int | None) -> ParallelLayout:
        degrees = {name: self._default(name, 1) for name in DEGREES if name != "dp"}
        others = degrees["tp"] * degrees["pp"] * degrees["cp"]
        dp = self._whole("dp")
        if dp is None:
            if gpus is None or gpus % others:
                raise _CannotPrice("neither dp nor the number of GPUs says how many copies there are")
            dp = gpus // others
            self.defaults.append("dp is empty: the GPUs that tp, pp and cp leave")
        zero = self._stage("zero")
        try:
            shards = zero if dp * degrees["cp"] > 1 else 0
            layout = ParallelLayout(**degrees, dp=dp, zero=shards, sp=self._is_sequence_parallel(degrees["tp"]))
        except LayoutError as error:
            raise _CannotPrice(str(error)) from None
        if gpus is not None and gpus != layout.world_size:
            raise _CannotPrice(f"{layout} needs {layout.world_size} GPUs, and the row has {gpus}")
        return layout

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
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be one of {', '.join(_YES_OR_NO)}.")
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
        elif "recompute" in self.cells and not self.recompute:
            self.defaults.append("recompute is empty: none taken")
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
        layers, hidden, heads = (self._needed(name) for name in ("layers", "hidden", "heads"))
        vocab = self._default("vocab", VOCAB_SIZE)
        kv_heads = self._whole("kv_heads")
        if kv_heads is None:
            kv_heads = heads
            self.defaults.append("kv_heads is empty: as many as heads")
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
        if is_path(given):
            try:
                return shape_in_file(self.folder / given, given)[0]
            except SuiteError as error:
                raise SuiteError(f"{self.where}: {error}") from None
        name = given.lower()
        if name not in SHAPES:
            raise _CannotPrice(f"layers, hidden and heads are empty, and {as_yaml(name)} is no shape on record")
        self.defaults.append(f"the shape is empty: {name} as on record")
        return SHAPES[name]

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
            if parameters is None:
                raise _CannotPrice("ffn is empty, and without params_b it cannot be worked out")
            rest = 1e9 * parameters - 2 * vocab * hidden - layers * attention
            if rest <= 0:
                raise _CannotPrice(f"ffn is empty, and {parameters:g} B parameters leave nothing for it")
            self.defaults.append("ffn is empty: worked out from params_b, gated, tables not tied")
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

    def _measured_step(self, job: TrainingJob) -> float | None:
        step_s, per_rank = self._number("step_s"), self._number("tokens_per_s_per_gpu")
        # tokens/s has more digits where a table has both
        return job.tokens_per_step / (per_rank * job.layout.world_size) if per_rank else step_s or None

    def _needed(self, name: str) -> int:
        value = self._whole(name)
        if value is None:
            raise _CannotPrice(f"{name} is empty")
        return value

    def _default(self, name: str, default: int) -> int:
        value = self._whole(name)
        if value is None and name in self.cells and default > 1:
            self.defaults.append(f"{name} is empty: {default} taken")
        return default if value is None else value

    def _stage(self, name: str) -> int:
        """A stage of ZeRO, as ``3 (FSDP)``, ``ZeRO-3`` and ``FULL_SHARD`` have it."""
        text = self.cells.get(name, "")
        if not text:
            return 0
        if text.upper() in _SHARDING:
            return _SHARDING[text.upper()]
        match = _STAGE.match(text)
        if match is None:
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, and must begin with a whole number or be one of "
                f"{', '.join(_SHARDING)}."
            )
        return int(match[1])

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
        if name in MEASURED and text.lower() in _NOT_MEASURED:
            if (said := f"{name} is {as_yaml(text)}: not measured") not in self.defaults:
                self.defaults.append(said)
            return None
        written = _plain(name, text)
        if _NUMBER.fullmatch(written) is None:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be a number{_hint(name, text)}.")
        value = float(written)
        if value == math.inf:
            raise SuiteError(f"{self.where}: {name} is {text}, which is too large.")
        return value
