import random

import pytest

from clusterbench.diagnoses.straggler import Straggler, binomial_tail
from tests.report.synthetic import case, observation, outcome, reading


def findings(slow: float, ranks: int = 8, seed: int = 0) -> list:
    draw = random.Random(seed)
    one = case("a", ranks)
    factors = [1.0] * (ranks - 1) + [slow]
    seconds = [[factor * draw.gauss(1, 0.02) for _ in range(40)] for factor in factors]
    seen = observation(one, seconds, hosts=("n1", "n2"))
    return Straggler().findings(reading((outcome(one), seen), cases=[one]))


def test_a_slow_rank_is_named_with_its_host() -> None:
    (finding,) = findings(slow=1.2)
    assert finding.where == "rank 7, host n2"
    assert finding.what == "slowest more often than chance in one case"
    assert finding.evidence.startswith("planted/1n8/a: slowest in 40 of 40 iterations, where chance gives 5;")


def test_equal_ranks_are_silent_in_200_runs() -> None:
    assert [seed for seed in range(200) if findings(slow=1.0, seed=seed)] == []


def test_a_rank_that_is_always_last_by_a_hair_is_silent() -> None:
    assert findings(slow=1.03) == []


def test_one_rank_alone_is_no_straggler() -> None:
    assert findings(slow=2.0, ranks=1) == []


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    # 10 fair coins: P(>= 8) = (45 + 10 + 1) / 1024.
    assert binomial_tail(8, 10, 0.5) == pytest.approx(56 / 1024)
    assert binomial_tail(0, 10, 0.5) == 1.0
