"""One row of a table: the step that ran, and what was measured of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from clusterbench.cluster import GPUS_OF_A_NODE, find_card, meant_card
from clusterbench.errors import SuiteError
from clusterbench.expected.fits import SHOWN
from clusterbench.formulas.transformer import hardware_flops, model_flops
from clusterbench.job import MOST_TOKENS, TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import as_yaml
from clusterbench.parallel.recompute import KINDS
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.published_speed import COUNTS
from clusterbench.pricing.step_table import TableRow
from clusterbench.pricing.table_cells import FIGURES, YES_OR_NO, CannotPriceError, Cells
from clusterbench.pricing.table_layout import layout_of, take_apart
from clusterbench.pricing.table_model import SEQ_LEN, model_of
from clusterbench.pricing.table_words import OF_THE_CARD, OUT_OF_MEMORY
from clusterbench.shape import ModelShape

PRICED_PRECISIONS = ("bf16", "bfloat16", "fp16", "float16")
"""Of products; a GPU multiplies both at one rate. An empty cell is taken for bfloat16."""

_PRICED = ("bfloat16", "float16")
_WORDS_OF_PRECISION = {"amp", "mixed", "precision", "true", "pure"}
_OF_EITHER_HALF = {"amp"}
"""What multiplies in float16 or bfloat16, which a GPU does at one rate: torch.amp has no other types on CUDA."""

_REDUCED_IN = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}
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

_SAME_SPEED = 0.05  # step_s and tokens/s of one row, beside the rounding of step_s
_SIZE_OF_FLOPS = 0.01  # so are FLOP/s, and formulas leave out norms
_SEQ_LENS = [2**exponent for exponent in range(7, 21)]
_BY_FLOPS = {"none": "none", "full": "megatron_full"}
"""What a table calls recomputation, and the formula that counts it."""

_AS_TOLD = {
    "none": "tflops_per_gpu count nothing that is computed again",
    "full": "step_s and tflops_per_gpu tell",
}


def read_row(cells: Cells, folder: Path, gpus_per_node: int | None, gpu: str | None) -> TableRow:
    """What a row says; where a cell cannot be read, or it cannot be told what ran, with the reason.

    Parameters
    ----------
    folder
        Of the table, from which paths in its cells are.
    gpus_per_node
        Where the row does not say; None for the usual server of its card.
    gpu
        The card, in place of the row's.
    """
    return _Row(cells, folder, gpus_per_node, gpu).as_step()


class _Row:
    def __init__(self, cells: Cells, folder: Path, gpus_per_node: int | None, gpu: str | None) -> None:
        self.cells, self.folder = cells, folder
        self.recompute = ""
        self.cards = _OF_CARDS.fullmatch(cells["gpu"])
        if self.cards is not None:
            cells["gpu"] = self.cards[2]
        named = gpu or cells["gpu"]
        self.card = card = find_card(named) or meant_card(named)
        self.gpus_per_node = gpus_per_node or (GPUS_OF_A_NODE if card is None else card.usual_gpus_per_node)
        self.is_usual_node = gpus_per_node is None

    def as_step(self) -> TableRow:
        row = TableRow(int(self.cells.where.rpartition(":")[2]), self.cells["model"], self.cells["gpu"])
        try:
            return self._step(row)
        except CannotPriceError as why:
            return replace(row, reason=str(why))
        except SuiteError as error:  # a cell that cannot be read ends no row but its own
            said = str(error).removeprefix(f"{self.cells.where}: ").partition("\n")[0].removesuffix(".")
            return replace(row, reason=said, is_unread=True)

    def _step(self, row: TableRow) -> TableRow:
        cells = self.cells
        take_apart(cells)
        gpus, of_node = self._gpus()
        is_sharded = cells["fsdp"].lower() not in ("", "0", "false", "no")
        tflops, mfu = cells.number("tflops_per_gpu"), cells.number("mfu")
        row = replace(
            row,
            says_zero=is_sharded or any(cells[name] for name in ("zero", "shard_group_size", "dp_replicate")),
            says_recompute=bool(cells["recompute"] or cells["checkpointing"]),
            memory_gb=self._memory_gb(),
            tflops=tflops,
            mfu=mfu,
            convention=self._convention(),
            rounding={name: cells.rounding(name) for name in FIGURES if cells.number(name)},
            out_of_memory=any(cells[name].lower() in OUT_OF_MEMORY for name in FIGURES),
        )
        try:
            priced = self._priced(gpus, of_node)
            return replace(row, priced=priced, step_s=self._measured_step(priced.job))
        except CannotPriceError as why:
            return replace(row, reason=str(why))

    def _priced(self, gpus: int | None, of_node: int) -> PricedJob:
        cells = self.cells
        self._expect_priced_precision()
        self._read_recomputation()
        per_node = min(gpus, of_node) if gpus is not None else of_node
        layout, group = layout_of(cells, gpus, per_node, self.recompute)
        if gpus is None:
            per_node = min(layout.world_size, of_node)
            cells.say(f"gpus is {cells.how('gpus')}: those of the layout")
        model = model_of(cells, self.folder)
        job = self._job(model.shape, layout)
        self._expect_batch(job)
        chunks = cells.whole("vpp")
        if chunks is None and layout.pp > 1:
            cells.say("vpp is not said: stages of pp taken without interleaving")
        return PricedJob(
            job,
            per_node,
            chunks or 1,
            self.recompute or "none",
            {"shard_group_size": group} if group else {},
            is_gated=model.is_gated,
            dp_overlap=cells.flag("dp_overlap"),
            reduce_dtype=cells.one_of("reduce_dtype", _REDUCED_IN),
        )

    def _gpus(self) -> tuple[int | None, int]:
        """How many there are, where the row says that, and how many a node has."""
        gpus, nodes = self.cells.whole("gpus"), self.cells.whole("num_nodes")
        of_node = self.cells.whole("gpus_per_node")
        if of_node is None:
            of_node = self.gpus_per_node
            if self.is_usual_node and (words := _OF_A_NODE.search(self.cells["gpu"].lower())):
                of_node = int(words[1]) or of_node
                how = as_yaml(self.cells["gpu"])
                self.cells.say(f"gpus_per_node is {self.cells.how('gpus_per_node')}: {of_node}, as {how} says")
            elif self.is_usual_node and gpus != 1:
                whose = f", as in the usual server of {self.card.name}" if self.card is not None else ""
                self.cells.say(f"gpus_per_node is {self.cells.how('gpus_per_node')}: {of_node} taken{whose}")
        if gpus is None and nodes is not None:
            return nodes * of_node, of_node
        if gpus is None and self.cards is not None:
            self.cells.say(f"gpus is {self.cells.how('gpus')}: the number before the card")
            return int(self.cards[1]), of_node
        if gpus is not None and nodes is not None and not (nodes - 1) * of_node < gpus <= nodes * of_node:
            raise CannotPriceError(f"gpus is {gpus} and num_nodes {nodes}, and a node has {of_node} GPUs")
        return gpus, of_node

    def _memory_gb(self) -> float | None:
        value = self.cells.number("mem_gb") or None
        if value is None or not self.cells.meanings["mem_gb"].said.endswith(OF_THE_CARD):
            return value
        if self.card is None or self.card.memory_bytes is None:
            self.cells.say("mem_gb is in percent of a card that is not known: not compared")
            return None
        return value * SHOWN * self.card.memory_bytes / 1e9

    def _convention(self) -> str:
        said = self.cells.one_of("flops_convention", {name: name for name in COUNTS})
        of_column = self.cells.meanings.get("tflops_per_gpu")
        return said or (of_column.said if of_column is not None else "")

    def _expect_priced_precision(self) -> None:
        given = self.cells["precision"]
        words = set(re.findall(r"[a-z0-9]+", given.lower()))
        words = words - _WORDS_OF_PRECISION or words & _OF_EITHER_HALF
        if given and not (words and words <= {*PRICED_PRECISIONS, *_OF_EITHER_HALF}):
            raise CannotPriceError(
                f"precision {as_yaml(given)}: rates of products are those of bf16 and fp16, and other products are "
                "faster or slower"
            )
        if not given and self.card is not None and "float8" in self.card.peak_flops_per_s:
            self.cells.say("precision is not said: products in bf16 taken, and such a card multiplies in fp8, too")
        if (
            self.card is not None
            and "bfloat16" not in self.card.peak_flops_per_s
            and not words & {"fp16", "float16", *_OF_EITHER_HALF}
        ):
            said = f"precision {as_yaml(given)}" if given else "precision is empty, taken for bf16"
            raise CannotPriceError(f"{said}: {self.card.name} multiplies in fp16, and not in bf16")

    def _read_recomputation(self) -> None:
        """``recompute``; or ``checkpointing``, of whole layers where it is a yes, as Composer and DeepSpeed have it."""
        name = "recompute" if self.cells["recompute"] else "checkpointing"
        text = self.cells[name].lower()
        if not text or (name == "recompute" and text not in _AGAIN):
            self.recompute = text.removesuffix("+sp") + "+SP" * text.endswith("+sp")
            return
        said = text if text in KINDS else _AGAIN.get(text)
        if said is None and text not in YES_OR_NO:
            raise CannotPriceError(
                f"{name} is {as_yaml(text)}, and prices are of none, selective and full: of every layer, not of some"
            )
        if said is None:
            said = "full" if YES_OR_NO[text] else "none"
        self.recompute = said
        if said != text and said == "full":
            self.cells.say("activation checkpointing is said: whole layers computed again")

    def _expect_batch(self, job: TrainingJob) -> None:
        """Refuses a batch that is not what the row's other numbers make of it."""
        if job.tokens_per_step > MOST_TOKENS:
            raise CannotPriceError(
                f"{job.global_batch_size} sequences of {job.seq_len} are {job.tokens_per_step / 1e9:.3g} billion "
                "tokens a step: gbs must be in sequences"
            )
        forwards, per_forward = self.cells.whole("ga"), job.micro_batch_size * job.layout.dp
        if forwards is not None and forwards * per_forward != job.global_batch_size:
            raise CannotPriceError(
                f"mbs {job.micro_batch_size} x dp {job.layout.dp} x {forwards} accumulations are "
                f"{forwards * per_forward}, and gbs is {job.global_batch_size}"
            )

    def _job(self, shape: ModelShape, layout: ParallelLayout) -> TrainingJob:
        mbs, gbs = self.cells.whole("mbs"), self.cells.whole("gbs")
        if gbs is None:
            raise CannotPriceError("gbs is empty")
        seq = self._seq_len(shape, layout.world_size, gbs)
        if mbs is None:
            mbs = max(1, gbs // layout.dp) if layout.pp == 1 else 1
            self.cells.say("mbs is empty: 1 with stages, else the whole batch of a dp rank")
        return TrainingJob(shape, layout, seq, gbs, mbs, "bfloat16", device="cuda")

    def _seq_len(self, shape: ModelShape, world_size: int, gbs: int) -> int:
        """Of a sequence, and what is computed again; where those are empty, as the published FLOP/s tell them."""
        told = self._told_by_flops(shape, world_size, gbs)
        if told is not None and not self.recompute:
            self.recompute = told[1]
            # FLOP/s of a model leave out what is computed again, so that they tell of it only where they have it
            self.cells.say(
                f"recompute is {self.cells.how('recompute')}: {self.recompute} taken, as {_AS_TOLD[self.recompute]}"
            )
        elif not self.recompute:
            self.cells.say(f"recompute is {self.cells.how('recompute')}: none taken")
        if told is not None and self.cells.whole("seq") is None:
            self.cells.say(f"seq is {self.cells.how('seq')}: told by step_s and tflops_per_gpu")
            return told[0]
        return self.cells.default("seq", SEQ_LEN)

    def _told_by_flops(self, shape: ModelShape, world_size: int, gbs: int) -> tuple[int, str] | None:
        """The one sequence and recomputation from which published FLOP/s follow; None where there are more, or none.

        Those of Narayanan et al. 2021, arXiv:2104.04473, equation 3, count what is computed again.
        """
        step_s, tflops, seq = self.cells.number("step_s"), self.cells.number("tflops_per_gpu"), self.cells.whole("seq")
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

    def _measured_step(self, job: TrainingJob) -> float | None:
        """Of the row, by tokens/s where it has both, as that has more digits; refused where it cannot have been."""
        step_s, per_rank = self.cells.number("step_s"), self.cells.number("tokens_per_s_per_gpu")
        of_all = self.cells.number("tokens_per_s_of_all")
        if per_rank and of_all and abs(of_all / per_rank / job.layout.world_size - 1) > _SAME_SPEED:
            raise CannotPriceError(
                f"tokens_per_s_of_all is {of_all:g}, and tokens_per_s_per_gpu makes "
                f"{per_rank * job.layout.world_size:g} of it on {job.layout.world_size} GPUs"
            )
        speed = per_rank * job.layout.world_size if per_rank else of_all
        told = job.tokens_per_step / speed if speed else None
        if told and step_s and abs(told - step_s) > self.cells.rounding("step_s") + _SAME_SPEED * step_s:
            raise CannotPriceError(
                f"step_s is {step_s:g} s, and {'tokens_per_s_per_gpu' if per_rank else 'tokens_per_s_of_all'} makes "
                f"{told:.4g} s of it with this batch and as many GPUs: one of them is of something else"
            )
        measured = told or step_s
        peak = max(self.card.peak_flops_per_s.get(name, 0.0) for name in _PRICED) if self.card else 0.0
        if measured and peak:
            share = model_flops(job.shape, job.seq_len, job.global_batch_size, "causal")
            share /= measured * job.layout.world_size * peak
            if share > 1:
                raise CannotPriceError(
                    f"as measured it would be {share:.1f} times the card's peak: is the speed that of all GPUs, or gbs "
                    "not in sequences, or were products in another precision?"
                )
        return measured
