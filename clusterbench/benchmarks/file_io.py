"""Large files: written through to the disk, and read from it into memory or on to a GPU."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._files import OpenFile, cache_category, cache_evidence, expect_room, leave_cache, on_disk
from clusterbench.benchmarks._transfer import WORD_BYTES, pattern, transfer_metrics, transferred
from clusterbench.errors import NotHere, WrongResult
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig

_PAGE_BYTES = 4096
_WORDS_PER_PAGE = _PAGE_BYTES // WORD_BYTES
_BUFFERS = 2


@dataclass(frozen=True, kw_only=True)
class FileIo(Benchmark):
    """How fast ranks write and read large files, each rank its own, block by block in order.

    Writing ends when fsync says that the disk has it all; an iteration begins with an empty file. Reading is of a file
    that the page cache of this host holds nothing of: each iteration has a file of its own, written and dropped from
    the cache before anything is timed. Not every file system heeds that, so the kernel is asked, and rows say what it
    found: ``cold``, ``cached``, or ``unverified``. A storage server's own cache cannot be seen from here.

    On the way to a GPU blocks are read into pinned memory and copied while the next one is read. Every page holds its
    own number and is checked where it arrives. Files have no name, so that none is left however the case ends.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = transfer_metrics("one file")

    iterations: int = option(3, "timed repetitions; each read has a file of its own", minimum=1, maximum=1000)
    warmup: int = option(0, "repetitions before them, not timed; each read has a file", minimum=0, maximum=1000)
    time_limit_s: float | None = option(
        1800.0, "seconds after which a case is stopped, from when its ranks have met", minimum=0.1, maximum=604_800
    )
    path: str = option("/tmp", "folder whose disk is measured; by default the system's temporary one")
    operations: tuple[str, ...] = option(("write", "read"), "what is timed", choices=("write", "read"))
    size: int = option(2**28, "file of each rank", unit="B", minimum=_PAGE_BYTES, maximum=2**44)
    block: int = option(2**20, "what one call writes or reads", unit="B", minimum=_PAGE_BYTES, maximum=2**30)
    direct: bool = option(False, "whether to bypass the page cache (O_DIRECT), where the file system allows it")
    cold: bool = option(True, "whether files leave the page cache before they are read")
    to: str = option("host", "where a file is read to", choices=("host", "device"))
    ranks: str = option("all", "who writes and reads: every rank at once, or one alone", choices=("all", "one"))

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        for name in ("cold", "to"):
            if name in keys and "read" not in self.operations:
                yield name, f"it concerns reading, and operations is {', '.join(self.operations)}"
        if "cold" in keys and self.direct:
            yield "cold", "direct reads bypass the cache"

    def points(self, place: Place) -> Iterable[Point]:
        for operation in self.operations:
            reads: dict[str, Any] = {}
            if operation == "read":
                is_cold = self.cold or self.direct
                files = self.warmup + self.iterations if is_cold else 1
                reads = {"to": self.to, "cold": is_cold, "files": files}
            yield {
                "size_bytes": self.size,
                "block_bytes": self.block,
                "operation": operation,
                "path": self.path,
                "direct": self.direct,
                "ranks": self.ranks,
                "ranks_per_host": 1 if self.ranks == "one" else place.cluster.ranks_per_node,
                **reads,
            }

    def label(self, point: Point) -> str:
        words = [point["operation"], format_bytes(point["size_bytes"]), f"by{format_bytes(point['block_bytes'])}"]
        words += ["direct"] if point["direct"] else []
        words += ["to_device"] if point.get("to") == "device" else []
        return "-".join([*words, point["ranks"]])

    def world_size(self, point: Point, place: Place) -> int:
        return 1 if point["ranks"] == "one" else place.world_size

    def objection(self, point: Point, place: Place) -> str | None:
        size_bytes, block = int(point["size_bytes"]), int(point["block_bytes"])
        if block % _PAGE_BYTES:
            return f"a block of {block} B is not a whole number of pages of {_PAGE_BYTES} B"
        if size_bytes % block:
            return f"a file of {size_bytes} B is not a whole number of blocks of {block} B"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        size_bytes, block_bytes = int(point["size_bytes"]), int(point["block_bytes"])
        to_device = point.get("to") == "device"
        if to_device and rig.device.type != "cuda":
            raise NotHere("a file cannot be read on to a GPU: these are CPU ranks.\nhint: leave out 'to: device'")
        blocks = _Blocks(rig, size_bytes, block_bytes, is_pinned=to_device)
        files = [OpenFile(point["path"], point["direct"]) for _ in range(point.get("files", 1))]
        with on_disk(point["path"]):
            expect_room(point["path"], len(files) * size_bytes * int(point["ranks_per_host"]))

        def check_writing() -> Mapping[str, float]:
            with on_disk(point["path"]):
                blocks.write(files[0].descriptor)
                leave_cache(files[0].descriptor)
                return blocks.compare(files[0].descriptor)

        def write() -> None:
            with on_disk(point["path"]):
                blocks.write(files[0].descriptor)

        def confirm_writing(is_first: bool) -> Mapping[str, float]:
            """What the last iteration left on the disk."""
            if not is_first:
                return {}
            with on_disk(point["path"]):
                leave_cache(files[0].descriptor)
                return blocks.compare(files[0].descriptor)

        if point["operation"] == "write":
            return Step(run=write, check=check_writing, confirm=confirm_writing)
        target = torch.empty(size_bytes // WORD_BYTES, dtype=torch.int64, device=rig.device) if to_device else None

        def read(descriptor: int) -> None:
            if target is None:
                blocks.read(descriptor)
            else:
                blocks.read_to(target, descriptor)

        def check_reading() -> Mapping[str, float]:
            evidence: Mapping[str, float] = {}
            with on_disk(point["path"]):
                for file in files:
                    blocks.write(file.descriptor)
                    leave_cache(file.descriptor)
                    evidence = blocks.compare(file.descriptor)
                    if target is not None:
                        read(file.descriptor)
                        evidence = blocks.compare_with(target)
                    if point["cold"]:
                        leave_cache(file.descriptor)
                return {**evidence, **cache_evidence([file.descriptor for file in files])}

        turn = count()

        def read_next() -> None:
            with on_disk(point["path"]):
                read(files[next(turn) % len(files)].descriptor)

        def confirm_reading(is_first: bool) -> Mapping[str, float]:
            """What the last block that was read left on its way."""
            return blocks.compare_last() if is_first else {}

        return Step(run=read_next, check=check_reading, confirm=confirm_reading)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        detail = cache_category(observation) if case.point["operation"] == "read" else None
        return transferred(case, observation, int(case.point["size_bytes"]), detail)


class _Blocks:
    """The content of a rank's file: words that differ everywhere, of which the first of each page holds its number."""

    def __init__(self, rig: Rig, size_bytes: int, block_bytes: int, is_pinned: bool) -> None:
        import torch

        self.rig, self.block_bytes, self.num_blocks = rig, block_bytes, size_bytes // block_bytes
        self.is_pinned = is_pinned
        numel = block_bytes // WORD_BYTES
        self.content = pattern(numel, rig.rank * numel, "cpu")
        self.firsts = self.content[::_WORDS_PER_PAGE].clone()
        self.buffers: list[torch.Tensor] = []
        for _ in range(_BUFFERS):
            # Both begin at a page, which direct access asks for.
            if is_pinned:
                buffer = torch.zeros(numel, dtype=torch.int64).pin_memory()
            else:
                buffer = torch.frombuffer(mmap.mmap(-1, block_bytes), dtype=torch.int64)
            self.buffers.append(buffer)
        self.views = [buffer.numpy().data.cast("B") for buffer in self.buffers]

    def number(self, words: torch.Tensor, block: int) -> None:
        """Gives the pages of a block with this content the number of their place."""
        words[::_WORDS_PER_PAGE] = self.firsts + block

    def write(self, descriptor: int) -> None:
        """Writes the file anew, until it is on the disk."""
        buffer, view = self.buffers[0], self.views[0]
        buffer.copy_(self.content)
        os.ftruncate(descriptor, 0)
        for block in range(self.num_blocks):
            self.number(buffer, block)
            self._whole(lambda part, at: os.pwrite(descriptor, part, at), view, block)
        os.fsync(descriptor)

    def read(self, descriptor: int) -> None:
        """Reads the file, every block to the same place."""
        for block in range(self.num_blocks):
            self._whole(lambda part, at: os.preadv(descriptor, [part], at), self.views[0], block)

    def read_to(self, target: torch.Tensor, descriptor: int) -> None:
        """Reads the file into ``target`` on a GPU; a block is copied there while the next is read."""
        import torch

        numel = self.block_bytes // WORD_BYTES
        copied = [torch.cuda.Event() for _ in self.buffers]  # type: ignore[no-untyped-call]
        for block in range(self.num_blocks):
            turn = block % len(self.buffers)
            copied[turn].synchronize()  # the buffer's last block has left it
            self._whole(lambda part, at: os.preadv(descriptor, [part], at), self.views[turn], block)
            target[block * numel : (block + 1) * numel].copy_(self.buffers[turn], non_blocking=True)
            copied[turn].record()
        torch.cuda.current_stream().synchronize()

    def compare(self, descriptor: int) -> Mapping[str, float]:
        """Reads the file and compares every word. Raises WrongResult at the first block that differs."""
        evidence: Mapping[str, float] = {}
        expected = self.content.clone()
        for block in range(self.num_blocks):
            self._whole(lambda part, at: os.preadv(descriptor, [part], at), self.views[0], block)
            self.number(expected, block)
            evidence = self.rig.expect_equal(f"block {block} of a file", self.buffers[0], expected)
        return evidence

    def compare_last(self) -> Mapping[str, float]:
        """Whether the last block of a file is what was read last. Raises WrongResult where it is another."""
        block, expected = self.num_blocks - 1, self.content.clone()
        self.number(expected, block)
        buffer = self.buffers[block % len(self.buffers) if self.is_pinned else 0]
        return self.rig.expect_equal(f"block {block} of a file, the last that was read,", buffer, expected)

    def compare_with(self, whole: torch.Tensor) -> Mapping[str, float]:
        """The same of a file that was read on to a GPU."""
        evidence: Mapping[str, float] = {}
        expected = self.content.clone()
        for block in range(self.num_blocks):
            words = whole[block * len(expected) : (block + 1) * len(expected)]
            self.number(expected, block)
            evidence = self.rig.expect_equal(f"block {block} on the GPU", words, expected.to(words.device))
        return evidence

    def _whole(self, call: Callable[[memoryview, int], int], view: memoryview, block: int) -> None:
        """Repeats a call that may do a part only, until it has done the block."""
        done = 0
        while done < self.block_bytes:
            moved = call(view[done:], block * self.block_bytes + done)
            if not moved:
                raise WrongResult(
                    f"a file gave wrong results on rank {self.rig.rank} (host {self.rig.host}): it ends in block "
                    f"{block}, {self.num_blocks} were written."
                )
            done += moved
