"""Steps that compute something else than was asked for end a run with 1, by the command line too."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench import api
from clusterbench.diagnoses.flops_mismatch import FlopsMismatch
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.passes import as_json
from tests.diagnoses.steps import answer_of
from tests.measured.steps import case_of
from tests.measured.test_flops import Ranks, changed, honest
from tests.mutants import Mutant, mutants, planted_in, sources
from tests.mutants.planting import plant
from tests.mutants.running import command_line

DP2, GPU = case_of("dp2"), case_of("dp2", "cuda", dtype="bfloat16")

SKIPPED_EXPERT = Mutant(
    "skipped",
    "The last expert of a rank computes nothing.",
    "rows_RH = self.experts(rows_RH, route.rows_L, matrices)",
    "left = int(route.rows_L[-planted()])\n"
    "                rows_L = torch.cat((route.rows_L[:-1], route.rows_L[-1:] * 0))\n"
    "                rows_RH = F.pad(self.experts(rows_RH[:-left], rows_L, matrices), (0, 0, 0, left))",
)


def answer(case, ranks: Ranks):
    return answer_of(FlopsMismatch(), case, executed=as_json(ranks))


def findings(case, ranks: Ranks):
    return list(answer(case, ranks).findings)


def test_health_is_said_where_there_is_a_formula_and_nothing_where_there_is_none():
    assert answer(DP2, honest(DP2)).healthy == ("counted FLOPs are those of the formulas",)
    earlier = replace(DP2, expected={})
    assert answer(earlier, honest(DP2)).state == "nothing to judge"


def test_half_of_a_rank_is_named_with_both_figures():
    ranks = honest(DP2)
    ranks[1] = changed(ranks[1], lambda executed: executed.flops // 2)
    (finding,) = findings(DP2, ranks)
    assert (finding.where, finding.severity) == ("c, rank 1", "error")
    assert finding.what == "FLOPs of products in backward: -50 % against the formula"
    assert finding.evidence == (
        "counted 469.8 MFLOP (469,762,048 FLOP), formula 939.5 MFLOP (939,524,096 FLOP) in one step; 3 other figures "
        "of this step differ as well"
    )


def test_on_a_gpu_it_is_a_warning():
    ranks = [changed(of_rank, lambda executed: executed.flops // 2) for of_rank in honest(GPU)]
    assert [finding.severity for finding in findings(GPU, ranks)] == ["warning"]


@pytest.mark.in_turn
@pytest.mark.gloo
def test_left_out_layers_micro_batches_recomputation_and_experts_are_found_by_the_command_line(tmp_path: Path):
    plant(None, tmp_path)
    package = tmp_path / "clusterbench"
    for mutant in (*(mutants()[code] for code in ("Q07", "S24", "A21")), SKIPPED_EXPERT):
        path, text = planted_in(mutant, sources(package))
        path.write_text(text, encoding="utf-8")
    # Q07 is of pipelines alone, and S24 leaves two micro-batches of ours as they are
    cases = [
        f"{case} parity=false"
        for case in (
            "pp2",
            "dp2",
            "dp2 recompute=full global_batch_size=8",
            "dp2+ep2 shape=moe-tiny global_batch_size=8",
            "dp2 global_batch_size=8",
        )
    ]
    done = command_line(tmp_path, ["run", "--out", str(tmp_path / "run")], cases, ("float32",))
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "run" / "verdict.json").read_text(encoding="utf-8"))["measured"]["wrong"]
    again = "train_step/1n2/dp2-global_batch_size=8-recompute=full, rank 0"
    assert f"Flops mismatch: {again}: FLOPs of products in backward: -12.2 % against the formula" in found
    with (tmp_path / "run" / "rows.csv").open(encoding="utf-8") as table:
        rows = [row for row in csv.DictReader(table) if row["metric"] == "model_flops_per_s_per_rank"]
    bases = [row["basis"] for row in rows if row["flops_convention"] == "palm"]
    assert bases[0].startswith("void: FLOPs of products in backward on rank 0 are -12.2 %")
    # what one rank computes refutes these, and the counted FLOPs say why
    histories = api.read(tmp_path / "run").histories
    layers, _, experts = (str(history.outcome) for history in histories if history.status == "wrong")
    assert "Found as well: FLOPs of products in backward on rank 0 are -50 % against the formula" in layers
    assert "Found as well: FLOPs of grouped products in backward on all ranks together are -" in experts
    # S24 leaves out the last micro-batch
    outcomes = RunFolder.open(tmp_path / "run").outcomes()
    assert [outcome.status for outcome in outcomes] == ["ok", "wrong", "ok", "ok", "ok"]
    assert outcomes[1].reason.startswith("1 call of dp2 made 2 forwards too few on rank 0.")
    assert bases[1:] == [""]  # a case that none of them touches has its figures
