"""One training step as numbers: a shape, a layout and a batch. Everything a prediction may depend on; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from clusterbench.layout import ParallelLayout
from clusterbench.shape import ModelShape

DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}

# AdamW as Llama 3 has it (arXiv:2407.21783, section 3.4.1), but for the schedule: no step depends on its values.
LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class TrainingJob:
    """What one optimizer step has to do.

    Attributes
    ----------
    seq_len
        Tokens of one sequence.
    global_batch_size, micro_batch_size
        Sequences per step of the whole job; sequences per forward of one data-parallel rank.
    dtype
        Of the arithmetic. Parameters, gradients and optimizer state are kept in :attr:`master_bytes` each.
    max_grad_norm
        Gradients are scaled down to this global norm; None leaves them alone.
    device
        ``cpu`` or ``cuda``: some operators keep other things for backward.

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

    @property
    def gradient_accumulation_steps(self) -> int:
        """Forwards per step on one data-parallel rank."""
        return self.global_batch_size // (self.micro_batch_size * self.layout.dp)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_len

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one forward."""
        return self.micro_batch_size * self.seq_len

    @property
    def compute_bytes(self) -> int:
        """Bytes of one activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def master_bytes(self) -> int:
        """Bytes of one parameter, of its gradient, and of each of Adam's two moments.

        With bfloat16 arithmetic all four are float32: 16 bytes per parameter at rest. Each weight is rounded to
        bfloat16 where it is used, and that copy (2 bytes) lives from forward to backward of a micro-batch, as under
        autocast.
        """
        return max(4, self.compute_bytes)

    @property
    def equation(self) -> str:
        return (
            f"global_batch_size {self.global_batch_size} = micro_batch_size {self.micro_batch_size} x "
            f"gradient_accumulation_steps {self.gradient_accumulation_steps} x dp {self.layout.dp}"
        )

    def objection(self) -> str | None:
        """Why the batch does not come out even, with the whole equation; None when it does."""
        per_forward = self.micro_batch_size * self.layout.dp
        if self.global_batch_size % per_forward == 0:
            return None
        return (
            f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size {self.micro_batch_size} x "
            f"dp {self.layout.dp} = {per_forward}, so gradient_accumulation_steps would be "
            f"{self.global_batch_size / per_forward:.4g}"
        )

    def on_one_rank(self, dtype: str | None = None) -> TrainingJob:
        """The same step without any parallelism, in one forward of the whole batch."""
        return replace(
            self,
            layout=ParallelLayout(),
            micro_batch_size=self.global_batch_size,
            dtype=dtype or self.dtype,
        )


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight of the model by its name, in the order the model registers them.

    >>> from clusterbench.shape import named_shape
    >>> weight_shapes(named_shape("llama-tiny"))["layers.0.attention.key.weight"]
    (64, 128)
    """
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "attention.query": (queries, hidden),
        "attention.key": (keys, hidden),
        "attention.value": (keys, hidden),
        "attention.output": (hidden, queries),
        "feed_forward_norm": (hidden,),
        "feed_forward.gate": (ffn, hidden),
        "feed_forward.up": (ffn, hidden),
        "feed_forward.down": (hidden, ffn),
    }
    weights: dict[str, tuple[int, ...]] = {"embedding.weight": (shape.vocab_size, hidden)}
    for index in range(shape.num_layers):
        weights |= {f"layers.{index}.{name}.weight": size for name, size in layer.items()}
    weights["norm.weight"] = (hidden,)
    if not shape.tied_embeddings:
        weights["head.weight"] = (shape.vocab_size, hidden)
    return weights


def activations(job: TrainingJob) -> dict[str, float]:
    """Bytes one rank holds at the end of a forward without any parallelism, by what they are, for one micro-batch.

    What the model of :mod:`clusterbench.training.model` saves for backward, operator by operator, and the copies of the
    logits that live while the loss is computed. ``layer.*`` is the sum over all layers. Flash attention saves its
    output and one float per head and token, not the scores.
    """
    shape, tokens, size = job.shape, job.tokens_per_micro_batch, job.compute_bytes
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
    held = {f"layer.{name}": float(number * tokens * shape.num_layers) for name, number in per_token_and_layer.items()}
    held |= {name: float(number * tokens) for name, number in per_token.items()}
    if job.compute_bytes != job.master_bytes:
        held |= {name: float(prod(part) * size) for name, part in _rounded_weights(shape).items()}
    return held


def _rounded_weights(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Weights whose rounded copy a product or a norm keeps for backward; a look-up in the embedding keeps none."""
    weights = weight_shapes(shape)
    table = weights.pop("embedding.weight")
    return {f"rounded.{name}": part for name, part in ({"head.weight": table} | weights).items()}
