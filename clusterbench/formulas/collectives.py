"""Bandwidths of collectives, by nccl-tests' conventions, and the times that algorithms for them should take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

RECV = "recv"
"""The receiving half of a message."""

# What the busiest link of a flat ring carries, over size_bytes: nccl-tests, doc/PERFORMANCE.md and src/*.cu.
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_to_all_v": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    # nccl-tests uses 1 for any n; one rank moves nothing between ranks, and 0 keeps it out of charts as for the others.
    "broadcast": lambda n: 1.0 if n > 1 else 0.0,
    "reduce": lambda n: 1.0 if n > 1 else 0.0,
    "send_recv": lambda n: 1.0 if n > 1 else 0.0,
    # The same work as one all_reduce of all ranks, so the same factor: they may be compared.
    "hierarchical_all_reduce": lambda n: 2 * (n - 1) / n,
    "parameter_server": lambda n: 2 * (n - 1) / n,
}


def as_spelled_here(op: str) -> str:
    """A collective by its name here where it is spelled in another way, and any other operation as it is.

    >>> as_spelled_here("AllReduce"), as_spelled_here("alltoall"), as_spelled_here("barrier")
    ('all_reduce', 'all_to_all', 'barrier')
    """
    return next((name for name in BUS_FACTOR if _letters(name) == _letters(op)), op)


def _letters(op: str) -> str:
    return "".join(filter(str.isalnum, op.lower()))


def algorithm_bandwidth(size_bytes: int, time_s: float) -> float:
    """Bytes of the whole array over the time of one call, in bytes per second.

    What the caller gets; it falls with the number of ranks even where every link is busy all the time.

    >>> round(algorithm_bandwidth(2**30, 5e-3) / 1e9, 4)
    214.7484
    """
    if time_s <= 0:
        raise ValueError(f"a call of {size_bytes} bytes took {time_s} s; a bandwidth needs a time above 0.")
    return size_bytes / time_s


def bus_bandwidth(op: str, size_bytes: int, time_s: float, world_size: int) -> float:
    """Bus bandwidth of one collective, in bytes per second.

    Bus bandwidth rescales algorithm bandwidth (``size_bytes / time_s``) by what the busiest link has to carry, so the
    figure can be held against the hardware peak whatever the number of ranks.

    Parameters
    ----------
    op
        Collective, by its name in :data:`BUS_FACTOR`, e.g. ``"all_reduce"``.
    size_bytes
        Size of the whole array in bytes. For ``all_gather`` and ``reduce_scatter`` this is the gathered array,
        ``world_size`` times what one rank holds; nccl-tests prints the same size.
    time_s
        Time of one call in seconds, taken from the slowest rank.
    world_size
        Ranks in the communicator. One rank has bus bandwidth 0: nothing crosses a link.

    Returns
    -------
    Bytes per second; divide by 1e9 for the GB/s nccl-tests prints.

    Raises
    ------
    KeyError
        If ``op`` has no factor here. A new collective brings its own.

    Notes
    -----
    With in-switch reduction (NVLS, SHARP) the figure exceeds the wire, because the formula is a flat ring's. It is kept
    for comparison: NVIDIA/nccl-tests issues 212 and 366.

    Source
    ------
    nccl-tests, ``doc/PERFORMANCE.md``, sections "Bus bandwidth" and "Summary".

    Examples
    --------
    Eight ranks all-reduce 1 GiB in 5 ms:

    >>> round(bus_bandwidth("all_reduce", 2**30, 5e-3, 8) / 1e9, 1)
    375.8
    """
    return algorithm_bandwidth(size_bytes, time_s) * BUS_FACTOR[op](world_size)


def traffic_bytes(op: str, size_bytes: float, world_size: int) -> float:
    """Bytes one rank puts on its busiest link for one call: ``size_bytes`` times the bus factor.

    >>> traffic_bytes("all_gather", 1024, 4)
    768.0
    """
    return size_bytes * BUS_FACTOR[op](world_size)


def link_bytes(op: str, size_bytes: int, ranks: int) -> float | None:
    """The same of a call that was counted: None where the factor is unknown, or ``ranks`` is (0).

    ``send`` and ``recv`` are the two halves of what nccl-tests calls send_recv, which is counted in one direction, as
    all collectives are: a message is on the link of the rank that sends it.

    >>> link_bytes("send", 1024, 2), link_bytes("recv", 1024, 2), link_bytes("c10d::other", 1024, 2)
    (1024.0, 0.0, None)
    """
    if size_bytes == 0 or ranks == 1 or op == RECV:
        return 0.0
    factor = BUS_FACTOR.get("send_recv" if op == "send" else op)
    return None if factor is None or ranks == 0 else size_bytes * factor(ranks)


Algorithm = Callable[[float, int, float, float], float]
"""Seconds from size in bytes, ranks, seconds of a message without content, and bytes per second of a link."""


def _steps(n: int) -> int:
    return math.ceil(math.log2(n))


def _two_tree(size_bytes: float, n: int, alpha_s: float, bytes_per_s: float) -> float:
    """One reduction or broadcast, pipelined over two binary trees at once, with the best number of pieces.

    2k pieces take 2 log2(n) + 2k steps of ``alpha + S / (2k beta)``; the best k gives the square.
    """
    return float((math.sqrt(2 * _steps(n) * alpha_s) + math.sqrt(size_bytes / bytes_per_s)) ** 2)


ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "ring": lambda s, n, a, b: 2 * (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: 2 * _two_tree(s, n, a, b),
    },
    "all_gather": {
        "ring": lambda s, n, a, b: (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: _steps(n) * a + (n - 1) / n * s / b,
    },
    "reduce_scatter": {
        "ring": lambda s, n, a, b: (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: _steps(n) * a + (n - 1) / n * s / b,
    },
    "all_to_all": {
        "ring": lambda s, n, a, b: (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: _steps(n) * (a + s / 2 / b),
    },
    "broadcast": {
        "ring": lambda s, n, a, b: (_steps(n) + n - 1) * a + 2 * (n - 1) / n * s / b,
        "tree": _two_tree,
    },
    "reduce": {
        "ring": lambda s, n, a, b: (_steps(n) + n - 1) * a + 2 * (n - 1) / n * s / b,
        "tree": _two_tree,
    },
    "gather": {
        "ring": lambda s, n, a, b: (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: _steps(n) * a + (n - 1) / n * s / b,
    },
    "scatter": {
        "ring": lambda s, n, a, b: (n - 1) * (a + s / n / b),
        "tree": lambda s, n, a, b: _steps(n) * a + (n - 1) / n * s / b,
    },
}
"""Collective -> what its algorithms should take; ``ring`` goes from neighbour to neighbour, ``tree`` in log2(n) steps.

Reducing itself is taken to cost nothing. Under ``ring`` an all_to_all exchanges pair by pair, a gather or scatter
serves rank after rank, a broadcast is a scatter and a ring of all_gather, a reduce a ring of reduce_scatter and a
gather. Under ``tree`` an all_gather is by recursive doubling, a reduce_scatter by recursive halving, an all_to_all
Bruck's, a gather or scatter binomial; broadcast and reduce are pipelined over two trees, and an all_reduce is one after
the other.

Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH"; two trees:
Sanders, Speck, Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
"""


def algorithm_time(
    op: str, algorithm: str, size_bytes: float, world_size: int, alpha_s: float, bytes_per_s: float
) -> float:
    """Seconds that one call should take by one of :data:`ALGORITHMS`, where links carry no other traffic.

    Parameters
    ----------
    alpha_s, bytes_per_s
        Of one message between two ranks, as a fit of ``send_recv`` gives them.

    Examples
    --------
    1 MiB over 4 ranks, 10 us a message and 1 GB/s a link: six steps of 10 us, 1.5 MiB over each link.

    >>> round(algorithm_time("all_reduce", "ring", 2**20, 4, 10e-6, 1e9) * 1e6)
    1633
    >>> algorithm_time("all_reduce", "tree", 8, 1, 10e-6, 1e9)
    0.0
    """
    return ALGORITHMS[op][algorithm](size_bytes, world_size, alpha_s, bytes_per_s) if world_size > 1 else 0.0
