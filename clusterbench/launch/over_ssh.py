"""Starts one agent on each of some hosts over ssh, where no launcher is at hand.

The hosts are tried first, so that one that is down costs its own answer only. The secret of the run goes through ssh's
standard input: a command line can be read by every user of a host.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

from clusterbench import own_copy
from clusterbench.errors import LaunchError
from clusterbench.launch.rendezvous import FOUND_NO_HEAD
from clusterbench.launchers import SECRET_VARIABLE

SECONDS_TO_CONNECT = 5
SECONDS_TO_ANSWER = 30.0
"""Python reads the package meanwhile, perhaps over a network that many hosts read at once."""
SECONDS_TO_END = 10.0
"""For the other hosts, once the head has ended."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SECONDS_TO_CONNECT}")
_USUAL = (0, 1)
_AT_ONCE = 64
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Reached:
    """Hosts on which this copy of clusterbench can be started, and of the others why not."""

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
    # All that the doctor imports, and nothing more: a host that lacks a package would keep the others waiting.
    command = shlex.join(own_copy.command("clusterbench.doctor.verb"))
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
    return "" if done.returncode == 0 else _last_line(done.stderr) or f"exit code {done.returncode}"


@dataclass(frozen=True)
class Ended:
    """How a run on some hosts ended.

    Attributes
    ----------
    code
        The exit code of the head, which is the first host.
    said
        What it printed; nothing where the hosts did not meet.
    failed
        Hosts whose process failed, did not find the head, or did not end with it, each with its last line.
    """

    code: int
    said: str
    failed: Mapping[str, str]


def start_on(hosts: Sequence[str], words: Sequence[str]) -> Ended:
    """Runs ``clusterbench`` with these words on every host, joined into one run; the head's stderr is passed on."""
    secret = secrets.token_hex(32)
    port = _FIRST_PORT + secrets.randbelow(_NUM_PORTS)
    with ExitStack() as files:
        # Files and not pipes: nobody has to read them, and what a host leaves running cannot hold them open.
        messages = [files.enter_context(TemporaryFile("w+", encoding="utf-8", errors="replace")) for _ in hosts]
        said = files.enter_context(TemporaryFile("w+", encoding="utf-8", errors="replace"))
        started = [
            subprocess.Popen(
                [*_SSH, host, _command(rank, len(hosts), hosts[0], port, words)],
                stdin=subprocess.PIPE,
                stdout=said if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else messages[rank],
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        try:
            for process in started:
                assert process.stdin is not None
                with suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(f"{secret}\n")
            _wait(started)
        finally:
            late = [process for process in started if process.poll() is None]
            for process in late:
                process.kill()
                process.wait()
        for file in (said, *messages):
            file.seek(0)
        code = started[0].returncode
        if code not in _USUAL:  # of the others each says that it found no head
            return Ended(code, said.read(), {hosts[0]: f"exit code {code}"})
        failed = {}
        for host, process, file in [*zip(hosts, started, messages, strict=True)][1:]:
            last = _last_line(file.read(), FOUND_NO_HEAD)
            if process in late:
                failed[host] = "did not end"
            elif process.returncode not in _USUAL or FOUND_NO_HEAD in last:
                failed[host] = last or f"exit code {process.returncode}"
        return Ended(code, said.read(), failed)


def _wait(started: Sequence[subprocess.Popen[str]]) -> None:
    """Until the head has ended, and then a little for the others."""
    head, *others = started
    head.wait()
    end_s = time.monotonic() + SECONDS_TO_END
    for process in others:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(end_s - time.monotonic(), 0.0))


def _last_line(text: str, telling: str = "") -> str:
    """The last line that is not empty, or the last that has ``telling`` in it."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return next((line for line in reversed(lines) if telling in line), lines[-1])[:200]


def _command(rank: int, size: int, head: str, port: int, words: Sequence[str]) -> str:
    """One line for a login shell of any kind: reads the secret, then becomes the agent, in this process's folder."""
    name = head.rpartition("@")[2]  # less a user's
    variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": name, "MASTER_PORT": port}
    given = [f"{name}={value}" for name, value in variables.items()]
    agent = ["env", *given, *own_copy.command("clusterbench", *words)]
    folder = shlex.quote(os.getcwd())
    line = f"read -r {SECRET_VARIABLE}; export {SECRET_VARIABLE}; cd {folder} 2>/dev/null; exec {shlex.join(agent)}"
    return shlex.join(["exec", "sh", "-c", line])
