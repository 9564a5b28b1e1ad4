"""Flux: its hosts are asked of the program 'flux', here one of a few lines."""

import os

import pytest

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launchers import launchers

FLUX = launchers()["flux"]
PROCESS = {
    "FLUX_JOB_ID": "ƒ3ETxsR9H",
    "FLUX_TASK_RANK": "5",
    "FLUX_JOB_SIZE": "8",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_NNODES": "2",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_FD": "9",
}
PLACE = (5, 8, 1)
"""What it puts into a process that it starts, as documented, and that process's rank, size and local rank."""


@pytest.fixture
def flux(tmp_path):
    """Puts a 'flux' on PATH that answers as flux-hostlist(1) does."""

    def answering(answer):
        program = tmp_path / "flux"
        program.write_text(f'#!/bin/sh\n[ "$*" = "hostlist local" ] || exit 2\n{answer}\n')
        program.chmod(0o755)
        return {"FLUX_URI": "local:///run/flux/local", "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    return answering


def test_its_hosts_are_those_of_the_job_or_of_the_instance(flux):
    assert FLUX.hosts(flux("echo fluke[3,6-7]")) == ["fluke3", "fluke6", "fluke7"]
    assert FLUX.head(flux("echo fluke[3,6-7]")) == "fluke3"


@pytest.mark.parametrize("answer", ["echo 'flux-hostlist: ERROR: job not found' >&2; exit 1", "echo"])
def test_where_flux_does_not_answer_a_variable_may(flux, answer):
    environment = flux(answer)
    assert FLUX.hosts(environment) == []
    assert FLUX.head({**environment, "MASTER_ADDR": "a"}) == "a"
    with pytest.raises(LaunchError, match="flux run started this process, but nothing says on which host rank 0 is"):
        FLUX.head(environment)


def test_outside_of_flux_it_is_not_asked():
    assert FLUX.hosts({"PATH": os.environ["PATH"]}) == []


def test_it_is_started_again_on_the_hosts_of_its_allocation_that_are_left(flux, tmp_path):
    command = LaunchCommand.parse("flux run -n8", flux("echo n[1-4]"))
    assert list(command.hosts) == ["n1", "n2", "n3", "n4"]
    assert " ".join(command.on(["n1", "n4"], tmp_path)) == "flux run --nodes=2 --requires=host:n1,n4 -n4"
    assert " ".join(command.alone_on("n4", tmp_path)) == "flux run --nodes=1 --requires=host:n4 -n1"


@pytest.mark.parametrize("constraint", ["gpu", "rank:0", "host:a and gpu", "-host:a"])
def test_a_constraint_that_is_more_than_hosts_is_refused(constraint):
    with pytest.raises(SuiteError) as caught:
        LaunchCommand.parse(f"flux run -N2 '--requires={constraint}'", {})
    assert str(caught.value).endswith(
        "it does not say on which hosts.\nhint: --requires=host:a,b, or start it inside flux alloc"
    )
