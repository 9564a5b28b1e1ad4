"""Walks through a plan: starts workers, takes each case through its phases, and puts down how it ended.

What a case came to is read from the records of its ranks, never from an exit code: launchers have returned 0 after
losing a host. A case is ``ok`` when every rank's record is there.
"""

from __future__ import annotations

import json
import math
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from clusterbench.errors import LaunchError
from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents
from clusterbench.launch.culprit import BadEvent, Trouble, gpus_in_words, is_victim, late, named
from clusterbench.launch.executions import Execution, batches
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    CheckMpi,
    End,
    Ended,
    EndMpi,
    Event,
    GoOn,
    GpusSampled,
    Inspect,
    Inspected,
    InspectMpi,
    LostAgent,
    LostZygote,
    MpiEnded,
    OpenStore,
    PrepareMpi,
    RankDone,
    RankPlace,
    RankReached,
    RankReady,
    RunCase,
    Start,
    StoreOpen,
    StorePlace,
    TimeMpi,
    Warm,
)
from clusterbench.launch.mpi_cases import as_of_its_ranks, in_agents, needs_mpirun, objection
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case, Observation, Outcome

SECONDS_TO_START = 60.0
"""For torch to be imported and ranks to meet, beside the time limit of the case that waits for it."""
SECONDS_FOR_THE_OTHERS = 0.2
SECONDS_FOR_THE_CULPRIT = 1.0
"""After a rank has failed, how long the others are heard before the start is ended: longer if it only says that a peer
is gone. Peers notice within 20 ms."""
SECONDS_TO_ANSWER = 5.0
"""For agents that are asked how far their ranks got, or to end a case of MPI."""

Stage = TypeVar("Stage", RankReady, RankReached, RankDone)


class Progress(Protocol):
    """Who watches the run."""

    def begin(self, number: int, total: int, execution: Execution) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class LostHosts(LaunchError):
    """Hosts are gone, and with them the ranks of every case that is left."""


class OutOfTime(LaunchError):
    """The time the run was given is used up."""


@dataclass
class Conductor:
    """The head's walk through a plan.

    Parameters
    ----------
    store_host
        Address at which workers of other hosts reach this one; None when all ranks share a host.
    ends_at
        When the whole run has to be over, by the monotonic clock; None for no limit.
    """

    agents: Agents
    run: RunFolder
    progress: Progress
    store_host: str | None = None
    ends_at: float | None = None
    _start: int = field(default=-1, init=False)
    _inside_mpi: tuple[Member, ...] = field(default=(), init=False)
    _next_start: int = field(default=0, init=False)
    _telemetry: list[GpusSampled] = field(default_factory=list, init=False)
    _with_passes: set[str] = field(init=False)
    _unended: LaunchError | None = field(default=None, init=False)
    _under_way: dict[str, Any] = field(default_factory=dict, init=False)
    _gave_sign: float = field(default=0.0, init=False)
    _unheard: deque[Event] = field(default_factory=deque, init=False)
    _scratch: tempfile.TemporaryDirectory[str] = field(init=False)

    def __post_init__(self) -> None:
        self._with_passes = {observation.hash for observation in self.run.observations() if observation.passes}
        self._scratch = tempfile.TemporaryDirectory(prefix="clusterbench-")

    def conduct(self, executions: Sequence[Execution]) -> None:
        """Runs every execution and records how each ended.

        Whatever interrupts it, no worker is left behind and everything that was finished is on disk.

        Raises
        ------
        LostHosts
            Once the case that met it has its outcome.
        OutOfTime
            Without one for the case that was under way.
        """
        number = count(1)
        if executions:  # hosts that wait for their turn have torch imported meanwhile
            self.agents.order(Warm(executions[0].case.environment))
        try:
            for batch in batches(executions):
                for execution in batch:
                    self._expect_time()
                    self.progress.begin(next(number), len(executions), execution)
                    outcome, observation = self._execute(execution)
                    self.run.record(outcome, observation)
                    self.progress.end(outcome)
                    self._expect_all_hosts()
                self._end_start(kill=False)
        finally:
            with suppress(LaunchError):
                self._end_start(kill=True)
            self._scratch.cleanup()

    def _note(self, phase: str) -> None:
        self.run.under_way({**self._under_way, "phase": phase})

    def _expect_time(self) -> None:
        if self.ends_at is not None and time.monotonic() >= self.ends_at:
            raise OutOfTime("the run's time limit was reached")

    def _expect_all_hosts(self) -> None:
        if self._unended:
            raise self._unended
        if without := self.agents.lost | self.agents.disabled:
            why = " or ".join(sorted(set(without.values())))
            whose = "its agent" if len(self.agents.lost_hosts) == 1 else "each of their agents"
            raise LostHosts(f"{_hosts(self.agents.lost_hosts)} lost: {whose} {why}")

    def _execute(self, execution: Execution) -> tuple[Outcome, Observation | None]:
        case = execution.case
        self._under_way = {"case": case.id, "hash": case.hash, "repeat": execution.repeat, "attempt": execution.attempt}
        self._note("spawned")
        started, clock = datetime.now(UTC), time.monotonic()
        self._telemetry.clear()
        identity: dict[str, Any] = {
            "case": case.id,
            "hash": case.hash,
            "repeat": execution.repeat,
            "attempt": execution.attempt,
        }

        def outcome(**how: Any) -> Outcome:
            elapsed_s = round(time.monotonic() - clock, 6)
            return Outcome(**identity, **how, started=started.isoformat(timespec="seconds"), elapsed_s=elapsed_s)

        try:
            records = self._take_through(case)
        except Trouble as trouble:
            try:
                self._end_start(kill=True)
            except LaunchError as error:
                self._unended = error  # what the case came to is recorded first
            if trouble.status == "timeout":
                self._expect_time()
            return outcome(
                lost_hosts=self.agents.lost_hosts,
                status=trouble.status,
                reason=trouble.reason,
                phase=trouble.phase,
                rank=trouble.rank,
                host=trouble.host,
                log=trouble.log,
            ), self._evidence_of_a_failure(identity, trouble)
        self._with_passes.add(case.hash)
        observation = Observation(
            **identity,
            hosts=tuple(dict.fromkeys(record.host for record in records)),
            seconds=[record.seconds for record in records],
            evidence=[record.evidence for record in records],
            passes={name: [record.passes[name] for record in records] for name in records[0].passes},
            telemetry=self._telemetry_of_the_case(),
        )
        return outcome(status="ok", phase="done"), observation

    def _evidence_of_a_failure(self, identity: dict[str, Any], trouble: Trouble) -> Observation | None:
        """What the check measured before it said no; a wrong case has no seconds."""
        if not trouble.evidence:
            return None
        return Observation(**identity, hosts=self.agents.hosts, seconds=[], evidence=trouble.evidence)

    def _take_through(self, case: Case) -> list[RankDone]:
        """Every rank's record, in rank order.

        A case's time begins when its ranks have met: what importing torch takes on a busy host is not its fault.
        """
        measures_mpi = in_agents(case)
        if measures_mpi and not self.agents.is_alone() and self.agents.mpi is None:
            raise Trouble("skipped", needs_mpirun(case))
        try:
            if measures_mpi and self.agents.mpi:
                return self._take_through_mpi(case)
            if self._start < 0:
                deadline = self._in(SECONDS_TO_START + case.time_limit_s)
                self._begin_start(case, deadline)
                self._keep_loaded(self._await(RankReady, "ready", case, deadline))
            deadline = self._in(case.time_limit_s)
            self._note("rendezvous")
            self.agents.order(self._for_worker(case))
            self._await(RankReached, "prepared", case, deadline)
            self._note("prepared")
            self.agents.order(GoOn("check"))
            self._await(RankReached, "checked", case, deadline)
            self._note("checked")
            self.agents.order(GoOn("time"))
            records = _alike(self._await(RankDone, "done", case, deadline))
            return [as_of_its_ranks(record) for record in records] if measures_mpi else records
        except LaunchError as error:
            raise Trouble("failed", str(error), phase="spawned") from None

    def _take_through_mpi(self, case: Case) -> list[RankDone]:
        """The same where the agents themselves are the ranks; nothing is started for it."""
        ranks = tuple(member for member in self.agents.members if member.first_rank < case.world_size)
        if reason := objection(case, ranks):
            raise Trouble("skipped", reason)
        deadline = self._in(case.time_limit_s)
        self._inside_mpi = ranks
        self.agents.expect_silence(case.time_limit_s)
        numbers = tuple(member.agent for member in ranks), tuple(member.local_ranks[0] for member in ranks)

        def left_s() -> float:
            return max(deadline - time.monotonic(), 0.0)

        self._note("rendezvous")
        self.agents.order_mpi(ranks, PrepareMpi(*numbers, case.point, case.iterations, case.warmup, left_s()))
        self._await(RankReached, "prepared", case, deadline)
        self._note("prepared")
        self.agents.order_mpi(ranks, CheckMpi(left_s()))
        self._await(RankReached, "checked", case, deadline)
        self._note("checked")
        self.agents.order_mpi(ranks, TimeMpi(left_s()))
        records = _alike(self._await(RankDone, "done", case, deadline))
        self._note("done")
        self._leave_mpi()
        return records

    def _leave_mpi(self) -> None:
        self._inside_mpi = ()
        self.agents.expect_silence(0.0)

    def _in(self, seconds: float) -> float:
        """So many seconds from now, or when the whole run has to be over."""
        return min(time.monotonic() + seconds, self.ends_at or math.inf)

    def _for_worker(self, case: Case) -> RunCase:
        iterations, warmup = case.iterations, case.warmup
        # Bytes do not vary from repeat to repeat; once they are known, only the clock is asked again.
        passes = case.hash not in self._with_passes
        if in_agents(case):  # ranks of an mpirun repeat it; the workers wait for them, once
            iterations, warmup, passes = 1, 0, True
        return RunCase(case.benchmark, case.point, case.layout, case.rank_order, iterations, warmup, passes)

    # A start.

    def _begin_start(self, case: Case, deadline: float) -> None:
        self._start, self._next_start = self._next_start, self._next_start + 1
        store = self._store(case, deadline)
        # Above every deadline: a hang is the conductor's to find, not the transport's.
        timeout_s = 2 * case.time_limit_s + 60
        logs = str(self.run.logs.resolve())
        self.agents.order(Start(self._start, case.world_size, case.device, case.environment, store, timeout_s, logs))

    def _store(self, case: Case, deadline: float) -> StorePlace:
        if self.store_host is None:
            return StorePlace(file=str(Path(self._scratch.name) / f"store-{self._start}"))
        self.agents.order_head(OpenStore(case.environment, self.store_host))
        for event in self._events_until(deadline):
            match event:
                case StoreOpen():
                    return StorePlace(host=self.store_host, port=event.port, prefix=secrets.token_hex(16))
                case LostZygote() | LostAgent():
                    raise self._culprit(event, case)
                case _:
                    self._notice(event)
        raise LaunchError("the store on which ranks of different hosts meet did not open")

    def _end_start(self, kill: bool) -> None:
        """Returns once no worker of the start is left on any host."""
        if self._inside_mpi:
            self._end_mpi()
        if self._start < 0:
            return
        start, self._start = self._start, -1
        if not self.agents.present:
            return
        self.agents.order(End(start, kill))
        ended = 0
        for event in self._events_until(time.monotonic() + 30):
            if isinstance(event, Ended) and event.start == start:
                ended += 1
                self._keep_logs(event.logs)
            if ended >= len(self.agents.present):
                return
        present = len(self.agents.present)
        raise LaunchError(f"{present - ended} of {present} agents did not end their ranks within 30 s")

    def _end_mpi(self) -> None:
        """Returns once every rank of a case of MPI is out of it.

        Raises
        ------
        LaunchError
            If one is still inside a call of MPI, or does not answer.
        """
        ranks = self._inside_mpi
        self._leave_mpi()
        self.agents.is_stuck, self.agents.all_answer = (
            True,
            False,
        )  # until they say otherwise, whatever interrupts the wait
        self.agents.order_mpi(ranks, EndMpi())
        stuck: list[bool] = []
        for event in self._events_until(time.monotonic() + SECONDS_TO_ANSWER):
            if isinstance(event, MpiEnded):
                stuck.append(event.is_stuck)
            if len(stuck) == len(ranks):
                self.agents.is_stuck, self.agents.all_answer = any(stuck), True
                break
        if not self.agents.is_stuck:
            return
        raise LaunchError("a call of MPI has not returned, and MPI cannot be left before it does")

    def _keep_logs(self, logs: Mapping[str, str]) -> None:
        """The end of what workers wrote on hosts that do not see the run's folder."""
        for name, text in logs.items():
            with suppress(OSError):
                (self.run.logs / Path(name).name).write_text(text)

    # Waiting.

    def _await(self, kind: type[Stage], stage: str, case: Case, deadline: float) -> list[Stage]:
        """Every rank's message of ``stage``, in rank order; a Trouble as soon as one cannot come."""
        heard: dict[int, Stage] = {}
        for event in self._events_until(deadline):
            if isinstance(event, kind) and event.stage == stage:
                heard[event.rank] = event
                if len(heard) == case.world_size:
                    return [heard[rank] for rank in range(case.world_size)]
            elif isinstance(event, BadEvent):
                raise self._culprit(event, case)
            else:
                self._notice(event)
        raise self._late(case, case.time_limit_s + (SECONDS_TO_START if stage == "ready" else 0.0))

    def _events_until(self, deadline: float) -> Iterator[Event]:
        """Events one by one. What is left when the caller stops comes first at the next call."""
        while (left := deadline - time.monotonic()) > 0:
            if time.monotonic() - self._gave_sign > SECONDS_BETWEEN_SIGNS:
                self._gave_sign = time.monotonic()
                self.run.give_sign()
            if not self._unheard:  # a look costs as much for one event as for a thousand
                self._unheard.extend(self.agents.events(min(left, 0.5)))
            if self._unheard:
                yield self._unheard.popleft()

    def _notice(self, event: Event) -> None:
        if isinstance(event, GpusSampled):
            self._telemetry.append(event)

    def _inspect(self, stacks: bool) -> dict[int, RankPlace]:
        """How far every rank of the start got, as far as agents answer."""
        if not self.agents.present:
            return {}
        asked: Sequence[Member] = self._inside_mpi or self.agents.present
        if self._inside_mpi:
            self.agents.order_mpi(self._inside_mpi, InspectMpi())
        else:
            self.agents.order(Inspect(stacks))
        places: dict[int, RankPlace] = {}
        answers = 0
        for event in self._events_until(time.monotonic() + SECONDS_TO_ANSWER):
            if isinstance(event, Inspected):
                answers += 1
                places |= {place.rank: place for place in event.ranks}
                if answers >= len(asked):
                    break
        return places

    # Hearing who it was; culprit.py decides.

    def _culprit(self, first: BadEvent, case: Case) -> Trouble:
        """Hears the other ranks for a moment and names the one the trouble began with."""
        bad: list[BadEvent] = [first]
        ranks = {getattr(first, "rank", None)}
        wait_s = SECONDS_FOR_THE_CULPRIT if is_victim(first) else SECONDS_FOR_THE_OTHERS
        for event in self._events_until(time.monotonic() + wait_s):
            if isinstance(event, BadEvent):
                bad.append(event)
                ranks.add(getattr(event, "rank", None))
            if len(ranks) >= case.world_size:
                break
        if all(map(is_victim, bad)):
            bad += self._losses_in_sight()
        places = self._inspect(stacks=False)
        return named(bad, places, self.agents.members, self.agents.lost | self.agents.disabled)

    def _losses_in_sight(self) -> list[LostAgent]:
        """Where ranks complain of lost peers and an agent is silent: its loss, once that is certain."""
        for event in self._events_until(time.monotonic() + self.agents.silence_s):
            if isinstance(event, LostAgent):
                return [event]
            if not self.agents.misses_a_sign():
                break
        return []

    def _late(self, case: Case, limit_s: float) -> Trouble:
        places = self._inspect(stacks=True)
        for place in places.values():
            self._keep_stack(place)
        gpus = gpus_in_words(self.agents.members, {event.host: event.sample for event in self._telemetry})
        return late(case, limit_s, places, self._inside_mpi, SECONDS_TO_ANSWER, gpus)

    def _keep_stack(self, place: RankPlace) -> None:
        """The stacks are in the logs already; a rank that could not write its own gets a line that says so."""
        if place.log and not place.stack:
            with suppress(OSError), open(self.run.logs / Path(place.log).name, "a") as log:
                log.write(f"clusterbench: rank {place.rank} did not answer; its process state is {place.state!r}\n")

    # What is learnt on the way.

    def _keep_loaded(self, ready: Sequence[RankReady]) -> None:
        """Adds what the first workers really loaded to environment.json."""
        environment = self.run.environment()
        loaded = environment.setdefault("loaded", {})
        new = {rank.host: rank.loaded for rank in ready if rank.loaded}
        if not new.keys() <= loaded.keys():
            loaded.update(new)
            self.run.write("environment.json", json.dumps(environment, indent=1, sort_keys=True) + "\n")

    def _telemetry_of_the_case(self) -> dict[str, Any]:
        if not self._telemetry:
            return {}
        from clusterbench.engine.telemetry import summarise

        by_host: dict[str, list[dict[str, Any]]] = {}
        for event in self._telemetry:
            by_host.setdefault(event.host, []).append(asdict(event.sample))
        return {host: summarise(samples) for host, samples in sorted(by_host.items())}


def _alike(records: list[RankDone]) -> list[RankDone]:
    """The records, once it is certain that every rank took the same passes."""
    for record in records:
        if record.passes.keys() != records[0].passes.keys():
            theirs, first = (", ".join(sorted(each.passes)) or "none" for each in (record, records[0]))
            reason = f"rank {record.rank} (host {record.host}) took the passes {theirs}; rank 0 took {first}"
            raise Trouble("failed", reason, "timed", record.rank, record.host)
    return records


def _hosts(names: Sequence[str]) -> str:
    return f"host {names[0]} was" if len(names) == 1 else f"hosts {', '.join(names)} were"
