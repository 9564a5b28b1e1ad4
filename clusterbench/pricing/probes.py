"""Rates from what was measured alone: products, copies, launches, collectives and messages by size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from clusterbench.expectation import Expectation
from clusterbench.formulas.collectives import BUS_FACTOR
from clusterbench.pricing.rates import OPS, PROBED_BYTES, RATES, KnownRates
from clusterbench.types import split_key
from clusterbench.words import few

OF_BEST_PRODUCT = (0.75, 0.85, 0.95)
"""Of the best square's rate: products of a step, low, value and high, as in :mod:`clusterbench.pricing.typical`."""

OF_COPY = (0.67, 0.83)
"""Of what a copy of gigabytes reaches: operators of a step, low and value. Caches may serve more than a copy shows."""

FEWEST_SIZES = 3
"""From which on time is fitted as that of no bytes and of each byte."""

LEAST_SPREAD = 1.02
"""No probe is surer than this factor: another day is another figure."""

_MEANT = {
    "matmul": "flops_per_s_per_rank",
    "device_copy": "bandwidth_per_rank",
    "cpu_memory": "bandwidth_per_rank",
    "kernel_launch": "launch_time operator_overhead",
    **dict.fromkeys((*OPS, "send_recv"), "latency"),
}


@dataclass(frozen=True)
class Probe:
    """One figure of one case: median, 5th and 95th percentile of its iterations, in base units.

    Attributes
    ----------
    size_bytes
        Of the whole array of a collective or a message; 0 where there is none.
    """

    benchmark: str
    case: str
    dtype: str
    num_nodes: int
    world_size: int
    size_bytes: float
    value: float
    low: float
    high: float


def is_probe(benchmark: str, metric: str) -> bool:
    """Whether rates follow from a figure."""
    return metric in _MEANT.get(benchmark, "").split()


def probed_rates(probes: Sequence[Probe], known: KnownRates, dtype: str, run: str) -> dict[str, Expectation]:
    """The rates that follow from probes; ``known`` is what was believed before.

    Parameters
    ----------
    dtype
        In which the steps multiply: products in others say nothing of them.
    run
        Where they were measured, in words.

    What a step adds to a launch and to a collective is not seen by a probe: of ``operator_time`` and
    ``collective_time`` it gives the lower end, and the fit to steps the rest.
    """
    found: dict[str, Expectation] = {}
    products = _of_most_ranks([each for each in probes if each.benchmark == "matmul" and each.dtype == dtype])
    if products:
        low, value, high = _products(products)
        found["matmul"] = _rate("matmul", value, low, high, f"products of {len(products)} shapes", run)
    copies = _of_most_ranks([each for each in probes if each.benchmark in ("device_copy", "cpu_memory")])
    if copies:
        copy = max(each.value for each in copies)
        low, value, most = OF_COPY[0] * copy, OF_COPY[1] * copy, known.by_key["memory"].high
        found["memory"] = _rate("memory", value, low, max(copy, most), "a copy", run)
    found |= _collectives([each for each in probes if each.benchmark in OPS], known, run)
    found |= _messages([each for each in probes if each.benchmark == "send_recv"], known, run)
    launches = [each.value for each in probes if each.benchmark == "kernel_launch"]
    if launches:
        found["operator_time"] = _from_below("operator_time", min(launches), known, "launches", run)
    return found


def _of_most_ranks(probes: Sequence[Probe]) -> list[Probe]:
    """Those of one node, all of its ranks at once: as in a step."""
    on_one = [each for each in probes if each.num_nodes == 1]
    most = max((each.world_size for each in on_one), default=0)
    return [each for each in on_one if each.world_size == most]


def _products(products: Sequence[Probe]) -> tuple[float, float, float]:
    best = max(each.value for each in products)
    slowest = min(each.value for each in products)
    low, value, high = (share * best for share in OF_BEST_PRODUCT)
    return min(low, slowest), value, max(high, *(min(each.high, 2 * best) for each in products))


def _rate(key: str, value: float, low: float, high: float, what: str, run: str) -> Expectation:
    unit = RATES[split_key(key)[0]][0]
    low, high = min(low, value / LEAST_SPREAD), max(high, value * LEAST_SPREAD)
    return Expectation(value, unit, low, high, "calibrated", f"{what}, {run}")


def _from_below(name: str, least: float, known: KnownRates, what: str, run: str) -> Expectation:
    before = known.by_key[name]
    return _rate(name, max(before.value, least), least, max(before.high, 4 * least), f"at least {what}", run)


# Collectives and messages


@dataclass(frozen=True)
class _Line:
    """Seconds by size: ``start_s`` and ``per_byte_s``; ``spread`` is the factor within which times lie of it."""

    start_s: float
    per_byte_s: float
    spread: float


def _line(probes: Sequence[Probe]) -> _Line | None:
    """By least squares of relative distances; None of too few sizes, or where time does not grow with them."""
    points = [(each.size_bytes, each.value) for each in probes]
    if len({size for size, _ in points}) < FEWEST_SIZES:
        return None
    # minimise the sum of (start / t + size per_byte / t - 1)^2
    ones = [(1 / time_s, size / time_s) for size, time_s in points]
    aa, ab, bb = (sum(one[i] * one[j] for one in ones) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(one[i] for one in ones) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant <= 0:
        return None
    start_s, per_byte_s = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if start_s <= 0 or per_byte_s <= 0:
        return None
    off = max(abs(math.log((start_s + size * per_byte_s) / time_s)) for size, time_s in points)
    return _Line(start_s, per_byte_s, max(LEAST_SPREAD, math.exp(off)))


def _by_op(probes: Sequence[Probe]) -> Iterator[tuple[str, int, list[Probe]]]:
    """Each operation on each number of nodes, of all ranks there."""
    for op, nodes in dict.fromkeys((each.benchmark, each.num_nodes) for each in probes):
        of = [each for each in probes if (each.benchmark, each.num_nodes) == (op, nodes)]
        most = max(each.world_size for each in of)
        yield op, nodes, sorted((each for each in of if each.world_size == most), key=lambda each: each.size_bytes)


def _collectives(probes: Sequence[Probe], known: KnownRates, run: str) -> dict[str, Expectation]:
    """Bandwidth at :data:`~clusterbench.pricing.rates.PROBED_BYTES` by the line; the chain from the smallest."""
    found: dict[str, Expectation] = {}
    halves: list[float] = []
    floors: list[float] = []
    for op, nodes, of in _by_op(probes):
        ranks, line = of[0].world_size, _line(of)
        floors.append(of[0].value / ranks)
        key = f"busbw[nodes={nodes},op={op}]"
        if line is not None:
            seconds = line.start_s + line.per_byte_s * PROBED_BYTES
            value = PROBED_BYTES * BUS_FACTOR[op](ranks) / seconds
            halves.append(line.start_s / line.per_byte_s / ranks)
            # beyond the largest message the line is not held against anything
            beyond = max(1.0, PROBED_BYTES / of[-1].size_bytes) ** 0.25
            off = line.spread * beyond
            found[key] = _rate(key, value, value / off, value * off, f"{op} by size", run)
    if found:
        others = {key: rate for key, rate in known.by_key.items() if split_key(key)[0] == "busbw" and key not in found}
        found = others | found
        middle = geometric_mean(halves)
        found["half_size"] = _rate("half_size", middle, min(halves), max(halves), "collectives by size", run)
    if floors:
        found["collective_time"] = _from_below("collective_time", min(floors), known, "the smallest collective", run)
    return found


def _messages(probes: Sequence[Probe], known: KnownRates, run: str) -> dict[str, Expectation]:
    """Of most nodes: those of stages that are on several. On one node stages are nearer, and others may be slower."""
    nodes = max((each.num_nodes for each in probes), default=0)
    line = _line([each for each in probes if each.num_nodes == nodes])
    if line is None:
        return {}
    start, bandwidth, off = line.start_s, 1 / line.per_byte_s, line.spread
    slowest, latest = (known.by_key[name] for name in ("p2p_bandwidth", "p2p_time"))
    low = bandwidth / off if nodes > 1 else min(slowest.low, bandwidth / off)
    high = start * off if nodes > 1 else max(latest.high, start * off)
    what = f"send_recv on {nodes} nodes" if nodes > 1 else "send_recv within a node"
    return {
        "p2p_time": _rate("p2p_time", start, start / off, high, what, run),
        "p2p_bandwidth": _rate("p2p_bandwidth", bandwidth, low, bandwidth * off, what, run),
    }


def probe_lines(before: KnownRates, known: KnownRates) -> Iterator[str]:
    """What probes said that was believed more than what was known before, by name, in words."""
    new = [key for key, rate in known.by_key.items() if rate is not before.by_key.get(key)]
    if new:
        yield f"from probes: {few(list(dict.fromkeys(split_key(key)[0] for key in new)), 12)}"
