"""Tokens at random places: what is read, how it is counted, and that a wrong one is seen."""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from clusterbench.benchmarks import token_reads
from clusterbench.benchmarks.token_reads import TokenReads, _Corpus
from clusterbench.errors import WrongResult
from tests.benchmarks.alone import CPU, derived, rig

KIB = 2**10


def point(path: Path, **options: Any) -> dict[str, Any]:
    asked = {"path": str(path), "size": 64 * KIB, "seq_len": 64, "sequences": 4, "iterations": 3, "workers": (2,)}
    (made,) = TokenReads(**{**asked, **options}).points(CPU)
    return dict(made)


@pytest.mark.parametrize("token_bytes", [2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_batch_is_what_was_written_there_widened_to_64_bits(tmp_path: Path, token_bytes: int, workers: int) -> None:
    third = rig(rank=2)
    step = TokenReads.prepare(third, point(tmp_path, token_bytes=token_bytes, workers=(workers,)))
    assert step.check is not None
    assert step.check()["wrong_elements"] == 0
    third.made_calls = 70  # beyond the end of the file, and from its beginning again
    for _ in range(third.made_calls):
        step.run()
    assert step.confirm is not None
    assert step.confirm(True)["wrong_elements"] == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("when", ["check", "confirm"])
def test_a_sequence_of_another_place_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    alone = rig()
    step = TokenReads.prepare(alone, point(tmp_path))
    assert step.check is not None
    assert step.confirm is not None
    alone.made_calls = 1
    read_one = _Corpus._read_one
    if when == "confirm":
        step.check()
    monkeypatch.setattr(_Corpus, "_read_one", lambda self, call: read_one(self, (call[0], call[1] // 2)))
    if when == "confirm":
        step.run()
    with pytest.raises(WrongResult, match=r"sequence \d+ of a corpus"):
        step.check() if when == "check" else step.confirm(True)


def test_a_batch_that_was_read_before_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Corpus, "batches", lambda self: repeat(self.places[: self.sequences]))
    alone = rig()
    step = TokenReads.prepare(alone, point(tmp_path))
    step.check()
    for _ in range(3):
        step.run()
    alone.made_calls = 3
    with pytest.raises(WrongResult, match=r"sequence \d+ of a corpus"):
        step.confirm(True)


def test_a_batch_whose_last_sequence_alone_is_of_another_place_is_wrong(tmp_path: Path) -> None:
    corpus = _Corpus(rig(), point(tmp_path))
    corpus.write()
    corpus.read([3, 1, 4, 2])
    assert corpus.expect([3, 1, 4, 2])["wrong_elements"] == 0
    with pytest.raises(WrongResult, match="sequence 5 of a corpus"):
        corpus.expect([3, 1, 4, 5])


def test_no_sequence_is_read_twice_before_all_were_and_ranks_read_in_other_orders(tmp_path: Path) -> None:
    asked = point(tmp_path, size=8 * KIB)  # 32 sequences of 256 B
    corpora = [_Corpus(rig(rank=rank), asked) for rank in (0, 1)]
    of_ranks = []
    for corpus in corpora:
        batches = corpus.batches()
        of_ranks.append([place for _ in range(8) for place in next(batches)])
    assert [sorted(places) for places in of_ranks] == [list(range(32))] * 2
    assert of_ranks[0] != of_ranks[1]
    assert of_ranks[0] != sorted(of_ranks[0])


def test_what_is_cold_leaves_the_cache_after_it_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cold, times in ((True, 2), (False, 1)):
        left: list[int] = []
        monkeypatch.setattr(token_reads, "leave_cache", left.append)
        step = TokenReads.prepare(rig(), point(tmp_path, cold=cold))
        assert step.check is not None
        step.check()
        assert len(left) == times


def test_tokens_and_bytes_are_those_of_all_ranks_in_the_time_of_the_slowest() -> None:
    asked = {"sequences": 8, "seq_len": 1000, "token_bytes": 4}
    metrics = derived("token_reads", asked, [[0.5, 0.5], [1.0, 2.0]], [{"resident_fraction": 0.0}] * 2)
    assert metrics["batch_time"].value == 1.5
    rate = metrics["read_tokens_per_s"]
    assert (rate.value, rate.low, rate.high) == pytest.approx((16_000 / 1.5, 8_000, 16_000))
    assert metrics["bandwidth"].value == pytest.approx(64_000 / 1.5)
    assert {metric.detail["category"] for metric in metrics.values()} == {"cold"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seq_len": 9, "token_bytes": 2}, "a sequence of 18 B is not a whole number of words of 8 B"),
        ({"size": 1024}, "5 batches of 1KiB are more than a file of 1KiB holds, and no sequence is read twice"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    assert TokenReads().objection(point(tmp_path, **options), CPU) == said


def test_a_file_that_ends_early_is_wrong(tmp_path: Path) -> None:
    corpus = _Corpus(rig(), point(tmp_path))
    corpus.write()
    os.ftruncate(corpus.file.descriptor, 0)
    with pytest.raises(WrongResult, match="it ends in sequence"):
        corpus.read([0, 1, 2, 3])
