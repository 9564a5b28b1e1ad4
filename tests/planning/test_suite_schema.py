"""An editor that knows the schema marks mistakes, and nothing that is read here."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from clusterbench.benchmarks import benchmarks
from clusterbench.cli import main
from clusterbench.errors import SuiteError
from clusterbench.planning.suite_schema import suite_schema
from clusterbench.suite import load_suite
from clusterbench.yaml_lines import Items, Node, Scalar, read_yaml
from tests.invented import HEAD, KNOWN
from tests.test_suite import MUTATIONS, SENTENCES, SMALLEST, SUITES, VALUES, changed, places_in

ROOT = Path(__file__).parents[2]
SHIPPED = [*sorted((ROOT / "suites").glob("*.yaml")), *sorted((ROOT / "reports").rglob("suite.yaml"))]
TRAIN = HEAD + "  - benchmark: train_step\n"
SHAPE = "num_layers: 2, hidden_size: 64, ffn_hidden_size: 128, num_heads: 4, vocab_size: 512"


@cache
def validator(invented: bool = False) -> Draft7Validator:
    schema = suite_schema({**KNOWN, **benchmarks()} if invented else None)
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def plain(node: Node) -> Any:
    """What a YAML of version 1.2 means, as editors read it."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return [*map(plain, node.items)]
    return {name: plain(value) for name, value in node.values.items()}


def marked(text: str | bytes, invented: bool = False) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [error.message for error in validator(invented).iter_errors(plain(read_yaml(data, "s.yaml")))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_a_suite_that_comes_with_it_is_right(path: Path) -> None:
    assert marked(path.read_bytes()) == []


RIGHT = (
    SMALLEST + "    max_size: [8, 64KiB, '1.5 MiB']\n    dtype: bfloat16\n    time_limit_s: ~\n",
    SMALLEST + "    environment: {A: 0x1F, B: true, C: 1.50, D: [0, 1], E: '', F: 007}\n",
    SMALLEST + "for: 90\nfail_on: unsteady\nnum_nodes: 2\nall_nodes: true\nquestion: 'no'\n",
    SMALLEST + "for: 1:30:00\ncpu: {num_ranks: 4, repeats: 7, ping: {max_size: 64}, for: 2h}\n",
    TRAIN + "    at_least: {tokens_per_s: 0.8 of expected, 'mfu[flops_convention=palm]': 0.4}\n",
    TRAIN + "    at_most: {step_time: best 1.1 of baseline}\n    cpu: {at_most: {step_time: 2}}\nbaseline: b.jsonl\n",
    TRAIN + f"    shape: [llama-8b, models/config.json, {{name: mine, {SHAPE}}}]\n",
    TRAIN + "    max_grad_norm: [1, null, 0.5]\n    layouts: all\n    expect: out_of_memory\n",
)


@pytest.mark.parametrize("text", RIGHT)
def test_whatever_may_be_written_is_not_marked(text: str) -> None:
    assert marked(text, invented=True) == []


WRONG = {
    "an unknown key": "suite: s\nbenchmark: []\nbenchmarks: [{benchmark: all_reduce}]\n",
    "no name": "benchmarks: [{benchmark: all_reduce}]\n",
    "a name that is no folder": "suite: a/b\nbenchmarks: [{benchmark: all_reduce}]\n",
    "a misspelled benchmark": HEAD + "  - benchmark: train_stpe\n",
    "an item without a benchmark": HEAD + "  - shape: llama-8b\n",
    "no benchmarks": "suite: s\nbenchmarks: []\n",
    "an option of another benchmark": HEAD + "  - {benchmark: all_reduce, seq_len: 8}\n",
    "an option that is misspelled": TRAIN + "    seq_lem: 8\n",
    "an option of a parallelism that is misspelled": TRAIN + "    recomputes: full\n",
    "an option that is refused": TRAIN + "    dropout: 0.1\n",
    "text for a number": TRAIN + "    seq_len: '4096'\n",
    "a fraction for a whole number": TRAIN + "    seq_len: 4096.5\n",
    "a word for true": TRAIN + "    parity: yes\n",
    "a number for text": TRAIN + "    layouts: 2\n",
    "nothing": TRAIN + "    seq_len:\n",
    "too small": TRAIN + "    seq_len: 1\n",
    "too large, among others": TRAIN + "    seq_len: [4096, 16777217]\n",
    "a choice that is none": TRAIN + "    dtype: float16\n",
    "a choice that is none, of a list": TRAIN + "    expect: [crash]\n",
    "a shape that is not on record": TRAIN + "    shape: llama-9b\n",
    "a shape without its numbers": TRAIN + "    shape: {name: mine, num_layers: 2}\n",
    "a shape with an unknown number": TRAIN + f"    shape: {{name: mine, {SHAPE}, dropout: 0}}\n",
    "a list in a list": TRAIN + "    seq_len: [[4096]]\n",
    "an empty list": TRAIN + "    seq_len: []\n",
    "a value twice": TRAIN + "    seq_len: [4096, 4096]\n",
    "keys where a value is wanted": TRAIN + "    dtype: {a: b}\n",
    "a decimal unit": HEAD + "  - {benchmark: all_reduce, max_size: 64MB}\n",
    "a size below nothing": HEAD + "  - {benchmark: all_reduce, max_size: -1}\n",
    "a list where one value is wanted": TRAIN + "repeats: [1, 2]\n",
    "a time that is none": TRAIN + "for: soon\n",
    "ranks of GPUs": TRAIN + "gpu: {num_ranks: 4}\n",
    "a benchmark that is misspelled in a block": TRAIN + "cpu: {train_stpe: {}}\n",
    "a misspelled option in a block": TRAIN + "cpu: {train_step: {seq_lem: 8}}\n",
    "a misspelled option in an item's block": TRAIN + "    gpu: {seq_lem: 8}\n",
    "a metric that is none": TRAIN + "    at_least: {token_per_s: 3}\n",
    "a metric on its other side": TRAIN + "    at_most: {tokens_per_s: 3}\n",
    "a variable's name": TRAIN + "environment: {A B: 1}\n",
    "a variable of a launcher": TRAIN + "environment: {SLURM_X: 1}\n",
    "a variable without a value": TRAIN + "environment: {A: }\n",
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_marked_as_it_is_refused_here(mistake: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(WRONG[mistake])
    with pytest.raises(SuiteError):
        load_suite(tmp_path / "s.yaml")
    assert marked(WRONG[mistake]) != []


NOT_SEEN = {
    "all_nodes: true",  # without num_nodes
    "max_size: 9999TiB",
    "time_limit_s: .nan",
    "is not among the suite's benchmarks",
    "needs 'layouts'",  # which a block may have
    "lists '1' twice",  # variables are text
}


TEXTS = [text for text in SENTENCES if isinstance(text, str)]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[-30:]))
def test_every_mistake_that_has_a_sentence_is_marked_but_for_a_few(text: str) -> None:
    try:
        found = marked(text, invented=True)
    except SuiteError:
        return  # it is no YAML that this program reads
    assert bool(found) != any(words in text + SENTENCES[text] for words in NOT_SEEN)


@MUTATIONS
@given(data=st.data())
def test_nothing_is_marked_that_is_read(tmp_path: Path, data: st.DataObject) -> None:
    suite = yaml.safe_load(data.draw(st.sampled_from(SUITES)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places_in(suite)))
        suite = changed(suite, path, data.draw(VALUES), data.draw(st.booleans()))
    text = yaml.safe_dump(suite, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")
    (tmp_path / "s.yaml").write_bytes(text)
    try:
        load_suite(tmp_path / "s.yaml", {**KNOWN, **benchmarks()})
    except SuiteError:
        return
    assert marked(text, invented=True) == []


def test_every_option_of_every_benchmark_is_there_with_its_words() -> None:
    schema = suite_schema()
    for name, kind in benchmarks().items():
        of_kind = schema["definitions"][name]["properties"]
        for option in kind.options().values():
            assert of_kind[option.name]["description"].startswith(option.help)
            assert option.allowed() in of_kind[option.name]["description"]
    enum = schema["properties"]["benchmarks"]["items"]["properties"]["benchmark"]["enum"]
    assert enum == [*benchmarks()]


def test_what_is_filled_in_by_default_is_right() -> None:
    """Editors write a default when they complete a key."""
    schema = suite_schema()
    for name in benchmarks():
        for key, one in schema["definitions"][name]["properties"].items():
            if "default" in one:
                suite = {"suite": "s", "benchmarks": [{"benchmark": name, key: one["default"]}]}
                assert [error.message for error in validator().iter_errors(suite)] == []


def test_the_verb_prints_it_and_editors_patterns_are_those_of_javascript(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["schema"])
    assert json.loads(done.stdout) == json.loads(json.dumps(suite_schema()))
    assert "(?P" not in done.stdout
    done = CliRunner().invoke(main, ["schema", "--out", str(tmp_path / "s.json")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads((tmp_path / "s.json").read_text())["$schema"] == "http://json-schema.org/draft-07/schema#"
    done = CliRunner().invoke(main, ["schema", "--out", str(tmp_path / "none" / "s.json")])
    assert (done.exit_code, done.stderr[:12]) == (2, "error: --out")
