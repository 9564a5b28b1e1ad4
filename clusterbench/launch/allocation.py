"""Who takes part: the agents, the hosts they live on as these describe themselves, and which of them a run uses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterbench import own_copy
from clusterbench.cluster import Found, is_same_host
from clusterbench.errors import LaunchError, SuiteError, nearest
from clusterbench.facts import GPUS_ONLY
from clusterbench.launch.control import CLOSED, HEAD, HeadPlane
from clusterbench.launch.interfaces import Interface, choose_interfaces, interfaces_of
from clusterbench.launch.members import Member, members_of
from clusterbench.launch.messages import Hello, Interrupted, MemberEvent, PackageCopy, TellTime, TimeTold
from clusterbench.launch.shown_gpus import are_new, places_of, together
from clusterbench.launch.spawner import die_with
from clusterbench.launchers import without_launchers
from clusterbench.words import few, listed

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""By which launchers that bind show each process its own GPUs, also where it sees no others."""

SECONDS_TO_GATHER = 60.0
_SECONDS_TO_DESCRIBE = 60.0
_SECONDS_FOR_CLOCKS = 5.0
_ROUNDS_OF_CLOCKS = 3


_START_ON_HOSTS = "\nhint: only a launcher starts clusterbench on other hosts: 'mpirun -n 2 -host a,b clusterbench ...'"


@dataclass(frozen=True)
class Allocation:
    """What the launcher gave.

    Parameters
    ----------
    hosts
        Of each agent, in the order of their ranks.
    environments
        What each host says of itself, by host in the order in which they first appear. Its ``gpus`` are all that any of
        its agents sees: a launcher may show each its own.
    first_gpus
        Agents that between them see each of these GPUs once: of each the number of its first there.
    shown
        Of each agent that said which it sees, their numbers there.
    """

    hosts: tuple[str, ...]
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    first_gpus: dict[int, int] = field(default_factory=dict)
    shown: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts, each once, in that order."""
        return tuple(dict.fromkeys(self.hosts))

    def first_agents(self, hosts: Iterable[str]) -> dict[int, str]:
        """Of each of these hosts but the head's the first agent, and the host."""
        return {self.hosts.index(host): host for host in hosts if host != self.hosts[HEAD]}

    def only(
        self, hosts: Sequence[str] | None, num_nodes: int | None, excluded: Collection[str] = ()
    ) -> tuple[str, ...]:
        """The hosts that take part: those that are named, in that order, or all but those that are ``excluded``.

        Of these the first ``num_nodes``.

        Raises
        ------
        SuiteError
            If a host is named that is not there, or twice, or left out; if none is left, or more nodes are wanted than
            there are.
        """
        chosen = tuple(map(self._name_of, hosts or ())) or tuple(not_excluded(self.names, excluded))
        if not chosen:
            raise SuiteError(f"--exclude leaves out every host: {', '.join(self.names)}.")
        for host in chosen:
            if host not in self.names:
                raise SuiteError(
                    f"--hosts names {host}, which is not in the allocation.{nearest(host, self.names)}\n"
                    f"Hosts: {', '.join(self.names)}.{_START_ON_HOSTS if len(self.names) == 1 else ''}"
                )
            if chosen.count(host) > 1:
                raise SuiteError(f"--hosts names {host} twice.")
            if not not_excluded([host], excluded):
                raise SuiteError(f"--hosts names {host}, which --exclude leaves out.")
        if num_nodes is not None and num_nodes > len(chosen):
            raise SuiteError(
                f"--num-nodes {num_nodes} needs as many hosts, but there are {len(chosen)}: {', '.join(chosen)}.\n"
                "hint: have the launcher start agents on more hosts"
            )
        return chosen[:num_nodes]

    def _name_of(self, host: str) -> str:
        """What a host calls itself that is named with or without its domain; the name as it is where none is so."""
        return host if host in self.names else next((name for name in self.names if is_same_host(name, host)), host)

    def found(self, hosts: tuple[str, ...]) -> Found:
        """What the first of the hosts that take part has, as it said of itself; the others are expected to be alike."""
        first = self.environments[hosts[0]]
        return Found(
            gpu_names=tuple(gpu["name"] for gpu in first.get("gpus") or ()),
            why_no_gpus=first.get("gpus_reason"),
            cpu_name=first.get("cpu_model"),
            hosts=hosts,
            agents_per_node=self.hosts.count(hosts[0]) if len(self.hosts) > 1 else None,
        )

    def ranks_of_agents(self, ranks_per_node: int, hosts: Sequence[str]) -> list[int]:
        """Ranks of each agent: as many as on the first host that takes part, of which ``ranks_per_node`` was told."""
        return [ranks_per_node // self.hosts.count(hosts[0])] * len(self.hosts)

    def members(self, ranks_per_node: int, hosts: Sequence[str], ranks_per_gpu: int | None) -> tuple[Member, ...]:
        """Which ranks each agent owns, so that each rank has a GPU that its agent sees, and shares it with no others.

        A launcher that deals processes out over sockets, each with the GPUs there, would else have two on the same one.

        Parameters
        ----------
        ranks_per_gpu
            None for ranks that compute on CPUs, whatever GPUs are beside them.

        Raises
        ------
        LaunchError
            If hosts own different numbers of ranks, or more of them than ``ranks_per_gpu`` would be on one GPU.
        """
        shares = self.ranks_of_agents(ranks_per_node, hosts)
        if ranks_per_gpu is None:
            return members_of(self.hosts, shares, hosts)
        members = members_of(self.hosts, shares, hosts, self.shown)
        on_gpu: dict[tuple[str, int], list[int]] = defaultdict(list)
        for member in members:
            for local_rank in member.local_ranks:
                on_gpu[member.host, member.gpu_of(local_rank, ranks_per_gpu)].append(local_rank)
        for (host, gpu), ranks in on_gpu.items():
            if len(ranks) > ranks_per_gpu:
                raise LaunchError(
                    f"{listed('rank', ranks)} of host {host} would share GPU {gpu} of its "
                    f"{len(self.environments[host]['gpus'])}, as the launcher shows them GPUs, while others idle.\n"
                    "hint: have the launcher show each process all GPUs of its host, or one of its own "
                    "(srun --gpus-per-task=1)"
                )
        return members

    def interfaces(
        self, hosts: Sequence[str], wanted: str | None, without: Collection[str] = ()
    ) -> dict[str, Interface]:
        """Over which interface each host that takes part, and the head's, talks to the others; noted in what they are.

        The head's host is the first. ``without`` are addresses of it that others did not reach.

        Raises
        ------
        LaunchError, SuiteError
            If the hosts share none, or not the one that is wanted.
        """
        every = tuple(dict.fromkeys((self.hosts[HEAD], *hosts)))
        if len(every) == 1 and wanted is None:
            return {}
        chosen = choose_interfaces({host: interfaces_of(self.environments[host]) for host in every}, wanted, without)
        for host, interface in chosen.items():
            self.environments[host]["interface"] = interface.name
        return chosen

    def addresses(self) -> set[str]:
        """All that the hosts have, those that take no part among them."""
        every = (interfaces_of(environment) for environment in self.environments.values())
        return {interface.address for interfaces in every for interface in interfaces}


def not_excluded(hosts: Iterable[str], excluded: Collection[str]) -> list[str]:
    """The hosts that ``--exclude`` does not name."""
    return [host for host in hosts if not any(is_same_host(host, name) for name in excluded)]


def variables_of(interfaces: Mapping[str, Interface], is_wanted: bool) -> dict[str, dict[str, str]]:
    """Variables of each host's ranks that name its interface; NCCL's only where --interface names one.

    Gloo has to be told, or it takes what the host's name resolves to; NCCL knows fabrics better than we do.
    """
    names = ["GLOO_SOCKET_IFNAME"] + ["NCCL_SOCKET_IFNAME"] * is_wanted
    return {host: dict.fromkeys(names, interface.name) for host, interface in interfaces.items()}


def hello(host: str, local_rank: int | None, copy: PackageCopy) -> Hello:
    """What an agent says first.

    The first one of each host describes it. Another that is shown some of its GPUs says which: they may be its own.
    """
    if local_rank and VISIBLE not in os.environ:
        return Hello(host, local_rank, copy, environment={})
    return Hello(host, local_rank, copy, _described(GPUS_ONLY) if local_rank else _described())


def gather(plane: HeadPlane, own: Hello) -> Allocation:
    """Every agent's host, once all have said hello.

    Raises
    ------
    LaunchError
        If some say nothing, two hosts go by one name, run different copies of the package, or were started for
        different things.
    """
    hellos = {HEAD: own}
    for sender, message in messages_of(plane, SECONDS_TO_GATHER):
        if isinstance(message, Hello):
            hellos[sender] = message
        if len(hellos) == plane.size:
            break
    if len(hellos) < plane.size:
        missing = [rank for rank in range(plane.size) if rank not in hellos]
        gone = [rank for rank in missing if rank in plane.lost()]
        reasons = {plane.lost()[rank] for rank in gone} or {f"said nothing for {SECONDS_TO_GATHER:g} s"}
        why = " or ".join("closed their connection" if reason == CLOSED else reason for reason in sorted(reasons))
        raise LaunchError(f"{len(gone or missing)} of {plane.size} agents {why}: {few(gone or missing, 16)}")
    in_order = [hellos[rank] for rank in range(plane.size)]
    _expect_names_of_their_own(in_order)
    _expect_one_copy(in_order)
    _expect_one_task(in_order)
    hosts = tuple(said.host for said in in_order)
    environments: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    first_gpus: dict[int, int] = {}
    shown: dict[int, tuple[int, ...]] = {}
    for agent, said in enumerate(in_order):
        of_host = environments[said.host]
        known, seen = of_host.get("gpus") or (), said.environment.get("gpus") or ()
        if are_new(known, seen):
            first_gpus[agent] = len(known)
        environments[said.host] = together(of_host, said.environment)
        if seen:
            shown[agent] = places_of(seen, environments[said.host]["gpus"])
    return Allocation(hosts, environments, first_gpus, shown)


def _expect_names_of_their_own(hellos: Sequence[Hello]) -> None:
    places = set()
    for said in hellos:
        place = said.host, said.local_rank
        if said.local_rank is not None and place in places:
            raise LaunchError(
                f"two hosts go by the name {said.host}: each has a local rank {said.local_rank}.\n"
                "hint: give every host or container a name of its own"
            )
        places.add(place)


def _expect_one_copy(hellos: Sequence[Hello]) -> None:
    """Contents count and not paths: each host may have the package on a disk of its own."""
    first = hellos[0]
    for said in hellos:
        if said.copy.digest != first.copy.digest:
            mine, other = (
                f"{each.host} has {each.copy.place} with sources {each.copy.digest}" for each in (first, said)
            )
            raise LaunchError(
                f"the hosts run different copies of clusterbench: {mine}, {other}.\n"
                "hint: install the same version on all hosts, or one copy where all see it"
            )


def _expect_one_task(hellos: Sequence[Hello]) -> None:
    """The head's is done, and another one's would be left out without a word; names count, as folders may differ."""
    first = hellos[0]
    for said in hellos:
        if said.asked != first.asked:
            raise LaunchError(
                f"{first.host} was started for {first.asked}, and {said.host} for {said.asked}: all that a launcher "
                "starts together do one thing.\nhint: start the launcher once for each"
            )


def measure_clocks(plane: HeadPlane, allocation: Allocation) -> None:
    """Adds to each host's environment how many seconds its clock is ahead of the head's, from the quickest answer.

    Nothing here compares times of two hosts; people who read logs side by side do.
    """
    others = allocation.first_agents(allocation.names)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(_ROUNDS_OF_CLOCKS if others else 0):
        asked = time.time()
        for rank in others:
            plane.send(rank, TellTime())
        waiting = set(others)
        for sender, message in messages_of(plane, _SECONDS_FOR_CLOCKS):
            if isinstance(message, TimeTold) and sender in waiting:
                host, answered = others[sender], time.time()
                offset = message.time_s - (asked + answered) / 2
                best[host] = min(best.get(host, (float("inf"), 0.0)), (answered - asked, offset))
                waiting.discard(sender)
            if not waiting:
                break
    for host, (_, offset) in best.items():
        allocation.environments[host]["clock_offset_s"] = round(offset, 3)


def messages_of(plane: HeadPlane, timeout_s: float) -> Iterator[tuple[int, MemberEvent]]:
    """What other agents say, each with the rank of its agent, until that time is over or an agent is lost."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        arrived = plane.receive()
        if any(isinstance(message, Interrupted) for _, message in arrived):
            raise KeyboardInterrupt  # it is said once only
        yield from arrived
        if plane.size == 1 or plane.lost():
            return
        if not arrived:
            time.sleep(0.002)


def _described(*options: str) -> Mapping[str, Any]:
    """This host, described by a process of its own: the agent must not load a driver's library."""
    try:
        done = subprocess.run(
            own_copy.command("clusterbench.facts", *options),
            env=without_launchers(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS_TO_DESCRIBE,
            check=False,
            preexec_fn=partial(die_with, os.getpid()),
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"host {socket.gethostname()} could not be described within {_SECONDS_TO_DESCRIBE:g} s.\n"
            "hint: 'python -m clusterbench.facts' does it; a driver that hangs is what usually holds it up"
        ) from None
    try:
        environment: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LaunchError(f"host {socket.gethostname()} could not be described: {done.stderr.strip()[-500:]}") from None
    return environment
