"""One training step as numbers: a shape, a layout and a batch. Everything a prediction may depend on; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from clusterbench.formulas.schedules.memory import RankOrder
from clusterbench.job.experts import expert_activations, expert_weight_shapes
from clusterbench.layout import ParallelLayout
from clusterbench.precision import MASTER, NARROW, PRECISIONS, WIDE
from clusterbench.shape import ModelShape
from clusterbench.units import quotient

OURS = "ours"
"""The trainer of a step that names none: cases recorded before there were others keep their identity."""

DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}

# AdamW as Llama 3 has it (arXiv:2407.21783, section 3.4.1), but for the schedule: no step depends on its values.
LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1

CAST_AT_ONCE = 2**24
"""Elements of gradients that an optimizer casts to the dtype of its weights at once: 64 MiB in float32."""

MOST_TOKENS = 2**30
"""Of a step: with more, the batch is in tokens where it should be in sequences."""


Dtypes = tuple[str, str, str]


class Chunk(NamedTuple):
    """Consecutive layers that one rank computes: of a model cut into stages, one stage.

    Attributes
    ----------
    stage
        Its place among all stages.
    first, last
        Whether it begins with the embedding, and whether it ends with norm and head.
    """

    stage: int
    layers: range
    first: bool
    last: bool


@cache  # a plan asks for every job
def as_one(held: tuple[Chunk, ...]) -> Chunk:
    """Some chunks as one: the same for all that have as many layers and the same ends of the model."""
    layers = sum(len(chunk.layers) for chunk in held)
    return Chunk(0, range(layers), any(chunk.first for chunk in held), any(chunk.last for chunk in held))


@dataclass(frozen=True)
class TrainingJob:
    """What one optimizer step has to do, and which part of the model one rank has.

    Attributes
    ----------
    seq_len
        Tokens of one sequence.
    global_batch_size, micro_batch_size
        Sequences per step of the whole job; sequences per forward of one data-parallel rank.
    dtype
        Of the arithmetic.
    precision
        What weights, gradients and moments are kept in where that is bfloat16: a name of
        :data:`~clusterbench.precision.PRECISIONS`.
    gradient_dtype
        In which gradients of float32 weights add up and are reduced, where the arithmetic is in bfloat16.
    max_grad_norm
        Gradients are scaled down to this global norm; None leaves them alone.
    device
        ``cpu`` or ``cuda``: some operators keep other things for backward.
    chunks
        What this rank has of the layers; empty for all. ``pp_rank`` is then its place along pp, and ``order`` what it
        computes; None where it finishes each micro-batch before the next.

    Examples
    --------
    >>> from clusterbench.shape import named_shape
    >>> job = TrainingJob(named_shape("llama-tiny"), ParallelLayout.parse("dp2-tp2"), 256, 16, 2)
    >>> job.equation
    'global_batch_size 16 = micro_batch_size 2 x gradient_accumulation_steps 4 x dp 2'
    """

    shape: ModelShape
    layout: ParallelLayout
    seq_len: int
    global_batch_size: int
    micro_batch_size: int
    dtype: str = "float32"
    max_grad_norm: float | None = 1.0
    seed: int = 0
    device: str = "cpu"
    chunks: tuple[Chunk, ...] = ()
    pp_rank: int = 0
    order: RankOrder | None = None
    precision: str = MASTER
    gradient_dtype: str = WIDE

    @cached_property
    def held(self) -> tuple[Chunk, ...]:
        """The chunks this rank has: without pipeline parallelism one, the whole model."""
        return self.chunks or (Chunk(0, range(self.shape.num_layers), first=True, last=True),)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers this rank has."""
        return tuple(layer for chunk in self.held for layer in chunk.layers)

    @cached_property
    def kind(self) -> Chunk:
        """All that this rank has as one chunk: the same for all with as many layers and the same ends of the model."""
        return as_one(self.held)

    @cached_property
    def num_layers(self) -> int:
        """How many layers this rank has."""
        return len(self.kind.layers)

    @property
    def embeds(self) -> bool:
        """Whether this rank looks tokens up in the embedding."""
        return self.kind.first

    @property
    def has_head(self) -> bool:
        """Whether this rank computes logits and loss."""
        return self.kind.last

    @property
    def gradient_accumulation_steps(self) -> int:
        """Forwards per step on one data-parallel rank."""
        return self.global_batch_size // (self.micro_batch_size * self.layout.dp)

    @property
    def has_plain_attention(self) -> bool:
        """Whether torch has no operator for all of its attention, and takes plain products, which keep the scores.

        On CUDA in float64, and in float32 where heads share keys or have an odd number of channels: the kernel for
        float32 takes neither.
        """
        is_odd = self.shape.num_kv_heads != self.shape.num_heads or self.shape.head_dim % self.head_unit
        return self.device == "cuda" and (self.dtype == "float64" or (self.dtype == "float32" and bool(is_odd)))

    @property
    def head_unit(self) -> int:
        """Of how many channels a head has to be a multiple where a GPU's operators of attention take it as it is.

        16 bytes of them; attention in float64 is made of plain products. ``scaled_dot_product_attention`` fills heads
        up for flash attention alone.

        Source: aten/src/ATen/native/transformers/cuda of torch, flash_attn/flash_api.cpp ("head_size must be a multiple
        of 8") and sdp_utils.cpp (``minimum_gemm_alignment``, ``check_cudnn_tensor_shapes``).
        """
        return 1 if self.device == "cpu" or self.dtype == "float64" else 16 // self.compute_bytes

    @property
    def fills_heads(self) -> str:
        """What torch does to heads for flash attention on a GPU, in words; empty where it takes them as they are."""
        channels, unit = self.shape.head_dim, self.head_unit
        if self.has_plain_attention or channels % unit == 0:
            return ""
        filled = -(-channels // unit) * unit
        return f"on a GPU torch fills heads of {channels} channels up to {filled} for attention, and keeps them so"

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_len

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one forward of one dp rank; its cp ranks share them."""
        return self.micro_batch_size * self.seq_len

    @cached_property
    def local_tokens(self) -> int:
        """Tokens of one forward that this rank sees."""
        return self.tokens_per_micro_batch // self.layout.cp

    @cached_property
    def residual_tokens(self) -> int:
        """Tokens of one forward whose residual stream this rank holds, between the regions of split weights."""
        return self.local_tokens // self.layout.sequence_parts

    @classmethod
    def of_chunk(
        cls,
        shape: ModelShape,
        layout: ParallelLayout,
        chunk: Chunk,
        dtypes: Dtypes,
        seq_len: int = 1,
        micro_batch_size: int = 1,
        device: str = "cpu",
    ) -> TrainingJob:
        """A job of one micro-batch on each dp rank with these layers, which tells what a rank holds of any larger one.

        Parameters
        ----------
        dtypes
            As :attr:`dtypes` has them.
        """
        dtype, precision, gradient_dtype = dtypes
        return cls(
            shape,
            layout,
            seq_len,
            micro_batch_size * layout.dp,
            micro_batch_size,
            dtype,
            device=device,
            chunks=(chunk,),
            precision=precision,
            gradient_dtype=gradient_dtype,
        )

    @cached_property
    def dtypes(self) -> Dtypes:
        """Of the arithmetic, and what says those of all that is kept: ``dtype``, ``precision``, ``gradient_dtype``."""
        return self.dtype, self.precision, self.gradient_dtype

    @cached_property
    def compute_bytes(self) -> int:
        """Bytes of one activation."""
        return DTYPE_BYTES[self.dtype]

    @cached_property
    def master_bytes(self) -> int:
        """Bytes of one parameter, and of its gradient unless :attr:`gradient_dtype` says otherwise.

        With bfloat16 arithmetic both are float32 unless :attr:`precision` says otherwise, as are Adam's two moments: 16
        bytes per parameter at rest. Beside them is a copy in bfloat16 (2 bytes), rounded once a step, of each weight
        that FSDP does not gather: see :func:`has_copy`.
        """
        size = DTYPE_BYTES[self.dtype]
        return PRECISIONS[self.precision].weight if size == 2 else size

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of one number of a gradient while DDP or FSDP reduces it; before and behind that :func:`kept_bytes`.

        In the small twin's float64 there is nothing narrower: ``gradient_dtype`` is of bfloat16 arithmetic.
        """
        return 2 if self.compute_bytes == 2 and self.gradient_dtype == NARROW else self.master_bytes

    @property
    def moment_bytes(self) -> int:
        """Bytes of each of Adam's two moments of one parameter."""
        size = DTYPE_BYTES[self.dtype]
        return PRECISIONS[self.precision].moment if size == 2 else size

    @property
    def norm_bytes(self) -> int:
        """Bytes of a sum of squares of gradients, which is float32 at least."""
        return max(4, self.compute_bytes)

    @property
    def equation(self) -> str:
        return (
            f"global_batch_size {self.global_batch_size} = micro_batch_size {self.micro_batch_size} x "
            f"gradient_accumulation_steps {self.gradient_accumulation_steps} x dp {self.layout.dp}"
        )

    def objection(self) -> str | None:
        """Why there is no such step, as a batch that does not come out even, with the equation; None when there is."""
        if self.precision != MASTER and self.dtype != "bfloat16":
            kept = PRECISIONS[self.precision].words
            return f"precision {self.precision} ({kept}) is of steps in bfloat16, and dtype is {self.dtype}"
        if self.gradient_dtype != WIDE:
            asked = f"gradient_dtype {self.gradient_dtype}"
            if self.dtype != "bfloat16":
                return f"{asked} is of steps in bfloat16, and dtype is {self.dtype}"
            if self.master_bytes == 2:
                return f"{asked} changes nothing with precision {self.precision}, whose gradients are bfloat16 already"
        if self.tokens_per_step > MOST_TOKENS:
            return (
                f"global_batch_size {self.global_batch_size} of seq_len {self.seq_len} are "
                f"{self.tokens_per_step / 1e9:.3g} billion tokens a step: it counts sequences, not tokens"
            )
        per_forward = self.micro_batch_size * self.layout.dp
        if self.global_batch_size % per_forward == 0:
            return None
        fewer = self.global_batch_size // per_forward
        near = " or ".join(f"{number * per_forward}" for number in (fewer, fewer + 1) if number)
        return (
            f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size {self.micro_batch_size} x "
            f"dp {self.layout.dp} = {per_forward}, so gradient_accumulation_steps would be "
            f"{quotient(self.global_batch_size, per_forward)}; with {near} sequences it is whole"
        )

    @property
    def of_chunks(self) -> tuple[TrainingJob, ...]:
        """The same rank with each of its chunks alone."""
        return (self,) if len(self.chunks) == 1 else self._of_several  # kept, it would hold itself for good

    @cached_property
    def _of_several(self) -> tuple[TrainingJob, ...]:
        return tuple(replace(self, chunks=(chunk,)) for chunk in self.held)

    @property
    def uncut(self) -> TrainingJob:
        """The same step with the whole model: of no place along pp."""
        return replace(self, chunks=(), pp_rank=0, order=None)

    def on_one_rank(self, dtype: str | None = None) -> TrainingJob:
        """The same step without any parallelism, in one forward of the whole batch.

        With experts in the same micro-batches: their load-balancing loss is one for each.
        """
        return replace(
            self.uncut,
            layout=ParallelLayout(),
            micro_batch_size=self.micro_batch_size if self.shape.has_experts else self.global_batch_size,
            dtype=dtype or self.dtype,
        )


def weight_shapes(job: TrainingJob) -> dict[str, tuple[int, ...]]:
    """Every weight of the layers a rank has by its name, whole, in the order the model registers them.

    A tied embedding is the head's, too: under pipeline parallelism the first and the last stage have it.

    >>> from clusterbench.shape import named_shape
    >>> job = TrainingJob(named_shape("llama-tiny"), ParallelLayout(), 256, 8, 8)
    >>> weight_shapes(job)["layers.0.attention.key.weight"]
    (64, 128)
    """
    shape, hidden = job.shape, job.shape.hidden_size
    table = {"embedding.weight": (shape.vocab_size, hidden)}
    weights: dict[str, tuple[int, ...]] = {}
    for chunk in job.held:
        if chunk.first or (chunk.last and shape.tied_embeddings):
            weights |= table
        for index in chunk.layers:
            weights |= {f"layers.{index}.{name}": size for name, size in _layer_weights(shape).items()}
        if chunk.last:
            weights["norm.weight"] = (hidden,)
            if not shape.tied_embeddings:
                weights["head.weight"] = (shape.vocab_size, hidden)
    return weights


def one_of_each(shape: ModelShape, layout: ParallelLayout) -> TrainingJob:
    """A job with one layer: its weights are one of each kind there is, for a layer's weights are as those of the next.

    Of its sizes only those of the weights mean anything.
    """
    return TrainingJob(shape, layout, 1, 1, 1, chunks=(Chunk(0, range(1), first=True, last=True),))


def how_many(name: str, job: TrainingJob) -> int:
    """How many weights a rank has of the kind that this one of :func:`one_of_each` stands for.

    >>> from clusterbench.shape import named_shape
    >>> job = TrainingJob(named_shape("llama-tiny"), ParallelLayout(), 256, 8, 8)
    >>> how_many("layers.0.attention.key.weight", job), how_many("head.weight", job)
    (4, 1)
    """
    if name.startswith("layers."):
        return job.num_layers
    if name == "embedding.weight":
        return int(job.embeds or (job.has_head and job.shape.tied_embeddings))
    return int(job.has_head)


def _layer_weights(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention: dict[str, tuple[int, ...]] = {
        "attention_norm.weight": (hidden,),
        "attention.query.weight": (queries, hidden),
        "attention.key.weight": (keys, hidden),
        "attention.value.weight": (keys, hidden),
        "attention.output.weight": (hidden, queries),
        "feed_forward_norm.weight": (hidden,),
    }
    if shape.has_experts:
        return attention | expert_weight_shapes(shape)
    return attention | {
        "feed_forward.gate.weight": (ffn, hidden),
        "feed_forward.up.weight": (ffn, hidden),
        "feed_forward.down.weight": (hidden, ffn),
    }


def is_spread_expert(name: str, job: TrainingJob) -> bool:
    """Whether a weight belongs to experts that are spread over ranks, so that dp ranks hold different ones."""
    return job.layout.spreads_experts and ".experts." in name


def has_copy(name: str, job: TrainingJob) -> bool:
    """Whether a rank keeps a copy of a weight in the dtype of the arithmetic, rounded once a step.

    Weights that FSDP gathers come in that dtype; experts of which there is one copy are not FSDP's.
    """
    if job.compute_bytes == job.master_bytes:
        return False
    return not job.layout.shards_gradients or (is_spread_expert(name, job) and job.layout.degree("edp") == 1)


def kept_bytes(name: str, job: TrainingJob) -> int:
    """Bytes of one number of a weight's gradient as it adds up over micro-batches, is summed, and waits to be used.

    Where a weight has a copy in the dtype of the arithmetic its gradient is that of the copy, and adds up in
    :attr:`TrainingJob.gradient_bytes`. FSDP reduces in that dtype in every micro-batch, and adds up shares in the dtype
    of the parameters they are of.

    >>> from clusterbench.shape import named_shape
    >>> from clusterbench.precision import NARROW
    >>> layouts = ParallelLayout.parse("dp2"), ParallelLayout.parse("dp2+zero3")
    >>> jobs = [TrainingJob(named_shape("llama-tiny"), layout, 256, 8, 1, "bfloat16") for layout in layouts]
    >>> [kept_bytes("head.weight", replace(job, gradient_dtype=NARROW)) for job in jobs]
    [2, 4]
    """
    return job.gradient_bytes if has_copy(name, job) else job.master_bytes


def activations(job: TrainingJob, load: float = 1.0) -> dict[str, float]:
    """Bytes a rank with these layers holds at the end of a forward, by what they are, for one micro-batch.

    Of the whole micro-batch: each parallelism then takes its share off.

    What the model of :mod:`clusterbench.model.decoder` saves for backward, operator by operator, and the copies of the
    logits that live while the loss is computed. ``layer.*`` is the sum over all layers it has. Flash attention saves
    its output and one float per head and token, not the scores.

    ``load`` is what :func:`clusterbench.job.experts.expert_activations` says.
    """
    shape, tokens, size, num_layers = job.shape, job.tokens_per_micro_batch, job.compute_bytes, job.num_layers
    statistic = max(4, size)  # norms, log-sum-exps and the loss are computed in float32 at least
    # CUDA's norm keeps its input. On a CPU it is made of plain operators, which keep the input and the input before the
    # weight is applied, both at the precision they compute in.
    norm_input = shape.hidden_size * (size if job.device == "cuda" else 2 * statistic)
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    per_token_and_layer = {
        "attention_norm.input": norm_input,
        "attention_norm.rstd": statistic,
        "attention.input": shape.hidden_size * size,
        "attention.query": queries * size,
        "attention.key": keys * size,
        "attention.value": keys * size,
        "attention.output": queries * size,
        "attention.logsumexp": shape.num_heads * statistic,
        "feed_forward_norm.input": norm_input,
        "feed_forward_norm.rstd": statistic,
    }
    if not shape.has_experts:
        per_token_and_layer |= {
            "feed_forward.input": shape.hidden_size * size,
            "feed_forward.gate": shape.ffn_hidden_size * size,
            "feed_forward.silu": shape.ffn_hidden_size * size,
            "feed_forward.up": shape.ffn_hidden_size * size,
            "feed_forward.product": shape.ffn_hidden_size * size,
        }
    per_token = {
        "norm.input": norm_input,
        "norm.rstd": statistic,
        "head.input": shape.hidden_size * size,
        "loss.logits": shape.vocab_size * size,
        "loss.logits_in_float32": shape.vocab_size * 4 * (size < 4),
        "loss.log_softmax": shape.vocab_size * statistic,
    }
    held = {f"layer.{name}": float(number * tokens * num_layers) for name, number in per_token_and_layer.items()}
    if shape.has_experts:
        of_experts = expert_activations(shape, tokens, size, job.layout.ep, load)
        held |= {f"layer.{name}": bytes_of_one * num_layers for name, bytes_of_one in of_experts.items()}
    if job.has_head:
        held |= {name: float(number * tokens) for name, number in per_token.items()}
    return held
