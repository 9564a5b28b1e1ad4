"""Members of a run without processes or torch: real planes and the real ``Follower``, a stand-in for the agent.

What is a process on a cluster, one per host or per rank, is an object here, and looks for orders as that process does.
Two things differ. Ranks are not forked: the stand-in answers each order at once with the events that workers would
send. And between orders a member does not look every 20 ms, which thousands of them could not do on two cores: it looks
when its connection has something, 20 ms later, which is as long as an agent sleeps at most between two looks.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from clusterbench.cluster import Cluster
from clusterbench.errors import LaunchError
from clusterbench.launch.agents import Agents, Follower
from clusterbench.launch.control import HEAD, TcpMember
from clusterbench.launch.messages import (
    AddressTried,
    End,
    Ended,
    GoOn,
    Hello,
    Inspect,
    Inspected,
    MemberEvent,
    OpenStore,
    Own,
    PackageCopy,
    RankDone,
    RankPlace,
    RankReached,
    RankReady,
    RunCase,
    Start,
    StoreOpen,
    StorePlace,
    TellTime,
    TimeTold,
    TryAddress,
)
from clusterbench.types import Case, Plan

RANKS_PER_HOST = 8
SAMPLES = 100
TIMEOUT_S = 60.0
COPY = PackageCopy("/x/clusterbench", "0123456789abcdef")
_LONGEST_PAUSE_S = 0.02
_SECONDS_BETWEEN_LOOKS = 0.5


class StandIn:
    """In place of an agent: its ranks are done with whatever they are told.

    Parameters
    ----------
    wait
        Called with how long an agent may sleep when nothing has happened here.
    cut
        Called where a case's point has this agent's rank under ``cut``, when the timing begins.
    """

    def __init__(
        self, host: str, wait: Callable[[float], object] = time.sleep, cut: Callable[[], object] = lambda: None
    ) -> None:
        self.host = host
        self._wait = wait
        self._cut = cut
        self._local_ranks: Sequence[int] = ()
        self._ranks: range = range(0)
        self._events: list[MemberEvent] = []

    def execute(self, order):
        match order:
            case Own():
                self._local_ranks = order.local_ranks
            case TellTime():
                self._events.append(TimeTold(time.time()))
            case TryAddress():
                self._events.append(AddressTried(order.port, ""))
            case OpenStore():
                self._events.append(StoreOpen(1))
            case Start():
                self._ranks = range(order.first_rank, min(order.first_rank + len(self._local_ranks), order.world_size))
                for slot, rank in enumerate(self._ranks):
                    loaded = {"torch": "none"} if self._local_ranks[slot] == 0 else {}
                    self._events.append(RankReady(rank, self.host, loaded))
            case RunCase():
                self._case = order
                # Drawn now: what they take to draw is not part of what they take to send.
                self._seconds = [[random.uniform(1e-3, 2e-3) for _ in range(order.iterations)] for _ in self._ranks]
                self._events += [RankReached(rank, self.host, "prepared") for rank in self._ranks]
            case GoOn("check"):
                self._events += [RankReached(rank, self.host, "checked") for rank in self._ranks]
            case GoOn("time"):
                if set(self._case.point.get("cut", ())) & set(self._ranks):
                    self._cut()
                    return
                for slot, rank in enumerate(self._ranks):
                    self._events.append(RankDone(rank, self.host, self._seconds[slot], {"deviation": 0.0}, {}))
            case Inspect():
                self._events.append(
                    Inspected(tuple(RankPlace(rank, self.host, "warm", 3, "S", (), "") for rank in self._ranks))
                )
            case End():
                self._ranks = range(0)
                self._events.append(Ended(order.start, {}))

    def events(self, timeout_s):
        if not self._events:
            self._wait(timeout_s)
        events, self._events = self._events, []
        return events

    def close(self):
        pass


class Crowd:
    """Agents ``agents`` of a run of ``size`` on TCP connections of their own, all in one thread.

    Parameters
    ----------
    environment
        What each host says of itself.
    """

    def __init__(
        self,
        address: tuple[str, int],
        size: int,
        agents: Sequence[int],
        secret: bytes,
        environment: Mapping[str, Any],
        ranks_per_agent: int = 1,
    ) -> None:
        self._agents = agents
        self._member = (address, size, secret)
        self._says = (environment, ranks_per_agent)
        self._followers: dict[int, Follower] = {}
        self._arrived = select.poll()  # a descriptor may be above 1,024, which select() does not take

    def live(self) -> Counter[str]:
        """From the connection of each to its end: how many ended in which way, an exit code or what was the matter."""
        ends: Counter[str] = Counter()
        for agent in self._agents:
            self._come(agent)
        looked_s = time.monotonic()
        while self._followers:
            heard = [descriptor for descriptor, _ in self._arrived.poll(1e3 * _SECONDS_BETWEEN_LOOKS)]
            time.sleep(_LONGEST_PAUSE_S)
            if time.monotonic() - looked_s > _SECONDS_BETWEEN_LOOKS:  # for signs of life
                looked_s, heard = time.monotonic(), list(self._followers)
            for descriptor in heard:
                if (end := _end_of(self._followers[descriptor])) is not None:
                    ends[end] += 1
                    self._arrived.unregister(descriptor)
                    del self._followers[descriptor]
        return ends

    def _come(self, agent: int) -> None:
        address, size, secret = self._member
        plane = TcpMember(address, size, agent, secret)
        connection = plane._head.socket

        def cut() -> None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
            plane.close()

        own = hello_of(agent, *self._says)
        plane.send(HEAD, own)
        self._arrived.register(connection, select.POLLIN)
        stand_in = StandIn(own.host, lambda timeout_s: None, cut)
        self._followers[connection.fileno()] = Follower(stand_in, plane, SimpleNamespace(asked=False))


def _end_of(follower: Follower) -> str | None:
    """How it ended with this look; None where it goes on."""
    try:
        exit_code = follower.look()
    except LaunchError as error:
        return str(error).split(";")[0]
    except Exception as error:  # noqa: BLE001  whatever it was, it is counted
        return repr(error)
    return None if exit_code is None else str(exit_code)


def hello_of(agent: int, environment: Mapping[str, Any], ranks_per_agent: int = 1) -> Hello:
    """What the agent says first; the first of each host describes it. The head has a host of its own, and no rank."""
    node, local_rank = divmod(agent - 1, RANKS_PER_HOST // ranks_per_agent)
    if agent == HEAD:
        return Hello("head", 0, COPY, environment)
    described = {} if local_rank else environment
    return Hello(f"n{node:04d}", local_rank, COPY, described)


def case_of(num_ranks: int, name: str = "x", cut: Sequence[int] = ()) -> Case:
    """A case of ``SAMPLES`` iterations during which the agents of the ranks ``cut`` lose their connection."""
    point = {"name": name, "cut": list(cut)}
    num_nodes = num_ranks // RANKS_PER_HOST
    return Case(f"drill/{name}", "drill", 1, point, "cpu", num_nodes, num_ranks, SAMPLES, 5, 60.0, own_start=True)


def plan_of(num_ranks: int, cases: Sequence[Case]) -> Plan:
    cluster = Cluster(num_ranks // RANKS_PER_HOST, RANKS_PER_HOST, "cpu")
    return Plan("drill", "", cluster, 1, tuple(cases), ())


# What a head without a conductor asks for.


def seconds_of_a_round(agents: Agents) -> float:
    """From an order to all until each has answered."""
    start_s = time.perf_counter()
    agents.order(TellTime())
    hear(agents, TimeTold, len(agents.members))
    return time.perf_counter() - start_s


def samples_of_all(agents: Agents) -> tuple[float, list[RankDone]]:
    """Seconds from the word that samples are wanted until every rank's are here, and the records."""
    num_ranks = sum(len(member.local_ranks) for member in agents.members)
    agents.order(start_of(0, num_ranks))
    hear(agents, RankReady, num_ranks)
    case = case_of(num_ranks)
    agents.order(RunCase(case.benchmark, case.point, None, "megatron", case.iterations, 0, False, True, 1))
    hear(agents, RankReached, num_ranks)
    start_s = time.perf_counter()
    agents.order(GoOn("time"))
    records = hear(agents, RankDone, num_ranks)
    elapsed_s = time.perf_counter() - start_s
    agents.order(End(0, kill=False))
    hear(agents, Ended, len(agents.members))
    assert [len(record.seconds) for record in records] == [SAMPLES] * num_ranks
    return elapsed_s, records


def start_of(number: int, num_ranks: int) -> Start:
    return Start(number, num_ranks, "cpu", {}, StorePlace(), 60.0, "/logs")


def hear(agents: Agents, kind: type, count: int) -> list[Any]:
    """So many events of this kind."""
    deadline = time.monotonic() + TIMEOUT_S
    heard: list[Any] = []
    while len(heard) < count:
        heard += [event for event in agents.events(0.5) if isinstance(event, kind)]
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(heard)} of {count} said {kind.__name__}")
    return heard
