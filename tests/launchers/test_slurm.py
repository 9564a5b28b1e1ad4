"""Slurm's lists of hosts, and where the first task of a step is."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launchers import detect, launchers
from clusterbench.launchers._hostlist import expand_hosts

SLURM = launchers()["slurm"]
PROCESS = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "cb[2-3]",
}
PLACE = (2, 3, 0)
"""What it puts into a process that it starts, as seen, and that process's rank, size and local rank."""


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
    assert SLURM.hosts({"SLURM_JOB_NODELIST": hosts}) == every


@pytest.mark.parametrize(
    ("hosts", "every"),
    [
        ("", ""),
        ("foox,fooy,fooz", "foox,fooy,fooz"),
        ("[1-3,5-6]", "1,2,3,5,6"),
        ("foo[1-5]", "foo1,foo2,foo3,foo4,foo5"),
        ("foo[0-4]-eth2", "foo0-eth2,foo1-eth2,foo2-eth2,foo3-eth2,foo4-eth2"),
        ("foo1,foo1,foo1", "foo1,foo1,foo1"),
        ("[00-02]", "00,01,02"),
        ("[00-2]", "00,01,02"),
        ("foo[1,1,2,1]", "foo1,foo1,foo2,foo1"),
        ("prefix[0-2]suffix", "prefix0suffix,prefix1suffix,prefix2suffix"),
    ],
)
def test_the_test_vectors_of_fluxs_rfc_29(hosts, every):
    assert ",".join(expand_hosts(hosts)) == every


def test_the_head_is_on_the_first_host_of_the_step():
    environment = {"SLURM_STEP_NODELIST": "cb[2-4]", "SLURM_JOB_NODELIST": "cb[1-4]"}
    assert SLURM.head(environment) == "cb2"
    assert SLURM.head({"SLURM_JOB_NODELIST": "cb[1-4]"}) == "cb1"
    assert SLURM.head({"MASTER_ADDR": "10.0.0.9"}) == "10.0.0.9"


def test_of_a_heterogeneous_job_the_head_is_on_the_first_component():
    # As seen: salloc -N1 -w cb3 : -N2 -w cb[1-2] srun --het-group=0,1
    job = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "cb3",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "cb[1-2]",
        "SLURM_JOB_NODELIST": "cb[1-3]",
    }
    assert SLURM.head({**job, "SLURM_STEP_NODELIST": "cb[1-3]"}) == "cb3"
    assert SLURM.head({**job, "SLURM_STEP_NODELIST": "cb[1-2]"}) == "cb1"  # --het-group=1
    assert SLURM.head({**job, "SLURM_STEP_NODELIST": "cb2"}) == "cb2"
    assert SLURM.head({**job, "SLURM_HET_SIZE": "two", "SLURM_STEP_NODELIST": "cb[1-3]"}) == "cb3"


def test_where_a_host_file_deals_out_the_tasks_the_head_is_on_its_first_line(tmp_path):
    # As seen: SLURM_HOSTFILE=hosts srun -n4 -m arbitrary has rank 0 on cb3.
    (tmp_path / "hosts").write_text("cb3\ncb1\ncb3\ncb1\n")
    step = {"SLURM_STEP_NODELIST": "cb[1,3]", "SLURM_DISTRIBUTION": "arbitrary"}
    assert SLURM.head({**step, "SLURM_HOSTFILE": f"{tmp_path}/hosts", "MASTER_ADDR": "a"}) == "cb3"
    (tmp_path / "hosts").write_text("cb3*2,cb1*2\n")
    assert SLURM.head({**step, "SLURM_HOSTFILE": f"{tmp_path}/hosts"}) == "cb3"
    assert SLURM.head({**step, "SLURM_HOSTFILE": "/nowhere", "MASTER_ADDR": "a"}) == "a"
    assert SLURM.head(step) == "cb1"
    cyclic = {**step, "SLURM_DISTRIBUTION": "cyclic", "SLURM_HOSTFILE": f"{tmp_path}/hosts"}
    assert SLURM.head(cyclic) == "cb1"


def test_two_steps_of_a_job_are_two_jobs():
    first = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "HOME": "/root"}
    assert SLURM.job_of(first) == "SLURM_JOB_ID=7,SLURM_STEP_ID=0"
    assert SLURM.job_of({**first, "SLURM_STEP_ID": "1"}) != SLURM.job_of(first)


def test_a_shell_in_an_allocation_has_no_rank():
    assert detect({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "cb[1-2]"}) is None


def test_a_shell_of_salloc_that_is_a_step_is_a_plain_start_and_may_start_srun():
    # slurm.conf: LaunchParameters=use_interactive_step. What such a shell has, with the counts of the whole job.
    shell = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "cb[1-2]",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_ID": "4294967290",
        "SLURM_STEP_NODELIST": "cb1",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_PTY_PORT": "39933",
    }
    assert detect(shell) is None
    launch = LaunchCommand.parse("srun", shell)
    assert launch.words == ("srun", "--ntasks=8", "--nodes=2", "--nodelist=cb1,cb2")
    with pytest.raises(LaunchError, match="this process was itself started by srun"):
        LaunchCommand.parse("srun", {**shell, "SLURM_STEP_NUM_TASKS": "8"})


def test_a_step_with_fewer_tasks_than_its_job_counts_its_own():
    assert detect({**PROCESS, "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "3"}).size == 3
    assert detect({name: value for name, value in PROCESS.items() if name != "SLURM_STEP_NUM_TASKS"}).size == 3
