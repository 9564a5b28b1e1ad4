"""The doctor as a scheduler's health check: it always ends in time, and drains for nothing that the site did not list.

A node is taken away only for what was found. What could not be judged, a doctor that fails and one that is late leave
it where it is, and say so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clusterbench import own_copy
from clusterbench.checks import checks
from clusterbench.doctor import Examination
from clusterbench.doctor.text import verdict
from clusterbench.errors import SuiteError, nearest
from clusterbench.launchers import without_launchers
from clusterbench.terminal import tell

DRAIN, NO_DRAIN, NOT_JUDGED = "drain: ", "no drain: ", "not judged: "
"""How its one line begins. A script acts on the first two alone."""
NONE = "none"
"""In place of the names of checks."""
SECONDS_TO_END = 0.5
_ERROR = "error: "
MOST_OF_A_REASON = 200
"""Characters of a drain's reason: Slurm's sinfo cuts what is longer."""


def drain_list(text: str) -> tuple[str, ...]:
    """The checks of ``--drain-on A,B``; of ``none`` there is none.

    Raises
    ------
    SuiteError
        If one is no check, or a note, which never takes a node away.
    """
    if text.strip() == NONE:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in checks():
            hint = "hint: 'clusterbench doctor --list' names them"
            raise SuiteError(f"--drain-on: no check '{name}'.{nearest(name, checks())}\n{hint}")
        if checks()[name].severity == "note":
            raise SuiteError(f"--drain-on {name}: it is a note, and a note takes no node away.")
    return names


def reason(examination: Examination, drain_on: Sequence[str]) -> str:
    """Why this node should be drained, in a line; empty where it should not."""
    found = [each for each in examination.found if each.counts and each.name in drain_on]
    line = "; ".join(each.sentence for each in found)
    return line if len(line) <= MOST_OF_A_REASON else f"{line[: MOST_OF_A_REASON - 4]} ..."


def line(examination: Examination, drain_on: Sequence[str]) -> str:
    """The answer in one line: drain and why, no drain, or what of the site's list was not judged."""
    if why := reason(examination, drain_on):
        return f"{DRAIN}{why}"
    unknown = {part.name: part.why for part in examination.not_judged if part.name in drain_on}
    if unknown:
        return _not_judged("; ".join(f"{name}: {why}" for name, why in unknown.items()))
    return f"{NO_DRAIN}{verdict(examination)}"


def within(limit_s: float, words: Sequence[str], spent_s: float = 0.0) -> int:
    """Runs ``clusterbench`` with these words in a process of its own, prints its line, and ends it after the limit.

    Whatever hangs (a driver, a disk) hangs there: this process waits for nothing but time. A finding is what the child
    says with exit code 1 and the line of one: a traceback has that code too. All else is 0, and a line that says so: a
    file that is away for a minute, or a check that has another name since an update, takes no cluster away.
    What a launcher set is kept from the child: it is about this host, and waits for no other rank.

    Parameters
    ----------
    spent_s
        What of the limit is over.
    """
    process = subprocess.Popen(
        own_copy.command("clusterbench", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env=without_launchers(os.environ),
    )
    try:
        said, complained = process.communicate(timeout=max(limit_s - spent_s - SECONDS_TO_END, 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that a driver holds does not even end when killed
            process.wait(SECONDS_TO_END / 2)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        print(_not_judged(f"no answer within {limit_s:g} s"))
        return 0
    if complained:
        tell(complained.rstrip("\n"))
    if said.startswith(DRAIN if process.returncode == 1 else (NO_DRAIN, NOT_JUDGED)):
        print(said, end="")
        return process.returncode
    mistake = next((line.removeprefix(_ERROR) for line in complained.splitlines() if line.startswith(_ERROR)), "")
    print(_not_judged(mistake.rstrip(".") or f"the doctor ended with exit code {process.returncode}"))
    return 0


def age_s() -> float:
    """Seconds since this process was started: Python's own start is part of what a scheduler waits for."""
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def _not_judged(why: str) -> str:
    return f"{NOT_JUDGED}{why}; this node stays as it is"
