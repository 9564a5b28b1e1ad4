from __future__ import annotations

import json

import pytest

# microsoft/VirtualClient, VirtualClient.Actions.UnitTests/Examples/Hpcg/HpcgExample1.txt: HPCG 3.1.
RUN = """\
HPCG-Benchmark
version=3.1
Release date=March 28, 2019
Machine Summary=
Machine Summary::Distributed Processes=2
Machine Summary::Threads per processes=2
Global Problem Dimensions=
Global Problem Dimensions::Global nx=32
Global Problem Dimensions::Global ny=16
Global Problem Dimensions::Global nz=16
Benchmark Time Summary=
Benchmark Time Summary::Optimization phase=3e-07
Benchmark Time Summary::Total=0.0686362
GFLOP/s Summary::Raw Total=1.99534
GFLOP/s Summary::Total with convergence and optimization phase overhead=1.94783
Final Summary=
Final Summary::HPCG result is VALID with a GFLOP/s rating of=1.94783
Final Summary::HPCG 2.4 rating for historical reasons is=1.99533
Final Summary::Results are valid but execution time (sec) is=0.0686362
"""
INVALID = RUN.replace("is VALID with a GFLOP/s rating of=1.94783", "is=INVALID.")
# The same names as YAML_Doc.cpp of HPCG 3.0 writes them.
YAML = """\
HPCG-Benchmark version: 3.0
Machine Summary:
  Distributed Processes: 2
  Threads per processes: 2
Global Problem Dimensions:
  Global nx: 32
  Global ny: 16
  Global nz: 16
Benchmark Time Summary:
  Total: 60.5
Floating Point Operations Summary:
  Total: 1.36952e+08
Final Summary:
  HPCG result is VALID with a GFLOP/s rating of: 1.94783
"""


def test_the_official_rating_is_the_figure_and_a_short_run_is_noted(imported, tmp_path):
    rows = imported(RUN, num_nodes=1)
    assert rows == {("1n2/32x16x16", "flops_per_s"): (1.94783e9, "imported from said.txt:17")}
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["imported"]["notes"] == [
        "said.txt:17: it took 0.0686362 s, which HPCG calls too short for an official result"
    ]


def test_what_script_records_of_a_terminal_is_read(imported):
    recorded = "Script started on 2026-03-14 09:26:00+01:00\n\x1b[?2004hcb01:~# cat out\r\n\x1b[?2004l\r"
    rows = imported(recorded + RUN.replace("\n", "\r\n") + "\x1b[?2004hcb01:~# exit\r\n", num_nodes=1)
    assert rows["1n2/32x16x16", "flops_per_s"][0] == 1.94783e9


def test_the_older_yaml_says_the_same(imported):
    assert imported(YAML, num_nodes=2) == {
        ("2n2/32x16x16", "flops_per_s"): (1.94783e9, "imported from said.txt:14"),
    }


def test_ranks_are_processes_and_not_threads(cases):
    text = RUN.replace("Processes=2", "Processes=8").replace("per processes=2", "per processes=4")
    (point, _, seconds) = cases(text, num_nodes=1)["1n8/32x16x16"]
    assert (point["threads"], seconds) == (4, 0.0686362)


def test_of_two_ratings_that_agree_the_official_one_counts(imported):
    rows = imported(RUN.replace("overhead=1.94783", "overhead=1.94900"), num_nodes=1)
    assert rows["1n2/32x16x16", "flops_per_s"][0] == 1.94783e9


def test_an_invalid_result_is_a_wrong_case(imported, tmp_path):
    imported(RUN + INVALID, num_nodes=1)
    outcomes = [json.loads(line) for line in (tmp_path / "run" / "outcomes.jsonl").read_text().splitlines()]
    assert [(each["status"], each["reason"]) for each in outcomes] == [
        ("ok", ""),
        ("wrong", "said.txt:36: HPCG calls the result invalid"),
    ]


@pytest.mark.parametrize(
    ("text", "facts", "message"),
    [
        (RUN, {}, "said.txt does not say on how many hosts it ran.\nhint: say it with --num-nodes"),
        (RUN, {"num_nodes": 3}, "said.txt: 2 ranks do not fill 3 nodes."),
        (RUN.replace("of=1.94783", "of=2.94783"), {"num_nodes": 1}, "said.txt: HPCG says two ratings, 2.94783 and 1.9"),
        (RUN[: RUN.index("Final")], {"num_nodes": 1}, "said.txt: HPCG's result of line 1 has no rating: it did not"),
        (RUN[: RUN.index("Benchmark Time")], {"num_nodes": 1}, "said.txt: HPCG's result of line 1 lacks 'Benchmark"),
        (RUN[: RUN.index("94783\nFinal Summary=")], {"num_nodes": 1}, "said.txt: HPCG's result of line 1 has no"),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused(refused, text, facts, message):
    assert refused(text, **facts).startswith(message)
