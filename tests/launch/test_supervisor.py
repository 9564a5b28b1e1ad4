"""The outer form with a launcher of a few lines, which starts one process whatever it is told."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path

import psutil
import pytest

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch import supervisor
from clusterbench.launch.ending import Interruption
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launch.run import RunOptions
from clusterbench.launch.supervisor import supervise
from clusterbench.run_folder import RunFolder, lock
from clusterbench.run_folder.lock import FolderHeld, Lock
from clusterbench.run_folder.process import ENDED, RUNNING

SUITE = "suite: s\nbenchmarks: [{benchmark: fault_drill, sleep_s: [0.01, 0.02], iterations: 6}]\ncpu: {num_ranks: 1}\n"
LONG = SUITE.replace("[0.01, 0.02]", "[0.01, 1.0]").replace("iterations: 6", "iterations: 3, warmup: 1")
"""Its second case takes four seconds, in which its head can be killed."""
COMMAND = "mpirun -n 2 -host a,b"


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """Puts an ``mpirun`` on PATH that drops its own options and then does what the lines say."""

    def write(*lines: str) -> RunOptions:
        script = tmp_path / "bin" / "mpirun"
        script.parent.mkdir(exist_ok=True)
        script.write_text("\n".join(["#!/bin/sh", "hosts=$4; shift 4", *lines]) + "\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        (tmp_path / "s.yaml").write_text(SUITE)
        return RunOptions(tmp_path / "s.yaml", out=tmp_path / "run")

    return write


def killed_in_the_second_case(tmp_path: Path) -> str:
    """Lines of a script in which the head is killed once ranks are timed in a case that is not the first.

    Its lock is then that of a host of which nothing can be known any more.
    """
    alive = f"{tmp_path}/run/alive"
    wait = f"until grep -qs checked {alive} && ! grep -qs sleep_s=0.01 {alive}; do sleep 0.1; done"
    lost = f'sed -i \'s/"host": "[^"]*/&-lost/\' {alive}'
    return f'"$@" & pid=$!; {wait}; kill -9 $pid; wait $pid; {lost}'


def wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def statuses(folder: Path) -> list[str]:
    return [outcome.status for outcome in RunFolder.open(folder).outcomes()]


def test_a_run_that_ends_in_order_is_started_once(launcher, tmp_path, capfd):
    options = launcher('echo started >&2; exec "$@"')
    assert supervise(COMMAND, options) == 0
    said = capfd.readouterr().err
    assert said.count("started") == 1
    assert said.count("measured  COMPLETE") == 1
    assert statuses(tmp_path / "run") == ["ok", "ok"]
    assert "passes on no word" not in said


def test_a_run_that_goes_on_unheard_is_said_once_and_finished(launcher, tmp_path, monkeypatch, capfd):
    """As it is where the launcher's own link to the last host that is left is cut."""
    monkeypatch.setattr(supervisor, "SECONDS_UNHEARD", 0.2)
    assert supervise(COMMAND, launcher(f'"$@" > {tmp_path}/unheard 2>&1')) == 0
    said = capfd.readouterr().err
    assert said.count("clusterbench: the launcher passes on no word of the run on hosts a, b, which goes on in ") == 1
    assert statuses(tmp_path / "run") == ["ok", "ok"]


def test_a_head_that_is_killed_without_a_word_is_started_again(launcher, tmp_path, capfd):
    once = tmp_path / "once"
    options = launcher(
        f"if [ ! -e {once} ]; then touch {once}; {killed_in_the_second_case(tmp_path)}; exit 0; fi", 'exec "$@"'
    )
    (tmp_path / "s.yaml").write_text(LONG)
    assert supervise(COMMAND, options) == 0
    said = capfd.readouterr().err
    assert "clusterbench: the launcher ended with 0; all hosts answer (a, b)" in said
    assert "still write there" not in said  # it is a run of its own, for whose silence nobody waits
    assert statuses(tmp_path / "run") == ["ok", "ok"]


@pytest.mark.in_turn
def test_a_head_that_is_killed_before_anything_was_measured_is_started_again_once(launcher, tmp_path, capfd):
    """A case may take an hour, and whoever killed the head in the first one is no reason to measure none."""
    starts = tmp_path / "starts"
    begun = f"until grep -qs checked {tmp_path}/run/alive; do sleep 0.1; done"
    options = launcher(
        f"echo >> {starts}; if [ $(wc -l < {starts}) = 1 ]; then",
        f'"$@" & pid=$!; {begun}; kill -9 $pid; wait $pid; exit 9; fi',
        'exec "$@"',
    )
    (tmp_path / "s.yaml").write_text(LONG.replace("[0.01, 1.0]", "[1.0]"))
    assert supervise(COMMAND, options) == 0
    assert "clusterbench: the launcher ended with 9; all hosts answer (a, b)" in capfd.readouterr().err
    assert statuses(tmp_path / "run") == ["ok"]


MPICH = "=   PID 33 RUNNING AT b"
OPEN_MPI = "prterun noticed that process rank 1 with PID 7 on node b exited on signal 9 (Killed)."


LOST_HEAD = "error: the head of the run said nothing for 20 s; the agent on b ends its ranks and itself"


def test_a_process_that_the_launcher_names_is_the_culprit_of_the_case_under_way(launcher, tmp_path):
    once = tmp_path / "once"
    options = launcher(
        f'if [ ! -e {once} ]; then touch {once}; {killed_in_the_second_case(tmp_path)}; echo "{MPICH}"; exit 9; fi',
        'exec "$@"',
    )
    (tmp_path / "s.yaml").write_text(LONG)
    assert supervise(COMMAND, options) == 0
    first, lost, again = RunFolder.open(tmp_path / "run").outcomes()
    assert [first.status, lost.status, again.status] == ["ok", "failed", "ok"]
    assert (lost.host, lost.lost_hosts, lost.attempt, again.attempt) == ("b", ("b",), 1, 2)
    assert lost.reason == "host b was lost: the launcher ended the run and said: PID 33 RUNNING AT b"


@pytest.mark.in_turn
def test_beside_a_host_that_does_not_answer_the_one_that_the_launcher_names_is_the_culprit(
    launcher, tmp_path, monkeypatch
):
    once = tmp_path / "once"
    options = launcher(
        f'if [ ! -e {once} ]; then touch {once}; {killed_in_the_second_case(tmp_path)}; echo "{MPICH}"; exit 9; fi',
        'exec "$@"',
    )
    (tmp_path / "s.yaml").write_text(LONG)
    monkeypatch.setattr(supervisor, "_alive", lambda *_: ["a", "b"])
    assert supervise("mpirun -n 3 -host a,b,c", options) == 1  # all is measured; a host is lost
    _, lost, _ = RunFolder.open(tmp_path / "run").outcomes()
    assert (lost.host, lost.lost_hosts) == ("b", ("b", "c"))
    assert lost.reason == (
        "host c was lost: no process can be started there any more, and the launcher ended the run; "
        "it said: PID 33 RUNNING AT b"
    )


@pytest.mark.parametrize(("line", "host"), [(MPICH, "b"), (OPEN_MPI, "b"), (LOST_HEAD, "a")])
def test_the_host_that_ended_first_is_known_from_what_the_launcher_said(line, host):
    supervised = supervisor._Supervised(LaunchCommand.parse(COMMAND, {}), Interruption())
    supervised._listen(BytesIO(f"starts\n{line}\nends\n".encode()), printed := StringIO())
    assert supervised.named(["a", "b"]) == (host, line.strip(" ="))
    assert printed.getvalue() == f"starts\n{line}\nends\n"
    assert supervised.named(["c"]) == (("c", line) if line == LOST_HEAD else None)


@pytest.mark.parametrize(
    "said",
    [
        # MPICH 5.0, as it was said when the agent on the first host was killed: those on all others faulted in MPI
        "=   BAD TERMINATION OF ONE\n=   PID 116 RUNNING AT b\n=   EXIT CODE: 11\n=   CLEANING UP",
        "prterun noticed that process rank 1 with PID 7 on node b exited on signal 11 (Segmentation fault).",
        "srun: error: b: task 1: Segmentation fault",
    ],
)
def test_a_fault_inside_mpi_names_nobody_as_all_processes_have_it_when_one_is_gone(said):
    supervised = supervisor._Supervised(LaunchCommand.parse(COMMAND, {}), Interruption())
    supervised._listen(BytesIO(f"{said}\n".encode()), StringIO())
    assert supervised.named(["a", "b"]) is None


def test_spares_take_the_places_of_hosts_lost_before_and_after_the_run_began(launcher, tmp_path, monkeypatch, capfd):
    once, hosts = tmp_path / "once", tmp_path / "hosts"
    options = launcher(
        f"echo $hosts >> {hosts}",
        f"if [ $(wc -l < {hosts}) = 1 ]; then exit 9; fi",
        f"if [ ! -e {once} ]; then touch {once}; {killed_in_the_second_case(tmp_path)}; exit 9; fi",
        'exec "$@"',
    )
    (tmp_path / "s.yaml").write_text(LONG)
    answering = iter([["b", "c", "d", "e"], ["c", "e"]])
    monkeypatch.setattr(supervisor, "_alive", lambda *_: next(answering))
    assert supervise("mpirun -n 5 -host a,b,c,d,e", replace(options, spares=3)) == 1  # all is measured; hosts are lost
    assert hosts.read_text().split() == ["a,b", "c,b", "c,e"]
    first, lost, again = RunFolder.open(tmp_path / "run").outcomes()
    assert [first.status, lost.status, again.status] == ["ok", "failed", "ok"]
    assert (lost.host, lost.lost_hosts, again.attempt) == ("b", ("b",), 2)
    assert lost.reason == (
        "host b was lost: no process can be started there any more, and the launcher ended the run; "
        "e takes the place of b"
    )
    environment = RunFolder.open(tmp_path / "run").environment()
    assert environment["lost hosts"] == {"b": "no process could be started there any more"}
    assert environment["absent hosts"] == {
        "a": "no process could be started there before the run began",
        "d": "no process could be started there when a spare was wanted",
    }
    assert environment["spares"] == {
        "c": "took the place of a",
        "d": "did not answer when host b had to be replaced",
        "e": "took the place of b",
    }
    said = capfd.readouterr().err
    assert "the launcher ended with 9; no answer from a; spare c takes the place of a\n" in said
    assert "no answer from b; nor from spare d; spare e takes the place of b\n" in said


def test_a_spare_that_is_not_needed_waits_and_an_excluded_host_gets_nothing(launcher, tmp_path, capfd):
    options = launcher(f"echo $hosts >> {tmp_path}/hosts", 'exec "$@"')
    assert supervise("mpirun -n 8 -host a:2,b:2,c:2,d:2", replace(options, spares=1, exclude="b,x")) == 0
    assert (tmp_path / "hosts").read_text().split() == ["a:2,c:2"]
    assert RunFolder.open(tmp_path / "run").environment()["spares"] == {"d": "was not needed"}
    said = capfd.readouterr().err
    assert "--exclude leaves out b; x is not in the allocation\n" in said
    assert said.count("--exclude leaves out no host; x is not in the allocation\n") == 1  # of the run itself


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_lost_host": "stop"}, "--spares has no effect with --on-lost-host stop: no host is replaced"),
        (
            {"hosts": ("a",)},
            "--spares has no effect with --hosts, as a spare is none of those.\nhint: name",
        ),
    ],
)
def test_spares_that_could_not_replace_anything_are_a_mistake(launcher, changes, message):
    with pytest.raises(SuiteError) as caught:
        supervise(COMMAND, replace(launcher("exit 0"), spares=1, **changes))
    assert str(caught.value).startswith(message)


def test_a_launcher_may_end_with_2_once_its_run_has_begun(launcher, tmp_path):
    once = tmp_path / "once"
    options = launcher(
        f"if [ ! -e {once} ]; then touch {once}; {killed_in_the_second_case(tmp_path)}; exit 2; fi", 'exec "$@"'
    )
    (tmp_path / "s.yaml").write_text(LONG)
    assert supervise(COMMAND, options) == 0
    assert statuses(tmp_path / "run") == ["ok", "ok"]


def test_what_a_launcher_leaves_behind_is_ended(launcher, tmp_path):
    pid = tmp_path / "pid"
    options = launcher(f"setsid sh -c 'echo $$ >{pid}; exec sleep 300' </dev/null >/dev/null 2>&1 &", 'exec "$@"')
    assert supervise(COMMAND, options) == 0
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_launcher_that_brings_nothing_is_not_started_for_ever(launcher, tmp_path, capfd):
    options = launcher(
        'case "$*" in *"can be started"*) exec "$@";; esac',  # it is only asked whether a host answers
        f'if [ -e {tmp_path}/run/plan.jsonl ]; then exit 3; fi; "$@" --time-limit 1s; exit 3',
    )
    (tmp_path / "s.yaml").write_text(SUITE.replace("[0.01, 0.02]", "[3.0, 3.1]"))
    assert supervise(COMMAND, options) == 1
    said = capfd.readouterr().err
    assert "INCOMPLETE" in said
    assert said.count("the launcher ended with 3") == 2


def test_a_launcher_that_never_begins_is_an_error(launcher):
    with pytest.raises(LaunchError) as caught:
        supervise(COMMAND, launcher("exit 7"))
    assert str(caught.value) == "the launcher ended with 7 before the run began; see what it said above"


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("mpirun -n 2 -H a,b", "--launch 'mpirun -n 2 -host a,b', which every mpirun takes"),
        ("mpirun --np=2 -hosts=a,b", "--launch 'mpirun -n 2 -host a,b', which every mpirun takes"),
        (COMMAND, "'mpirun -n 2 -host a,b hostname' shows what this launcher starts"),
    ],
)
def test_a_launcher_that_ends_with_0_and_started_nothing_is_an_error_with_the_line_to_use(launcher, command, instead):
    # MPICH's mpirun answers an option that it does not know, such as Open MPI's -H, with its usage and exit code 0.
    with pytest.raises(LaunchError) as caught:
        supervise(command, launcher("exit 0"))
    assert str(caught.value) == (
        f"the launcher ended with 0, but the run never began: '{command}' started nothing.\nhint: {instead}"
    )


def test_a_host_answers_with_a_word_and_not_with_an_exit_code(launcher, tmp_path, capfd):
    # Begins the run, ends it, and from then on says that all is well without starting anything.
    options = launcher(f'if [ -e {tmp_path}/run/plan.jsonl ]; then exit 0; fi; "$@" --time-limit 1s; exit 3')
    (tmp_path / "s.yaml").write_text(SUITE.replace("[0.01, 0.02]", "[3.0, 3.1]"))
    assert supervise(COMMAND, options) == 1
    assert "no answer from a, b; none is left" in capfd.readouterr().err


def test_a_host_that_does_not_answer_at_once_is_tried_again(launcher, tmp_path):
    """One try may come while the machine is busy, or while what ran there before is still ending."""
    tries = tmp_path / "tries"
    first_of_b = f'[ "$(grep -c $hosts {tries})$hosts" = 1b ]'
    launcher(f"echo $hosts >> {tries}", f"if [ $hosts = c ] || {first_of_b}; then exit 1; fi", 'exec "$@"')
    launch = LaunchCommand.parse("mpirun -n 3 -host a,b,c", {})
    assert supervisor._alive(launch, ["a", "b", "c"], tmp_path) == ["a", "b"]
    assert sorted(tries.read_text().split()) == ["a", "b", "b", "c", "c"]


def test_srun_is_started_where_its_last_step_is_not_cleaned_up_yet(launcher, tmp_path, monkeypatch):
    (launcher("true").out.parent / "bin" / "srun").write_text(f"#!/bin/sh\necho $SLURM_OVERLAP > {tmp_path}/overlap\n")
    (tmp_path / "bin" / "srun").chmod(0o755)
    supervisor._alive(LaunchCommand.parse("srun -w a", {}), ["a"], tmp_path)
    assert (tmp_path / "overlap").read_text() == "1\n"


def test_a_launcher_without_a_sign_of_life_is_ended(launcher, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "SECONDS_TO_BEGIN", 1.0)
    start_s = time.monotonic()
    with pytest.raises(LaunchError, match="ended with -15 before the run began"):
        supervise(COMMAND, launcher("sleep 600"))
    assert time.monotonic() - start_s < 200
    assert "the launcher does not end, or shows no sign of life on hosts a, b; it is ended" in capfd.readouterr().err


def test_a_mistake_ends_with_2_and_is_not_tried_again(launcher, tmp_path, capfd):
    options = launcher('echo started >&2; exec "$@"')
    (tmp_path / "s.yaml").write_text(SUITE.replace("fault_drill", "fault_drill, rank: -1"))
    with pytest.raises(SuiteError):
        supervise(COMMAND, options)
    (tmp_path / "s.yaml").write_text(SUITE + "num_nodes: [2]\n")
    assert supervise(COMMAND, options) == 2
    assert capfd.readouterr().err.count("started") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_into_which_another_run_writes_is_refused_before_anything_is_launched(launcher, tmp_path, capfd):
    options = launcher("echo started >&2")
    held = Lock.take(tmp_path / "run", "another")
    with pytest.raises(FolderHeld):
        supervise(COMMAND, options)
    held.expect()
    assert "started" not in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["alive"]


@pytest.mark.parametrize(
    ("asked", "started_on", "passed_on"),
    [
        (("b", "a"), ["a", "b"], "b,a"),
        (("b", "a"), ["a"], "a"),  # b was lost
        (("w-b", "w-a"), ["a", "b"], "w-b,w-a"),  # as the hosts call themselves, which the command does not
        (("c",), ["a", "b"], "c"),  # a mistake: the head says so
    ],
)
def test_hosts_that_are_asked_for_reach_the_run_unless_they_are_lost(tmp_path, asked, started_on, passed_on):
    launch = LaunchCommand.parse("mpirun -n 2 -host a,b", {})
    words = supervisor._inner(launch, RunOptions(tmp_path / "s.yaml", hosts=asked), tmp_path / "run", started_on)
    assert words[words.index("--hosts") + 1] == passed_on


def test_it_is_not_started_by_a_launcher_itself(launcher, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    with pytest.raises(LaunchError) as caught:
        supervise(COMMAND, launcher('exec "$@"'))
    assert str(caught.value) == "--launch starts a launcher, but this process was itself started by mpirun"


def test_a_launcher_ends_with_a_supervisor_that_is_killed(launcher, tmp_path):
    """Otherwise it would go on for as long as a case takes, and hold the folder."""
    pid = tmp_path / "pid"
    launcher(f"echo $$ > {pid}", "exec sleep 300")
    command = ["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "run"), "--launch", COMMAND]
    supervising = subprocess.Popen([sys.executable, "-m", "clusterbench.cli", *command])
    wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"))
    supervising.kill()
    supervising.wait()
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())))


def held_by_a_head_on(host: str, folder: Path) -> None:
    Lock.take(folder, "another")
    lock = json.loads((folder / "alive").read_text())
    (folder / "alive").unlink()
    (folder / "alive").write_text(json.dumps(lock | {"host": host}))


@pytest.mark.parametrize("answers", [[ENDED], [RUNNING, ENDED]], ids=["gone", "still ending"])
def test_a_folder_is_free_once_the_launcher_says_that_the_head_on_another_host_is_gone(
    launcher, tmp_path, capfd, answers
):
    asked = tmp_path / "asked"
    said = "; ".join(f"[ $(wc -l < {asked}) = {number} ] && echo {answer}" for number, answer in enumerate(answers, 1))
    options = launcher(f'case "$*" in *run_folder.process*) echo $hosts >> {asked}; {said}; exit 0;; esac', 'exec "$@"')
    held_by_a_head_on("b.fabric", tmp_path / "run")
    assert supervise(COMMAND, options) == 0
    assert asked.read_text().split() == ["b"] * len(answers)
    assert "still write there" not in capfd.readouterr().err
    assert statuses(tmp_path / "run") == ["ok", "ok"]


@pytest.mark.parametrize("host", ["b", "c"])
def test_a_folder_is_watched_where_nobody_knows_of_the_head(launcher, tmp_path, capfd, monkeypatch, host):
    """On a host that does not answer, or that is none of the launcher's."""
    monkeypatch.setattr(lock, "SECONDS_OF_STANDSTILL", 0.5)
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_LOOKS", 0.05)
    options = launcher('case "$*" in *run_folder.process*) exit 1;; esac', 'exec "$@"')
    held_by_a_head_on(host, tmp_path / "run")
    assert supervise(COMMAND, options) == 0
    assert f"on host {host}, since" in capfd.readouterr().err
