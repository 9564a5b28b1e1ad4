"""What holds for every launcher that is found, and the traps where one runs inside another."""

import re
from importlib import import_module
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
from tests.launchers import test_by_hand, test_flux, test_mpich, test_open_mpi, test_pbs, test_slurm, test_torchrun

LAUNCHING = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()

MPICH, OPEN_MPI, SRUN = test_mpich.PROCESS, test_open_mpi.PROCESS, test_slurm.PROCESS
TORCHRUN, BY_HAND = test_torchrun.PROCESS, test_by_hand.PROCESS
FLUX, PBS = test_flux.PROCESS, test_pbs.PROCESS

each = pytest.mark.parametrize("name", sorted(launchers()))


def its_test(name):
    """The module that has PROCESS, the variables of a process that it started, and PLACE: rank, size, local rank."""
    return import_module(f"tests.launchers.test_{name}")


def name_of(environment):
    started = detect(environment)
    return next(name for name, launcher in launchers().items() if launcher is started.launcher)


# Every launcher


@each
def test_its_processes_are_known_with_their_place(name):
    environment, place = its_test(name).PROCESS, its_test(name).PLACE
    started = detect({**environment, "HOME": "/root"})
    assert name_of(environment) == name
    assert (started.rank, started.size, started.local_rank) == place


@each
def test_no_other_of_its_kind_takes_its_processes_for_its_own(name):
    kind, environment = launchers()[name].kind, its_test(name).PROCESS
    claim = {other for other, launcher in launchers().items() if launcher.kind == kind}
    assert {other for other in claim if launchers()[other].started(environment)} == {name}


@each
def test_none_of_its_variables_reaches_a_worker_or_may_stand_in_a_suite(name):
    environment = its_test(name).PROCESS
    assert [variable for variable in environment if not is_launchers(variable)] == []
    assert without_launchers({"PATH": "/bin", **environment}) == {"PATH": "/bin"}


@each
def test_its_jobs_differ_though_all_else_is_alike(name):
    launcher, environment = launchers()[name], its_test(name).PROCESS
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
def test_its_docstring_names_its_source_and_the_docs_or_its_docstring_show_its_line(name):
    launcher = launchers()[name]
    doc = type(launcher).__doc__
    assert re.search(r"Source: .*https://|Source: .*\n.*https://", doc), doc
    in_docs = [line for line in LAUNCHING.splitlines() if re.search(rf"(^|\| `?){launcher.program} ", line)]
    in_doc = re.search(rf"^ *{launcher.program} .*\bclusterbench run\b", doc, re.MULTILINE)
    assert in_docs or in_doc or launcher.kind == "by hand", f"nothing shows how {launcher.program} starts clusterbench"
    if in_docs:
        assert ("*Not run*" in doc) == all("*not run*" in line for line in in_docs)


def test_the_innermost_launcher_is_asked_first():
    kinds = [launcher.kind for launcher in launchers().values()]
    assert [INNERMOST_FIRST.index(kind) for kind in kinds] == sorted(INNERMOST_FIRST.index(kind) for kind in kinds)


# One inside another


def test_a_plain_start_has_no_launcher():
    assert detect({"HOME": "/root"}) is None


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "3", "PMI_RANK": "3", "PMI_SIZE": "8"}, "PALS_RANKID"),
        (
            {"PALS_RANKID": "0", "PMI_SIZE": "8", "PBS_JOBID": "7", "PBS_NODENUM": "0", "PBS_TASKNUM": "1"},
            "PALS_RANKID",
        ),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"}, "MV2_COMM_WORLD_RANK"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_RANK"),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, "PMIX_RANK"),
        ({"ALPS_APP_PE": "1"}, "ALPS_APP_PE"),
    ],
)
def test_a_process_of_a_launcher_that_is_not_known_is_no_run_of_its_own(environment, name):
    with pytest.raises(LaunchError) as caught:
        detect(environment)
    rank = environment[name]
    assert str(caught.value) == (
        f"a launcher that is not known started this process with {name}={rank}: each of its processes would be a run "
        "of its own.\nhint: export WORLD_SIZE=8 and MASTER_ADDR, the host of rank 0, and start 8 processes of "
        f"sh -c 'RANK=${name} exec clusterbench run SUITE'; without {name} it is a run on this host alone"
    )
    assert name_of({**environment, "RANK": rank, "WORLD_SIZE": "8"}) == "by_hand"
    assert name_of({**environment, **SRUN}) == "slurm"


@pytest.mark.parametrize("environment", [{"PMI_RANK": "0", "PMI_SIZE": "1"}, {"PMIX_RANK": "0"}])
def test_a_lone_process_of_any_launcher_is_a_plain_start(environment):
    assert detect(environment) is None


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


def test_torchrun_in_a_batch_script_is_torchruns():
    assert name_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", **TORCHRUN}) == "torchrun"


# What they are asked


def test_what_is_not_a_launchers_reaches_the_workers():
    ours = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "MPICH_GPU_SUPPORT_ENABLED": "1"}
    assert without_launchers({**ours, "CLUSTERBENCH_SECRET": "0123456789abcdef"}) == ours


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
