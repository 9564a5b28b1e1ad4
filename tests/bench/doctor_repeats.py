"""The doctor on this machine, again and again: what it finds here that is not there.

``python -m tests.bench.doctor_repeats 5`` does it five times. What ``doctor --quick`` finds before is left out: the
host's files say it of this machine whatever runs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.bench import Result, at_most

REPEATS = 50


def measure(repeats: int = REPEATS) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        known = _found(Path(folder), "known", "--quick")
        runs = [_found(Path(folder), f"run{number}") - known for number in range(repeats)]
    ill = sum(bool(found) for found in runs)
    return [
        at_most("doctor_repeats", ill, "runs", 0, note(repeats, ill, Counter(name for run in runs for name, _ in run)))
    ]


def note(repeats: int, ill: int, names: Counter[str]) -> str:
    """How many runs found something, and how often at most it may be.

    >>> note(50, 0, Counter())
    'of 50 with a finding of warning or worse: none; the rate is below 5.8 % with 95 %'
    >>> note(50, 1, Counter({"straggler": 1}))
    'of 50 with a finding of warning or worse: straggler 1; the rate is below 9.1 % with 95 %'
    """
    words = ", ".join(f"{name} {count}" for name, count in names.most_common()) or "none"
    most = f"the rate is below {bound(repeats, ill):.1%} with 95 %".replace("%", " %", 1)
    return f"of {repeats} with a finding of warning or worse: {words}; {most}"


def bound(repeats: int, ill: int) -> float:
    """The highest rate at which so few of the runs being ill is not rarer than 5 % (Clopper and Pearson).

    Of none it is about 3 / repeats, the rule of three.

    >>> round(bound(100, 0), 4), round(bound(20, 1), 4)
    (0.0295, 0.2161)
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        chance = sum(math.comb(repeats, k) * rate**k * (1 - rate) ** (repeats - k) for k in range(ill + 1))
        low, high = (rate, high) if chance > 0.05 else (low, rate)
    return high


def _found(folder: Path, name: str, *words: str) -> set[tuple[str, str]]:
    """Name and place of what counts in one run."""
    out = folder / f"{name}.json"
    words = words or ("--out", str(folder / name))
    command = [sys.executable, "-m", "clusterbench", "doctor", *words, "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        raise RuntimeError(f"the doctor ended with exit code {done.returncode}: {done.stderr[-500:]}")
    found = json.loads(out.read_text())["found"]
    return {(each["name"], each["where"]) for each in found if each["severity"] != "note"}


if __name__ == "__main__":
    for result in measure(*map(int, sys.argv[1:])):
        print(f"{result.name}: {result.value:g} {result.unit} {result.note}")
        sys.exit(1 if result.verdict == "missed" else 0)
