import socket

import pytest

from clusterbench.benchmarks.deepep import Deepep
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import run_suite
from tests.tools import printed

NODES = Place(Cluster(2, 8, "cuda"), 2)
ONE_NODE = Place(Cluster(1, 8, "cuda"), 1)

FAKE = f"""
import os, sys
print({{name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")}}, file=sys.stderr)
assert (os.environ["WORLD_SIZE"], os.environ["RANK"], os.environ["MASTER_ADDR"]) == ("1", "0", "127.0.0.1")
assert sys.argv[1:3] == ["--num-processes", "2"]
print('''{printed.DEEPEP_LOW_LATENCY}''')
"""
NO_MODULE = "import deep_ep_that_nobody_has\n"


@pytest.mark.in_turn
@pytest.mark.gloo
def test_its_test_is_started_with_what_it_needs_and_a_missing_module_is_skipped(tmp_path):
    (tmp_path / "checkout/tests/legacy").mkdir(parents=True)
    (tmp_path / "checkout/tests/legacy/test_low_latency.py").write_text(FAKE)
    (tmp_path / "checkout/tests/test_intranode.py").write_text(NO_MODULE)
    shared = f"path: {tmp_path}/checkout, num_processes: 2, num_tokens: 128"
    entries = f"""
  - {{benchmark: deepep, test: low_latency, {shared}}}
  - {{benchmark: deepep, test: intranode, {shared}}}
  - {{benchmark: deepep, test: intranode, path: {tmp_path}/nowhere}}
"""
    done, outcomes, rows = run_suite(tmp_path, entries)
    assert done.returncode == 0, done.stderr
    low, absent, nowhere = sorted(outcomes, key=lambda case: ("nowhere" in outcomes[case].reason, "intranode" in case))
    assert [outcomes[case].status for case in (low, absent, nowhere)] == ["ok", "skipped", "skipped"]
    assert low == "deepep/1n2/low_latency-128tokens-7168hidden-top8of256-2each-on0"
    assert rows[low, "time", "dispatch_combine"] == pytest.approx(435e-6)
    assert rows[low, "fastest_time", ""] == pytest.approx(410.25e-6)
    assert rows[low, "slowest_time", ""] == pytest.approx(950.5e-6)
    assert rows[low, "bandwidth", "combine"] == 54.75e9
    assert f"the Python module deep_ep is not installed, see docs/rdma.md, on {socket.gethostname()}" in (
        outcomes[absent].reason
    )
    assert f"there is no {tmp_path}/nowhere/tests/test_intranode.py or " in outcomes[nowhere].reason


def test_between_nodes_it_runs_once_a_node_and_counts_nodes(monkeypatch):
    arguments = {}

    def on_nodes(cls, rig, point, runners, words, environment):
        arguments.update(runners=runners, words=words, environment=environment)

    monkeypatch.setattr(Deepep, "on_nodes", classmethod(on_nodes))

    class Second:
        rank = 8

    (point,) = Deepep(test="internode").points(NODES)
    Deepep.prepare(Second(), point)
    assert arguments["runners"] == [0, 8]
    assert arguments["environment"]("10.0.0.1", "2900") == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "2900",
        "WORLD_SIZE": "2",
        "RANK": "1",
    }
    assert " ".join(arguments["words"]) == (
        "--num-processes 8 --num-tokens 4096 --hidden 7168 --num-topk 8 --num-experts 256"
    )


def test_within_a_node_each_node_is_a_case():
    assert [point["runners"] for point in Deepep().points(NODES)] == ["0", "8"]


def test_what_cannot_be_is_refused():
    def objection(place, **options):
        benchmark = Deepep.from_options(options)
        return benchmark.objection(next(iter(benchmark.points(place))), place)

    assert objection(ONE_NODE) is None
    assert objection(ONE_NODE, test="internode") == (
        "internode needs two nodes or more, and there is one; within a node there is 'intranode'"
    )
    assert objection(NODES, test="internode", num_processes=4) == "internode needs 8 processes a node, not 4"
    assert objection(ONE_NODE, num_processes=16) == "16 processes need as many GPUs, and a node has 8"


def test_nobody_says_where_it_is(monkeypatch):
    monkeypatch.delenv("DEEPEP_HOME", raising=False)
    with pytest.raises(NotHere) as caught:
        Deepep.program_words({"path": "", "test": "intranode"})
    assert str(caught.value) == (
        "the folder of DeepEP is not given.\n"
        "hint: option 'path', or DEEPEP_HOME, names a checkout of DeepEP; how to build it: docs/rdma.md"
    )


def test_the_variable_says_where_it_is(monkeypatch, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_intranode.py").write_text("")
    monkeypatch.setenv("DEEPEP_HOME", str(tmp_path))
    assert Deepep.program_words({"path": "", "test": "intranode"})[1:] == [f"{tmp_path}/tests/test_intranode.py"]


def test_figures_of_the_best_settings():
    figures = Deepep.parse(printed.DEEPEP_INTERNODE, {"test": "internode"})
    assert figures["rdma_bandwidth[part=dispatch_fp8]"] == 43.75e9
    assert figures["time[part=combine]"] == pytest.approx(2700e-6)
    assert len(figures) == 9
    assert set(Deepep.parse(printed.DEEPEP_INTRANODE, {"test": "intranode"})) == {
        f"nvl_bandwidth[part={part}]" for part in ("dispatch_fp8", "dispatch_bf16", "combine")
    }


def test_the_figures_of_another_test_are_refused():
    with pytest.raises(ToolError, match=r"DeepEP's test_intranode\.py printed the figures of another test"):
        Deepep.parse(printed.DEEPEP_INTERNODE, {"test": "intranode"})


def test_a_rank_that_says_nothing_is_missed():
    with pytest.raises(ToolError, match="DeepEP's test of 8 processes printed figures of 2 ranks"):
        Deepep.parse(printed.DEEPEP_LOW_LATENCY, {"test": "low_latency", "num_processes": 8})


def test_each_figure_of_low_latency_is_that_of_the_rank_that_is_worst():
    assert Deepep.parse(printed.DEEPEP_LOW_LATENCY, {"test": "low_latency", "num_processes": 2}) == {
        "time[part=dispatch_combine]": pytest.approx(435e-6),
        "time[part=dispatch]": pytest.approx(157.25e-6),
        "time[part=combine]": pytest.approx(265.5e-6),
        "fastest_time": pytest.approx(410.25e-6),
        "slowest_time": pytest.approx(950.5e-6),
        "bandwidth[part=dispatch_combine]": 50.5e9,
        "bandwidth[part=dispatch]": 47.75e9,
        "bandwidth[part=combine]": 54.75e9,
    }
