"""Each launcher starts a command on the hosts it was told, with the ranks it was told, and leaves nothing running."""

import sys

import pytest

from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

# One write each, or lines of several ranks mix.
HELLO = "import os, socket, sys; sys.stdout.write(socket.gethostname() + ' ' + os.environ[%r] + chr(10))"
ALLREDUCE = """
import socket, sys
from mpi4py import MPI
ranks = MPI.COMM_WORLD
total = ranks.allreduce(ranks.rank + 1)
sys.stdout.write(f"{socket.gethostname()} {ranks.rank} {total} {MPI.Get_library_version().split()[0]}\\n")
"""
GLOO = """
import socket, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
sys.stdout.write(f"{socket.gethostname()} {dist.get_rank()} {one.item():.0f}\\n")
dist.destroy_process_group()
"""
TWO_HOSTS, FOUR_HOSTS = ["cb1", "cb2"], ["cb1", "cb2", "cb3", "cb4"]


def lines(lab, command, environment=None):
    """What a command on the login host prints, line by line, in order of the words."""
    done = lab.run(LOGIN, command, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    assert lab.left_running(within_s=60) == {}
    return sorted(done.stdout.splitlines())


def needs(reason):
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [TWO_HOSTS, FOUR_HOSTS], ids=len)
def test_mpich(lab, hosts):
    needs(launchers.why_not_mpich())
    launcher = launchers.mpich(lab, hosts, ranks_per_host=2)
    assert lines(lab, launcher.command("-c", ALLREDUCE), launcher.environment) == expected(hosts, "MPICH")


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [TWO_HOSTS, FOUR_HOSTS], ids=len)
def test_openmpi(lab, hosts):
    needs(launchers.why_not_openmpi())
    launcher = launchers.openmpi(lab, hosts, ranks_per_host=2)
    assert lines(lab, launcher.command("-c", ALLREDUCE), launcher.environment) == expected(hosts, "Open")


def expected(hosts, library):
    """Two ranks a host, in order; the sum of 1 to the number of ranks."""
    total = sum(range(1, 2 * len(hosts) + 1))
    return [f"{host} {2 * index + local} {total} {library}" for index, host in enumerate(hosts) for local in (0, 1)]


@pytest.mark.mpi
def test_openmpi_has_the_packages_of_these_tests(lab):
    needs(launchers.why_not_openmpi())
    code = "import clusterbench, torch; print(clusterbench.__file__, torch.__file__)"
    here = lab.run("cb1", [sys.executable, "-c", code], check=True).stdout
    launcher = launchers.openmpi(lab, ["cb1"], ranks_per_host=1)
    assert lines(lab, launcher.command("-c", code), launcher.environment) == here.splitlines()


@pytest.mark.in_turn
def test_torchrun_meets_on_the_first_host(lab):
    launcher = launchers.torchrun(lab, TWO_HOSTS, ranks_per_host=2)
    ranks = lines(lab, launcher.command("-c", GLOO), launcher.environment)
    assert {tuple(line.split()[1:]) for line in ranks} == {("0", "4"), ("1", "4"), ("2", "4"), ("3", "4")}
    assert [line.split()[0] for line in ranks] == ["cb1", "cb1", "cb2", "cb2"]


@pytest.mark.in_turn
def test_torchrun_on_four_hosts(lab):
    launcher = launchers.torchrun(lab, FOUR_HOSTS, ranks_per_host=1)
    ranks = [line.split() for line in lines(lab, launcher.command("-c", HELLO % "RANK"), launcher.environment)]
    assert [host for host, _ in ranks] == FOUR_HOSTS
    assert sorted(rank for _, rank in ranks) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("hosts", [TWO_HOSTS, FOUR_HOSTS], ids=len)
def test_srun(lab, slurm, hosts):
    ranks = lab.run(LOGIN, launchers.srun(lab, hosts, 2).command("-c", HELLO % "SLURM_PROCID"), check=True).stdout
    assert sorted(ranks.split("\n")[:-1]) == [
        f"{host} {2 * index + local}" for index, host in enumerate(hosts) for local in (0, 1)
    ]


@pytest.mark.in_turn
def test_sbatch_runs_once_and_srun_in_it_everywhere(lab, slurm, tmp_path):
    batch = launchers.sbatch(lab, TWO_HOSTS, 2, output=tmp_path / "output")
    lab.run(LOGIN, batch.command("-c", HELLO % "SLURM_NTASKS"), check=True)
    assert (tmp_path / "output").read_text() == "cb1 4\n"
    lab.run(LOGIN, [*batch.prefix, "srun", "hostname"], check=True)
    assert sorted((tmp_path / "output").read_text().split()) == ["cb1", "cb1", "cb2", "cb2"]


def test_salloc_runs_on_the_login_host_and_srun_in_it_everywhere(lab, slurm):
    allocation = launchers.salloc(lab, TWO_HOSTS, 2)
    assert lab.run(LOGIN, [*allocation.prefix, "hostname"], check=True).stdout == "cb0\n"
    everywhere = lab.run(LOGIN, [*allocation.prefix, "srun", "hostname"], check=True).stdout
    assert sorted(everywhere.split()) == ["cb1", "cb1", "cb2", "cb2"]


@pytest.mark.mpi
def test_mpich_in_an_allocation_needs_no_hosts(lab, slurm):
    needs(launchers.why_not_mpich())
    mpirun, *_ = launchers.mpich(lab, TWO_HOSTS, 2).prefix
    allocation = launchers.salloc(lab, TWO_HOSTS, 2)
    done = lab.run(LOGIN, [*allocation.prefix, mpirun, sys.executable, "-c", ALLREDUCE], check=True)
    assert sorted(done.stdout.splitlines()) == expected(TWO_HOSTS, "MPICH")


@pytest.mark.mpi
def test_openmpi_in_an_allocation_needs_no_hosts(lab, slurm):
    needs(launchers.why_not_openmpi())
    launcher = launchers.openmpi(lab, TWO_HOSTS, 2)
    allocation = launchers.salloc(lab, TWO_HOSTS, 2)
    command = [*allocation.prefix, launcher.prefix[0], launcher.python, "-c", ALLREDUCE]
    done = lab.run(LOGIN, command, env=launcher.environment, check=True)
    assert sorted(done.stdout.splitlines()) == expected(TWO_HOSTS, "Open")


def test_slurm_notices_a_revived_host(lab, slurm):
    lab.crash("cb2")
    lab.revive("cb2")
    slurm.start_slurmd("cb2")
    assert lab.run(LOGIN, [*launchers.srun(lab, ["cb2"], 1).prefix, "hostname"], check=True).stdout == "cb2\n"


def test_slurm_takes_its_daemons_with_it(lab, slurm):
    assert lab.left_running().keys() == {LOGIN, *lab.hosts}
    slurm.close()
    assert lab.left_running(within_s=60) == {}
