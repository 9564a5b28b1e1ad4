"""How NCCL moves bytes: transport, network card, GPUDirect, channels, algorithm and protocol, from its own log."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.benchmarks._collective import ITEM_BYTES, Collective
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, SuiteError, ToolError
from clusterbench.options import option
from clusterbench.rows import Row, variables_of
from clusterbench.run_folder.attempts import host_of
from clusterbench.tools.host_links import TOPOLOGY, HostTopology
from clusterbench.tools.nccl_record import LOG, RankLog, connections, rank_log
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes
from clusterbench.words import few

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Collectives of which NCCL's log says what it chose; those made of sends and receives have nothing to choose."""
_OF_ONE_RANK = ("all_gather", "reduce_scatter")
"""Of these NCCL's log gives the bytes of one rank, and tables the bytes of all."""


@dataclass(frozen=True, kw_only=True)
class NcclTransport(Benchmark):
    """Which way NCCL sends, told by its own log: one untimed pass over every collective and size.

    The ranks are a start of their own, so that logging slows nothing that is timed. Beside collectives of the same run
    and environment stands ``wire_bw_est``, what a link carries: NCCL's bus bandwidth is that of a flat ring, and is
    never altered. Sources: nccl-tests, ``doc/PERFORMANCE.md``, issue 366 and pull request 239 (NVLS).
    """

    own_start: ClassVar[bool] = True
    variables: ClassVar[Mapping[str, str]] = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,P2P,SHM,COLL,TUNING,NVLS",
        # Not the planner's TMPDIR: the same case must be the same wherever it is planned.
        "NCCL_DEBUG_FILE": "/tmp/clusterbench_nccl.%h.%p.log",
    }
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("channels_used", "1", "neither", "channels one call ran on, by algorithm/protocol and call"),
        MetricKind("connections", "1", "neither", "connections of all ranks and channels, by transport and reach"),
        MetricKind(
            "gdr_share", "fraction", "higher", "ends of connections between hosts that use GPUDirect RDMA", exact=True
        ),
        MetricKind("pxn_share", "fraction", "neither", "sends between hosts that go through another GPU to its card"),
        MetricKind("card_connections", "1", "neither", "ends of connections between hosts, by the name of their card"),
        MetricKind(
            "cards_used", "1", "higher", "network cards that carry connections between hosts, of all hosts", exact=True
        ),
        MetricKind("channels", "1", "neither", "channels of the communicator, by what they are for"),
        MetricKind("rings", "1", "neither", "rings of the communicator"),
        MetricKind("trees", "1", "neither", "trees of the communicator"),
        MetricKind(
            "ring_gdr", "fraction", "higher", "ranks whose rings reach the network by GPUDirect RDMA only", exact=True
        ),
        MetricKind("nvls_available", "fraction", "higher", "ranks whose GPU has NVLink SHARP's multicast", exact=True),
        MetricKind("nvlinks", "1", "higher", "active NVLinks of the GPU that has the fewest", exact=True),
        MetricKind("warnings", "1", "lower", "warnings of NCCL on all ranks", exact=True),
        MetricKind("unread_lines", "1", "lower", "lines of NCCL's logs that could not be read whole", exact=True),
        MetricKind("wire_bw_est", "B/s", "higher", "estimate of what a link carries, from the algorithm NCCL chose"),
        MetricKind("carried_by", "1", "neither", "channels that carried a timed collective, by algorithm/protocol"),
    )

    ops: tuple[str, ...] = option(
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
        "collectives to run; all_to_all joins every pair of ranks",
        choices=(*_NAMES, "send_recv", "all_to_all"),
    )
    min_size: int = option(8, "smallest array, whole", unit="B", minimum=1, maximum=2**43)
    max_size: int = option(2**26, "largest array, whole", unit="B", minimum=1, maximum=2**43)
    factor: float = option(2.0, "each size is so many times the one before", minimum=1.01, maximum=1024)
    dtype: str = option("float32", "element type", choices=tuple(ITEM_BYTES))
    iterations: int = option(1, "one pass: nothing is timed", minimum=1, maximum=1)
    warmup: int = option(0, "none: nothing is timed", minimum=0, maximum=0)

    def __post_init__(self) -> None:
        if self.max_size < self.min_size:
            raise SuiteError(
                f"max_size is {format_bytes(self.max_size)}, below min_size, {format_bytes(self.min_size)}: "
                "there is nothing to run"
            )

    def points(self, place: Place) -> Iterable[Point]:
        yield {
            "ops": "+".join(dict.fromkeys(self.ops)),
            "min_size": self.min_size,
            "max_size": self.max_size,
            "factor": self.factor,
            "dtype": self.dtype,
        }

    def label(self, point: Point) -> str:
        smallest, largest = (format_bytes(point[name]).replace(" ", "") for name in ("min_size", "max_size"))
        return f"{point['ops']}-{smallest}-{largest}-{point['dtype']}"

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 4 * int(point["max_size"]) * len(str(point["ops"]).split("+"))

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        if rig.device.type != "cuda":
            raise NotHere(
                f"ranks on {rig.device.type} communicate through Gloo, which does not log its transports.\n"
                "hint: this benchmark reads NCCL's log, and needs GPUs"
            )
        if rig.world_size == 1:
            with suppress(ToolError):
                open_log(os.environ, socket.gethostname(), os.getpid()).close()  # no other process removes it
            raise NotHere("one rank sends nothing.\nhint: this benchmark reads how NCCL joins ranks; give it two GPUs")
        from clusterbench.engine.topology import host_topology
        from clusterbench.tools.nccl_log import parse

        file = open_log(os.environ, socket.gethostname(), os.getpid())

        def read_log() -> RankLog:
            with file:
                return rank_log(parse(file.read()))

        return Step(
            run=lambda: run_all(rig, point),
            check=lambda: check_all(rig, point),
            passes={
                **LOG.taken(read_log),
                **TOPOLOGY.taken(lambda: host_topology() if rig.local_rank == 0 else HostTopology()),
            },
        )

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        logs = LOG.of(observation)
        if not logs:
            yield Metric("connections", "1", None, basis="no rank left a log of NCCL")
            return
        yield from _chosen(case, logs[0])
        yield from _connected(observation)
        yield from _built(logs)
        yield from _links(observation)
        warnings = [warning for log in logs for warning in log.warnings]
        yield Metric("warnings", "1", float(len(warnings)), basis=warnings[0][:300] if warnings else "")
        yield Metric("unread_lines", "1", float(sum(log.unread for log in logs)))

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        return chain(wire_bandwidths(rows), carried(rows))


# Calls


def calls(point: Point, world_size: int) -> Iterator[tuple[type[Collective], Point]]:
    """Every collective with each of its points, as the benchmark of that name has them."""
    kinds = benchmarks()
    place = Place(Cluster(1, world_size, "cuda"), 1)
    sweep = {name: point[name] for name in ("min_size", "max_size", "factor", "dtype")}
    for op in str(point["ops"]).split("+"):
        kind = kinds[op]
        assert issubclass(kind, Collective)
        for of_kind in kind.from_options(sweep).points(place):
            yield kind, of_kind


def check_all(rig: Rig, point: Point) -> Mapping[str, float]:
    """Each collective and size once, with contents that are known before and after."""
    wrong = 0.0
    for kind, of_kind in calls(point, rig.world_size):
        exchange = kind.exchange(rig, rig.comm, of_kind)
        exchange.fill()
        exchange.call()
        wrong += exchange.verify().get("wrong_elements", 0.0)  # some ranks receive nothing
    return {"wrong_elements": wrong}


def run_all(rig: Rig, point: Point) -> None:
    """Each collective and size once."""
    for kind, of_kind in calls(point, rig.world_size):
        exchange = kind.exchange(rig, rig.comm, of_kind)
        exchange.fill()
        exchange.call()


def open_log(environment: Mapping[str, str], host: str, process: int) -> IO[str]:
    """The file into which NCCL of this process writes, which then has no name any more and goes with the process.

    ``%h`` and ``%p`` are replaced as NCCL does it: by the host's name up to its first dot, and the process's number.

    Raises
    ------
    ToolError
        If there is none, or it is another user's.
    """
    words = {"h": re.sub("[%/]", "-", host.partition(".")[0]), "p": str(process), "%": "%"}
    pattern = environment.get("NCCL_DEBUG_FILE", "")
    path = re.sub("%(.)", lambda match: words.get(match[1], match[0]), pattern)
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115  open until the log is complete
    except OSError as error:
        raise ToolError(_no_log(environment, f"cannot be opened ({error.strerror})", path)) from None
    if os.fstat(file.fileno()).st_uid != os.geteuid():
        file.close()
        raise ToolError(_no_log(environment, "belongs to another user", path))
    os.unlink(path)
    return file


def _no_log(environment: Mapping[str, str], why: str, path: str) -> str:
    level = environment.get("NCCL_DEBUG", "not set")
    return (
        f"NCCL's log '{path}' {why}; NCCL_DEBUG is {level}.\n"
        "hint: leave NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE to this benchmark"
    )


# Metrics of the case


def _reach(between: bool | None) -> str:
    return {True: "between hosts", False: "within hosts", None: "to the switch"}[between]


def _chosen(case: Case, log: RankLog) -> Iterator[Metric]:
    """Algorithm, protocol and channels of each call, from the log of rank 0."""
    channels_of: dict[tuple[str | None, int], dict[str, int | None]] = defaultdict(dict)
    for tuning in log.tunings:
        channels_of[tuning.op, tuning.size_bytes][f"{tuning.algorithm}/{tuning.protocol}"] = tuning.num_channels
    for kind, point in calls(case.point, case.world_size):
        if kind.operation not in _NAMES:
            continue
        size_bytes = int(point["size_bytes"])
        of_call = size_bytes // case.world_size if kind.operation in _OF_ONE_RANK else size_bytes
        part = f"{kind.operation} {size_bytes}"
        variants = channels_of.get((_NAMES[kind.operation], of_call), {})
        for how, number in variants.items():
            basis = "" if number is not None else "NCCL does not say how many channels such a call takes"
            value = None if number is None else float(number)
            yield Metric("channels_used", "1", value, detail={"category": how, "part": part}, basis=basis)
        if not variants:
            yield Metric("channels_used", "1", None, detail={"part": part}, basis="NCCL's log does not name this call")


def _connected(observation: Observation) -> Iterator[Metric]:
    """Connections by transport and reach, and of those between hosts the cards and GPUDirect."""
    all_connections = list(connections(observation))
    sent: Counter[tuple[str, str]] = Counter()
    for connection, between in all_connections:
        if connection.direction == "send" or between is None:
            sent[connection.transport, _reach(between)] += connection.num_channels
    for (transport, reach), count in sorted(sent.items()):
        yield Metric("connections", "1", float(count), detail={"category": transport, "part": reach})
    if not sent:
        yield Metric("connections", "1", None, basis="the ranks' logs name no connection")
    if len(set(observation.hosts)) < 2:
        return
    ends = [connection for connection, between in all_connections if between and connection.is_network]
    total = sum(connection.num_channels for connection in ends)
    if not total:
        yield Metric("gdr_share", "fraction", None, basis="no connection between hosts goes over a network")
        return
    yield Metric("gdr_share", "fraction", sum(connection.num_channels for connection in ends if connection.gdr) / total)
    sends = [connection for connection in ends if connection.direction == "send"]
    if sends:
        through_others = sum(connection.num_channels for connection in sends if connection.pxn is not None)
        yield Metric("pxn_share", "fraction", through_others / sum(connection.num_channels for connection in sends))
    cards: Counter[str] = Counter()
    places = set()
    for connection in ends:
        rank = connection.source if connection.direction == "send" else connection.destination
        assert rank is not None  # what leaves a host has two ranks
        cards[str(connection.card)] += connection.num_channels
        places.add((host_of(observation, rank), connection.card))
    for card, count in sorted(cards.items()):
        yield Metric("card_connections", "1", float(count), detail={"category": card})
    yield Metric("cards_used", "1", float(len(places)))


def _built(logs: Sequence[RankLog]) -> Iterator[Metric]:
    """Channels, rings and trees of the communicator, from the ranks that logged them."""
    for kind in ("coll", "collnet", "nvls", "p2p"):
        numbers = {getattr(channels, kind) for log in logs for channels in log.channels} - {None}
        if len(numbers) == 1:
            yield Metric("channels", "1", float(numbers.pop()), detail={"category": kind})
    for metric, most in (
        ("rings", max(log.num_rings for log in logs)),
        ("trees", max(log.num_trees for log in logs)),
    ):
        if most:
            yield Metric(metric, "1", float(most))
    for metric, flags in (("ring_gdr", [log.ring_gdr for log in logs]), ("nvls_available", [log.nvls for log in logs])):
        answers = [flag for flag in flags if flag is not None]
        if answers:
            yield Metric(
                metric,
                "fraction",
                sum(answers) / len(answers),
                basis=f"NCCL's own word, by {len(answers)} of {len(logs)} ranks",
            )


def _links(observation: Observation) -> Iterator[Metric]:
    """The fewest active NVLinks, and of which GPU; nothing where no host could be read."""
    active = [
        (number, f"GPU {gpu} of {host_of(observation, rank)}")
        for rank, topology in enumerate(TOPOLOGY.of(observation))
        for gpu, number in topology.nvlinks.items()
    ]
    if active:
        fewest, where = min(active)
        yield Metric(
            "nvlinks", "1", float(fewest), basis=f"{where}; the most of one of {len(active)} are {max(active)[0]}"
        )


# Metrics of other cases of the run


def wire_bandwidths(rows: Sequence[Row]) -> Iterator[Row]:
    """``wire_bw_est`` of each case of a collective whose algorithm was read in the same run and environment.

    With RING it is the bus bandwidth; with NVLS an all-reduce sends algbw x (n+1)/n. Of other algorithms nothing is
    known, so there is no row.
    """
    chosen: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for row in rows:
        if row.metric == "channels_used" and "category" in row.detail:
            op, size_bytes = row.detail["part"].split()
            chosen[_where(row), op, int(size_bytes)].add(row.detail["category"].partition("/")[0])
    for row in rows:
        algorithms = chosen.get((_where(row), row.benchmark, row.point.get("size_bytes")), set())
        if row.value is None or len(algorithms) != 1 or not _is_of_all_ranks(row):
            continue
        (algorithm,) = algorithms
        factor, basis = 1.0, "estimate: a RING puts the bus bandwidth on its links"
        if algorithm == "NVLS" and row.benchmark == "all_reduce" and row.metric == "algbw":
            factor = (row.world_size + 1) / row.world_size
            basis = "estimate: an NVLS all-reduce puts algbw x (n+1)/n on its links"
        elif algorithm != "RING" or row.metric != "busbw":
            continue
        value, low, high = (None if figure is None else figure * factor for figure in (row.value, row.low, row.high))
        yield row._replace(
            metric="wire_bw_est",
            value=value,
            low=low,
            high=high,
            expected=None,
            basis=basis,
            detail={**row.detail, "source": algorithm},
        )


def carried(rows: Sequence[Row]) -> Iterator[Row]:
    """``carried_by`` beside each ``busbw`` of a collective that was read in the same run and environment.

    ``basis`` names transports, cards and GPUDirect of the communicator's connections, from the same log. What NCCL did
    not say of a call has no row.
    """
    logged = _by_place(rows)
    chosen: dict[tuple[object, ...], dict[str, Row]] = defaultdict(dict)
    for place, of_place in logged.items():
        for row in of_place:
            if row.metric == "channels_used" and "category" in row.detail:
                op, size_bytes = row.detail["part"].split()
                chosen[place, op, int(size_bytes)][row.detail["category"]] = row
    for row in rows:
        if row.metric != "busbw" or row.value is None or not _is_of_all_ranks(row):
            continue
        place = _where(row)
        for how, said in chosen.get((place, row.benchmark, row.point.get("size_bytes")), {}).items():
            detail = {**row.detail, "category": how}
            words = f"{_ways(logged[place])}; {said.case}"
            yield row.beside("carried_by", "1", said.value, None, None, detail, words)


def _by_place(rows: Sequence[Row]) -> dict[tuple[object, ...], list[Row]]:
    """The rows of this benchmark, by where they hold."""
    by_place: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.benchmark == "nccl_transport":
            by_place[_where(row)].append(row)
    return by_place


def _is_of_all_ranks(row: Row) -> bool:
    """Whether it is the call that was logged: a sum over all ranks, without a graph."""
    return row.point.get("op", "sum") == "sum" and not row.point.get("axis") and not row.point.get("graph")


def _ways(logged: Sequence[Row]) -> str:
    """``P2P/CUMEM within hosts, NET/IB between hosts over mlx5_0, mlx5_1, GPUDirect RDMA at 100 % of the ends``."""
    ways = {
        f"{row.detail['category']} {row.detail['part']}": None
        for row in logged
        if row.metric == "connections" and "category" in row.detail
    }
    words = ", ".join(ways) or "NCCL names no connection"
    cards = sorted({row.detail["category"] for row in logged if row.metric == "card_connections"})
    gdr = next((row.value for row in logged if row.metric == "gdr_share" and row.value is not None), None)
    over = f" over {few(cards, 8)}" if cards else ""
    direct = "" if gdr is None else f", GPUDirect RDMA at {100 * gdr:.0f} % of the ends"
    return words + over + direct


def _where(row: Row) -> tuple[object, ...]:
    """What must be the same for NCCL to choose the same: ranks, their hosts' number, element type and variables."""
    own_variables = NcclTransport.variables
    variables = tuple(sorted((name, value) for name, value in variables_of(row).items() if name not in own_variables))
    return row.device, row.num_nodes, row.world_size, row.point.get("dtype"), variables
