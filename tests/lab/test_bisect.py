"""The hosts that a failing case needs are found by running parts of its hosts."""

import json
import shlex
import signal
import subprocess

import pytest

from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.timeout(400)]

HOSTS, CULPRIT = ["cb1", "cb2", "cb3"], "cb2"
CASE = "all_reduce/3n3/256KiB-float32"
SUITE = """
suite: slow
benchmarks:
  - {benchmark: all_reduce, min_size: 256KiB, max_size: 256KiB, iterations: 4, warmup: 1, at_least: {busbw: 10 MB/s}}
"""


@pytest.mark.in_turn
def test_the_host_behind_a_slow_cable_is_named(lab, tmp_path):
    if reason := launchers.why_not_mpich():
        pytest.skip(reason)
    launcher = launchers.mpich(lab, HOSTS, 1)
    run = ("-m", "clusterbench.cli", "run")
    (tmp_path / "s.yaml").write_text(SUITE)
    lab.shape(CULPRIT, "8mbit")
    first = launcher.command(*run, str(tmp_path / "s.yaml"), "--out", str(tmp_path / "run"))
    assert lab.run(LOGIN, first, env=launcher.environment, timeout=120).returncode == 1
    words = [*run, "--resume", str(tmp_path / "run"), "--bisect", CASE, "--launch", shlex.join(launcher.prefix)]
    done = lab.run(LOGIN, [launcher.python, *words], env=launcher.environment, timeout=250)
    assert done.returncode == 1, done.stderr
    assert done.stdout == (
        f"{CULPRIT}: {CASE} failed in 3 of 3 runs with it. Without {CULPRIT} it ended well on cb1, cb3.\n"
        f"hint: leave out {CULPRIT} with --exclude {CULPRIT}\n"
    )
    found = json.loads((tmp_path / "run-bisect" / "bisect.json").read_text())
    assert [(run["hosts"], run["ended"]) for run in found["runs"]] == [
        (["cb1", "cb2", "cb3"], "failed"),
        (["cb1", "cb2"], "failed"),
        (["cb1", "cb3"], "ok"),
        (["cb2", "cb3"], "failed"),
    ]
    assert lab.left_running(within_s=60) == {}


HANG = """
suite: hang
benchmarks: [{benchmark: fault_drill, sleep_s: 0.01, iterations: 4, warmup: 1, time_limit_s: 5}]
"""
HANGS_ON_A_HOST = f"""
import os, signal, socket, sys, time
from types import SimpleNamespace
if "clusterbench.launch.zygote" in sys.orig_argv and socket.gethostname() == "{CULPRIT}":
    from clusterbench.benchmarks import fault_drill
    stop = lambda seconds: os.kill(os.getpid(), signal.SIGSTOP)
    fault_drill.time = SimpleNamespace(sleep=stop, perf_counter=time.perf_counter)
"""


@pytest.mark.in_turn
def test_the_host_on_which_workers_hang_is_named_also_by_a_search_that_was_interrupted(lab, tmp_path):
    if reason := launchers.why_not_mpich():
        pytest.skip(reason)
    launcher = launchers.mpich(lab, HOSTS, 1)
    (tmp_path / "s.yaml").write_text(HANG)
    (tmp_path / "sitecustomize.py").write_text(HANGS_ON_A_HOST)
    run, environment = ("-m", "clusterbench.cli", "run"), {**launcher.environment, "PYTHONPATH": str(tmp_path)}
    first = launcher.command(*run, str(tmp_path / "s.yaml"), "--out", str(tmp_path / "run"))
    assert lab.run(LOGIN, first, env=environment, timeout=120).returncode == 1
    case = "fault_drill/3n3/none-in-run"
    words = [*run, "--resume", str(tmp_path / "run"), "--bisect", case, "--launch", shlex.join(launcher.prefix)]
    search = lab.login([launcher.python, *words], env=environment, stderr=subprocess.PIPE, text=True)
    said = []
    while not said or not said[-1].startswith("bisect: run 1, "):
        said.append(search.stderr.readline())
        assert said[-1], "".join(said)
    search.send_signal(signal.SIGTERM)
    _, rest = search.communicate(timeout=120)
    assert search.returncode == 3
    assert "bisect: stopped: it was interrupted by SIGTERM; no host is named. The same command goes on; " in rest
    assert lab.left_running(within_s=60) == {}
    done = lab.run(LOGIN, [launcher.python, *words], env=environment, timeout=250)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(
        f"{CULPRIT}: {case} failed in 3 of 3 runs with it. Without {CULPRIT} it ended well on "
    )
    assert f"bisect: goes on after the 1 run of {tmp_path}/run-bisect; " in done.stderr
    found = json.loads((tmp_path / "run-bisect" / "bisect.json").read_text())
    answers = [(run["hosts"], run["ended"]) for run in found["runs"] if run["ended"] != "not run"]
    assert answers == [
        (["cb1", "cb2", "cb3"], "failed"),
        (["cb1", "cb2"], "failed"),
        (["cb1", "cb3"], "ok"),
        (["cb2", "cb3"], "failed"),
    ]
    assert lab.left_running(within_s=60) == {}
