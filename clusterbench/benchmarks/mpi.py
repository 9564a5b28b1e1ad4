"""MPI itself: messages between two ranks, and collectives over all of them, through mpi4py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._tool import PAIRS, WHICH_NODES, expect_sizes, pairs_of, sizes_between
from clusterbench.errors import LaunchError, NotHere, ToolError, WrongResult
from clusterbench.formulas.collectives import algorithm_bandwidth, bus_bandwidth
from clusterbench.formulas.statistics import Summary, summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

OF_PAIRS = ("latency", "bandwidth", "bi_bandwidth")
WHOLE = ("all_reduce", "broadcast", "reduce")
IN_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
BARRIER = "barrier"
WINDOW = 64
"""Messages of an iteration of ``bandwidth``, in each direction. Source: OSU micro-benchmarks, osu_bw and osu_bibw."""

_ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "uint8": 1}
INSTALL = "'pip install clusterbench[mpi]' brings MPICH and its mpirun"
_MOST_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Mpi(Benchmark):
    """How fast MPI moves messages between two ranks, and how fast its collectives are over all ranks.

    Under mpirun the cases run in the very processes it started, after all others; a plain run starts an mpirun of its
    own for each. The ranks call the library through mpi4py, whose own cost of some microseconds a call is part of every
    figure. Each result is checked element by element before anything is timed, and once behind it.

    Between two ranks the conventions are those of the OSU micro-benchmarks: latency is half a round trip, bandwidth
    that of windows of 64 messages one way (``bandwidth``) or the sum of both ways at once (``bi_bandwidth``). Sizes and
    factors of collectives are those of nccl-tests: of ``all_gather`` and the others that deal in parts, the size is
    that of the whole array, rounded down to as many elements for each rank, and never below one.
    """

    on_host: ClassVar[bool] = True
    in_agents: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "time of one call, from the slowest rank; of a message, half a round trip"),
        MetricKind("algbw", "B/s", "higher", "size over time"),
        MetricKind("busbw", "B/s", "higher", "algbw times the operation's factor, comparable with a link's rate"),
        MetricKind("bandwidth", "B/s", "higher", "bytes per second of a window of 64 messages; of both ways, the sum"),
        MetricKind("message_rate", "1/s", "higher", "messages per second of such a window"),
    )

    iterations: int = option(100, "timed calls, round trips or windows", minimum=1, maximum=1_000_000)
    warmup: int = option(10, "calls before them, run and not timed", minimum=0, maximum=1_000_000)
    op: str = option("all_reduce", "what is called", choices=(*OF_PAIRS, *WHOLE, *IN_PARTS, BARRIER))
    pairs: str = option("neighbours", WHICH_NODES, choices=tuple(which for which in PAIRS if which != "itself"))
    min_size: int = option(8, "smallest message, or whole array", unit="B", minimum=1, maximum=2**40)
    max_size: int = option(2**22, "largest message, or whole array", unit="B", minimum=1, maximum=2**40)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    dtype: str = option("float32", "element type", choices=tuple(_ITEM_BYTES))
    memory: str = option("host", "where arrays are; cuda needs a CUDA-aware MPI", choices=("host", "cuda"))

    def __post_init__(self) -> None:
        expect_sizes(self.min_size, self.max_size)

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if "pairs" in keys and self.op not in OF_PAIRS:
            yield "pairs", "the operation is over all ranks"
        if self.op == BARRIER:
            for name in ("min_size", "max_size", "factor", "dtype", "memory"):
                if name in keys:
                    yield name, "a barrier moves no data"

    def points(self, place: Place) -> Iterable[Point]:
        pairs: Iterable[tuple[int | None, int | None]] = (
            pairs_of(place, self.pairs) if self.op in OF_PAIRS else [(None, None)]
        )
        for sender, receiver in pairs:
            for size_bytes in self._sizes(place):
                yield {
                    "op": self.op,
                    "size_bytes": size_bytes,
                    "dtype": None if self.op == BARRIER else self.dtype,
                    "memory": "host" if self.op == BARRIER else self.memory,
                    "sender": sender,
                    "receiver": receiver,
                    "iterations": self.iterations,
                    "warmup": self.warmup,
                }

    def _sizes(self, place: Place) -> Iterable[int | None]:
        if self.op == BARRIER:
            return [None]
        sizes = sizes_between(self.min_size, self.max_size, self.factor)
        if self.op not in IN_PARTS:
            return sizes
        least = _ITEM_BYTES[self.dtype] * place.world_size
        return dict.fromkeys(max(size_bytes // least, 1) * least for size_bytes in sizes)

    def label(self, point: Point) -> str:
        words = [str(point["op"])]
        if point["size_bytes"] is not None:
            words += [format_bytes(point["size_bytes"]).replace(" ", ""), str(point["dtype"])]
        if point["sender"] is not None:
            words.append(f"{point['sender']}to{point['receiver']}")
        return "-".join([*words, *(["cuda"] if point["memory"] == "cuda" else [])])

    def objection(self, point: Point, place: Place) -> str | None:
        if point["sender"] is not None and point["sender"] == point["receiver"]:
            return f"{point['op']} is measured between two ranks, and there is one"
        if point["memory"] == "cuda" and place.device == "cpu":
            return "CPU ranks have no CUDA memory: write memory: host"
        if point["size_bytes"] is not None:
            item = _ITEM_BYTES[str(point["dtype"])]
            if int(point["size_bytes"]) % item:
                dtype = point["dtype"]
                return f"a size of {point['size_bytes']} B is not a whole number of {dtype} elements of {item} B"
        return None

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        """Of one iteration: a whole window of messages where that is what is timed."""
        messages = {"latency": 2, "bandwidth": WINDOW, "bi_bandwidth": 2 * WINDOW}.get(str(point["op"]), 1)
        return int(point["size_bytes"] or 0) * messages

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        """Of a plain run: an mpirun whose ranks prove and time. Its record becomes that of the ranks here.

        The workers of the run only wait for it; what they time themselves is not used (see ``launch/mpi_cases.py``).
        """
        record: dict[str, Any] = {}

        def check() -> Mapping[str, float]:
            record.update(_run_mpi(rig, point))
            return _evidence(record, rig)

        return Step(run=lambda: None, check=check, passes={"seconds": lambda: record["seconds"]})

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        point = case.point
        op, size_bytes = str(point["op"]), point["size_bytes"]
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        if op in ("bandwidth", "bi_bandwidth"):
            messages = WINDOW if op == "bandwidth" else 2 * WINDOW
            yield _rate("bandwidth", "B/s", messages * int(size_bytes), time)
            yield _rate("message_rate", "1/s", messages, time)
            return
        trips = 2 if op == "latency" else 1
        yield Metric("latency", "s", time.value / trips, time.low / trips, time.high / trips, time.n)
        if op not in (*WHOLE, *IN_PARTS):
            return
        # The slow end of the time is the low end of the bandwidth.
        value, low, high = (
            algorithm_bandwidth(int(size_bytes), time_s) for time_s in (time.value, time.high, time.low)
        )
        yield Metric("algbw", "B/s", value, low, high, time.n)
        value, low, high = (
            bus_bandwidth(op, int(size_bytes), time_s, case.world_size) for time_s in (time.value, time.high, time.low)
        )
        yield Metric("busbw", "B/s", value, low, high, time.n)


def _rate(name: str, unit: str, amount: int, time: Summary) -> Metric:
    return Metric(name, unit, amount / time.value, amount / time.high, amount / time.low, time.n)


def _run_mpi(rig: Rig, point: Point) -> dict[str, Any]:
    """What the MPI rank of this worker's number left behind; a collective of the workers."""
    import json
    import sys
    from pathlib import Path

    from clusterbench import own_copy
    from clusterbench.engine import tool
    from clusterbench.engine.mpi import NO_LIBRARY
    from clusterbench.engine.scratch import scratch_folder

    is_first = rig.rank == 0
    mpirun = _find_mpirun(sys.executable) if is_first else ""
    scratch = scratch_folder("mpi") if is_first else None
    folder = Path(rig.tell(scratch.name if scratch else "", root=0))
    try:
        if is_first:
            names = ("iterations", "warmup")
            order = {"point": dict(point), "world_size": rig.world_size, **{name: point[name] for name in names}}
            words = [mpirun, "-n", str(rig.world_size), *own_copy.command("clusterbench.engine.mpi")]
            # No limit of its own: that of the case ends this process, and the kernel all that it started.
            done = tool.run_tool([*words, str(folder), json.dumps(order)], _MOST_SECONDS, _for_open_mpi())
            print(done.text + done.warnings, flush=True)  # the rank's log
        rig.comm.barrier()
        missing = (folder / NO_LIBRARY).read_text(encoding="utf-8") if (folder / NO_LIBRARY).exists() else ""
        path = folder / f"{rig.rank}.json"
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        rig.comm.barrier()  # all have read theirs
    finally:
        if scratch:
            scratch.cleanup()
    if missing:
        return {"failure": "NotHere", "reason": missing}
    return record


def _find_mpirun(python: str) -> str:
    """The mpirun beside this Python, which belongs to the library that mpi4py loads first; else that on PATH."""
    import shutil
    import socket

    path = shutil.which("mpirun", path=f"{os.path.dirname(python)}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        raise NotHere(f"mpirun is not on PATH on {socket.gethostname()}.\nhint: {INSTALL}")
    return path


def _for_open_mpi() -> dict[str, str]:
    """Variables by which Open MPI accepts more ranks than cores, and root; MPICH does not read them.

    Both are asked for: the ranks by the suite, root by the user who started it.
    """
    variables = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


_FAILURES: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (NotHere, LaunchError, WrongResult, ToolError)
}


def _evidence(record: Mapping[str, Any], rig: Rig) -> Mapping[str, float]:
    if not record:
        raise ToolError(f"mpirun ended well, but its rank {rig.rank} left no record on {rig.host}")
    if "failure" in record:
        raise _FAILURES.get(str(record["failure"]), ToolError)(str(record["reason"]))
    evidence: Mapping[str, float] = record["evidence"]
    return evidence
