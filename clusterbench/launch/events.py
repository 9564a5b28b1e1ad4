"""What the head hears: events of agents, ranks that reach a stage, and which rank it was when one cannot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from clusterbench.engine.telemetry import GpuSample
from clusterbench.host_facts import mapping
from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents
from clusterbench.launch.culprit import (
    BadEvent,
    Trouble,
    gpus_in_words,
    halted,
    is_victim,
    late,
    late_by_silence,
    named,
    with_ras,
)
from clusterbench.launch.members import Member, taking_part
from clusterbench.launch.messages import (
    AskRas,
    CountersGrown,
    Event,
    GpusSampled,
    Inspect,
    Inspected,
    InspectMpi,
    LostAgent,
    LostStore,
    RankDone,
    RankExited,
    RankPlace,
    RankReached,
    RankReady,
    RasTold,
)
from clusterbench.launch.ras import SECONDS_APART, SECONDS_OF_AN_ANSWER
from clusterbench.launch.ras import address as ras_address
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case, HostCounters

SECONDS_FOR_THE_OTHERS = 0.2
SECONDS_FOR_THE_CULPRIT = 1.0
"""After a rank has failed, how long the others are heard before the start is ended: longer if it only says that a peer
is gone. Peers notice within 20 ms."""
SECONDS_TO_ANSWER = 5.0
"""For agents that are asked how far their ranks got, or to end a case of MPI."""
SECONDS_FOR_RAS = 2 * SECONDS_OF_AN_ANSWER + SECONDS_APART + 1.0
_SECONDS_OF_A_WRITE = 0.05
"""After which a disk is not waited for without a sign to the other agents."""

Stage = TypeVar("Stage", RankReady, RankReached, RankDone)


@dataclass
class Deadline:
    """When something has to be over, by the monotonic clock, and how long it was given in all."""

    at_s: float
    limit_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds, seconds)

    def postpone(self, seconds: float) -> None:
        """For what held up this process, and was no rank's fault."""
        self.at_s += seconds

    @property
    def left_s(self) -> float:
        return max(self.at_s - time.monotonic(), 0.0)


@dataclass
class _Seen:
    """What agents answered that were asked how far their ranks got.

    Attributes
    ----------
    exited
        Ranks of which only now was seen that they have ended.
    silent
        Those with ranks in the case that neither answered nor are lost.
    """

    places: dict[int, RankPlace] = field(default_factory=dict)
    exited: list[RankExited] = field(default_factory=list)
    lost: list[LostAgent] = field(default_factory=list)
    silent: list[Member] = field(default_factory=list)


@dataclass
class Events:
    """Events of all agents, in the order in which they came.

    Attributes
    ----------
    inside_mpi
        The agents that are themselves the ranks of the case under way; none where workers are.
    samples
        Of GPUs, since the list was last cleared.
    counters
        What counters of each host did, since the mapping was last cleared.
    lost_store
        The loss of the store of the start under way. Ranks that have met may need it no more.
    """

    agents: Agents
    run: RunFolder
    ranks_per_gpu: int = 1
    inside_mpi: tuple[Member, ...] = ()
    samples: list[GpusSampled] = field(default_factory=list)
    counters: dict[str, HostCounters] = field(default_factory=dict)
    lost_store: LostStore | None = None
    _unheard: deque[Event] = field(default_factory=deque, init=False)
    _ras: list[RasTold] = field(default_factory=list, init=False)
    _gave_sign: float = field(default=0.0, init=False)

    def until(self, deadline: Deadline) -> Iterator[Event]:
        """Events one by one. What is left when the caller stops comes first at the next call.

        Time in which this process stood still, as one that is stopped (SIGSTOP), is no part of the deadline's: ranks
        waited for it, or what they said is still to be heard.
        """
        while (left_s := deadline.left_s) > 0:
            if time.monotonic() - self._gave_sign > SECONDS_BETWEEN_SIGNS:
                self._gave_sign = time.monotonic()
                self.run.give_sign()
            if not self._unheard:  # a look costs as much for one event as for a thousand
                wait_s, began = min(left_s, 0.5), time.monotonic()
                self._unheard.extend(self.agents.events(wait_s))
                if (stood_still_s := time.monotonic() - began - wait_s) > SECONDS_BETWEEN_SIGNS:
                    deadline.postpone(stood_still_s)
            if self._unheard:
                event = self._unheard.popleft()
                if isinstance(event, GpusSampled):
                    self.samples.append(event)
                if isinstance(event, CountersGrown):
                    self.counters[event.host] = event.counters
                if isinstance(event, RasTold):
                    self._ras.append(event)
                if isinstance(event, LostStore):
                    self.lost_store = event
                yield event

    def meanwhile(self, write: Callable[[], object]) -> None:
        """Has something written to the run's folder, however long that takes, and hears the agents meanwhile.

        A network disk may stall for a minute: agents that got no sign from the head would take it for lost, and the
        head would find their signs too late. An interruption is raised when the write is over.
        """
        written: Future[None] = Future()

        def carry_out() -> None:
            try:
                write()
                written.set_result(None)
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                written.set_exception(error)

        thread = Thread(target=carry_out, name="write", daemon=True)
        thread.start()
        interruption: KeyboardInterrupt | None = None
        while thread.is_alive():
            try:
                thread.join(_SECONDS_OF_A_WRITE)
                if thread.is_alive():
                    self._unheard.extend(self.agents.events(_SECONDS_OF_A_WRITE))
            except KeyboardInterrupt as caught:
                interruption = caught
        if interruption is not None:
            raise interruption
        written.result()

    def of_all_ranks(self, kind: type[Stage], stage: str, case: Case, deadline: Deadline) -> list[Stage]:
        """Every rank's message of ``stage``, in rank order; a Trouble as soon as one cannot come."""
        heard: dict[int, Stage] = {}
        silent: list[Member] = []
        for event in chain(self.until(deadline), self._until_back(case, silent)):
            if isinstance(event, kind) and event.stage == stage:
                heard[event.rank] = event
                if len(heard) == case.world_size:
                    return [heard[rank] for rank in range(case.world_size)]
            elif isinstance(event, LostStore) and kind is not RankReady:
                continue
            elif isinstance(event, BadEvent) and self.concerns(event, case):
                raise self.culprit(event, case)
        raise self._late(case, deadline.limit_s, silent)

    def _until_back(self, case: Case, silent: list[Member]) -> Iterator[Event]:
        """Events when a deadline is over, while an agent with ranks in the case gives no sign and for a moment after.

        What its ranks did meanwhile may be all that is missing. ``silent`` gets the agents that were waited for.
        """
        waited = Deadline.after(self.agents.silence_s)
        silent += self._silent(case)
        while self._silent(case) and waited.left_s:
            yield from self.until(Deadline.after(min(SECONDS_FOR_THE_CULPRIT, waited.left_s)))
        if silent:
            yield from self.until(Deadline.after(SECONDS_FOR_THE_CULPRIT))

    def _silent(self, case: Case) -> list[Member]:
        """The agents with ranks in a case that give no sign of life; none while these are inside MPI."""
        if self.inside_mpi:
            return []
        speaking = self.agents.heard().hosts
        return [member for member in taking_part(self.agents.present, case.world_size) if member.host not in speaking]

    def culprit(self, first: BadEvent, case: Case) -> Trouble:
        """Hears the other ranks for a moment and names the one the trouble began with."""
        bad: list[BadEvent] = [first]
        ranks = {getattr(first, "rank", None)}
        wait_s = SECONDS_FOR_THE_CULPRIT if is_victim(first) else SECONDS_FOR_THE_OTHERS
        for event in self.until(Deadline.after(wait_s)):
            if isinstance(event, BadEvent) and self.concerns(event, case):
                bad.append(event)
                ranks.add(getattr(event, "rank", None))
            if len(ranks) >= case.world_size:
                break
        seen = self._inspect(case, False)
        bad += [*seen.exited, *seen.lost]
        if all(map(is_victim, bad)):
            bad += [self.lost_store] if self.lost_store else self._losses_in_sight(case)
            seen = self._inspect(case, False)
        return self._named(bad, seen.places, case)

    def _named(self, bad: Sequence[BadEvent], places: Mapping[int, RankPlace], case: Case) -> Trouble:
        members = taking_part(self.agents.members, case.world_size)
        lost = self.agents.lost | self.agents.disabled
        trouble = named(bad, places, members, lost, self.agents.heard_at_loss())
        broken = self._gpus(only_with_errors=True)
        if trouble.rank is None or trouble.rank not in broken:
            return trouble
        return replace(trouble, reason=f"{trouble.reason}{broken[trouble.rank]}")

    def _gpus(self, only_with_errors: bool = False) -> Mapping[int, str]:
        """What the GPU of each rank was last seen doing in this case, as the end of a sentence."""
        samples: dict[str, dict[int, GpuSample]] = {}
        for event in self.samples:
            samples.setdefault(event.host, {}).update({gpu.index: gpu for gpu in event.sample.gpus})
        limits_w = {} if only_with_errors else _power_limits_w(self.run.environment())
        return gpus_in_words(self.agents.members, samples, only_with_errors, limits_w, self.ranks_per_gpu)

    def concerns(self, event: BadEvent, case: Case) -> bool:
        """Whether a case needs what is gone: a host on which it has no rank may be lost, and the case goes on."""
        if not isinstance(event, LostAgent):
            return True
        return any(member.agent == event.agent for member in taking_part(self.agents.members, case.world_size))

    def _losses_in_sight(self, case: Case) -> list[LostAgent]:
        """Where ranks complain of lost peers and an agent is silent: its loss, once that is certain."""
        for event in self.until(Deadline.after(self.agents.silence_s)):
            if isinstance(event, LostAgent) and self.concerns(event, case):
                return [event]
            if not self.agents.misses_a_sign():
                break
        return []

    def _late(self, case: Case, limit_s: float, silent: Sequence[Member]) -> Trouble:
        """What a case came to whose time is over, as agents were ``silent`` that are heard again by now.

        An agent that says nothing is waited for until it answers or is lost: the other ranks wait for its ranks, and
        none of them may be named before that is certain.
        """
        patience_s = SECONDS_TO_ANSWER + (0.0 if self.inside_mpi else self.agents.silence_s)
        asked = self._ask_ras(case)
        seen = self._inspect(case, True, patience_s)
        if seen.lost or seen.exited:
            return self._named([*seen.lost, *seen.exited], seen.places, case)
        self.meanwhile(lambda: self._keep_stacks(seen.places.values()))
        if silent and not seen.silent and not halted(seen.places):  # ranks go on by now: who is last is not to blame
            return late_by_silence(limit_s, seen.places, silent)
        trouble = late(case, limit_s, seen.places, self.inside_mpi, seen.silent, patience_s, self._gpus())
        if trouble.blame == "unknown" and self.lost_store:
            return self._named([self.lost_store], seen.places, case)
        return with_ras(trouble, self._told_by_ras(asked), seen.places) if asked else trouble

    def _ask_ras(self, case: Case) -> int:
        """Has NCCL asked on the first and the last host of a case, which both know of all ranks; how many were asked.

        None of a case without NCCL.
        """
        if case.device != "cuda" or case.world_size == 1 or self.inside_mpi:
            return 0
        members = taking_part(self.agents.present, case.world_size)
        ends = [member for member in (*members[:1], *members[-1:]) if member.host]
        asked = list({member.host: member for member in ends}.values())
        self._ras.clear()
        self.agents.order_some(asked, AskRas(ras_address(case.environment)))
        return len(asked)

    def _told_by_ras(self, asked: int) -> RasTold | None:
        """An answer with which something can be done, or else a reason why there is none; None where nobody answers.

        It may have come while the ranks were inspected.
        """
        events = self.until(Deadline.after(SECONDS_FOR_RAS))
        while len(self._ras) < asked and all(told.stall is None for told in self._ras):
            if next(events, None) is None:
                break
        return min(self._ras, key=lambda told: told.stall is None, default=None)

    def _inspect(self, case: Case, stacks: bool, patience_s: float = SECONDS_TO_ANSWER) -> _Seen:
        """How far every rank of the case got, as far as agents answer within ``patience_s``."""
        asked: Sequence[Member] = self.inside_mpi or self.agents.present
        if self.inside_mpi:
            self.agents.order_mpi(self.inside_mpi, InspectMpi())
        elif asked:
            self.agents.order(Inspect(stacks))
        waited_for = {member.agent: member for member in taking_part(asked, case.world_size)}
        seen = _Seen(silent=list(waited_for.values()))
        answers = 0
        for event in self.until(Deadline.after(patience_s)) if waited_for else ():
            if isinstance(event, Inspected):
                answers += 1
                seen.places |= {place.rank: place for place in event.ranks}
            elif isinstance(event, LostAgent) and event.agent in waited_for:
                seen.lost.append(event)
                del waited_for[event.agent]
            elif isinstance(event, RankExited):
                seen.exited.append(event)
            seen.silent = [member for member in waited_for.values() if member.first_rank not in seen.places]
            if answers >= len(asked):
                seen.silent = []
            if not seen.silent:
                break
        return seen

    def _keep_stacks(self, places: Iterable[RankPlace]) -> None:
        """The stacks are in the logs already; a rank that could not write its own gets a line that says so."""
        for place in places:
            if place.log and not place.stack:
                with suppress(OSError), open(self.run.logs / Path(place.log).name, "a", encoding="utf-8") as log:
                    log.write(f"clusterbench: rank {place.rank} did not answer; its process state is {place.state!r}\n")


def _power_limits_w(environment: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """By host and what CUDA calls the GPU there."""
    limits_w = {}
    for host, described in environment.get("hosts", {}).items():
        gpus = described.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            index, limit_w = mapping(gpu).get("index"), mapping(gpu).get("power_limit_w")
            if isinstance(index, int) and isinstance(limit_w, (int, float)):
                limits_w[host, index] = float(limit_w)
    return limits_w
