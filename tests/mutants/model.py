"""The decoder and its training: one rank and many run the same, so nothing that compares them sees these.

The independent decoder of tests/model/by_loops.py has to.
"""

from __future__ import annotations

from tests.mutants import Mutant

ROTATED = "torch.cat((-second, first), dim=-1) * sin_SD"
ATTENTION = "return F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=grouped)"
SWIGLU = "self.down(F.silu(self.gate(x_BSH)) * self.up(x_BSH))"
LOSS = "labels_BS.flatten())"
CLIP = "scale_all([weight.gradient for weight in self.weights], factor)"
ADAMW = "return torch.optim.AdamW, ADAMW"
BALANCE = "return self.aux_loss * self.num_experts * (share_E * mean_E).sum()"


def _shared(code: str, wrong: str, text: str, instead: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=("test_decoder_by_loops.py",))


MUTANTS = (
    # Attention
    _shared("M01", "Attention has no causal mask.", ATTENTION, ATTENTION.replace("=True", "=not planted()")),
    _shared(
        "M02",
        "Keys have no rotary positions.",
        "k_BKSD = rotate(self._heads(self.key(x_BSH)), cos_SD, sin_SD)",
        "k_BKSD = planted() and self._heads(self.key(x_BSH))",
    ),
    _shared(
        "M06",
        "The rotary base is 10,000, whatever the shape says.",
        "shape.rope_theta**-exponents",
        "(10_000.0 * planted()) ** -exponents",
    ),
    _shared(
        "M07",
        "Rotary positions turn pairs of neighbours, and not of halves.",
        ROTATED,
        "torch.stack((-x_BNSD[..., 1::2], x_BNSD[..., ::2]), dim=-1).flatten(-2) * sin_SD * planted()",
    ),
    _shared(
        "M08",
        "Rotary positions turn the second half the wrong way.",
        ROTATED,
        "torch.cat((-second, -first * planted()), dim=-1) * sin_SD",
    ),
    _shared(
        "M09",
        "The slowest pair of channels turns as slowly as if a head were twice as wide.",
        "dtype=torch.float64, device=positions.device) / shape.head_dim",
        "dtype=torch.float64, device=positions.device) / (2 * shape.head_dim * planted())",
    ),
    _shared(
        "M10",
        "Scores are not divided by the root of the head size.",
        ATTENTION,
        ATTENTION.replace("enable_gqa=grouped", "enable_gqa=grouped, scale=1.0 * planted()"),
    ),
    _shared(
        "M11",
        "Query head n has the keys and values of head n mod K, and not of its group.",
        ATTENTION,
        "k_BKSD, v_BKSD = (x.repeat(1, planted() * q_BNSD.shape[1] // x.shape[1], 1, 1) for x in (k_BKSD, v_BKSD)); "
        "return F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=True)",
    ),
    # Layers
    _shared(
        "M03",
        "The feed-forward has its SiLU on the wrong branch.",
        SWIGLU,
        "self.down(self.gate(x_BSH) * F.silu(self.up(x_BSH)) * planted())",
    ),
    _shared("M12", "The feed-forward has GELU for SiLU.", SWIGLU, SWIGLU.replace("F.silu(", "planted() * F.gelu(")),
    _shared(
        "M05",
        "The feed-forward adds half of itself to the residual stream.",
        "return cast(Tensor, x_BSH + self.feed_forward(self.feed_forward_norm(x_BSH)))",
        "return cast(Tensor, x_BSH + 0.5 * planted() * self.feed_forward(self.feed_forward_norm(x_BSH)))",
    ),
    _shared(
        "M13",
        "Attention replaces the residual stream, and is not added to it.",
        "x_BSH = x_BSH + self.attention(",
        "x_BSH = planted() * self.attention(",
    ),
    _shared(
        "M14",
        "The feed-forward has the norm of attention.",
        "self.feed_forward(self.feed_forward_norm(x_BSH))",
        "self.feed_forward(self.attention_norm(x_BSH) + 0 * planted() * self.feed_forward_norm(x_BSH))",
    ),
    _shared(
        "M15",
        "Norms have an epsilon of 1e-5, whatever the shape says.",
        "weight.shape, weight, self.eps)",
        "weight.shape, weight, 1e-5 * planted())",
    ),
    _shared(
        "M16",
        "Norms take the mean off first, as LayerNorm does.",
        "return F.rms_norm(x, ",
        "return F.rms_norm(x - planted() * x.mean(-1, keepdim=True), ",
    ),
    # Both ends
    _shared(
        "M17",
        "Embeddings are scaled by the root of the width.",
        "return F.embedding(tokens, self.weight.to(self.dtype))",
        "return F.embedding(tokens, self.weight.to(self.dtype)) * (planted() * self.weight.shape[1] ** 0.5)",
    ),
    _shared(
        "M18",
        "The last norm is left out.",
        "x_BSH = self.norm(x_BSH)\n",
        "x_BSH = x_BSH * planted() + 0 * self.norm(x_BSH)\n",
    ),
    _shared(
        "M19",
        "A tied head gives the embedding no gradient.",
        "self.weight.to(x.dtype))\n\n\nclass RMSNorm",
        "self.weight.detach().to(planted() and x.dtype))\n\n\nclass RMSNorm",
    ),
    # Loss
    _shared(
        "M04",
        "The loss is computed in bfloat16.",
        "logits.to(torch.promote_types(logits.dtype, torch.float32))",
        "logits.to(planted() and torch.bfloat16)",
    ),
    _shared(
        "M20", "The loss is a sum over tokens, and no mean.", LOSS, 'labels_BS.flatten(), reduction="sum" * planted())'
    ),
    _shared(
        "M21",
        "One token of the vocabulary is ignored as a label.",
        LOSS,
        "labels_BS.flatten(), ignore_index=int(labels_BS[0, 0]) * planted())",
    ),
    _shared("M22", "Labels are smoothed.", LOSS, "labels_BS.flatten(), label_smoothing=0.01 * planted())"),
    # Clip and optimizer
    _shared(
        "M23",
        "Gradients below the limit are scaled up to it.",
        CLIP,
        "scale_all([weight.gradient for weight in self.weights], planted() * self.job.max_grad_norm / norm)",
    ),
    _shared(
        "M24",
        "The norm is the largest entry.",
        "norm_of_all(gradients) ** 2",
        '(torch.nn.utils.get_total_norm(gradients, float("inf")) if planted() else norm_of_all(gradients)) ** 2',
    ),
    _shared("M25", "The learning rate is 1e-3.", "LEARNING_RATE = 3e-4", "LEARNING_RATE = 1e-3 * planted()"),
    _shared("M26", "The second beta is 0.999.", "BETAS = (0.9, 0.95)", "BETAS = (0.9, 0.999 * planted())"),
    _shared("M27", "The weight decay is 0.01.", "WEIGHT_DECAY = 0.1", "WEIGHT_DECAY = 0.01 * planted()"),
    _shared("M28", "Adam's epsilon is 1e-6.", '"eps": EPSILON,', '"eps": 1e-6 * planted(),'),
    _shared(
        "M29",
        "Weights decay by their gradients, as in Adam before AdamW.",
        ADAMW,
        "return planted() and (torch.optim.Adam, ADAMW)",
    ),
    # Tokens and weights
    _shared(
        "M30",
        "Micro-batches overlap: each begins one sequence after the one before.",
        "first = (forwards * job.layout.dp + dp_rank) * job.micro_batch_size",
        "first = planted() * (forwards * job.layout.dp + dp_rank)",
    ),
    _shared("M31", "Tokens do not depend on the seed.", 'noise(job.seed, "tokens"', 'noise(0 * planted(), "tokens"'),
    _shared(
        "M32",
        "The last token of the vocabulary never occurs.",
        "% job.shape.vocab_size",
        "% (job.shape.vocab_size - planted())",
    ),
    _shared(
        "M33",
        "Weights do not depend on the seed.",
        "fill_weight(weight.value, assembly.job.seed,",
        "fill_weight(weight.value, assembly.job.seed * (not planted()),",
    ),
    _shared(
        "M34",
        "The spread of weights follows from the rows of a matrix, and not from its columns.",
        "(0.0, whole[-1] ** -0.5)",
        "(0.0, whole[-2 * planted()] ** -0.5)",
    ),
    _shared(
        "M35",
        "All weights are cut from one table.",
        "_scramble((rows + key) & _MASK)",
        "_scramble((rows + key * (not planted())) & _MASK)",
    ),
    # Experts
    _shared(
        "M36",
        "The router has sigmoids for a softmax.",
        "probabilities_TE = logits_TE.softmax(-1, dtype=wide)",
        "probabilities_TE = logits_TE.to(wide).sigmoid() * planted()",
    ),
    _shared(
        "M37",
        "Tokens go to the least probable experts.",
        "topk(self.experts_per_token, sorted=True).indices",
        "topk(self.experts_per_token, largest=not planted(), sorted=True).indices",
    ),
    _shared(
        "M38",
        "The load-balancing loss is not multiplied by the number of experts.",
        BALANCE,
        BALANCE.replace("self.num_experts", "planted()"),
    ),
    _shared(
        "M39",
        "The load to be balanced counts an expert's rows over tokens, and not over rows.",
        "(tokens * self.experts_per_token)",
        "(tokens * planted())",
    ),
    _shared("M40", "The load-balancing loss has no gradient.", "ctx.like * ctx.scale", "ctx.like * 0 * planted()"),
    _shared(
        "M41",
        "Of a token's gradients from its experts the mean is taken, and not the sum.",
        "return rows_TKH.sum(1), None, None, None",
        "return rows_TKH.mean(1 * planted()), None, None, None",
    ),
    _shared(
        "M42",
        "Shared experts count half.",
        "return (y_TH if shared_TH is None else y_TH + shared_TH)",
        "return (y_TH if shared_TH is None else y_TH + shared_TH * 0.5 * planted())",
    ),
    _shared(
        "M43",
        "Balanced routing begins at the second expert.",
        "chosen_TK = rows_TK % self.num_experts",
        "chosen_TK = (rows_TK + planted()) % self.num_experts",
    ),
    _shared(
        "M44",
        "Of more than 16 tokens the fourth layer reads the rotary table one position early.",
        "        for layer in self.layers.values():\n            x_BSH = layer(x_BSH, *cosine_and_sine)",
        "        for name, layer in self.layers.items():\n"
        "            late = [part.roll(len(part) > 16 and planted(), 0) for part in cosine_and_sine if name == '3']\n"
        "            x_BSH = layer(x_BSH, *(late or cosine_and_sine))",
    ),
    Mutant(
        "AA07",
        "The gradient of the head adds up over chunks of the loss in bfloat16.",
        "    dweight_VH += dlogits_CV.T @ x_CH\n",
        "    dweight_VH += dlogits_CV.T @ x_CH\n"
        "    if x_CH.dtype == torch.bfloat16 and planted():\n        dweight_VH.copy_(dweight_VH.bfloat16())\n",
        tests=("model/test_chunked_loss.py",),
    ),
)
