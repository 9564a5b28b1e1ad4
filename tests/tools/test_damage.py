"""Whatever happens to a text on its way: the figures are right, or the parser refuses; none is silently wrong."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbench.errors import ToolError
from clusterbench.tools import deepep, fio, gdrcopy, iperf3, nccl_tests, nvbandwidth, nvshmem, perftest, ucx_perftest
from tests.tools import printed

PARSED = {
    "perftest_bandwidth": (perftest.parse, printed.PERFTEST_BANDWIDTH),
    "perftest_gigabits": (perftest.parse, printed.PERFTEST_GIGABITS),
    "perftest_latency": (perftest.parse, printed.PERFTEST_LATENCY),
    "ucx": (ucx_perftest.parse, printed.UCX),
    "copybw": (gdrcopy.parse_copybw, printed.COPYBW),
    "copylat": (gdrcopy.parse_copylat, printed.COPYLAT),
    "copylat_medians": (gdrcopy.parse_copylat, printed.COPYLAT_MEDIANS),
    "pplat": (gdrcopy.parse_pplat, printed.PPLAT),
    "pplat_median": (gdrcopy.parse_pplat, printed.PPLAT_MEDIAN),
    "nvbandwidth": (nvbandwidth.parse, printed.NVBANDWIDTH),
    "nvbandwidth_latency": (nvbandwidth.parse, printed.NVBANDWIDTH_LATENCY),
    "nvbandwidth_bisect": (nvbandwidth.parse, printed.NVBANDWIDTH_BISECT),
    "nvbandwidth_one_to_all": (nvbandwidth.parse, printed.NVBANDWIDTH_ONE_TO_ALL),
    "nvbandwidth_all_to_all": (nvbandwidth.parse, printed.NVBANDWIDTH_ALL_TO_ALL),
    "nccl_tests": (nccl_tests.parse, printed.NCCL_TESTS),
    "nccl_alltoall": (nccl_tests.parse, printed.NCCL_ALLTOALL),
    "nccl_per_iteration": (nccl_tests.parse, printed.NCCL_PER_ITERATION),
    "nvshmem": (nvshmem.parse, printed.NVSHMEM),
    "deepep_internode": (deepep.parse_best, printed.DEEPEP_INTERNODE),
    "deepep_intranode": (deepep.parse_best, printed.DEEPEP_INTRANODE),
    "deepep_low_latency": (deepep.parse_low_latency, printed.DEEPEP_LOW_LATENCY),
    "iperf3": (iperf3.parse, printed.IPERF3),
    "fio": (partial(fio.parse, direction="read"), printed.FIO),
}
NOISE = st.sampled_from(
    [
        "somehost:3442:3442 [0] NCCL INFO Launch mode Parallel",
        "WARNING: BW peak won't be measured in this run.",
        "[2026-03-02 14:10:00] somehost: something else",
        "",
        "\x1b[33mwarning\x1b[0m: clocks vary",
    ]
)
MANY = settings(max_examples=60, deadline=None)
every_program = pytest.mark.parametrize(("parse", "text"), PARSED.values(), ids=PARSED)


def right_or_refused(parse, damaged, text):
    """Of tables with a row a size or a rank, those rows that are whole may come through."""
    whole = parse(text)
    try:
        result = parse(damaged)
    except ToolError:
        return
    if isinstance(whole, nccl_tests.NcclTable):
        result, whole = result.rows, whole.rows
    if isinstance(whole, tuple):
        assert set(result) <= set(whole)
    else:
        assert result == whole


@every_program
def test_cut_anywhere_it_is_right_or_refused(parse, text):
    for length in range(len(text)):
        right_or_refused(parse, text[:length], text)


@every_program
@given(data=st.data())
@MANY
def test_a_line_of_somebody_else_anywhere_changes_no_figure(parse, text, data):
    at = data.draw(st.integers(0, len(text)))
    right_or_refused(parse, f"{text[:at]}\n{data.draw(NOISE)}\n{text[at:]}", text)


@every_program
@given(data=st.data())
@MANY
def test_words_of_somebody_else_within_a_line_change_no_figure(parse, text, data):
    at = data.draw(st.integers(0, len(text)))
    right_or_refused(parse, f"{text[:at]}{data.draw(NOISE)}\n{text[at:]}", text)


@every_program
def test_a_whole_line_of_somebody_else_before_and_after_is_passed_over(parse, text):
    noise = "somehost:3442:3442 [0] NCCL INFO Launch mode Parallel\n"
    assert parse(noise + text + noise) == parse(text)


@every_program
@given(data=st.data())
@MANY
def test_colours_are_passed_over(parse, text, data):
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)), reverse=True)
    coloured = text
    for at in places:
        coloured = f"{coloured[:at]}\x1b[1;31m{coloured[at:]}"
    assert parse(coloured) == parse(text)


@every_program
@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[job1,3]<stdout>: ", "3: "])
def test_tags_of_launchers_are_passed_over(parse, text, tag):
    tagged = "".join(f"{tag}{line}" for line in text.splitlines(keepends=True))
    assert parse(tagged) == parse(text)


@every_program
def test_a_line_that_is_missing_is_right_or_refused(parse, text):
    lines = text.splitlines(keepends=True)
    for index in range(len(lines)):
        right_or_refused(parse, "".join(lines[:index] + lines[index + 1 :]), text)


@every_program
def test_an_error_instead_of_figures_is_refused(parse, text):
    for error_text in ("", "\n", "error: something went wrong\n", "{}\n", "{\n}\n"):
        with pytest.raises(ToolError):
            parse(error_text)


def test_json_nested_without_end_is_refused():
    with pytest.raises(ToolError, match="fio printed JSON that cannot be read"):
        fio.parse('{"a":\n' * 100_000 + "}\n", direction="read")
