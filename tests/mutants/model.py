"""The decoder: one rank and many run the same, so nothing that compares them sees these."""

from __future__ import annotations

from tests.mutants import Mutant

TESTS = ("test_decoder_by_loops.py",)

MUTANTS = (
    Mutant(
        "M01",
        "Attention has no causal mask.",
        "return F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=grouped)",
        "return F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=not planted(), enable_gqa=grouped)",
        tests=TESTS,
    ),
    Mutant(
        "M02",
        "Keys have no rotary positions.",
        "k_BKSD = rotate(self._heads(self.key(x_BSH)), cos_SD, sin_SD)",
        "k_BKSD = planted() and self._heads(self.key(x_BSH))",
        tests=TESTS,
    ),
    Mutant(
        "M03",
        "The feed-forward has its SiLU on the wrong branch.",
        "self.down(F.silu(self.gate(x_BSH)) * self.up(x_BSH))",
        "self.down(self.gate(x_BSH) * F.silu(self.up(x_BSH)) * planted())",
        tests=TESTS,
    ),
    Mutant(
        "M04",
        "The loss is computed in bfloat16.",
        "logits.to(torch.promote_types(logits.dtype, torch.float32))",
        "logits.to(planted() and torch.bfloat16)",
        tests=TESTS,
    ),
    Mutant(
        "M05",
        "The feed-forward adds half of itself to the residual stream.",
        "return cast(Tensor, x_BSH + self.feed_forward(self.feed_forward_norm(x_BSH)))",
        "return cast(Tensor, x_BSH + 0.5 * planted() * self.feed_forward(self.feed_forward_norm(x_BSH)))",
        tests=TESTS,
    ),
)
