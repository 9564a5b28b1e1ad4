import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.straggler import Straggler
from tests.report.synthetic import case, observation, outcome, reading


def samples(
    ranks: int, seed: int = 0, slow: float = 1.0, noise: float = 0.02, iterations: int = 40, busy: float = 0.0
) -> list[list[float]]:
    """Seconds of each rank, the last ``slow`` times longer; ``busy``: how much an iteration is like the one before."""
    draw = random.Random(seed)
    seconds = []
    for factor in [1.0] * (ranks - 1) + [slow]:
        own, state = [], draw.gauss(0, 1)
        for _ in range(iterations):
            state = busy * state + math.sqrt(1 - busy**2) * draw.gauss(0, 1)
            own.append(0.01 * factor * math.exp(noise * state))
        seconds.append(own)
    return seconds


def answer(seconds: Sequence[Sequence[float]], benchmark: str = "matmul", **passes: Any) -> Answer:
    one = case("a", len(seconds), benchmark=benchmark)
    seen = observation(one, seconds, hosts=("n1", "n2"))
    seen.passes.update(passes)  # type: ignore[attr-defined]
    return Straggler().answer(reading((outcome(one), seen), cases=[one]))


def test_a_slow_rank_is_named_with_its_host_and_by_how_much() -> None:
    (finding,) = answer(samples(8, slow=1.61)).findings
    assert finding.title == "rank 7 on n2, 61 % slower"
    assert finding.what == "61 % slower than the other ranks in matmul"
    assert finding.evidence == "between 58 and 64 % longer over 40 iterations of planted/1n8/a"


def test_a_rank_that_takes_many_times_as_long_is_told_in_times() -> None:
    assert answer(samples(4, slow=40.0)).findings[0].title == "rank 3 on n2, 40 times slower"


@pytest.mark.parametrize("ranks", range(2, 9))
def test_one_slow_rank_of_any_number_is_named(ranks: int) -> None:
    for seed in range(20):
        found = answer(samples(ranks, seed, slow=1.5, noise=0.05)).findings
        assert [finding.where for finding in found] == [f"rank {ranks - 1} on n2"]


@pytest.mark.parametrize(
    ("noise", "iterations", "busy"),
    [
        (0.02, 10, 0.0),
        (0.25, 10, 0.5),  # the spread of reports/examples/fabric-cpu: matmul on 4 ranks
        (0.35, 30, 0.6),  # that of tp_scale-cpu, whose ranks take turns
        (0.05, 100, 0.3),
    ],
)
def test_equal_ranks_are_blamed_in_at_most_one_of_a_hundred_runs(noise: float, iterations: int, busy: float) -> None:
    blamed = [
        (ranks, seed)
        for ranks in range(2, 9)
        for seed in range(60)
        if answer(samples(ranks, seed, 1.0, noise, iterations, busy)).findings
    ]
    rate = len(blamed) / (7 * 60)
    print(f"{noise:.0%} noise, {iterations} iterations, correlated by {busy}: {rate:.2%} of healthy runs are blamed")
    assert rate <= 0.01


def test_of_equal_ranks_it_says_what_would_have_shown() -> None:
    found = answer(samples(8))
    assert found.state == "healthy"
    assert found.healthy == ("8 ranks in matmul: none is slower than its peers (8 % would have shown)",)


def test_where_noise_would_hide_a_slow_rank_it_says_how_many_iterations_it_would_take() -> None:
    (part,) = answer(samples(4, noise=0.2)).not_judged
    assert part.sentence == (
        "4 ranks in matmul (with this noise a rank would have to be 40 % slower to be named for sure; it takes about "
        "109 iterations)"
    )


def test_three_iterations_are_too_few() -> None:
    (part,) = answer(samples(4, iterations=3)).not_judged
    assert part.why == "3 iterations are too few to tell a slow rank from noise"


def test_a_rank_that_is_always_last_by_a_hair_is_no_straggler() -> None:
    assert answer(samples(8, slow=1.03, noise=0.001)).state == "healthy"


def test_iterations_that_are_busy_for_a_while_are_no_slow_rank() -> None:
    """Rank 3 shares its core for 8 iterations in a row; they are one event, not eight."""
    seconds = samples(4, iterations=16)
    seconds[3][4:12] = [2 * second for second in seconds[3][4:12]]
    assert answer(seconds).findings == ()


def test_what_all_ranks_share_is_no_difference() -> None:
    together = [1.0] * 10 + [1.8] * 10 + [1.2] * 10
    seconds = [
        [second * share for second, share in zip(of_rank, together, strict=True)]
        for of_rank in samples(4, slow=1.3, iterations=30)
    ]
    (finding,) = answer(seconds).findings
    assert finding.where == "rank 3 on n2"


def test_ranks_that_wait_for_each_other_are_not_judged() -> None:
    found = answer(samples(4, slow=1.5), benchmark="all_reduce")
    assert found.state == "not judged"
    assert found.not_judged[0].sentence == (
        "ranks (no case lets ranks work without waiting for each other; it takes matmul or device_copy in the suite)"
    )


def test_the_part_of_a_step_that_does_not_wait_is_compared_where_it_is_known() -> None:
    own = [[second / 2 for second in of_rank] for of_rank in samples(4, slow=1.5)]
    (finding,) = answer(samples(4), benchmark="fault_drill", own_seconds=own).findings
    assert finding.title == "rank 3 on n2, 51 % slower"


def test_one_rank_alone_has_no_peer() -> None:
    assert answer(samples(1)).state == "nothing to judge"


def test_cases_of_one_benchmark_count_together() -> None:
    """Six iterations of one size say nothing, those of five sizes do."""
    cases = [case(f"{size}", 4, benchmark="matmul") for size in range(5)]
    records = [
        (outcome(one), observation(one, samples(4, seed, slow=1.5, noise=0.15, iterations=6), hosts=("n1",)))
        for seed, one in enumerate(cases)
    ]
    assert Straggler().answer(reading(records[0], cases=cases[:1])).state == "not judged"
    (finding,) = Straggler().answer(reading(*records, cases=cases)).findings
    assert finding.where == "rank 3 on n1"
    assert "over 30 iterations of" in finding.evidence
