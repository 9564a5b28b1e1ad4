"""What the head hears: events of agents, ranks that reach a stage, and which rank it was when one cannot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from clusterbench.launch.agents import SECONDS_BETWEEN_SIGNS, Agents
from clusterbench.launch.culprit import BadEvent, Trouble, gpus_in_words, is_victim, late, named
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    Event,
    GpusSampled,
    Inspect,
    Inspected,
    InspectMpi,
    LostAgent,
    RankDone,
    RankPlace,
    RankReached,
    RankReady,
)
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case

SECONDS_FOR_THE_OTHERS = 0.2
SECONDS_FOR_THE_CULPRIT = 1.0
"""After a rank has failed, how long the others are heard before the start is ended: longer if it only says that a peer
is gone. Peers notice within 20 ms."""
SECONDS_TO_ANSWER = 5.0
"""For agents that are asked how far their ranks got, or to end a case of MPI."""

Stage = TypeVar("Stage", RankReady, RankReached, RankDone)


@dataclass(frozen=True)
class Deadline:
    """When something has to be over, by the monotonic clock, and how long it was given in all."""

    at_s: float
    limit_s: float

    @property
    def left_s(self) -> float:
        return max(self.at_s - time.monotonic(), 0.0)


@dataclass
class Events:
    """Events of all agents, in the order in which they came.

    Attributes
    ----------
    inside_mpi
        The agents that are themselves the ranks of the case under way; none where workers are.
    samples
        Of GPUs, since the list was last cleared.
    """

    agents: Agents
    run: RunFolder
    inside_mpi: tuple[Member, ...] = ()
    samples: list[GpusSampled] = field(default_factory=list)
    _unheard: deque[Event] = field(default_factory=deque, init=False)
    _gave_sign: float = field(default=0.0, init=False)

    def until(self, at_s: float) -> Iterator[Event]:
        """Events one by one. What is left when the caller stops comes first at the next call."""
        while (left_s := at_s - time.monotonic()) > 0:
            if time.monotonic() - self._gave_sign > SECONDS_BETWEEN_SIGNS:
                self._gave_sign = time.monotonic()
                self.run.give_sign()
            if not self._unheard:  # a look costs as much for one event as for a thousand
                self._unheard.extend(self.agents.events(min(left_s, 0.5)))
            if self._unheard:
                event = self._unheard.popleft()
                if isinstance(event, GpusSampled):
                    self.samples.append(event)
                yield event

    def of_all_ranks(self, kind: type[Stage], stage: str, case: Case, deadline: Deadline) -> list[Stage]:
        """Every rank's message of ``stage``, in rank order; a Trouble as soon as one cannot come."""
        heard: dict[int, Stage] = {}
        for event in self.until(deadline.at_s):
            if isinstance(event, kind) and event.stage == stage:
                heard[event.rank] = event
                if len(heard) == case.world_size:
                    return [heard[rank] for rank in range(case.world_size)]
            elif isinstance(event, BadEvent):
                raise self.culprit(event, case)
        raise self._late(case, deadline.limit_s)

    def culprit(self, first: BadEvent, case: Case) -> Trouble:
        """Hears the other ranks for a moment and names the one the trouble began with."""
        bad: list[BadEvent] = [first]
        ranks = {getattr(first, "rank", None)}
        wait_s = SECONDS_FOR_THE_CULPRIT if is_victim(first) else SECONDS_FOR_THE_OTHERS
        for event in self.until(time.monotonic() + wait_s):
            if isinstance(event, BadEvent):
                bad.append(event)
                ranks.add(getattr(event, "rank", None))
            if len(ranks) >= case.world_size:
                break
        if all(map(is_victim, bad)):
            bad += self._losses_in_sight()
        places = self._places(stacks=False)
        return named(bad, places, self.agents.members, self.agents.lost | self.agents.disabled)

    def _losses_in_sight(self) -> list[LostAgent]:
        """Where ranks complain of lost peers and an agent is silent: its loss, once that is certain."""
        for event in self.until(time.monotonic() + self.agents.silence_s):
            if isinstance(event, LostAgent):
                return [event]
            if not self.agents.misses_a_sign():
                break
        return []

    def _late(self, case: Case, limit_s: float) -> Trouble:
        places = self._places(stacks=True)
        for place in places.values():
            self._keep_stack(place)
        gpus = gpus_in_words(self.agents.members, {event.host: event.sample for event in self.samples})
        return late(case, limit_s, places, self.inside_mpi, SECONDS_TO_ANSWER, gpus)

    def _places(self, stacks: bool) -> dict[int, RankPlace]:
        """How far every rank of the start got, as far as agents answer."""
        if not self.agents.present:
            return {}
        asked: Sequence[Member] = self.inside_mpi or self.agents.present
        if self.inside_mpi:
            self.agents.order_mpi(self.inside_mpi, InspectMpi())
        else:
            self.agents.order(Inspect(stacks))
        places: dict[int, RankPlace] = {}
        answers = 0
        for event in self.until(time.monotonic() + SECONDS_TO_ANSWER):
            if isinstance(event, Inspected):
                answers += 1
                places |= {place.rank: place for place in event.ranks}
                if answers >= len(asked):
                    break
        return places

    def _keep_stack(self, place: RankPlace) -> None:
        """The stacks are in the logs already; a rank that could not write its own gets a line that says so."""
        if place.log and not place.stack:
            with suppress(OSError), open(self.run.logs / Path(place.log).name, "a") as log:
                log.write(f"clusterbench: rank {place.rank} did not answer; its process state is {place.state!r}\n")
