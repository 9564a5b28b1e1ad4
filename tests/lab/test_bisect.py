"""The host behind a slow cable is found from a run in which nobody was named, by running parts of the hosts."""

import json
import shlex

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
