"""A run's folder: the only place where the stages meet.

``observations.jsonl`` is the one file that cannot be made again. It only grows, a line a case, on disk before the next
case starts. A line counts once its outcome is on disk too; a line cut off in the middle is passed over and named.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from clusterbench.cluster import Cluster
from clusterbench.errors import DiskError, RunDirectoryError
from clusterbench.types import Case, Expected, Observation, Outcome, Plan, Refusal


@dataclass
class RunDirectory:
    """One run on disk. ``problems`` collects what could not be read, each a sentence."""

    path: Path
    problems: list[str] = field(default_factory=list)

    @classmethod
    def create(cls, path: Path, suite_text: bytes, plan: Plan, environment: Mapping[str, Any]) -> RunDirectory:
        """A new run's folder with everything that is known before the first case.

        Raises
        ------
        RunDirectoryError
            If the folder exists and is not empty, or cannot be written.
        """
        run = cls(path)
        try:
            if path.exists() and any(path.iterdir()):
                raise RunDirectoryError(
                    f"{path} exists and is not empty.\nhint: name another folder with --out, or continue that run with "
                    f"--resume {path}"
                )
            (path / "logs").mkdir(parents=True, exist_ok=True)
            (path / "suite.yaml").write_bytes(suite_text)
            (path / "environment.json").write_text(json.dumps(environment, indent=1, sort_keys=True) + "\n")
            (path / "plan.jsonl").write_text("".join(_line(record) for record in _plan_records(plan)))
            for name in ("observations.jsonl", "outcomes.jsonl"):
                (path / name).touch()
        except OSError as error:
            raise RunDirectoryError(run._unwritable(error)) from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The folder of a run that was started before.

        Raises
        ------
        RunDirectoryError
            If ``path`` is not such a folder.
        """
        needed = ("plan.jsonl", "observations.jsonl", "outcomes.jsonl")
        missing = [name for name in needed if not (path / name).exists()]
        if missing:
            raise RunDirectoryError(
                f"{path} is not the folder of a run: {', '.join(missing)} is not there.\n"
                "hint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale"
            )
        return cls(path)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def plan(self) -> Plan:
        """The plan as it was written before the run."""
        head: dict[str, Any] = {}
        cases, refusals = [], []
        for record in self._records("plan.jsonl"):
            kind = record.pop("kind")
            if kind == "plan":
                head = record
            elif kind == "case":
                cases.append(_case(record))
            else:
                refusals.append(Refusal(**record))
        if not head:
            raise RunDirectoryError(f"{self.path / 'plan.jsonl'} is empty: the run was stopped before it had a plan")
        described = head.pop("cluster")
        cluster = Cluster(**{**described, "hosts": tuple(described["hosts"])})
        return Plan(**head, cluster=cluster, cases=tuple(cases), refusals=tuple(refusals))

    def environment(self) -> dict[str, Any]:
        """What was captured of the hosts, or nothing."""
        try:
            found = json.loads((self.path / "environment.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def outcomes(self) -> list[Outcome]:
        """How every attempt so far ended, in order of time."""
        return [Outcome(**record) for record in self._records("outcomes.jsonl")]

    def observations(self) -> Iterator[Observation]:
        """What was seen, in order of time."""
        for record in self._records("observations.jsonl"):
            record["hosts"] = tuple(record["hosts"])
            yield Observation(**record)

    def record(self, outcome: Outcome, observation: Observation | None) -> None:
        """Puts one case on disk, its observation before its outcome, and returns once the disk has it.

        Raises
        ------
        DiskError
            If the disk is full or the folder is gone. What was there before is unharmed.
        """
        if observation is not None:
            self._append("observations.jsonl", observation)
        self._append("outcomes.jsonl", outcome)

    def write(self, name: str, text: str) -> Path:
        """Replaces a derived file in one go, so that nobody ever sees half of it."""
        target = self.path / name
        try:
            new = target.with_name(target.name + ".new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, target)
        except OSError as error:
            raise DiskError(self._unwritable(error)) from None
        return target

    def log(self, start: int, rank: int) -> Path:
        """Where the output of one rank of one start goes."""
        return self.path / "logs" / f"start-{start:04d}-rank-{rank:04d}.log"

    def _append(self, name: str, record: object) -> None:
        data = _line(record).encode()
        try:
            handle = os.open(self.path / name, os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    data = b"\n" + data  # the last run was cut off in the middle of a line
                try:
                    while data:
                        data = data[os.write(handle, data) :]  # a disk that is filling up takes a part first
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise DiskError(self._unwritable(error)) from None

    def _unwritable(self, error: OSError) -> str:
        what = error.strerror or str(error)
        hint = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        saved = f", then continue with --resume {self.path}" if (self.path / "plan.jsonl").exists() else ""
        return f"{error.filename or self.path} cannot be written: {what}.\nhint: {hint}{saved}"

    def _records(self, name: str) -> Iterator[dict[str, Any]]:
        with open(self.path / name, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise ValueError
                except ValueError:
                    problem = f"{name}:{number} is not a whole line of JSON and was left out"
                    if problem not in self.problems:
                        self.problems.append(problem)
                    continue
                yield record


def default_path(root: Path, suite: str, now: datetime) -> Path:
    """``reports/2026-03-02-1410-tp_scale``, with a number behind it if that minute already has one."""
    stem = f"{now:%Y-%m-%d-%H%M}-{suite}"
    candidate, number = root / stem, 2
    while candidate.exists():
        candidate, number = root / f"{stem}-{number}", number + 1
    return candidate


def _line(record: object) -> str:
    # allow_nan stays on: a sample that is not a number must not cost the other samples of the case.
    return json.dumps(record, default=vars, separators=(",", ":")) + "\n"


def _plan_records(plan: Plan) -> Iterator[dict[str, Any]]:
    head = {name: value for name, value in vars(plan).items() if name not in ("cases", "refusals")}
    yield {"kind": "plan", **head}
    for case in plan.cases:
        yield {"kind": "case", "hash": case.hash, **vars(case)}
    for refusal in plan.refusals:
        yield {"kind": "refusal", **vars(refusal)}


def _case(record: dict[str, Any]) -> Case:
    record.pop("hash")
    record["expected"] = {key: Expected(**value) for key, value in record["expected"].items()}
    record["expected_outcomes"] = tuple(record["expected_outcomes"])
    return Case(**record)
