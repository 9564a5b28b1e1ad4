"""Shapes of one's own: what a mapping and a config.json are read as, and what is refused by its key's name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench.benchmarks.train_step import job_of
from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.hf_config import IGNORED, ONLY
from clusterbench.planning import make_plan
from clusterbench.pricing.table import read_steps
from clusterbench.run_folder import RunFolder
from clusterbench.shape import OWN_SHAPE, SHAPES, ModelShape, named_shape, numbers_of, shape_of, shape_written, written
from clusterbench.shape_file import asked_shape, mapping_of, shape_in
from clusterbench.suite import load_suite
from clusterbench.yaml_lines import Table, read_yaml

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192},
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
}
MAPPING = "{name: mine, num_layers: 6, hidden_size: 128, ffn_hidden_size: 384, num_heads: 4, vocab_size: 1024}"


def config(folder: Path, **changes: object) -> str:
    """A config.json as it would be given on a command line; a key that is None there is null."""
    path = folder / "my-model" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**LLAMA, **changes}, indent=2))
    return str(path)


def mapping(text: str) -> ModelShape:
    table = read_yaml(text.encode(), "s.yaml")
    assert isinstance(table, Table)
    return shape_in(table, "s.yaml")


def suite(folder: Path, *shapes: str) -> Path:
    path = folder / "s.yaml"
    lines = [f"      - {shape}\n" for shape in shapes]
    path.write_text(
        "suite: own\nbenchmarks:\n  - benchmark: train_step\n    shape:\n"
        + "".join(lines)
        + "    seq_len: 32\n    layouts: [tp1, dp2]\n"
    )
    return path


# What is read


def test_a_config_is_the_shape_it_says(tmp_path):
    shape = asked_shape(config(tmp_path))
    numbers = {"num_layers": 6, "hidden_size": 128, "ffn_hidden_size": 384, "num_heads": 4, "num_kv_heads": 1}
    for name, value in {**numbers, "vocab_size": 1024, "head_dim": 32, "rope_theta": 500_000.0}.items():
        assert getattr(shape, name) == value, name
    assert shape.name == "my-model"
    assert shape.tied_embeddings


@pytest.mark.parametrize("name", ["llama-8b", "llama-1b", "mixtral-8x7b"])
def test_the_published_config_of_a_shape_on_record_is_that_shape(tmp_path, name):
    known = named_shape(name)
    changes = {
        "num_hidden_layers": known.num_layers,
        "hidden_size": known.hidden_size,
        "intermediate_size": known.ffn_hidden_size,
        "num_attention_heads": known.num_heads,
        "num_key_value_heads": known.num_kv_heads,
        "head_dim": known.head_dim,
        "vocab_size": known.vocab_size,
        "tie_word_embeddings": known.tied_embeddings,
        "rope_theta": known.rope_theta,
    }
    if known.has_experts:
        changes |= {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
    assert numbers_of(asked_shape(config(tmp_path, **changes))) == numbers_of(known)


SMOL = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "head_dim": 64,
    "is_llama_config": True,
    "rope_interleaved": False,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
}
FALCON = {
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "intermediate_size": 23040,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 131072,
    "head_dim": 256,
    "activation": "swiglu",
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        (SMOL, 134_515_008),  # huggingface.co/HuggingFaceTB/SmolLM2-135M
        (FALCON, 7_455_550_464),  # huggingface.co/tiiuae/Falcon3-7B-Base
    ],
)
def test_keys_that_publishers_add_change_no_model(tmp_path, changes, parameters):
    assert asked_shape(config(tmp_path, **changes)).num_parameters == parameters


def test_shared_experts_come_from_a_config(tmp_path):
    given = {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 96}
    rest = {"first_k_dense_replace": 0, "moe_layer_freq": 1, "norm_topk_prob": False}
    shape = asked_shape(config(tmp_path, model_type="deepseek", **given, **rest))
    assert (shape.num_experts, shape.num_shared_experts, shape.experts_per_token) == (8, 2, 3)
    assert shape.ffn_hidden_size == 96


def test_rotary_parameters_may_stand_below_one_key(tmp_path):
    below = {"rope_theta": 1_000_000.0, "rope_type": "yarn", "factor": 4.0}
    assert asked_shape(config(tmp_path, rope_parameters=below)).rope_theta == 500_000.0  # its own key comes first
    text = json.dumps({key: value for key, value in LLAMA.items() if key != "rope_theta"} | {"rope_parameters": below})
    path = tmp_path / "new.json"
    path.write_text(text)
    assert asked_shape(str(path)).rope_theta == 1_000_000.0


def test_a_mapping_has_what_follows_filled_in():
    shape = mapping(MAPPING)
    assert (shape.num_kv_heads, shape.head_dim, shape.tied_embeddings, shape.num_experts) == (4, 32, False, 0)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_comes_back_from_a_point_and_from_a_suite(name):
    own = replace(SHAPES[name], name="mine")
    point = {"shape": "mine", OWN_SHAPE: numbers_of(own)}
    for back in (shape_of(point), shape_written(written(own)), mapping(mapping_of(own))):
        assert replace(back, source="") == replace(own, source="")
    assert written(SHAPES[name]) == mapping_of(SHAPES[name]) == name
    assert shape_of({"shape": name}) is SHAPES[name]


def test_phi_4_has_its_published_number_of_parameters(tmp_path):
    """Its weights are those of Llama, some of them in one matrix: 14.66 B, huggingface.co/microsoft/phi-4."""
    numbers = {"hidden_size": 5120, "intermediate_size": 17920, "num_attention_heads": 40, "num_hidden_layers": 40}
    more = {"num_key_value_heads": 10, "vocab_size": 100352, "sliding_window": None, "tie_word_embeddings": False}
    path = config(tmp_path, model_type="phi3", architectures=["Phi3ForCausalLM"], **numbers, **more)
    assert asked_shape(path).num_parameters == 14_659_507_200


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 4096}, "sliding_window is 4096, and attention here is over the whole sequence."),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and the feed-forward here is SwiGLU. Allowed: 'silu' or"),
        ({"attention_bias": True}, "attention_bias is true, and no weight here has a bias. Allowed: false or null."),
        ({"mlp_bias": 0}, "mlp_bias is 0, and no weight here has a bias."),
        ({"use_qk_norm": True}, "use_qk_norm is true, and queries and keys here have no norm."),
        ({"kv_lora_rank": 512}, "kv_lora_rank is 512, and attention here has whole keys and values"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1, and the models here have no dropout."),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_interleaved": True}, "rope_interleaved is true, and rotary positions here turn a channel with"),
        ({"activation": "geglu"}, "activation is 'geglu', and the feed-forward here is SwiGLU."),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_scaling has the type 'mrope'. Allowed"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures has 'LlamaForSequenceClassification'"),
        ({"vision_config": {"hidden_size": 3}}, "vision_config is a mapping, and the models here are decoders of text"),
        ({"model_type": "qwen3"}, "model_type 'qwen3': its attention norms queries and keys. Allowed: llama, mistral"),
        ({"model_type": "qwen2"}, "model_type 'qwen2': its queries, keys and values have biases."),
        ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3': its attention keeps a latent"),
        ({"model_type": "falcon"}, "model_type 'falcon': its feed-forward is no SwiGLU. Allowed: llama, mistral"),
        ({"model_type": "olmo"}, "model_type 'olmo': its norms are LayerNorm, and here they are RMSNorm."),
        ({"model_type": "granite"}, "model_type 'granite': it multiplies embeddings, residuals and logits with"),
        ({"model_type": "llama4_text"}, "model_type 'llama4_text': some of its layers have no rotary positions."),
        ({"model_type": "glm4_moe"}, "model_type 'glm4_moe': its routers take a sigmoid, and here they take"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "text_config is a part of a model of"),
        ({"model_type": "phi3", "sliding_window": 2047}, "sliding_window is 2047, and attention here is over the"),
        ({"model_type": "new"}, "model_type 'new': it is not known whether its layers are those of the models here."),
        ({"model_type": None}, "model_type nothing: it is not known"),
        ({"logit_scale": 0.5}, "key 'logit_scale' is not known here, and may change the model."),
        ({"vocab_sise": 8}, "key 'vocab_sise' is not known here, and may change the model. Did you mean 'vocab_size'?"),
        ({"num_hidden_layers": None}, "the config has no 'num_hidden_layers'."),
        ({"num_hidden_layers": 10**6}, "'num_hidden_layers' must be a whole number from 1 to 10000, not 1000000."),
        ({"vocab_size": "many"}, "'vocab_size' must be a whole number from 1 to 16777216, not 'many'."),
        ({"hidden_size": 130}, "hidden_size 130 is no multiple of num_heads 4, so it needs 'head_dim'."),
        ({"num_key_value_heads": 3}, "3 kv heads do not divide 4 heads"),
        ({"num_local_experts": 8}, "key 'num_local_experts' is not known here"),
        ({"model_type": "mistral", "num_key_value_heads": None}, "the config has no 'num_key_value_heads'."),
        ({"model_type": "mistral"}, "the config has no 'sliding_window', which transformers takes for 4096"),
    ],
)
def test_what_is_not_ours_is_refused_by_the_name_of_its_key(tmp_path, changes, words):
    path = config(tmp_path, **changes)
    with pytest.raises(SuiteError) as caught:
        asked_shape(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_every_key_has_one_meaning():
    assert IGNORED & ONLY.keys() == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{num_layers: 6}", "s.yaml:1: a shape needs 'name', by which figures call it."),
        ("{name: mine, num_layers: 6}", "s.yaml:1: a shape needs 'hidden_size', a whole number from 1 to 16777216."),
        ("{name: a b, num_layers: 6}", "s.yaml:1: the name of a shape is 1 to 64 letters, digits"),
        (MAPPING.replace("mine", "llama-8b"), "s.yaml:1: the shape on record has the name 'llama-8b'; one of your own"),
        (MAPPING.replace("num_heads", "num_head"), "a shape has no key 'num_head'. Did you mean 'num_heads'?"),
        (MAPPING.replace("num_layers: 6", "num_layers: [6]"), "'num_layers' must be one value: a whole number from 1"),
        (MAPPING.replace("}", ", num_experts: 4, experts_per_token: 5}"), "experts_per_token is 5; of 4 experts"),
        (MAPPING.replace("}", ", num_shared_experts: 1}"), "num_shared_experts is 1, but num_experts is 0"),
        (MAPPING.replace("num_layers: 6", "num_layers: !!python/name:os.system 6"), "tag '!!python/name:os.system' is"),
    ],
)
def test_a_mapping_that_is_no_shape_is_one_clear_error(text, words):
    with pytest.raises(SuiteError) as caught:
        mapping(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty. A shape needs at least its numbers"),
        (b"[1, 2]", ":1: a shape is keys and values"),
        (b'{"num_layers": 1, "num_layers": 2}', ":1: key 'num_layers' is given twice"),
        (b"{" + b" " * 2**20 + b"}", "is larger than 1 MiB; a shape is a page of text."),
        (b"\xff\xfe", "is not UTF-8; a shape is a text file."),
        (b"[" * 99, ":1: nested deeper than 16 levels."),
    ],
)
def test_a_file_that_is_no_shape_is_one_clear_error(tmp_path, data, words):
    path = tmp_path / "shape.json"
    path.write_bytes(data)
    with pytest.raises(SuiteError) as caught:
        asked_shape(str(path))
    assert words in str(caught.value)


def test_a_folder_is_told_of_the_file_in_it(tmp_path):
    with pytest.raises(SuiteError) as caught:
        asked_shape(str(tmp_path))
    assert str(caught.value) == f"shape '{tmp_path}' is a folder, and a file or a name on record is wanted."
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(SuiteError, match=f"\nhint: name the file in it, {path}$"):
        asked_shape(str(tmp_path))


def test_a_file_of_another_kind_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("{}")
    with pytest.raises(SuiteError, match=r"'mine\.txt' is a file, and those of shapes end in \.json, \.yaml, \.yml"):
        asked_shape("mine.txt")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(SuiteError, match=r"^no/such/config\.json: the file of a shape cannot be read: No such file"):
        asked_shape("no/such/config.json")


def test_an_unknown_name_is_told_as_ever():
    with pytest.raises(SuiteError, match=r"^unknown shape 'lama-8b'\. Did you mean 'llama-8b'\?\nShapes: "):
        asked_shape("lama-8b")


# In a suite


def test_cases_carry_the_whole_shape(tmp_path):
    config(tmp_path)
    plan = make_plan(load_suite(suite(tmp_path, "llama-tiny", "my-model/config.json", MAPPING)), Cluster(1, 2, "cpu"))
    shapes = {case.point["shape"]: case.point.get(OWN_SHAPE) for case in plan.cases}
    assert list(shapes) == ["llama-tiny", "my-model", "mine"]
    assert shapes["llama-tiny"] is None
    assert {shape.num_layers for shape in map(shape_of, (case.point for case in plan.cases))} == {4, 6}
    assert plan.cases[-1].id == "train_step/1n2/dp2-shape=mine"


def test_a_runs_folder_stands_alone(tmp_path):
    path = config(tmp_path)
    asked = load_suite(suite(tmp_path, "my-model/config.json"))
    plan = make_plan(asked, Cluster(1, 2, "cpu"))
    run = tmp_path / "elsewhere" / "run"
    folder = RunFolder.create(run, asked.text, plan, {"hosts": {}}, named_files=asked.named_files)
    Path(path).unlink()
    assert folder.problems == []
    assert [case.hash for case in folder.plan().cases] == [case.hash for case in plan.cases]
    assert job_of(folder.plan().cases[0].point).shape.num_kv_heads == 1
    again = make_plan(load_suite(run / "suite.yaml"), Cluster(1, 2, "cpu"))
    assert [case.hash for case in again.cases] == [case.hash for case in plan.cases]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (["llama-tinny"], "s.yaml:5: benchmark 'train_step': option 'shape' must be one of 'llama-tiny'"),
        (["my-model/config.jsn"], "s.yaml:5: "),
        ([MAPPING, MAPPING], "s.yaml:6: benchmark 'train_step': option 'shape' lists 'mine: num_layers 6"),
        ([MAPPING, MAPPING.replace("6", "7")], "s.yaml:6: the shape 'mine' has other numbers in line 5"),
        ([MAPPING.replace("6", "0")], "s.yaml:5: shape 'mine': 'num_layers' must be a whole number from 1 to 10000"),
    ],
)
def test_a_suite_says_where_a_shape_is_mistaken(tmp_path, shapes, words):
    with pytest.raises(SuiteError) as caught:
        load_suite(suite(tmp_path, *shapes))
    assert words in str(caught.value)


def test_a_table_of_steps_may_name_a_config(tmp_path):
    config(tmp_path)
    table = tmp_path / "steps.csv"
    table.write_text("model,layers,hidden,ffn,heads,vocab,seq,gpus,mbs,gbs\nmy-model/config.json,,,,,,64,1,1,8\n")
    (row,) = read_steps(table, 8).rows
    assert row.priced is not None
    assert row.priced.job.shape.num_kv_heads == 1
