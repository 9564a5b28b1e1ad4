"""What is said of a case as soon as it has ended."""

import re

import pytest

from clusterbench.derive.at_a_glance import at_a_glance
from clusterbench.run_folder import RunFolder
from tests.test_examples import EXAMPLES


@pytest.mark.parametrize(
    ("example", "case", "words"),
    [
        ("tp_scale-cpu", "matmul/1n1/1024-float32", r"\d+\.\d+ ms, \d+\.\d GFLOP/s per rank"),
        ("tp_scale-cpu", "train_step/1n1/tp1", r"\d+\.\d+ ms, \d,\d+ tokens/s"),
        ("fabric-cpu", "all_reduce/1n4/8MiB-float32", r"\d+\.\d+ ms, \d+\.\d [MG]B/s busbw"),
        ("fabric-cpu", "checkpoint/1n4/load-32MiB-16tensors", r"\d+\.\d+ ms, \d+\.\d [MG]B/s per rank \(cold\)"),
        ("fabric-cpu", "file_io/1n4/read-64MiB-by1MiB-all", r"\d+\.\d+ ms, \d+\.\d [MG]B/s per rank \(cold\)"),
    ],
)
def test_a_case_says_its_time_and_its_rate(example: str, case: str, words: str) -> None:
    run = RunFolder.open(EXAMPLES[example])
    plan = run.plan()
    planned = next(each for each in plan.cases if each.id == case)
    observation = next(each for each in run.observations() if each.hash == planned.hash)
    assert re.fullmatch(words, at_a_glance(planned, observation, plan.cluster))
