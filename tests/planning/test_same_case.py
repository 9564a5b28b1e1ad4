from dataclasses import replace

import pytest

from clusterbench.cluster import Cluster
from clusterbench.planning import make_plan
from clusterbench.planning.same_case import on_cluster
from clusterbench.suite import load_suite

SUITE = """
suite: s
num_nodes: [2, 4]
benchmarks:
  - {benchmark: all_reduce, min_size: 1MiB, max_size: 4MiB, environment: {GLOO_X: [0, 1]}}
  - {benchmark: all_reduce, min_size: 1MiB, max_size: 1MiB, dtype: float64}
  - benchmark: train_step
    layouts: [dp*, tp4, tp2-dp*]
    shape: llama-tiny
    seq_len: 32
    global_batch_size: 8
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "s.yaml").write_text(SUITE.replace("tp2-dp*", "dp*-tp2"))
    return load_suite(tmp_path / "s.yaml")


def cluster(nodes):
    return Cluster(nodes, 1, "cpu")


@pytest.fixture
def cases(suite):
    plan = make_plan(suite, cluster(4))
    return {case.id: case for case in plan.cases if case.num_nodes == 4}


def test_every_case_of_a_collective_is_found_on_fewer_nodes(suite, cases):
    collectives = [case for case in cases.values() if case.benchmark == "all_reduce"]
    assert len(collectives) == 5
    for case in collectives:
        for nodes in (2, 3):
            other = on_cluster(suite, case, cluster(nodes))
            assert (other.num_nodes, other.world_size) == (nodes, nodes)
            assert other.id == case.id.replace("4n4", f"{nodes}n{nodes}")
            assert (other.point["size_bytes"], other.environment) == (case.point["size_bytes"], case.environment)


def test_data_parallelism_takes_the_ranks_that_are_left_and_no_other_axis_does(suite, cases):
    assert on_cluster(suite, cases["train_step/4n4/dp4"], cluster(2)).layout == "dp2"
    assert on_cluster(suite, cases["train_step/4n4/dp4"], cluster(3)) is None  # 8 sequences are not for 3 ranks
    assert on_cluster(suite, cases["train_step/4n4/tp4"], cluster(2)) is None
    assert on_cluster(suite, cases["train_step/4n4/dp2-tp2"], cluster(3)) is None


def test_a_case_that_its_suite_no_longer_has_is_none(suite, cases):
    case = replace(cases["all_reduce/4n4/4MiB-float32-GLOO_X=0"], iterations=9999)
    assert on_cluster(suite, case, cluster(2)) is None
