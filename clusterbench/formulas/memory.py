"""Bytes a training step holds: model state by ZeRO stage, and activations by Megatron's equations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter of each kind of model state."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    def sharded(self, zero_stage: int, dp: int) -> StateBytes:
        """What one of ``dp`` ranks holds: stage 1 splits the optimizer, 2 the gradients too, 3 the parameters too.

        Even shares; the last rank's padding is below one parameter per tensor and rank.

        Source: Rajbhandari et al. 2019, arXiv:1910.02054, section 3.1 and figure 1.

        >>> STATE_BYTES["bfloat16_mixed"].sharded(zero_stage=1, dp=64).total
        4.1875
        """
        if zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"ZeRO stage {zero_stage} does not exist; allowed are 0 to 3.")
        return StateBytes(
            self.parameters / (dp if zero_stage >= 3 else 1),
            self.gradients / (dp if zero_stage >= 2 else 1),
            self.optimizer / (dp if zero_stage >= 1 else 1),
        )


# AdamW keeps two moments. 12, 16, 18 and 20 bytes per parameter are all published; the recipe says which is meant.
STATE_BYTES: dict[str, StateBytes] = {
    "float64": StateBytes(8, 8, 16),
    "float32": StateBytes(4, 4, 8),
    # Everything in bfloat16, no master copy; torch.optim.AdamW over a bfloat16 model.
    "bfloat16": StateBytes(2, 2, 4),
    # ZeRO paper, arXiv:1910.02054, section 3.1: 2 + 2 + 12, the 12 being an fp32 master copy and two fp32 moments.
    "bfloat16_mixed": StateBytes(2, 2, 12),
    # NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py: fp32 main gradients, 18, or 6 + 12/d.
    "megatron_mixed": StateBytes(2, 4, 12),
    # PyTorch FSDP2 with MixedPrecisionPolicy: fp32 parameters, gradients and moments; bfloat16 copies come and go.
    "fsdp_mixed": StateBytes(4, 4, 8),
}


def model_state_bytes_per_parameter(recipe: str, zero_stage: int = 0, dp: int = 1) -> float:
    """Bytes of parameters, gradients and optimizer state per parameter on one of ``dp`` ranks.

    Parameters
    ----------
    recipe
        One of ``STATE_BYTES``.

    Examples
    --------
    >>> model_state_bytes_per_parameter("float32"), model_state_bytes_per_parameter("bfloat16_mixed", 3, 64)
    (16.0, 0.25)
    """
    if recipe not in STATE_BYTES:
        raise ValueError(f"unknown recipe of model state '{recipe}'. Known: {', '.join(STATE_BYTES)}.")
    return STATE_BYTES[recipe].sharded(zero_stage, dp).total


def megatron_activation_bytes(
    seq_len: int,
    micro_batch_size: int,
    hidden_size: int,
    num_heads: int,
    tp: int = 1,
    sp: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes of activations that one layer of a GPT keeps for its backward pass, on one rank, in 16-bit precision.

    Parameters
    ----------
    recompute
        ``selective`` drops scores, softmax and dropout of attention, and is what FlashAttention amounts to; ``full``
        keeps the layer's input alone.

    Notes
    -----
    Written for a feed-forward of 4 h with GELU, as many kv heads as heads, and dropout. A SwiGLU layer without dropout
    keeps other amounts; compare with measured memory, not with this, where it matters.

    Source
    ------
    Korthikanti et al. 2022, arXiv:2205.05198, equations 1 (no parallelism), 2 (tp), 4 (tp and sp), 6 (with selective
    recompute) and section 5 (full).

    Examples
    --------
    One layer of a 22B model (GPT, h 6144, 64 heads, 2048 tokens) on 8 ranks, in MiB:

    >>> megatron_activation_bytes(2048, 4, 6144, 64, tp=8, sp=True, recompute="selective") / 2**20
    204.0
    """
    sbh = seq_len * micro_batch_size * hidden_size
    scores = 5 * num_heads * seq_len / hidden_size
    if recompute == "full":
        return 2 * sbh
    if recompute not in ("none", "selective"):
        raise ValueError(f"unknown recompute '{recompute}'. Known: none, selective, full.")
    kept = 0 if recompute == "selective" else scores
    # Without sp, the inputs of norms and dropouts (10 sbh) are whole on every rank.
    return sbh * (34 + kept) / tp if sp or tp == 1 else sbh * (10 + 24 / tp + kept / tp)


def pipeline_activation_layers(num_layers: int, pp: int, chunks: int = 1) -> float:
    """Layers whose activations the first stage of 1F1B holds: all ``num_layers``, for any number of stages.

    It keeps ``pp`` microbatches of ``num_layers / pp`` layers each; interleaving adds a little. Needs ``pp``
    microbatches or more.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 5 and the text below it.

    >>> pipeline_activation_layers(96, pp=8), pipeline_activation_layers(96, pp=8, chunks=3)
    (96.0, 124.0)
    """
    return num_layers * (1 + (pp - 1) / (pp * chunks) if chunks > 1 else 1.0)


def logits_bytes(seq_len: int, micro_batch_size: int, vocab_size: int, itemsize: int = 4) -> int:
    """Bytes of one copy of the logits of a microbatch, on the last stage only; the loss keeps 2 or 3.

    >>> logits_bytes(8192, 1, 128_256)
    4202692608
    """
    return seq_len * micro_batch_size * vocab_size * itemsize
