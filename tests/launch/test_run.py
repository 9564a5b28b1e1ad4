"""Who takes part in a run, before anything is started."""

from pathlib import Path

import pytest

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch import run
from clusterbench.launch.allocation import Allocation
from clusterbench.launch.run import RunOptions
from clusterbench.launchers import Started, launchers
from clusterbench.suite import load_suite

GPUS = {"cpu_model": "AMD EPYC", "gpus": [{"name": "NVIDIA H200"}] * 8}
NO_GPU = {"cpu_model": "AMD EPYC", "gpus": [], "gpus_reason": "no driver"}


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("suite: s\nquestion: q\nbenchmarks: [{benchmark: all_reduce}]\ncpu: {num_ranks: 3}\n")
    return load_suite(path)


def cluster(suite, hosts, host, alone=True, **options):
    allocation = Allocation(tuple(hosts), dict.fromkeys(hosts, host))
    return run._cluster(RunOptions(None, **options), suite, allocation, allocation.names, alone=alone)


def test_processes_of_another_mpi_are_found_out_before_anything_is_timed(monkeypatch):
    # Four processes that each take themselves for a job of one would print four good tables.
    monkeypatch.setattr(run, "MpiPlane", lambda: type("Plane", (), {"size": 1})())
    with pytest.raises(LaunchError) as caught:
        run._plane(Started(launchers()["open_mpi"], 0, 4, 0))
    assert str(caught.value) == (
        "mpirun started 4 processes, but the MPI library that mpi4py loaded sees 1: they belong to different MPIs.\n"
        "hint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' names it)"
    )


def test_a_plain_run_takes_the_suites_cpu_ranks_and_the_command_line_changes_them(suite):
    assert cluster(suite, ["a"], NO_GPU).ranks_per_node == 3
    assert cluster(suite, ["a"], NO_GPU, num_ranks=5).ranks_per_node == 5


def test_a_plain_run_takes_every_gpu(suite):
    found = cluster(suite, ["a"], GPUS)
    assert (found.device, found.ranks_per_node, found.gpu_name) == ("cuda", 8, "NVIDIA H200")


def test_under_a_launcher_each_process_owns_one_rank_unless_told_otherwise(suite):
    hosts = ["a", "a", "b", "b"]
    assert cluster(suite, hosts, NO_GPU, alone=False).ranks_per_node == 2
    assert cluster(suite, hosts, NO_GPU, alone=False, ranks_per_agent=4).ranks_per_node == 8
    assert cluster(suite, ["a", "b"], GPUS, alone=False, ranks_per_agent=0).world_size == 16


def test_more_ranks_than_gpus_are_refused_with_both_numbers(suite):
    with pytest.raises(SuiteError) as caught:
        cluster(suite, ["a"] * 9, GPUS, alone=False)
    assert str(caught.value) == (
        "9 ranks on a node need as many GPUs, but a has 8.\nhint: start fewer processes per node"
    )


def test_more_nodes_need_a_launcher(suite):
    with pytest.raises(SuiteError) as caught:
        cluster(suite, ["a"], NO_GPU, num_nodes=2)
    assert str(caught.value) == (
        "--num-nodes 2 needs a launcher that starts clusterbench on as many hosts; this is one process on one host.\n"
        "hint: 'mpirun -n 2 -host a,b clusterbench run SUITE --ranks-per-agent all'"
    )


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        (None, "--on-lost-host has no effect without --launch: this run has one host."),
        (
            Started(launchers()["mpich"], 0, 4, 0),
            "--on-lost-host continue: when a host is lost, everything that mpirun started ends, and nothing is left "
            "that could continue.\nhint: 'clusterbench run SUITE --launch \"mpirun ...\"' starts it again on what is "
            "left",
        ),
    ],
)
def test_inside_a_launcher_there_is_nothing_to_continue(monkeypatch, launcher, said):
    monkeypatch.setattr(run, "detect", lambda _: launcher)
    with pytest.raises(SuiteError) as caught:
        run.run(RunOptions(Path("s.yaml"), on_lost_host="continue"))
    assert str(caught.value) == said


def test_cuda_without_a_gpu_is_a_mistake(suite):
    with pytest.raises(SuiteError, match="--device cuda needs a GPU, but NVML finds none on this host"):
        cluster(suite, ["a"], NO_GPU, device="cuda")
