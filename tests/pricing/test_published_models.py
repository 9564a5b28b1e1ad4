"""Models that tables name and our decoder cannot run: their numbers against the counts that were published."""

import pytest

from clusterbench.pricing.published_models import PUBLISHED, published_model
from clusterbench.pricing.table_words import name_on_record
from clusterbench.shape import SHAPES


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # "Model size" on Hugging Face, with the biases of queries, keys and values that a shape has not.
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
    ],
)
def test_qwen2_counts_are_exact_with_the_biases_of_their_heads(name, published):
    shape = published_model(name).shape
    biases = shape.num_layers * shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
    assert shape.num_parameters + biases == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
    ],
)
def test_qwen3_counts_are_exact_with_the_norms_of_queries_and_keys(name, published):
    shape = published_model(name).shape
    assert shape.num_parameters + 2 * shape.num_layers * shape.head_dim == published


@pytest.mark.parametrize(
    ("name", "positions", "published"),
    [
        # facebook/opt-*: positions are learned, 2,048 and two more.
        ("opt-1.3b", 2050, 1_315_758_080),
        ("opt-6.7b", 2050, 6_658_473_984),
        ("opt-13b", 2050, 12_853_473_280),
        ("opt-30b", 2050, 29_974_540_288),
        # Narayanan et al. 2021, equation 2: 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh), biases and positions in.
        ("gpt3-175b", 2048, 12 * 96 * 12288**2 * (1 + 13 / (12 * 12288) + (51200 + 2048) / (12 * 96 * 12288))),
        ("gpt3-1.3b", 2048, 12 * 24 * 2048**2 * (1 + 13 / (12 * 2048) + (51200 + 2048) / (12 * 24 * 2048))),
    ],
)
def test_models_of_two_matrices_have_their_published_count_with_positions_and_biases(name, positions, published):
    model = published_model(name)
    shape = model.shape
    assert not model.is_gated
    assert 2 * 4 * shape.hidden_size <= 3 * shape.ffn_hidden_size + 2  # two of 4 h as three of two thirds
    biases = shape.num_layers * 11 * shape.hidden_size + shape.hidden_size  # of products and norms
    count = shape.num_parameters + positions * shape.hidden_size + biases
    assert count == pytest.approx(published, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-175b", 175), ("gpt3-6.7b", 6.7), ("gpt3-13b", 13), ("opt-66b", 66)]
)
def test_a_name_says_the_size(name, billions):
    assert published_model(name).shape.num_parameters == pytest.approx(billions * 1e9, rel=0.02)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_model_has_a_source_and_a_name_that_no_shape_has(name):
    assert PUBLISHED[name].shape.source
    assert PUBLISHED[name].shape.name == name
    assert name not in SHAPES


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Llama 2 7B", "llama2-7b"),
        ("meta-llama/Llama-2-70b-hf", "llama2-70b"),
        ("LLaMA-13B", "llama1-13b"),
        ("llama_65b", "llama1-65b"),
        ("Llama-3.2-1B", "llama-1b"),
        ("Meta-Llama-3-8B", "llama-8b"),
        ("Llama 3.1 405B", "llama-405b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen2.5 72B", "qwen2.5-72b"),
        ("Qwen3-8B", "qwen3-8b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("GPT3 6.7B", "gpt3-6.7b"),
        ("GPT-175B", "gpt-175b"),
        ("facebook/opt-30b", "opt-30b"),
    ],
)
def test_a_table_may_write_a_model_as_its_publisher_does(words, name):
    assert name_on_record(words) == name
