"""Planted defects are planted where they should be, executed, and found out or not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from tests.mutants import DTYPES, PACKAGE, ROOT, Mutant, mutants, planted_in, sources
from tests.mutants.__main__ import cases_by_dtypes, chosen_share, has_news
from tests.mutants.planting import plant
from tests.mutants.running import Verdict, command_line, file_of_tests, run_suite, run_tests

MUTANTS = mutants()


def complaint(mutant: Mutant, texts: Mapping[Path, str]) -> str | None:
    """Why a mutant cannot be planted; None if it can."""
    try:
        path, text = planted_in(mutant, texts)
        compile(text, str(path), "exec")
    except (LookupError, SyntaxError) as error:
        return str(error)
    return None


def test_every_text_stands_once_in_the_package_and_its_replacement_compiles() -> None:
    texts = sources()
    assert {code: why for code, mutant in MUTANTS.items() if (why := complaint(mutant, texts))} == {}


def test_each_reads_only_names_that_are_there(tmp_path: Path) -> None:
    texts = sources()
    for code, mutant in MUTANTS.items():
        (tmp_path / f"{code}.py").write_text(planted_in(mutant, texts)[1], encoding="utf-8")
    names = ["--isolated", "--select=F821", "--config", "builtins = ['planted']", "--output-format=concise"]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *names, tmp_path], capture_output=True, text=True)
    assert done.stdout.strip() == "All checks passed!", done.stdout + done.stderr


def test_there_are_as_many_as_the_tallies_stand_on() -> None:
    assert Counter(mutant.kind for mutant in MUTANTS.values()) >= Counter(step=130, shared=90)


def test_each_says_what_is_wrong_and_what_executes_it() -> None:
    assert [code for code, mutant in MUTANTS.items() if not mutant.wrong.endswith(".")] == []
    assert [code for code, mutant in MUTANTS.items() if mutant.instead.count("planted()") != 1] == []
    assert [code for code, mutant in MUTANTS.items() if bool(mutant.cases) == bool(mutant.tests)] == []
    assert [code for code, mutant in MUTANTS.items() if {*mutant.survives} - {*mutant.dtypes}] == []
    assert all(file_of_tests(test, ROOT).is_file() for mutant in MUTANTS.values() for test in mutant.tests)


def test_a_survivor_is_news_where_the_list_does_not_know_it() -> None:
    mutant = replace(MUTANTS["S01"], survives={"bfloat16": "rounding"})
    fates = {"float32": "killed", "bfloat16": "survived"}
    assert not has_news({"S01": Verdict(fates, {})}, {"S01": mutant})
    assert has_news({"S01": Verdict(fates, {})}, {"S01": MUTANTS["S01"]})
    assert has_news({"S01": Verdict({**fates, "float32": "not run"}, {})}, {"S01": mutant})


def test_every_case_is_one_that_runs(tmp_path: Path) -> None:
    plant(None, tmp_path)
    for dtypes, cases in cases_by_dtypes([*MUTANTS.values()], DTYPES).items():
        done = command_line(tmp_path, ["plan", "--json"], cases, dtypes)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        assert plan["refusals"] == []
        assert len(plan["cases"]) == len(cases) * len(dtypes)


def test_a_text_that_is_gone_or_there_twice_is_named() -> None:
    texts = {Path("one.py"): "same", Path("two.py"): "same"}
    with pytest.raises(LookupError, match="X1: its text stands 0 times in the package: nowhere"):
        planted_in(Mutant("X1", "", "other", ""), texts)
    with pytest.raises(LookupError, match=r"X2: its text stands 2 times in the package: one\.py, two\.py"):
        planted_in(Mutant("X2", "", "same", ""), texts)


def test_a_seed_draws_the_same_share_of_each_kind_again() -> None:
    every = list(MUTANTS.values())
    drawn = chosen_share(every, Fraction(1, 20), "a")
    assert drawn == chosen_share(every[::-1], Fraction(1, 20), "a") != chosen_share(every, Fraction(1, 20), "b")
    of_kind = Counter(mutant.kind for mutant in every)
    assert Counter(mutant.kind for mutant in drawn) == {kind: -(-n // 20) for kind, n in of_kind.items()}
    assert set(chosen_share(every, Fraction(1), "a")) == set(every)


@pytest.mark.gloo
def test_a_loss_that_is_not_divided_by_the_micro_batches_is_wrong_in_both_dtypes() -> None:
    verdict = run_suite(MUTANTS["S23"], ("dp2",), DTYPES)
    assert verdict.fates == dict.fromkeys(DTYPES, "killed"), verdict
    assert verdict.causes["bfloat16"].startswith("dp2 does not compute what one rank computes: ")


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_defect_that_only_sends_more_is_killed_by_the_diagnosis_of_traffic() -> None:
    verdict = run_suite(MUTANTS["S19"], ("dp2",), ("float32",))
    assert verdict.fates == {"float32": "killed"}, verdict
    assert verdict.causes["float32"].startswith("traffic_mismatch: train_step/1n2/dp2")


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_defect_beyond_the_proof_is_killed_by_a_case_on_one_rank() -> None:
    verdict = run_suite(MUTANTS["D03"], MUTANTS["D03"].cases, ("float32",))
    assert verdict.fates == {"float32": "killed"}, verdict
    assert verdict.causes["float32"].startswith("the loss of the first step is ")


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_defect_that_is_never_executed_is_not_counted() -> None:
    idle = replace(MUTANTS["S23"], instead=MUTANTS["S23"].instead.replace("self.grid", "self.job.layout.uses('tp')"))
    verdict = run_suite(idle, ("dp2",), ("float32",))
    assert verdict.fates == {"float32": "not run"}, verdict
    assert verdict.causes["float32"].startswith("never executed by train_step/1n2/dp2")


def test_a_formula_is_held_against_published_numbers_by_its_tests() -> None:
    verdict = run_tests(MUTANTS["R02"], MUTANTS["R02"].tests)
    assert verdict.fates == {"tests": "killed"}, verdict
    assert "test_pipeline.py" in verdict.causes["tests"]


def test_tests_that_do_not_reach_a_defect_say_nothing() -> None:
    verdict = run_tests(MUTANTS["R02"], ("formulas/test_intervals.py",))
    assert verdict.fates == {"tests": "not run"}, verdict


def test_what_is_planted_leaves_the_package_alone() -> None:
    assert not (PACKAGE / "planted.py").exists()
