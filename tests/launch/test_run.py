"""Who takes part in a run, before anything is started."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterbench.benchmarks.matmul import Matmul
from clusterbench.cluster import Cluster, Found, MachineOptions
from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch import run
from clusterbench.launch.run import RunOptions
from clusterbench.launchers import Started, launchers
from tests.report.synthetic import case, observation, outcome, write_run


def test_processes_of_another_mpi_are_found_out_before_anything_is_timed(monkeypatch):
    # Four processes that each take themselves for a job of one would print four good tables.
    monkeypatch.setattr(run, "mpi_plane", lambda: type("Plane", (), {"size": 1})())
    with pytest.raises(LaunchError) as caught:
        run._plane(Started(launchers()["open_mpi"], 0, 4, 0))
    assert str(caught.value) == (
        "mpirun started 4 processes, but the MPI library that mpi4py loaded sees 1: they belong to different MPIs.\n"
        "hint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' names it)"
    )


def test_an_mpi_that_mpi4py_was_built_for_and_that_is_not_there_is_said(monkeypatch):
    # One that was built for a library, or MPI4PY_MPIABI names it; mpi4py's own wheel looks for several, a RuntimeError.
    def missing(*_):
        raise ImportError("libmpi.so.40: cannot open shared object file: No such file or directory")

    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setattr(sys.modules["mpi4py"], "__getattr__", missing, raising=False)
    with pytest.raises(
        LaunchError, match=r"mpi4py cannot load an MPI library: libmpi\.so\.40: cannot open shared object"
    ):
        run._plane(Started(launchers()["open_mpi"], 0, 4, 0))


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


def described(torch: str = "2.9.0", gpu: str = "NVIDIA H100 80GB HBM3", port: str = "4: ACTIVE") -> dict[str, Any]:
    ports = [{"state": port, "bits_per_s": 4e11, "link_layer": "InfiniBand"}]
    return {"gpus": [{"name": gpu, "driver_version": "570.86"}], "packages": {"torch": torch}, "infiniband": ports}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"n1": described(port="1: DOWN"), "n2": described(torch="2.10.0")}, ""),
        ({"n1": described(torch="2.10.0")}, "torch 2.9.0 on host n1, where it is 2.10.0 now"),
        ({"n1": described(gpu="NVIDIA H200")}, "gpu h100-sxm-80gb on host n1, where it is h200-sxm-141gb now"),
    ],
)
def test_a_run_goes_on_with_what_it_was_begun_with(tmp_path, now, said):
    """Its other repeats would be pooled with those of before, and environment.json describes a host once."""
    planned = case("a", repeats=2)
    begun = write_run(tmp_path / "begun", [planned], [], environment={"hosts": {"n1": described()}})
    plan = replace(begun.plan(), cluster=Cluster(2, 2, "cuda"))
    assert run._what_is_another(begun, plan, now) == ""  # nothing was measured yet
    begun.record(outcome(planned), observation(planned))
    assert run._what_is_another(begun, plan, now) == said


@pytest.mark.parametrize(("device", "is_another"), [("cuda", True), ("cpu", False)])
def test_a_run_on_cpus_goes_on_whatever_gpus_are_beside_them(tmp_path, device, is_another):
    """Another allocation of the same host may show no GPU."""
    planned = case("a", repeats=2)
    begun = write_run(
        tmp_path / "begun",
        [planned],
        [(outcome(planned), observation(planned))],
        environment={"hosts": {"n1": described()}},
    )
    plan = replace(begun.plan(), cluster=Cluster(1, 4, device))
    assert bool(run._what_is_another(begun, plan, {"n1": {**described(), "gpus": []}})) == is_another


def test_a_run_goes_on_with_the_version_of_a_benchmark_that_it_was_begun_with(tmp_path):
    planned = case("m", benchmark="matmul", version=Matmul.version + 1, repeats=2)
    begun = write_run(tmp_path / "begun", [planned], [(outcome(planned), observation(planned))])
    other = f"version {Matmul.version + 1} of matmul, and this is version {Matmul.version}"
    assert run._what_is_another(begun, begun.plan(), {}) == other


def test_cpu_ranks_for_want_of_gpus_that_a_variable_hides_are_told():
    hidden = Found(why_no_gpus="CUDA_VISIBLE_DEVICES is empty, which hides 8 GPUs")
    on_cpu, on_gpus = Cluster(1, 2, "cpu"), Cluster(1, 8, "cuda")
    note = run._of_hidden_gpus(MachineOptions(), on_cpu, hidden)
    assert note.startswith("note: this run has CPU ranks, as CUDA_VISIBLE_DEVICES is empty, which hides 8 GPUs; ")
    assert run._of_hidden_gpus(MachineOptions(device="cpu"), on_cpu, hidden) == ""
    assert run._of_hidden_gpus(MachineOptions(), on_gpus, hidden) == ""
    assert run._of_hidden_gpus(MachineOptions(), on_cpu, Found(why_no_gpus="no NVIDIA driver")) == ""
