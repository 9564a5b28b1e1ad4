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
    ],
)
def test_llama_counts_are_exact(name, published):
    assert named_shape(name).num_parameters == published


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
    assert twin.hidden_size == twin.num_heads * twin.head_dim <= 256
    assert twin.vocab_size % 64 == 0
    assert twin.num_parameters < 10e6
    for tp in range(1, shape.num_heads + 1):
        if shape.num_heads % tp == 0:
            assert twin.hidden_size % tp == twin.ffn_hidden_size % tp == twin.vocab_size % tp == 0


def test_a_twin_of_24_heads_has_a_vocabulary_that_24_ranks_divide():
    assert named_shape("llama-3b").twin(2).vocab_size == 384


def test_an_unknown_shape_suggests_the_nearest():
    with pytest.raises(SuiteError) as error:
        named_shape("lama-8b")
    assert str(error.value).startswith("unknown shape 'lama-8b'. Did you mean 'llama-8b'?\nShapes: llama-1b, ")


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
