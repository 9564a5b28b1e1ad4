"""Every pair of GPUs of a node: copies between them, directly and through host memory, one way and both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import NotHere
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.tools.host_links import NVLINK, TOPOLOGY, HostTopology, NvLink, NvLinkReadings, grown
from clusterbench.types import (
    SAMPLES,
    Case,
    Expected,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    metric_key,
)
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig

_WORD_BYTES = 8
_SMALL_COPIES = 100
_CHUNK_WORDS = 2**19  # 4 MiB: long enough for PCIe, short enough for the two halves of a staged copy to overlap
_SLOTS = 4
_PATTERN = 251  # a prime: no block looks like another that is a power of two away


@dataclass(frozen=True, kw_only=True)
class PeerCopy(Benchmark):
    """How fast one process copies between the GPUs of its node, pair by pair.

    The first rank of each node copies, while the others wait; nodes do so side by side. ``category`` says how a copy
    went. ``peer``: the GPUs reach each other's memory, by NVLink or PCIe, and torch has let them. ``driver``: they do
    not, and the driver stages the copy. ``host``: the copy without peer access, staged here through pinned host memory
    in chunks whose two halves overlap. torch cannot switch peer access off again once it is on, so this stands for
    p2pBandwidthLatencyTest's matrix with P2P disabled.

    One way is the bytes that arrived over the time of several copies in a row; both ways is the sum of both directions.
    The local copy, that test's diagonal, counts each byte twice: read and written.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("traversal_time", "s", "lower", "one copy from every GPU to every other, one after the other"),
        MetricKind("copy_bandwidth", "B/s", "higher", "from source to part alone"),
        MetricKind("copy_bandwidth_both", "B/s", "higher", "both directions at once, summed"),
        MetricKind("copy_latency", "s", "lower", "one copy of 8 bytes among many in a row, as torch issues them"),
        MetricKind("local_copy_bandwidth", "B/s", "higher", "within one GPU; each byte is read and written"),
        MetricKind("median_bandwidth", "B/s", "higher", "median over all pairs of a category, one way"),
        MetricKind("peer_pairs", "1", "neither", "pairs (from, to) with access to each other's memory"),
        MetricKind("nvlink_active", "1", "neither", "NVLinks of a GPU that are up"),
        MetricKind(
            "nvlink_errors", "1", "lower", "errors that all NVLinks of a GPU counted during the copies", exact=True
        ),
    )
    predicts: ClassVar[tuple[str, ...]] = ("median_bandwidth",)

    size: int = option(2**26, "bytes of one copy", unit="B", minimum=_WORD_BYTES, maximum=2**36)
    copies: int = option(4, "copies in a row, timed together", minimum=1, maximum=10_000)
    pair_iterations: int = option(5, "timed repetitions of each figure of a pair", minimum=1, maximum=10_000)
    pair_warmup: int = option(2, "repetitions before them, not timed", minimum=0, maximum=10_000)
    iterations: int = option(5, "timed traversals of all pairs", minimum=1, maximum=1_000_000)
    warmup: int = option(1, "traversals before them, not timed", minimum=0, maximum=1_000_000)

    def points(self, place: Place) -> Iterable[Point]:
        yield {
            "size_bytes": self.size,
            "copies": self.copies,
            "gpus_in_node": place.cluster.ranks_per_node,
            "pair_iterations": self.pair_iterations,
            "pair_warmup": self.pair_warmup,
        }

    def label(self, point: Point) -> str:
        return f"{format_bytes(point['size_bytes'])}x{point['copies']}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["size_bytes"] % _WORD_BYTES:
            return f"a copy of {point['size_bytes']} B is no whole number of {_WORD_BYTES} B words"
        return None

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        gpu, expected = place.cluster.accelerator, {}
        if gpu is None:
            return {}
        if int(point["gpus_in_node"]) > 1:
            if gpu.link_bytes_per_s:
                basis = f"one direction of the GPU's links, an upper bound: {gpu.source}"
                expected[metric_key("median_bandwidth", category="peer")] = Expected(
                    gpu.link_bytes_per_s, "B/s", basis, is_upper_bound=True
                )
            if gpu.pcie_bytes_per_s:
                basis = f"one direction of the link to the host, an upper bound: {gpu.source}"
                expected[metric_key("median_bandwidth", category="host")] = Expected(
                    gpu.pcie_bytes_per_s, "B/s", basis, is_upper_bound=True
                )
        if gpu.memory_bytes_per_s:
            basis = f"memory bandwidth, an upper bound: {gpu.source}"
            expected[metric_key("median_bandwidth", category="local")] = Expected(
                gpu.memory_bytes_per_s, "B/s", basis, is_upper_bound=True
            )
        return expected

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        """Bytes of a traversal and, spread over a few of those, of the pass that measures the pairs."""
        repetitions = int(point["pair_iterations"]) + int(point["pair_warmup"])
        pairs = int(point["gpus_in_node"]) ** 2
        return int(point["size_bytes"]) * pairs * (1 + int(point["copies"]) * repetitions)

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        if rig.device.type != "cuda":
            raise NotHere(f"peer copies are between GPUs, and rank {rig.rank} on {rig.host} is a CPU rank")
        from clusterbench.engine.topology import host_topology

        gpus_in_node = int(point["gpus_in_node"])
        gpus = _Gpus(rig, point) if rig.rank % gpus_in_node == 0 else None
        # On the host, over Gloo: a rank that waited on its GPU would keep it busy.
        turn, mark = torch.zeros(1), rig.full(1, "float32", value=0)

        def check() -> Mapping[str, float]:
            if gpus is None:
                return {}
            evidence = gpus.prove()
            gpus.rest()
            return evidence

        def confirm(is_first: bool) -> Mapping[str, float]:
            return gpus.look_at_the_last() if gpus and is_first else {}

        def run() -> None:
            if gpus:
                gpus.traverse()
            rig.comm.all_reduce(turn)
            mark.zero_()

        def samples() -> dict[str, list[float]]:
            figures = gpus.figures() if gpus else {}
            rig.comm.all_reduce(turn)
            return figures

        passes = {
            SAMPLES: samples,
            **NVLINK.taken(lambda: gpus.nvlinks if gpus else NvLinkReadings()),
            **TOPOLOGY.taken(lambda: host_topology() if gpus else HostTopology()),
        }
        return Step(run=run, check=check, passes=passes, confirm=confirm)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        for host_record in (NVLINK, TOPOLOGY):  # read by diagnoses and a chart, which leave out what is damaged
            host_record.of(observation)
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("traversal_time", "s", time.value, time.low, time.high, time.n)
        metrics = list(cls.sampled(observation))
        yield from _medians(metrics)
        for metric in metrics:
            yield metric._replace(detail={key: _name(end, observation.hosts) for key, end in metric.detail.items()})


def _medians(metrics: Iterable[Metric]) -> Iterator[Metric]:
    values: dict[str, list[float]] = {}
    for metric in metrics:
        if metric.value is not None and metric.name in ("copy_bandwidth", "local_copy_bandwidth"):
            category = "local" if metric.name == "local_copy_bandwidth" else metric.detail["category"]
            values.setdefault(category, []).append(metric.value)
    for category, of_it in values.items():
        over = summarise(of_it)
        yield Metric("median_bandwidth", "B/s", over.value, over.low, over.high, over.n, detail={"category": category})


def _name(end: str, hosts: tuple[str, ...]) -> str:
    """``cb2:3`` for ``1:3``, GPU 3 of the second node, and ``cb2`` for that node; any other word as it is."""
    node, colon, gpu = end.partition(":")
    return f"{hosts[int(node)]}{colon}{gpu}" if node.isdecimal() and int(node) < len(hosts) else end


class _Gpus:
    """All GPUs of one node as its first rank sees them."""

    def __init__(self, rig: Rig, point: Point) -> None:
        import torch

        self.rig, self.point = rig, point
        self.count, self.node = int(point["gpus_in_node"]), rig.rank // int(point["gpus_in_node"])
        if (num_visible := torch.cuda.device_count()) < self.count:
            raise NotHere(
                f"peer copies need one process that sees all {self.count} GPUs of its node, but rank {rig.rank} on "
                f"{rig.host} sees {num_visible}.\nhint: start the ranks without binding each to its GPU"
            )
        words = int(point["size_bytes"]) // _WORD_BYTES
        self.devices = [torch.device("cuda", index) for index in range(self.count)]
        self.sent = [torch.empty(words, dtype=torch.int64, device=device) for device in self.devices]
        self.received = [torch.empty_like(buffer) for buffer in self.sent]
        # One stream each way: torch makes the receiving GPU's current stream wait for the copy.
        self.out = [torch.cuda.Stream(device) for device in self.devices]  # type: ignore[no-untyped-call]
        self.into = [torch.cuda.Stream(device) for device in self.devices]  # type: ignore[no-untyped-call]
        chunk = min(words, _CHUNK_WORDS)
        self.rings = [_Ring(chunk) for _ in range(2)]  # one for each direction
        self.nvlinks = NvLinkReadings()

    def prove(self) -> Mapping[str, float]:
        """Each copy carries what says from where to where it goes, and every word of it is compared."""
        evidence: Mapping[str, float] = {}
        for source, target in permutations(range(self.count), 2):
            for how in (self.direct, partial(self.staged, self.rings[0])):
                self._address(source, target)
                how(source, target)
                self.settle()
                evidence = self._compare(source, target)
        return evidence

    def rest(self) -> None:
        """Before traversals are timed: whom a message is for it cannot say then, and nothing has arrived."""
        for gpu in range(self.count):
            self._address(gpu, gpu)

    def look_at_the_last(self) -> Mapping[str, float]:
        """Compares what timed traversals left on each GPU, the message of the last that copied to it."""
        last = {target: source for source, target in permutations(range(self.count), 2)}
        evidence: Mapping[str, float] = {}
        for target, source in last.items():
            what = f"the last copy from GPU {source} to GPU {target}"
            evidence = self.rig.expect_equal(what, self.received[target], self._message(source, source, target))
        return evidence

    def traverse(self) -> None:
        for source, target in permutations(range(self.count), 2):
            self.direct(source, target)
        self.settle()

    def figures(self) -> dict[str, list[float]]:
        """Every figure by its key; reads the NVLinks' counters before, during and after."""
        import torch

        from clusterbench.engine.nvlink import read_links

        before = read_links()
        figures: dict[str, list[float]] = {}
        peers = 0
        for gpu in range(self.count):
            key = metric_key("local_copy_bandwidth", source=self._end(gpu))
            with self._proven((gpu, gpu)):
                figures[key] = self._rates(2, partial(self.local, gpu))
        for pair in permutations(range(self.count), 2):
            has_access = torch.cuda.can_device_access_peer(*pair)
            peers += has_access
            ends = {"source": self._end(pair[0]), "part": self._end(pair[1])}
            way = "peer" if has_access else "driver"
            direct = partial(self.direct, *pair)
            with self._proven(pair):
                figures[metric_key("copy_bandwidth", category=way, **ends)] = self._rates(1, direct)
            staged = partial(self.staged, self.rings[0], *pair)
            with self._proven(pair):
                figures[metric_key("copy_bandwidth", category="host", **ends)] = self._rates(1, staged)
            with self._proven(pair, num_words=1):
                seconds = self._seconds(partial(self.small, *pair))
            figures[metric_key("copy_latency", category=way, **ends)] = [second / _SMALL_COPIES for second in seconds]
        during = read_links()
        for pair in combinations(range(self.count), 2):
            both = pair, pair[::-1]
            ends = {"source": self._end(pair[0]), "part": self._end(pair[1])}
            way = "peer" if torch.cuda.can_device_access_peer(*pair) else "driver"
            copy_both_ways = partial(self.both_ways, self.direct, self.direct, *pair)
            with self._proven(*both):
                figures[metric_key("copy_bandwidth_both", category=way, **ends)] = self._rates(2, copy_both_ways)
            forth, back = (partial(self.staged, ring) for ring in self.rings)
            copy_both_ways = partial(self.both_ways, forth, back, *pair)
            with self._proven(*both):
                figures[metric_key("copy_bandwidth_both", category="host", **ends)] = self._rates(2, copy_both_ways)
        figures[metric_key("peer_pairs", source=str(self.node))] = [float(peers)]
        after = read_links()
        self.nvlinks = NvLinkReadings(before, during, after, before.reason)
        return {**figures, **self._nvlink_figures(before, after)}

    # Copies. None waits for its end.

    def direct(self, source: int, target: int) -> None:
        with self._streams(source, target):
            self.received[target].copy_(self.sent[source], non_blocking=True)

    def small(self, source: int, target: int) -> None:
        word, place = self.sent[source][:1], self.received[target][:1]
        with self._streams(source, target):
            for _ in range(_SMALL_COPIES):
                place.copy_(word, non_blocking=True)

    def local(self, gpu: int) -> None:
        import torch

        with torch.cuda.stream(self.out[gpu]):
            self.received[gpu].copy_(self.sent[gpu], non_blocking=True)

    def staged(self, ring: _Ring, source: int, target: int) -> None:
        """Chunk by chunk into pinned memory and out of it; a chunk comes in while the one before goes out."""
        import torch

        for number, start in enumerate(range(0, self.sent[source].numel(), ring.words)):
            taken, put = (buffer[start : start + ring.words] for buffer in (self.sent[source], self.received[target]))
            slot = ring.slots[number % _SLOTS][: taken.numel()]
            with torch.cuda.stream(self.out[source]):
                ring.wait(number, self.out[source])
                slot.copy_(taken, non_blocking=True)
                filled = self.out[source].record_event()
            with torch.cuda.stream(self.into[target]):
                self.into[target].wait_event(filled)
                put.copy_(slot, non_blocking=True)
                ring.free[number % _SLOTS] = self.into[target].record_event()

    def both_ways(
        self, forth: Callable[[int, int], None], back: Callable[[int, int], None], source: int, target: int
    ) -> None:
        forth(source, target)
        back(target, source)

    def settle(self) -> None:
        """Waits for all GPUs."""
        import torch

        for device in self.devices:
            torch.cuda.synchronize(device)

    # Times

    def _rates(self, factor: int, copy: Callable[[], None]) -> list[float]:
        """Bytes per second of ``copies`` copies in a row, each byte counted ``factor`` times."""
        copies = int(self.point["copies"])

        def in_a_row() -> None:
            for _ in range(copies):
                copy()

        moved = factor * copies * self.sent[0].numel() * _WORD_BYTES
        return [moved / second for second in self._seconds(in_a_row)]

    def _seconds(self, copy: Callable[[], None]) -> list[float]:
        """By the host's clock, which sees both GPUs of a copy; what it costs to wait is in it, some microseconds."""
        from clusterbench.engine.clock import WallClock
        from clusterbench.engine.loop import measure, warm_up

        def to_its_end() -> None:
            copy()
            self.settle()

        warm_up(to_its_end, WallClock(), int(self.point["pair_warmup"]), _unwatched)
        self.settle()
        return measure(to_its_end, WallClock(), int(self.point["pair_iterations"]), _unwatched)

    @contextmanager
    def _streams(self, source: int, target: int) -> Iterator[None]:
        """The current streams of both GPUs for one direction; the source is the current device: its engine copies."""
        import torch

        with torch.cuda.stream(self.into[target]), torch.cuda.stream(self.out[source]):
            yield

    @contextmanager
    def _proven(self, *ways: tuple[int, int], num_words: int | None = None) -> Iterator[None]:
        """What is measured inside copies from each source to its target, and what it left there is compared."""
        for way in ways:
            self._address(*way)
        yield
        for way in ways:
            self._compare(*way, num_words)

    def _address(self, source: int, target: int) -> None:
        """The next message of ``source`` says that it is for ``target``, where nothing has arrived."""
        self.sent[source].copy_(self._message(source, target, source))
        self.received[target].zero_()
        self.settle()

    def _compare(self, source: int, target: int, num_words: int | None = None) -> Mapping[str, float]:
        what, expected = f"the copy from GPU {source} to GPU {target}", self._message(source, target, target)
        return self.rig.expect_equal(what, self.received[target][:num_words], expected[:num_words])

    def _message(self, source: int, target: int, on: int) -> torch.Tensor:
        import torch

        index = torch.arange(self.sent[on].numel(), device=self.devices[on])
        return 1 + (index % _PATTERN) + _PATTERN * (source * self.count + target)  # never 0

    def _end(self, gpu: int) -> str:
        return f"{self.node}:{gpu}"

    def _nvlink_figures(self, before: Sequence[NvLink], after: Sequence[NvLink]) -> dict[str, list[float]]:
        figures: dict[str, list[float]] = {}
        for gpu in sorted({link.gpu for link in after}):
            active = sum(bool(link.is_active) for link in after if link.gpu == gpu)
            figures[metric_key("nvlink_active", source=self._end(gpu))] = [float(active)]
        sums: dict[str, float] = {}
        for (gpu, _), counts in grown(before, after).items():
            for name, count in counts.items():
                key = metric_key("nvlink_errors", source=self._end(gpu), category=name)
                sums[key] = sums.get(key, 0.0) + count
        return {**figures, **{key: [total] for key, total in sums.items()}}


class _Ring:
    """Pinned host memory in slots that are filled and emptied in turn."""

    def __init__(self, words: int) -> None:
        import torch

        self.words = words
        self.slots = [torch.empty(words, dtype=torch.int64, pin_memory=True) for _ in range(_SLOTS)]
        self.free: dict[int, Any] = {}

    def wait(self, number: int, stream: Any) -> None:
        """Lets ``stream`` wait until the chunk that was in this slot before has left it."""
        if (event := self.free.get(number % _SLOTS)) is not None:
            stream.wait_event(event)


def _unwatched(iteration: int) -> None:
    """The loop's ``at``: in a pass single iterations are not reported."""
