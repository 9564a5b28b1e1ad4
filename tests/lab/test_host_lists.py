"""The lists of good and of bad hosts are taken by the programs they are for."""

import pytest

from clusterbench.hosts import Host, Hosts
from clusterbench.hosts.lists import write_lists
from clusterbench.run_folder import RunFolder
from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

JUDGED = {"cb1": "good", "cb2": "bad", "cb3": "good", "cb4": "not judged"}


@pytest.fixture
def lists(tmp_path):
    """A folder with the lists of a run on four hosts with two ranks each."""
    write_lists(RunFolder(tmp_path), Hosts(tuple(Host(name, judged, ()) for name, judged in JUDGED.items()), 2))
    return tmp_path


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_mpirun_takes_the_good_hosts_with_their_ranks(lab, lists, name):
    if reason := getattr(launchers, f"why_not_{name}")():
        pytest.skip(reason)
    launcher = getattr(launchers, name)(lab, ["cb1"], 1)
    # Open MPI 5 never ends (17 of 300 times) if its ranks end while it still starts others; so they stay a moment.
    rank = ["sh", "-c", "hostname && sleep 0.5"]
    command = [launcher.prefix[0], "-n", "4", "--hostfile", str(lists / f"good_hosts.{name}"), *rank]
    done = lab.run(LOGIN, command, env=launcher.environment)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["cb1", "cb1", "cb3", "cb3"]), done.stderr


def test_srun_and_our_own_exclude_leave_the_bad_host_out(lab, slurm, lists):
    done = lab.run(LOGIN, ["srun", "--nodes=3", "--exclude=./bad_hosts.txt", "hostname"], cwd=lists)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["cb1", "cb3", "cb4"]), done.stderr
    (lists / "suite.yaml").write_text(
        "suite: s\nnum_nodes: [2]\nbenchmarks: [{benchmark: all_reduce, max_size: 64, iterations: 3}]\n"
    )
    launcher = launchers.srun(lab, ["cb1", "cb2", "cb3"], 1)
    run = ["run", "suite.yaml", "--out", "run", "--exclude", "./bad_hosts.txt"]
    done = lab.run(LOGIN, launcher.command("-m", "clusterbench.cli", *run), env=launcher.environment, cwd=lists)
    assert "--exclude leaves out cb2\n" in done.stderr
    assert {seen.hosts for seen in RunFolder.open(lists / "run").observations()} == {("cb1", "cb3")}, done.stderr
