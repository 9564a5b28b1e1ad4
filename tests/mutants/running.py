"""What becomes of a mutant: of one in the step by the command line, of one in shared code by tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.mutants import Mutant
from tests.mutants.planting import environment, executed, plant, plant_with_tests, with_tiny_shapes

Fate = Literal["killed", "survived", "crashed", "not run"]
"""``crashed``: found out, but not by a proof. ``not run``: the list is wrong, for the defect was never executed."""

MINUTES_OF_A_CASE, MINUTES_OF_A_RUN = 10, 60
"""Generous: a slow machine must not look like a defect that was found."""

# Two micro-batches and more, of two sequences, on a model with two layers for each of two stages.
_BASE = {
    "shape": "llama-tiny",
    "seq_len": 32,
    "global_batch_size": 16,
    "micro_batch_size": 2,
    "recompute": "none",
    "iterations": 1,
    "warmup": 0,
    "time_limit_s": MINUTES_OF_A_CASE * 60,
}
RANKS = 8
"""The most that any case needs."""


@dataclass(frozen=True)
class Verdict:
    """The fate of one mutant, or of the healthy program: by dtype, or for tests under the one name ``tests``.

    ``causes`` are sentences for a person: what killed it, or why it crashed.
    """

    fates: dict[str, Fate]
    causes: dict[str, str]
    seconds: float = field(default=0.0, compare=False)


def suite_of(cases: Iterable[str], dtypes: Sequence[str]) -> dict[str, Any]:
    """A suite of cases that are written ``dp2+ep2 shape=moe-tiny routing=balanced``, in each of some dtypes."""
    entries = []
    for case in dict.fromkeys(cases):
        layout, *options = case.split()
        settings = {name: yaml.safe_load(value) for name, _, value in (option.partition("=") for option in options)}
        entry = {"benchmark": "train_step", "layouts": [layout], **_BASE, **settings}
        entries += [{**entry, "dtype": dtype} for dtype in dtypes]
    return {
        "suite": "planted",
        "question": "Is the planted defect found?",
        "num_nodes": [1],
        "benchmarks": entries,
        "gpu": {},
        "cpu": {"num_ranks": RANKS},
    }


def run_suite(mutant: Mutant | None, cases: Sequence[str], dtypes: Sequence[str]) -> Verdict:
    """Runs cases by the command line on a copy of the package with the mutant, or on a healthy one for None."""
    started = time.monotonic()
    try:
        fates, causes = _run_suite(mutant, cases, dtypes)
    except Exception as error:  # noqa: BLE001  what cannot be judged has a line of its own, and the others follow
        fates, causes = dict.fromkeys(dtypes, "crashed"), dict.fromkeys(dtypes, f"{type(error).__name__}: {error}")
    return Verdict(fates, causes, time.monotonic() - started)


def _run_suite(
    mutant: Mutant | None, cases: Sequence[str], dtypes: Sequence[str]
) -> tuple[dict[str, Fate], dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="clusterbench-mutant-") as name:
        folder = Path(name)
        plant(mutant, folder)
        done = command_line(folder, ["run", "--out", str(folder / "run")], cases, dtypes)
        if not (folder / "run" / "plan.jsonl").exists():
            return dict.fromkeys(dtypes, "crashed"), dict.fromkeys(dtypes, done.stderr.strip()[-500:])
        return _judged(folder / "run", done, dtypes, executed(folder) if mutant else None)


def command_line(
    folder: Path, verb: Sequence[str], cases: Sequence[str], dtypes: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """What the copy of the package in a folder does with a suite of cases: ``run`` or ``plan``, with options."""
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump(suite_of(cases, dtypes), sort_keys=False), encoding="utf-8")
    # -P: where Python is started must not decide which package it finds
    command = [sys.executable, "-P", "-m", "clusterbench.cli", *verb, str(suite), "--device", "cpu"]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=MINUTES_OF_A_RUN * 60,
        check=False,
    )


def _judged(
    run: Path, done: subprocess.CompletedProcess[str], dtypes: Sequence[str], came_by: set[str] | None
) -> tuple[dict[str, Fate], dict[str, str]]:
    """Reads the run's folder with the healthy package: the planted one may misread it."""
    plan = _lines(run / "plan.jsonl")
    if plan[0]["num_refusals"]:
        why = next(line["reason"] for line in plan if line["kind"] == "refusal")
        return dict.fromkeys(dtypes, "not run"), dict.fromkeys(dtypes, f"refused: {why}")
    cases = {line["id"]: line["point"]["dtype"] for line in plan if line["kind"] == "case"}
    outcomes = _lines(run / "outcomes.jsonl")
    findings = _found_afterwards(run)
    fates: dict[str, Fate] = {}
    causes: dict[str, str] = {}
    for dtype in dtypes:
        # Every training case has a start of its own, and they are numbered in their order.
        own = [(number, outcome) for number, outcome in enumerate(outcomes) if cases[outcome["case"]] == dtype]
        statuses = [outcome["status"] for _, outcome in own]
        found = [what for where, what in findings if any(_is_of(where, outcome["case"]) for _, outcome in own)]
        idle = [
            outcome["case"]
            for number, outcome in own
            if came_by is not None and outcome["status"] in ("ok", "wrong") and not _log_of(number) & came_by
        ]
        bad = [outcome for _, outcome in own if outcome["status"] not in ("ok", "wrong")]
        if idle:
            fates[dtype], causes[dtype] = "not run", f"never executed by {', '.join(idle)}"
        elif "wrong" in statuses:
            fates[dtype] = "killed"
            causes[dtype] = next(outcome["reason"] for _, outcome in own if outcome["status"] == "wrong")
        elif found and done.returncode == 1:
            fates[dtype], causes[dtype] = "killed", found[0]
        elif bad or len(own) < list(cases.values()).count(dtype) or not own:
            fates[dtype] = "crashed"
            causes[dtype] = bad[0]["reason"] if bad else done.stderr.strip()[-500:]
        else:
            fates[dtype], causes[dtype] = "survived", ""
    return fates, causes


def _log_of(start: int) -> set[str]:
    return {f"start-{start:04d}-rank-{rank:04d}.log" for rank in range(RANKS)}


def _is_of(where: str, case: str) -> bool:
    return where == case or where.startswith(f"{case}, ")


def _found_afterwards(run: Path) -> list[tuple[str, str]]:
    """Place and sentence of what reading finds: cases that others refute, and errors of diagnoses about the others."""
    from clusterbench.derive import read
    from clusterbench.diagnoses import examine
    from clusterbench.run_folder import RunFolder

    with with_tiny_shapes():
        reading = read(RunFolder.open(run))
        examined = examine(reading)
    refuted = [
        (outcome.case, outcome.reason)
        for history in reading.histories
        for outcome in history.outcomes
        if outcome.status == "wrong"
    ]
    return refuted + [
        (finding.where, f"{name}: {finding.where}: {finding.what}")
        for name, answer in examined.items()
        for finding in answer.findings
        if finding.severity == "error" and name != "failed_case"
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_tests(mutant: Mutant | None, tests: Sequence[str]) -> Verdict:
    """Runs test files, named by the end of their path, on a copy of the package with the mutant, or a healthy one."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clusterbench-mutant-") as name:
        folder = Path(name)
        plant_with_tests(mutant, folder)
        files = [str(file_of_tests(test, folder)) for test in dict.fromkeys(tests)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-x"] if mutant else []), *files],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=MINUTES_OF_A_RUN * 60,
            check=False,
        )
        came_by = executed(folder)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    fate: Fate
    if mutant and not came_by:
        fate, cause = "not run", f"never executed by {', '.join(tests)}"
    elif done.returncode == 0:
        fate, cause = "survived", ""
    elif done.returncode == 1 and failed:
        fate, cause = "killed", failed[0].removeprefix("FAILED ")
    else:
        fate, cause = "crashed", (done.stdout + done.stderr).strip()[-500:]
    return Verdict({"tests": fate}, {"tests": cause}, time.monotonic() - started)


def file_of_tests(test: str, root: Path) -> Path:
    """The one file of tests whose path ends so."""
    (path,) = (path for path in (root / "tests").rglob("test_*.py") if path.as_posix().endswith(f"/{test}"))
    return path
