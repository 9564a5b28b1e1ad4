from __future__ import annotations

import pytest

# microsoft/superbenchmark, tests/data/streamResultZen.log.
RUN = """\
STREAM version $Revision: 5.10 $
This system uses 8 bytes per array element.
Array size = 400000000 (elements), Offset = 0 (elements)
Number of Threads requested = 32
Number of Threads counted = 32
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:          342008.3     0.018755     0.018713     0.018895
Scale:         342409.6     0.018737     0.018691     0.018802
Add:           343827.7     0.028050     0.027921     0.028269
Triad:         363208.7     0.026599     0.026431     0.026855
Solution Validates: avg error less than 1.000000e-13 on all three arrays
"""


def test_each_kernel_is_a_case_in_millions_of_bytes(imported):
    rows = imported(RUN)
    assert rows["1n1/Copy", "bandwidth"] == (342008.3e6, "imported from said.txt:7")
    assert rows["1n1/Triad", "bandwidth"] == (363208.7e6, "imported from said.txt:10")
    assert len(rows) == 4


def test_threads_are_those_that_ran_and_seconds_those_of_the_best_pass(cases):
    recorded = cases(RUN.replace("counted = 32", "counted = 16"))
    assert {point["threads"] for point, _, _ in recorded.values()} == {16}
    assert [seconds for _, _, seconds in recorded.values()] == [0.018713, 0.018691, 0.027921, 0.026431]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUN.replace("342008.3", "34200.83"), "STREAM printed a rate that is not its bytes over its time: 'Copy:"),
        (RUN.replace("Solution Validates:", "Failed Validation on array a[],"), "STREAM's validation failed, so"),
        (RUN[: RUN.index("Solution")], "the text holds no run of STREAM that ended"),
        (RUN + RUN, "the text holds 2 runs of STREAM: import each from a file of its own"),
        (RUN.replace("Triad:  ", "Other:  "), "STREAM's table does not have each of its four kernels once"),
        (RUN.replace("Array size", "Size"), "STREAM's array size is not in the text"),
    ],
)
def test_what_is_cut_wrong_or_contradicts_itself_is_refused(refused, text, message):
    assert refused(text).startswith(f"said.txt: {message}")
