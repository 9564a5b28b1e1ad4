"""Blocks under one budget, alone or beside one another; whatever a process does, its block is a row, the rest runs.

``results.json`` and ``table.txt`` are replaced after every process: a session that is killed leaves what it had.
A session in the same folder goes on with it: blocks that it runs replace those of before, and their folders stay.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from clusterbench.words import aligned, short
from tests.gpu import AS_PREDICTED, FAILED, ROOT, SHOWN, Row, failed

LEAST_S = 20.0
"""With less there is no use in starting a process: torch alone takes most of it."""
GRACE_S = 20.0
"""Between the polite end of a process and the other one."""
RESULTS = "results.json"
_PR_SET_PDEATHSIG = 1

Ended = Literal["ended", "hung", "crashed", "no time left", "not started"]


@dataclass(frozen=True)
class Setting:
    """Where a process runs: ``folder`` is its own, ``limit_s`` is all that it has, ``machine`` what it runs on."""

    device: str
    folder: Path
    limit_s: float
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How a process ended; ``code`` is its exit status, negative for a signal."""

    how: Ended
    code: int | None = None
    seconds: float = 0.0
    last_words: str = ""


@dataclass(frozen=True)
class Part:
    """One process of a block.

    Attributes
    ----------
    command
        Its command line.
    rows
        What its folder tells once it has ended, in whichever way.
    most_s
        What it is given at most, where the budget has as much left.
    codes
        Exit statuses of a process that did its work, failed cases or not.
    environment
        Variables of its own; the user's word counts.
    is_gate
        Whether what follows it in its block is in vain if it does not end with 0.
    """

    name: str
    command: Callable[[Setting], Sequence[str]]
    rows: Callable[[Setting, Ending], list[Row]]
    most_s: float
    codes: tuple[int, ...] = (0, 1)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_gate: bool = False


Run = Callable[[Sequence[str], Path, Mapping[str, str], float], Ending]


def run_process(command: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float) -> Ending:
    """Runs a command with its output in ``log``; at the limit its whole process group is ended, first politely."""
    libc, began_s = ctypes.CDLL(None), time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # it must not outlive the session
        )
        try:
            hung = not _has_ended(process, limit_s)
        finally:
            _end(process)
    seconds = time.monotonic() - began_s
    if hung:
        return Ending("hung", process.returncode, seconds, _last_words(log))
    return Ending("ended", process.returncode, seconds, _last_words(log))


def _has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a process and of all that it started."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        _has_ended(process, GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # all of it has ended


def _last_words(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return short(lines[-1].strip(), 160) if lines else ""


@dataclass
class Session:
    """Runs blocks; ``results`` is what ``results.json`` holds."""

    out: Path
    device: str
    budget_s: float
    machine: Mapping[str, Any] = field(default_factory=dict)
    run_process: Run = run_process
    now_s: Callable[[], float] = time.monotonic
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self._ends_s = self.now_s() + self.budget_s
        self._one_at_a_time = threading.Lock()
        before = self._before()
        self.results = {
            "device": self.device,
            "budget_s": self.budget_s,
            "machine": dict(self.machine),
            "parts": before,
        }
        self._write()

    def _before(self) -> dict[str, Any]:
        """What an earlier session on the same device left in this folder."""
        try:
            results = json.loads((self.out / RESULTS).read_text())
        except (OSError, ValueError):
            return {}
        return dict(results["parts"]) if results["device"] == self.device else {}

    def run(self, blocks: Mapping[str, Sequence[Part]], beside: Collection[str] = ()) -> None:
        """Runs ``beside`` one another the blocks that are named so, first; then each other one on its own."""
        self._run_together([parts for name, parts in blocks.items() if name in beside])
        for name, parts in blocks.items():
            if name not in beside:
                self._run_block(parts)

    def _run_together(self, blocks: Sequence[Sequence[Part]]) -> None:
        """A thread each; when this process ends, the threads do, and with them the processes that they started."""
        faults = list[Exception]()

        def run(parts: Sequence[Part]) -> None:
            try:
                self._run_block(parts)
            except Exception as error:  # noqa: BLE001  it is raised where the others are done
                faults.append(error)

        threads = [threading.Thread(target=run, args=(parts,), daemon=True) for parts in blocks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def _run_block(self, parts: Sequence[Part]) -> None:
        closed_by = ""
        for part in parts:
            if closed_by:
                self._record(part, Ending("not started", last_words=f"{closed_by} did not pass"), [])
                continue
            ending = self._run(part)
            if part.is_gate and (ending.how, ending.code) != ("ended", 0):
                closed_by = part.name

    @property
    def rows(self) -> list[Row]:
        return [Row(**row) for part in self.results["parts"].values() for row in part["rows"]]

    @property
    def exit_code(self) -> int:
        return 1 if any(row.verdict == FAILED for row in self.rows) else 0

    def _run(self, part: Part) -> Ending:
        limit_s = min(part.most_s, self._ends_s - self.now_s())
        if limit_s < LEAST_S:
            return self._record(part, Ending("no time left"), [])
        setting = Setting(self.device, self._folder(part.name), limit_s, self.machine)
        self._note(part.name, {"how": "running", "limit_s": limit_s, "rows": []})
        log = setting.folder.with_suffix(".log")
        print(f"{part.name}: at most {limit_s:.0f} s ...", file=sys.stderr, flush=True)
        ending = self.run_process(part.command(setting), log, environment_for(part.environment), limit_s)
        if ending.how == "ended" and ending.code not in part.codes:
            ending = Ending("crashed", ending.code, ending.seconds, ending.last_words)
        return self._record(part, ending, self._read(part, setting, ending))

    def _folder(self, name: str) -> Path:
        """A new one; that of an earlier session is not written over."""
        numbered = (self.out / (f"{name}-{number}" if number > 1 else name) for number in count(1))
        return next(folder for folder in numbered if not folder.with_suffix(".log").exists())

    def _read(self, part: Part, setting: Setting, ending: Ending) -> list[Row]:
        try:
            return part.rows(setting, ending)
        except Exception as error:  # noqa: BLE001  whatever a cut file does to its reader, the other blocks follow
            return [failed(part.name, "results cannot be read", f"{type(error).__name__}: {error}")]

    def _record(self, part: Part, ending: Ending, rows: Sequence[Row]) -> Ending:
        whole = [*_rows_of(part, ending), *rows]
        self._note(part.name, {**asdict(ending), "rows": [asdict(row) for row in whole]})
        return ending

    def _note(self, part: str, record: Mapping[str, Any]) -> None:
        with self._one_at_a_time:
            self.results["parts"][part] = record
            self._write()

    def _write(self) -> None:
        for name, text in ((RESULTS, json.dumps(self.results, indent=1)), ("table.txt", table(self.rows))):
            new = self.out / f"{name}.new"
            with open(new, "w") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.out / name)


def _rows_of(part: Part, ending: Ending) -> list[Row]:
    """A row for what went wrong with the process itself."""
    if ending.how == "ended":
        return []
    how = {
        "hung": f"stopped after {ending.seconds:.0f} s",
        "crashed": f"ended with {ending.code}",
        "no time left": "no time left",
        "not started": "not started",
    }[ending.how]
    return [failed(part.name, how, ending.last_words)]


def environment_for(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a process: this checkout comes first, and the user's word before ``more``."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**(more or {}), **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def table(rows: Sequence[Row]) -> str:
    """``name, value, predicted, verdict``; below it the notes of all that is not as it was predicted."""
    lines = aligned(
        ("name", "value", "predicted", "verdict"),
        [(row.name, row.value, row.predicted or "-", row.verdict) for row in rows],
    )
    noted = [row for row in rows if row.note and row.verdict not in (AS_PREDICTED, SHOWN)]
    return "\n".join([*lines, *(f"# {row.name}: {row.note}" for row in noted)])
