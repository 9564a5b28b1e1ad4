"""Starts and reaps the helpers of an agent: zygotes and the telemetry reader.

It exists because the agent may be an MPI rank, and forking one of those is forbidden on many fabrics. The spawner is
started before MPI is, with an environment free of launchers; it imports nothing heavy and owns no state. When its agent
goes, however that happens, so does it, and so do its children, each of which ends with its own channel to the agent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterbench import own_copy
from clusterbench.launch.channel import Channel
from clusterbench.launch.lines import decode_spawn

SECONDS_TO_LEAVE = 2.0
"""For zygotes to end what their workers started, once the agent is gone."""

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` does not live any more, even after ``kill -9``."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(1)


def wake_when_it_dies() -> None:
    """Takes back :func:`die_with`: the parent's end only wakes this process, should it be stopped (SIGSTOP)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def end_group(leader: int) -> None:
    """Kills a process and all that it started: a data loader's children would keep the GPU, ports and memory."""
    for kill in (os.killpg, os.kill):  # in its first moments it has no group of its own
        with suppress(ProcessLookupError):
            kill(leader, signal.SIGKILL)


def start_module(
    module: str, arguments: Sequence[str], channel: socket.socket, errors: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A Python process running ``module`` of this copy of the package, in a session of its own.

    ``channel`` is its standard input and output.
    """
    return subprocess.Popen(
        own_copy.command(module, *arguments),
        stdin=channel.fileno(),
        stdout=channel.fileno(),
        stderr=errors,
        env=dict(environment),
        start_new_session=True,  # a Ctrl-C at the terminal is the agent's to handle
    )


def main() -> None:
    die_with(int(sys.argv[1]))
    agent = Channel(socket.socket(fileno=0), decode_spawn)
    children: list[subprocess.Popen[bytes]] = []
    while not agent.closed:
        for order in agent.receive(wait=True):
            channel_descriptor, errors = order.descriptors
            with socket.socket(fileno=channel_descriptor) as channel:
                environment = {**os.environ, **order.environment}
                children.append(start_module(order.module, order.arguments, channel, errors, environment))
            os.close(errors)
        children = [child for child in children if child.poll() is None]
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


if __name__ == "__main__":
    main()
