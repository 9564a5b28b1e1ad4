import random

from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.first_iteration import FirstIteration
from tests.report.synthetic import case, observation, outcome, reading


def answer(*repeats: list[float]) -> Answer:
    one = case("a", repeats=len(repeats))
    records = [
        (outcome(one, repeat=number), observation(one, [times] * 4, repeat=number))
        for number, times in enumerate(repeats)
    ]
    return FirstIteration().answer(reading(*records, cases=[one]))


SLOW, STEADY = [0.031, 0.02, 0.02, 0.02, 0.02], [0.03, 0.02, 0.02, 0.02, 0.02]
"""Above the limit, and at it."""


def test_one_that_is_slow_in_every_repeat_is_a_note() -> None:
    (finding,) = answer(SLOW, [0.05, *SLOW[1:]]).findings
    assert (finding.where, finding.severity) == ("planted/1n4/a", "note")
    assert finding.what == "the first timed iteration takes 1.6 to 2.5 times the median"
    assert finding.evidence == "in each of 2 repeats"


def test_one_that_is_slow_in_some_repeats_is_noise() -> None:
    said = answer(SLOW, STEADY)
    assert said.findings == ()
    assert said.healthy == ("first iterations of 1 case are like the others",)


def test_one_repeat_or_few_iterations_are_not_judged() -> None:
    assert answer(SLOW).state == "nothing to judge"
    assert answer(SLOW[:4], SLOW[:4]).state == "nothing to judge"


def noisy(seed: int) -> Answer:
    """A hundred cases of two repeats of 20 iterations, one in six of which takes up to twice as long."""
    draw = random.Random(seed)
    cases = [case(f"a{number}", repeats=2) for number in range(100)]
    records = []
    for one in cases:
        for repeat in range(2):
            times = [0.02 * (1 + (draw.random() if draw.random() < 1 / 6 else 0.0)) for _ in range(20)]
            records.append((outcome(one, repeat=repeat), observation(one, [times] * 4, repeat=repeat)))
    return FirstIteration().answer(reading(*records, cases=cases))


def test_where_as_many_others_are_slow_it_is_noise() -> None:
    """60 of 100 such runs had a finding."""
    assert sum(bool(noisy(seed).findings) for seed in range(100)) <= 2


def test_a_repeat_of_many_iterations_is_read_once() -> None:
    """A median for each iteration took 0.2 s of two repeats of 5,000, and grows with the square of their number."""
    draw = random.Random(0)
    assert answer(*([draw.random() + 1 for _ in range(200_000)] for _ in range(2))).findings == ()
