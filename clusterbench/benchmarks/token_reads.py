"""Tokens of a corpus in random order, batch after batch, as a data loader reads them for training."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._files import OpenFile, cache_category, cache_evidence, expect_room, leave_cache, on_disk
from clusterbench.benchmarks._transfer import WORD_BYTES, pattern
from clusterbench.errors import WrongResult
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_WRITTEN_AT_ONCE = 2**20  # words


@dataclass(frozen=True, kw_only=True)
class TokenReads(Benchmark):
    """How many tokens a second a file system gives to training: sequences at random places of a tokenized corpus.

    Each rank has a file of its own, cut into sequences of ``seq_len`` tokens. In an iteration ``workers`` threads read
    a batch of them, each with one call at its place, which is what a memory-mapped corpus asks of the disk; then tokens
    are widened to 64 bits, as an embedding takes them, and on GPUs copied there. No sequence is read twice, so that a
    cold file stays cold but for what the file system reads ahead. A step that trains faster than this waits for data,
    unless batches are read ahead while it computes: then this is the most that it can keep up with.

    Every token is a function of its rank and place, and the last batch is compared with what was written.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("batch_time", "s", "lower", "time until a batch of tokens is where a step takes it, slowest rank"),
        MetricKind(
            "read_tokens_per_s", "tokens/s", "higher", "tokens that all ranks read, over the time of the slowest"
        ),
        MetricKind("bandwidth", "B/s", "higher", "bytes that all ranks move, over the time of the slowest"),
    )

    iterations: int = option(20, "timed repetitions, each of another batch", minimum=1, maximum=100_000)
    warmup: int = option(2, "repetitions before them, not timed", minimum=0, maximum=1000)
    time_limit_s: float | None = option(
        1800.0, "seconds after which a case is stopped, from when its ranks have met", minimum=0.1, maximum=604_800
    )
    path: str = option("/tmp", "folder whose disk is measured; by default the system's temporary one")
    size: int = option(2**28, "file of each rank", unit="B", minimum=WORD_BYTES, maximum=2**44)
    seq_len: int = option(4096, "tokens of a sequence", minimum=8, maximum=2**24)
    token_bytes: int = option(4, "bytes of a token on the disk; 2 hold a vocabulary of 65,536", choices=(2, 4))
    sequences: int = option(8, "sequences of a batch, of each rank", minimum=1, maximum=2**20)
    workers: tuple[int, ...] = option((1, 8), "threads that read for a rank", minimum=1, maximum=256)
    cold: bool = option(True, "whether the file leaves the page cache before it is read")

    def points(self, place: Place) -> Iterable[Point]:
        for workers in self.workers:
            yield {
                "operation": "read",
                "size_bytes": self.sequences * self.seq_len * self.token_bytes,
                "file_bytes": self.size,
                "seq_len": self.seq_len,
                "token_bytes": self.token_bytes,
                "sequences": self.sequences,
                "batches": self.warmup + self.iterations,
                "workers": workers,
                "path": self.path,
                "cold": self.cold,
                "ranks_per_host": place.cluster.ranks_per_node,
            }

    def label(self, point: Point) -> str:
        workers = f"{point['workers']}worker{'s' * (point['workers'] > 1)}"
        cold = "" if point["cold"] else "-cached"
        return f"{point['sequences']}x{point['seq_len']}x{point['token_bytes']}B-{workers}{cold}"

    def objection(self, point: Point, place: Place) -> str | None:
        sequence_bytes = int(point["seq_len"]) * int(point["token_bytes"])
        if sequence_bytes % WORD_BYTES:
            return f"a sequence of {sequence_bytes} B is not a whole number of words of {WORD_BYTES} B"
        needed_bytes = int(point["batches"]) * int(point["size_bytes"])
        if needed_bytes > int(point["file_bytes"]):
            return (
                f"{point['batches']} batches of {format_bytes(point['size_bytes'])} are more than a file of "
                f"{format_bytes(point['file_bytes'])} holds, and no sequence is read twice"
            )
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        corpus = _Corpus(rig, point)
        with on_disk(point["path"]):
            expect_room(point["path"], int(point["file_bytes"]) * int(point["ranks_per_host"]))

        def check() -> Mapping[str, float]:
            with on_disk(point["path"]):
                corpus.write()
                evidence = corpus.compare(corpus.places[: corpus.sequences])
                if point["cold"]:
                    leave_cache(corpus.file.descriptor)
                return {**evidence, **cache_evidence([corpus.file.descriptor])}

        batches = corpus.batches()

        def run() -> None:
            with on_disk(point["path"]):
                corpus.read(next(batches))

        def confirm(is_first: bool) -> Mapping[str, float]:
            """What the last batch holds where a step would take it: by its number, whatever was asked for."""
            return corpus.expect(corpus.places_of(rig.made_calls - 1)) if is_first else {}

        return Step(run=run, check=check, confirm=confirm)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        detail = cache_category(observation)
        yield Metric("batch_time", "s", time.value, time.low, time.high, time.n, detail)
        tokens = int(case.point["sequences"]) * int(case.point["seq_len"]) * case.world_size
        amounts = (
            ("read_tokens_per_s", "tokens/s", tokens),
            ("bandwidth", "B/s", tokens * int(case.point["token_bytes"])),
        )
        for name, unit, amount in amounts:
            # The slow end of the time is the low end of the rate.
            value, low, high = (amount / seconds for seconds in (time.value, time.high, time.low))
            yield Metric(name, unit, value, low, high, time.n, detail)


class _Corpus:
    """A rank's file of tokens: words of the pattern, so that each is a function of its rank and place."""

    def __init__(self, rig: Rig, point: Point) -> None:
        import torch

        self.rig, self.file = rig, OpenFile(point["path"], direct=False)
        self.sequences, self.seq_len = int(point["sequences"]), int(point["seq_len"])
        self.sequence_bytes = self.seq_len * int(point["token_bytes"])
        self.dtype = {2: torch.int16, 4: torch.int32}[int(point["token_bytes"])]
        count = int(point["file_bytes"]) // self.sequence_bytes
        self.places = random.Random(rig.rank).sample(range(count), count)
        self.words = self.sequence_bytes // WORD_BYTES
        self.first_word = rig.rank * count * self.words
        self.tokens = torch.zeros(self.sequences, self.seq_len, dtype=self.dtype)
        is_on_gpu = rig.device.type == "cuda"
        self.batch = torch.zeros(self.sequences, self.seq_len, dtype=torch.int64, pin_memory=is_on_gpu)
        self.target = torch.zeros_like(self.batch, device=rig.device) if is_on_gpu else self.batch
        whole = self.tokens.numpy().data.cast("B")
        self.views = [whole[start : start + self.sequence_bytes] for start in range(0, len(whole), self.sequence_bytes)]
        self.readers = ThreadPoolExecutor(int(point["workers"])) if point["workers"] > 1 else None

    def batches(self) -> Iterator[Sequence[int]]:
        """Places of a batch, each sequence once before any is read again."""
        while True:
            places = iter(self.places)
            while len(batch := list(islice(places, self.sequences))) == self.sequences:
                yield batch

    def places_of(self, number: int) -> Sequence[int]:
        """Those of one of these batches, which count from 0."""
        start = number % (len(self.places) // self.sequences) * self.sequences
        return self.places[start : start + self.sequences]

    def write(self) -> None:
        """Writes the file until it is on the disk."""
        total = len(self.places) * self.words
        for start in range(0, total, _WRITTEN_AT_ONCE):
            words = pattern(min(_WRITTEN_AT_ONCE, total - start), self.first_word + start, "cpu")
            view = words.numpy().data.cast("B")
            done = 0
            while done < len(view):
                done += os.pwrite(self.file.descriptor, view[done:], start * WORD_BYTES + done)
        leave_cache(self.file.descriptor)

    def read(self, places: Sequence[int]) -> None:
        """Reads a batch to where a step takes it."""
        calls = list(zip(self.views, places, strict=True))
        if self.readers is None:
            for call in calls:
                self._read_one(call)
        else:
            list(self.readers.map(self._read_one, calls))
        self.batch.copy_(self.tokens)
        if self.target is not self.batch:
            import torch

            self.target.copy_(self.batch, non_blocking=True)
            torch.cuda.current_stream().synchronize()

    def compare(self, places: Sequence[int]) -> Mapping[str, float]:
        """Reads a batch and compares every token."""
        self.read(places)
        return self.expect(places)

    def expect(self, places: Sequence[int]) -> Mapping[str, float]:
        """Compares the batch that was read last. Raises WrongResult at the first sequence that differs."""
        evidence: Mapping[str, float] = {}
        for number, place in enumerate(places):
            words = pattern(self.words, self.first_word + place * self.words, "cpu")
            expected = words.view(self.dtype).to(self.target)
            evidence = self.rig.expect_equal(f"sequence {place} of a corpus", self.target[number], expected)
        return evidence

    def _read_one(self, call: tuple[memoryview, int]) -> None:
        view, place = call
        done = 0
        while done < len(view):
            moved = os.preadv(self.file.descriptor, [view[done:]], place * self.sequence_bytes + done)
            if not moved:
                raise WrongResult(
                    f"a corpus gave wrong results on rank {self.rig.rank} (host {self.rig.host}): it ends in sequence "
                    f"{place} of {len(self.places)}."
                )
            done += moved
