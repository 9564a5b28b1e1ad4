"""Many small files: how many a second are created, looked up, read and deleted."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._files import Folder
from clusterbench.errors import WrongResult
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_NUMBER_BYTES = 8
_OPERATIONS = ("create", "stat", "read", "delete")


@dataclass(frozen=True, kw_only=True)
class SmallFiles(Benchmark):
    """Small files a second that all ranks together create, look up, read and delete, each in its own folder.

    Creating is to open, write and close; with ``sync`` it also waits for the disk. Each iteration creates, or deletes,
    in a folder that was not used before. What is looked up and read was written by the same rank a moment ago, so this
    host's caches answer for as much as they hold: the rates are those of files that are in use. The calls are made
    from Python, which adds about a microsecond to each.

    Every file holds its own number and is read back before anything is timed. The folders are removed afterwards; what
    a killed run left, the next one removes.
    """

    on_host: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("time_per_file", "s", "lower", "time of one operation on one file, from the slowest rank"),
        MetricKind("file_rate", "1/s", "higher", "operations a second of all ranks, over the time of the slowest"),
    )

    iterations: int = option(5, "timed repetitions, each of all files", minimum=1, maximum=1000)
    warmup: int = option(1, "repetitions before them, not timed", minimum=0, maximum=1000)
    time_limit_s: float | None = option(
        1800.0, "seconds after which a case is stopped, from when its ranks have met", minimum=0.1, maximum=604_800
    )
    path: str = option("/tmp", "folder whose file system is measured; by default the system's temporary one")
    operations: tuple[str, ...] = option(_OPERATIONS, "what is timed", choices=_OPERATIONS)
    files: int = option(1000, "files of each rank, in one folder", minimum=1, maximum=10_000_000)
    size: int = option(2**12, "content of each file", unit="B", minimum=_NUMBER_BYTES, maximum=2**30)
    sync: bool = option(False, "whether each file is on the disk before the next one is created")

    def points(self, place: Place) -> Iterable[Point]:
        for operation in self.operations:
            # What creates or deletes needs a folder for every iteration, and one for the proof.
            folders = 1 + self.warmup + self.iterations if operation in ("create", "delete") else 1
            yield {
                "operation": operation,
                "files": self.files,
                "file_bytes": self.size,
                "path": self.path,
                "sync": self.sync,
                "folders": folders,
            }

    def label(self, point: Point) -> str:
        sync = "-sync" if point["sync"] else ""
        return f"{point['operation']}-{point['files']}x{format_bytes(point['file_bytes'])}{sync}"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        folder = Folder(point["path"])
        files = _Files(rig, point)
        with folder.removed_on_error():
            places = [folder.path / str(number) for number in range(point["folders"])]
            for place in places:
                place.mkdir()
        operations: dict[str, Callable[[Path], None]] = {
            "create": files.create,
            "stat": files.stat,
            "read": files.read,
            "delete": files.delete,
        }
        operation = operations[point["operation"]]
        is_used_up = len(places) > 1
        turn, timed = count(1 if is_used_up else 0), list[Path]()

        def check() -> Mapping[str, float]:
            with folder.removed_on_error():
                if point["operation"] == "create":
                    operation(places[0])
                    files.compare(places[0])
                    files.delete(places[0])
                    return {"wrong_files": 0.0}
                for place in places:
                    files.create(place)
                files.compare(places[0])
                operation(places[0])
                expect_number(places[0])
            return {"wrong_files": 0.0}

        def expect_number(place: Path) -> None:
            left, expected = len(os.listdir(place)), 0 if point["operation"] == "delete" else files.number
            if left != expected:
                raise WrongResult(
                    f"{point['operation']} gave wrong results on rank {rig.rank} (host {rig.host}): {place} holds "
                    f"{left} files, expected {expected}."
                )

        def run() -> None:
            with folder.removed_on_error():
                timed.append(places[next(turn) if is_used_up else 0])
                operation(timed[-1])

        def confirm(is_first: bool) -> Mapping[str, float]:
            """What the last iteration left in its folder."""
            with folder.removed_on_error():
                expect_number(timed[-1])
                if is_first and point["operation"] == "create":
                    files.compare(timed[-1])
            return {"wrong_files": 0.0}

        return Step(run=run, check=check, confirm=confirm)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        files = int(case.point["files"])
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("time_per_file", "s", time.value / files, time.low / files, time.high / files, time.n)
        num_files = files * case.world_size
        yield Metric("file_rate", "1/s", num_files / time.value, num_files / time.high, num_files / time.low, time.n)


class _Files:
    """The files of one rank: the n-th holds its number, and then bytes that are this rank's."""

    def __init__(self, rig: Rig, point: Point) -> None:
        self.rig, self.number, self.size = rig, int(point["files"]), int(point["file_bytes"])
        self.sync = bool(point["sync"])
        self.rest = random.Random(rig.rank).randbytes(self.size - _NUMBER_BYTES)

    def content(self, index: int) -> bytes:
        return index.to_bytes(_NUMBER_BYTES, "little") + self.rest

    def create(self, place: Path) -> None:
        for index in range(self.number):
            descriptor = os.open(f"{place}/{index}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                content = memoryview(self.content(index))
                while content:
                    content = content[os.write(descriptor, content) :]
                if self.sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def stat(self, place: Path) -> None:
        for index in range(self.number):
            if os.stat(f"{place}/{index}").st_size != self.size:
                raise WrongResult(f"{place}/{index} on {self.rig.host} has another size than the {self.size} B written")

    def read(self, place: Path) -> None:
        for index in range(self.number):
            self._content_of(f"{place}/{index}")

    def delete(self, place: Path) -> None:
        for index in range(self.number):
            os.unlink(f"{place}/{index}")

    def compare(self, place: Path) -> None:
        """Reads every file. Raises WrongResult at the first that holds something else."""
        self.stat(place)
        for index in range(self.number):
            got, expected = self._content_of(f"{place}/{index}"), self.content(index)
            if got != expected:
                at = next(
                    at
                    for at, (byte, expected_byte) in enumerate(zip(got, expected, strict=True))
                    if byte != expected_byte
                )
                raise WrongResult(
                    f"{place}/{index} gave wrong results on rank {self.rig.rank} (host {self.rig.host}): byte {at} is "
                    f"{got[at]}, expected {expected[at]}."
                )

    def _content_of(self, name: str) -> bytes:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            content = os.read(descriptor, self.size)
            while len(content) < self.size and (more := os.read(descriptor, self.size - len(content))):
                content += more
            return content
        finally:
            os.close(descriptor)
