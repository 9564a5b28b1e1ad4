"""The runner of ranks: what went wrong on which of them, and that a start of which nothing came is tried again."""

import os

import pytest

from tests import ranks
from tests.ranks import run_ranks


def goes_wrong(how: str) -> int:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        if how == "dies":
            os._exit(7)
        raise ValueError("planted")
    dist.barrier()
    return 1


@pytest.mark.quick
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("how", "words"), [("raises", "ValueError: planted"), ("dies", "ended without a word, with 7")]
)
def test_the_rank_that_went_wrong_is_named_with_what_it_said(how, words):
    with pytest.raises(AssertionError) as caught:
        run_ranks(2, goes_wrong, how)
    assert words in str(caught.value).split("rank 1:\n")[1]


@pytest.mark.parametrize(("failures", "starts"), [(0, 1), (2, 3), (3, 3)])
def test_ranks_that_did_not_meet_are_started_again_and_not_for_ever(monkeypatch, failures, starts):
    seen = []

    def start(*arguments):
        seen.append(arguments)
        if len(seen) <= failures:
            raise ranks._DidNotMeet("Connection reset by peer")
        return ["of each"]

    monkeypatch.setattr(ranks, "_start", start)
    if failures < ranks.MOST_STARTS:
        assert run_ranks(1, goes_wrong) == ["of each"]
    else:
        with pytest.raises(AssertionError, match="Connection reset by peer"):
            run_ranks(1, goes_wrong)
    assert len(seen) == starts
