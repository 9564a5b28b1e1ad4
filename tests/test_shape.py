"""Shapes against the parameter counts their authors publish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.errors import SuiteError
from clusterbench.shape import SHAPES, named_shape


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # "Total parameters" of the safetensors index on each model's Hugging Face page, meta-llama/Llama-3.x.
        ("llama-1b", 1_235_814_400),
        ("llama-3b", 3_212_749_824),
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
        ("llama-405b", 405_853_388_800),
        # The same of huggyllama/llama-*, meta-llama/Llama-2-*-hf, codellama/CodeLlama-34b-hf, mistralai/Mistral-7B-v0.1
        ("llama1-7b", 6_738_415_616),
        ("llama1-13b", 13_015_864_320),
        ("llama1-30b", 32_528_943_616),
        ("llama1-65b", 65_285_660_672),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("codellama-34b", 33_743_970_304),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_llama_counts_are_exact(name, published):
    assert named_shape(name).num_parameters == published


@pytest.mark.parametrize(
    ("name", "total", "active", "published"),
    [
        # In billions, on mistral.ai/news: mixtral-of-experts prints 46.7 and 12.9, mixtral-8x22b 141 and 39.
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, ("46.7", "12.9")),
        ("mixtral-8x22b", 140_630_071_296, 39_161_468_928, ("141", "39")),
        # arXiv:2409.02060, abstract and table 1: 6.9 and 1.3.
        ("olmoe-1b-7b", 6_919_096_320, 1_281_951_744, ("6.9", "1.3")),
    ],
)
def test_expert_counts_are_exact(name, total, active, published):
    shape = named_shape(name)
    assert (shape.num_parameters, shape.num_active_parameters) == (total, active)
    digits = [len(figure) - ("." in figure) for figure in published]
    assert (f"{total / 1e9:.{digits[0]}g}", f"{active / 1e9:.{digits[1]}g}") == published


def test_every_weight_of_a_dense_model_is_active():
    shape = named_shape("llama-8b")
    assert shape.num_active_parameters == shape.num_parameters
    assert shape.active_parameters_per_layer == shape.parameters_per_layer


def test_a_shared_expert_is_active_for_every_token():
    routed, shared = named_shape("moe-tiny"), named_shape("moe-shared-tiny")
    expert = 3 * 128 * 192
    assert shared.num_parameters - routed.num_parameters == 4 * expert
    assert shared.num_active_parameters - routed.num_active_parameters == 4 * expert
    assert routed.num_parameters - routed.num_active_parameters == 4 * (8 - 2) * expert
    assert routed.active_ffn_parameters_per_layer == 2 * expert + 8 * 128


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # Ultra-Scale Playbook sweep, which leaves the norms out: 1.342177 G, 3.573547 G, 8.85837 G and 79.993766 G.
        ("playbook-1b", 1.342177e9),
        ("playbook-3b", 3.573547e9),
        ("playbook-8b", 8.85837e9),
        ("playbook-80b", 79.993766e9),
    ],
)
def test_playbook_counts_without_norms_are_exact(name, published):
    shape = named_shape(name)
    norms = (2 * shape.num_layers + 1) * shape.hidden_size
    assert shape.num_parameters - norms == pytest.approx(published, abs=1e3)


def test_tied_embedding_is_counted_once():
    tied = named_shape("playbook-1b")
    untied = replace(tied, tied_embeddings=False)
    assert tied.head_parameters == 0
    assert untied.num_parameters - tied.num_parameters == tied.embedding_parameters == 131072 * 2048


def test_the_playbooks_70b_rows_are_its_80b_with_8_kv_heads():
    # 14 rows of the sweep carry the FLOPs of 70.55 G parameters (Llama's count) under the label 80B.
    shape = replace(named_shape("playbook-80b"), num_kv_heads=8)
    assert shape.num_parameters == pytest.approx(70.554e9, rel=1e-3)


def test_small_shapes_split_four_ways():
    tiny, small = named_shape("llama-tiny"), named_shape("llama-small")
    for shape in (tiny, small):
        assert shape.num_layers % 4 == shape.num_heads % 4 == shape.num_kv_heads % 4 == shape.ffn_hidden_size % 4 == 0
    assert 0.5e6 < tiny.num_parameters < 2e6
    assert 20e6 < small.num_parameters < 30e6


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_a_source_and_its_name(name):
    shape = named_shape(name)
    assert shape.name == name
    assert shape.source


@pytest.mark.parametrize("name", SHAPES)
def test_a_twin_is_small_and_splits_where_its_shape_splits(name):
    shape = named_shape(name)
    twin = shape.twin(num_layers=6)
    assert twin.num_layers == 6
    assert (twin.num_heads, twin.num_kv_heads) == (shape.num_heads, shape.num_kv_heads)
    assert twin.tied_embeddings == shape.tied_embeddings
    assert (twin.num_experts, twin.experts_per_token) == (shape.num_experts, shape.experts_per_token)
    assert twin.num_shared_experts == shape.num_shared_experts
    assert twin.hidden_size == twin.num_heads * twin.head_dim <= 256
    assert twin.vocab_size % 64 == 0
    assert twin.num_parameters < 10e6
    for tp in range(1, shape.num_heads + 1):
        if shape.num_heads % tp == 0:
            assert twin.hidden_size % tp == twin.ffn_hidden_size % tp == twin.vocab_size % tp == 0


def test_a_twin_of_24_heads_has_a_vocabulary_that_24_ranks_divide():
    assert named_shape("llama-3b").twin(2).vocab_size == 384


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (2, 32), (3, 24), (5, 16), (8, 8), (32, 8), (48, 4), (96, 2)])
def test_a_twin_of_few_heads_is_as_wide_as_any(heads, head_dim):
    few = replace(named_shape("llama-tiny"), num_heads=heads, num_kv_heads=heads, head_dim=2, hidden_size=2 * heads)
    twin = few.twin(2)
    assert twin.head_dim == head_dim
    assert twin.hidden_size == heads * head_dim >= 64


@pytest.mark.parametrize(
    ("heads", "head_dim", "width"), [(128, 16, 1024), (96, 16, 768), (67, 16, 1072), (64, 16, 1024)]
)
def test_a_twin_of_wide_heads_is_no_wider_than_its_heads_need(heads, head_dim, width):
    """One of 2048 channels learns its tokens in one step, and the norm of the next says nothing."""
    many = replace(
        named_shape("llama-tiny"), num_heads=heads, num_kv_heads=heads, head_dim=128, hidden_size=128 * heads
    )
    twin = many.twin(2, head_dim)
    assert (twin.head_dim, twin.hidden_size) == (head_dim, width)
    assert twin.hidden_size % heads == twin.ffn_hidden_size % heads == 0


@pytest.mark.parametrize("heads", [1, 3, 7, 9, 13, 31, 33, 34, 36, 66, 67])
def test_a_twin_with_experts_has_channels_that_grouped_products_take(heads):
    twin = replace(named_shape("moe-tiny"), num_heads=heads, num_kv_heads=heads).twin(2)
    assert (twin.hidden_size % 8, twin.ffn_hidden_size % 8) == (0, 0)


def test_an_unknown_shape_suggests_the_nearest():
    with pytest.raises(SuiteError) as error:
        named_shape("lama-8b")
    assert str(error.value).startswith("unknown shape 'lama-8b'. Did you mean 'llama-8b'?\nShapes: codellama-34b, ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "shape 'llama-tiny': 3 kv heads do not divide 8 heads"),
        ({"num_layers": 0}, "shape 'llama-tiny': num_layers is 0; it must be 1 or more."),
        ({"head_dim": 7}, "shape 'llama-tiny': head_dim is 7; rotary positions turn pairs, so it is even."),
    ],
)
def test_an_impossible_shape_is_refused(change, message):
    with pytest.raises(SuiteError) as error:
        replace(named_shape("llama-tiny"), **change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("moe-tiny", {"num_experts": -1}, "num_experts is -1; it must be 0 or more."),
        ("moe-tiny", {"num_shared_experts": -1}, "num_shared_experts is -1; it must be 0 or more."),
        ("moe-tiny", {"experts_per_token": 0}, "experts_per_token is 0; of 8 experts it must be 1 to 8."),
        ("moe-tiny", {"experts_per_token": 9}, "experts_per_token is 9; of 8 experts it must be 1 to 8."),
        (
            "llama-tiny",
            {"experts_per_token": 2},
            "experts_per_token is 2, but num_experts is 0; a dense feed-forward routes no token.",
        ),
        (
            "llama-tiny",
            {"num_shared_experts": 1},
            "num_shared_experts is 1, but num_experts is 0; shared experts stand beside routed ones.",
        ),
    ],
)
def test_impossible_experts_are_refused(name, change, message):
    with pytest.raises(SuiteError) as error:
        replace(named_shape(name), **change)
    assert str(error.value) == f"shape '{name}': {message}"
