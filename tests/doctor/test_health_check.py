"""The HealthCheckProgram of docs/doctor.md, with a doctor and a Slurm of three lines each."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"
SHOWN = "   Reason={} [root@2027-01-01T00:00:00]"
OURS = SHOWN.format("clusterbench: mlx5_3 port 1: is DOWN [port_state]")


def script() -> str:
    """As it stands in the page."""
    (text,) = re.findall(r"```sh\n(#!/bin/sh\n# HealthCheckProgram.*?)```", DOCS.read_text(), re.DOTALL)
    return text


@pytest.fixture
def act(tmp_path):
    """What the script does to node cb1 when the doctor is this and Slurm shows that reason; its exit code is 0."""

    def program(name, lines):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)

    def ran(doctor, reason=OURS):
        program("scontrol", f'[ "$1" = show ] && echo "{reason}" || echo "$@" >> {tmp_path}/done')
        if doctor:
            program("clusterbench", doctor)
        environment = {"PATH": f"{tmp_path}:{os.defpath}", "SLURMD_NODENAME": "cb1"}
        subprocess.run(["sh", "-c", script()], env=environment, check=True, timeout=20)
        done = tmp_path / "done"
        return done.read_text().strip() if done.exists() else ""

    return ran


def test_a_finding_drains_with_its_line_as_the_reason(act):
    done = act("echo 'drain: mlx5_3 port 1: is DOWN [port_state]'; exit 1", reason="")
    assert done == "update nodename=cb1 state=drain reason=clusterbench: mlx5_3 port 1: is DOWN [port_state]"


def test_nothing_found_returns_a_node_that_the_doctor_drained(act):
    assert act("echo 'no drain: HEALTHY: in order: 70 checks'") == "update nodename=cb1 state=resume"


@pytest.mark.parametrize("reason", ["", SHOWN.format("memory is replaced")])
def test_a_node_that_someone_else_drained_or_nobody_stays_as_it_is(act, reason):
    assert act("echo 'no drain: HEALTHY: in order: 70 checks'", reason) == ""


@pytest.mark.parametrize(
    "doctor",
    [
        "echo 'not judged: no answer within 20 s; this node stays as it is'",
        "echo 'not judged: port_state: state is not there; this node stays as it is'",
        "echo 'unknown check' >&2; exit 2",
        "echo Traceback >&2; exit 1",
        "kill -9 $$",
        None,
    ],
    ids=["late", "not judged", "exit 2", "traceback", "killed", "no such program"],
)
@pytest.mark.parametrize("reason", ["", OURS], ids=["idle", "drained"])
def test_a_doctor_without_an_answer_neither_drains_nor_returns(act, doctor, reason):
    assert act(doctor, reason) == ""
