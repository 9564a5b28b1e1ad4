"""The doctor as a scheduler's health check: it always ends in time, and drains for nothing that the site did not list.

A node is taken away only for what was found. What could not be judged, a doctor that fails and one that is late leave
it where it is, and say so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from clusterbench import own_copy
from clusterbench.checks import checks
from clusterbench.doctor import Examination
from clusterbench.errors import SuiteError, nearest

SECONDS_TO_END = 0.5
MOST_OF_A_REASON = 200
"""Characters of a drain's reason: Slurm's sinfo cuts what is longer."""


def drain_list(text: str) -> tuple[str, ...]:
    """The checks of ``--drain-on A,B``; none drains for nothing.

    Raises
    ------
    SuiteError
        If one is no check, or a note, which never takes a node away.
    """
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


def within(limit_s: float, words: Sequence[str]) -> int:
    """Runs ``clusterbench`` with these words in a process of its own, ends it after the limit, and judges it.

    Whatever hangs (a driver, a disk) hangs there: this process waits for nothing but time. Exit code 1 is the child's
    answer alone; anything else than 0 and 1, and no answer in time, is 0 and a line that says so.
    """
    process = subprocess.Popen(
        own_copy.command("clusterbench", *words),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that a driver holds does not even end when killed
            process.wait(SECONDS_TO_END)
        print(f"not judged: no answer within {limit_s:g} s; this node stays as it is", file=sys.stderr)
        return 0
    if code not in (0, 1):
        print(f"not judged: the doctor ended with exit code {code}; this node stays as it is", file=sys.stderr)
        return 0
    return code
