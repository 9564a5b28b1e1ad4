"""Who takes part in a run, before anything is started."""

from pathlib import Path

import pytest

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch import run
from clusterbench.launch.run import RunOptions
from clusterbench.launchers import Started, launchers


def test_processes_of_another_mpi_are_found_out_before_anything_is_timed(monkeypatch):
    # Four processes that each take themselves for a job of one would print four good tables.
    monkeypatch.setattr(run, "mpi_plane", lambda: type("Plane", (), {"size": 1})())
    with pytest.raises(LaunchError) as caught:
        run._plane(Started(launchers()["open_mpi"], 0, 4, 0))
    assert str(caught.value) == (
        "mpirun started 4 processes, but the MPI library that mpi4py loaded sees 1: they belong to different MPIs.\n"
        "hint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' names it)"
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
