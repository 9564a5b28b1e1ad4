"""All agents of a run as the conductor sees them: one object to order and to hear."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

from clusterbench.errors import LaunchError
from clusterbench.launch.agent import Agent
from clusterbench.launch.control import (
    CLOSED,
    HEAD,
    SAID_NOTHING,
    STOOD_STILL,
    TOOK_NOTHING,
    HeadPlane,
    MemberPlane,
    MpiPlane,
)
from clusterbench.launch.culprit import Heard
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    AgentOrder,
    CheckMpi,
    Disabled,
    EndMpi,
    Event,
    ExpectSilence,
    Goodbye,
    Inspected,
    InspectMpi,
    Interrupted,
    Leaving,
    LostAgent,
    MemberEvent,
    MpiOrder,
    Order,
    Own,
    PrepareMpi,
    Quit,
    Sign,
    Start,
    TimeMpi,
)
from clusterbench.launch.mpi_cases import MpiRank
from clusterbench.launch.neighbours import Neighbours
from clusterbench.launch.own_links import OwnLinks

SECONDS_BETWEEN_SIGNS = 2.0
SECONDS_OF_SILENCE = 20.0
"""An agent that has said nothing for so long is lost. A link that comes back sooner costs nothing but time."""
SECONDS_WHILE_BUSY = 300.0
"""The same for members while the head plans or writes the report and says nothing."""

SECONDS_FOR_GOODBYES = 5.0
SECONDS_TO_BE_ENDED = 20.0
"""How long an agent that said goodbye waits for the head to end MPI; longer than the head waits for goodbyes."""
SECONDS_BETWEEN_LOOKS = 1.0
"""How often an agent inside MPI looks whether it got a signal to stop."""

_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class LostHead(LaunchError):
    """The head cannot be reached any more."""


class Pause:
    """How long to sleep when nothing happens: short after something did, longer and longer after that."""

    def __init__(self) -> None:
        self.seconds = _SHORTEST_PAUSE_S

    def after(self, something_happened: bool) -> None:
        self.seconds = _SHORTEST_PAUSE_S if something_happened else min(self.seconds * 1.5, _LONGEST_PAUSE_S)


class Silence:
    """How long each of the others has said nothing, by this process's own clock of looks.

    A process that was itself stopped, or too busy to look, must not take that for the silence of all others.
    """

    def __init__(self, others: Iterable[int]) -> None:
        self._looked = time.monotonic()
        self._now = 0.0
        self._gap_s, self._gap_ended = 0.0, 0.0
        self._heard_at = dict.fromkeys(others, 0.0)  # in order: a look at a thousand others costs no more than at ten

    def heard(self, others: Iterable[int]) -> None:
        """Counts the time since the last look, for all but those who said something."""
        now = time.monotonic()
        gap_s, self._looked = now - self._looked, now
        self._now += min(gap_s, SECONDS_BETWEEN_SIGNS)
        if gap_s > SECONDS_BETWEEN_SIGNS:
            self._gap_s, self._gap_ended = gap_s, self._now
        for other in others:
            self._heard_at.pop(other, None)
            self._heard_at[other] = self._now

    def stood_still_s(self) -> float:
        """How long this process itself did not look, until a moment ago; 0 if it has looked all the time."""
        return self._gap_s if self._now - self._gap_ended < SECONDS_BETWEEN_SIGNS else 0.0

    def longer_than(self, seconds: float) -> list[int]:
        """Who has been silent for longer, the longest first."""
        return list(takewhile(lambda other: self._now - self._heard_at[other] > seconds, self._heard_at))


class Agents:
    """Orders reach every agent; events come from all of them.

    Parameters
    ----------
    interfaces
        Variables of each host's workers that say over which network interface they talk.
    silence_s
        Seconds after which an agent that has said nothing is lost.
    neighbours
        Other hosts that may tell whose link is gone.

    Attributes
    ----------
    members
        The agents whose ranks take part.
    present
        Those of them that are not lost.
    lost
        Those that are gone, each with the reason. They get no orders any more.
    disabled
        Those that answer but can start no rank any more, each with the reason.
    mpi
        This agent as a rank of cases that measure MPI; None where no MPI launcher started the agents.
    is_stuck
        Whether an agent is inside a call of MPI that will not return.
    all_answer
        Whether all agents that are ranks of a case of MPI answered at its end.
    """

    def __init__(
        self,
        agent: Agent,
        plane: HeadPlane,
        members: Sequence[Member],
        interfaces: Mapping[str, Mapping[str, str]] | None = None,
        silence_s: float = SECONDS_OF_SILENCE,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._neighbours = neighbours
        self._agent = agent
        self._plane = plane
        self.members = self.present = tuple(members)
        self.lost: dict[int, str] = {}
        self.disabled: dict[int, str] = {}
        self.mpi = MpiRank(agent.host) if isinstance(plane, MpiPlane) else None
        self.is_stuck = False
        self.all_answer = True
        self.silence_s = self._silence_s = silence_s
        self._pause = Pause()
        self._silence = Silence(agent for agent in range(plane.size) if agent != HEAD)
        self._links = OwnLinks()
        self._gave_sign = 0.0
        self._hosts = {member.agent: member.host for member in self.members}
        self._ranks = {
            member.agent: range(member.first_rank, member.first_rank + len(member.local_ranks))
            for member in self.members
        }
        self._tell_others(ExpectSilence(silence_s))
        for member in self.members:
            own = (interfaces or {}).get(member.host, {})
            self._order_one(member, Own(member.local_ranks, own))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.host for member in self.members))

    @property
    def losses(self) -> dict[str, str]:
        """Why each host is lost: its agent is gone or can do no more, or it is the head's own, which others left."""
        without = self.lost | self.disabled
        gone = {member: without[member.agent] for member in self.members if member.agent in without}
        return {self._agent.host if why.startswith(STOOD_STILL) else member.host: why for member, why in gone.items()}

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        return tuple(self.losses)

    @property
    def leaving(self) -> Leaving:
        if self.lost or not self.all_answer:
            return "abandoned"
        return "aborted" if self.is_stuck else "in order"

    def misses_a_sign(self) -> bool:
        """Whether an agent is silent that should have given a sign by now."""
        return bool(self._silence.longer_than(2 * SECONDS_BETWEEN_SIGNS))

    def heard(self) -> Heard:
        """The hosts of which an agent gives its signs of life, and how this host's own links are."""
        silent = self._silence.longer_than(2 * SECONDS_BETWEEN_SIGNS)
        speaking = {member.host for member in self.present if member.agent not in silent}
        return Heard(self._agent.host, speaking, len(self.hosts), self._links.down())

    def heard_at_loss(self) -> Heard:
        """The same when a host is lost: where no other is heard, others are asked, which may take a moment."""
        heard = self.heard()
        if self._neighbours is None or {*heard.hosts} - {heard.own}:
            return heard
        return replace(heard, gone=self._neighbours.gone())

    def order(self, order: AgentOrder) -> None:
        """The same order to every agent; of a start, each is told which rank is its first."""
        for member in self.present:
            self._order_one(member, replace(order, first_rank=member.first_rank) if isinstance(order, Start) else order)

    def order_some(self, members: Iterable[Member], order: AgentOrder) -> None:
        """An order to these of the agents, as far as they are there."""
        for member in members:
            if member in self.present:
                self._order_one(member, order)

    def order_head(self, order: AgentOrder) -> None:
        self._agent.execute(order)

    def is_alone(self) -> bool:
        """Whether this is the only agent of the run."""
        return self._plane.size == 1

    def order_mpi(self, members: Sequence[Member], order: MpiOrder) -> None:
        """An order to those agents that are the ranks of a case of MPI; this one begins last, as it then looks away."""
        for member in sorted(members, key=lambda member: member.agent == HEAD):
            if member.agent in self.lost:
                continue
            if member.agent == HEAD:
                assert self.mpi is not None
                self.mpi.execute(order)
            else:
                self._plane.send(member.agent, order)

    def expect_silence(self, seconds: float) -> None:
        """Counts no agent as lost for saying nothing for so long: those inside MPI cannot."""
        self._silence_s = self.silence_s + seconds
        self._tell_others(ExpectSilence(self._silence_s))

    def rest(self) -> None:
        """Has the others wait, and not count the head as lost, while it is busy with something else."""
        self._tell_others(ExpectSilence(SECONDS_WHILE_BUSY))

    def _order_one(self, member: Member, order: AgentOrder) -> None:
        if member.agent == HEAD:
            self._agent.execute(order)
        else:
            self._plane.send(member.agent, order)

    def _tell_others(self, message: Order) -> None:
        for agent in range(self._plane.size):
            if agent != HEAD and agent not in self.lost:
                self._plane.send(agent, message)

    def events(self, timeout_s: float) -> list[Event]:
        """What happened anywhere; waits up to ``timeout_s`` for the first event.

        While this agent is a rank inside MPI it hears nothing of the others: to listen would disturb what is timed.
        """
        if self.mpi and self.mpi.is_undisturbed():
            return list(self.mpi.events(timeout_s))
        if self._plane.size == 1:
            own = self.mpi.events() if self.mpi else []
            return self._heard(HEAD, own or self._agent.events(timeout_s))
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            own = self._agent.events(min(self._pause.seconds, left)) + (self.mpi.events() if self.mpi else [])
            events = self._heard(HEAD, own)
            arrived = self._plane.receive()
            for sender, message in arrived:
                if not isinstance(message, Sign):
                    events += self._heard(sender, [message])
            events += self._losses(sender for sender, _ in arrived)
            if any(isinstance(event, Interrupted) for event in events):
                raise KeyboardInterrupt
            self._pause.after(bool(events))
            if events or left == 0.0:
                return events

    def _heard(self, agent: int, messages: Sequence[MemberEvent]) -> list[Event]:
        """The events of an agent; one that can start nothing any more is lost for the run, though it answers."""
        events: list[Event] = []
        for message in messages:
            if agent in self.lost:
                break
            if isinstance(message, Disabled):
                self.disabled[agent] = message.why
                events.append(LostAgent(agent, self._hosts.get(agent, ""), message.why))
            elif (foreign := self._foreign(agent, message)) is not None:
                self._plane.drop(agent, f"spoke for {foreign}, which is not its own")
            else:
                events.append(message)
        return events

    def _foreign(self, agent: int, message: MemberEvent) -> str | None:
        """A rank or host that an agent speaks for and must not: what it says would count as another's."""
        own = self._ranks.get(agent, range(0))
        ranks = message.ranks if isinstance(message, Inspected) else (message,)
        for said in ranks:
            if (rank := getattr(said, "rank", None)) is not None and rank not in own:
                return f"rank {rank}"
            if (host := getattr(said, "host", None)) is not None and host != self._hosts.get(agent, host):
                return f"host {host}"
        return None

    def _losses(self, heard: Iterable[int]) -> list[LostAgent]:
        """An event for each member that was found to be gone just now; and a sign to the others from time to time."""
        now = time.monotonic()
        if now - self._gave_sign > SECONDS_BETWEEN_SIGNS:
            self._gave_sign = now
            self._tell_others(Sign())
        self._silence.heard(heard)
        gone = {
            **dict.fromkeys(self._silence.longer_than(self._silence_s), f"{SAID_NOTHING}{self._silence_s:g} s"),
            **self._plane.lost(),
        }
        new = {agent: why for agent, why in gone.items() if agent not in self.lost}
        if not new:
            return []
        stood_still_s = self._silence.stood_still_s()
        if stood_still_s > self._silence_s - 2 * SECONDS_BETWEEN_SIGNS:  # they heard nothing for a little longer
            own = f"{STOOD_STILL}{stood_still_s:.0f} s, and the other agents took it for lost"
            new = {agent: own if why.startswith((CLOSED, TOOK_NOTHING)) else why for agent, why in new.items()}
        self.lost |= new
        self.present = tuple(member for member in self.members if member.agent not in self.lost)
        return [
            LostAgent(member.agent, member.host, new[member.agent]) for member in self.members if member.agent in new
        ]


def dismiss(plane: HeadPlane, exit_code: int, lost: Collection[int] = (), leaving: Leaving = "in order") -> None:
    """Tells every other agent that is still there to end with ``exit_code``, and takes what they still have to say.

    A message that was not taken when MPI ends is a warning of the library.
    """
    waiting = {agent for agent in range(plane.size) if agent != HEAD and agent not in lost}
    for agent in waiting:
        plane.send(agent, Quit(exit_code, leaving))
    deadline = time.monotonic() + SECONDS_FOR_GOODBYES
    while waiting.difference(plane.lost()) and time.monotonic() < deadline:
        waiting.difference_update(sender for sender, message in plane.receive() if isinstance(message, Goodbye))
        time.sleep(0.001)
    plane.close()


class Interruption(Protocol):
    """Whether this process got a signal to stop."""

    asked: bool


def follow(agent: Agent, plane: MemberPlane, interruption: Interruption) -> int:
    """A member agent's whole life: does what the head orders, tells what happens, ends with the head's exit code.

    Raises
    ------
    LostHead
        The agent has to end its ranks and itself.
    """
    follower = Follower(agent, plane, interruption)
    while (exit_code := follower.look()) is None:
        pass
    return exit_code


class Follower:
    """A member agent under the orders of the head, a look at a time."""

    def __init__(self, agent: Agent, plane: MemberPlane, interruption: Interruption) -> None:
        self._agent, self._plane, self._interruption = agent, plane, interruption
        self._mpi = MpiRank(agent.host) if isinstance(plane, MpiPlane) else None
        self._pause = Pause()
        self._silence, self._silence_s = Silence([HEAD]), SECONDS_WHILE_BUSY
        self._told_of_interruption = False
        self._gave_sign = 0.0

    def look(self) -> int | None:
        """Does what was ordered since the last look and tells what happened; the exit code, once the head says quit.

        Sleeps a little where nothing happens.

        Raises
        ------
        LostHead
            The head is gone, or has been silent for too long.
        """
        if self._mpi and self._mpi.is_undisturbed() and not self._interruption.asked:
            self._mpi.wait(SECONDS_BETWEEN_LOOKS)
            return None
        orders = [message for _, message in self._plane.receive()]
        for order in orders:
            if isinstance(order, Quit):
                _leave(self._agent, self._plane, order)
                return order.exit_code
            self._execute(order)
        events = self._happened()
        for event in events:
            self._plane.send(HEAD, event)
        self._silence.heard([HEAD] if orders else [])
        self._miss_the_head()
        self._pause.after(bool(orders or events))
        return None

    def _execute(self, order: Order) -> None:
        match order:
            case Quit() | Sign():
                pass
            case ExpectSilence():
                self._silence_s = order.seconds
            case PrepareMpi() | CheckMpi() | TimeMpi() | InspectMpi() | EndMpi():
                if self._mpi is None:
                    self._plane.drop(HEAD, f"sent {type(order).__name__} where no MPI is")
                else:
                    self._mpi.execute(order)
            case _:
                self._agent.execute(order)

    def _happened(self) -> list[MemberEvent]:
        events = self._agent.events(self._pause.seconds) + (self._mpi.events() if self._mpi else [])
        if self._interruption.asked and not self._told_of_interruption:
            events.insert(0, Interrupted())  # a signal to all processes of a job ends its ranks, too
            self._told_of_interruption = True
        if time.monotonic() - self._gave_sign > SECONDS_BETWEEN_SIGNS:
            self._gave_sign = time.monotonic()
            self._plane.send(HEAD, Sign())
        return events

    def _miss_the_head(self) -> None:
        if why := self._plane.lost().get(HEAD):
            what = "is gone" if why == CLOSED else why
            raise LostHead(f"the head of the run {what}; the agent on {self._agent.host} ends its ranks and itself")
        if self._silence.longer_than(self._silence_s):
            raise LostHead(
                f"the head of the run said nothing for {self._silence_s:g} s; the agent on {self._agent.host} ends its "
                "ranks and itself"
            )


def _leave(agent: Agent, plane: MemberPlane, order: Quit) -> None:
    plane.send(HEAD, Goodbye())
    plane.close()
    if order.leaving != "in order":
        agent.close()
        if order.leaving == "aborted":
            time.sleep(SECONDS_TO_BE_ENDED)
        plane.abandon(order.exit_code, last=False)
