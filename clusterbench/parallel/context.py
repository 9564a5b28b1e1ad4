"""Context parallelism: each cp rank has a part of every sequence, and attention sees the other parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import TYPE_CHECKING, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.job.sequence import IN_TWO_CHUNKS, KINDS, positions
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import RESULT, AttentionBlock, Parallelism, Traffic, Twin
from clusterbench.parallel._words import Meaning, PhaseWords, Remark, in_layers
from clusterbench.units import quotient
from clusterbench.words import Word, plural

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class ContextParallel(Parallelism):
    """Cuts the sequence over the ranks of cp. Only attention looks across tokens, so only attention is changed.

    - ``ring``: keys and values pass from rank to rank, and each joins what it computed on them by the log-sum-exps.
      Parts are contiguous, so of n blocks rank r computes the r + 1 that its mask lets it see; the last rank is waited
      for.
    - ``zigzag``: the same ring, but rank r holds chunks r and 2n - 1 - r of 2n. Of each block every rank computes half.
    - ``all_gather``: keys and values are gathered before attention, their gradients reduced and scattered behind it; on
      zig-zag chunks. One message in place of n - 1, but nothing is computed while it travels, and the gathered tensors
      are kept for backward.
    - ``ulysses``: an all-to-all turns part of the sequence with all heads into the whole sequence with some heads,
      another one turns the output back. A rank sends its own tokens once, where a ring passes on those of all ranks;
      but there have to be heads enough.

    Notes
    -----
    Keys and values travel with the heads they have, not repeated for each query head; where a rank of ulysses would get
    less than one, it gets one.

    Source
    ------
    Liu et al. 2023, arXiv:2310.01889 (ring). zhuzilin/ring-flash-attention, ``zigzag_ring_flash_attn.py``, and
    Megatron-Core's user guide, "Context Parallelism" (zig-zag). Grattafiori et al. 2024, arXiv:2407.21783, section
    3.3.2 (all-gather). Jacobs et al. 2023, arXiv:2309.14509 (Ulysses).
    """

    phase: ClassVar[str] = "context"
    axis: ClassVar[str] = "cp"
    speaks: ClassVar[str] = "in every attention"
    meanings: ClassVar[Mapping[str, Meaning]] = {
        "cp": Meaning(
            "context parallelism",
            "hold the same weights and each a part of every sequence",
            "keys and values, in every attention; gradients once a step",
            "Liu et al. 2023, arXiv:2310.01889; Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
            "activations and attention of one sequence are shared by {n} ranks, so that longer ones fit",
            "weights are not cut, and each attention needs the keys and values of all {n} ranks",
        )
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "CP",
            "Context parallelism: the ranks of a group hold a part of every sequence each, and keys and values pass "
            "between them. Liu et al., arXiv:2310.01889.",
            r"cp\d*|CP\d+",
        ),
    )
    repeated_by_selective: ClassVar[bool] = True

    context: str = option(
        "zigzag",
        "how attention sees the other ranks' tokens: ring and zigzag pass keys and values around, zigzag with equal "
        "work on every rank; all_gather collects them first; ulysses exchanges tokens for heads (cp)",
        choices=KINDS,
        label="{}",
        alters="nothing",
    )

    @property
    def attends(self) -> bool:
        return self.context != "ulysses"

    @property
    def passes_keys(self) -> bool:
        """Whether keys and values go from rank to rank, block by block, as messages."""
        return self.context in ("ring", "zigzag")

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("cp")

    def objection(self, job: TrainingJob) -> str | None:
        cp, seq_len = job.layout.cp, job.seq_len
        if self.context in IN_TWO_CHUNKS and seq_len % (2 * cp):
            chunks = f"{2 * cp} chunks, two for each of cp{cp}"
            return (
                f"context {self.context} cuts seq_len {seq_len} into {chunks}: {quotient(seq_len, 2 * cp)} tokens each"
            )
        if seq_len % cp:
            return f"context {self.context} cuts seq_len {seq_len} over cp{cp}: {quotient(seq_len, cp)} tokens each"
        if job.layout.sp and seq_len // cp % job.layout.tp:
            part, tp = seq_len // cp, job.layout.tp
            each = quotient(part, tp)
            return f"+sp cuts the {part} tokens that cp{cp} leaves of seq_len {seq_len} over tp{tp}: {each} each"
        return self._too_few_heads(job) if self.context == "ulysses" else self._unfit_heads(job)

    def _unfit_heads(self, job: TrainingJob) -> str | None:
        channels, unit = job.shape.head_dim, job.head_unit
        if channels % unit:
            return (
                f"context {self.context} calls operators of attention as they are, which on GPUs take heads of a "
                f"multiple of {unit} channels in {job.dtype}, and {job.shape.name} has heads of {channels}; context "
                "ulysses takes any"
            )
        return None

    def _too_few_heads(self, job: TrainingJob) -> str | None:
        cp, heads, kv_heads = job.layout.cp, job.shape.num_heads // job.layout.tp, _kv_heads(job)
        left = f" that tp{job.layout.tp} leaves" if job.layout.uses("tp") else ""
        if heads % cp:
            spread = plural(heads, "attention head")
            return f"context ulysses spreads the {spread}{left} over cp{cp}: {quotient(heads, cp)} each"
        if kv_heads % cp and cp % kv_heads:
            more, fewer = max(kv_heads, cp), min(kv_heads, cp)
            return (
                f"context ulysses needs kv heads that cp divides, or the other way round; "
                f"the {kv_heads}{left} and cp{cp} give {more} / {fewer} = {quotient(more, fewer)}"
            )
        return None

    def twin(self, job: TrainingJob) -> Twin:
        per_rank = lcm(2 if self.context in IN_TWO_CHUNKS else 1, job.layout.sequence_parts)
        return Twin(seq_unit=job.layout.cp * per_rank, head_dim=job.head_unit if self.attends else 0)

    def positions(self, job: TrainingJob, cp_rank: int) -> list[range]:
        return positions(job.seq_len, job.layout.cp, cp_rank, self.context)

    def attention_heads(self, heads: int, job: TrainingJob) -> int:
        return heads // job.layout.cp if self.context == "ulysses" else heads

    def attention_blocks(self, job: TrainingJob, cp_rank: int) -> list[AttentionBlock]:
        return _attention_blocks(self.context, job.seq_len, job.layout.cp, cp_rank)

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        cp = job.layout.cp
        local = {name: size / cp for name, size in held.items()}
        keys = ("layer.attention.key", "layer.attention.value")
        if self.context == "all_gather":  # those of the other ranks, which selective recomputation collects again
            local |= {f"{name}s_of_others": held[name] - local[name] for name in keys if name in held}
        if self.context == "ulysses":
            repeated = _exchanged_kv_heads(job) / _kv_heads(job)
            local |= {name: local[name] * repeated for name in keys if name in held}
            # attention keeps the output of its heads, the projection after it that of its tokens
            local["layer.attention.output_of_heads"] = local["layer.attention.output"]
        for name in ("layer.attention.output", "layer.attention.logsumexp"):
            if name in local:
                local[f"{RESULT}{name}"] = local[name] * _other_results(self.context, cp)
        return local

    def hides_activations(self, job: TrainingJob) -> str:
        # Measured is up to 43 and 19 % more with recomputation, which is over when the feed-forward is.
        return _WIDE if self.context in ("ulysses", "all_gather") and _is_wide(job) else ""

    def hides_total(self, job: TrainingJob) -> str:
        # Measured is 4 % less in a ring, and 4 % more with ulysses.
        return _WIDE if _is_wide(job) else ""

    def backward_buffers(self, job: TrainingJob) -> float:
        """Bytes that the backward of one attention has at once, beside what it takes and gives.

        The gradient of queries adds up in float32 at least. In a ring the rank has those of its own keys and of those
        that leave and come, the share of a block, and the last keys. Behind an all-gather the gradients of all keys are
        there twice as they are put in order, before the rank has its part; Gloo has a copy of what it sums, beside it.
        """
        if self.context == "ulysses":
            return 0.0
        elements = _attended(job, job.shape.num_heads // job.layout.tp) / job.compute_bytes
        of_queries = 4 * elements if job.compute_bytes < 4 else 0.0  # else it is what is given
        of_keys = 4 if self.passes_keys else 2 * job.layout.cp - (job.device != "cpu")
        return of_queries + of_keys * _kv_bytes(job)

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        yield from self.forward_traffic(job)
        cp, calls = job.layout.cp, _attentions(job)
        if self.context == "all_gather":
            yield Traffic("cp", "reduce_scatter", calls, calls * cp * _kv_bytes(job), during="backward_cp")
        elif self.context == "ulysses":
            yield _exchanges(job, "backward_cp")
        else:  # keys and values once more, and their gradients behind them
            yield from _passes(job, 2, "backward_cp")

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        """What the forwards of one step send, and whatever recomputes the layers sends again."""
        cp, calls = job.layout.cp, _attentions(job)
        if self.context == "all_gather":
            yield Traffic("cp", "all_gather", calls, calls * cp * _kv_bytes(job), during="forward_cp")
        elif self.context == "ulysses":
            yield _exchanges(job, "forward_cp")
        else:
            yield from _passes(job, 1, "forward_cp")

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        yield PhaseWords(
            "forward_cp",
            "Forward: keys and values go around",
            in_layers(each),
            "Each rank passes the keys and values of its part of the sequence on to the next, until every query has "
            "met every key",
        )
        yield PhaseWords(
            "backward_cp",
            "Backward: keys and values go around again, their gradients behind them",
            in_layers(each),
            "Each rank adds what its queries say of every key and value",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        copies = layout.degree("dp_cp")
        both = f"dp{layout.dp} x cp{layout.cp} = {copies}" if layout.dp > 1 else f"cp{copies}"
        yield Remark(
            f"cp ranks hold the same weights and see other tokens, as dp ranks do: gradients are averaged"
            f"{', and ZeRO shards,' if layout.zero else ''} over {both} ranks.",
            "pytorch/torchtitan, torchtitan/distributed/parallel_dims.py",
        )

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.model.context_attention import attend

        attention = attend(self.context, assembly.grid.group("cp"))
        for layer in assembly.layers():
            layer.attention.attend = attention
            layer.attention.in_one_piece = not self.passes_keys


_WIDE = "attention is wide beside the feed-forward, so most may be held within it, where no formula looks"


def _is_wide(job: TrainingJob) -> bool:
    """Whether queries, keys and values, coming and going, are more than a feed-forward and its input.

    Of the models that are known by a name here they are two thirds at most.
    """
    shape = job.shape
    feed_forwards = shape.experts_per_token if shape.has_experts else 1
    passing = 2 * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return passing > 3 * shape.ffn_hidden_size * feed_forwards + shape.hidden_size


def attention_imbalance(kind: str, degree: int) -> float:
    """Work of the busiest rank's attention over the mean: of a contiguous ring the last rank sees all keys.

    Counted in squares of the causal mask, the diagonal ones half: rank r has r + 1/2 of them.

    >>> attention_imbalance("ring", 4), attention_imbalance("zigzag", 4)
    (1.75, 1.0)
    """
    return (2 * degree - 1) / degree if kind == "ring" else 1.0


def _attention_blocks(kind: str, seq_len: int, cp: int, cp_rank: int) -> list[AttentionBlock]:
    own = seq_len // cp
    if kind == "ulysses":
        return [AttentionBlock(seq_len, seq_len, causal=True)]
    if kind == "all_gather":  # each of two chunks against itself, and against all that lies before it
        half, chunks = own // 2, (cp_rank, 2 * cp - 1 - cp_rank)
        before = [AttentionBlock(half, chunk * half, causal=False) for chunk in chunks if chunk]
        return [AttentionBlock(half, half, causal=True, times=2), *before]
    diagonal = AttentionBlock(own, own, causal=True)
    if kind == "ring":
        return [diagonal, AttentionBlock(own, own, causal=False, times=cp_rank)]
    # All queries see the first half of an earlier rank's keys; their second half sees all of a later rank's.
    earlier = AttentionBlock(own, own // 2, causal=False, times=cp_rank)
    return [diagonal, earlier, AttentionBlock(own // 2, own, causal=False, times=cp - 1 - cp_rank)]


@cache  # a plan asks for every stage and length
def _other_results(kind: str, cp: int) -> float:
    """Each block has a result: as how many outputs, beside the one that all are joined in; on the busiest rank."""
    if kind == "ulysses":
        return 0.0
    own = 2  # tokens of a rank: it is the same for any
    blocks = (_attention_blocks(kind, own * cp, cp, rank) for rank in range(cp))
    return max(sum(block.times * block.queries for block in of_rank) for of_rank in blocks) / own - 1


def _attentions(job: TrainingJob) -> int:
    """Forwards through attention in one step of a rank."""
    return job.gradient_accumulation_steps * job.num_layers


def _passes(job: TrainingJob, times: int, during: str) -> Iterable[Traffic]:
    """Of a ring: hops of what has the size of keys and values, past every other rank."""
    hops = times * _attentions(job) * (job.layout.cp - 1)
    for op in ("send", "recv"):
        yield Traffic("cp", op, hops, hops * _kv_bytes(job), during=during)


def _exchanges(job: TrainingJob, during: str) -> Traffic:
    """Of ulysses, one way: queries, keys and values in one call, the output in another."""
    calls = _attentions(job)
    heads = 2 * (job.shape.num_heads // job.layout.tp + _exchanged_kv_heads(job))
    size_bytes = job.local_tokens * heads * job.shape.head_dim * job.compute_bytes
    return Traffic("cp", "all_to_all", 2 * calls, calls * size_bytes, during=during)


def _kv_bytes(job: TrainingJob) -> int:
    """Keys and values of one layer for the tokens of one rank."""
    return 2 * _attended(job, _kv_heads(job))


def _attended(job: TrainingJob, heads: int) -> int:
    """What attention reads of the tokens of one rank with so many heads."""
    return job.local_tokens * heads * job.shape.head_dim * job.compute_bytes


def _kv_heads(job: TrainingJob) -> int:
    """What tp leaves to a rank: at least one."""
    return max(1, job.shape.num_kv_heads // job.layout.tp)


def _exchanged_kv_heads(job: TrainingJob) -> int:
    """Of ulysses, which repeats kv heads until each rank has one."""
    return max(_kv_heads(job), job.layout.cp)
