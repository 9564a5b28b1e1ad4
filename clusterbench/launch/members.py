"""Which ranks each agent of a run owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from clusterbench.errors import LaunchError


@dataclass(frozen=True)
class Member:
    """One agent's share of the allocation. Its ranks are ``first_rank`` to ``first_rank + num_ranks - 1``.

    ``shown`` are the numbers on its host of the GPUs that it sees, where it said which.
    """

    agent: int
    host: str
    first_rank: int
    local_ranks: tuple[int, ...]
    shown: tuple[int, ...] | None = None

    def gpu_of(self, local_rank: int, ranks_per_gpu: int) -> int:
        """The number on its host of a rank's GPU, as its worker chooses it of those that it sees."""
        place = local_rank // ranks_per_gpu
        return self.shown[place % len(self.shown)] if self.shown else place


def taking_part(members: Sequence[Member], world_size: int) -> tuple[Member, ...]:
    """Those that own ranks of a case with so many."""
    return tuple(member for member in members if member.first_rank < world_size)


def members_of(
    hosts: Sequence[str],
    ranks_per_agent: Sequence[int],
    order: Sequence[str] | None = None,
    shown: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[Member, ...]:
    """Agents in the order of their ranks, node by node.

    Parameters
    ----------
    hosts, ranks_per_agent
        Of each agent, in the launcher's order.
    order
        The hosts that take part, by node rank. By default all, in the order in which they first appear; a launcher that
        deals its processes out in turn does not scatter a node's ranks.
    shown
        By agent the numbers on its host of the GPUs that it sees, where it said which. Local ranks follow GPUs.

    Raises
    ------
    LaunchError
        If hosts own different numbers of ranks: a layout would put unequal nodes on one axis.
    """
    by_host: dict[str, list[int]] = {host: [] for host in (order or dict.fromkeys(hosts))}
    for agent, host in enumerate(hosts):
        if host in by_host:
            by_host[host].append(agent)
    counts = {host: sum(ranks_per_agent[agent] for agent in agents) for host, agents in by_host.items()}
    if len(set(counts.values())) > 1:
        uneven = ", ".join(f"{host} has {count}" for host, count in counts.items())
        raise LaunchError(
            f"nodes must own equally many ranks, but {uneven}.\n"
            "hint: give mpirun as many slots on every host, e.g. -n 8 -host a:4,b:4, and srun --ntasks-per-node=4"
        )
    members, rank = [], 0
    for host, agents in by_host.items():
        local = 0
        for agent in sorted(agents, key=lambda agent: shown[agent][0] if agent in shown else 0):
            count = ranks_per_agent[agent]
            local_ranks = tuple(range(local, local + count))
            members.append(Member(agent, host, rank, local_ranks, shown.get(agent)))
            rank, local = rank + count, local + count
    return tuple(members)
