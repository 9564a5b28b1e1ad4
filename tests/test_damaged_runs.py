"""A run's folder that somebody damaged: what is left is shown, what is not is named, and nothing else happens."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterbench.cases import Reading
from clusterbench.cli import main
from clusterbench.derive import read
from clusterbench.diagnoses import examine
from clusterbench.errors import ClusterbenchError
from clusterbench.launch.executions import left_to_do
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.verdict import verdict
from tests.share import number_of

EXAMPLE = Path(__file__).parent.parent / "reports/examples/tp_scale-cpu"
RECORDS = ("plan.jsonl", "observations.jsonl", "outcomes.jsonl")
FILES = (*RECORDS, "environment.json", "suite.yaml")

Damage = Callable[[random.Random, bytes], bytes]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, with a plan as it is written today."""
    example = RunFolder.open(EXAMPLE)
    environment = {**example.environment(), "clock": {"offsets_s": [0.0, 1e-3]}}
    text = (EXAMPLE / "suite.yaml").read_bytes()
    run = RunFolder.create(tmp_path_factory.mktemp("healthy") / "run", text, example.plan(), environment)
    for name in ("observations.jsonl", "outcomes.jsonl"):
        shutil.copy(EXAMPLE / name, run.path / name)
    return run.path


# Ways to damage a file


def cut(draw: random.Random, text: bytes) -> bytes:
    return text[: draw.randrange(len(text))]


def torn(draw: random.Random, text: bytes) -> bytes:
    """A hole in the middle."""
    start = draw.randrange(len(text))
    return text[:start] + text[start + draw.randint(1, 200) :]


def flipped(draw: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(draw.randint(1, 5)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def zeroed(draw: random.Random, text: bytes) -> bytes:
    """What a file system leaves after a power cut."""
    start = draw.randrange(len(text))
    return text[:start] + bytes(len(text) - start)


def emptied(draw: random.Random, text: bytes) -> bytes:
    return b""


def without_lines(draw: random.Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if draw.random() > 0.15)


def with_lines_twice(draw: random.Random, text: bytes) -> bytes:
    return b"".join(line * draw.choice((1, 1, 1, 2)) for line in text.splitlines(keepends=True))


def shuffled(draw: random.Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines)


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 10**18, 10**400, -(10**30), 0.5, 1e308, 5e-324, float("nan"), float("inf"), "",
    "ok", "failed", "tp1", "\x00\x1b[31m", "\ud800", "$\\frac$", [], [[]], {}, [1, "a", None], {"a": {"b": [1]}},
)  # fmt: skip


def with_another_value(draw: random.Random, text: bytes) -> bytes:
    """Valid JSON in which a value is of another type, missing, unknown, or beyond reason."""
    if not text.startswith(b"{"):
        return flipped(draw, text)
    lines = [text] if text.startswith(b"{\n") else text.splitlines(keepends=True)
    number = draw.randrange(len(lines))
    try:
        found = json.loads(lines[number])
    except (ValueError, RecursionError):
        return text  # damaged before
    holder, key = draw.choice(list(places(found)))
    what = draw.choice(("replaced", "replaced", "replaced", "missing", "unknown", "deep", "twice"))
    if what == "missing":
        del holder[key]
    elif what == "unknown" and isinstance(holder, dict):
        holder["unheard_of"] = draw.choice(STRANGE)
    elif what == "twice" and isinstance(holder, list):
        holder.append(holder[key])
    elif what == "deep":
        holder[key] = "DEEP"
    else:
        holder[key] = draw.choice(STRANGE)
    depth = draw.choice((30, 300, 900, 5000))
    nested = ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth)
    line = json.dumps(found).replace('"DEEP"', draw.choice(nested))
    lines[number] = line.encode() + b"\n"
    return b"".join(lines)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in a JSON value."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


DAMAGES: tuple[Damage, ...] = (
    cut, torn, flipped, zeroed, emptied, without_lines, with_lines_twice, shuffled, *[with_another_value] * 8
)  # fmt: skip


def damage(folder: Path, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 2))):
        path = folder / draw.choice((*RECORDS, *FILES))
        if path.stat().st_size:
            path.write_bytes(draw.choice(DAMAGES)(draw, path.read_bytes()))


# What must hold


def shown(reading: Reading) -> set[tuple[str, int]]:
    """Hash and repeat of everything that has a figure."""
    return {
        (observation.hash, observation.repeat) for history in reading.histories for observation in history.observations
    }


def unaccounted(folder: Path, reading: Reading) -> list[int]:
    """Numbers of the lines of observations.jsonl that are neither shown nor named, though they ended well."""
    found = []
    problems = "\n".join(reading.problems)
    fine = {
        (history.case.hash, outcome.repeat, outcome.attempt)
        for history in reading.histories
        for outcome in history.outcomes
    }
    for number, line in enumerate((folder / "observations.jsonl").read_bytes().split(b"\n"), 1):
        if not line.strip() or f"observations.jsonl:{number} " in problems:
            continue
        record = json.loads(line)
        is_shown = (record["hash"], record["repeat"]) in shown(reading)
        is_named = f"{record['case']}, repeat {record['repeat'] + 1}" in problems
        ended_badly = (record["hash"], record["repeat"], record["attempt"]) in fine and any(
            outcome.status != "ok"
            for history in reading.histories
            if history.case.hash == record["hash"]
            for outcome in history.outcomes
            if outcome.repeat == record["repeat"]
        )
        if not (is_shown or is_named or ended_badly):
            found.append(number)
    return found


def assert_helps(error: ClusterbenchError, folder: Path) -> None:
    """It says where, and what to do, or at least in which line."""
    assert str(error).startswith(str(folder))
    assert "\nhint: " in str(error) or "suite.yaml" in str(error)


SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(SLOW, max_examples=number_of(300))
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_without_a_word(healthy: Path, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(healthy, folder)
    damage(folder, random.Random(seed))
    try:
        reading = read(RunFolder.open(folder))
    except ClusterbenchError as error:
        assert_helps(error, folder)
        return
    assert unaccounted(folder, reading) == []
    whole = read(RunFolder.open(healthy))
    if verdict(reading, examine(reading)).measured.word == "COMPLETE":
        assert shown(reading) == shown(whole)


@settings(SLOW, max_examples=number_of(30))
@given(seed=st.integers(0, 2**32))
def test_a_report_is_made_or_one_error_says_what_to_do(healthy: Path, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(healthy, folder)
    damage(folder, random.Random(seed))
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    if done.exit_code == 2:
        assert done.stderr.startswith(f"error: {folder}")
        assert not (folder / "index.html").exists()
    else:
        assert (folder / "index.html").exists()
        assert (folder / "rows.csv").exists()


@settings(SLOW, max_examples=number_of(200))
@given(seed=st.integers(0, 2**32))
def test_a_run_is_resumed_or_one_error_says_why_not(healthy: Path, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(healthy, folder)
    damage(folder, random.Random(seed))
    try:
        load_suite(folder / "suite.yaml")
        run = RunFolder.open(folder)
        plan, outcomes = run.plan(), run.outcomes()
        left = left_to_do(plan, outcomes)
        observations = list(run.observations())
        run.environment()
    except ClusterbenchError as error:
        assert_helps(error, folder)
        return
    assert len(left) <= 1000 * len(plan.cases)
    if not run.problems:
        assert len(observations) <= 48


@pytest.mark.parametrize("name", RECORDS)
def test_a_folder_in_place_of_a_file_is_named(healthy: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(healthy, folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: {folder} is not the folder of a run: it has no file {name}.\n"
        "hint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale\n"
    )


def test_a_line_that_cannot_be_read_counts_when_its_case_was_measured_again(healthy: Path, tmp_path: Path) -> None:
    """It may have held a wrong result, which is one in any attempt: docs/verdict.md."""
    folder = tmp_path / "run"
    shutil.copytree(healthy, folder)
    for name in ("observations.jsonl", "outcomes.jsonl"):
        first, *others = (folder / name).read_text().splitlines()
        again = json.dumps(json.loads(first) | {"attempt": 2})
        first = f"{first[:100]} damaged" if name == "outcomes.jsonl" else first
        (folder / name).write_text("\n".join((first, *others, again)) + "\n")
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 1
    assert "measured  INCOMPLETE  8 of 8 cases; 2 lines could not be read" in done.stderr


@pytest.mark.parametrize("name", ["environment.json", "verdict.json", "index.html", "rows.csv"])
def test_a_folder_in_place_of_what_can_be_done_without(healthy: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(healthy, folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    done = CliRunner().invoke(main, ["report", str(folder)])
    if name == "environment.json":
        assert done.exit_code == 1
        assert "\n\nmeasured  INCOMPLETE  8 of 8 cases; 1 line could not be read; 7 of 8 unsteady" in done.stderr
    else:
        assert done.stderr.startswith(f"error: {folder / name}.new cannot be written: Is a directory.\n")
