"""The messages of the design, word for word: each names where, what, what is allowed and what to do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.planning import make_plan
from clusterbench.suite import load_suite
from tests.invented import KNOWN, Ping


@pytest.fixture
def suites(tmp_path, monkeypatch):
    """A folder ``suites`` in the working directory, as a user has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    return tmp_path / "suites"


def test_an_unknown_option_suggests_the_nearest_and_lists_all(suites):
    @dataclass(frozen=True, kw_only=True)
    class AllReduce(Ping):
        @classmethod
        def options(cls):
            return {
                name: declared
                for name, declared in super().options().items()
                if name in ("min_size", "max_size", "dtype")
            }

    lines = ["suite: fabric", "num_nodes: [1, 2]", "benchmarks:", "  - benchmark: all_reduce", "    min_size: 8"]
    (suites / "fabric.yaml").write_text("\n".join([*lines, "    max_byte: 8"]))
    with pytest.raises(SuiteError) as error:
        load_suite("suites/fabric.yaml", {"all_reduce": AllReduce})
    assert str(error.value) == (
        "suites/fabric.yaml:6: benchmark 'all_reduce' has no option 'max_byte'. Did you mean 'max_size'?\n"
        "Options: dtype, max_size, min_size."
    )


def test_a_layout_that_needs_more_ranks_says_the_whole_equation(suites):
    lines = ["suite: layouts", "num_nodes: 8", *["#"] * 5, "benchmarks:", "  - benchmark: train", "    layouts:"]
    (suites / "layouts.yaml").write_text("\n".join([*lines, "      - pp2-dp4-tp16"]))
    with pytest.raises(SuiteError) as error:
        make_plan(load_suite("suites/layouts.yaml", KNOWN), Cluster(8, 8, "cuda"))
    assert str(error.value) == (
        "suites/layouts.yaml:11: layout 'pp2-dp4-tp16' needs 128 ranks, but 8 nodes x 8 GPUs give 64.\n"
        "hint: write 'dp*' to let data parallelism take the ranks that are left, or ask for 16 nodes"
    )


def test_a_gpu_without_a_peak_on_record_is_named_with_the_nearest():
    assert Cluster(1, 8, "cuda", "NVIDIA H200 NVL").missing_peak("bfloat16", num_rows=12) == (
        "No peak FLOP/s on record for 'NVIDIA H200 NVL' in bfloat16, so mfu is left empty in 12 rows.\n"
        "hint: add it with its source to clusterbench/hardware/nvidia.toml; the nearest entry is 'NVIDIA H200'"
    )
