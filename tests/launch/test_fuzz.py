"""A share of the fuzzed inputs; ``python -m tests.launch.fuzz`` sends a hundred thousand."""

from tests.launch.fuzz import fuzz


def test_whatever_is_sent_is_read_or_refused():
    verdicts = fuzz(2000, seed=1)
    assert verdicts.total() == 2000
    assert verdicts["refused by the head"] == verdicts["refused by the member"] == 500
    assert verdicts["refused by the decoder"] > verdicts["read by the decoder"] > 0
