# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterbench.benchmarks import benchmarks
from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.planning import make_plan
from clusterbench.suite import OWN_SUITES, load_suite
from clusterbench.tools.nccl_variables import NCCL_VARIABLES
from clusterbench.types import Plan
from tests.invented import HEAD, KNOWN, suite_of

SMALLEST = HEAD + "  - benchmark: ping\n"


def mistake(folder: Path, text: str | bytes) -> str:
    """What is said of a suite, as if it had been given as ``s.yaml``."""
    (folder / "s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SuiteError) as error:
        load_suite(folder / "s.yaml", KNOWN).on("cpu")
    assert error.value.exit_code == 2
    return str(error.value).replace(f"{folder}/", "")


def test_the_smallest_suite_has_defaults(tmp_path):
    suite = suite_of(tmp_path, SMALLEST)
    assert (suite.name, suite.question, suite.num_nodes, suite.repeats) == ("s", "", (), 1)
    assert [item.benchmark for item in suite.items] == ["ping"]
    assert suite.text == SMALLEST.encode()


def test_every_value_knows_its_line(tmp_path):
    suite = suite_of(tmp_path, SMALLEST + "    max_size:\n      - 8\n      - 64KiB\n")
    setting = suite.items[0].settings["max_size"]
    assert setting.line == 4
    assert [(written.value, written.line) for written in setting.values] == [(8, 5), (65536, 6)]


def test_one_value_where_a_list_is_expected_is_a_list_of_one(tmp_path):
    suite = suite_of(
        tmp_path, HEAD.replace("benchmarks", "num_nodes: 2\nbenchmarks") + "  - {benchmark: train, layouts: tp1}"
    )
    assert suite.num_nodes == (2,)
    assert [written.value for written in suite.items[0].settings["layouts"].values] == ["tp1"]


def test_environment_is_text_as_written(tmp_path):
    suite = suite_of(tmp_path, SMALLEST + "    environment: {A: 0x1F, B: true, C: 1.50, D: [0, 1], E: '', F: 007}\n")
    values = {
        name: [written.value for written in setting.values] for name, setting in suite.items[0].environment.items()
    }
    assert values == {"A": ["0x1F"], "B": ["true"], "C": ["1.50"], "D": ["0", "1"], "E": [""], "F": ["007"]}


def test_plain_words_are_text_as_in_yaml_1_2(tmp_path):
    assert mistake(tmp_path, SMALLEST + "    dtype: no\n") == (
        "s.yaml:4: benchmark 'ping': option 'dtype' must be one of 'float32', 'bfloat16', not 'no'."
    )


def test_the_block_of_a_device_overrides_what_differs_there(tmp_path):
    text = SMALLEST + (
        "    max_size: 1KiB\n    environment: {A: item, B: item}\n"
        "environment: {A: suite, C: suite, D: suite}\n"
        "cpu:\n  num_ranks: 4\n  repeats: 7\n  num_nodes: [2, 3]\n  environment: {D: cpu}\n"
        "  ping: {max_size: 64, environment: {B: block}}\n"
    )
    suite = suite_of(tmp_path, text)
    cpu, gpu = suite.on("cpu"), suite.on("cuda")
    assert (cpu.repeats, cpu.num_nodes, suite.cpu.num_ranks) == (7, (2, 3), 4)
    assert (gpu.repeats, gpu.num_nodes) == (1, ())

    def values_on(applied: Any) -> dict[str, Any]:
        item = applied.items[0]
        return {name: setting.values[0].value for name, setting in {**item.settings, **item.environment}.items()}

    assert values_on(cpu) == {"max_size": 64, "A": "item", "B": "block", "C": "suite", "D": "cpu"}
    assert values_on(gpu) == {"max_size": 1024, "A": "item", "B": "item", "C": "suite", "D": "suite"}


def test_an_item_may_say_what_differs_for_it_alone(tmp_path):
    text = (
        HEAD + "  - {benchmark: ping, max_size: 16, cpu: {max_size: 32, environment: {A: item}}, gpu: {min_size: 8}}\n"
        "  - {benchmark: ping, max_size: 16}\n"
        "cpu:\n  ping: {max_size: 64, environment: {A: block}}\n"
    )
    suite = suite_of(tmp_path, text)
    cpu, gpu = suite.on("cpu"), suite.on("cuda")

    def values(item: Any) -> dict[str, Any]:
        return {name: setting.values[0].value for name, setting in {**item.settings, **item.environment}.items()}

    assert [values(item) for item in cpu.items] == [{"max_size": 32, "A": "item"}, {"max_size": 64, "A": "block"}]
    assert [values(item) for item in gpu.items] == [{"max_size": 16, "min_size": 8}, {"max_size": 16}]
    assert [item.own_settings for item in gpu.items] == [("min_size",), ("max_size",)]


def test_an_alias_repeats_what_its_anchor_says(tmp_path):
    suite = suite_of(
        tmp_path, HEAD + "  - {benchmark: ping, min_size: &size 16}\n  - {benchmark: ping, min_size: *size}\n"
    )
    assert [item.settings["min_size"].values[0].value for item in suite.items] == [16, 16]


SENTENCES = {
    # The file
    "": "s.yaml is empty. A suite needs at least 'suite' and 'benchmarks'.",
    "# nothing\n": "s.yaml holds nothing but comments. A suite needs 'suite' and 'benchmarks'.",
    b"suite: a\n\xff\xfe": "s.yaml:2: byte 0xff is not UTF-8; a suite is a text file.",
    b"\x7fELF\x02\x01\x01": "s.yaml:1: control character U+007F in a text file. Remove it.",
    b"suite: a\nquestion: \x00": "s.yaml:2: control character U+0000 in a text file. Remove it.",
    'suite: "a\\0"': "s.yaml:1: control character U+0000 in a value.",
    b"#" * (2**20 + 1): "s.yaml is larger than 1 MiB; a suite is a page of text.",
    # YAML
    "suite: a\nbenchmarks: [": "s.yaml:2: not YAML: expected the node content, but found '<stream end>'.",
    "suite: a\n\tquestion: b": "s.yaml:2: not YAML: found character '\\t' that cannot start any token.\nhint: indent with spaces",
    "suite: a\nsuite: b": "s.yaml:2: key 'suite' is given twice, first in line 1.",
    "suite: a\nquestion: !!python/object/apply:os.system [ls]": (
        "s.yaml:2: tag '!!python/object/apply:os.system' is not allowed; a suite is plain values."
    ),
    "suite: !mine a": "s.yaml:1: tag '!mine' is not allowed; a suite is plain values.",
    "suite: a\n---\nsuite: b": "s.yaml:2: a second document starts here; a file holds one suite.",
    "suite: a\nbenchmarks: &a [*a]": "s.yaml:2: '*a' refers to nothing above it.",
    "suite: a\n? [b]\n: c": "s.yaml:2: a key must be one word.",
    "[" * 100: "s.yaml:1: nested deeper than 16 levels.",
    # The suite's own keys
    "- a": "s.yaml:1: a suite must be keys and values; the keys are all_nodes, baseline, benchmarks, cpu, environment, fail_on, for, gpu, num_nodes, question, repeats, suite.",
    "question: a\nbenchmarks: b": "s.yaml:1: a suite needs 'suite'.",
    "suite: a": "s.yaml:1: a suite needs 'benchmarks'.",
    "suite: a\nbenchmark: b": (
        "s.yaml:2: a suite has no key 'benchmark'. Did you mean 'benchmarks'?\n"
        "Keys: all_nodes, baseline, benchmarks, cpu, environment, fail_on, for, gpu, num_nodes, question, repeats, suite."
    ),
    "suite: a/b\nbenchmarks: c": (
        "s.yaml:1: 'suite' is the name of a folder: letters, digits, '_', '-' and '.', such as tp_scale."
    ),
    "suite: a\nbenchmarks: []": "s.yaml:2: 'benchmarks' must be a list, with an item '- benchmark: NAME' for each.",
    "suite: a\nbenchmarks: [ping]": "s.yaml:2: an item of 'benchmarks' begins with '- benchmark: NAME'.",
    "suite: a\nnum_nodes: [1, 0]\nbenchmarks: b": "s.yaml:2: 'num_nodes' must be a whole number from 1 to 100000, not 0.",
    "suite: a\nnum_nodes: [1, 1]\nbenchmarks: b": "s.yaml:2: 'num_nodes' lists 1 twice.",
    "suite: a\nfor: soon\nbenchmarks: [{benchmark: ping}]": (
        "s.yaml:2: 'for' must be a time such as 90s, 30m, 2h or 1:30:00, not 'soon'."
    ),
    "suite: a\nfor: 0\nbenchmarks: [{benchmark: ping}]": "s.yaml:2: 'for' must be one second or more, not '0'.",
    "suite: a\nfor: [1h]\nbenchmarks: [{benchmark: ping}]": (
        "s.yaml:2: 'for' must be a time such as 90s, 30m or 2h, not a list."
    ),
    "suite: a\nall_nodes: true\nbenchmarks: [{benchmark: ping}]": (
        "s.yaml:2: 'all_nodes' has no effect without 'num_nodes': such a suite runs on all nodes anyway."
    ),
    "suite: a\nrepeats: [1, 2]\nbenchmarks: b": "s.yaml:2: 'repeats' must be one value: a whole number from 1 to 1000, not a list.",
    "suite: a\nrepeats: 1.5\nbenchmarks: b": "s.yaml:2: 'repeats' must be a whole number from 1 to 1000, not 1.5.",
    # Benchmarks and their options
    HEAD
    + "  - benchmark: pong": "s.yaml:3: there is no benchmark 'pong'. Did you mean 'ping'?\nBenchmarks: ping, train.",
    SMALLEST + "    max_sizes: 8": (
        "s.yaml:4: benchmark 'ping' has no option 'max_sizes'. Did you mean 'max_size'?\n"
        "Options: dtype, expect, iterations, max_size, min_size, time_limit_s, warmup."
    ),
    SMALLEST
    + "    max_size: -1": "s.yaml:4: benchmark 'ping': option 'max_size' must be a size such as 64MiB, from 1B to 1TiB, not -1.",
    SMALLEST + "    max_size: 64M": (
        "s.yaml:4: benchmark 'ping': option 'max_size' must be a size such as 64MiB, from 1B to 1TiB, not '64M'. "
        "'M' is read both ways; write '64MiB' for 64 x 1048576 bytes."
    ),
    SMALLEST + "    max_size: 9999TiB": (
        "s.yaml:4: benchmark 'ping': option 'max_size' must be a size such as 64MiB, from 1B to 1TiB, not '9999TiB'."
    ),
    SMALLEST + "    iterations: many": (
        "s.yaml:4: benchmark 'ping': option 'iterations' must be a whole number from 1 to 1000000, not 'many'."
    ),
    SMALLEST + "    iterations:": (
        "s.yaml:4: benchmark 'ping': option 'iterations' must be a whole number from 1 to 1000000, not nothing."
    ),
    SMALLEST + "    iterations: " + "9" * 5000: (
        f"s.yaml:4: benchmark 'ping': option 'iterations' must be a whole number from 1 to 1000000, not '{'9' * 77}...'."
    ),
    SMALLEST + "    time_limit_s: .nan": (
        "s.yaml:4: benchmark 'ping': option 'time_limit_s' must be a number from 0.1 to 604800, not nan."
    ),
    SMALLEST + "    dtype: bfloat15": (
        "s.yaml:4: benchmark 'ping': option 'dtype' must be one of 'float32', 'bfloat16', not 'bfloat15'. "
        "Did you mean 'bfloat16'?"
    ),
    SMALLEST + "    dtype: []": (
        "s.yaml:4: benchmark 'ping': option 'dtype' is an empty list. Leave it out, or give one of 'float32', 'bfloat16'."
    ),
    SMALLEST + "    dtype: [float32, float32]": "s.yaml:4: benchmark 'ping': option 'dtype' lists 'float32' twice.",
    SMALLEST + "    dtype: {a: b}": (
        "s.yaml:4: benchmark 'ping': option 'dtype' must be one of 'float32', 'bfloat16', not keys and values."
    ),
    SMALLEST + "    dtype: [[float32]]": (
        "s.yaml:4: benchmark 'ping': option 'dtype' must be one of 'float32', 'bfloat16', not a list."
    ),
    HEAD + "  - benchmark: train\n    dropout: 0.1": (
        "s.yaml:4: benchmark 'train' has no option 'dropout': results could not be compared with those of one rank."
    ),
    HEAD + "  - benchmark: train": (
        "s.yaml:3: benchmark 'train' needs 'layouts', text.\nhint: write 'layouts: ...' here or under 'cpu: train:'"
    ),
    # Environment
    SMALLEST + "environment: [A]": "s.yaml:4: 'environment' must be variables and their values.",
    SMALLEST + "environment: {A B: 1}": "s.yaml:4: 'A B' is not the name of an environment variable.",
    SMALLEST + "environment: {A: }": "s.yaml:4: environment variable 'A' has no value. Write '' for an empty one.",
    SMALLEST + "environment: {A: [1, 1]}": "s.yaml:4: environment variable 'A' lists '1' twice.",
    # Devices
    SMALLEST + "gpu: {num_ranks: 4}": "s.yaml:4: 'gpu' has no key 'num_ranks': every GPU is one rank.",
    SMALLEST + "cpu: 4": (
        "s.yaml:4: 'cpu' must be keys and values; the keys are environment, for, num_nodes, num_ranks, ping, repeats, train."
    ),
    SMALLEST + "cpu: {pong: {}}": (
        "s.yaml:4: 'cpu' has no key 'pong'. Did you mean 'ping'?\n"
        "Keys: environment, for, num_nodes, num_ranks, ping, repeats, train."
    ),
    SMALLEST
    + "cpu: {train: {seq_len: 2}}": "s.yaml:4: 'train' is not among the suite's benchmarks; this has no effect.",
    HEAD + "  - {benchmark: ping, cpu: 4}": "s.yaml:3: 'cpu' must be options and their values.",
    SMALLEST + "cpu: {ping: 1}": "s.yaml:4: 'ping' under 'cpu' must be options and their values.",
    SMALLEST + "cpu:\n  ping: {benchmark: ping}": (
        "s.yaml:5: benchmark 'ping' has no option 'benchmark'.\n"
        "Options: dtype, expect, iterations, max_size, min_size, time_limit_s, warmup."
    ),
}


@pytest.mark.parametrize("text", SENTENCES, ids=lambda text: repr(text[-30:]))
def test_every_mistake_is_one_clear_sentence(tmp_path, text):
    assert mistake(tmp_path, text) == SENTENCES[text]


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "PMI_RANK",
        "PMIX_RANK",
        "OMPI_X",
        "SLURM_X",
    ],
)
def test_variables_of_the_launcher_are_refused(tmp_path, name):
    assert mistake(tmp_path, SMALLEST + f"environment: {{{name}: 1}}") == (
        f"s.yaml:4: environment variable '{name}' is set by the launcher; a suite cannot change it."
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_ALGOO", "NCCL_ALGO"),
        ("NCCL_IB_HCA_", "NCCL_IB_HCA"),
        ("NCCL_PTOTO", "NCCL_PROTO"),
        ("NCCL_ALOG", "NCCL_ALGO"),
        ("NCCL_MAX_CTA", "NCCL_MAX_CTAS"),
        ("NCCL_ALGORITHM", "NCCL_ALGO"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TORCH_NCCL_BLOCKING_WAITS", "TORCH_NCCL_BLOCKING_WAIT"),
    ],
)
def test_a_misspelt_variable_of_nccl_is_refused(tmp_path, name, meant):
    assert mistake(tmp_path, SMALLEST + f"environment: {{{name}: 1}}") == (
        f"s.yaml:4: environment variable '{name}' has no effect: no NCCL reads it. Did you mean '{meant}'?\n"
        "hint: if a newer one does, set it where clusterbench is started"
    )


def test_variables_that_nccl_knows_or_may_come_to_know_are_taken(tmp_path):
    of_others = ("NCCL_IB_WARP_DRIVE", "NCCL_TUNER_CONFIG_PATH", "RCCL_ALGO", "OFI_NCCL_PROTOCOL", "UCX_TSL")
    names = (*of_others, *NCCL_VARIABLES)
    lines = "".join(f"      {name}: 1\n" for name in names)
    (item,) = suite_of(tmp_path, SMALLEST + f"    environment:\n{lines}").items
    assert tuple(item.environment) == names


def test_aliases_cannot_blow_up(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert mistake(tmp_path, "\n".join(lines)) == "s.yaml:5: more than 20000 values, aliases written out."


def test_a_missing_file_suggests_one_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "fabric.yaml").write_text(SMALLEST)
    with pytest.raises(SuiteError) as error:
        load_suite("fabric.yaml")
    assert str(error.value) == "fabric.yaml: there is no such file. Did you mean 'suites/fabric.yaml'?"
    (tmp_path / "smoke.yaml").write_text(SMALLEST)
    for name in ("tp_scal", "tp_scale.yaml", "suites/tp_scale.yaml", "tp_scal.yaml"):
        with pytest.raises(SuiteError) as error:
            load_suite(name)
        assert str(error.value) == f"{name}: there is no such file. Did you mean 'tp_scale'?"
    with pytest.raises(SuiteError) as error:
        load_suite("suites")
    assert str(error.value) == "suites is a folder; name one suite in it, e.g. suites/tp_scale.yaml"
    with pytest.raises(SuiteError) as error:
        load_suite("zebra")
    assert str(error.value) == (
        "zebra: there is no such file.\nhint: 'clusterbench list suites' shows those that come with it"
    )


def test_a_name_is_a_suite_of_the_working_directory_or_one_that_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_suite("tp_scale").path == str(OWN_SUITES / "tp_scale.yaml")
    (tmp_path / "tp_scale").mkdir()  # such as a run's folder
    assert load_suite(Path("tp_scale")).name == "tp_scale"
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "tp_scale.yaml").write_text("suite: own\nbenchmarks: [{benchmark: fault_drill}]\n")
    assert load_suite("tp_scale").path == "suites/tp_scale.yaml"
    (tmp_path / "tp_scale").rmdir()
    (tmp_path / "tp_scale").write_text("suite: own\nbenchmarks: [{benchmark: fault_drill}]\n")
    assert load_suite("tp_scale").path == "tp_scale"


# Whatever is done to a suite, what comes out is a plan or a sentence.

VALID = """\
suite: both
question: What holds?
num_nodes: [1, 2]
repeats: 2
environment: {NCCL_ALGO: [Ring, Tree]}
benchmarks:
  - benchmark: ping
    max_size: 1KiB
    dtype: [float32, bfloat16]
  - benchmark: train
    layouts: [tp1, tp2+sp, "dp*-tp2", pp2-tp4]
    seq_len: [256, 512]
    schedule: 1f1b
    expect: [out_of_memory]
cpu:
  num_ranks: 4
  train: {layouts: [tp1, tp2], seq_len: 64}
gpu:
  repeats: 1
"""

SUITES = [VALID, *(path.read_text() for path in sorted((Path(__file__).parent.parent / "suites").glob("*.yaml")))]

WORDS = st.sampled_from(
    [
        "ping",
        "train",
        "layouts",
        "tp3",
        "dp*-tp2",
        "pp2-pp2",
        "tp99999999999",
        "seq_len",
        "cpu",
        "gpu",
        "environment",
        "64KiB",
        "-1",
        "0",
        "1e400",
        ".inf",
        "~",
        "true",
        "RANK",
        "a/b",
    ]
)
SCALARS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
MUTATIONS = settings(
    deadline=None,
    max_examples=300,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def places_in(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every node of a structure."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path] + [place for key, value in inner for place in places_in(value, (*path, key))]


def changed(node: Any, path: tuple[Any, ...], new: Any, drop: bool) -> Any:
    if not path:
        return new
    if drop and len(path) == 1:
        rest = dict(node) if isinstance(node, dict) else dict(enumerate(node))
        rest.pop(path[0])
        return rest if isinstance(node, dict) else list(rest.values())
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = changed(node[path[0]], path[1:], new, drop)
    return copy


def expect_a_plan_or_a_sentence(folder: Path, data: bytes) -> None:
    (folder / "s.yaml").write_bytes(data)
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    for device in devices:
        try:
            plan = make_plan(load_suite(folder / "s.yaml", {**KNOWN, **benchmarks()}), Cluster(2, 4, device))
        except SuiteError as error:
            assert str(error).startswith(str(folder / "s.yaml"))  # noqa: PT017
        else:
            assert isinstance(plan, Plan)
            assert plan.cases
            names = [record.id for record in (*plan.cases, *plan.refusals)]
            assert len(set(names)) == len(names)
            assert not any(set(name) & set(" \n") for name in names)


@pytest.mark.in_turn
@MUTATIONS
@given(data=st.data())
def test_no_change_of_structure_makes_a_traceback(tmp_path, data):
    suite = yaml.safe_load(data.draw(st.sampled_from(SUITES)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places_in(suite)))
        suite = changed(suite, path, data.draw(VALUES), data.draw(st.booleans()))
    text = yaml.safe_dump(suite, allow_unicode=True, sort_keys=False)
    expect_a_plan_or_a_sentence(tmp_path, text.encode("utf-8", "surrogatepass"))


@pytest.mark.in_turn
@MUTATIONS
@given(data=st.data())
def test_no_change_of_bytes_makes_a_traceback(tmp_path, data):
    text = data.draw(st.sampled_from(SUITES)).encode()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(start + 12, len(text))))
        text = (
            text[:start]
            + data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b": ", b"- ", b"*a", b"[", b"0"]))
            + text[stop:]
        )
    expect_a_plan_or_a_sentence(tmp_path, text)


def test_a_suite_names_a_secret_without_its_value(tmp_path):
    text = SMALLEST + "environment: {WANDB_API_KEY: from environment, MY_DB_URL: from environment, HF_TOKEN: ''}\n"
    values = {name: setting.values[0].value for name, setting in suite_of(tmp_path, text).environment.items()}
    assert values == {"WANDB_API_KEY": "from environment", "MY_DB_URL": "from environment", "HF_TOKEN": ""}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("WANDB_API_KEY", "1234", "is the name of a secret"),
        ("UCX_PWD", "[from environment, x]", "is the name of a secret"),
        ("MY_DB_URL", "postgres://u:pw@host/x", "has a value that looks like a secret"),
        ("CUDA_LICENSE", "q7Zk2VbX9tLm4RwS8pNc", "has a value that looks like a secret"),
        ("A", "hf_" + "a1B2c3D4e5" * 4, "has a value that looks like a secret"),
    ],
)
def test_a_secret_in_a_suite_is_refused(tmp_path, name, value, why):
    text = SMALLEST + f"    environment:\n      {name}: {value}\n"
    assert mistake(tmp_path, text) == (
        f"s.yaml:5: environment variable '{name}' {why}, and every run keeps a copy of its suite.\n"
        f"hint: write '{name}: from environment', and set it where clusterbench is started"
    )


def test_values_of_libraries_are_no_secrets(tmp_path):
    gpu = "GPU-5e3a2c1b-88d7-4d5e-9f00-1b2c3d4e5f60"
    text = (
        SMALLEST
        + f"environment: {{NCCL_IB_PKEY: 0x7fff, CUDA_VISIBLE_DEVICES: {gpu}, TOKENIZERS_PARALLELISM: false}}\n"
    )
    assert len(suite_of(tmp_path, text).environment) == 3


def test_a_secret_in_an_option_is_refused(tmp_path):
    said = mistake(tmp_path, SMALLEST + "question: is https://user:pw@host/x fast?\n")
    assert said == (
        "s.yaml:4: 'question' holds what looks like a secret, and every run keeps a copy of its suite.\n"
        "hint: leave it out, and give it to the program in a file or a variable"
    )
