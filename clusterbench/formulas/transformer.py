"""Operations of a training step of a decoder, in the conventions people publish.

Per token, a weight of a matrix multiplication costs 6 FLOP: 2 forward, 4 backward. Attention adds 12 times layers times
attention width times sequence, because every token meets every other; a causal mask needs half of it. Conventions
differ in whether they credit that half, and in which parameters they count:

- ``palm``: 6 (N - input embedding) + 12 L H T. The mask is not credited. Default, as in torchtitan.
- ``causal``: 6 (N - input embedding) + 6 L H T. Megatron-LM's since 2025.
- ``palm_6n``: 6 N + 12 L H T with N whole, as the Ultra-Scale Playbook and KempnerForge print.

The lookup of the input embedding multiplies nothing, the output head does. With tied embeddings the one matrix is the
head, and stays counted, once: N - input embedding is N. Counting it again on another pipeline stage is what made 794
rows of the Playbook's sweep too good.

Of a model with experts, N is what one token meets: its experts, the shared ones and the router, as in torchtitan and
Megatron-LM. Published rows that take their tokens from a forced, balanced routing are upper bounds.
"""

from __future__ import annotations

from clusterbench.shape import ModelShape

CONVENTIONS: dict[str, str] = {
    "palm": "6 (N - input embedding) + 12 L H T per token; Chowdhery et al. 2022, arXiv:2204.02311, appendix B",
    "causal": "6 (N - input embedding) + 6 L H T per token; NVIDIA/Megatron-LM, megatron/training/training.py",
    "palm_6n": "6 N + 12 L H T per token with N whole; Ultra-Scale Playbook, KempnerForge",
}

RECOMPUTE: dict[str, str] = {
    "none": "nothing is computed twice",
    "selective": "operators between matrix products and attention are: norms, rotations, SwiGLU; none that is counted",
    "full": "every layer up to the input of its last matrix product, where torch.utils.checkpoint stops; not the head",
    "megatron_selective": "scores, softmax and weighted sum of attention: what is not needed with flash attention",
    "megatron_full": "every layer with its last matrix product; not the head",
}
"""What is computed again in the backward pass. The first three are those of clusterbench/parallel/recompute.py, by what
is executed; ``selective`` is the word of Megatron for one thing and of torchtitan for another."""


def flops_per_token(
    num_parameters: float,
    embedding_parameters: float,
    num_layers: int,
    attention_width: int,
    seq_len: int,
    convention: str = "palm",
) -> float:
    """FLOP per token, forward and backward, of a decoder known by its counts only.

    Parameters
    ----------
    num_parameters
        All weights a token meets, a tied embedding once.
    embedding_parameters
        Weights of the input embedding that multiply nothing: 0 if it is tied to the head.
    attention_width
        Heads times head size.
    convention
        One of ``CONVENTIONS``.

    Source
    ------
    pytorch/torchtitan, ``torchtitan/models/utils.py``, for the counting of embeddings.

    Examples
    --------
    Llama 3 8B at 8192 tokens, in GFLOP:

    >>> round(flops_per_token(8.03e9, 128256 * 4096, 32, 4096, 8192) / 1e9, 3)
    57.913
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown FLOPs convention '{convention}'. Known: {', '.join(CONVENTIONS)}.")
    counted = num_parameters if convention == "palm_6n" else num_parameters - embedding_parameters
    pairs = 6 if convention == "causal" else 12
    return 6 * counted + pairs * num_layers * attention_width * seq_len


def model_flops_per_token(shape: ModelShape, seq_len: int, convention: str = "palm") -> float:
    """What the mathematics needs for one token, forward and backward, without recomputation."""
    return flops_per_token(
        shape.num_active_parameters,
        0 if shape.tied_embeddings else shape.embedding_parameters,
        shape.num_layers,
        shape.num_heads * shape.head_dim,
        seq_len,
        convention,
    )


def hardware_flops_per_token(
    shape: ModelShape, seq_len: int, recompute: str = "none", convention: str = "palm"
) -> float:
    """What is executed for one token: the model's FLOP, and the forward passes computed twice.

    Notes
    -----
    FlashAttention recomputes scores within its own backward kernel whatever the setting; no convention counts that.
    ``megatron_selective`` adds one forward pass of attention, 4 L H T. Korthikanti et al.'s equation 8 adds 12 L H T,
    so the HFU of their table 5 are above these: 43.7 % for the 22B model would be 42.2 %.

    With experts, ``full`` repeats their last product, too: the router's gradient needs what it weighs.

    Source
    ------
    Narayanan et al. 2021, arXiv:2104.04473, equation 3 (``megatron_full``): the layers' 72 become 96, the head's share
    stays. ``full``: torch.utils.checkpoint, "early stopping", on by default since PyTorch 2.1.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"unknown recompute '{recompute}'. Known: {', '.join(RECOMPUTE)}.")
    attention = _attention_forward(shape, seq_len, convention)
    layers = attention + 2 * shape.num_layers * shape.active_parameters_per_layer
    last_product = 0 if shape.has_experts else shape.hidden_size * shape.ffn_hidden_size
    again = {
        "none": 0.0,
        "selective": 0.0,
        "full": layers - 2 * shape.num_layers * last_product,
        "megatron_selective": attention,
        "megatron_full": layers,
    }
    return model_flops_per_token(shape, seq_len, convention) + again[recompute]


def _attention_forward(shape: ModelShape, seq_len: int, convention: str) -> float:
    pairs = 2 if convention == "causal" else 4
    return pairs * shape.num_layers * shape.num_heads * shape.head_dim * seq_len


def model_flops(shape: ModelShape, seq_len: int, global_batch_size: int, convention: str = "palm") -> float:
    """FLOP of one step over ``global_batch_size`` sequences, of all ranks together."""
    return model_flops_per_token(shape, seq_len, convention) * seq_len * global_batch_size


def hardware_flops(
    shape: ModelShape, seq_len: int, global_batch_size: int, recompute: str = "none", convention: str = "palm"
) -> float:
    """Executed FLOP of one step over ``global_batch_size`` sequences, of all ranks together."""
    return hardware_flops_per_token(shape, seq_len, recompute, convention) * seq_len * global_batch_size


def flops_utilization(flops: float, time_s: float, world_size: int, peak_flops_per_s: float) -> float:
    """Share of the peak that was used: MFU for model FLOP, HFU for hardware FLOP.

    Parameters
    ----------
    flops
        Of one step, of all ranks together.
    peak_flops_per_s
        Of one rank, dense, for the dtype of the multiplications.

    Examples
    --------
    Llama 3 8B at 8192 tokens, 7000 tokens/s on one H100:

    >>> round(flops_utilization(57.913e9 * 7000, 1.0, 1, 989e12), 4)
    0.4099
    """
    if time_s <= 0 or peak_flops_per_s <= 0:
        raise ValueError(f"a step of {time_s} s on a peak of {peak_flops_per_s} FLOP/s has no utilization.")
    return flops / (time_s * world_size * peak_flops_per_s)


def megatron_flops(
    batch_size: int, seq_len: int, num_layers: int, hidden_size: int, vocab_size: int, recompute: str = "none"
) -> float:
    """FLOP of one step of a GPT (feed-forward 4 h, as many kv heads as heads), as Megatron's papers print it.

    A cross-check of the general formulas; no benchmark uses it.

    Parameters
    ----------
    recompute
        ``none`` gives the model's FLOP, the others the hardware's.

    Source
    ------
    Korthikanti et al. 2022, arXiv:2205.05198, equations 7 (none) and 8 (selective, as printed: it counts the repeated
    attention three times its forward pass); Narayanan et al. 2021, arXiv:2104.04473, equation 3 (full). The mixed
    form with 72 and 16 l h that circulates is wrong.
    """
    b, s, layers, h, v = batch_size, seq_len, num_layers, hidden_size, vocab_size
    if recompute == "full":
        return 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    attention = {"none": s / (6 * h), "selective": s / (3 * h)}[recompute]
    return 72 * b * s * layers * h**2 * (1 + attention + v / (12 * h * layers))
