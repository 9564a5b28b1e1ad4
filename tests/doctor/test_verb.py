from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from clusterbench.checks import judge
from clusterbench.cli import main
from clusterbench.doctor import examine, verb
from clusterbench.doctor.prolog import MOST_OF_A_REASON, drain_list, line, reason, within
from clusterbench.doctor.text import text
from clusterbench.doctor.verb import Asked, _examined, _shown, answer, seconds_of, with_lost
from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch import over_ssh
from clusterbench.suite import load_suite
from tests.doctor.test_doctor import PORT, down
from tests.facts.machine import healthy


def doctor(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "clusterbench", "doctor", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def told(asked, drain_on, environment):
    return _shown(asked, drain_on, _examined(asked, environment, None), ())


def examined(folder, **machines):
    hosts = [machine.host(folder, name) for name, machine in machines.items()]
    return examine([host.name for host in hosts], judge(hosts))


def test_this_host_is_examined_by_its_facts_alone(tmp_path):
    done = doctor("--quick", "--json", str(tmp_path / "found.json"))
    said = json.loads((tmp_path / "found.json").read_text())
    assert done.stdout.partition(":")[0] == said["word"].upper()
    assert done.returncode == said["exit_code"], done.stderr
    assert len(said["hosts"]) == 1


def test_a_reader_that_goes_after_the_verdict_costs_no_file_and_no_exit_code(tmp_path, monkeypatch):
    """As ``head -1``: 1 would say that something was found."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        code = answer(Asked("quick", json=tmp_path / "found.json"))
    assert code == json.loads((tmp_path / "found.json").read_text())["exit_code"]


def test_hosts_are_held_against_each_other_by_facts_alone(tmp_path, capsys):
    well = healthy().host(tmp_path).environment
    odd = {**well, "gpus": well["gpus"][:7], "num_usable_cpus": 112}
    assert told(Asked("quick"), None, {"hosts": {"n1": well, "n2": well, "n3": odd}}) == 1
    said = capsys.readouterr().out
    assert "the set of GPUs is 7 x NVIDIA H100 80GB HBM3 on n3" in said
    assert "the number of CPUs that may be used is 112 on n3 and 224 on the other 2 hosts [unlike_hosts]" in said
    assert told(Asked("quick"), None, {"hosts": {"n1": well, "n2": well}}) == 0


@pytest.mark.parametrize(("drain_on", "word"), [(None, "SUSPECT: "), (("port_state",), "drain: ")])
def test_a_file_that_cannot_be_written_costs_no_verdict(tmp_path, capsys, drain_on, word):
    machine = healthy()
    machine.files[f"{PORT}/state"] = "1: DOWN\n"
    environment = {"hosts": {"n1": machine.host(tmp_path).environment}}
    asked = Asked("quick", json=tmp_path / "none" / "found.json")
    if drain_on:
        assert told(asked, drain_on, environment) == 1
    else:
        with pytest.raises(SuiteError, match="cannot be written: No such file or directory"):
            told(asked, drain_on, environment)
    assert capsys.readouterr().out.startswith(word)


def test_a_file_is_replaced_in_one_step_through_its_link_and_a_pipe_stays_one(tmp_path):
    environment = {"hosts": {"n1": healthy().host(tmp_path).environment}}
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "found.json")
    told(Asked("quick", json=link, junit=Path("/dev/null")), None, environment)
    assert json.loads((tmp_path / "found.json").read_text())["hosts"] == ["n1"]
    assert link.is_symlink()
    assert not Path("/dev/null").is_file()
    assert not [*tmp_path.glob("*.new")]


@pytest.mark.parametrize("depth", ["short", "deep"])
def test_what_is_measured_is_a_suite(depth):
    assert load_suite(Asked(depth).suite).question.endswith("?")


@pytest.mark.parametrize(
    ("device", "settle", "seconds"), [("cuda", True, 5.0), ("cuda", False, 1.0), ("cpu", True, 0.5)]
)
def test_a_case_that_waits_for_clocks_is_reckoned_longer(device, settle, seconds):
    assert seconds_of(SimpleNamespace(benchmark="matmul", device=device, point={"settle": settle})) == seconds


def test_how_long_it_will_take_is_said_first(tmp_path):
    command = [sys.executable, "-m", "clusterbench", "doctor", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        first = process.stderr.readline()
        process.terminate()
        process.communicate(timeout=100)
    assert re.match(r".*/out: \d\d repeats of \d cases to run on 2 ranks, about 0:1\d$", first), first


def test_a_node_is_drained_for_what_the_site_listed_alone(tmp_path):
    examination = examined(tmp_path, n1=down())
    assert reason(examination, ["port_state"]) == "mlx5_3 port 1 (0000:4b:00.0): is DOWN, its link Polling [port_state]"
    assert reason(examination, ["memlock"]) == ""
    assert reason(examination, []) == ""


def test_a_reason_is_one_line_that_a_scheduler_can_hold(tmp_path):
    machine = healthy()
    for number in range(8):
        machine.files[f"/sys/class/infiniband/mlx5_{number}/ports/1/state"] = "1: DOWN\n"
    words = reason(examined(tmp_path, n1=machine), ["port_state"])
    assert len(words) <= MOST_OF_A_REASON
    assert words.endswith(" ...")


@pytest.mark.parametrize(("names", "message"), [("port_stat", "no check 'port_stat'")])
def test_a_site_cannot_list_what_is_no_check(names, message):
    with pytest.raises(SuiteError, match=message):
        drain_list(names)


def test_a_doctor_that_is_late_drains_nothing_and_says_so(capfd, monkeypatch):
    monkeypatch.setattr(
        "clusterbench.own_copy.command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    began = time.monotonic()
    assert within(0.3, []) == 0
    assert time.monotonic() - began < 5
    assert capfd.readouterr().out == "not judged: no answer within 0.3 s; this node stays as it is\n"


def test_the_limit_holds_what_was_spent_before(capfd, monkeypatch):
    monkeypatch.setattr("clusterbench.own_copy.command", lambda *_: ["sleep", "60"])
    began = time.monotonic()
    assert within(20, [], spent_s=19.2) == 0
    assert time.monotonic() - began < 1.0
    assert capfd.readouterr().out.startswith("not judged: no answer within 20 s")


def test_the_start_of_python_is_part_of_what_was_spent():
    script = "import time; time.sleep(0.3); from clusterbench.doctor.prolog import age_s; print(age_s())"
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert 0.3 < float(said) <= time.monotonic() - began + 0.05


@pytest.mark.parametrize(
    ("said", "code", "gives", "line"),
    [
        ("drain: x [port_state]", 1, 1, "drain: x [port_state]"),
        ("no drain: HEALTHY", 0, 0, "no drain: HEALTHY"),
        ("not judged: port_state", 0, 0, "not judged: port_state"),
        ("", 0, 0, "not judged: the doctor ended with exit code 0; this node stays as it is"),
        ("", 1, 0, "not judged: the doctor ended with exit code 1; this node stays as it is"),
        ("no drain: HEALTHY", 1, 0, "not judged: the doctor ended with exit code 1; this node stays as it is"),
        ("drain: x", 137, 0, "not judged: the doctor ended with exit code 137; this node stays as it is"),
    ],
)
def test_a_doctor_that_fails_drains_nothing(capfd, monkeypatch, said, code, gives, line):
    script = f"print({said!r}); raise SystemExit({code})"
    monkeypatch.setattr("clusterbench.own_copy.command", lambda *_: [sys.executable, "-c", script])
    assert within(20, []) == gives
    assert capfd.readouterr().out == f"{line}\n"


def test_what_of_the_list_was_not_judged_gives_no_node_back(tmp_path):
    examination = examined(tmp_path, n1=healthy().without(f"{PORT}/state"))
    assert line(examination, ["port_state"]) == (
        f"not judged: port_state: {PORT}/state is not there; this node stays as it is"
    )
    assert line(examination, ["memlock"]).startswith("no drain: NOT JUDGED")
    assert line(examined(tmp_path, n2=down()), ["port_state"]).startswith(
        "drain: mlx5_3 port 1 (0000:4b:00.0): is DOWN"
    )


def test_a_prolog_inside_a_job_waits_for_no_other_rank():
    place = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    done = doctor("--prolog", "--limit", "60s", "--drain-on", "port_state", **place)
    assert (done.returncode, done.stdout.partition(": ")[0]) == (0, "no drain"), done.stderr


def test_a_prolog_says_in_one_line_that_nothing_is_drained():
    done = doctor("--prolog", "--limit", "60s", "--drain-on", "port_state")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    assert done.stdout.startswith("no drain: ")


def test_a_prolog_without_a_list_drains_nothing_and_judges():
    done = doctor("--prolog", "--limit", "60s")
    assert (done.returncode, done.stdout.partition(": ")[0]) == (0, "no drain"), done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--drain-on", "port_stat"), "--drain-on: no check 'port_stat'. Did you mean 'port_state'?"),
        (("--accept", "absent.yaml"), "--accept absent.yaml cannot be read: No such file or directory"),
    ],
)
def test_a_prolog_takes_no_node_away_for_a_file_that_is_gone_or_a_name_that_an_update_changed(words, why):
    """Slurm drains a node whose Prolog ends with anything but 0: with 2 a whole cluster would be gone."""
    done = doctor("--prolog", "--limit", "60s", *words)
    assert (done.returncode, done.stdout) == (0, f"not judged: {why}; this node stays as it is\n")
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quick", "--deep"), "exclude each other"),
        (("--limit", "5s"), "--limit has no effect without --prolog"),
        (("--prolog", "--limit", "2s"), "--limit must be 3s or more, which the facts alone may take"),
        (("--quick", "--drain-on", "no_check"), "no check 'no_check'"),
        (("--quick", "--out", "folder"), "--out has no effect on facts alone"),
        (("--prolog", "--device", "cpu"), "--device has no effect on facts alone"),
        (("--prolog", "--hosts", "a,b"), "--hosts has no effect with --prolog"),
        (("--quick", "--launch", "mpirun -n 2"), "it does not say on which hosts"),
        (("--quick", "--launch", "make -n 2"), "can be started again on fewer hosts"),
        (("--launch", "mpirun -host a,b", "--hosts", "a"), "--launch names the hosts"),
        (("--quick", "--accept", "absent.yaml"), "--accept absent.yaml cannot be read"),
        (("--quick", "--num-nodes", "2"), "--num-nodes 2 needs as many hosts, but there are 1"),  # was HEALTHY, of one
        (("--quick", "--hosts", ""), "must be names of hosts, as a,b or n[1-4]"),  # was this host
        (("--quick", "--hosts", "n[1-"), "'n[1-' is no list of hosts"),  # was two hosts
        (("--prolog", "--drain-on", ""), "must be names of checks, as port_state,xid, not ''"),  # never drained
        (("--list", "--quick"), "--quick has no effect with --list"),
        (("--list", "--json", "said.json"), "--json has no effect with --list"),  # wrote no file
        (("--list", "--log", "dmesg.txt"), "--log has no effect with --list"),
        (("--quick", "--json", "said", "--junit", "said"), "--junit said is the file of --json; name another one"),
        (("--quick", "--json", "."), "--json . cannot be written: Is a directory"),  # was said when all was looked at
    ],
)
def test_a_mistake_in_the_command_line_is_named(words, message):
    done = CliRunner().invoke(main, ["doctor", *words], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_the_words_of_a_process_are_those_that_it_was_asked_with():
    lost = ("n3=no route",)
    asked = Asked("deep", drain_on="port_state", page=Path("p.html"), num_nodes=2, not_reached=lost, hosts=("n1", "n2"))
    words = ["--deep", "--drain-on", "port_state", "--page", "p.html", "--num-nodes", "2", "--not-reached", *lost]
    assert asked.words == ["doctor", *words]


def test_a_host_that_was_not_reached_is_an_error_of_it(tmp_path):
    examination = with_lost(examined(tmp_path, n1=healthy()), ["n2=ssh n2: Connection refused"])
    assert (examination.word, examination.hosts) == ("SUSPECT", ("n1", "n2"))
    assert "  error    was not reached [not_reached]\n           evidence  ssh n2: Connection refused" in text(
        examination
    )


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """An ssh that runs the command here; ``down`` answers as a host that is off."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nhost=$1; shift\n'
        '[ "$host" = down ] && { echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }\n'
        'case "$host:$*" in\n'
        'broken:*clusterbench*) echo "No module named psutil" >&2; exit 1;;\n'
        "late:*) exec sleep 100;;\n"
        "esac\n"
        'exec sh -c "$*"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_hosts_are_tried_and_the_one_that_is_down_is_named(ssh):
    reached = over_ssh.reach(["here", "down"])
    assert reached.hosts == ("here",)
    assert reached.why_not == {"down": "ssh: connect to host down port 22: No route to host"}


def test_a_host_where_clusterbench_does_not_start_is_named_and_the_others_are_examined(ssh):
    done = doctor("--quick", "--hosts", "here,broken")
    assert "evidence  ssh broken: No module named psutil" in done.stdout, done.stderr


def test_a_host_that_stalls_is_not_waited_for(ssh, monkeypatch):
    monkeypatch.setattr(over_ssh, "SECONDS_TO_ANSWER", 0.5)
    assert over_ssh.reach(["late"]).why_not == {"late": "no answer within 0.5 s"}


def test_a_login_shell_has_nothing_to_read_but_words_and_the_head_is_named_without_a_user(monkeypatch):
    # tcsh knows neither 'read' nor 'export'.
    monkeypatch.setattr(over_ssh.own_copy, "command", lambda *_: ["sh", "-c", "echo $CLUSTERBENCH_SECRET $MASTER_ADDR"])
    command = over_ssh._command(1, 2, "admin@n1", 20000, ["doctor"])
    words = shlex.split(command)
    assert (command, words[:3], len(words)) == (shlex.join(words), ["exec", "sh", "-c"], 4)
    done = subprocess.run(["sh", "-c", command], input="of this run\n", capture_output=True, text=True, check=True)
    assert done.stdout == "of this run n1\n"


NO_HEAD = "echo 'error: agent 3 (host d) did not find the head at a' >&2; echo 'hint: is a' >&2; exit 1"


def commands(monkeypatch, *of_ranks: str) -> None:
    monkeypatch.setattr(over_ssh, "_command", lambda rank, *_: of_ranks[rank])


def test_a_process_that_stays_behind_is_ended_when_the_head_has_ended(ssh, monkeypatch):
    monkeypatch.setattr(over_ssh, "SECONDS_TO_END", 0.2)
    commands(monkeypatch, "echo healthy; exit 1", "sleep 100", "echo no such file >&2; exit 9", NO_HEAD)
    ended = over_ssh.start_on(["a", "b", "c", "d"], ["doctor"])
    assert (ended.code, ended.said) == (1, "healthy\n")
    assert ended.failed == {
        "b": "did not end",
        "c": "no such file",
        "d": "error: agent 3 (host d) did not find the head at a",
    }


def test_of_a_head_that_does_not_start_the_others_are_not_accused(ssh, monkeypatch):
    commands(monkeypatch, "exit 9", NO_HEAD)
    assert over_ssh.start_on(["a", "b"], ["doctor"]) == over_ssh.Ended(9, "", {"a": "exit code 9"})


def test_hosts_that_answered_and_cannot_be_joined_are_left_out_and_the_others_are_examined(monkeypatch, capsys):
    """One of many with a full disk, or behind a wall, costs its own answer."""
    asked = []

    def start_on(hosts, words):
        asked.append((hosts, [word for word in words if "=ssh" in word]))
        failed = {"a": "exit code 9"} if "a" in hosts else {"c": "no such file"} if "c" in hosts else {}
        return over_ssh.Ended(1, "" if failed else "healthy\n", failed)

    monkeypatch.setattr(verb, "reach", lambda hosts: over_ssh.Reached(("a", "b", "c"), {"down": "no route"}))
    monkeypatch.setattr(verb, "start_on", start_on)
    assert verb._over_ssh(Asked("quick"), ["a", "b", "c", "down"], lambda examination: 0) == 1
    down, first, third = "down=ssh down: no route", "a=ssh a: exit code 9", "c=ssh c: no such file"
    assert asked == [
        (("a", "b", "c"), [down]),
        (("b", "c"), [down, first]),
        (("b",), [down, first, third]),
    ]
    said = capsys.readouterr()
    assert said.out == "healthy\n"
    assert said.err.splitlines() == [
        "a: exit code 9",
        "started again without a",
        "c: no such file",
        "started again without c",
    ]


def test_one_host_over_ssh_is_examined_and_the_other_reported(ssh):
    done = doctor("--quick", "--hosts", "here,down")
    assert done.returncode == 1, done.stderr
    assert "evidence  ssh down: ssh: connect to host down port 22: No route to host" in done.stdout


def test_a_host_that_is_left_out_is_not_tried(ssh):
    done = doctor("--quick", "--hosts", "here,down", "--exclude", "down")
    assert "not_reached" not in done.stdout, done.stderr
    assert "leaves none of the hosts" in doctor("--quick", "--hosts", "down", "--exclude", "down").stderr


def test_where_no_host_is_reached_that_is_found_and_written_as_where_some_are(ssh, tmp_path):
    done = doctor("--quick", "--hosts", "down", "--json", str(tmp_path / "said.json"))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("SUSPECT: 1 error on 1 of 1 host")
    assert "evidence  ssh down: ssh: connect to host down port 22: No route to host" in done.stdout
    said = json.loads((tmp_path / "said.json").read_text())
    assert [(found["name"], found["hosts"]) for found in said["found"]] == [("not_reached", ["down"])]


def test_the_secret_stands_in_no_command_line():
    command = over_ssh._command(1, 2, "n1", 21_000, ["doctor"])
    assert command.startswith("exec sh -c 'read -r CLUSTERBENCH_SECRET; export CLUSTERBENCH_SECRET; ")
    assert "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=n1 MASTER_PORT=21000" in command


def test_without_ssh_the_other_way_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="there is no ssh on this host"):
        over_ssh.reach(["n1"])


def planned(num_nodes):
    """Benchmarks that the short probes plan on so many nodes of eight H100, and those that are refused."""
    words = [
        "plan",
        str(Asked("short").suite),
        "--gpu",
        "NVIDIA H100 80GB HBM3",
        "--num-nodes",
        str(num_nodes),
        "--json",
    ]
    done = subprocess.run([sys.executable, "-m", "clusterbench", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("num_nodes", "refused"), [(4, set()), (1, {"link_matrix"})])
def test_the_short_probes_judge_products_copies_links_and_reductions_within_and_across_hosts(num_nodes, refused):
    plan = planned(num_nodes)
    probes = {"matmul", "device_copy", "host_copy", "cpu_memory", "peer_copy", "link_matrix", "all_reduce"}
    assert {case["benchmark"] for case in plan["cases"]} == (probes | {"hierarchical_all_reduce"}) - refused
    assert {each["benchmark"] for each in plan["refusals"]} == refused
