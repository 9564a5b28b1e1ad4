"""A table of steps to price: the columns in which training runs are published, a step a row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterbench.cluster import GPUS_OF_A_NODE, find_card, meant_card
from clusterbench.csv_lines import rows_of
from clusterbench.errors import LayoutError, SuiteError, nearest
from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.formulas.transformer import hardware_flops, model_flops
from clusterbench.job import MOST_TOKENS, TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import as_yaml
from clusterbench.pricing.probes import Probe
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.published_models import published_model
from clusterbench.pricing.table_words import (
    NOT_SAID,
    Meaning,
    is_result,
    may_be,
    meaning_of,
    name_on_record,
    names_experts,
)
from clusterbench.shape import ModelShape
from clusterbench.shape_file import SUFFIXES, shape_in_file
from clusterbench.text_files import read_text

MOST_ROWS = 100_000

MODEL = ("layers", "hidden", "ffn", "heads", "vocab")
STEP = ("seq", "gpus", "mbs", "gbs")
DEGREES = ("tp", "pp", "dp", "cp", "ep")
MEASURED = ("step_s", "tokens_per_s_per_gpu", "mem_gb")
COLUMNS = (
    *("source", "model", "params_b", *MODEL, "kv_heads", *STEP, "gpu", "gpus_per_node", "precision", *DEGREES),
    *("sp", "vpp", "zero", "dp_overlap", "recompute", *MEASURED, "tflops_per_gpu", "mfu", "note"),
)
_PUBLISHED = ("ga", "fsdp", "checkpointing")
"""Of other tables, which say by them what ours say by ``dp``, ``zero`` and ``recompute``.

Columns that are not known are an error: a figure in one would be left out unseen."""

SEQ_LEN, VOCAB_SIZE = 2048, 51_200
"""Taken where a table does not say."""

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][-+]?[0-9]{1,3})?")
_STAGE = re.compile(r"(?:(?:zero|stage)[- ]?(?:stage[- ]?)?)?([0-9]{1,15})", re.IGNORECASE)
MOST, MOST_OF = 10**9, {"layers": 10_000}
"""The largest whole number of a cell."""

PRICED_PRECISIONS = ("bf16", "bfloat16", "fp16", "float16")
"""Of products; a GPU multiplies both at one rate. An empty cell is taken for bfloat16."""

_PRICED = ("bfloat16", "float16")
_WORDS_OF_PRECISION = {"amp", "mixed", "precision", "true", "pure"}
_OF_EITHER_HALF = {"amp"}
"""What multiplies in float16 or bfloat16, which a GPU does at one rate: torch.amp has no other types on CUDA."""

_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_WITH_UNIT = re.compile(r"([0-9.,]{1,20}) ?([a-zA-Z/]{1,20})")
_UNITS = {"mem_gb": "gb", "step_s": "s", "params_b": "b", "tflops_per_gpu": "tflop/s"}
_OF_FEW_DIGITS = ("step_s", "params_b", "mem_gb", "tflops_per_gpu", "mfu")
"""Columns in which a comma may part thousands or a fraction."""

_YES_OR_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NOT_MEASURED = NOT_SAID | {"oom", "nan"}
_IN_WORDS = ("source", "model", "gpu", "note", *MEASURED)
"""Columns of which a cell is read as it stands."""

MOST_OF_FACT = {"params_b": 1e5, "tflops_per_gpu": 1e5}
"""Beyond any model and card: the unit is another one."""

_ABOUT_ZERO = "so each rank of dp holds all of the optimizer's states"

_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}
"""ZeRO's stages as FSDP calls them: pytorch/pytorch, torch/distributed/fsdp/api.py, ShardingStrategy."""

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
    if path.suffix in (".yaml", ".yml"):
        raise SuiteError(
            f"{path.name} is no table: a row of a CSV, or of Markdown, is a step.\n"
            f"hint: 'clusterbench run {path}' runs a suite, and the folder it writes can be priced"
        )
    rows = _rows(path)
    line, header = next(rows, (1, []))
    columns = _columns(path, line, header)
    defaults: Counter[str] = Counter()
    read: list[TableRow] = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise SuiteError(f"{path.name}:{line}: the row has {len(cells)} cells and the header {len(header)}.")
        if len(read) == MOST_ROWS:
            raise SuiteError(f"{path.name}:{line}: more than {MOST_ROWS} rows.")
        of_columns = {meaning.column: cells[number] for number, meaning in columns.items()}
        factors = {meaning.column: meaning.factor for meaning in columns.values()}
        row = _Row(path, line, of_columns, factors, gpus_per_node, gpu)
        read.append(row.as_step())
        defaults.update(row.defaults)
    if not read:
        raise SuiteError(f"{path.name} has a header and no rows, so there is nothing to price.")
    said = [f"{words}: {number} of {len(read)} rows" for words, number in defaults.items()]
    return StepTable(path.name, read, [*_about_columns(header, columns), *said])


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Of a CSV, or of one table in Markdown, as publications have them."""
    return _markdown_rows(path) if read_text(path).lstrip().startswith("|") else rows_of(path)


def _markdown_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        written = text.strip()
        if written and not (written.startswith("|") and written.endswith("|") and len(written) > 1):
            raise SuiteError(f"{path.name}:{line}: no row of a table in Markdown, which begins and ends with '|'.")
        cells = [_LINK.sub(r"\1", cell).strip(" *") for cell in written[1:-1].split("|")]
        if written and not all(_RULE.fullmatch(cell) for cell in cells):
            yield line, cells


def _columns(path: Path, line: int, header: Sequence[str]) -> dict[int, Meaning]:
    """What each column is in our words, without those that are results of no use here."""
    for separator in (";", "\t"):
        if len(header) == 1 and separator in header[0]:
            raise SuiteError(
                f"{path.name}:{line}: columns are separated by {as_yaml(separator)}, and must be by commas."
            )
    names = [name.lower() for name in header]
    for name, number in Counter(names).items():
        if number > 1:
            raise SuiteError(f"{path.name}:{line}: column {as_yaml(name)} is there {number} times.")
    known = (*COLUMNS, *_PUBLISHED)
    meanings = {number: Meaning(name) if name in known else meaning_of(name) for number, name in enumerate(names)}
    unknown = [name for number, name in enumerate(names) if meanings[number] is None and not is_result(name)]
    if unknown:
        which = f"unknown column{'s' if unknown[1:] else ''} {', '.join(map(as_yaml, unknown))}"
        unsure = next((f"call {as_yaml(name)} {call}" for name in unknown if (call := may_be(name))), "")
        raise SuiteError(
            f"{path.name}:{line}: {which}.{'' if unsure else nearest(unknown[0], known)}\n"
            f"Columns: {', '.join(known)}.\nhint: {unsure or 'take out what changes nothing of what ran'}"
        )
    columns = {number: meaning for number, meaning in meanings.items() if meaning is not None}
    for column, count in Counter(meaning.column for meaning in columns.values()).items():
        if count > 1:
            both = [as_yaml(header[number]) for number, meaning in columns.items() if meaning.column == column]
            raise SuiteError(f"{path.name}:{line}: columns {' and '.join(both)} are both {column}.")
    there = {meaning.column for meaning in columns.values()}
    needed = (*MODEL, *STEP) if "model" not in there or there & {"layers", "hidden", "heads"} else STEP
    if missing := [name for name in needed if name not in there]:
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
        for number, meaning in columns.items()
        if header[number].lower() != meaning.column
    ]
    if taken:
        yield f"columns are taken as published: {', '.join(taken)}"
    if results := [name for number, name in enumerate(header) if number not in columns]:
        yield f"columns not read, as they say nothing of what ran: {', '.join(results)}"


def as_usual(table: StepTable, zero: int, dp_overlap: str) -> StepTable:
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
    if re.fullmatch(r"[0-9.,]{1,20} ?\([0-9.,]{1,20}\)", text) is not None:
        return ": two, of which a row has one"
    if re.fullmatch(r"-[0-9.,]{1,20}", text) is not None:
        return " of 0 and more"
    return f": write {text[1:].strip()} if it is near enough" if text[:1] in "~≈" else ""


_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_RULE = re.compile(":?-*:?")


class _CannotPrice(Exception):
    """A row that can be read, of which it cannot be told what ran."""


class _Row:
    """One row, and what was taken for its empty cells."""

    def __init__(
        self,
        table: Path,
        line: int,
        cells: Mapping[str, str],
        factors: Mapping[str, float],
        gpus_per_node: int | None,
        gpu: str | None,
    ) -> None:
        self.folder, self.line, self.where = table.parent, line, f"{table.name}:{line}"
        self.cells = cells = {
            name: "" if name not in _IN_WORDS and text.lower() in NOT_SAID else text for name, text in cells.items()
        }
        self.factors, self.recompute = factors, cells.get("recompute", "")
        named = gpu or cells.get("gpu", "")
        self.card = card = find_card(named) or meant_card(named)
        self.gpus_per_node = gpus_per_node or (GPUS_OF_A_NODE if card is None else card.usual_gpus_per_node)
        self.defaults: list[str] = []
        self.is_gated = True

    def as_step(self) -> TableRow:
        gpus = self._whole("gpus")
        per_node = min(gpus or 1, self._default("gpus_per_node", self.gpus_per_node))
        is_sharded = self.cells.get("fsdp", "").lower() not in ("", "0", "false", "no")
        says_zero = bool(self.cells.get("zero")) or is_sharded
        row = TableRow(self.line, self.cells.get("model", ""), self.cells.get("gpu", ""), says_zero=says_zero)
        try:
            self._expect_priced_precision()
            layout = self._layout(gpus)
            self._read_checkpointing()
            job = self._job(layout)
            self._expect_batch(job)
            measured_s = self._measured_step(job)
        except _CannotPrice as why:
            return replace(row, reason=str(why))
        chunks = self._whole("vpp")
        if chunks is None and layout.pp > 1:
            self.defaults.append("vpp is not said: stages of pp taken without interleaving")
        priced = PricedJob(
            job,
            per_node,
            chunks or 1,
            self.recompute or "none",
            is_gated=self.is_gated,
            dp_overlap=self._flag("dp_overlap"),
        )
        return replace(row, priced=priced, step_s=measured_s, memory_gb=self._number("mem_gb") or None)

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

    def _layout(self, gpus: int | None) -> ParallelLayout:
        degrees = {name: self._default(name, 1) for name in DEGREES if name != "dp"}
        others = degrees["tp"] * degrees["pp"] * degrees["cp"]
        dp = self._whole("dp")
        if dp is None:
            if gpus is None or gpus % others:
                raise _CannotPrice("neither dp nor the number of GPUs says how many copies there are")
            dp = gpus // others
            self.defaults.append("dp is empty: the GPUs that tp, pp and cp leave")
        zero = self._fully_sharded(dp * degrees["cp"]) or self._stage("zero")
        try:
            shards = zero if dp * degrees["cp"] > 1 else 0
            layout = ParallelLayout(**degrees, dp=dp, zero=shards, sp=self._is_sequence_parallel(degrees["tp"]))
        except LayoutError as error:
            raise _CannotPrice(str(error)) from None
        if gpus is not None and gpus != layout.world_size:
            raise _CannotPrice(f"{layout} needs {layout.world_size} GPUs, and the row has {gpus}")
        return layout

    def _fully_sharded(self, copies: int) -> int:
        """3 where a column ``fsdp`` says so, by a word, or by over how many ranks; 0 where it says none."""
        text = self.cells.get("fsdp", "").lower()
        said = _YES_OR_NO.get(text) if text != "1" else None
        if not text or said is False or copies == 1:
            return 0
        if said is None and text == "1":
            raise _CannotPrice("fsdp is 1, which may be 'yes' or a degree: write zero in its place")
        if said is None and self._whole("fsdp") != copies:
            raise _CannotPrice(f"fsdp {text} shards over a part of {copies} ranks, which has no price")
        return 3

    def _read_checkpointing(self) -> None:
        """``checkpointing``, of whole layers where it is a yes, as Composer, DeepSpeed and transformers have it."""
        text = self.cells.get("checkpointing", "").lower()
        if not text or self.recompute:
            return
        said = text if text in ("none", "selective", "full") else "full" if self._flag("checkpointing") else "none"
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

    def _measured_step(self, job: TrainingJob) -> float | None:
        """Of the row, by tokens/s where it has both, as that has more digits; refused where it cannot have been."""
        step_s, per_rank = self._number("step_s"), self._number("tokens_per_s_per_gpu")
        told = job.tokens_per_step / (per_rank * job.layout.world_size) if per_rank else None
        if told and step_s:
            rounded = 0.5 * 10.0 ** -len(self.cells["step_s"].partition(".")[2].rstrip("sS ")) * self.factors["step_s"]
            if abs(told - step_s) > rounded + _SAME_SPEED * step_s:
                raise _CannotPrice(
                    f"step_s is {step_s:g} s, and tokens_per_s_per_gpu makes {told:.4g} s of it with this batch and as "
                    "many GPUs: one of them is of something else"
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
        factor = self.factors.get(name, 1.0)
        if factor != 1 and not text.replace(",", "").replace(".", "").isdigit():
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, and must be a number alone: its column has the unit."
            )
        if value * factor > (most := MOST_OF_FACT.get(name, math.inf)):
            raise SuiteError(f"{self.where}: {name} is {text}, and no more than {most:g} in its unit makes sense.")
        return value * factor
