"""Runs external programs beside a case: found or skipped, ended with the worker, quoted when they fail."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterbench.errors import NotHere, ToolError

LINES_QUOTED = 8
SECONDS_TO_LISTEN = 20.0
SECONDS_TO_END = 5.0
_PR_SET_PDEATHSIG = 1
_LISTENING = "0A"


@dataclass(frozen=True)
class Finished:
    """What a program left: both streams in one text, its exit code, and the seconds it ran."""

    text: str
    exit_code: int
    elapsed_s: float


def find_tool(name: str, install: str) -> str:
    """The path of a program.

    Raises
    ------
    NotHere
        With ``install``, the sentence that says how to get it.
    """
    if (path := shutil.which(name)) is None:
        raise NotHere(f"{name} is not on PATH on {socket.gethostname()}.\nhint: {install}")
    return path


def run_tool(words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Runs a program to its end; it is killed with this process.

    Raises
    ------
    ToolError
        If it cannot be started, ends with another exit code than 0, or has not ended after ``timeout_s`` seconds;
        with its command and the last lines it printed.
    """
    start_s = time.monotonic()
    process = _start(words, environment)
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        text, _ = process.communicate()
        raise ToolError(_said(f"has not ended after {timeout_s:g} s", words, text)) from None
    finally:
        _end(process)
    if process.returncode != 0:
        raise ToolError(_said(_ended(process.returncode), words, text))
    return Finished(text, process.returncode, time.monotonic() - start_s)


@contextmanager
def serving(words: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs a server while the context is open, which is entered once it listens on ``port``. It is then ended.

    The kernel's table is read to see that; connecting would be taken for the client.

    Raises
    ------
    ToolError
        If it ends before it listens, or does not listen within some seconds.
    """
    process = _start(words, environment)
    try:
        deadline = time.monotonic() + SECONDS_TO_LISTEN
        while not listens(port):
            if process.poll() is not None:
                raise ToolError(_said(_ended(process.returncode), words, process.communicate()[0]))
            if time.monotonic() > deadline:
                _end(process)
                late = f"does not listen on port {port} after {SECONDS_TO_LISTEN:g} s"
                raise ToolError(_said(late, words, process.communicate()[0]))
            time.sleep(0.02)
        yield
    finally:
        _end(process)


def listens(port: int) -> bool:
    """Whether any process of this host (of this network namespace) listens on a TCP port."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == _LISTENING:
                return True
    return False


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _start(words: Sequence[str], environment: Mapping[str, str] | None) -> subprocess.Popen[str]:
    libc = ctypes.CDLL(None)  # loaded before the fork, used after it
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except OSError as error:
        raise ToolError(f"{words[0]} cannot be started: {error.strerror}") from None


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a program and all it started; they are a session of their own."""
    if process.poll() is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            try:
                process.wait(SECONDS_TO_END)
                return
            except subprocess.TimeoutExpired:
                continue


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"ended with exit code {exit_code}"


def _said(what: str, words: Sequence[str], text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    quoted = "".join(f"\n    {line[:200]}" for line in lines[-LINES_QUOTED:])
    name = os.path.basename(words[0])
    said = f"It printed at the end:{quoted}" if lines else "It printed nothing."
    return f"{name} on {socket.gethostname()} {what}. {said}\n    command: {shlex.join(words)}"
