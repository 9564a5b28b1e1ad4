"""Benchmarks that run another program: one process a case, its text parsed, its figures kept."""

from __future__ import annotations

import re
import shlex
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import NotHere, SuiteError, ToolError
from clusterbench.options import option
from clusterbench.types import SAMPLES, Case, Metric, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.engine.tool import Finished, Program

Figures = Mapping[str, float]
"""What one run of a program said: ``metric_key(...)`` -> value, in the unit that the metric declares."""

PAIRS = ("neighbours", "all", "itself", "first")
WHICH_NODES = "which nodes: each with the next, all with all, each with itself, the first with the second"
NODES = ("each", "first")
_SECONDS_TO_START = 60.0
_SECONDS_AROUND_A_RUN = 10.0
_LONGEST_LAST_LINE = 200


@dataclass(frozen=True, kw_only=True)
class ToolBenchmark(Benchmark):
    """A program of others, run as often as ``iterations`` says; each run is one sample of what it prints.

    The seconds of the case are those for which the program ran; what it printed is the pass ``samples``. Programs warm
    up by themselves.

    Attributes
    ----------
    program
        The executable's name on PATH; a family of programs says which by :meth:`program_of`.
    install
        How to get it, for the row that says it is missing.
    absent
        What the program prints where the machine lacks what it needs, as regular expressions, each with the sentence
        that says what is missing: a row that is skipped, and no failure.
    """

    on_host: ClassVar[bool] = True
    program: ClassVar[str] = ""
    install: ClassVar[str]
    absent: ClassVar[Mapping[str, str]] = {}

    iterations: int = option(1, "runs of the program", minimum=1, maximum=1000)
    warmup: int = option(0, "none: programs warm up by themselves", minimum=0, maximum=0)
    tool_time_limit_s: float = option(60.0, "seconds after which one run of it is ended", minimum=1, maximum=86_400)

    def __post_init__(self) -> None:
        if self.time_limit_s is None:
            runs_s = self.iterations * (self.tool_time_limit_s + _SECONDS_AROUND_A_RUN)
            object.__setattr__(self, "time_limit_s", _SECONDS_TO_START + runs_s)

    @classmethod
    def program_of(cls, point: Point) -> str:
        """The executable's name on PATH, or its path."""
        return cls.program

    @classmethod
    @abstractmethod
    def parse(cls, text: str, point: Point) -> Figures:
        """What the program printed. Raises :class:`~clusterbench.errors.ToolError` where that cannot be read whole."""

    @classmethod
    @abstractmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        """By :meth:`alone`, :meth:`on_nodes` or :meth:`between`."""

    @classmethod
    def program_words(cls, point: Point) -> list[str]:
        """The words before the arguments: a launcher, where the point names one, and the program.

        Raises
        ------
        NotHere
            If one of them is not on this host.
        """
        from clusterbench.engine.tool import find_tool

        launcher = shlex.split(str(point.get("launcher", "")))
        if launcher:
            launcher[0] = find_tool(launcher[0], "option 'launcher' says what starts the processes of the program")
        return [*launcher, find_tool(cls.program_of(point), cls.install)]

    @classmethod
    def alone(cls, rig: Rig, point: Point, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Step:
        """The program once, on rank ``point["runner"]``, while the others wait. ``words`` are its arguments."""
        return cls.on_nodes(rig, point, [int(point["runner"])], words, lambda host, port: environment or {})

    @classmethod
    def on_nodes(
        cls,
        rig: Rig,
        point: Point,
        runners: Sequence[int],
        words: Sequence[str],
        environment: Callable[[str, str], Mapping[str, str]],
    ) -> Step:
        """The program on each of the ranks ``runners`` at once, while the others wait.

        ``environment`` is called with the address of the first runner's host and a port that is free there.
        """
        from clusterbench.engine.tool import free_port, run_tool

        samples: dict[str, list[float]] = {}
        is_runner = rig.rank in runners

        def check() -> Mapping[str, float]:
            if is_runner:
                cls.program_words(point)
            return {}

        def run() -> None:
            host, port = rig.tell(f"{rig.address} {free_port()}" if rig.rank == runners[0] else "", runners[0]).split()
            if is_runner:
                with cls._absence(rig):
                    command = [*cls.program_words(point), *words]
                    cls._keep(samples, run_tool(command, _limit_s(point), environment(host, port)), point)
            rig.comm.barrier()

        return Step(run=run, check=check, passes={SAMPLES: lambda: samples})

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
        address of that host on the interface of the ranks. Where the client fails, its error quotes the last line of
        the server, too, which often holds the cause.
        """
        from clusterbench.engine.tool import free_port, run_tool, serving

        samples: dict[str, list[float]] = {}
        serves, asks = int(point["server"]), int(point["client"])
        is_server, is_client = rig.rank == serves, rig.rank == asks

        def filled(words: Sequence[str], host: str, port: str) -> list[str]:
            arguments = (word.replace("{host}", host).replace("{port}", port) for word in words)
            return [*cls.program_words(point), *arguments]

        def check() -> Mapping[str, float]:
            if is_server or is_client:
                cls.program_words(point)
            return {}

        def run() -> None:
            host, port = rig.tell(f"{rig.address} {free_port()}" if is_server else "", serves).split()
            failure: ToolError | None = None
            with (
                cls._absence(rig),
                serving(filled(server, host, port), int(port), environment) if is_server else nullcontext() as program,
            ):
                rig.comm.barrier()  # it listens
                if is_client:
                    try:
                        cls._keep(samples, run_tool(filled(client, host, port), _limit_s(point), environment), point)
                    except ToolError as error:
                        failure = error
                if rig.tell("failed" if failure else "done", asks) == "failed":
                    last = rig.tell(_last_line(program) if program else "", serves)
                    if failure:
                        raise ToolError(f"{failure}\n    the server, on {host}, printed last: {last}")
                    rig.comm.barrier()  # which a failed client does not reach

        return Step(run=run, check=check, passes={SAMPLES: lambda: samples})

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        return cls.sampled(observation)

    @classmethod
    def _keep(cls, samples: dict[str, list[float]], finished: Finished, point: Point) -> None:
        print(finished.text + finished.warnings, flush=True)  # the rank's log
        for key, value in cls.parse(finished.text, point).items():
            samples.setdefault(key, []).append(value)

    @classmethod
    @contextmanager
    def _absence(cls, rig: Rig) -> Iterator[None]:
        try:
            yield
        except ToolError as error:
            for pattern, missing in cls.absent.items():
                if re.search(pattern, str(error)):
                    raise NotHere(f"{missing} on {rig.host}. {error}") from None
            raise


def _limit_s(point: Point) -> float:
    return float(point["tool_time_limit_s"])


def _last_line(program: Program) -> str:
    """The last line of a program, cut to what :meth:`Rig.tell` carries."""
    return program.last_line().encode()[:_LONGEST_LAST_LINE].decode(errors="ignore") or "nothing"


def pairs_of(place: Place, which: str = "neighbours") -> Iterable[tuple[int, int]]:
    """(server, client) of each pair to measure, by the first rank of each node.

    ``neighbours`` are each node and the next, ``all`` each node and every later one, ``itself`` each node alone,
    ``first`` the first node and the next, however many there are. On one node all but ``itself`` are rank 0 and rank 1,
    or rank 0 and itself where there is no other.

    >>> from clusterbench.cluster import Cluster
    >>> nodes = Place(Cluster(3, 8, "cuda"), 3)
    >>> [list(pairs_of(nodes, which)) for which in PAIRS]
    [[(0, 8), (8, 16)], [(0, 8), (0, 16), (8, 16)], [(0, 0), (8, 8), (16, 16)], [(0, 8)]]
    >>> list(pairs_of(Place(Cluster(1, 1, "cpu"), 1)))
    [(0, 0)]
    """
    firsts = first_ranks(place)
    if which == "itself":
        return [(first, first) for first in firsts]
    if place.num_nodes == 1:
        return [(0, min(1, place.world_size - 1))]
    return combinations(firsts, 2) if which == "all" else islice(pairwise(firsts), 1 if which == "first" else None)


def first_ranks(place: Place, nodes: str = "each") -> Sequence[int]:
    """The first rank of each node, or of the first alone.

    >>> from clusterbench.cluster import Cluster
    >>> nodes = Place(Cluster(3, 8, "cuda"), 3)
    >>> list(first_ranks(nodes)), list(first_ranks(nodes, "first"))
    ([0, 8, 16], [0])
    """
    firsts = range(0, place.world_size, place.cluster.ranks_per_node)
    return firsts if nodes == "each" else firsts[:1]


def sizes_between(smallest: int, largest: int, factor: int) -> Iterable[int]:
    """Sizes from ``smallest`` on, each ``factor`` times the one before, none above ``largest``.

    >>> list(sizes_between(8, 600, 8))
    [8, 64, 512]
    """
    size_bytes = smallest
    while size_bytes <= largest:
        yield size_bytes
        size_bytes *= factor


def expect_sizes(smallest: int, largest: int) -> None:
    """Raises a :class:`SuiteError` where there would be nothing to measure."""
    if largest < smallest:
        raise SuiteError(
            f"max_size is {format_bytes(largest)}, below min_size, {format_bytes(smallest)}: "
            "there is nothing to measure"
        )


def with_limit(benchmark: ToolBenchmark, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point, complete with what every tool's needs."""
    return {**point, "tool_time_limit_s": benchmark.tool_time_limit_s}


def in_folder(folder: str, program: str) -> str:
    """A program's path in ``folder``; its bare name, looked up on PATH, where that is empty.

    >>> in_folder("", "fio"), in_folder("/opt/nccl-tests/build/", "all_reduce_perf")
    ('fio', '/opt/nccl-tests/build/all_reduce_perf')
    """
    return f"{folder.rstrip('/')}/{program}" if folder else program
