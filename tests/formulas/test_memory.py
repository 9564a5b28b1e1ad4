"""Memory against the figures of the ZeRO and Megatron papers."""

from __future__ import annotations

import pytest

from clusterbench.formulas.memory import (
    STATE_BYTES,
    logits_bytes,
    megatron_activation_bytes,
    model_state_bytes_per_parameter,
    pipeline_activation_layers,
)


@pytest.mark.parametrize(("zero_stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_are_those_of_figure_1(zero_stage, gigabytes):
    # arXiv:1910.02054, figure 1: 7.5 B parameters, 64 ranks.
    per_parameter = model_state_bytes_per_parameter("bfloat16_mixed", zero_stage, dp=64)
    assert 7.5 * per_parameter == pytest.approx(gigabytes, abs=0.05)


def test_megatrons_estimator_is_18_or_6_and_12_over_d():
    assert model_state_bytes_per_parameter("megatron_mixed") == 18
    assert model_state_bytes_per_parameter("megatron_mixed", 1, dp=8) == 6 + 12 / 8


def test_adam_keeps_two_moments_of_four_bytes_beside_a_master_copy():
    # arXiv:1910.02054, section 3.1: 12 bytes are an fp32 copy of the parameters, momentum and variance, 4 each.
    assert STATE_BYTES["bfloat16_mixed"].optimizer == 4 + 4 + 4
    assert STATE_BYTES["float32"].optimizer == STATE_BYTES["fsdp_mixed"].optimizer == 4 + 4
    assert model_state_bytes_per_parameter("float32") == model_state_bytes_per_parameter("bfloat16_mixed") == 16


@pytest.mark.parametrize("recipe", STATE_BYTES)
def test_more_sharding_never_holds_more(recipe):
    held = [model_state_bytes_per_parameter(recipe, zero_stage, dp=4) for zero_stage in range(4)]
    assert held == sorted(held, reverse=True)
    assert held[3] == held[0] / 4


@pytest.mark.parametrize(
    ("heads", "hidden", "scores", "saved"),
    [
        # arXiv:2205.05198, section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG; selective saves 70 % and 65 %.
        (96, 12288, 80, 0.70),
        (128, 20480, 64, 0.65),
    ],
)
def test_selective_recompute_saves_what_the_paper_says(heads, hidden, scores, saved):
    whole = megatron_activation_bytes(2048, 1, hidden, heads)
    kept = megatron_activation_bytes(2048, 1, hidden, heads, recompute="selective")
    assert whole == 2048 * hidden * (34 + scores)
    assert 1 - kept / whole == pytest.approx(saved, abs=5e-3)


def test_equations_1_2_4_and_6():
    sbh = 2048 * 4 * 6144
    scores = 5 * 64 * 2048 / 6144
    shape = (2048, 4, 6144, 64)
    assert megatron_activation_bytes(*shape) == pytest.approx(sbh * (34 + scores))
    assert megatron_activation_bytes(*shape, tp=8) == pytest.approx(sbh * (10 + 24 / 8 + scores / 8))
    assert megatron_activation_bytes(*shape, tp=8, sp=True) == pytest.approx(sbh * (34 + scores) / 8)
    assert megatron_activation_bytes(*shape, tp=8, sp=True, recompute="selective") == pytest.approx(34 * sbh / 8)
    assert megatron_activation_bytes(*shape, tp=8, sp=True, recompute="full") == 2 * sbh


def test_interleaving_three_chunks_on_eight_stages_holds_29_percent_more():
    assert pipeline_activation_layers(96, pp=8) == 96
    assert pipeline_activation_layers(96, pp=8, chunks=3) / 96 == pytest.approx(1 + 7 / 24)


def test_logits_of_8192_tokens_of_llama_3_take_4_2_gb():
    assert logits_bytes(8192, 1, 128_256) / 1e9 == pytest.approx(4.2, abs=0.01)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown recipe of model state 'fp16'\. Known: float64, float32"):
        model_state_bytes_per_parameter("fp16")
    with pytest.raises(ValueError, match="ZeRO stage 4 does not exist"):
        model_state_bytes_per_parameter("float32", 4)
    with pytest.raises(ValueError, match="unknown recompute 'some'"):
        megatron_activation_bytes(1, 1, 1, 1, recompute="some")
