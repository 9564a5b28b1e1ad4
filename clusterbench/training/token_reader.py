"""Tokens of training steps in a file, and a thread that reads each step's share of them ahead of the step."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from clusterbench.engine.clock import WallClock
from clusterbench.job import TrainingJob
from clusterbench.training.data import share_of, tokens

TOKEN_BYTES = 4

AHEAD = 2
"""Steps whose tokens wait while one computes."""

_KEPT = 4
"""Steps of which the host's memory keeps what was read: ranks that read the same are no further apart."""

FEWEST_STEPS = AHEAD + _KEPT + 2
"""In a file: a step that comes again is then no longer in the host's memory."""

_WRITTEN_AT_ONCE = 2**22  # bytes


class TokenFile:
    """What a file holds: all that one rank of dp is fed in ``num_steps`` steps, one sequence after the other.

    Sequences are ``seq_len + 1`` tokens, as each is to be followed by one, and lie in random order: what belongs to one
    step is all over the file.
    """

    def __init__(self, job: TrainingJob, dp_rank: int, num_steps: int) -> None:
        self.job, self.dp_rank, self.num_steps = job, dp_rank, num_steps
        self.sequence_bytes = (job.seq_len + 1) * TOKEN_BYTES
        self.of_a_step = job.gradient_accumulation_steps * job.micro_batch_size
        self._places = np.random.default_rng([job.seed, dp_rank]).permutation(num_steps * self.of_a_step)

    @property
    def size_bytes(self) -> int:
        return len(self._places) * self.sequence_bytes

    def places(self, step: int) -> Any:
        """Where a step's sequences lie, counted in sequences; behind the last step comes the first again."""
        first = step % self.num_steps * self.of_a_step
        return self._places[first : first + self.of_a_step]

    def write(self, descriptor: int) -> None:
        """Writes all of it."""
        shares = [share_of(self.job, self.dp_rank, step).flatten() for step in range(self.num_steps)]
        in_order = torch.cat(shares)[torch.from_numpy(np.argsort(self._places))]
        positions = torch.arange(self.job.seq_len + 1)
        at = 0
        for sequences in torch.split(in_order, max(1, _WRITTEN_AT_ONCE // self.sequence_bytes)):
            view = tokens(self.job, sequences, positions).to(torch.int32).numpy().data.cast("B")
            while view:
                done = os.pwrite(descriptor, view, at)
                view, at = view[done:], at + done


def steps_of_file(job: TrainingJob, calls: int, least_bytes: int) -> int:
    """Of how many steps a file has the tokens, so that none of ``calls`` steps is fed what another was.

    Parameters
    ----------
    least_bytes
        That the file is to have.
    """
    of_a_step = job.gradient_accumulation_steps * job.micro_batch_size * (job.seq_len + 1) * TOKEN_BYTES
    return max(FEWEST_STEPS, calls, -(-least_bytes // of_a_step))


class Opened(Protocol):
    """A file that is open as long as this object is there."""

    descriptor: int


class TokenReader:
    """Hands out each step's micro-batches, which a thread of its own reads from a file while steps before it compute.

    As loaders of training are: the file is memory-mapped, the kernel is told which sequences will be needed before the
    first is touched, tokens are widened to 64 bits into memory that is used again and again, pinned where there is a
    GPU, and copied there on a stream of its own. What was read leaves the host's memory some steps later, so that all
    of it comes from the disk, however long it is read: in training no sequence comes twice.

    Parameters
    ----------
    positions
        Of a sequence's tokens that this rank sees.
    opened
        The file, written; kept open as long as it is read.
    """

    def __init__(self, contents: TokenFile, positions: Tensor, opened: Opened, device: torch.device) -> None:
        job = contents.job
        self._contents, self._opened, self._positions = contents, opened, positions.cpu().numpy()
        self.num_steps = contents.num_steps
        self._map = mmap.mmap(opened.descriptor, contents.size_bytes, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._sequences: Any = np.frombuffer(self._map, np.int32).reshape(-1, job.seq_len + 1)
        self.read_s: list[float] = []
        size = job.gradient_accumulation_steps, 2, job.micro_batch_size, len(positions)
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._device = device
        self._free: SimpleQueue[_Batch] = SimpleQueue()
        self._ready: SimpleQueue[_Batch | Exception] = SimpleQueue()
        self._taken: _Batch | None = None
        self._ends = False
        for _ in range(AHEAD + 1):
            self._free.put(_Batch(size, device))
        self._thread = threading.Thread(target=self._read_on, name="token reader", daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[Tensor, Tensor]]:
        """The micro-batches of the next step, where it can compute on them; waits for them.

        Those taken before are the reader's again from here on.
        """
        if self._taken is not None:
            self._taken.let_go()
            self._free.put(self._taken)
            self._taken = None
        batch = self._ready.get()
        if isinstance(batch, Exception):
            raise batch
        self._taken = batch
        self.read_s.append(batch.read_s)
        return batch.arrived()

    def close(self) -> None:
        """Ends the thread and gives up all memory but that of what was taken last, which stays as it is."""
        if not self._ends:
            self._ends = True
            self._free.put(_Batch((0,), torch.device("cpu")))  # it may wait for one
            self._thread.join()
            if self._copying is not None:
                self._copying.synchronize()  # it may still write to what is given up
            self._free, self._ready = SimpleQueue(), SimpleQueue()

    def _read_on(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            for step in count():
                batch = self._free.get()
                if self._ends:
                    return
                self._read(batch, step)
                self._ready.put(batch)
                if step >= _KEPT:
                    self._leave_memory(step - _KEPT)
        except Exception as error:  # noqa: BLE001  whatever it is, the step that waits says it
            self._ready.put(error)

    def _read(self, batch: _Batch, step: int) -> None:
        """A step's tokens to where it takes them, and the seconds it took."""
        batch.wait_until_copied()
        clock = WallClock()
        began = clock.mark()
        places = self._contents.places(step)
        for start, length in self._pages(places):
            self._map.madvise(mmap.MADV_WILLNEED, start, length)
        inputs, labels = batch.numbers[:, 0], batch.numbers[:, 1]
        sequences = self._sequences.take(places, axis=0).reshape(*inputs.shape[:2], -1)
        np.copyto(inputs, sequences.take(self._positions, axis=2))
        np.copyto(labels, sequences.take(self._positions + 1, axis=2))
        batch.send(self._copying)
        (batch.read_s,) = clock.seconds([began, clock.mark()])

    def _leave_memory(self, step: int) -> None:
        for start, length in self._pages(self._contents.places(step)):
            self._map.madvise(mmap.MADV_DONTNEED, start, length)  # else it is mapped, and stays
            os.posix_fadvise(self._opened.descriptor, start, length, os.POSIX_FADV_DONTNEED)

    def _pages(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Start and length of the pages on which sequences lie."""
        size = self._contents.sequence_bytes
        for place in places:
            start = int(place) * size // mmap.PAGESIZE * mmap.PAGESIZE
            yield start, (int(place) + 1) * size - start


class _Batch:
    """Memory for the tokens of one step, shape (micro-batches, inputs and labels, micro batch, positions).

    Attributes
    ----------
    numbers
        The host's, which the reader fills: on a CPU the tokens themselves, otherwise what is copied to the device.
    read_s
        Seconds that filling it took the last time.
    """

    def __init__(self, size: Sequence[int], device: torch.device) -> None:
        is_on_gpu = device.type == "cuda"
        self._host = torch.zeros(*size, dtype=torch.int64, pin_memory=is_on_gpu)
        self._tokens = torch.zeros_like(self._host, device=device) if is_on_gpu else self._host
        self.numbers, self.read_s = self._host.numpy(), 0.0
        self._copied: torch.cuda.Event | None = None
        self._used: torch.cuda.Event | None = None
        if is_on_gpu:
            self._copied, self._used = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.let_go()  # the first copy comes behind the zeros, and behind what had this memory before

    def send(self, stream: torch.cuda.Stream | None) -> None:
        """Begins to copy the tokens to the device, once the step that had them before has used them."""
        if stream is not None:
            assert self._used is not None
            assert self._copied is not None
            with torch.cuda.stream(stream):
                stream.wait_event(self._used)
                self._tokens.copy_(self._host, non_blocking=True)
                self._copied.record(stream)

    def wait_until_copied(self) -> None:
        """Until then the host's memory must stay as it is."""
        if self._copied is not None:
            self._copied.synchronize()

    def arrived(self) -> list[tuple[Tensor, Tensor]]:
        """The micro-batches, for what the device does next."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        return [(inputs, labels) for inputs, labels in self._tokens]

    def let_go(self) -> None:
        """Behind what the device was given to do so far, the tokens may be others."""
        if self._used is not None:
            self._used.record(torch.cuda.current_stream())
