from __future__ import annotations

import json

import pytest

# scc25-benchmarking.readthedocs.io, benchmarks/mxphpl: NVIDIA's HPL-MxP on 8 GPUs.
RUN = """\
****** HPL MxP Result ******
EPS . . . . . . . . . . . . . . . . . = 2.000000E-16
||Ax-b||_oo . . . . . . . . . . . . . . . . . = 8.737455E-14
||Ax-b||_oo / (EPS * (||A||_oo * ||x||_oo + ||b||_oo) * N) = 5.599413E-04 ...... PASSED
N = 258048, NB = 1024, NPROW = 4, NPCOL = 2, SLOPPY-TYPE = 2
GFLOPS = 4.3468e+05, per GPU = 54335.58 ------ The HPL-MxP performance to report
LU GFLOPS = 2.4940e+06, per GPU = 311748.98 ------ The performance excluding the iterative solver part
****** HPL MxP Result ******
"""


def test_the_rate_to_report_is_the_figure_and_that_without_the_solver_is_not(imported, tmp_path):
    rows = imported(RUN, num_nodes=1)
    assert rows == {("1n8/HPL-MxP", "flops_per_s"): (4.3468e14, "imported from said.txt:6")}
    (observation,) = map(json.loads, (tmp_path / "run" / "observations.jsonl").read_text().splitlines())
    assert observation["seconds"][0] == [pytest.approx(26.354, rel=1e-3)]


def test_a_residual_that_failed_is_a_wrong_case(imported, tmp_path):
    assert [value for value, _ in imported(RUN.replace("PASSED", "FAILED"), num_nodes=1).values()] == [None]
    (outcome,) = map(json.loads, (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines())
    assert (outcome["status"], outcome["reason"]) == (
        "wrong",
        "said.txt:6: the residual 5.599413E-04 failed HPL-MxP's check",
    )


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (RUN, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (RUN, {"num_nodes": 9}, "said.txt: 8 ranks do not fill 9 nodes."),
        (
            RUN.replace("54335.58", "5433.558"),
            {"num_nodes": 1},
            "said.txt: HPL-MxP printed a rate that is not 4 x 2 times",
        ),
        (
            RUN.replace("||_oo / (", "||_oo ("),
            {"num_nodes": 1},
            "said.txt: HPL-MxP's rate of line 6 has no residual or",
        ),
        (
            RUN.replace("GFLOPS = 4.3468e+05", "GFLOPS").replace("LU GFLOPS", "LU\nGFLOPS"),
            {"num_nodes": 1},
            "said.txt: HPL-MxP's result is cut: it has no line with its rate",
        ),
        (RUN[: RUN.index(", per GPU")], {"num_nodes": 1}, "said.txt: HPL-MxP's result is cut: it has no line with its"),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)
