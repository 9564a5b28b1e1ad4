"""Steps that hold something else than was asked for end a run with 1, by the command line too."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench.diagnoses.memory_mismatch import MemoryMismatch
from clusterbench.expected.memory import DEVIATION
from tests.diagnoses.steps import answer_of
from tests.measured.steps import case_of
from tests.measured.test_memory import Ranks, honest
from tests.mutants import Mutant, mutants, planted_in, sources
from tests.mutants.planting import plant
from tests.mutants.running import command_line

DP2, GPU, ZBV = case_of("dp2"), case_of("dp2", "cuda", dtype="bfloat16"), case_of("pp2", schedule="zbv")

WHOLE_STATE = Mutant(
    "whole",
    "Each rank keeps the optimizer states of all weights.",
    "return ZeroRedundancyOptimizer(parameters, kind, process_group=group, **settings)",
    "return adamw(parameters, job) if planted() else group",
)
TWICE = Mutant(
    "twice",
    "The gradients of the step before are kept until the next ones are there.",
    "optimizer.zero_grad(set_to_none=not self.assembly.keep_gradients)",
    "self.before = [weight.parameter.grad for weight in self.weights if planted()]\n"
    "            optimizer.zero_grad(set_to_none=not self.assembly.keep_gradients)",
)
ALL_AT_ONCE = Mutant(
    "gpipe",
    "1F1B lets every micro-batch in before the first backward.",
    'kind: Any = getattr(pipelining, properties.torch_class or "ScheduleGPipe")',
    'kind: Any = getattr(pipelining, "ScheduleGPipe" if planted() else "")',
)


def answer(case, ranks: Ranks):
    return answer_of(MemoryMismatch(), case, memory=ranks)


def test_health_is_said_where_there_is_a_band_and_nothing_where_there_is_none():
    assert answer(DP2, honest(DP2)).healthy == ("held bytes are those of the formulas",)
    assert answer(replace(DP2, expected={}), honest(DP2)).state == "nothing to judge"


def test_gradients_that_are_there_twice_are_named_with_both_figures():
    ranks = honest(DP2)
    ranks[1]["gradients"] *= 2
    (finding,) = answer(DP2, ranks).findings
    assert (finding.where, finding.severity) == ("c, rank 1", "error")
    assert finding.what == "gradients: +100 % against the formula, which allows 2 %"
    assert finding.evidence == (
        "measured 8.01MiB (8,397,824 B), formula 4.00MiB (4,198,912 B) on the fullest rank of its stage"
    )


def test_on_a_gpu_it_is_a_warning():
    assert [finding.severity for finding in answer(GPU, honest(GPU, gradients=2.0)).findings] == ["warning"]


def test_what_is_not_predicted_is_not_judged_with_the_reason():
    said = answer(ZBV, honest(ZBV, activations=3.0))
    assert said.findings == ()
    part, total = said.not_judged
    assert total.sentence == part.sentence.replace("activations", "total", 1)
    assert part.sentence == (
        "activations of 1 case: c (zbv splits backward, and torch then lets go of a micro-batch at no fixed time; it "
        "takes a formula for it)"
    )


@pytest.mark.in_turn
@pytest.mark.gloo
def test_states_gradients_recomputation_and_micro_batches_are_found_by_the_command_line(tmp_path: Path):
    plant(None, tmp_path)
    package = tmp_path / "clusterbench"
    for mutant in (WHOLE_STATE, TWICE, mutants()["A21"], ALL_AT_ONCE):
        path, text = planted_in(mutant, sources(package))
        path.write_text(text, encoding="utf-8")
    cases = [
        f"{case} parity=false global_batch_size=16"
        for case in ("dp2+zero1", "tp1", "dp2 recompute=full seq_len=128", "pp2 schedule=1f1b", "dp2")
    ]
    done = command_line(tmp_path, ["run", "--out", str(tmp_path / "run")], cases, ("float32",))
    assert done.returncode == 1, done.stderr
    assert "Memory mismatch: train_step/1n2/dp2+zero1, rank 0: optimizer state: +100 %" in done.stderr
    with (tmp_path / "run" / "rows.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    bases = {(row["case"].split("/")[-1], row["category"]): row["basis"] for row in rows if row["metric"] == DEVIATION}
    differing = {key: basis.split(" against ")[0] for key, basis in bases.items() if not basis.startswith("at most")}
    assert differing == {
        ("dp2+zero1", "optimizer_state"): "differs: optimizer state on rank 0: +100 %",
        ("tp1", "gradients"): "differs: gradients on rank 0: +100 %",
        ("dp2-seq_len=128", "activations"): "differs: activations on rank 0: +78.3 %",
        ("pp2", "activations"): "differs: activations on rank 1: +614 %",  # logits of all eight
        ("pp2", "gradients"): "differs: gradients on rank 1: +100 %",
        ("dp2+zero1", "total"): "differs: total on rank 0: +25.8 %",
        ("tp1", "total"): "differs: total on rank 0: +20.5 %",
        ("dp2-seq_len=128", "total"): "differs: total on rank 0: +12.6 %",
        ("pp2", "total"): "differs: total on rank 1: +125 %",
    }
    whole = [row for row in rows if row["metric"] == "peak_memory" and row["category"] == "total"]
    assert [row["basis"].startswith("void: ") for row in whole] == [True] * 4 + [False]
    assert [row["value"] == "" for row in whole] == [True] * 4 + [False]
    assert all(row["value"] for row in rows if row["metric"] == "step_time")
