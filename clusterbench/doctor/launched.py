"""The doctor under a launcher that it starts itself: ``clusterbench doctor --launch 'mpirun -n 2 -host a,b'``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from clusterbench import own_copy
from clusterbench.engine.scratch import scratch_folder
from clusterbench.errors import LaunchError
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launch.supervisor import hosts_that_answer


def start_under(command: str, words: Sequence[str]) -> int:
    """Runs ``clusterbench`` with these words on every host of the command that answers, and gives the exit code.

    Each host is tried by itself first: a launcher that cannot reach one starts none. Those that do not answer are
    handed on, for the doctor to name.

    Raises
    ------
    SuiteError
        If the command is mistaken.
    LaunchError
        If a launcher started this process, no host answers, or the launcher fails.
    """
    launch = LaunchCommand.parse(command, os.environ)
    with scratch_folder("launch") as scratch:
        alive = hosts_that_answer(launch, list(launch.hosts), Path(scratch))
        if not alive:
            raise LaunchError(f"--launch {command!r} can start a process on none of its hosts.")
        program = launch.launcher.program
        lost = [host for host in launch.hosts if host not in alive]
        said = [word for host in lost for word in ("--not-reached", f"{host}={program} starts no process there")]
        full = [*launch.on(alive, Path(scratch)), *own_copy.command("clusterbench", *words, *said)]
        try:
            code = subprocess.run(full, stdin=subprocess.DEVNULL, check=False).returncode
        except OSError as error:
            raise LaunchError(f"{full[0]} cannot be started: {error.strerror}") from None
    if code not in (0, 1):
        raise LaunchError(f"{program} ended with exit code {code}")
    return code
