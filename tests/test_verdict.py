"""The three statements of a run, and a test for each line of the table in docs/verdict.md."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.cases import Reading
from clusterbench.cli import main
from clusterbench.derive import read
from clusterbench.derive.several_runs import read_several
from clusterbench.diagnoses import Answer, NotJudged, examine
from clusterbench.errors import SuiteError
from clusterbench.measured.bounds import BEYOND
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import FAIL_ON, MOST_REPEATS, Case, Expected, Floor, Observation, Outcome
from clusterbench.verdict import Verdict, verdict
from tests.report.synthetic import case, good_run, observation, outcome, reading, row, write_run

ROOT = Path(__file__).parents[1]
FABRIC = ROOT / "reports" / "examples" / "fabric-cpu"

Record = tuple[Outcome, Observation | None]

ONE, TWO = case("a"), case("b")
PARITY = [{"name": "parity_loss", "unit": "1", "value": 1e-7}]


def judged(*records: Record, cases: Sequence[Case] = (ONE, TWO), rows: Sequence[Any] = (), **changes: Any) -> Verdict:
    read: Reading = reading(*records, cases=cases, rows=rows)
    return verdict(read, examine(read), **changes)


def good(of: Case, **changes: Any) -> Record:
    return outcome(of), observation(of, **changes)


def trained(label: str, **changes: Any) -> Case:
    point = {"label": label, "parity": True, **changes}
    return case(label, id=f"train_step/1n4/{label}", benchmark="train_step", layout=label, point=point)


def matmul(slow: float = 1.0, iterations: int = 40) -> Record:
    """Four ranks, the last of which takes so many times longer."""
    times_s = [0.01 + 0.0001 * (number % 3) for number in range(iterations)]
    return good(MATMUL, seconds=[times_s] * 3 + [[slow * time_s for time_s in times_s]])


MATMUL = case("m", id="matmul/1n4/m", benchmark="matmul", point={"size": 64, "dtype": "float32", "num_ranks": 4})
LINKS = [
    row(MATMUL, "pair_bandwidth", 1e9, high=1.1e9, unit="B/s", detail={"source": f"n{a}", "part": f"n{b}"})
    for a in range(4)
    for b in range(4)
    if a != b
]


# The table of docs/verdict.md: what is said, which conditions hold, and what the exit code is


def test_complete_proven_healthy_is_0() -> None:
    alone = replace(trained("tp1"), world_size=1)  # no rank waits for another in it
    found = judged(good(alone), matmul(), cases=[alone, MATMUL], rows=[row(alone, "parity_loss", 1e-7), *LINKS])
    assert found.words == "COMPLETE, PROVEN, HEALTHY"
    assert (found.conditions, found.tone, found.exit_code) == ((), "good", 0)
    assert found.measured.sentence == "2 of 2 cases"
    assert found.proven.sentence == "1 of 1 training case held against one rank before the clock started"
    assert found.machine.sentence == (
        "links between n0, n1, n2, n3 are alike (1.0 GB/s to 1.0 GB/s; one that carries 10 % less would have shown); "
        "4 ranks in matmul: none is slower than its peers (5 % would have shown)"
    )


def test_what_proving_took_is_said_beside_the_time_of_the_cases() -> None:
    dp2 = trained("dp2")
    ended, seen = good(dp2)
    rows = [row(dp2, "parity_loss", 1e-7), row(dp2, "proof_time", 3.0, unit="s")]
    found = judged((replace(ended, elapsed_s=20.0), seen), cases=[dp2], rows=rows)
    assert found.proven.sentence.endswith(" before the clock started (3.0 s of 20.0 s)")


@pytest.mark.parametrize(
    ("status", "said"), [("failed", "failed"), ("timeout", "timed out"), ("out_of_memory", "out of memory")]
)
def test_incomplete_is_1_and_says_what_is_missing(status: str, said: str) -> None:
    found = judged(good(ONE), (outcome(TWO, status, reason="it broke"), None))
    assert (found.measured.word, found.tone, found.failing) == ("INCOMPLETE", "bad", ("incomplete",))
    assert found.measured.sentence == f"1 of 2 cases; 1 {said}"


def test_a_case_whose_figures_the_machine_voided_is_said_to_have_none() -> None:
    """With memory errors in 89 of 170 cases it read 'COMPLETE 170 of 170 cases', and figures were empty."""
    basis = "void: while it ran GPU 6 on gpu-01: memory errors that were not corrected"
    rows = [row(ONE, "busbw", None, basis=basis), row(ONE, "latency", None, basis=basis), row(TWO, "busbw", 1e9)]
    found = judged(good(ONE), good(TWO), rows=rows)
    assert (found.measured.word, found.measured.sentence) == ("COMPLETE", "2 of 2 cases; figures of 1 are void")


def test_a_case_that_fails_in_each_repeat_is_one() -> None:
    repeated = replace(TWO, repeats=3)
    lost = [(outcome(repeated, "failed", repeat=repeat, reason="it broke"), None) for repeat in range(3)]
    found = judged(good(ONE), *lost, cases=[ONE, repeated])
    assert found.measured.sentence == "1 of 2 cases; 1 failed"


def test_a_host_that_was_lost_is_suspect_as_in_the_list_of_hosts() -> None:
    """hosts.json called gpu-04 bad, and of the machine it read 'NOT JUDGED', with all that was in order."""
    lost = outcome(TWO, "failed", reason="gpu-04 went away", lost_hosts=("gpu-04",), host="gpu-04", blame="host")
    found = judged(good(ONE), (lost, None))
    assert (found.machine.word, found.failing) == ("SUSPECT", ("incomplete", "suspect"))
    assert found.machine.sentence.startswith(f"Lost: gpu-04, {TWO.id}: gpu-04 went away")
    again = replace(lost, attempt=2, lost_hosts=(), blame="process")
    assert "Lost" not in judged(good(ONE), (again, None)).machine.sentence


def test_a_case_that_has_not_run_is_missing() -> None:
    found = judged(good(ONE))
    assert (found.measured.word, found.exit_code) == ("INCOMPLETE", 1)
    assert found.measured.sentence == ("1 of 2 cases; 1 not run yet ('clusterbench run --resume' goes on with them)")


def test_a_repeat_or_a_record_that_lacks_is_missing() -> None:
    twice = case("a", repeats=2)
    for found in (judged((outcome(ONE), None), cases=[ONE]), judged(good(twice), cases=[twice])):
        assert (found.measured.word, found.exit_code) == ("INCOMPLETE", 1)
        assert found.measured.sentence.endswith("1 case; 1 lacks a repeat or a whole record")


def test_a_repeat_that_was_skipped_where_another_was_measured_is_missing() -> None:
    """One of three repeats was '1 of 1 case', COMPLETE, where a spare lacked the program that the case runs."""
    thrice = case("a", repeats=3)
    lacking = [
        (outcome(thrice, "skipped", repeat=repeat, reason="nvbandwidth was not found"), None) for repeat in (1, 2)
    ]
    found = judged(good(thrice), *lacking, cases=[thrice])
    assert (found.measured.word, found.exit_code) == ("INCOMPLETE", 1)
    assert found.measured.sentence == "1 of 1 case; 1 lacks a repeat or a whole record"
    nowhere = judged(*((outcome(thrice, "skipped", repeat=repeat), None) for repeat in range(3)), cases=[thrice])
    assert (nowhere.measured.word, nowhere.exit_code) == ("NOTHING MEASURED", 0)


def lasting(folder: Path, for_s: float, *took_s: float) -> RunFolder:
    """A run of two cases that was to take so long, each round of which took so long."""
    cases = (ONE, TWO)
    plan = replace(good_run(folder / "plan", cases).plan(), for_s=for_s)
    run = RunFolder.create(folder / "run", b"suite: planted\n", plan, {})
    for repeat, round_s in enumerate(took_s):
        for each in cases:
            run.record(outcome(each, repeat=repeat, elapsed_s=round_s / 2), observation(each, repeat=repeat))
    return run


def test_a_list_that_was_not_run_for_its_time_is_incomplete(tmp_path: Path) -> None:
    run = lasting(tmp_path, 20.0, 4.0, 4.9)
    exit_code, said, page = reported(run.path)
    assert re.match(r"measured +INCOMPLETE +2 of 2 cases; run for 0:08 of 0:20(;|$)", said[0]), said
    assert exit_code == 1
    assert "run for 0:08 of 0:20" in page
    measured = json.loads((run.path / "verdict.json").read_text())["measured"]
    assert (measured["word"], measured["missing"]) == ("incomplete", ["run for 0:08 of 0:20"])


@pytest.mark.parametrize(("for_s", "rounds_s"), [(20.0, (4.0, 16.0)), (0.0, (4.0,)), (20.0, (0.001,) * MOST_REPEATS)])
def test_a_time_that_is_over_or_was_not_asked_for_and_the_most_repeats_are_complete(
    for_s: float, rounds_s: Sequence[float], tmp_path: Path
) -> None:
    read_again = read(lasting(tmp_path, for_s, *rounds_s))
    assert verdict(read_again, examine(read_again)).measured.word == "COMPLETE"


def test_of_several_runs_each_is_held_against_its_own_time(tmp_path: Path) -> None:
    long, short = lasting(tmp_path / "long", 20.0, 30.0), lasting(tmp_path / "short", 10.0, 4.0)
    together = read_several([long, short])
    (missing,) = (verdict(together, examine(together)).measured.parts or {})["missing"]
    assert missing == "run (2): run for 0:04 of 0:10"


def test_a_wrong_case_is_1_whatever_counts() -> None:
    found = judged(good(ONE), (outcome(TWO, "wrong", reason="rank 1 differs"), None), fail_on=())
    assert (found.measured.word, found.failing, found.exit_code) == ("WRONG", ("wrong",), 1)
    assert found.measured.sentence == "1 of 2 cases; wrong: planted/1n4/b"


def test_a_wrong_training_case_is_wrong_in_both_statements() -> None:
    dp2, tp2 = trained("dp2"), trained("tp2")
    wrong = outcome(tp2, "wrong", reason="tp2 does not compute what one rank computes")
    found = judged(good(dp2), (wrong, None), cases=[dp2, tp2], rows=[row(dp2, "parity_loss", 1e-7)])
    assert (found.measured.word, found.proven.word, found.exit_code) == ("WRONG", "WRONG", 1)
    assert found.proven.sentence.endswith("; wrong: train_step/1n4/tp2")


def test_figures_that_mean_nothing_are_wrong() -> None:
    impossible = row(ONE, "mfu", None, unit="fraction", basis=f"{BEYOND}: mfu 1.2 is above 1, dense peak")
    found = judged(good(ONE), cases=[ONE], rows=[impossible])
    assert (found.measured.word, found.exit_code) == ("WRONG", 1)
    assert "Beyond bound: planted/1n4/a: mfu 1.2 is above 1, dense peak" in found.measured.sentence


def test_a_suspect_is_1_and_names_rank_host_and_by_how_much() -> None:
    found = judged(matmul(slow=1.61), cases=[MATMUL], rows=LINKS)
    assert (found.machine.word, found.tone, found.failing) == ("SUSPECT", "suspect", ("suspect",))
    assert found.machine.sentence == "Straggler: rank 3 on laptop, 61 % slower"
    assert found.measured.word == "COMPLETE"  # each statement stands by itself


@pytest.mark.parametrize(
    ("of", "rows", "why"),
    [
        (
            trained("dp2", parity=False),
            [],
            "0 of 1 training case held against one rank before the clock started; not proven: 1 with parity: false",
        ),
        (
            trained("dp2"),
            [],
            "0 of 1 training case held against one rank before the clock started; not proven: 1 without a record of "
            "the check",
        ),
        (ONE, [], "no case trains: a probe checks its own result and proves nothing of a training step"),
        (
            case("a", benchmark="imported"),
            [],
            "figures were taken over; whatever their source proved is not in them",
        ),
    ],
)
def test_not_proven_is_0_and_said(of: Case, rows: Sequence[Any], why: str) -> None:
    found = judged(good(of), cases=[of], rows=rows)
    assert (found.proven.word, found.proven.sentence, found.exit_code) == ("NOT PROVEN", why, 0)
    assert "not-proven" in found.conditions
    assert judged(good(of), cases=[of], rows=rows, fail_on=["not-proven"]).exit_code == 1


def test_a_check_of_which_a_part_is_missing_is_not_proven() -> None:
    """With the losses alone, or of one rank of four, it was PROVEN."""
    limits = {name: Expected(1e-3, "1", "at most; rounding") for name in ("parity_loss", "parity_update")}
    dp4 = replace(trained("dp4"), expected=limits)
    whole = dict.fromkeys(limits, 1e-7)
    for evidence, word in (
        ([whole] * 4, "PROVEN"),
        ([{"parity_loss": 1e-7}] * 4, "NOT PROVEN"),
        ([whole, whole, {}, whole], "NOT PROVEN"),
    ):
        seen = outcome(dp4), observation(dp4, evidence=evidence)
        found = judged(seen, cases=[dp4], rows=[row(dp4, "parity_loss", 1e-7)])
        assert found.proven.word == word
    assert found.proven.sentence.endswith("not proven: 1 of whose check a rank or a comparison is not in the record")


def test_cases_that_differ_with_none_to_decide_are_not_proven() -> None:
    dp2, tp2 = trained("dp2"), trained("tp2")
    disputed = [
        row(of, "agreement", None, basis="not proven: the loss of the first step is 7, and 6 in the other")
        for of in (dp2, tp2)
    ]
    rows = [row(dp2, "parity_loss", 1e-7), row(tp2, "parity_loss", 1e-7), *disputed]
    found = judged(good(dp2), good(tp2), cases=[dp2, tp2], rows=rows)
    assert (found.proven.word, found.exit_code) == ("NOT PROVEN", 0)
    assert found.proven.sentence.endswith(
        "not proven: 2 whose loss or norm differs from a case that should compute the same, and no case on one rank "
        "decides"
    )


def test_one_case_without_proof_makes_the_run_not_proven() -> None:
    dp2, tp2 = trained("dp2"), trained("tp2", parity=False)
    found = judged(good(dp2), good(tp2), cases=[dp2, tp2], rows=[row(dp2, "parity_loss", 1e-7)])
    assert found.proven.word == "NOT PROVEN"
    assert found.proven.counts == {"training_cases": 2, "proven": 1}


def test_a_wrong_training_case_counts_among_those_that_were_held_against_one_rank() -> None:
    """'1 of 1 held' stood before 'wrong: tp2'; and of a case that was wrong in one of two repeats, '2 of 2'."""
    dp2, tp2 = trained("dp2"), trained("tp2")
    held, refuted = good(dp2), (outcome(tp2, "wrong"), None)
    for more in ((), ((outcome(tp2, repeat=1), observation(tp2, repeat=1)),)):
        rows = [row(dp2, "parity_loss", 1e-7), row(tp2, "parity_loss", 1e-7)]
        found = judged(held, refuted, *more, cases=[dp2, tp2], rows=rows)
        assert (found.proven.word, found.proven.counts) == ("WRONG", {"training_cases": 2, "proven": 1})
        assert found.proven.sentence == (
            f"1 of 2 training cases held against one rank before the clock started; wrong: {tp2.id}"
        )


def test_of_a_dry_case_beside_one_that_ran_it_is_not_said_that_it_has_few_iterations() -> None:
    """'5 with 2 iterations or fewer, too few to tell how steady' were those of the dry run."""
    dry = case("d", benchmark="dry_step")
    counted = outcome(dry), observation(dry, [[0.01]] * dry.world_size)
    mixed = judged(good(ONE), counted, cases=[ONE, dry]).measured.sentence
    assert mixed == "2 of 2 cases, 1 of them worked out by a dry run"
    few = outcome(ONE), observation(ONE, [[0.01, 0.01]] * ONE.world_size)
    assert judged(few, counted, cases=[ONE, dry]).measured.sentence.endswith(
        "1 with 2 iterations or fewer, too few to tell how steady"
    )


def test_not_judged_is_0_and_says_what_it_would_take() -> None:
    found = judged(good(ONE), cases=[ONE])
    assert (found.machine.word, found.exit_code) == ("NOT JUDGED", 0)
    assert found.machine.sentence == (
        "links (it takes link_matrix in the suite, or peer_copy for the GPUs of a host); "
        "ranks (it takes matmul or device_copy in the suite)"
    )
    assert found.machine.parts is not None
    why = "ranks (no case lets ranks work without waiting for each other; it takes matmul or device_copy in the suite)"
    assert found.machine.parts["not_judged"][1] == why


def test_what_the_same_would_take_is_said_once() -> None:
    noisy = [NotJudged(f"{ranks} ranks in matmul", f"{ranks} of noise", "a quieter machine") for ranks in range(2, 7)]
    found = verdict(reading(good(ONE), cases=[ONE], rows=[]), {"straggler": Answer(not_judged=tuple(noisy))})
    assert found.machine.sentence == (
        "2 ranks in matmul, 3 ranks in matmul, 4 ranks in matmul and 2 more (it takes a quieter machine)"
    )
    assert judged(good(ONE), cases=[ONE], fail_on=["not-judged"]).failing == ("not-judged",)


def test_a_figure_below_its_floor_is_a_suspect() -> None:
    floor = Floor("busbw", "at_least", "0.7 of typical", "B/s", 300e9, basis="430 GB/s: published")
    asked = case("f", floors=(floor,))
    rows = [row(asked, "busbw", 180e9, unit="B/s", low=179e9, high=181e9, iterations=20)]
    found = judged(good(asked), cases=[asked], rows=rows)
    assert (found.machine.word, found.exit_code) == ("SUSPECT", 1)
    assert found.machine.sentence.startswith("Floor: planted/1n4/f, busbw, 180.0 GB/s, 40 % below 300.0 GB/s; not judg")
    assert judged(good(asked), cases=[asked], rows=rows, fail_on=["incomplete"]).exit_code == 0


def test_a_floor_without_a_reference_is_not_judged() -> None:
    asked = case("f", floors=(Floor("busbw", "at_least", "0.7 of typical", "B/s", None, basis="nothing is known"),))
    found = judged(good(asked), cases=[asked])
    assert (found.machine.word, found.exit_code) == ("NOT JUDGED", 0)
    assert "planted on 1 node: busbw at least 0.7 of typical (nothing is known; it takes a" in found.as_json()


def test_a_part_that_is_not_judged_is_said_beside_the_suspect() -> None:
    found = judged(matmul(slow=1.61), cases=[MATMUL])
    assert found.conditions == ("not-proven", "suspect", "not-judged")
    assert found.machine.sentence.startswith("Straggler: rank 3 on laptop, 61 % slower; not judged: links (")


def test_clocks_that_had_not_settled_count_as_unsteady_and_are_said() -> None:
    drift = row(ONE, "warm_up_drift", 0.03, expected=0.01, basis="not settled: the last two stretches do not agree")
    found = judged(good(ONE), good(TWO), rows=[drift])
    assert found.measured.sentence == "2 of 2 cases; 1 of 2 unsteady (1 not settled)"
    assert judged(good(ONE), good(TWO), rows=[drift], fail_on=["unsteady"]).failing == ("unsteady",)


def test_unsteady_is_0_and_said() -> None:
    spread = [row(ONE, "time_cv", 0.4, expected=0.05, iterations=20)]
    found = judged(good(ONE), cases=[ONE], rows=spread)
    assert (found.measured.word, found.exit_code) == ("COMPLETE", 0)
    assert found.measured.sentence == "1 of 1 case; 1 of 1 unsteady"
    assert judged(good(ONE), cases=[ONE], rows=spread, fail_on=["unsteady"]).failing == ("unsteady",)


def test_skipped_refused_and_expected_cases_change_nothing() -> None:
    tight, absent = case("c", expected_outcomes=("out_of_memory",)), case("d")
    found = judged(
        good(ONE),
        (outcome(tight, "out_of_memory"), None),
        (outcome(absent, "skipped", reason="no GPU"), None),
        cases=(ONE, tight, absent),
    )
    assert (found.measured.word, found.exit_code) == ("COMPLETE", 0)
    assert found.measured.sentence == "1 of 2 cases; 1 out of memory as expected; 1 skipped"


def test_nothing_measured_is_neither_complete_nor_a_failure() -> None:
    skipped = judged((outcome(ONE, "skipped", reason="no GPU"), None), cases=[ONE])
    assert (skipped.words, skipped.exit_code) == ("NOTHING MEASURED, NOT PROVEN, NOT JUDGED", 0)
    assert judged(cases=[]).measured.word == "NOTHING MEASURED"
    assert judged(cases=[]).machine.sentence == "nothing was measured; it takes a case that ends well"


def test_one_rank_has_no_peer() -> None:
    alone = replace(ONE, world_size=1)
    sentence = judged(good(alone, seconds=[[0.01] * 5]), cases=[alone]).machine.sentence
    assert sentence == "one rank has no peer; it takes more ranks, and matmul or link_matrix in the suite"


def test_an_import_is_imported_and_crashes_are_those_of_the_source() -> None:
    cases = [
        case("a", benchmark="imported"),
        *(case(f"b{n}", benchmark="imported", expected_outcomes=("failed",)) for n in range(3)),
    ]
    crashed = [(outcome(one, "failed", reason="crash"), None) for one in cases[1:]]
    found = judged(good(cases[0]), *crashed, cases=cases)
    assert found.words == "IMPORTED, NOT PROVEN, NOT JUDGED"
    assert (found.tone, found.exit_code) == ("imported", 0)
    assert found.measured.sentence == "1 of 4 cases; 3 crashed in the source (75 %)"
    assert "as expected" not in found.text()
    assert found.machine.sentence == "an import holds no samples of ranks; it takes a run on the machine"


# What counts


def test_the_suite_adds_to_what_counts_and_the_command_line_replaces_it() -> None:
    read = reading(good(ONE), cases=[ONE])
    object.__setattr__(read.plan, "fail_on", ("not-judged",))
    answers = examine(read)
    assert verdict(read, answers).fail_on == ("incomplete", "suspect", "not-judged")
    assert verdict(read, answers).exit_code == 1
    assert verdict(read, answers, ["suspect"]).exit_code == 0


def test_a_suite_says_what_its_runs_fail_on(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("suite: s\nfail_on: [not-judged, unsteady]\nbenchmarks:\n  - benchmark: matmul\n")
    assert load_suite(path).fail_on == ("not-judged", "unsteady")
    path.write_text("suite: s\nfail_on: [not-juged]\nbenchmarks:\n  - benchmark: matmul\n")
    with pytest.raises(SuiteError) as error:
        load_suite(path)
    assert str(error.value) == (
        f"{path}:2: 'fail_on' must be one of 'incomplete', 'not-proven', 'suspect', 'not-judged', 'unsteady', not "
        "'not-juged'. Did you mean 'not-judged'?"
    )


def test_acceptance_suites_fail_on_a_machine_that_is_not_judged() -> None:
    fails = {path.stem: load_suite(path).fail_on for path in sorted((ROOT / "suites").glob("*.yaml"))}
    assert {name for name, fail_on in fails.items() if fail_on} == {"acceptance", "fabric", "links"}
    assert {fails["fabric"], fails["links"]} == {("not-judged",)}


@pytest.mark.parametrize("verb", [["run", "suites/tp_scale.yaml"], ["report", str(FABRIC)]])
@pytest.mark.parametrize("word", ["supsect", ""])
def test_an_unknown_condition_on_the_command_line_is_one_clear_error(verb: list[str], word: str) -> None:
    done = CliRunner().invoke(main, [*verb, "--fail-on", word])
    assert done.exit_code == 2
    meant = " Did you mean 'suspect'?" if word else ""
    assert done.stderr.splitlines()[-1] == (
        f"Error: Invalid value for '--fail-on': must be of {', '.join(FAIL_ON)}, not '{word}'.{meant}"
    )


def test_the_table_of_the_docs_names_every_word_and_condition() -> None:
    text = (ROOT / "docs" / "verdict.md").read_text()
    words = ["COMPLETE", "INCOMPLETE", "WRONG", "IMPORTED", "PROVEN", "HEALTHY", "SUSPECT"]
    for said in (*words, "NOTHING MEASURED", "NOT PROVEN", "NOT JUDGED", *FAIL_ON):
        assert f"`{said}`" in text, said


# The runs that showed it


def planted(folder: Path, matmul_times: float = 1.0, links_times: float = 1.0) -> Path:
    """A copy of an example, in which rank 3 is slower at matrix products, or each link of it carries less."""
    shutil.copytree(FABRIC, folder)
    lines = []
    for line in (folder / "observations.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["case"].startswith("matmul/1n4"):
            record["seconds"][3] = [matmul_times * second for second in record["seconds"][3]]
        if record["case"].startswith("link_matrix"):
            for samples in record["passes"]["samples"]:
                for key in samples:
                    if "bandwidth" in key and ("source=3" in key or "part=3" in key):
                        samples[key] = [links_times * rate for rate in samples[key]]
        lines.append(json.dumps(record))
    (folder / "observations.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def reported(folder: Path, *options: str) -> tuple[int, list[str], str]:
    """Exit code, what the terminal shows below the answer, and the page."""
    done = CliRunner().invoke(main, ["report", str(folder), *options])
    return done.exit_code, done.stderr.partition("\n\n")[2].splitlines(), (folder / "index.html").read_text()


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 3 takes 1.6 times as long for a matrix product, and its links carry 0.3 of what they did."""
    return planted(tmp_path_factory.mktemp("sick") / "run", 1.6, 0.3)


@pytest.fixture(scope="module")
def sick_report(sick: Path) -> tuple[int, list[str], str]:
    return reported(sick)


@pytest.fixture(scope="module")
def report_as_recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str], str]:
    return reported(planted(tmp_path_factory.mktemp("recorded") / "run"))


def test_a_slow_rank_with_slow_links_is_a_suspect_in_the_first_lines(
    sick: Path, sick_report: tuple[int, list[str], str]
) -> None:
    """Page review A1: this run was a green PASS with exit code 0."""
    exit_code, lines, page = sick_report
    assert exit_code == 1
    assert lines[2].startswith(
        "machine   SUSPECT     Slow link: vm:3, 79 % slower than its peers; Straggler: rank 3 on vm, 61 % slower; "
    )
    assert lines[3].startswith("exit code 1: suspect; ")
    assert '<div class="verdict suspect">' in page
    assert page.index("Straggler: rank 3 on vm, 61 % slower") < page.index('<p class="answer">')
    assert "</span> Straggler: rank 3 on vm, 61 % slower</h3>" in page  # the finding's title
    found = json.loads((sick / "verdict.json").read_text())
    assert found["machine"]["word"] == "suspect"
    assert found["machine"]["suspects"][1] == "Straggler: rank 3 on vm, 61 % slower"
    assert (found["failing"], found["exit_code"]) == (["suspect"], 1)


def test_one_slow_unit_of_four_is_named_by_its_links(sick_report: tuple[int, list[str], str]) -> None:
    """Page review A2: under this matrix the page said that none was slower than its peers."""
    _, _, page = sick_report
    assert "None is slower than its peers" not in page
    assert (
        "median of the others 1.7 GB/s, slowest vm:0 -&gt; vm:3 with 314.8 MB/s. Slower than their peers: vm:3." in page
    )


def test_links_that_differ_by_noise_are_not_judged_and_not_called_alike(
    report_as_recorded: tuple[int, list[str], str],
) -> None:
    """Page review A2: 1.05 to 2.11 GB/s, and 0.06 to 2.0 ms, stood under "None is slower than its peers"."""
    exit_code, lines, page = report_as_recorded
    assert exit_code == 0
    assert lines[2].startswith(
        "machine   NOT JUDGED  links inside vm (it takes a quiet host and more repetitions, or the same matrix of "
    )
    assert "None is slower than its peers" not in page
    assert (
        "Not judged: they differ by design or by noise, 1.0 GB/s to 2.1 GB/s. Latency is 60.16 us to 1.997 ms." in page
    )


def test_figures_that_are_unsteady_are_called_so_where_they_stand(
    report_as_recorded: tuple[int, list[str], str],
) -> None:
    """Page review A5: four digits in the headline, of cases that a finding below said are not to be trusted."""
    _, lines, page = report_as_recorded
    assert "71 of 89 unsteady (4 ranks share 2 cores)" in lines[0]
    answer = page.split('<p class="answer">', 1)[1].split('<dl class="facts">', 1)[0]
    assert re.search(
        r'<strong class="unsteady">Unsteady: (all|\d+ of the) \d+ cases behind this have iterations', answer
    )
    assert page.count("</span> Unstable: ") == 1  # one finding, with the list folded
    assert "Unstable: the machine, 71 of 89 unsteady: 4 ranks share 2 cores" in page
    assert "<summary>71 cases</summary>" in page


def test_what_fails_can_be_chosen_and_is_written_down(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [MATMUL], [matmul(slow=1.61)])
    assert reported(run.path)[0] == 1
    assert reported(run.path, "--fail-on", "incomplete")[0] == 0
    assert reported(run.path, "--fail-on", "not-judged")[1][3].startswith("exit code 1: not-judged; ")
    assert json.loads((run.path / "verdict.json").read_text())["fail_on"] == ["not-judged"]


def test_what_the_suite_fails_on_is_in_the_plan_and_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [ONE], [good(ONE)])
    head, *rest = (run.path / "plan.jsonl").read_text().splitlines()
    said: Mapping[str, Any] = {**json.loads(head), "fail_on": ["not-judged"]}
    (run.path / "plan.jsonl").write_text("\n".join([json.dumps(said), *rest]) + "\n")
    assert RunFolder.open(run.path).plan().fail_on == ("not-judged",)
