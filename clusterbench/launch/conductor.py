"""Walks through a plan: starts workers, takes each case through its phases, and puts down how it ended.

What a case came to is read from the records of its ranks, never from an exit code: launchers have returned 0 after
losing a host. A case is ``ok`` when every rank's record is there.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from clusterbench.benchmarks import benchmarks
from clusterbench.engine.scratch import scratch_folder
from clusterbench.errors import LaunchError
from clusterbench.launch.agents import Agents
from clusterbench.launch.culprit import Heard, Trouble, blame_of_loss, lost_link, own_link
from clusterbench.launch.events import SECONDS_TO_ANSWER, Deadline, Events
from clusterbench.launch.executions import Execution, batches, imported_ahead, own_steps
from clusterbench.launch.members import taking_part
from clusterbench.launch.messages import (
    CheckMpi,
    End,
    Ended,
    EndMpi,
    GoOn,
    GpusSampled,
    LostAgent,
    LostStore,
    LostZygote,
    MpiEnded,
    OpenStore,
    PrepareMpi,
    RankDone,
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
from clusterbench.launch.proven import OnOneRank, Proven
from clusterbench.run_folder import HOSTS_WITHOUT_LINK, LOST_HOSTS, SILENT_HOSTS, RunFolder
from clusterbench.run_folder.disk import remedy
from clusterbench.run_folder.records import document_of
from clusterbench.run_folder.redaction import redacted, secrets_of
from clusterbench.tools.error_counters import errors_of
from clusterbench.types import Blame, Case, HostCounters, Observation, Outcome, Timing
from clusterbench.words import few, listed

SECONDS_TO_START = 60.0
"""For torch to be imported and ranks to meet, beside the time limit of the case that waits for it."""
SECONDS_TO_END = 90.0
"""For agents to end their ranks: one whose disk stalls for a minute still answers."""
BYTES_TO_MEET = 2**18
"""More than ranks of one host write into the file at which they meet."""


WHILE_MEETING = (
    ". No rank is known to have caused this: they were just meeting, and any program that reaches their ports can "
    "disturb that"
)


class Progress(Protocol):
    """Who watches the run."""

    def begin(self, number: int, total: int, execution: Execution) -> None: ...

    def reach(self, phase: str) -> None: ...

    def end(self, outcome: Outcome, observation: Observation | None) -> None: ...


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
    ranks_per_gpu
        That share each GPU.
    copy
        Tells the sources of the package from those of others, which may have begun this run.
    """

    agents: Agents
    run: RunFolder
    progress: Progress
    store_host: str | None = None
    ends_at: float | None = None
    ranks_per_gpu: int = 1
    copy: str = ""
    _start: int = field(default=-1, init=False)
    _next_start: int = field(default=0, init=False)
    _with_passes: set[str] = field(init=False)
    _own_steps: Mapping[str, int] = field(default_factory=dict, init=False)
    _was_disturbed: bool = field(default=False, init=False)
    _starts_again: bool = field(default=True, init=False)
    _unended: LaunchError | None = field(default=None, init=False)
    _under_way: dict[str, Any] = field(default_factory=dict, init=False)
    _proven: Proven = field(default_factory=Proven, init=False)
    _on_one_rank: OnOneRank = field(default_factory=OnOneRank, init=False)
    _events: Events = field(init=False)
    _scratch: tempfile.TemporaryDirectory[str] = field(init=False)
    _logs: str = field(init=False)

    def __post_init__(self) -> None:
        self._events = Events(self.agents, self.run, self.ranks_per_gpu)
        self._logs = str(self.run.logs.resolve())
        # What a step of other sources sent and held is of another program.
        own = {(ended.hash, ended.repeat, ended.attempt) for ended in self.run.outcomes() if ended.copy == self.copy}
        self._with_passes = {
            seen.hash
            for seen in self.run.observations()
            if seen.passes and (seen.hash, seen.repeat, seen.attempt) in own
        }
        self._scratch = scratch_folder("head")

    def conduct(self, executions: Sequence[Execution], more: Callable[[], Sequence[Execution]] | None = None) -> None:
        """Runs every execution and records how each ended.

        Whatever interrupts it, no worker is left behind and everything that was finished is on disk.

        Parameters
        ----------
        more
            Asked when all of them have ended: what to run then, and so on until there is nothing.

        Raises
        ------
        LostHosts
            Once the case that met it has its outcome.
        OutOfTime
            Without one for the case that was under way.
        """
        self._own_steps = own_steps(executions)
        if executions:  # hosts that wait for their turn have torch imported meanwhile
            self.agents.order(Warm(executions[0].case.environment, imported_ahead(executions)))
        try:
            while executions:
                self._conduct_once(executions)
                executions = more() if more is not None else ()
        finally:
            with suppress(LaunchError):
                self._end_start(kill=True)
            self._scratch.cleanup()

    def _conduct_once(self, executions: Sequence[Execution]) -> None:
        number = count(1)
        for batch in batches(executions):
            for execution in batch:
                place = next(number), len(executions)
                self._carry_out(execution, *place)
                if self._was_disturbed and self._starts_again:
                    self._carry_out(replace(execution, attempt=execution.attempt + 1), *place)
                    self._starts_again = not self._was_disturbed
            self._end_start(kill=False)

    def _carry_out(self, execution: Execution, number: int, total: int) -> None:
        self._expect_time()
        self._expect_scratch()
        self.progress.begin(number, total, execution)
        outcome, observation = self._execute(execution)
        self._events.meanwhile(lambda: self.run.record(outcome, observation))
        self._events.meanwhile(lambda: self.progress.end(outcome, observation))
        self._expect_all_hosts(outcome.lost_hosts)
        if self._events.lost_store:
            self._end_start(kill=False)  # this case did not need the store any more; the next one may

    def _note(self, phase: str, deadline: Deadline | None = None) -> None:
        """Says on disk how far the case got. What a disk that stalls takes for it is no rank's fault."""
        self.progress.reach(phase)
        began = time.monotonic()
        self._events.meanwhile(lambda: self.run.under_way({**self._under_way, "phase": phase}))
        if deadline is not None:
            deadline.postpone(time.monotonic() - began)

    def _expect_time(self) -> None:
        if self.ends_at is not None and time.monotonic() >= self.ends_at:
            raise OutOfTime("the run's time limit was reached")

    def _expect_scratch(self) -> None:
        """Makes the folder in which ranks of one host meet again, where it was cleared away, and sees that it has room.

        A limit on the size of a file is no lack of room: where ranks meet little is written.

        Raises
        ------
        LaunchError
            If there is no room for it. The case was not begun, and so has no outcome.
        """
        if self.store_host is not None:
            return
        folder = Path(self._scratch.name)
        room = folder / "room"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                room.write_bytes(bytes(BYTES_TO_MEET))
            finally:
                room.unlink(missing_ok=True)
        except OSError as error:
            if error.errno == errno.EFBIG:
                return
            raise LaunchError(
                f"the temporary folder {folder}, in which ranks of one host meet, cannot be written: "
                f"{error.strerror or error} ({remedy(error, folder)}, or set TMPDIR to a folder on another disk)"
            ) from None

    def _expect_all_hosts(self, recorded: Sequence[str]) -> None:
        """``recorded`` are hosts of which an outcome says that they were lost."""
        if self._unended:
            raise self._unended
        if without := self.agents.lost | self.agents.disabled:
            heard = self.agents.heard_at_loss()
            blame = self._note_lost(heard, recorded)
            why = " or ".join(sorted(set(without.values())))
            lost = self.agents.lost_hosts
            were, whose = ("was", "its agent") if len(lost) == 1 else ("were", "each of their agents")
            own = own_link(heard) if blame == "link" else ""
            raise LostHosts(f"{listed('host', lost)} {were} lost: {whose} {why}{own}")

    def _note_lost(self, heard: Heard, recorded: Sequence[str]) -> Blame:
        """Notes the hosts that went away while a case ran that does not use them, and what that speaks against."""
        gone = self.agents.losses
        blame = blame_of_loss(gone.values(), gone, heard)
        unsaid = {host: f"its agent {why}" for host, why in gone.items() if host not in recorded}
        if unsaid and blame == "link" and (shown := lost_link(heard)):
            self.run.note(HOSTS_WITHOUT_LINK, {heard.own: shown})
        elif unsaid:
            self.run.note(LOST_HOSTS if blame == "host" else SILENT_HOSTS, unsaid)
        return blame

    def _execute(self, execution: Execution) -> tuple[Outcome, Observation | None]:
        case = execution.case
        identity: dict[str, Any] = {
            "case": case.id,
            "hash": case.hash,
            "repeat": execution.repeat,
            "attempt": execution.attempt,
        }
        self._under_way = identity
        self._note("spawned")
        started, clock = datetime.now(UTC), time.monotonic()
        self._events.samples.clear()
        self._events.counters.clear()
        self._was_disturbed = False

        def outcome(**how: Any) -> Outcome:
            elapsed_s = round(time.monotonic() - clock, 6)
            at = started.isoformat(timespec="seconds")
            return Outcome(**identity, **how, started=at, elapsed_s=elapsed_s, copy=self.copy)

        try:
            records = self._take_through(case)
        except Trouble as trouble:
            try:
                self._end_start(kill=True)
            except LaunchError as error:
                self._unended = error  # what the case came to is recorded first
            if trouble.status == "timeout":
                self._expect_time()
            self._was_disturbed = trouble.is_disturbance
            return outcome(
                lost_hosts=self.agents.lost_hosts,
                blame=trouble.blame if trouble.status != "skipped" else "",
                status=trouble.status,
                reason=redacted(trouble.reason, secrets_of(os.environ))
                + (WHILE_MEETING if self._was_disturbed else "")
                + _meanwhile(self._events.counters),
                phase=trouble.phase,
                rank=trouble.rank,
                host=trouble.host,
                log=trouble.log,
            ), self._evidence_of_a_failure(identity, trouble)
        self._with_passes.add(case.hash)
        self._on_one_rank.saw(case)
        hosts = tuple(dict.fromkeys(record.host for record in records))
        # GPUs of other hosts are sampled as well: what holds them back is no fault of this case.
        sampled = [event for event in self._events.samples if event.host in hosts]
        observation = Observation(
            **identity,
            hosts=hosts,
            seconds=[record.seconds for record in records],
            evidence=[{**record.proof, **record.evidence} for record in records],
            passes={name: [record.passes[name] for record in records] for name in records[0].passes},
            telemetry=_summaries(sampled, _timed_on(records)),
            timing=[record.timing for record in records if record.timing is not None],
            counters=dict(sorted(self._events.counters.items())),
        )
        return outcome(status="ok", phase="done"), self._proven.complete(
            case, observation, [record.proof for record in records]
        )

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
                deadline = self._deadline(SECONDS_TO_START + case.time_limit_s)
                self._begin_start(case, deadline)
                ready = self._ready(case, deadline)
                self._events.meanwhile(partial(self._keep_loaded, ready))
            deadline = self._deadline(case.time_limit_s)
            self._note("rendezvous", deadline)
            self.agents.order(self._for_worker(case))
            self._events.of_all_ranks(RankReached, "prepared", case, deadline)
            self._note("prepared", deadline)
            self.agents.order(GoOn("check"))
            self._events.of_all_ranks(RankReached, "checked", case, deadline)
            self._note("checked", deadline)
            self.agents.order(GoOn("time"))
            records = _alike(self._events.of_all_ranks(RankDone, "done", case, deadline))
            return [as_of_its_ranks(record) for record in records] if measures_mpi else records
        except LaunchError as error:
            raise Trouble("failed", str(error), phase="spawned") from None

    def _ready(self, case: Case, deadline: Deadline) -> list[RankReady]:
        """Every rank's word that it has met the others; where one could not in time, the address is in the reason."""
        try:
            return self._events.of_all_ranks(RankReady, "ready", case, deadline)
        except Trouble as trouble:
            if self.store_host is None or (trouble.status, trouble.phase) != ("timeout", "device"):
                raise
            where = f". Ranks meet at {self.store_host} of the head's host"
            if trouble.host:
                where += f": where it cannot be reached from {trouble.host}, --interface names another network"
            else:  # all have, and wait for connections to each other
                where += ", and then connect to each other: where that network does not join all of them, --interface "
                where += "names another"
            raise replace(trouble, reason=f"{trouble.reason}{where}") from None

    def _take_through_mpi(self, case: Case) -> list[RankDone]:
        """The same where the agents themselves are the ranks; nothing is started for it."""
        ranks = taking_part(self.agents.members, case.world_size)
        if reason := objection(case, ranks):
            raise Trouble("skipped", reason)
        deadline = self._deadline(case.time_limit_s)
        self._events.inside_mpi = ranks
        self.agents.expect_silence(case.time_limit_s)
        numbers = tuple(member.agent for member in ranks), tuple(member.local_ranks[0] for member in ranks)

        self._note("rendezvous", deadline)
        self.agents.order_mpi(ranks, PrepareMpi(*numbers, case.point, case.iterations, case.warmup, deadline.left_s))
        self._events.of_all_ranks(RankReached, "prepared", case, deadline)
        self._note("prepared", deadline)
        self.agents.order_mpi(ranks, CheckMpi(deadline.left_s))
        self._events.of_all_ranks(RankReached, "checked", case, deadline)
        self._note("checked", deadline)
        self.agents.order_mpi(ranks, TimeMpi(deadline.left_s))
        records = _alike(self._events.of_all_ranks(RankDone, "done", case, deadline))
        self._note("done")
        self._leave_mpi()
        return records

    def _leave_mpi(self) -> None:
        self._events.inside_mpi = ()
        self.agents.expect_silence(0.0)

    def _deadline(self, limit_s: float) -> Deadline:
        """So many seconds from now, or when the whole run has to be over."""
        return Deadline(min(time.monotonic() + limit_s, self.ends_at or math.inf), limit_s)

    def _for_worker(self, case: Case) -> RunCase:
        iterations, warmup = case.iterations, case.warmup
        # Bytes do not vary from repeat to repeat; once they are known, only the clock is asked again.
        passes = case.hash not in self._with_passes
        if in_agents(case):  # ranks of an mpirun repeat it; the workers wait for them, once
            iterations, warmup, passes = 1, 0, True
        check = not self._proven.is_known(case)
        steps, alone = self._own_steps[case.hash], passes and self._on_one_rank.is_missing(case)
        return RunCase(
            case.benchmark, case.point, case.layout, case.rank_order, iterations, warmup, passes, check, steps, alone
        )

    def _begin_start(self, case: Case, deadline: Deadline) -> None:
        self._start, self._next_start = self._next_start, self._next_start + 1
        self._events.lost_store = None
        store = self._store(case, deadline)
        # Above every deadline: a hang is the conductor's to find, not the transport's.
        timeout_s = 2 * case.time_limit_s + 60
        start = Start(self._start, case.world_size, case.device, case.environment, store, timeout_s, self._logs)
        kind = benchmarks().get(case.benchmark)
        num_worlds = case.num_nodes if kind is not None and kind.world_is_node else 1
        self.agents.order(replace(start, ranks_per_gpu=self.ranks_per_gpu, num_worlds=num_worlds))

    def _store(self, case: Case, deadline: Deadline) -> StorePlace:
        if self.store_host is None:
            return StorePlace(file=str(Path(self._scratch.name) / f"store-{self._start}"))
        self.agents.order_head(OpenStore(case.environment, self.store_host))
        for event in self._events.until(deadline):
            match event:
                case StoreOpen():
                    return StorePlace(host=self.store_host, port=event.port, prefix=secrets.token_hex(16))
                case LostZygote() | LostStore() | LostAgent() if self._events.concerns(event, case):
                    raise self._events.culprit(event, case)
        own = self.agents.heard().own
        reason = (
            f"the store on host {own}, at which ranks of different hosts meet, did not open in {deadline.limit_s:g} s"
        )
        raise Trouble("timeout", reason, phase="spawned", host=own, blame="process")

    def _end_start(self, kill: bool) -> None:
        """Returns once no worker of the start is left on any host."""
        if self._events.inside_mpi:
            self._end_mpi()
        if self._start < 0:
            return
        start, self._start = self._start, -1
        if not self.agents.present:
            return
        self.agents.order(End(start, kill))
        ended = 0
        for event in self._events.until(Deadline.after(SECONDS_TO_END)):
            if isinstance(event, Ended) and event.start == start:
                ended += 1
                self._events.meanwhile(partial(self._keep_logs, event.logs))
            if ended >= len(self.agents.present):
                return
        present = len(self.agents.present)
        raise LaunchError(f"{present - ended} of {present} agents did not end their ranks within {SECONDS_TO_END:g} s")

    def _end_mpi(self) -> None:
        """Returns once every rank of a case of MPI is out of it.

        Raises
        ------
        LaunchError
            If one is still inside a call of MPI, or does not answer.
        """
        ranks = self._events.inside_mpi
        self._leave_mpi()
        # Until they say otherwise, whatever interrupts the wait.
        self.agents.is_stuck, self.agents.all_answer = True, False
        self.agents.order_mpi(ranks, EndMpi())
        stuck: list[bool] = []
        for event in self._events.until(Deadline.after(SECONDS_TO_ANSWER)):
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
                (self.run.logs / Path(name).name).write_text(text, encoding="utf-8")

    def _keep_loaded(self, ready: Sequence[RankReady]) -> None:
        """Adds what the first workers really loaded to environment.json."""
        environment = self.run.environment()
        loaded = environment.setdefault("loaded", {})
        new = {rank.host: rank.loaded for rank in ready if rank.loaded}
        if not new.keys() <= loaded.keys():
            loaded.update(new)
            self.run.write("environment.json", document_of(environment))


def _timed_on(records: Sequence[RankDone]) -> dict[str, tuple[float, float]]:
    """Host -> from when to when all of its ranks were timed, by its clock; nothing of one that does not say."""
    by_host: dict[str, list[Timing | None]] = {}
    for record in records:
        by_host.setdefault(record.host, []).append(record.timing)
    known = {host: [timing for timing in of_host if timing] for host, of_host in by_host.items() if all(of_host)}
    return {
        host: (max(timing.began_s for timing in of_host), min(timing.ended_s for timing in of_host))
        for host, of_host in known.items()
    }


def _summaries(samples: Sequence[GpusSampled], timed_on: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """What became of each GPU while a case was timed, by host and GPU.

    ``within`` is ``timed``, or ``case`` where no sample fell into that and all of the case's were taken. Errors and
    their counters are those of the whole case.
    """
    if not samples:
        return {}
    from clusterbench.engine.telemetry import summarise

    by_host: dict[str, list[dict[str, Any]]] = {}
    for event in samples:
        by_host.setdefault(event.host, []).append(asdict(event.sample))
    summaries = {}
    for host, of_host in sorted(by_host.items()):
        timed = summarise(of_host, *timed_on[host]) if host in timed_on else {}
        summaries[host] = {
            uuid: {**whole, "within": "case"}
            | ({**timed[uuid], "within": "timed"} if uuid in timed else {})
            | {name: whole[name] for name in ("errors", "grown")}
            for uuid, whole in summarise(of_host).items()
        }
    return summaries


def _meanwhile(counters: Mapping[str, HostCounters]) -> str:
    """What hosts counted while a case did not end well, as the end of a sentence; nothing where that is harmless."""
    hosts = sorted(counters.items())
    bad = [f"{place} on {host}: {words}" for host, of_host in hosts for place, words in errors_of(of_host)]
    return f"; meanwhile {few(bad)}" if bad else ""


def _alike(records: list[RankDone]) -> list[RankDone]:
    """The records, once it is certain that every rank took the same passes."""
    for record in records:
        if record.passes.keys() != records[0].passes.keys():
            theirs, first = (", ".join(sorted(each.passes)) or "none" for each in (record, records[0]))
            reason = f"rank {record.rank} (host {record.host}) took the passes {theirs}; rank 0 took {first}"
            raise Trouble("failed", reason, "timed", record.rank, record.host, blame="process")
    return records
