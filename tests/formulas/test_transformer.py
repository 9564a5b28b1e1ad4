"""FLOPs against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.formulas.transformer import (
    CONVENTIONS,
    flops_per_token,
    flops_utilization,
    hardware_flops,
    hardware_flops_per_token,
    megatron_flops,
    model_flops,
    model_flops_per_token,
)
from clusterbench.shape import ModelShape, named_shape

LLAMA_8B = (8.03e9, 128256 * 4096, 32, 4096, 8192)


@pytest.mark.parametrize(("convention", "gflops"), [("palm", 57.913), ("causal", 51.470)])
def test_llama_8b_at_8192_tokens(convention, gflops):
    # By hand: 6 (8.03e9 - 0.525e9) = 45.028e9; 12 x 32 x 4096 x 8192 = 12.885e9, or half of it.
    assert flops_per_token(*LLAMA_8B, convention) / 1e9 == pytest.approx(gflops, abs=5e-4)
    assert model_flops_per_token(named_shape("llama-8b"), 8192, convention) / 1e9 == pytest.approx(gflops, abs=5e-3)


def test_llama_8b_at_7000_tokens_per_second_of_an_h100_is_41_percent():
    flops = flops_per_token(*LLAMA_8B)
    assert flops_utilization(7000 * flops, 1.0, 1, 989e12) == pytest.approx(0.4099, abs=5e-5)


def test_playbook_mfu_is_reproduced_with_6n():
    # First row of the Ultra-Scale Playbook sweep: 1B, DP 8, 40150 tokens/s/GPU, 39.2 % of 989 TFLOP/s.
    flops = model_flops_per_token(named_shape("playbook-1b"), 4096, "palm_6n")
    assert flops_utilization(40150 * flops, 1.0, 1, 989e12) == pytest.approx(0.392, abs=1e-3)


def test_a_tied_embedding_counted_twice_is_the_playbooks_error():
    # Published over recomputed MFU is 1.1667 for the 1B model and 1.094 for 3B wherever pp > 1.
    for name, factor in (("playbook-1b", 1.1667), ("playbook-3b", 1.094)):
        tied = named_shape(name)
        doubled = replace(tied, tied_embeddings=False)
        ratio = model_flops_per_token(doubled, 4096, "palm_6n") / model_flops_per_token(tied, 4096, "palm_6n")
        assert ratio == pytest.approx(factor, abs=1e-3)


def test_tied_and_untied_models_multiply_the_same_so_they_cost_the_same():
    tied = named_shape("llama-1b")
    untied = replace(tied, tied_embeddings=False)
    assert model_flops_per_token(tied, 4096) == model_flops_per_token(untied, 4096)
    assert model_flops_per_token(tied, 4096, "palm") == model_flops_per_token(tied, 4096, "palm_6n")


def gpt(num_layers: int, hidden_size: int, num_heads: int, vocab_size: int = 51200) -> ModelShape:
    """A shape with the same multiplications as a GPT: 3 x (8/3) h in the feed-forward for its 2 x 4 h."""
    return ModelShape(
        "gpt", num_layers, hidden_size, 8 * hidden_size // 3, num_heads, num_heads, vocab_size,
        hidden_size // num_heads, True, 1e4, 1e-5, "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch", "gpus", "time_s", "mfu", "hfu"),
    [
        # arXiv:2205.05198, table 5: 22B, 175B, 530B and 1T on A100 (312 TFLOP/s), sequence length 2048.
        (48, 6144, 64, 4, 8, 1.10, 0.415, 0.437),
        (96, 12288, 96, 64, 64, 13.75, 0.514, 0.528),
        (105, 20480, 128, 280, 280, 37.83, 0.560, 0.570),
        (128, 25600, 160, 512, 512, 71.49, 0.563, 0.570),
    ],
)
def test_megatron_utilizations_are_those_of_table_5(layers, hidden, heads, batch, gpus, time_s, mfu, hfu):
    def used(recompute: str) -> float:
        flops = megatron_flops(batch, 2048, layers, hidden, 51200, recompute)
        return flops_utilization(flops, time_s, gpus, 312e12)

    assert used("none") == pytest.approx(mfu, abs=2e-3)
    assert used("selective") == pytest.approx(hfu, abs=2e-3)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_general_formula_is_megatrons_for_a_gpt(recompute):
    shape = gpt(num_layers=96, hidden_size=12288, num_heads=96)
    general = hardware_flops(shape, 2048, 64, "megatron_full" if recompute == "full" else recompute)
    assert general == pytest.approx(megatron_flops(64, 2048, 96, 12288, 51200, recompute), rel=1e-3)  # norms


def test_selective_recompute_adds_one_forward_pass_of_attention_and_equation_8_three():
    # arXiv:2205.05198: equation 8 has s/3h where 7 has s/6h, and the whole of attention, forward and backward, is s/6h.
    shape = gpt(num_layers=96, hidden_size=12288, num_heads=96)
    added = hardware_flops(shape, 2048, 64, "megatron_selective") - hardware_flops(shape, 2048, 64, "none")
    printed = [megatron_flops(64, 2048, 96, 12288, 51200, recompute) for recompute in ("none", "selective")]
    assert 3 * added == pytest.approx(printed[1] - printed[0])
    assert added == 64 * 96 * 4 * 2048**2 * 12288


def test_recomputing_all_layers_costs_a_third_more_but_for_the_head():
    shape = named_shape("llama-8b")
    head = 6 * shape.head_parameters
    layers = model_flops_per_token(shape, 4096) - head
    assert hardware_flops_per_token(shape, 4096, "megatron_full") == pytest.approx(layers * 4 / 3 + head, rel=1e-4)


def test_a_token_is_charged_for_the_experts_it_meets():
    # Mixtral 8x7B, 12.9B active of 46.7B: 6 (12.880e9 - 0.131e9) + 12 x 32 x 4096 x 4096 = 82.936e9.
    shape = named_shape("mixtral-8x7b")
    assert model_flops_per_token(shape, 4096) / 1e9 == pytest.approx(82.936, abs=1e-3)
    assert model_flops_per_token(shape, 4096, "palm_6n") / 1e9 == pytest.approx(83.722, abs=1e-3)


def test_a_mixture_of_one_expert_costs_a_dense_model_and_its_router():
    dense = named_shape("llama-tiny")
    mixture = replace(dense, num_experts=1, experts_per_token=1)
    router = 6 * dense.num_layers * dense.hidden_size
    assert model_flops_per_token(mixture, 128) - model_flops_per_token(dense, 128) == router
    # what torch.utils.checkpoint leaves out of a dense layer, experts' last product, a router's gradient needs
    again = [
        hardware_flops_per_token(shape, 128, "full") - model_flops_per_token(shape, 128) for shape in (mixture, dense)
    ]
    product = 2 * dense.num_layers * dense.hidden_size * dense.ffn_hidden_size
    assert again[0] - again[1] == product + router / 3


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_step_is_tokens_times_flops_per_token(convention):
    shape = named_shape("llama-tiny")
    per_token = model_flops_per_token(shape, 128, convention)
    assert model_flops(shape, 128, 4, convention) == per_token * 512
    assert hardware_flops_per_token(shape, 128, "none", convention) == per_token


def test_unknown_names_are_answered_with_the_known_ones():
    shape = named_shape("llama-tiny")
    with pytest.raises(ValueError, match=r"unknown FLOPs convention 'half'\. Known: palm, causal, palm_6n\."):
        model_flops_per_token(shape, 128, "half")
    with pytest.raises(ValueError, match=r"unknown recompute 'some'\. Known: none, selective, full, megatron_"):
        hardware_flops_per_token(shape, 128, "some")
