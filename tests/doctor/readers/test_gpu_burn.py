from __future__ import annotations

import pytest

# microsoft/superbenchmark, tests/data/gpu_burn.log, with four of its eight GPUs; notes by wilicc/gpu-burn.
HEAD = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-0000-0000-000000000000)
Initialized device 0 with 81251 MB of memory (80493 MB available, using 72443 MB of it), using DOUBLES
"""
PROGRESS = (
    "50.0%  proc'd: 2261 (7150 Gflop/s) - 0 (0 Gflop/s) - 0 (0 Gflop/s) - 0 (0 Gflop/s)   errors: 0 - 0 - 0 - 0   "
    "temps: 38 C - 36 C - 37 C - 38 C \r"
    "100.0%  proc'd: 6783 (16942 Gflop/s) - 4522 (17177 Gflop/s) - 4522 ({rate} Gflop/s) - 4522 (16926 Gflop/s)   "
    "errors: 0 - {errors}- 0 - 0   temps: 62 C - 59 C - 58 C - 60 C \n"
)
VERDICT = "Killing processes.. done\n\nTested 4 GPUs:\n\tGPU 0: OK\n\tGPU 1: {word}\n\tGPU 2: OK\n\tGPU 3: OK\n"
WELL = HEAD + PROGRESS.format(rate=16990, errors="0 ") + VERDICT.format(word="OK")
FAULTY = HEAD + PROGRESS.format(rate=16990, errors="7  (WARNING!)") + VERDICT.format(word="FAULTY")


def test_a_faulty_gpu_is_found_with_its_errors(examined):
    examination, kind = examined(FAULTY)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("gpu-burn", "burn_in", "error", "GPU 1")
    assert found.what == "up to 7 elements of its products were unlike"
    assert found.evidence == "said.txt:8: GPU 1: FAULTY"
    assert examination.healthy[0].what == "3 GPUs computed alike all the time"


def test_gpus_that_are_ok_are_in_order(examined):
    assert (examined(WELL)[0].word, examined(WELL)[0].healthy[0].what) == (
        "HEALTHY",
        "4 GPUs computed alike all the time",
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD + PROGRESS.format(rate=16990, errors="0  (DIED!)") + VERDICT.format(word="FAULTY"), "its test died"),
        (HEAD + VERDICT.format(word="FAULTY"), "gpu-burn calls it faulty"),
    ],
)
def test_a_test_that_died_and_a_bare_verdict_are_found(examined, text, what):
    (found,) = examined(text)[0].found
    assert (found.where, found.what) == ("GPU 1", what)


def test_a_gpu_that_is_far_slower_than_the_median_is_found(examined):
    (found,) = examined(WELL.replace("16990", "12000"))[0].found
    assert (found.where, found.severity) == ("GPU 2", "warning")
    assert found.what == "computes 12.0 TFLOP/s, the median GPU 16.9 TFLOP/s"


def test_a_text_that_ends_before_the_verdict_is_not_judged(examined):
    examination, _ = examined(WELL[: WELL.index("Killing")])
    assert (examination.found, examination.healthy, examination.word) == ((), (), "NOT JUDGED")
    examination, _ = examined(WELL[: WELL.index("\tGPU 3")])
    assert examination.not_judged[0].why == "the text ends before the verdict of each GPU"


@pytest.mark.parametrize("text", [FAULTY + WELL, WELL + FAULTY, HEAD + VERDICT.format(word="FAULTY") + WELL])
def test_a_gpu_that_one_of_two_runs_calls_faulty_is_found(examined, text):
    (found,) = examined(text)[0].found
    assert (found.name, found.where) == ("burn_in", "GPU 1")
