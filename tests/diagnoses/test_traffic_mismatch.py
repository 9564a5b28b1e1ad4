"""Steps that send something else than was asked for end a run with 1."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.diagnoses.traffic_mismatch import TrafficMismatch
from clusterbench.run_folder.passes import as_json
from tests.diagnoses.steps import answer_of
from tests.measured.steps import case_of
from tests.measured.test_traffic import Ranks, changed, honest, leave_out

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "tp_scale-cpu"
TP2 = case_of("dp2-tp2")


def answer(case, ranks: Ranks):
    return answer_of(TrafficMismatch(), case, traffic=as_json(ranks))


def test_health_is_said_where_there_is_a_formula_and_nothing_where_there_is_none():
    assert answer(TP2, honest(TP2)).healthy == ("counted bytes are those of the formulas",)
    assert answer(replace(TP2, expected={}), honest(TP2)).state == "nothing to judge"
    assert answer(TP2, []).state == "nothing to judge"


def test_bytes_too_many_are_named_with_axis_rank_and_both_figures():
    ranks = honest(TP2)
    ranks[2] = changed(ranks[2], "tp", 1.5)
    (finding,) = answer(TP2, ranks).findings
    assert (finding.where, finding.severity) == ("c, axis tp, rank 2", "error")
    assert finding.what == "counted +50.0 % against the formula"
    formula = TP2.expected["traffic_bytes[axis=tp]"].value
    assert f"({1.5 * formula:,.0f} B), formula " in finding.evidence
    assert finding.evidence.endswith(f"({formula:,.0f} B) in one step")


def test_an_axis_on_which_nothing_was_sent_is_named_if_there_was_a_count():
    (finding,) = answer(TP2, [leave_out(of_rank) for of_rank in honest(TP2)]).findings
    assert (finding.where, finding.what) == ("c, axis dp, rank 0", "counted -100.0 % against the formula")


def test_bytes_that_a_router_decides_are_not_judged():
    routed = case_of("dp2+ep2", shape="moe-tiny")
    assert answer(routed, [changed(of_rank, "ep", 2.0) for of_rank in honest(routed)]).findings == ()


def test_a_report_of_bytes_that_differ_ends_with_1_and_strikes_them_out(tmp_path: Path):
    """At f044351 this was PASS, exit code 0, and of bytes on the second rank alone not even a warning."""
    run = tmp_path / "run"
    shutil.copytree(EXAMPLE, run)
    lines = []
    for line in (run / "observations.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["case"].endswith("/tp2") and "traffic" in record["passes"]:
            for moved in record["passes"]["traffic"][1]:
                moved["traffic_bytes"] /= 2
        lines.append(json.dumps(record))
    (run / "observations.jsonl").write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(main, ["report", str(run)])
    assert done.exit_code == 1
    assert "wrong: Traffic mismatch: train_step/1n2/tp2, axis tp, rank 1: counted -50.0 % against" in done.stderr
    (row,) = [
        line
        for line in (run / "rows.csv").read_text().splitlines()
        if line.split(",")[1] == "train_step/1n2/tp2" and ",traffic_bytes," in line
    ]
    assert "void: axis tp on rank 1: counted -50.0 % against the formula" in row
