"""Bandwidths of collectives, by nccl-tests' conventions."""

from __future__ import annotations

from collections.abc import Callable

# What the busiest link of a flat ring carries, over size_bytes: nccl-tests, doc/PERFORMANCE.md and src/*.cu.
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    # nccl-tests uses 1 for any n; one rank moves nothing between ranks, and 0 keeps it out of charts as for the others.
    "broadcast": lambda n: 1.0 if n > 1 else 0.0,
    "reduce": lambda n: 1.0 if n > 1 else 0.0,
    "send_recv": lambda n: 1.0 if n > 1 else 0.0,
}


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
