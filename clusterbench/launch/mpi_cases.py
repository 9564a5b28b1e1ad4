"""Cases of MPI itself, in the very processes that mpirun started: an agent is then a rank of the case.

A forked worker cannot be an MPI rank when its agent already is, so these cases run in the agents, on communicators of
their own, after all others. Each stage of a case runs in a thread, and the agent's own thread sleeps meanwhile: it does
not touch MPI, and so it says nothing, until the stage has ended or its time is over. What is late can then still be
asked how far it got, since the library lets several threads call it; but MPI cannot be left any more, and so the run
ends, in order.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from clusterbench.benchmarks import benchmarks
from clusterbench.errors import ClusterbenchError, NotHere, WrongResult
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    CheckMpi,
    EndMpi,
    Failure,
    Inspected,
    InspectMpi,
    MemberEvent,
    MpiEnded,
    MpiOrder,
    PrepareMpi,
    RankDone,
    RankEvent,
    RankFailed,
    RankPlace,
    RankReached,
    TimeMpi,
)
from clusterbench.run_folder.redaction import set_by_suite
from clusterbench.types import Case, Step


def in_agents(case: Case) -> bool:
    """Whether the agents run this case themselves where they are MPI ranks; a plain run gives it to its workers."""
    benchmark = benchmarks().get(case.benchmark)
    return benchmark is not None and benchmark.in_agents


def needs_mpirun(case: Case) -> str:
    """Why the case is not run by many agents that no MPI launcher started."""
    return (
        f"'{case.benchmark}' measures MPI, and these processes were not started by an mpirun.\n"
        f"hint: 'mpirun -n {case.world_size} clusterbench run SUITE' runs it on any hosts, 'clusterbench run SUITE' on "
        "this one"
    )


def objection(case: Case, members: Sequence[Member]) -> str | None:
    """Why these agents, which are MPI ranks, cannot run the case; None where they can."""
    each = len(members[0].local_ranks)
    if each != 1:
        return (
            f"every process of mpirun is one MPI rank, but here each owns {each} of the {case.world_size} ranks.\n"
            f"hint: have mpirun start {case.world_size} processes, and leave --ranks-per-agent out"
        )
    if variables := set_by_suite(case.environment):
        names = " and ".join(variables)
        return (
            f"an MPI library reads {names} when mpirun starts it, which has happened.\n"
            "hint: set it for mpirun, or run the suite without one: each case then starts an mpirun of its own"
        )
    return _too_few_threads()


def _too_few_threads() -> str | None:
    from mpi4py import MPI

    if MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
        return None
    return (
        "this MPI library lets one thread call it at a time, so a case that hangs could not be told from a slow one.\n"
        "hint: run the suite without mpirun: each case then starts an mpirun of its own"
    )


def as_of_its_ranks(record: RankDone) -> RankDone:
    """A worker's record of a case that ranks of an mpirun measured: with the seconds of that rank, not its own."""
    passes = dict(record.passes)
    return replace(record, seconds=passes.pop("seconds"), passes=passes)


class MpiRank:
    """This agent as a rank of the cases that measure MPI."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._thread: threading.Thread | None = None
        self._undisturbed_until = 0.0
        self._events: deque[MemberEvent] = deque()
        self._communicators: dict[tuple[int, ...], Any] = {}
        self._rank = -1
        self._phase, self._iteration = "spawned", -1

    # Orders.

    def execute(self, order: MpiOrder) -> None:
        """Begins what the conductor asks; what comes of it is an event."""
        match order:
            case PrepareMpi():
                self._prepare(order)
            case CheckMpi():
                self._check(order.limit_s)
            case TimeMpi():
                self._time(order.limit_s)
            case InspectMpi():
                self._inspect()
            case EndMpi():
                self._undisturbed_until = 0.0
                self._events.append(MpiEnded(self._host, self._is_busy()))
            case _:
                assert_never(order)

    def _prepare(self, order: PrepareMpi) -> None:
        self._rank = order.agents.index(self._own_number())

        def work() -> RankEvent:
            from clusterbench.engine.mpi import prepare

            comm = self._communicator(order.agents)
            self._comm, self._case = comm, order
            self._step: Step = prepare(comm, order.point, self._host, order.local_ranks[self._rank])
            return RankReached(self._rank, self._host, "prepared")

        self._begin("rendezvous", work, order.limit_s)

    def _check(self, limit_s: float) -> None:
        def work() -> RankEvent:
            self._evidence = dict(self._step.check())
            return RankReached(self._rank, self._host, "checked")

        self._begin("prepared", work, limit_s)

    def _time(self, limit_s: float) -> None:
        def work() -> RankEvent:
            from clusterbench.engine.mpi import seconds_of

            case = self._case
            seconds = seconds_of(self._step, self._comm, case.point, case.iterations, case.warmup, self._at)
            self._step.confirm(True)
            return RankDone(self._rank, self._host, seconds, self._evidence, {})

        self._begin("checked", work, limit_s)

    def _inspect(self) -> None:
        state = "S"  # a rank that answers is not stopped
        place = RankPlace(self._rank, self._host, self._phase, self._iteration, state, self._stack(), "")
        self._events.append(Inspected((place,)))

    # Waiting.

    def is_undisturbed(self) -> bool:
        """Whether a stage is under way that nothing may disturb: no other thread of this process may call MPI."""
        return self._is_busy() and time.monotonic() < self._undisturbed_until

    def wait(self, timeout_s: float) -> None:
        """Until the stage under way has ended, or its time is over, or ``timeout_s`` seconds have passed."""
        if self._thread:
            self._thread.join(min(timeout_s, max(self._undisturbed_until - time.monotonic(), 0.0)))

    def events(self, timeout_s: float = 0.0) -> list[MemberEvent]:
        """What happened here since the last call; waits up to ``timeout_s`` for the stage under way."""
        if timeout_s > 0:
            self.wait(timeout_s)
        return [self._events.popleft() for _ in range(len(self._events))]

    # Helpers.

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, phase: str, work: Callable[[], RankEvent], limit_s: float) -> None:
        self._phase, self._iteration = phase, -1

        def live() -> None:
            try:
                said = work()
                self._phase = said.stage
            except Exception as error:  # noqa: BLE001  whatever it was, it becomes a record
                traceback.print_exc()
                said = RankFailed(self._rank, self._host, _status(error), _reason(error), self._phase)
            self._iteration = -1
            self._events.append(said)

        self._undisturbed_until = time.monotonic() + limit_s
        self._thread = threading.Thread(target=live, name="mpi-case", daemon=True)
        self._thread.start()

    def _at(self, iteration: int, is_warm_up: bool) -> None:
        self._phase, self._iteration = "checked" if is_warm_up else "warm", iteration

    def _own_number(self) -> int:
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.Get_rank())

    def _communicator(self, agents: tuple[int, ...]) -> Any:
        """Of exactly these ranks of mpirun, in this order; made once, by them alone."""
        from mpi4py import MPI

        if agents not in self._communicators:
            group = MPI.COMM_WORLD.Get_group().Incl(list(agents))
            self._communicators[agents] = MPI.COMM_WORLD.Create_group(group)
        return self._communicators[agents]

    def _stack(self) -> tuple[str, ...]:
        """As ``faulthandler`` writes it, the innermost first."""
        innermost = sys._current_frames().get(self._thread.ident or 0) if self._thread else None
        frames = traceback.extract_stack(innermost) if innermost else []
        return tuple(f'File "{frame.filename}", line {frame.lineno} in {frame.name}' for frame in reversed(frames))


def _status(error: Exception) -> Failure:
    if isinstance(error, WrongResult):
        return "wrong"
    if isinstance(error, NotHere):
        return "skipped"
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's, without torch
    return "out_of_memory" if is_memory else "failed"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ClusterbenchError) else f"{type(error).__name__}: {error}"


def unended_mpirun(host: str, num_ranks: int) -> str:
    """Of a plain run, whose workers see the mpirun and not its ranks."""
    return (
        f"the mpirun of {num_ranks} ranks on host {host} has not ended; which of its ranks is behind is not known.\n"
        f"hint: 'mpirun -n {num_ranks} clusterbench run SUITE' names it"
    )
