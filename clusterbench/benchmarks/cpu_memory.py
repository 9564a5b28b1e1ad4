"""A host's memory: the four loops of STREAM, on one rank, on several, and on all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._transfer import transfer_metrics, transferred
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes
from clusterbench.words import Word

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig

_ITEM_BYTES = 8
_ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
"""Arrays that a loop reads or writes."""

_SCALAR = 3
_TIMES_THE_CACHE = 4
"""STREAM's own rule, ``stream.c``: each array at least four times the last-level caches in use."""

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True)
class CpuMemory(Benchmark):
    """How fast the ranks of a host go through its memory, as STREAM counts it.

    The loops are copy (c = a), scale (b = 3 c), add (c = a + b) and triad (a = b + 3 c), on arrays of float64; copy and
    scale count twice an array's size, add and triad three times. What a processor reads only because it is about to
    overwrite it (write-allocate) is not counted, so the memory may carry up to a half more. Source: McCalpin's STREAM.

    Ranks have as many threads as OMP_NUM_THREADS says, one unless the suite sets it, and one rank is seldom enough for
    all of a socket's memory channels. Every element is checked.
    """

    glossary: ClassVar[tuple[Word, ...]] = (
        Word("STREAM", "McCalpin's measure of memory bandwidth: copy, scale, add and triad over large arrays."),
    )
    on_host: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = transfer_metrics("one pass of the loop")

    size: int = option(
        2**28,
        "each array of each rank; STREAM wants four times the last-level cache",
        unit="B",
        minimum=8,
        maximum=2**38,
    )
    kernels: tuple[str, ...] = option(tuple(_ARRAYS), "STREAM's loops", choices=tuple(_ARRAYS))

    def points(self, place: Place) -> Iterable[Point]:
        per_node = place.cluster.ranks_per_node
        counts = {2**i for i in range(per_node.bit_length()) if 2**i < per_node} if place.num_nodes == 1 else set()
        for num_ranks in sorted(counts | {place.world_size}):
            for kernel in self.kernels:
                yield {
                    "size_bytes": self.size,
                    "kernel": kernel,
                    "num_ranks": num_ranks,
                    "ranks_per_host": min(num_ranks, per_node),
                }

    def label(self, point: Point) -> str:
        return f"{point['kernel']}-{format_bytes(point['size_bytes'])}"

    def world_size(self, point: Point, place: Place) -> int:
        return int(point["num_ranks"])

    def objection(self, point: Point, place: Place) -> str | None:
        if int(point["size_bytes"]) % _ITEM_BYTES:
            return f"a size of {point['size_bytes']} B is not a whole number of float64 elements of {_ITEM_BYTES} B"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        size_bytes, kernel = int(point["size_bytes"]), str(point["kernel"])
        numel = size_bytes // _ITEM_BYTES

        def counting(factor: int, offset: int) -> torch.Tensor:
            # Whole numbers below 2^53: every result of the four loops is exact.
            return torch.arange(numel, dtype=torch.float64).mul_(factor).add_(offset)

        # The rank that fills a page gets it from its own socket's memory, and the same rank goes through it.
        first, second = counting(1, rig.rank), counting(5, 7)
        target = torch.full_like(first, -1.0)
        loops: dict[str, Callable[[], object]] = {
            "copy": lambda: target.copy_(first),
            "scale": lambda: torch.mul(first, float(_SCALAR), out=target),
            "add": lambda: torch.add(first, second, out=target),
            "triad": lambda: torch.add(first, second, alpha=_SCALAR, out=target),
        }
        # factor and offset of what each loop must give
        expected = {
            "copy": (1, rig.rank),
            "scale": (_SCALAR, _SCALAR * rig.rank),
            "add": (6, rig.rank + 7),
            "triad": (1 + _SCALAR * 5, rig.rank + _SCALAR * 7),
        }

        def check() -> Mapping[str, float]:
            loops[kernel]()
            evidence = rig.expect_equal(kernel, target, counting(*expected[kernel]))
            target.fill_(-1.0)
            caches = last_level_caches()
            if caches:
                evidence["array_over_cache"] = array_over_cache(size_bytes, int(point["ranks_per_host"]), caches)
            return evidence

        def confirm(is_first: bool) -> Mapping[str, float]:
            return rig.expect_equal(kernel, target, counting(*expected[kernel])) if is_first else {}

        return Step(run=loops[kernel], check=check, confirm=confirm)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        ratios = [rank["array_over_cache"] for rank in observation.evidence if "array_over_cache" in rank]
        basis = ""
        if ratios and min(ratios) < _TIMES_THE_CACHE:
            basis = (
                f"arrays are {min(ratios):.1f} times the last-level cache and STREAM asks for {_TIMES_THE_CACHE}, so a "
                "part of this is the cache's rate"
            )
        size_bytes = _ARRAYS[case.point["kernel"]] * int(case.point["size_bytes"])
        return transferred(case, observation, size_bytes, basis=basis)


def last_level_caches(cpus: Path = _CPUS) -> list[int]:
    """Sizes in bytes of this host's last-level caches, each once however many cores share it; empty where unknown."""
    caches: dict[str, tuple[int, int]] = {}
    for cpu in cpus.glob("cpu[0-9]*"):
        levels = []
        for cache in (cpu / "cache").glob("index[0-9]*"):
            try:
                if (cache / "type").read_text(encoding="utf-8").strip() == "Instruction":
                    continue
                size = (cache / "size").read_text(encoding="utf-8").strip().removesuffix("K")
                levels.append((int((cache / "level").read_text(encoding="utf-8")), int(size) * 2**10, cache))
            except (OSError, ValueError):
                continue
        if levels:
            level, size_bytes, cache = max(levels)
            caches[(cache / "shared_cpu_list").read_text(encoding="utf-8").strip()] = (level, size_bytes)
    last = max((level for level, _ in caches.values()), default=0)
    return [size_bytes for level, size_bytes in caches.values() if level == last]


def array_over_cache(size_bytes: int, num_ranks: int, caches: list[int]) -> float:
    """How often one array, taken over the ranks of a host, is as large as the caches that so many ranks can fill.

    >>> array_over_cache(2**28, 1, [2**25, 2**25]), array_over_cache(2**28, 8, [2**25, 2**25])
    (8.0, 32.0)
    """
    return size_bytes * num_ranks / sum(sorted(caches)[-num_ranks:])
