"""PBS: a file with a line for each MPI process has the hosts; what pbsdsh starts has no size."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launchers import detect, launchers

PBS = launchers()["pbs"]
PROCESS = {
    "PBS_JOBID": "1234.server",
    "PBS_NODENUM": "1",
    "PBS_TASKNUM": "40000001",
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
}
PLACE = (1, 2, None)
"""What it puts into a process that it starts, as documented, and that process's rank, size and local rank."""
SPAWNED = {"PBS_JOBID": "1234.server", "PBS_NODENUM": "1", "PBS_TASKNUM": "40000001"}


def test_its_hosts_are_those_of_the_node_file_each_once(tmp_path):
    # -l select=2:ncpus=16:mpiprocs=4: a line for each MPI process.
    (tmp_path / "nodes").write_text("gpu-a\n" * 4 + "gpu-b\n" * 4)
    environment = {"PBS_NODEFILE": f"{tmp_path}/nodes", "MASTER_ADDR": "elsewhere"}
    assert PBS.hosts(environment) == ["gpu-a", "gpu-b"]
    assert PBS.head(environment) == "gpu-a"


def test_on_another_host_than_the_first_there_is_no_node_file_and_a_variable_says_where_the_head_is():
    environment = {"PBS_NODEFILE": "/var/spool/pbs/aux/1234.server", "MASTER_ADDR": "gpu-a"}
    assert PBS.hosts(environment) == []
    assert PBS.head(environment) == "gpu-a"
    assert PBS.head({"MASTER_ADDR": "gpu-a"}) == "gpu-a"


def test_what_pbsdsh_started_without_a_size_is_refused_with_the_line_to_use():
    with pytest.raises(LaunchError) as caught:
        detect(SPAWNED)
    assert str(caught.value) == (
        "pbsdsh started this process, but does not tell it how many there are.\n"
        "hint: use mpirun, or where PBS_NODEFILE has one line per host 'pbsdsh -- env WORLD_SIZE=2 "
        "MASTER_ADDR=$(hostname) clusterbench run SUITE --ranks-per-agent all'"
    )


def test_mpirun_is_started_again_on_hosts_of_the_node_file(tmp_path):
    (tmp_path / "nodes").write_text("gpu-a\n" * 4 + "gpu-b\n" * 4)
    command = LaunchCommand.parse(f"mpirun -n 8 --hostfile {tmp_path}/nodes", {})
    *words, file = command.on(["gpu-b"], tmp_path)
    assert words == ["mpirun", "-n", "4", "--hostfile"]
    assert (tmp_path / file).read_text() == "gpu-b\n" * 4
