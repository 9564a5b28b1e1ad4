"""What benchmarks that run another program have in common: one process a case, its text parsed, its figures kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.options import option
from clusterbench.types import SAMPLES, Case, Metric, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

Figures = Mapping[str, float]
"""What one run of a program said: ``metric_key(...)`` -> value, in the unit that the metric declares."""


@dataclass(frozen=True, kw_only=True)
class ToolBenchmark(Benchmark):
    """A program of others, run as often as ``iterations`` says; each run is one sample of what it prints.

    The seconds of the case are those for which the program ran; what it printed is the pass ``samples``. Programs warm
    up by themselves.

    Attributes
    ----------
    program
        The executable's name on PATH.
    install
        How to get it, for the row that says it is missing.
    """

    on_host: ClassVar[bool] = True
    program: ClassVar[str]
    install: ClassVar[str]

    iterations: int = option(1, "runs of the program", minimum=1, maximum=1000)
    warmup: int = option(0, "none: programs warm up by themselves", minimum=0, maximum=0)
    tool_time_limit_s: float = option(60.0, "seconds after which one run of it is ended", minimum=1, maximum=86_400)

    @classmethod
    @abstractmethod
    def parse(cls, text: str, point: Point) -> Figures:
        """What the program printed. Raises :class:`~clusterbench.errors.ToolError` where that cannot be read whole."""

    @classmethod
    @abstractmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        """By :meth:`alone` or :meth:`between`."""

    @classmethod
    def alone(cls, rig: Rig, point: Point, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Step:
        """The program once, on rank 0, while the others wait. ``words`` are its arguments."""
        from clusterbench.engine.tool import find_tool, run_tool

        seen: dict[str, list[float]] = {}

        def check() -> Mapping[str, float]:
            if rig.rank == 0:
                find_tool(cls.program, cls.install)
            return {}

        def run() -> None:
            if rig.rank == 0:
                path = find_tool(cls.program, cls.install)
                finished = run_tool([path, *words], float(point["tool_time_limit_s"]), environment)
                print(finished.text, flush=True)  # the rank's log
                _add(seen, cls.parse(finished.text, point))
            rig.comm.barrier()

        return Step(run=run, check=check, passes={SAMPLES: lambda: seen})

    @classmethod
    def between(
        cls,
        rig: Rig,
        point: Point,
        server: Sequence[str],
        client: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Step:
        """The program as a server on rank ``point["server"]`` and as a client on rank ``point["client"]``.

        In both lists of arguments ``{port}`` becomes a port that is free on the server's host, and ``{host}`` the
        address of that host on the interface over which the ranks talk.
        """
        from clusterbench.engine.tool import find_tool, free_port, run_tool, serving

        seen: dict[str, list[float]] = {}
        is_server, is_client = rig.rank == point["server"], rig.rank == point["client"]

        def filled(words: Sequence[str], host: str, port: str) -> list[str]:
            return [
                find_tool(cls.program, cls.install),
                *(word.replace("{host}", host).replace("{port}", port) for word in words),
            ]

        def check() -> Mapping[str, float]:
            if is_server or is_client:
                find_tool(cls.program, cls.install)
            return {}

        def run() -> None:
            said = f"{rig.address} {free_port()}" if is_server else ""
            host, port = rig.tell(said, int(point["server"])).split()
            with serving(filled(server, host, port), int(port), environment) if is_server else nullcontext():
                rig.comm.barrier()  # it listens
                if is_client:
                    finished = run_tool(filled(client, host, port), float(point["tool_time_limit_s"]), environment)
                    print(finished.text, flush=True)
                    _add(seen, cls.parse(finished.text, point))
                rig.comm.barrier()

        return Step(run=run, check=check, passes={SAMPLES: lambda: seen})

    @classmethod
    def derive(cls, case: Case, observation: Observation) -> Iterable[Metric]:
        return cls.sampled(observation)


def _add(seen: dict[str, list[float]], figures: Figures) -> None:
    for key, value in figures.items():
        seen.setdefault(key, []).append(value)


def pairs_of(place: Place) -> Iterable[tuple[int, int]]:
    """(server, client) of each pair to measure: the first rank of each node with the first of the next.

    On one node it is rank 0 with rank 1, or rank 0 with itself where there is no other.

    >>> from clusterbench.cluster import Cluster
    >>> list(pairs_of(Place(Cluster(3, 8, "cuda"), 3))), list(pairs_of(Place(Cluster(1, 1, "cpu"), 1)))
    ([(0, 8), (8, 16)], [(0, 0)])
    """
    each = place.cluster.ranks_per_node
    if place.num_nodes == 1:
        return [(0, min(1, each - 1))]
    firsts = range(0, place.world_size, each)
    return pairwise(firsts)


def sizes_between(smallest: int, largest: int, factor: int) -> Iterable[int]:
    """Sizes from ``smallest`` on, each ``factor`` times the one before, none above ``largest``.

    >>> list(sizes_between(8, 600, 8))
    [8, 64, 512]
    """
    size_bytes = smallest
    while size_bytes <= largest:
        yield size_bytes
        size_bytes *= factor


def with_limit(benchmark: ToolBenchmark, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point, complete with what every tool's needs."""
    return {**point, "tool_time_limit_s": benchmark.tool_time_limit_s}
