from __future__ import annotations

import json
import re

import pytest

from tests.tools import printed


def records(wrong='"0"', number=2):
    """As rccl-tests writes them."""
    return "".join(
        f'{{"numCycle":0, "name":"AllReduce", "nodes":1, "ranks":8, "ranksPerNode":8, "gpusPerRank":1, "size":{size}, '
        f'"type":"float", "redop":"sum", "inPlace":{place}, "time":10.500000, '
        f'"algBw":1.0, "busBw":1.75, "wrong":{wrong}}}\n'
        for size in (1024, 2048)[:number]
        for place in (0, 1)
    )


WRONG = printed.NCCL_TESTS.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 2 FAILED")


@pytest.mark.parametrize(
    "text", [printed.NCCL_TESTS, printed.NCCL_ALLTOALL, records(), f"[\n{records().strip().replace(chr(10), ',')}\n]"]
)
def test_right_results_are_in_order_and_their_rate_is_not_judged(examined, text):
    examination, _ = examined(text)
    assert (examination.word, examination.found) == ("NOT JUDGED", ())
    assert "wrong_result" in [healthy.name for healthy in examination.healthy]


@pytest.mark.parametrize("text", [WRONG, records(wrong='"3"')])
def test_wrong_results_are_found(examined, text):
    (found,) = examined(text)[0].found
    assert (found.name, found.severity) == ("wrong_result", "error")


def test_wrong_results_of_a_table_that_is_cut_are_found(examined):
    cut = printed.NCCL_TESTS.partition("# Out of bounds")[0].rstrip("\n").splitlines()
    wrong = re.sub(r"\b0$", "5", cut[-1].rstrip())
    assert wrong != cut[-1].rstrip()
    (found,) = examined("\n".join([*cut[:-1], wrong, "    134217728  335"]))[0].found
    assert (found.name, found.evidence) == ("wrong_result", f"said.txt:{len(cut)}: {wrong.strip()}")


def test_a_verdict_alone_is_enough(examined):
    """As nccl-tests printed it in 2018, its columns called otherwise: NVIDIA/nccl-tests, issue 7."""
    said = (
        "nThread 1 nGpus 8 minBytes 9 maxBytes 33554432 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1\n"
        "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
        "           8             2   float     sum    0.094   0.00   0.00    2e+00    0.093   0.00   0.00    2e+00\n"
        " Out of bounds values : 248 FAILED\n Avg bus bandwidth    : 1.34\n"
    )
    examination, kind = examined(said)
    (found,) = examination.found
    assert (kind, found.name, found.evidence) == (
        "nccl-tests",
        "wrong_result",
        "said.txt:4: Out of bounds values : 248 FAILED",
    )


def test_a_table_whose_marks_markdown_took_for_headings_is_read(examined):
    """As in NVIDIA/nccl, issue 583."""
    said = printed.NCCL_TESTS.replace("\n#", "\n").removeprefix("#")
    assert said.count("#") < printed.NCCL_TESTS.count("#") - 3
    assert examined(said)[0].healthy == examined(printed.NCCL_TESTS)[0].healthy


# As -S prints times behind the rows: NVIDIA/nccl-tests, src/util.cu, writeTimestamp.
STAMPED = re.sub(
    r"(?m)( +\d+ +\d+ +float .*)$",
    r"\1  2026-03-02 14:01:37",
    printed.NCCL_TESTS.replace("busbw  #wrong\n", "busbw  #wrong           timestamp\n").replace(
        "(GB/s)\n", "(GB/s)          %Y-%m-%d %H:%M:%S\n"
    ),
)


def test_a_table_with_times_is_read(examined):
    assert examined(STAMPED)[0].healthy[0].what == examined(printed.NCCL_TESTS)[0].healthy[0].what


def test_wrong_results_of_a_row_with_a_time_are_found_where_the_table_is_cut(examined):
    said = STAMPED.replace("0  2026", "7  2026")
    (found,) = examined(said[: said.index("# Out of bounds")])[0].found
    assert found.name == "wrong_result"


def test_the_line_of_the_verdict_is_cited(examined):
    (found,) = examined(WRONG)[0].found
    assert found.evidence.endswith(": # Out of bounds values : 2 FAILED")


def test_the_report_of_nccl_tests_as_json_is_read(examined):
    report = {"version": 3, "nccl_version": "2.29.3", "results": [{}], "out_of_bounds": {"count": 4, "okay": False}}
    assert [found.name for found in examined(json.dumps(report))[0].found] == ["wrong_result"]


def test_results_that_were_not_checked_are_not_judged(examined):
    examination, _ = examined(records(wrong='"N/A"'))
    assert [part.name for part in examination.not_judged] == ["wrong_result", "collective_rate"]


def test_a_call_that_failed_is_found(examined):
    said = "cb17: Test NCCL failure common.cu:1005 'unhandled cuda error / '\n"
    assert [found.severity for found in examined(said)[0].found] == ["warning"]


@pytest.mark.parametrize("name", ["nccl_tests_alltoall_superbench.txt", "nccl_tests_2_17_a100_2node_abridged.txt"])
def test_wrong_results_that_are_planted_in_a_real_text_are_found(examined, sample, name):
    text = sample(name)
    assert examined(text)[0].found == ()
    planted = text.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 1 FAILED")
    assert [found.name for found in examined(planted)[0].found] == ["wrong_result"]


def test_a_second_table_that_is_cut_is_no_part_of_the_first(examined):
    cut = printed.NCCL_TESTS.partition("# Out of bounds")[0]
    examination, _ = examined(printed.NCCL_TESTS + cut)
    assert (examination.healthy, [each.name for each in examination.not_judged]) == ((), ["wrong_result"])
    (found,) = examined(printed.NCCL_TESTS + cut.replace("44.48       0", "44.48      37"))[0].found
    assert (found.name, found.severity) == ("wrong_result", "error")
