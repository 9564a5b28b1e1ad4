"""Members of a run without processes and without torch: real planes and the real ``follow``, a stand-in for the agent.

What is a process on a cluster, one per host or per rank, is a thread here, and runs ``follow`` as that process does.
Two things differ. Ranks are not forked: the stand-in answers each order at once with the events that workers would
send. And between orders a thread does not look every 20 ms, which a thousand of them could not do on two cores, but
sleeps until its connection has something, and then as long as an agent sleeps at most between two looks.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from clusterbench.cluster import Cluster
from clusterbench.errors import LaunchError
from clusterbench.launch.agents import Agents, follow
from clusterbench.launch.control import HEAD, TcpMember
from clusterbench.launch.messages import (
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
)
from clusterbench.types import Case, Plan

RANKS_PER_HOST = 8
SAMPLES = 100
TIMEOUT_S = 60.0
COPY = PackageCopy("/x/clusterbench", "0123456789abcdef")
_LONGEST_PAUSE_S = 0.02
_SECONDS_BETWEEN_LOOKS = 0.5
_BYTES_OF_A_STACK = 256 * 1024


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
    """Agents ``agents`` of a run of ``size`` on TCP connections of their own, each in a thread of this process.

    Parameters
    ----------
    environment
        What each host says of itself.

    Attributes
    ----------
    ends
        How many ended in which way: an exit code, or what was the matter.
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
        self.ends: Counter[str] = Counter()
        self._member = (address, size, secret)
        self._says = (environment, ranks_per_agent)
        self._may_come = threading.Event()
        usual = threading.stack_size(_BYTES_OF_A_STACK)
        self._threads = [threading.Thread(target=self._live, args=(agent,)) for agent in agents]
        for thread in self._threads:
            thread.start()
        threading.stack_size(usual)

    def come(self) -> None:
        """All at once."""
        self._may_come.set()

    def gone(self) -> Counter[str]:
        """How they ended, once all have."""
        for thread in self._threads:
            thread.join()
        return self.ends

    def _live(self, agent: int) -> None:
        self._may_come.wait()
        try:
            end = str(self._follow(agent))
        except LaunchError as error:
            end = str(error).split(";")[0]
        except Exception as error:  # noqa: BLE001  whatever it was, it is counted
            end = repr(error)
        self.ends[end] += 1

    def _follow(self, agent: int) -> int:
        address, size, secret = self._member
        plane = TcpMember(address, size, agent, secret)
        connection = plane._head.socket
        arrived = select.poll()  # a descriptor may be above 1,024, which select() does not take
        arrived.register(connection, select.POLLIN)

        def wait(timeout_s: float) -> None:
            if arrived.poll(_SECONDS_BETWEEN_LOOKS * 1e3):
                time.sleep(_LONGEST_PAUSE_S)

        def cut() -> None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
            plane.close()

        own = hello_of(agent, *self._says)
        stand_in = StandIn(own.host, wait, cut)
        plane.send(HEAD, own)
        try:
            return follow(stand_in, plane, SimpleNamespace(asked=False))
        finally:
            plane.close()


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
