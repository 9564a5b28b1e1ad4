from __future__ import annotations

import json

import pytest

# microsoft/superbenchmark, tests/data/hpl_results.log: HPLinpack 2.3 of AMD on two ranks.
RUN = """\
HPLinpack 2.3  --  High-Performance Linpack benchmark  --   December 2, 2018
Column=000000384 Fraction= 0.1% Gflops=7.818e+03
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR0XR8C48      384000   384     1     2            4645.37             8.1261e+03
HPL_pdgesv() start time Fri Feb  3 16:33:45 2023
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   4.12139792e-03 ...... {word}
"""
# GoogleCloudPlatform/PerfKitBenchmarker, nvidia_hpl_benchmark.py: NVIDIA's, with the rate per GPU behind it.
NVIDIA = "WC0         376832  1024     4     4        85.42       4.176e+05 ( 2.610e+04)\n"
# eth-cscs/cray-network-stack, examples/container/nv-hpc-bench/README.md: NVIDIA's 25.04 on 8 GH200; its header has the
# rate per GPU, too.
WHOLE = """\
T/V                N    NB     P     Q         Time          Gflops (   per GPU)
--------------------------------------------------------------------------------
WC0           299008  1024     2     4        52.88       3.370e+05 ( 4.213e+04)

HPL_pdgesv() start time Sun Jun  8 23:23:45 2025
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   0.000550841189 ...... PASSED
||Ax-b||_oo  . . . . . . . . . . . . . . . . . = 0.0000000064268288
"""
# ULHPC/tutorials, parallel/mpi/HPL/README.md: a solve of the HPL.dat that HPL comes with.
SHORT = """\
WR00L2L2          29     3     4     1               0.00             9.9834e-03
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0181653 ...... PASSED
"""


def test_the_time_of_a_solve_that_is_printed_as_zero_follows_from_its_rate(imported, tmp_path):
    rows = imported(SHORT, num_nodes=1)
    assert rows["1n4/n29", "flops_per_s"] == (9.9834e6, "imported from said.txt:1")
    (observation,) = map(json.loads, (tmp_path / "run" / "observations.jsonl").read_text().splitlines())
    assert observation["seconds"][0] == [pytest.approx(17520.83 / 9.9834e6)]


def test_a_solve_is_a_case_on_the_ranks_of_its_grid(imported):
    rows = imported(RUN.format(word="PASSED"), num_nodes=1)
    assert rows == {("1n2/n384000", "flops_per_s"): (8126.1e9, "imported from said.txt:5")}


def test_nvidias_rate_is_of_all_gpus_and_one_without_a_residual_is_noted(imported, tmp_path):
    rows = imported(NVIDIA, num_nodes=2)
    assert [value for value, _ in rows.values()] == [4.176e14]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["imported"]["notes"] == [
        "said.txt:1: no residual is printed, so that its result was not checked"
    ]


def test_of_hpcc_it_is_said_that_only_its_hpl_is_read(imported, tmp_path):
    """Source: icl-utk-edu/hpcc, src/io.c."""
    imported(
        "This is the DARPA/DOE HPC Challenge Benchmark version 1.5.0 October 2012\n" + RUN.format(word="PASSED"),
        num_nodes=1,
    )
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["imported"]["notes"] == [
        "said.txt: the text is that of HPCC, of which HPL alone is read: PTRANS, STREAM, FFT and others are left out"
    ]


def test_nvidias_residual_is_read(imported, tmp_path):
    assert [value for value, _ in imported(WHOLE, num_nodes=2).values()] == [3.370e14]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["imported"]["notes"] == []


def test_a_residual_that_failed_is_a_wrong_case_and_repeats_are_attempts(imported, tmp_path):
    rows = imported(RUN.format(word="PASSED") + RUN.format(word="FAILED"), num_nodes=2)
    assert [value for value, _ in rows.values()] == [8126.1e9, None]
    outcomes = [json.loads(line) for line in (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()]
    assert [each["status"] for each in outcomes] == ["ok", "wrong"]
    assert outcomes[1]["reason"] == "said.txt:12: the residual 4.12139792e-03 failed HPL's check"


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (RUN, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (RUN, {"num_nodes": 4}, "said.txt: 2 ranks do not fill 4 nodes."),
        (
            RUN + RUN[: RUN.index("8.1261e+03")],
            {"num_nodes": 1},
            "said.txt: HPL printed a row that is not whole: 'WR0X",
        ),
        (RUN.replace("8.1261e+03", "8.1261e+01"), {"num_nodes": 1}, "said.txt: HPL printed a rate that is not the"),
    ],
)
def test_what_does_not_say_enough_or_contradicts_itself_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)
