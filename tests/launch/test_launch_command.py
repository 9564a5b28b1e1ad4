"""What --launch makes of a launcher's command line: which hosts it names, and the same for fewer of them."""

import pytest

from clusterbench.errors import SuiteError
from clusterbench.launch.launch_command import LaunchCommand

ALLOCATION = {"SLURM_JOB_NODELIST": "cb[1-4]", "SLURM_NTASKS": "8"}


def on(text, hosts, tmp_path, environment=None):
    """The command for some of its hosts, as one line."""
    return " ".join(LaunchCommand.parse(text, environment or {}).on(hosts, tmp_path))


def refusal(text, environment=None):
    with pytest.raises(SuiteError) as caught:
        LaunchCommand.parse(text, environment or {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "on_b"),
    [
        ("mpirun -n 8 -host a:4,b:4", "mpirun -n 4 -host b:4"),
        ("mpirun -n 8 -H a:4,b:4", "mpirun -n 4 -H b:4"),
        ("mpirun --np 8 --host a:4,b:4", "mpirun --np 4 --host b:4"),
        ("mpirun -np=8 -H=a:4,b:4", "mpirun -np=4 -H=b:4"),
        (
            "flux run -N2 --tasks-per-node=4 --requires=host:n[1-2],b",
            "flux run -N1 --tasks-per-node=4 --requires=host:b",
        ),
        ("flux run -N2 -n8 --requires hosts:a,b", "flux run -N1 -n4 --requires host:b"),
        ("mpirun -H a:4,b:4 --map-by ppr:4:node", "mpirun -H b:4 --map-by ppr:4:node"),
        ("/opt/mpich/bin/mpiexec.hydra -hosts a,b -ppn 4 -np 8", "/opt/mpich/bin/mpiexec.hydra -hosts b -ppn 4 -np 4"),
        ("mpiexec -hosts a,b -ppn 4", "mpiexec -hosts b -ppn 4"),
        # as Open MPI adds them up; MPICH says "duplicate host file or host list setting"
        ("mpirun -host a:4 -n 8 -host b:4", "mpirun -host b:4 -n 4"),
        ("mpirun --host=a:4 -n 8 -H b:4", "mpirun --host=b:4 -n 4"),
        ("mpirun -np 4 -H a,a,b,b -x 'PATH=/a b'", "mpirun -np 2 -H b,b -x PATH=/a b"),
        ("srun -N2 -n4 -w a,b", "srun -N1 -n2 -w b"),
        ("srun -wa,b --ntasks-per-node=2", "srun --nodes=1 -wb --ntasks-per-node=2"),
        ("srun --nodes=2-4 --ntasks=4 --nodelist=a,b", "srun --nodes=1 --ntasks=2 --nodelist=b"),
    ],
)
def test_what_is_started_again_on_one_of_two_hosts(text, on_b, tmp_path):
    assert on(text, ["b"], tmp_path) == on_b


def test_mpiruns_command_for_all_its_hosts_is_as_it_was_written(tmp_path):
    for text in ("mpirun -n 8 -H a:4,b:4", "mpiexec -hosts a,b -ppn 4"):
        assert on(text, ["a", "b"], tmp_path) == text


@pytest.mark.parametrize(
    ("text", "common"),
    [
        ("mpirun -np 8 -H a:4,b:4 -x PATH", "mpirun -n 8 -host a:4,b:4 -x PATH"),
        ("mpirun --np=8 -hosts=a:4,b:4", "mpirun -n 8 -host a:4,b:4"),
        ("mpirun -n 8 -host a:4,b:4", "mpirun -n 8 -host a:4,b:4"),
        ("mpirun --host a:4 -n 8 --host b:4", "mpirun -host a:4,b:4 -n 8"),
        ("srun -N2 -n4 -w a,b", "srun -N2 -n4 -w a,b"),
    ],
)
def test_an_mpiruns_command_in_the_options_that_all_of_them_have(text, common):
    assert " ".join(LaunchCommand.parse(text, {}).in_common_options()) == common


def test_srun_is_told_all_that_it_would_take_from_its_allocation(tmp_path):
    everywhere = "srun --ntasks=8 --nodes=4 --nodelist=cb1,cb2,cb3,cb4"
    assert on("srun", ["cb1", "cb2", "cb3", "cb4"], tmp_path, ALLOCATION) == everywhere
    assert on("srun", ["cb1", "cb4"], tmp_path, ALLOCATION) == "srun --ntasks=4 --nodes=2 --nodelist=cb1,cb4"


def test_srun_on_a_part_of_its_allocation_stays_on_it():
    assert list(LaunchCommand.parse("srun -N2 -n4", ALLOCATION).hosts) == ["cb1", "cb2"]
    assert list(LaunchCommand.parse("srun -x cb[1,3]", ALLOCATION).hosts) == ["cb2", "cb4"]
    assert list(LaunchCommand.parse("srun -w cb[2-3]", ALLOCATION).hosts) == ["cb2", "cb3"]


def test_srun_takes_the_share_of_the_tasks_of_the_hosts_it_was_given(tmp_path):
    assert on("srun -w cb[2-3]", ["cb2", "cb3"], tmp_path, ALLOCATION) == "srun --ntasks=4 --nodes=2 -w cb2,cb3"


def test_sruns_list_of_hosts_may_be_a_file(tmp_path):
    (tmp_path / "hosts").write_text("cb1\ncb[3-4]\n")
    assert list(LaunchCommand.parse(f"srun -w {tmp_path}/hosts", {}).hosts) == ["cb1", "cb3", "cb4"]


@pytest.mark.parametrize("option", ["--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f"])
def test_a_host_file_is_written_again_with_the_slots_of_the_hosts_that_are_left(option, tmp_path):
    (tmp_path / "hosts").write_text("# rack 1\na slots=4 # the head\n\nb:4\n  c slots=4 max_slots=8\n#d:4\n")
    command = LaunchCommand.parse(f"mpirun -n 12 {option} {tmp_path}/hosts", {})
    assert list(command.hosts) == ["a", "b", "c"]
    mpirun, n, count, named, file = command.on(["a", "c"], tmp_path)
    assert (mpirun, n, count, named) == ("mpirun", "-n", "8", option)
    assert (tmp_path / file).read_text() == "a slots=4\nc slots=4 max_slots=8\n"


def test_hosts_that_are_named_choose_among_those_of_a_file_which_keeps_their_slots(tmp_path):
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\nc slots=4\n")
    text = f"mpirun -n 8 -H a,b --hostfile {tmp_path}/hosts"
    assert on(text, ["b"], tmp_path) == f"mpirun -n 4 -H b --hostfile {tmp_path}/hosts"


def test_a_probe_is_one_process_on_one_host(tmp_path):
    def probe(text, environment=None):
        command = LaunchCommand.parse(text, environment or {})
        return " ".join(command.alone_on(list(command.hosts)[1], tmp_path))

    assert probe("mpirun -n 8 -H a:4,b:4") == "mpirun -n 1 -H b:4"
    assert probe("srun -N4", ALLOCATION) == "srun --ntasks=1 --nodelist=cb2 -N1"
    assert probe("srun -w a,b --ntasks-per-node 2") == "srun --nodes=1 -w b --ntasks-per-node 1"


def test_another_launcher_cannot_be_started_again():
    assert refusal("torchrun --nnodes 2") == (
        "--launch 'torchrun --nnodes 2': only flux run, mpirun and srun can be started again on fewer hosts.\n"
        "hint: --launch 'mpirun -n 8 -host a:4,b:4'; under another launcher start clusterbench itself, without --launch"
    )
    assert refusal("").startswith("--launch '': only flux run, mpirun and srun")


def test_a_command_without_hosts_is_refused_with_how_to_name_them():
    assert refusal("mpirun -n 8") == (
        "--launch 'mpirun -n 8': it does not say on which hosts.\nhint: -host a:4,b:4 or --hostfile FILE"
    )
    assert refusal("srun -n8") == (
        "--launch 'srun -n8': it does not say on which hosts.\nhint: -w a,b, or start it inside salloc"
    )


def test_what_cannot_be_read_is_said():
    assert refusal("mpirun -H 'a,b") == '--launch "mpirun -H \'a,b" cannot be read: No closing quotation.'
    assert refusal("mpirun -f none") == "--launch 'mpirun -f none': none cannot be read: No such file or directory."
    assert refusal("mpirun -n eight -H a,b") == (
        "--launch 'mpirun -n eight -H a,b': -n must be a whole number, not 'eight'."
    )


def test_sruns_processes_per_node_are_not_those_of_the_shell_that_starts_it(tmp_path):
    # srun takes SLURM_NTASKS for -n: in a shell with one task it would start one process, on one host.
    shell = {"SLURM_JOB_NODELIST": "cb[1-2]", "SLURM_NTASKS": "1"}
    for hosts, start in ((["cb1", "cb2"], "--ntasks=8 --nodes=2"), (["cb2"], "--ntasks=4 --nodes=1")):
        words = on("srun --ntasks-per-node=4", hosts, tmp_path, shell)
        assert words == f"srun {start} --nodelist={','.join(hosts)} --ntasks-per-node=4"
