"""Runs with planted differences, held against each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.compare import Comparing, as_markdown, compare_runs
from clusterbench.errors import SuiteError
from clusterbench.types import Case
from tests.report.synthetic import ENVIRONMENT, case, observation, outcome, plant, write_run


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def run_of(path: Path, times_s: dict[str, float], *, repeats: int = 6, cv: float = 0.01, **changes: Any) -> Path:
    """A run whose cases took so long, up to noise from repeat to repeat."""
    draw = random.Random(str(path))
    cases = [case(label, repeats=repeats) for label in times_s]
    records = []
    for planned, time_s in zip(cases, times_s.values(), strict=True):
        for repeat in range(repeats):
            seconds = [[time_s * (1 + draw.gauss(0, cv))] * 20] * planned.world_size
            records.append((outcome(planned, repeat=repeat), observation(planned, seconds, repeat=repeat)))
    write_run(path, cases, records, environment=ENVIRONMENT, **changes)
    return path


def verdicts(comparing: Comparing, threshold: float = 0.05) -> dict[str, str]:
    return {difference.case.rpartition("/")[2]: difference.verdict(threshold) for difference in comparing.differences}


def test_a_planted_slowdown_is_worse_and_the_rest_is_the_same(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020, "c": 0.030})
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.023, "c": 0.024})
    comparing = compare_runs(base, new)
    assert verdicts(comparing) == {"a": "same", "b": "worse", "c": "better"}
    assert verdicts(comparing, threshold=0.5) == {"a": "same", "b": "same", "c": "same"}
    assert (comparing.is_regression(0.05), comparing.is_regression(0.5)) == (True, False)
    assert comparing.cautions == ()
    assert comparing.environment == ()


def test_noise_that_could_hide_a_slowdown_is_unsure(tmp_path: Path) -> None:
    comparing = compare_runs(*(run_of(tmp_path / name, {"a": 0.010}, cv=0.2) for name in ("base", "new")))
    assert verdicts(comparing) == {"a": "unsure"}
    assert not comparing.is_regression(0.05)


def test_the_command_prints_the_worst_first_and_ends_with_1(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010, "b": 0.020})
    new = run_of(tmp_path / "new", {"a": 0.010, "b": 0.030})
    ended = CliRunner().invoke(main, ["compare", str(base), str(new)], catch_exceptions=False)
    lines = ended.output.splitlines()
    assert ended.exit_code == 1
    (head,) = [index for index, line in enumerate(lines) if line.startswith("# case")]
    assert " ".join(lines[head].split()) == "# case quantity base new change 95 % interval shows from verdict"
    assert lines[head + 1].startswith("  planted/1n4/b  time of an iteration")
    assert lines[head + 1].endswith("worse")
    assert lines[-1] == "# REGRESSION beyond 5.0%: 1 worse, 1 same"
    assert CliRunner().invoke(main, ["compare", str(base), str(base)]).exit_code == 0


def test_markdown_is_a_table_and_its_cells_stay_cells(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a|b": 0.010})
    text = as_markdown(compare_runs(base, base), 0.05)
    assert text.splitlines()[0] == "**NO REGRESSION beyond 5.0%: 1 same**"
    assert "| planted/1n4/a\\|b | time of an iteration |" in text


def test_a_case_that_ran_before_and_fails_now_is_a_regression(tmp_path: Path) -> None:
    planned = case("a")
    base = run_of(tmp_path / "base", {"a": 0.010}, repeats=1)
    new = write_run(tmp_path / "new", [planned], [(outcome(planned, "failed", reason="rank 3 was killed"), None)]).path
    comparing = compare_runs(base, new)
    assert comparing.is_regression(0.05)
    assert comparing.ended_otherwise == ("planted/1n4/a: ok, then failed (rank 3 was killed)",)
    assert compare_runs(new, base).broken == ()


def test_few_repeats_are_cautioned_about(tmp_path: Path) -> None:
    comparing = compare_runs(*(run_of(tmp_path / name, {"a": 0.010}, repeats=1) for name in ("base", "new")))
    assert comparing.cautions == (
        "where a case has fewer than 4 repeats its iterations are compared; they ran in one start and are not "
        "independent, so that intervals are too narrow ('repeats: 5' in the suite helps)",
    )


def test_what_only_one_run_has_is_listed(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.01, "b": 0.01})
    comparing = compare_runs(base, run_of(tmp_path / "new", {"a": 0.01, "c": 0.01}))
    assert (comparing.only_base, comparing.only_new) == (("planted/1n4/b",), ("planted/1n4/c",))


def one_case(path: Path, planned: Case) -> Path:
    return write_run(path, [planned], [(outcome(planned), observation(planned))], environment=ENVIRONMENT).path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iterations": 40}, "Both have 'planted/1n4/a', but iterations is 20 and 40."),
        ({"point": {"label": "a", "dtype": "float32"}}, "Both have 'planted/1n4/a', but dtype is None and 'float32'."),
        ({"environment": {"NCCL_ALGO": "Ring"}}, "Both have 'planted/1n4/a', but its environment differs."),
        ({"id": "planted/1n4/z", "point": {"label": "z"}}, "The first ran the suite 'planted', the second 'planted'."),
    ],
)
def test_runs_without_a_common_case_are_refused_with_the_reason(tmp_path: Path, changes: Any, why: str) -> None:
    base, new = one_case(tmp_path / "base", case("a")), one_case(tmp_path / "new", replace(case("a"), **changes))
    with pytest.raises(SuiteError) as caught:
        compare_runs(base, new)
    assert str(caught.value) == f"{base} and {new} have no case in common, so there is nothing to compare. {why}"


def test_other_machines_are_named(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", {"a": 0.010})
    environment = {**ENVIRONMENT, "hosts": {"laptop": {**ENVIRONMENT["hosts"]["laptop"], "kernel": "6.9.1"}}}  # type: ignore[index]
    planned = case("a", repeats=6)
    new = write_run(
        tmp_path / "new", [planned], [(outcome(planned), observation(planned))], environment=environment
    ).path
    assert compare_runs(base, new).environment == ("the kernel is 6.9.1 on new and 6.8.0-45-generic on base",)
