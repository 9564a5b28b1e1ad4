"""The search as a person starts it; in place of a launcher a function writes what planted faults make of each run."""

import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.errors import LaunchError, RunFolderError, SuiteError
from clusterbench.launch import bisect as searching
from clusterbench.launch.bisect import NAMED, NOT_NAMED, bisect
from clusterbench.launch.run import RunOptions
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.lock import FolderHeld, Lock
from clusterbench.suite import load_suite
from clusterbench.types import Observation, Outcome

SUITE = """
suite: s
benchmarks:
  - {benchmark: fault_drill, iterations: 2, warmup: 0, at_most: {step_time: 1 s}}
  - {benchmark: train_step, layouts: [tp4], shape: llama-tiny, seq_len: 32, global_batch_size: 8}
"""
DRILL, TP = "fault_drill/4n4/none-in-run", "train_step/4n4/tp4"
COMMAND = "mpirun -n 4 -host a,b,c,d"
RAISED = "rank 1 (host b): RuntimeError: it broke after 7 s"


class Killed(BaseException):
    """In place of kill -9, after which nothing more is written."""


def write_outcome(folder, hosts, planted):
    """What a run on ``hosts`` leaves in its folder, with the faults that are planted."""
    run = RunFolder.open(folder)
    (case,) = run.plan().cases
    assert case.num_nodes == len(hosts) == run.plan().cluster.num_nodes
    identity = {"case": case.id, "hash": case.hash, "repeat": 0, "attempt": 1}
    for status, reason, faults in planted["faults"]:
        if any(set(hosts) >= {*fault} for fault in faults):
            run.record(Outcome(**identity, status=status, reason=reason), None)
            return
    slow = any(set(hosts) >= {*fault} for fault in planted["slow"])
    seconds = [[2.0 if slow else 0.5] * case.iterations] * case.world_size
    run.record(
        Outcome(**identity, status="ok", phase="done"), Observation(**identity, hosts=tuple(hosts), seconds=seconds)
    )


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """In ``run`` a run of four hosts that failed; gives what plants faults."""
    (tmp_path / "s.yaml").write_text(SUITE)
    suite = load_suite(tmp_path / "s.yaml")
    plan = make_plan(suite, Cluster(4, 1, "cpu", hosts=("a", "b", "c", "d")))
    run = RunFolder.create(tmp_path / "run", suite.text, plan, {"hosts": {}})
    assert [case.id for case in plan.cases] == [DRILL, TP]
    planted = {}

    def start_once(launch, hosts, options, scratch, interruption):
        if planted["killed_at"] == "".join(hosts):
            raise Killed
        if planted["signal_at"] == "".join(hosts):
            os.kill(os.getpid(), signal.SIGTERM)
            if planted["in_a_case"]:
                Lock.take(options.resume, "head").note(
                    {"case": DRILL, "hash": "0", "repeat": 0, "attempt": 1, "phase": "warm"}
                )
            return 1
        planted["down"] += planted["crashes"].get("".join(hosts), [])
        for head, other in planted["apart"]:
            if hosts[0] == head and other in hosts:
                print(f"error: 1 of 2 agents did not come to {head}:29391 within 60 s: 1\nhint: ...", file=sys.stderr)
                print(f"error: agent 1 of 2 (host {other}) did not find the head at {head}, ports ...", file=sys.stderr)
                return 1
        if (
            "".join(hosts) == planted["never"]
            or {*hosts} & {*planted["down"]}
            or any(set(hosts) >= {*stuck} for stuck in planted["stuck"])
        ):
            print("error: no way to b\nand more", file=sys.stderr)
            return 9
        write_outcome(options.resume, hosts, planted)
        return 0

    def hosts_that_answer(launch, hosts, scratch):
        return [host for host in hosts if host not in planted["down"]]

    monkeypatch.setattr(searching, "start_once", start_once)
    monkeypatch.setattr(searching, "hosts_that_answer", hosts_that_answer)

    def plant(failed=("failed", RAISED), **what):
        planted.update(
            {"faults": [], "slow": [], "down": [], "stuck": [], "crashes": {}, "apart": [], "never": "", **what}
        )
        planted.update({"signal_at": "", "killed_at": "", "in_a_case": False, **what})
        for case in plan.cases if not run.outcomes() else ():
            identity = {"case": case.id, "hash": case.hash, "repeat": 0, "attempt": 1}
            if failed:
                run.record(Outcome(**identity, status=failed[0], reason=failed[1]), None)
            else:
                seen = Observation(**identity, hosts=plan.cluster.hosts, seconds=[[2.0] * case.iterations] * 4)
                run.record(Outcome(**identity, status="ok", phase="done"), seen)
        return RunOptions(None, resume=tmp_path / "run")

    return plant


def result(tmp_path):
    return json.loads((tmp_path / "run-bisect" / "bisect.json").read_text())


def test_one_host_is_named_with_its_runs_and_what_to_do(planted, tmp_path, capfd):
    options = planted(faults=[("failed", "rank 0 (host c): RuntimeError: it broke after 12 s", [["c"]])])
    assert bisect(COMMAND, DRILL, options) == NAMED == 1
    said = capfd.readouterr()
    assert said.out == (
        f"c: {DRILL} failed in 3 of 3 runs with it. Without c it ended well on a, b, d.\n"
        "hint: leave out c with --exclude c\n"
    )
    lines = [line.rpartition(",")[0] for line in said.err.splitlines()[1:-1]]
    assert lines == [
        "bisect: run 1, all 4, try 1 of 3: a, b, c, d: failed",
        "bisect: run 2, 4 suspects left: a, b: ok",
        "bisect: run 3, 2 suspects left: a, b, c: failed",
        "bisect: run 4, c with others: c, d: failed",
        "bisect: run 5, without c: a, b, d: ok",
    ]
    assert said.err.splitlines()[-1] == f"bisect: 5 runs: {tmp_path}/run-bisect/bisect.json"
    found = result(tmp_path)
    assert (found["ended"], found["hosts"], found["exit_code"]) == ("host", [["c"]], 1)
    assert ["".join(run["hosts"]) for run in found["runs"]] == ["abcd", "ab", "abc", "cd", "abd"]
    folders = [run["folder"] for run in found["runs"]]
    assert sorted(path.name for path in (tmp_path / "run-bisect").iterdir()) == [*folders, "bisect.json"]


def test_two_hosts_that_fail_only_together_are_named(planted, capfd):
    options = planted(("timeout", "stopped after 5 s"), faults=[("failed", "Connection closed by peer", [["b", "d"]])])
    assert bisect(COMMAND, DRILL, options) == NAMED
    assert capfd.readouterr().out.startswith(
        f"b and d together: {DRILL} failed in 3 of 3 runs with both, and in 0 of 6 with only one of them. Without b"
    )


def test_a_missed_floor_is_a_failure(planted, capfd):
    assert bisect(COMMAND, DRILL, planted(None, slow=[["a"]])) == NAMED
    said = capfd.readouterr()
    assert "failed on a, b, c, d: step_time: 2.000 s, 100 % above the 1.000 s that the suite asks for" in said.err
    assert said.out.startswith("a: ")


def test_what_does_not_come_again_is_not_called_healthy(planted, tmp_path, capfd):
    assert bisect(COMMAND, DRILL, planted()) == NOT_NAMED == 3
    assert capfd.readouterr().out.splitlines()[0] == (
        f"not reproduced: {DRILL} ended well in 3 of 3 runs on a, b, c, d. Whether a host is at fault is not judged."
    )
    assert result(tmp_path)["hosts"] == []


def test_another_failure_is_said_and_ends_the_search(planted, capfd):
    options = planted(faults=[("failed", RAISED, [["a", "b", "c"]]), ("out_of_memory", "too little", [["a", "b"]])])
    assert bisect(COMMAND, DRILL, options) == NOT_NAMED
    assert capfd.readouterr().out.splitlines()[0] == (
        f"stopped: on a, b {DRILL} failed in another way (out_of_memory: too little) than the one that is looked for "
        f"(failed: {RAISED}). No host is named."
    )


def test_a_host_that_does_not_answer_is_said_and_not_blamed(planted, tmp_path, capfd):
    options = planted(faults=[("failed", RAISED, [["d"]])], down=["b"])
    assert bisect(COMMAND, DRILL, options) == NAMED
    said = capfd.readouterr()
    assert "bisect: no answer from b: left out, and not blamed for the failure of the case\n" in said.err
    assert said.out.startswith(f"d: {DRILL} failed")
    assert result(tmp_path)["unreachable"] == ["b"]
    assert all("b" not in run["hosts"] for run in result(tmp_path)["runs"])


def test_a_host_that_is_lost_meanwhile_is_left_out_and_the_search_goes_on(planted, tmp_path, capfd):
    options = planted(faults=[("failed", RAISED, [["a"]])], crashes={"abcd": ["d"]})
    assert bisect(COMMAND, DRILL, options) == NAMED
    assert result(tmp_path)["unreachable"] == ["d"]
    assert [run["ended"] for run in result(tmp_path)["runs"]][:2] == ["not run", "failed"]
    assert capfd.readouterr().out.startswith("a: ")


def test_a_failure_on_a_host_that_is_gone_since_is_not_among_the_fewest(planted, tmp_path, capfd):
    options = planted(faults=[("failed", RAISED, [["a", "b", "c"], ["c", "d"]])], crashes={"abd": ["d"]})
    assert bisect(COMMAND, DRILL, options) == NOT_NAMED
    assert result(tmp_path)["unreachable"] == ["d"]
    assert capfd.readouterr().out.startswith(f"together: {DRILL} fails on a, b, c, and")


def test_hosts_on_which_it_cannot_be_started_are_said(planted, capfd):
    assert bisect(COMMAND, DRILL, planted(stuck=[["a", "b"]])) == NOT_NAMED
    assert capfd.readouterr().out == (
        f"stopped: {DRILL} could not be run on a, b, c, d, though each of them answers: the launcher ended with 9 and "
        "said: error: no way to b. No host is named.\n"
        "hint: see 01/launcher.txt; where the processes did not find each other, try the launcher there by hand\n"
    )


def test_hosts_that_do_not_find_each_other_fail_as_ranks_do_that_wait_for_each_other(planted, tmp_path, capfd):
    """A link that is cut for good: where one end of it is the head, no run begins at all."""
    waited = ("timeout", "stopped after 5 s: rank 1 (host b) has not left the phase after 'device'")
    assert bisect(COMMAND, DRILL, planted(waited, faults=[(*waited, [["b", "c"]])], apart=["bc"])) == NAMED
    assert capfd.readouterr().out.startswith(f"b and c together: {DRILL} failed in 4 of 4 runs with both, and in 0 of")
    (two,) = {run["sentence"] for run in result(tmp_path)["runs"] if run["hosts"] == ["b", "c"]}
    assert two == "the process on c did not find the head of the run on b, and each waited for the other"


def test_hosts_that_do_not_find_each_other_are_named_where_something_else_is_looked_for(planted, capfd):
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["b", "c"]])], apart=["bc"])) == NOT_NAMED
    assert capfd.readouterr().out.splitlines()[0] == (
        f"stopped: on b, c {DRILL} failed in another way (the process on c did not find the head of the run on b, and "
        f"each waited for the other) than the one that is looked for (failed: {RAISED}). No host is named."
    )


def test_that_processes_did_not_find_each_other_is_no_failure_before_they_once_did(planted, capfd):
    """Another secret or a firewall would be the hosts' fault otherwise."""
    waited = ("timeout", "stopped after 5 s: rank 1 (host b) has not left the phase after 'device'")
    assert bisect(COMMAND, DRILL, planted(waited, apart=["ab"])) == NOT_NAMED
    assert capfd.readouterr().out.splitlines()[0] == (
        f"stopped: {DRILL} could not be run on a, b, c, d, though each of them answers: the process on b did not find "
        "the head of the run on a, and each waited for the other. No host is named."
    )


def test_of_what_a_launcher_said_that_of_an_error_is_quoted():
    """As Open MPI says that a host cannot be reached; behind it stand lines and a NUL."""
    said = "Warning: setpgid\n----\nError:   Connection timed out (110)\n----\nMPI job ended\n----\n\0\n"
    assert searching._last_words(said) == " and said: Error: Connection timed out (110)"
    assert searching._last_words("it began\nit ended\n---\n\0\n") == " and said: it ended"
    assert searching._last_words("Error: its\nerror: ours\n") == " and said: error: ours"
    assert searching._last_words("\0\n") == ""


def test_two_hosts_that_run_with_others_but_not_together_are_evidence_and_no_proof(planted, capfd):
    """As under MPI, whose libraries say nothing that can be read when hosts do not reach each other."""
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["b", "c"]])], never="bc")) == NOT_NAMED
    assert capfd.readouterr().out == (
        f"stopped: {DRILL} could not be run on b, c, though each of them answers: the launcher ended with 9 and said: "
        "error: no way to b. Both ran with other hosts, so the way between the two is suspect. No host is named.\n"
        "hint: look at cables, ports and routes between b and c; 06/launcher.txt has what the launcher said\n"
    )


def test_a_case_that_fails_wherever_it_runs_names_no_host(planted, capfd):
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["a"], ["b"], ["c"], ["d"]])])) == NOT_NAMED
    said = capfd.readouterr().out
    assert said.startswith(f"everywhere: {DRILL} failed in all ")
    assert "No host is named.\nhint: look at what all hosts share: " in said


def test_two_culprits_are_both_named(planted, tmp_path, capfd):
    faults = [("failed", RAISED, [["a"], ["d"]])]
    assert bisect("mpirun -n 6 -host a,b,c,d,e,f", DRILL, planted(faults=faults)) == NAMED
    assert capfd.readouterr().out.endswith(
        "Without a and d it ended well on b, c.\nhint: leave out a and d with --exclude a,d\n"
    )
    assert sorted(result(tmp_path)["hosts"]) == [["a"], ["d"]]


@pytest.mark.parametrize("how", ["signal_at", "killed_at"])
def test_a_search_that_was_cut_short_goes_on(planted, tmp_path, capfd, how):
    faults = [("failed", RAISED, [["c"]])]
    options = planted(faults=faults, **{how: "abc"})
    if how == "signal_at":
        assert bisect(COMMAND, DRILL, options) == NOT_NAMED
        assert "bisect: stopped: it was interrupted by SIGTERM; no host is named. The same command goes on" in (
            capfd.readouterr().err
        )
        assert (result(tmp_path)["ended"], len(result(tmp_path)["runs"])) == ("interrupted", 3)
    else:
        with pytest.raises(Killed):
            bisect(COMMAND, DRILL, options)
    capfd.readouterr()
    assert bisect(COMMAND, DRILL, planted(faults=faults)) == NAMED
    said = capfd.readouterr()
    assert said.out.startswith(f"c: {DRILL} failed in 3 of 3 runs with it. Without c it ended well on a, b, d.\n")
    assert f"bisect: goes on after the 2 runs of {tmp_path}/run-bisect; --out FOLDER begins anew\n" in said.err
    runs = [("".join(run["hosts"]), run["ended"]) for run in result(tmp_path)["runs"] if run["ended"] != "not run"]
    assert runs == [("abcd", "failed"), ("ab", "ok"), ("abc", "failed"), ("cd", "failed"), ("abd", "ok")]
    assert len({run["folder"] for run in result(tmp_path)["runs"]}) == len(result(tmp_path)["runs"])


def test_a_run_that_was_interrupted_is_no_loss_of_a_host(planted, tmp_path):
    lost = planted(("failed", "rank 1 (host b) was lost: the agent there said nothing for 20 s"))
    run = RunFolder.open(tmp_path / "run")
    last = next(outcome for outcome in run.outcomes() if outcome.case == DRILL)
    run.record(replace(last, attempt=2, lost_hosts=("b",)), None)
    planted(signal_at="abcd", in_a_case=True)
    assert bisect(COMMAND, DRILL, lost) == NOT_NAMED
    assert [run["ended"] for run in result(tmp_path)["runs"]] == ["not run"]


@pytest.mark.parametrize(
    ("command", "case", "more"),
    [
        ("mpirun -n 5 -host a,b,c,d,e", DRILL, {"interface": "eth1"}),
        ("srun -w a,b,c,d --ntasks-per-node=1", DRILL, {}),
        ("mpirun -n 6 -host a,b,c,d,e,f", TP, {}),
    ],
    ids=["interface", "launcher", "case"],
)
def test_what_was_asked_otherwise_is_no_part_of_a_search(planted, tmp_path, command, case, more):
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["c"]])], signal_at="abc")) == NOT_NAMED
    before = result(tmp_path)
    options = replace(planted(faults=[("failed", RAISED, [["c"]])]), **more)
    assert bisect(command, case, options) == NAMED
    assert result(tmp_path) == before
    again = json.loads((tmp_path / "run-bisect-2" / "bisect.json").read_text())
    assert again["runs"][0]["hosts"] == ["a", "b", "c", "d"]


def test_a_search_that_came_to_an_end_begins_anew(planted, tmp_path):
    options = planted(faults=[("failed", RAISED, [["c"]])])
    assert bisect(COMMAND, DRILL, options) == NAMED
    assert bisect(COMMAND, DRILL, options) == NAMED
    assert (tmp_path / "run-bisect-2" / "05").exists()


def test_a_record_that_is_damaged_is_not_gone_on_with(planted, tmp_path):
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["c"]])], signal_at="abc")) == NOT_NAMED
    record = tmp_path / "run-bisect" / "bisect.json"
    record.write_text(record.read_text().replace('"ok"', '"fine"'))
    options = planted(faults=[("failed", RAISED, [["c"]])])
    with pytest.raises(RunFolderError, match=r"run-bisect exists and is not empty"):
        bisect(COMMAND, DRILL, replace(options, out=tmp_path / "run-bisect"))
    assert bisect(COMMAND, DRILL, options) == NAMED
    assert (tmp_path / "run-bisect-2" / "05").exists()


@pytest.mark.parametrize("where", [".", "03"])
def test_a_search_of_which_anything_is_under_way_is_not_gone_on_with(planted, tmp_path, where):
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["c"]])], signal_at="abc")) == NOT_NAMED
    lock = Lock.take(tmp_path / "run-bisect" / where, "another")
    with pytest.raises(FolderHeld, match="is being written by another run: process"):
        bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["c"]])]))
    lock.release()
    assert bisect(COMMAND, DRILL, planted(faults=[("failed", RAISED, [["c"]])])) == NAMED


def test_a_case_that_fits_no_fewer_hosts_takes_those_that_launch_names_beside_them(planted, capfd):
    options = planted(faults=[("failed", RAISED, [["b"]])])
    assert bisect(COMMAND, TP, options) == NOT_NAMED
    assert capfd.readouterr().out == (
        f"together: {TP} fails on a, b, c, d, and with the hosts that there are none of them can be told from the "
        "others. No host is named.\nhint: name more than these 4 hosts in --launch: they take places in turn\n"
    )
    assert bisect("mpirun -n 6 -host a,b,c,d,e,f", TP, options) == NAMED
    assert capfd.readouterr().out.startswith(f"b: {TP} failed")


@pytest.mark.parametrize(
    ("command", "case", "message"),
    [
        (
            COMMAND,
            "fault_drill/4n4/none",
            f"--bisect fault_drill/4n4/none: .* has no such case. Did you mean '{DRILL}'",
        ),
        ("mpirun -n 3 -host a,b,d", DRILL, "--launch names no c, but the case ran on a, b, c, d."),
        ("mpirun -n 6 -host a,b,c,d", DRILL, "--launch starts 6 processes, which are not equally many"),
    ],
)
def test_what_cannot_be_searched_is_a_mistake(planted, command, case, message):
    with pytest.raises(SuiteError, match=message):
        bisect(command, case, planted())


def test_a_case_that_did_not_fail_is_a_mistake(planted):
    options = planted(None)
    with pytest.raises(SuiteError, match=f"{TP}: it did not fail, and misses no floor, in .*/run, so there is nothing"):
        bisect(COMMAND, TP, options)


def test_hosts_that_are_too_few_for_the_case_are_an_error(planted):
    with pytest.raises(LaunchError, match="the 3 hosts that answer are too few for the case"):
        bisect(COMMAND, TP, planted(down=["b"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s.yaml", "--bisect", DRILL], "--bisect needs --resume FOLDER, the run that failed, and --launch COMMAND"),
        (["--resume", "run", "--bisect", DRILL, "--launch", COMMAND, "--hosts", "a,b"], "--hosts has no effect with"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(planted, tmp_path, monkeypatch, words, message):
    planted()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", *words])
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
