"""All agents of a run as the conductor sees them: one object to order and to hear."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clusterbench.errors import LaunchError
from clusterbench.launch.agent import Agent
from clusterbench.launch.channel import Message
from clusterbench.launch.control import HEAD, ControlPlane

_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


@dataclass(frozen=True)
class Member:
    """One agent's share of the allocation. Its ranks are ``first_rank`` to ``first_rank + num_ranks - 1``."""

    agent: int
    host: str
    first_rank: int
    local_ranks: tuple[int, ...]


def members_of(hosts: Sequence[str], ranks_per_agent: Sequence[int]) -> tuple[Member, ...]:
    """Agents in the order of their ranks, node by node.

    Parameters
    ----------
    hosts, ranks_per_agent
        Of each agent, in the launcher's order. Hosts count in the order in which they first appear; a launcher that
        deals its processes out in turn does not scatter a node's ranks.

    Raises
    ------
    LaunchError
        If hosts own different numbers of ranks: a layout would put unequal nodes on one axis.
    """
    by_host: dict[str, list[int]] = {}
    for agent, host in enumerate(hosts):
        by_host.setdefault(host, []).append(agent)
    counts = {host: sum(ranks_per_agent[agent] for agent in agents) for host, agents in by_host.items()}
    if len(set(counts.values())) > 1:
        uneven = ", ".join(f"{host} has {count}" for host, count in counts.items())
        raise LaunchError(
            f"nodes must own equally many ranks, but {uneven}.\n"
            "hint: give mpirun the same number of slots on every host, e.g. -H a:4,b:4 -n 8"
        )
    members, rank = [], 0
    for host, agents in by_host.items():
        local = 0
        for agent in agents:
            count = ranks_per_agent[agent]
            members.append(Member(agent, host, rank, tuple(range(local, local + count))))
            rank, local = rank + count, local + count
    return tuple(members)


class Pause:
    """How long to sleep when nothing happens: short after something did, longer and longer after that."""

    def __init__(self) -> None:
        self.seconds = _SHORTEST_PAUSE_S

    def after(self, something_happened: bool) -> None:
        self.seconds = _SHORTEST_PAUSE_S if something_happened else min(self.seconds * 1.5, _LONGEST_PAUSE_S)


class Crew:
    """Orders reach every agent; events come from all of them."""

    def __init__(self, agent: Agent, plane: ControlPlane, members: Sequence[Member]) -> None:
        self._agent = agent
        self._plane = plane
        self.members = tuple(members)
        self._pause = Pause()
        for member in self.members:
            self._order_one(member, {"order": "own", "local_ranks": list(member.local_ranks)})

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.host for member in self.members))

    def host_of(self, rank: int) -> str:
        """Where a rank of a start lives."""
        for member in self.members:
            if member.first_rank <= rank < member.first_rank + len(member.local_ranks):
                return member.host
        raise LaunchError(f"no agent owns rank {rank}")

    def order(self, order: str, **arguments: Any) -> None:
        """The same order to every agent."""
        for member in self.members:
            self._order_one(member, {"order": order, **arguments})

    def order_head(self, order: str, **arguments: Any) -> None:
        self._agent.execute({"order": order, **arguments})

    def order_start(self, start: Message) -> None:
        """Has every agent fork its share of a start's ranks."""
        for member in self.members:
            self._order_one(member, {"order": "start", "start": start, "first_rank": member.first_rank})

    def _order_one(self, member: Member, order: Message) -> None:
        if member.agent == HEAD:
            self._agent.execute(order)
        else:
            self._plane.send(member.agent, order)

    def events(self, timeout_s: float) -> list[Message]:
        """What happened anywhere; waits up to ``timeout_s`` for the first event."""
        if self._plane.size == 1:
            return self._agent.events(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            events = self._agent.events(min(self._pause.seconds, left))
            events += [message for _, message in self._plane.receive()]
            if any(event["event"] == "interrupted" for event in events):
                raise KeyboardInterrupt
            self._pause.after(bool(events))
            if events or left == 0.0:
                return events


def dismiss(plane: ControlPlane, exit_code: int) -> None:
    """Tells every other agent to go home with ``exit_code``."""
    for agent in range(plane.size):
        if agent != HEAD:
            plane.send(agent, {"order": "quit", "exit_code": exit_code})
    plane.close()


class Interruption(Protocol):
    """Whether somebody asked this process to stop."""

    asked: bool


def follow(agent: Agent, plane: ControlPlane, interruption: Interruption) -> int:
    """A member agent's whole life: does what the head orders, tells what happens, ends with the head's exit code."""
    pause = Pause()
    told = False
    while True:
        orders = [message for _, message in plane.receive()]
        for order in orders:
            if order["order"] == "quit":
                plane.close()
                return int(order["exit_code"])
            agent.execute(order)
        events = agent.events(pause.seconds)
        if interruption.asked and not told:
            events.append({"event": "interrupted"})
            told = True
        for event in events:
            plane.send(HEAD, event)
        pause.after(bool(orders or events))
