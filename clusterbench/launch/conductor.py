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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any, Protocol

from clusterbench.errors import LaunchError
from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents
from clusterbench.launch.channel import Message
from clusterbench.launch.culprit import A_VICTIM, behind, death, is_bad, standing, suspicion
from clusterbench.launch.members import Member
from clusterbench.launch.mpi_cases import as_of_its_ranks, in_agents, needs_mpirun, objection, silent, unended_mpirun
from clusterbench.launch.ranks import name_ranks
from clusterbench.run_folder import RunFolder
from clusterbench.types import PHASES, Case, Observation, Outcome, Status

SECONDS_TO_START = 60.0
"""For torch to be imported and ranks to meet, beside the time limit of the case that waits for it."""
SECONDS_FOR_THE_OTHERS = 0.2
SECONDS_FOR_THE_CULPRIT = 1.0
"""After a rank has failed, how long the others are heard before the start is ended: longer if it only says that a peer
is gone. Peers notice within 20 ms."""
SECONDS_TO_ANSWER = 5.0
"""For agents that are asked how far their ranks got, or to end a case of MPI."""


@dataclass(frozen=True)
class Execution:
    """One pass over a case: which repeat, and how often that has been tried before."""

    case: Case
    repeat: int
    attempt: int


class Progress(Protocol):
    """Who watches the run."""

    def begin(self, number: int, total: int, execution: Execution) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


class LostHosts(LaunchError):
    """Hosts are gone, and with them the ranks of every case that is left."""


class OutOfTime(LaunchError):
    """The time the run was given is used up."""


@dataclass(frozen=True)
class _Trouble(Exception):
    """Why a case ended before its time."""

    status: Status
    reason: str
    phase: str = ""
    rank: int | None = None
    host: str = ""
    log: str = ""
    evidence: Sequence[dict[str, float]] = ()


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
    _telemetry: list[Message] = field(default_factory=list, init=False)
    _with_passes: set[str] = field(init=False)
    _unended: LaunchError | None = field(default=None, init=False)
    _under_way: dict[str, Any] = field(default_factory=dict, init=False)
    _gave_sign: float = field(default=0.0, init=False)
    _unheard: deque[Message] = field(default_factory=deque, init=False)
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
            self.agents.order("warm", environment=dict(executions[0].case.environment))
        try:
            for batch in _batches(executions):
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
        except _Trouble as trouble:
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
        names = list(records[0]["passes"])
        self._with_passes.add(case.hash)
        observation = Observation(
            **identity,
            hosts=tuple(dict.fromkeys(record["host"] for record in records)),
            seconds=[record["seconds"] for record in records],
            evidence=[record["evidence"] for record in records],
            passes={name: [record["passes"][name] for record in records] for name in names},
            telemetry=self._telemetry_of_the_case(),
        )
        return outcome(status="ok", phase="done"), observation

    def _evidence_of_a_failure(self, identity: dict[str, Any], trouble: _Trouble) -> Observation | None:
        """What the check measured before it said no; a wrong case has no seconds."""
        if not trouble.evidence:
            return None
        return Observation(**identity, hosts=self.agents.hosts, seconds=[], evidence=trouble.evidence)

    def _take_through(self, case: Case) -> list[Message]:
        """Every rank's record, in rank order.

        A case's time begins when its ranks have met: what importing torch takes on a busy host is not its fault.
        """
        measures_mpi = in_agents(case)
        if measures_mpi and not self.agents.is_alone() and self.agents.mpi is None:
            raise _Trouble("skipped", needs_mpirun(case))
        try:
            if measures_mpi and self.agents.mpi:
                return self._take_through_mpi(case)
            if self._start < 0:
                deadline = self._in(SECONDS_TO_START + case.time_limit_s)
                self._begin_start(case, deadline)
                ready = self._await("ready", case, deadline)
                self._keep_loaded(ready)
            deadline = self._in(case.time_limit_s)
            self._note("rendezvous")
            self.agents.order("tell", message={"case": self._for_worker(case)})
            self._await("prepared", case, deadline)
            self._note("prepared")
            self.agents.order("tell", message={"go": "check"})
            self._await("checked", case, deadline)
            self._note("checked")
            self.agents.order("tell", message={"go": "time"})
            records = self._await("done", case, deadline)
            return [as_of_its_ranks(record) for record in records] if measures_mpi else records
        except LaunchError as error:
            raise _Trouble("failed", str(error), phase="spawned") from None

    def _take_through_mpi(self, case: Case) -> list[Message]:
        """The same where the agents themselves are the ranks; nothing is started for it."""
        ranks = tuple(member for member in self.agents.members if member.first_rank < case.world_size)
        if reason := objection(case, ranks):
            raise _Trouble("skipped", reason)
        deadline = self._in(case.time_limit_s)
        self._inside_mpi = ranks
        self.agents.expect_silence(case.time_limit_s)
        about: dict[str, Any] = {
            "agents": [member.agent for member in ranks],
            "local_ranks": [member.local_ranks[0] for member in ranks],
            "case": {name: getattr(case, name) for name in ("point", "iterations", "warmup")},
        }
        self._note("rendezvous")
        for order, stage in (("prepare", "prepared"), ("check", "checked"), ("time", "done")):
            self.agents.order_mpi(ranks, order, **about, limit_s=max(deadline - time.monotonic(), 0.0))
            records = self._await(stage, case, deadline)
            self._note(stage)
            about = {}
        self._leave_mpi()
        return records

    def _leave_mpi(self) -> None:
        self._inside_mpi = ()
        self.agents.expect_silence(0.0)

    def _in(self, seconds: float) -> float:
        """So many seconds from now, or when the whole run has to be over."""
        return min(time.monotonic() + seconds, self.ends_at or math.inf)

    def _for_worker(self, case: Case) -> dict[str, Any]:
        names = ("benchmark", "point", "layout", "rank_order", "iterations", "warmup")
        if in_agents(case):  # ranks of an mpirun repeat it; the workers wait for them, once
            once = {"iterations": 1, "warmup": 0, "passes": True}
            return {name: getattr(case, name) for name in names} | once
        # Bytes do not vary from repeat to repeat; once they are known, only the clock is asked again.
        return {name: getattr(case, name) for name in names} | {"passes": case.hash not in self._with_passes}

    # A start.

    def _begin_start(self, case: Case, deadline: float) -> None:
        self._start, self._next_start = self._next_start, self._next_start + 1
        self.agents.order_start(
            {
                "id": self._start,
                "world_size": case.world_size,
                "device": case.device,
                "environment": dict(case.environment),
                "store": self._store(case, deadline),
                # Above every deadline: a hang is the conductor's to find, not the transport's.
                "timeout_s": 2 * case.time_limit_s + 60,
                "logs": str(self.run.logs.resolve()),
            }
        )

    def _store(self, case: Case, deadline: float) -> dict[str, Any]:
        if self.store_host is None:
            return {"file": str(Path(self._scratch.name) / f"store-{self._start}")}
        self.agents.order_head("store", environment=dict(case.environment), address=self.store_host)
        for event in self._events_until(deadline):
            if event["event"] == "store":
                return {"host": self.store_host, "port": event["port"], "prefix": secrets.token_hex(16)}
            if is_bad(event):
                raise self._culprit(event, case)
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
        self.agents.order("end", start=start, kill=kill)
        ended = 0
        for event in self._events_until(time.monotonic() + 30):
            if event["event"] == "ended" and event["start"] == start:
                ended += 1
                self._keep_logs(event["logs"])
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
        self.agents.order_mpi(ranks, "end")
        stuck: list[bool] = []
        for event in self._events_until(time.monotonic() + SECONDS_TO_ANSWER):
            if event["event"] == "mpi_ended":
                stuck.append(event["is_stuck"])
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

    def _await(self, stage: str, case: Case, deadline: float) -> list[Message]:
        """Every rank's message of ``stage``, in rank order; a _Trouble as soon as one cannot come."""
        heard: dict[int, Message] = {}
        for event in self._events_until(deadline):
            if event["event"] == "worker" and event["stage"] == stage:
                heard[event["rank"]] = event
                if len(heard) == case.world_size:
                    return [heard[rank] for rank in range(case.world_size)]
            elif is_bad(event):
                raise self._culprit(event, case)
            else:
                self._notice(event)
        raise self._late(case, case.time_limit_s + (SECONDS_TO_START if stage == "ready" else 0.0))

    def _events_until(self, deadline: float) -> Iterator[Message]:
        """Events one by one. Whoever stops in the middle leaves the rest to the next who asks."""
        while (left := deadline - time.monotonic()) > 0:
            if time.monotonic() - self._gave_sign > SECONDS_BETWEEN_SIGNS:
                self._gave_sign = time.monotonic()
                self.run.give_sign()
            if not self._unheard:  # a look costs as much for one event as for a thousand
                self._unheard.extend(self.agents.events(min(left, 0.5)))
            if self._unheard:
                yield self._unheard.popleft()

    def _notice(self, event: Message) -> None:
        if event["event"] == "telemetry":
            self._telemetry.append(event)

    def _inspect(self, stacks: bool) -> dict[int, Message]:
        """Phase, iteration, process state and stack of every rank of the start."""
        if not self.agents.present:
            return {}
        asked: Sequence[Member] = self._inside_mpi or self.agents.present
        if self._inside_mpi:
            self.agents.order_mpi(self._inside_mpi, "inspect")
        else:
            self.agents.order("inspect", stacks=stacks)
        ranks: dict[int, Message] = {}
        answers = 0
        for event in self._events_until(time.monotonic() + SECONDS_TO_ANSWER):
            if event["event"] == "inspected":
                answers += 1
                ranks |= {rank["rank"]: rank for rank in event["ranks"]}
                if answers >= len(asked):
                    break
        return ranks

    # Naming who it was.

    def _culprit(self, first: Message, case: Case) -> _Trouble:
        """Hears the other ranks for a moment and picks the one the trouble began with."""
        bad, ranks = [first], {first.get("rank")}
        is_victim = suspicion(first)[0] == A_VICTIM
        wait_s = SECONDS_FOR_THE_CULPRIT if is_victim else SECONDS_FOR_THE_OTHERS
        for event in self._events_until(time.monotonic() + wait_s):
            if is_bad(event):
                bad.append(event)
                ranks.add(event.get("rank"))
            if len(ranks) >= case.world_size:
                break
        if all(suspicion(event)[0] == A_VICTIM for event in bad):
            bad += self._losses_in_sight()
        worst = min(bad, key=suspicion)
        seen = self._inspect(stacks=False)
        if worst["event"] == "lost_agent":
            return self._lost_agents([event for event in bad if event["event"] == "lost_agent"], seen)
        if worst["event"] == "lost_zygote":
            return _Trouble("failed", worst["reason"], host=worst["host"], phase="spawned")
        rank, host = worst["rank"], worst["host"]
        at = seen.get(rank, {})
        where = {"rank": rank, "host": host, "log": self._relative(at.get("log", ""))}
        if worst["event"] == "exit":
            phase = at.get("phase", "")
            if limit := worst.get("memory_limit_bytes"):
                what = f"was killed by the kernel for want of memory: processes there may use {limit / 2**30:.2f} GiB"
                return _Trouble("out_of_memory", f"rank {rank} (host {host}) {what}", phase, **where)
            return _Trouble("failed", f"rank {rank} (host {host}) {death(worst['code'], at)}", phase, **where)
        alike = [event for event in bad if event.get("status") == worst["status"] and event.get("reason")]
        same = sorted({event["rank"] for event in alike if suspicion(event)[0] == suspicion(worst)[0]} - {rank})
        likewise = "likewise" if worst["status"] == "skipped" else "failed alike"
        also = f" ({name_ranks(same)} {likewise})" if same else ""
        evidence = [event.get("evidence", {}) for event in sorted(alike, key=lambda event: event["rank"])]
        return _Trouble(
            worst["status"],
            worst["reason"] + also
            if worst["status"] == "wrong"
            else f"rank {rank} (host {host}): {worst['reason']}{also}",
            worst["phase"],
            evidence=evidence if any(evidence) else (),
            **where,
        )

    def _losses_in_sight(self) -> list[Message]:
        """Where ranks complain of lost peers and an agent is silent: its loss, once that is certain."""
        for event in self._events_until(time.monotonic() + self.agents.silence_s):
            if event["event"] == "lost_agent":
                return [event]
            if not self.agents.is_worried():
                break
        return []

    def _lost_agents(self, events: Sequence[Message], seen: dict[int, Message]) -> _Trouble:
        """Phase is the least advanced of those that are left: the lost ranks cannot be asked any more."""
        why = (
            {event["agent"]: event["why"] for event in events} | self.agents.lost | self.agents.disabled
        )  # a switch takes many, one by one
        lost = [member for member in self.agents.members if member.agent in why]
        ranks = [member.first_rank + slot for member in lost for slot in range(len(member.local_ranks))]
        hosts = list(dict.fromkeys(member.host for member in lost))
        where = f"host{'' if len(hosts) == 1 else 's'} {', '.join(hosts)}"
        whose = "the agent" if len(lost) == 1 else "each agent"
        phase = min((rank["phase"] for rank in seen.values()), key=PHASES.index, default="spawned")
        return _Trouble(
            "failed",
            f"{name_ranks(ranks)} ({where}) {'was' if len(ranks) == 1 else 'were'} lost: {whose} there "
            f"{' or '.join(sorted(set(why.values())))}",
            phase,
            rank=ranks[0],
            host=hosts[0],
        )

    def _late(self, case: Case, limit_s: float) -> _Trouble:
        """Names the ranks that are behind; the others wait for them and are not to blame."""
        seen = self._inspect(stacks=True)
        if not seen:
            return _Trouble("timeout", f"stopped after {limit_s:g} s, and no agent answers any more")
        if gone := [member for member in self._inside_mpi if member.first_rank not in seen]:
            return self._silent(gone, seen, limit_s)
        if in_agents(case) and not self._inside_mpi and seen[0]["phase"] == "prepared":
            first = seen[0]
            reason = f"stopped after {limit_s:g} s: {unended_mpirun(first['host'], case.world_size)}"
            return _Trouble("timeout", reason, first["phase"], host=first["host"], log=self._relative(first["log"]))
        late = behind(seen)
        first = seen[late[0]]
        waiting = case.world_size - len(late)
        hosts = sorted({seen[rank]["host"] for rank in late})
        who = f"{name_ranks(late)} (host{'s' if len(hosts) > 1 else ''} {', '.join(hosts)})"
        have = "has" if len(late) == 1 else "have"
        others = f"; the other {waiting} ranks wait for {'it' if len(late) == 1 else 'them'}" if waiting > 1 else ""
        others = "; the other rank waits for it" if waiting == 1 else others
        for rank in seen.values():
            self._keep_stack(rank)
        return _Trouble(
            "timeout",
            f"stopped after {limit_s:g} s: {who} {have} {standing(first)}{others}{self._gpu_of(late[0])}",
            first["phase"],
            rank=late[0],
            host=first["host"],
            log=self._relative(first["log"]),
        )

    def _silent(self, gone: Sequence[Member], seen: Mapping[int, Message], limit_s: float) -> _Trouble:
        """The ranks of a case of MPI that do not answer are those that the others wait for."""
        phase = min((rank["phase"] for rank in seen.values()), key=PHASES.index)
        ranks, hosts = [member.first_rank for member in gone], list(dict.fromkeys(member.host for member in gone))
        who = silent(ranks, hosts, len(seen), SECONDS_TO_ANSWER)
        return _Trouble("timeout", f"stopped after {limit_s:g} s: {who}", phase, rank=ranks[0], host=hosts[0])

    def _gpu_of(self, rank: int) -> str:
        """What the GPU of a rank was last seen doing: a kernel that hangs looks unlike a host that does nothing."""
        for member in self.agents.members:
            local = rank - member.first_rank
            if not 0 <= local < len(member.local_ranks):
                continue
            samples = [event["sample"] for event in self._telemetry if event["host"] == member.host]
            gpus = {gpu["index"]: gpu for gpu in samples[-1]["gpus"]} if samples else {}
            if gpu := gpus.get(member.local_ranks[local]):
                power = "unknown power" if gpu.get("power_w") is None else f"{gpu['power_w']:.0f} W"
                busy = (
                    ""
                    if gpu.get("utilization") is None
                    else f" and was busy {100 * gpu['utilization']:.0f} % of the time"
                )
                return f"; its GPU {gpu['index']} drew {power}{busy}"
        return ""

    def _keep_stack(self, rank: Message) -> None:
        """The stacks are in the logs already; a rank that could not write its own gets a line that says so."""
        if not rank["stack"]:
            with suppress(OSError), open(rank["log"], "a") as log:
                log.write(f"clusterbench: rank {rank['rank']} did not answer; its process state is {rank['state']!r}\n")

    def _relative(self, log: str) -> str:
        return f"logs/{Path(log).name}" if log else ""

    # What is learnt on the way.

    def _keep_loaded(self, ready: Sequence[Message]) -> None:
        """Adds what the first workers really loaded to environment.json."""
        environment = self.run.environment()
        loaded = environment.setdefault("loaded", {})
        new = {message["host"]: message["loaded"] for message in ready if message["loaded"]}
        if not new.keys() <= loaded.keys():
            loaded.update(new)
            self.run.write("environment.json", json.dumps(environment, indent=1, sort_keys=True) + "\n")

    def _telemetry_of_the_case(self) -> dict[str, Any]:
        if not self._telemetry:
            return {}
        from clusterbench.engine.telemetry import summarise

        by_host: dict[str, list[Message]] = {}
        for event in self._telemetry:
            by_host.setdefault(event["host"], []).append(event["sample"])
        return {host: summarise(samples) for host, samples in sorted(by_host.items())}


def _batches(executions: Sequence[Execution]) -> Iterator[list[Execution]]:
    """Neighbours that can share a start: same ranks, same variables, and none that wants fresh processes."""

    def start_of(numbered: tuple[int, Execution]) -> object:
        number, execution = numbered
        case = execution.case
        alone = number if case.own_start else None
        variables = sorted(case.environment.items())
        return case.device, case.num_nodes, case.world_size, in_agents(case), variables, alone

    for _, batch in groupby(enumerate(executions), key=start_of):
        yield [execution for _, execution in batch]


def _hosts(names: Sequence[str]) -> str:
    return f"host {names[0]} was" if len(names) == 1 else f"hosts {', '.join(names)} were"
