"""What holds for every launcher that is found, and the traps where one runs inside another."""

import re
from pathlib import Path

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launchers import (
    INNERMOST_FIRST,
    detect,
    host_that_ended_first,
    is_launchers,
    launchers,
    mpi_daemons,
    without_launchers,
)

LAUNCHING = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()

MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "b"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "cb[2-3]",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "ROLE_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29411"}
FLUX = {
    "FLUX_JOB_ID": "ƒ3ETxsR9H",
    "FLUX_TASK_RANK": "5",
    "FLUX_JOB_SIZE": "8",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "2",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_FD": "9",
}
PBS = {
    "PBS_JOBID": "1234.server",
    "PBS_NODENUM": "1",
    "PBS_TASKNUM": "40000001",
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
}
PROCESSES = {
    "mpich": (MPICH, 2, 4, 0),
    "open_mpi": (OPEN_MPI, 3, 4, 1),
    "slurm": (SRUN, 2, 3, 0),
    "torchrun": (TORCHRUN, 1, 2, 1),
    "by_hand": (BY_HAND, 1, 2, None),
    "flux": (FLUX, 5, 8, 1),
    "pbs": (PBS, 1, 2, None),
}
"""What each launcher puts into a process that it starts, as seen or as documented, and that process's place."""

each = pytest.mark.parametrize("name", sorted(launchers()))


def name_of(environment):
    started = detect(environment)
    return next(name for name, launcher in launchers().items() if launcher is started.launcher)


# Every launcher


@each
def test_its_processes_are_known_with_their_place(name):
    environment, *place = PROCESSES[name]
    started = detect({**environment, "HOME": "/root"})
    assert name_of(environment) == name
    assert [started.rank, started.size, started.local_rank] == place


@each
def test_no_other_of_its_kind_takes_its_processes_for_its_own(name):
    kind = launchers()[name].kind
    claim = {other for other, launcher in launchers().items() if launcher.kind == kind}
    assert {other for other in claim if launchers()[other].started(PROCESSES[name][0])} == {name}


@each
def test_none_of_its_variables_reaches_a_worker_or_may_stand_in_a_suite(name):
    environment = PROCESSES[name][0]
    assert [variable for variable in environment if not is_launchers(variable)] == []
    assert without_launchers({"PATH": "/bin", **environment}) == {"PATH": "/bin"}


@each
def test_its_jobs_differ_though_all_else_is_alike(name):
    launcher, environment = launchers()[name], PROCESSES[name][0]
    if launcher.kind == "mpi":
        assert launcher.job == ()  # its processes meet by MPI
        return
    assert launcher.job_of(environment) == launcher.job_of({**environment, "HOME": "/root"}) != ""
    for variable in set(launcher.job) & set(environment):
        assert launcher.job_of({**environment, variable: "another"}) != launcher.job_of(environment)


@each
def test_its_command_can_be_read_where_it_can_be_started_again(name):
    launcher = launchers()[name]
    assert bool(launcher.commands) == bool(launcher.naming_hosts) == bool(launcher.of_tasks)


@each
def test_its_docstring_names_its_source_and_the_docs_show_its_line(name):
    launcher = launchers()[name]
    doc = type(launcher).__doc__
    assert re.search(r"Source: .*https://|Source: .*\n.*https://", doc), doc
    lines = [line for line in LAUNCHING.splitlines() if re.search(rf"(^|\| `?){launcher.program} ", line)]
    if launcher.kind != "by hand":
        assert lines, launcher.program
        assert ("*Not run*" in doc) == all("*not run*" in line for line in lines)


def test_the_innermost_launcher_is_asked_first():
    kinds = [launcher.kind for launcher in launchers().values()]
    assert [INNERMOST_FIRST.index(kind) for kind in kinds] == sorted(INNERMOST_FIRST.index(kind) for kind in kinds)


# One inside another


def test_a_plain_start_has_no_launcher():
    assert detect({"HOME": "/root"}) is None


def test_torchrun_comes_before_everything():
    assert name_of({**SRUN, **MPICH, **TORCHRUN}) == "torchrun"


def test_mpirun_inside_an_allocation_is_not_taken_for_the_scheduler():
    # Its daemons were started by the scheduler and pass the daemon's own SLURM_PROCID on to every rank.
    for scheduler in (SRUN, FLUX, PBS):
        assert name_of({**scheduler, **OPEN_MPI}) == "open_mpi"
        assert name_of({**scheduler, **MPICH}) == "mpich"


def test_a_batch_script_is_not_a_process_of_its_scheduler():
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None
    assert detect({**PBS, "PBS_NODENUM": "0", "PBS_TASKNUM": "1"}) is None
    assert detect({"FLUX_URI": "local:///run/flux/local"}) is None  # all others are unset there


def test_a_shell_in_an_allocation_has_no_rank():
    assert detect({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "cb[1-2]"}) is None


def test_srun_with_pmi2_is_not_taken_for_mpich():
    assert name_of({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3"}) == "slurm"


def test_open_mpi_that_srun_started_through_pmix_is_slurms():
    assert name_of({**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}) == "slurm"


def test_torchrun_in_a_batch_script_is_torchruns():
    assert name_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", **TORCHRUN}) == "torchrun"


def test_a_step_with_fewer_tasks_than_its_job_counts_its_own():
    assert detect({**SRUN, "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "3"}).size == 3
    assert detect({name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"}).size == 3


def test_variables_that_somebody_set_are_a_launcher_of_their_own():
    assert detect({"RANK": "1", "WORLD_SIZE": "2"}).local_rank is None
    assert detect({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}).local_rank == 1
    assert detect({"RANK": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'first'"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK must be a whole number, not ''"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number, not ''"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2: ranks count from 0"),
    ],
)
def test_variables_that_cannot_be_are_said(variables, said):
    with pytest.raises(LaunchError) as caught:
        detect(variables)
    assert str(caught.value) == said


# What they are asked


def test_what_is_not_a_launchers_reaches_the_workers():
    ours = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "MPICH_GPU_SUPPORT_ENABLED": "1"}
    assert without_launchers({**ours, "CLUSTERBENCH_SECRET": "0123456789abcdef"}) == ours


def test_without_a_word_of_where_the_head_is_nobody_guesses():
    with pytest.raises(LaunchError) as caught:
        launchers()["torchrun"].head({"RANK": "1", "WORLD_SIZE": "3"})
    assert str(caught.value) == (
        "torchrun started this process, but nothing says on which host rank 0 is.\n"
        "hint: set MASTER_ADDR to the host of rank 0 in all processes"
    )


def test_variables_set_by_hand_inside_a_job_say_more_of_the_head_than_the_job():
    assert launchers()["by_hand"].head({**SRUN, **BY_HAND, "MASTER_ADDR": "10.0.0.9"}) == "10.0.0.9"


def test_torchruns_agents_share_a_job_though_an_srun_for_each_host_started_them():
    there, here = ({**TORCHRUN, **SRUN, "SLURM_STEP_ID": step} for step in "01")
    (job,) = {detect(environment).launcher.job_of(environment) for environment in (there, here)}
    assert job == "TORCHELASTIC_RUN_ID=x,MASTER_PORT=29500,WORLD_SIZE=2"


def test_the_programs_between_mpirun_and_a_rank_are_known():
    assert mpi_daemons() >= {"mpirun", "mpiexec", "hydra_pmi_proxy", "prted", "orted"}
    assert "srun" not in mpi_daemons()


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("=   RANK 1 PID 4171 RUNNING AT cb2", "cb2"),
        ("prterun noticed that process rank 1 with PID 768 on node cb2 exited on signal 9 (Killed).", "cb2"),
        ("srun: error: cb2: task 1: Killed", "cb2"),
        ("error: the suite is mistaken", None),
    ],
)
def test_the_host_of_the_process_that_ended_first_is_read_from_what_launchers_print(line, host):
    assert host_that_ended_first(line) == host
