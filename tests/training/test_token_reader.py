"""Tokens in a file: what is written there, what a reader hands out, when, and what it leaves behind."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clusterbench.benchmarks._files import SharedFile, resident_fraction
from clusterbench.job import TrainingJob
from clusterbench.training import token_reader
from clusterbench.training.data import micro_batches, share_of, tokens
from clusterbench.training.token_reader import AHEAD, FEWEST_STEPS, TokenFile, TokenReader, steps_of_file
from tests.training.jobs import make_job

CPU = torch.device("cpu")


def nothing() -> None:
    """As there is no other process."""


def reader_of(path: Path, job: TrainingJob, dp_rank: int = 0, positions: torch.Tensor | None = None) -> TokenReader:
    contents = TokenFile(job, dp_rank, steps_of_file(job, 3, 1))
    opened = SharedFile(str(path), "tokens", nothing)
    contents.write(opened.descriptor)
    return TokenReader(contents, torch.arange(job.seq_len) if positions is None else positions, opened, CPU)


def expect_fed(job: TrainingJob, reader: TokenReader, dp_rank: int, positions: torch.Tensor, steps: int) -> None:
    for step in range(steps):
        due = micro_batches(job, dp_rank, positions, step % reader.num_steps)
        for (inputs, labels), (due_inputs, due_labels) in zip(reader.take(), due, strict=True):
            assert torch.equal(inputs, due_inputs)
            assert torch.equal(labels, due_labels)
            assert inputs.is_contiguous()


def test_steps_have_other_sequences_each_and_ranks_share_them_out() -> None:
    job = make_job("dp2", global_batch_size=12)
    whole = [sequence for step in range(2) for rank in range(2) for sequence in share_of(job, rank, step).flatten()]
    assert sorted(map(int, whole)) == list(range(24))
    assert share_of(job, 1, 1).tolist() == [[14, 15], [18, 19], [22, 23]]


def test_a_step_that_reads_nothing_has_the_tokens_of_the_first() -> None:
    job = make_job()
    for (inputs, labels), sequences in zip(micro_batches(job, 0, torch.arange(16)), share_of(job, 0), strict=True):
        assert torch.equal(inputs, tokens(job, sequences, torch.arange(16)))
        assert torch.equal(labels[:, :-1], inputs[:, 1:])


@pytest.mark.parametrize("dp_rank", [0, 1])
def test_a_file_has_every_sequence_of_a_rank_once_in_an_order_of_its_own(tmp_path: Path, dp_rank: int) -> None:
    job = make_job("dp2")
    contents = TokenFile(job, dp_rank, 5)
    opened = SharedFile(str(tmp_path), "tokens", nothing)
    contents.write(opened.descriptor)
    data = os.pread(opened.descriptor, 2**20, 0)
    assert len(data) == contents.size_bytes == 5 * 4 * 17 * 4
    written = [tuple(row) for row in np.frombuffer(data, np.int32).reshape(-1, 17).tolist()]
    shares = torch.cat([share_of(job, dp_rank, step).flatten() for step in range(5)])
    due = [tuple(row) for row in tokens(job, shares, torch.arange(17)).tolist()]
    assert sorted(written) == sorted(due)
    assert written != due
    for step in range(5):
        assert [written[place] for place in contents.places(step)] == due[4 * step : 4 * step + 4]


def test_a_file_has_the_tokens_of_every_step_that_is_asked_for_and_at_least_its_size() -> None:
    job = make_job()  # 4 sequences of 17 tokens of 4 B
    assert steps_of_file(job, 3, 1) == FEWEST_STEPS
    assert steps_of_file(job, 30, 1) == 30
    assert steps_of_file(job, 3, 100 * 4 * 17 * 4) == 100
    assert steps_of_file(job, 3, 100 * 4 * 17 * 4 + 1) == 101


@pytest.mark.parametrize("layout", ["tp1", "dp2"])
def test_each_step_gets_its_own_tokens_and_behind_the_last_come_the_first(tmp_path: Path, layout: str) -> None:
    job = make_job(layout)
    reader = reader_of(tmp_path, job, job.layout.dp - 1)
    expect_fed(job, reader, job.layout.dp - 1, torch.arange(16), 2 * FEWEST_STEPS + 3)
    assert len(reader.read_s) == 2 * FEWEST_STEPS + 3
    assert min(reader.read_s) > 0
    reader.close()
    assert os.listdir(tmp_path) == []


def test_a_rank_of_cp_gets_the_positions_it_sees(tmp_path: Path) -> None:
    job, positions = make_job(), torch.tensor([0, 1, 2, 3, 12, 13, 14, 15])
    reader = reader_of(tmp_path, job, 0, positions)
    expect_fed(job, reader, 0, positions, 3)
    reader.close()


def test_what_was_taken_stays_until_the_next_is_and_no_more_are_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, more = list[int](), threading.Semaphore(0)
    read = TokenReader._read

    def noted(self: TokenReader, batch: Any, step: int) -> None:
        begun.append(step)
        read(self, batch, step)
        more.release()

    monkeypatch.setattr(TokenReader, "_read", noted)
    job = make_job()
    reader = reader_of(tmp_path, job)
    for step in range(4):
        taken = reader.take()
        while more.acquire(timeout=0.2):
            pass
        assert begun == list(range(step + AHEAD + 1))
        for (inputs, _), (due, _) in zip(taken, micro_batches(job, 0, torch.arange(16), step), strict=True):
            assert torch.equal(inputs, due)
    reader.close()
    assert "token reader" not in [thread.name for thread in threading.enumerate()]
    assert torch.equal(taken[0][0], micro_batches(job, 0, torch.arange(16), 3)[0][0])  # passes go on with them


def test_what_goes_wrong_while_reading_is_said_by_the_step_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TokenReader._read

    def failing(self: TokenReader, batch: Any, step: int) -> None:
        if step == 2:
            raise OSError(5, "Input/output error")
        read(self, batch, step)

    monkeypatch.setattr(TokenReader, "_read", failing)
    reader = reader_of(tmp_path, make_job())
    reader.take()
    reader.take()
    with pytest.raises(OSError, match="Input/output error"):
        reader.take()
    reader.close()


def test_what_was_read_leaves_the_memory_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = list[tuple[int, int]]()
    monkeypatch.setattr(token_reader.os, "posix_fadvise", lambda fd, start, length, _: left.append((start, length)))
    job = make_job(seq_len=1500)  # 6,004 B a sequence, on two pages or three
    reader = reader_of(tmp_path, job)
    for _ in range(FEWEST_STEPS):
        reader.take()
    reader.close()
    of_first = [(int(place) * 6004 // 4096 * 4096, int(place)) for place in TokenFile(job, 0, FEWEST_STEPS).places(0)]
    assert left[:4] == [(start, (place + 1) * 6004 - start) for start, place in of_first]


def test_a_shared_file_is_nobody_elses_and_has_no_name_once_all_have_it(tmp_path: Path) -> None:
    def second() -> None:
        files.append(SharedFile(str(tmp_path), "name", nothing))

    files = list[SharedFile]()
    first = SharedFile(str(tmp_path), "name", second)
    assert (first.is_first, files[0].is_first) == (True, False)
    assert os.listdir(tmp_path) == []
    os.pwrite(first.descriptor, b"tokens", 0)
    assert os.pread(files[0].descriptor, 9, 0) == b"tokens"
    assert resident_fraction(files[0].descriptor) in (None, 1.0)


def test_a_shared_file_leaves_nothing_where_the_others_do_not_come(tmp_path: Path) -> None:
    def alone() -> None:
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        SharedFile(str(tmp_path), "name", alone)
    assert os.listdir(tmp_path) == []


class _Streams:
    """In place of torch.cuda, and of what makes memory: notes in what order streams were given what."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []
        self.cuda = self

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return torch.zeros(*size, dtype=dtype)

    def zeros_like(self, of: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cuda"
        self.given.append(("computing", "zeros"))
        return torch.zeros_like(of)

    def Event(self) -> _Event:
        return _Event()

    def current_stream(self) -> _Stream:
        return _Stream("computing", self.given)

    def stream(self, stream: _Stream) -> AbstractContextManager[_Stream]:
        return nullcontext(stream)


class _Event:
    """One that was not recorded holds nothing up, as in CUDA."""

    behind: tuple[tuple[str, str], ...] = ()

    def record(self, stream: _Stream) -> None:
        self.behind = tuple(stream.given)

    def synchronize(self) -> None:
        pass


class _Stream:
    def __init__(self, name: str, given: list[tuple[str, str]]) -> None:
        self.name, self.given = name, given
        self.waits_for: set[tuple[str, str]] = set()

    def wait_event(self, event: _Event) -> None:
        self.waits_for |= {*event.behind}


def test_on_a_gpu_the_first_tokens_come_behind_the_zeros_that_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of another stream, which would copy while the one that computes has not come to the zeros yet."""
    streams = _Streams()
    monkeypatch.setattr(token_reader, "torch", streams)
    batch = token_reader._Batch((1, 2, 1, 4), torch.device("cuda"))
    copying = _Stream("copying", streams.given)
    batch.send(copying)  # type: ignore[arg-type]
    assert ("computing", "zeros") in copying.waits_for
