"""Starts one agent on each of some hosts over ssh, where no launcher is at hand.

The hosts are tried first, so that one that is down costs its own answer only. The secret of the run goes through ssh's
standard input: a command line can be read by every user of a host.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from clusterbench import own_copy
from clusterbench.errors import LaunchError
from clusterbench.launchers import SECRET_VARIABLE
from clusterbench.words import few

SECONDS_TO_CONNECT = 5
SECONDS_TO_ANSWER = 15.0
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SECONDS_TO_CONNECT}")
_AT_ONCE = 64
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Reached:
    """Hosts on which a process can be started, and of the others why not."""

    hosts: tuple[str, ...]
    why_not: Mapping[str, str]


def reach(hosts: Sequence[str]) -> Reached:
    """Tries each host; all at once, for at most :data:`SECONDS_TO_ANSWER`.

    Raises
    ------
    LaunchError
        If there is no ssh here.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        why = dict(zip(hosts, threads.map(_why_not, hosts), strict=True))
    return Reached(tuple(host for host in hosts if not why[host]), {host: said for host, said in why.items() if said})


def _why_not(host: str) -> str:
    answer = "clusterbench can be started here"
    command = shlex.join([sys.executable, "-c", f"print({answer!r})"])
    try:
        done = subprocess.run(
            [*_SSH, host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS_TO_ANSWER,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(
            "there is no ssh on this host.\nhint: a launcher (mpirun, srun, torchrun) can start the doctor on hosts too"
        ) from None
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS_TO_ANSWER:g} s"
    if answer in done.stdout:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return said[:200]


def start_on(hosts: Sequence[str], words: Sequence[str]) -> int:
    """Runs ``clusterbench`` with these words on every host, joined into one run, and gives the head's exit code.

    The first host's output is passed on; what the others say only if the run fails.
    """
    secret = secrets.token_hex(32)
    port = _FIRST_PORT + secrets.randbelow(_NUM_PORTS)
    started = [
        subprocess.Popen(
            [*_SSH, host, _command(rank, len(hosts), hosts[0], port, words)],
            stdin=subprocess.PIPE,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{secret}\n")
                process.stdin.flush()
        said = [process.communicate()[1] for process in started]
    finally:
        for process in started:
            process.terminate()
    codes = [process.returncode for process in started]
    if codes[0] > 1:
        others = {host: text for host, text in zip(hosts[1:], said[1:], strict=True) if text}
        for host, text in others.items():
            print(f"{host}: {text.strip().splitlines()[-1]}", file=sys.stderr)
    failed = [host for host, code in zip(hosts, codes, strict=True) if code not in (0, 1)]
    if failed and codes[0] in (0, 1):
        raise LaunchError(f"the processes on {few(failed)} ended with another exit code than 0 and 1")
    return codes[0]


def _command(rank: int, size: int, head: str, port: int, words: Sequence[str]) -> str:
    """One shell line: reads the secret, then becomes the agent, in the folder that this process is in."""
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": head, "MASTER_PORT": port}
    given = [f"{name}={value}" for name, value in variables.items()]
    agent = ["env", *given, *own_copy.command("clusterbench", *words)]
    folder = shlex.quote(os.getcwd())
    return f"read -r {SECRET_VARIABLE}; export {SECRET_VARIABLE}; cd {folder} 2>/dev/null; exec {shlex.join(agent)}"
