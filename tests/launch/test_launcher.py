"""Launcher detection: the variables each launcher really sets, and the traps seen when they mix."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch.launcher import Launcher, detect, expand_hosts, without_launcher

MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "b"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_a_plain_start_has_no_launcher():
    assert detect({"HOME": "/root"}) is None


def test_mpich_is_known_by_its_own_two_variables():
    assert detect(MPICH) == Launcher("mpich", 2, 4, 0, 2)


def test_open_mpi_is_known():
    assert detect(OPENMPI) == Launcher("openmpi", 3, 4, 1, 2)


def test_torchrun_comes_before_everything():
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    assert detect({**SRUN, **torchrun}) == Launcher("torchrun", 1, 2, 1, 2)


def test_mpirun_inside_salloc_is_not_taken_for_slurm():
    # Its daemons were started by srun and pass the daemon's own SLURM_PROCID on to every rank.
    assert detect({**OPENMPI, **SRUN}).name == "openmpi"
    assert detect({**MPICH, **SRUN}).name == "mpich"


def test_a_batch_script_is_not_a_task_of_a_step():
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None


def test_srun_with_pmi2_is_not_taken_for_mpich():
    launcher = detect({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3"})
    assert launcher == Launcher("slurm", 2, 3, 0, 1)


def test_workers_see_nothing_of_the_launcher():
    ours = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "MPICH_GPU_SUPPORT_ENABLED": "1"}
    torchrun = {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert without_launcher({**ours, **torchrun, **MPICH, **OPENMPI, **SRUN}) == ours


def test_variables_that_somebody_set_are_a_launcher_of_their_own():
    assert detect({"RANK": "1", "WORLD_SIZE": "2"}) == Launcher("environment", 1, 2, 0, 1)
    assert detect({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).local_rank == 1
    assert detect({"RANK": "1"}) is None


def test_a_shell_in_an_allocation_has_no_rank():
    assert detect({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "cb[1-2]"}) is None


def test_a_step_with_fewer_tasks_than_its_job_counts_its_own():
    assert detect({**SRUN, "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "3"}).size == 3


def test_open_mpi_that_srun_started_through_pmix_is_slurms():
    assert detect({**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}).name == "slurm"


def test_torchrun_in_a_batch_script_is_torchruns():
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", **torchrun}).name == "torchrun"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'first'"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK must be a whole number, not ''"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2: ranks count from 0"),
    ],
)
def test_variables_that_cannot_be_are_said(variables, said):
    with pytest.raises(LaunchError) as caught:
        detect(variables)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("hosts", "every"),
    [
        ("", []),
        ("cb1,cb2", ["cb1", "cb2"]),
        ("cb[3-4,7]", ["cb3", "cb4", "cb7"]),
        ("gpu[008-010],x", ["gpu008", "gpu009", "gpu010", "x"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("gpu-a[01-02]b[1,3]-ib,x", ["gpu-a01b1-ib", "gpu-a01b3-ib", "gpu-a02b1-ib", "gpu-a02b3-ib", "x"]),
        ("node1.example.com,node2", ["node1.example.com", "node2"]),
    ],
)
def test_slurms_lists_of_hosts_are_written_out(hosts, every):
    assert list(expand_hosts(hosts)) == every
