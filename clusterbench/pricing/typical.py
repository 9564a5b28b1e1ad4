"""Rates of a machine that nobody ran anything on: datasheets, times what healthy machines reach of them.

No figure here was fitted to a training step. Intervals are wide where published figures differ, and where they depend
on software: what a host needs for an operator, and what collectives that wait for one another take.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from clusterbench.cluster import Accelerator, accelerators
from clusterbench.errors import SuiteError
from clusterbench.expectation import Expectation
from clusterbench.fingerprint import Fingerprint
from clusterbench.pricing.rates import CPU, RATES, KnownRates

OF_MATMUL = (0.60, 0.68, 0.76)
"""Of the dense bfloat16 peak, low, value and high: products of a training step, which are not the best of many shapes.

mamf-finder's best shape reaches 0.80 on an H100 and 0.87 on an A100 (ml-engineering, compute/accelerator/README.md);
the value is 0.85 of the lower.
"""

MEASURED_BEST: Mapping[str, float] = {
    "mi250x-gcd": 147.0e12,
    "mi300x": 668.4e12,
    "mi325x": 784.9e12,
    "mi355x": 1565.0e12,
}
"""Products per second of mamf-finder's best shape, where that is so far from the peak that no share of it would do.

ml-engineering, compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS comparison table", with ROCm 6.2 to 7.0.
"""

OF_MEASURED_BEST = (0.75, 0.85, 0.95)
"""Of that: what :data:`OF_MATMUL` is of an H100's 0.80."""

OF_ATTENTION: Mapping[int, tuple[float, float, float]] = {64: (0.20, 0.25, 0.45), 128: (0.28, 0.35, 0.58)}
"""Of the same peak, by head_dim: FlashAttention-2 with a causal mask, forward and backward, at 4k to 16k tokens.

H100 at the lower, A100 at the upper end: Dao 2023, arXiv:2307.08691, figures 4 and 7.
"""

OF_MEMORY = (0.60, 0.75, 0.90)
"""Of the datasheet's memory bandwidth: operators that read and write tensors of a step once."""

OF_LINK: Mapping[str, tuple[float, float, float]] = {
    "all_gather": (0.55, 0.70, 0.75),
    "reduce_scatter": (0.55, 0.70, 0.75),
    "all_reduce": (0.60, 0.85, 1.00),
    "all_to_all": (0.50, 0.65, 0.70),
}
"""Of the scale-up link, one direction: bus bandwidth of 256 MiB over 8 GPUs.

A100, H100, H200 and B200 with NCCL 2.27 and 2.29: ai-dynamo/aiconfigurator, systems/data, nccl_perf. An all-reduce with
in-switch reduction exceeds the others.
"""

OF_LINK_WITHOUT_SWITCH = (0.60, 0.72, 0.78)
"""The same of an all-reduce where no switch reduces: 215 GB/s of 8 A100. NVLink's switches do from Hopper on."""

_REDUCING_SWITCHES = ("h100", "h200", "gh200", "h800", "h20", "b200", "b300", "gb200", "gb300")

OF_NETWORK = (0.50, 0.80, 0.95)
"""Of a node's NICs: bus bandwidth over nodes, on a network of one's own. On a shared one it falls with the nodes."""

_TIMES: Mapping[str, tuple[tuple[float, float, float], str, str]] = {
    "operator_time": ((5e-6, 10e-6, 20e-6), "s", "eager PyTorch with autograd, by processor"),
    "half_size": (
        (0.5e6, 1.13e6, 2.5e6),
        "B",
        "all-gather of 16 and 256 MiB over 8 H100, 213 and 322 GB/s: aiconfigurator, nccl_perf",
    ),
    "collective_time": (
        (1.5e-6, 10e-6, 50e-6),
        "s",
        "at least 12 us of 8 GPUs for the smallest message (aiconfigurator, nccl_perf), at most what frameworks add",
    ),
    "pipeline_factor": ((1.0, 1.0, 4.0), "1", "not known without a run of tp and pp on two nodes"),
    "p2p_time": ((20e-6, 50e-6, 200e-6), "s", "a message over the network, with what frameworks add"),
    "step_time": ((10e-3, 50e-3, 100e-3), "s", "loader, logging and the launches of an optimizer"),
    "model_error": (
        (1.2, 1.2, 1.2),
        "1",
        "what the price of a step was off on the Playbook's sweep: docs/prediction.md",
    ),
}


_NICS = re.compile(r"([0-9]{1,3})x([0-9]{1,4})Gb")
_BITS = 8


def nics_bytes_per_s(text: str | None, said: str = "--nics") -> float | None:
    """``8x400Gb``: what all NICs of a node send, in bytes per second.

    Parameters
    ----------
    said
        Where it stands, for the message.

    Raises
    ------
    SuiteError
        If it is written in another way.

    Examples
    --------
    >>> nics_bytes_per_s("8x400Gb")
    400000000000.0
    """
    if text is None:
        return None
    match = _NICS.fullmatch(text)
    if match is None or not int(match[1]) * int(match[2]):
        raise SuiteError(
            f"{said} {text!r} is not of the form 8x400Gb: 1 to 999 NICs of a node, each of 1 to 9999 gigabits per "
            "second."
        )
    return int(match[1]) * int(match[2]) * 1e9 / _BITS


_PORTS = re.compile(r"([1-9][0-9]{0,2}) x ([1-9][0-9]{0,3}) Gb/s [A-Za-z]+")


def nics_of_ports(network: str) -> str | None:
    """The ports of a host as it describes them, in the words of an option; None where they differ or are not known.

    >>> nics_of_ports("8 x 400 Gb/s InfiniBand"), nics_of_ports("1 x Ethernet")
    ('8x400Gb', None)
    """
    match = _PORTS.fullmatch(network)
    return f"{match[1]}x{match[2]}Gb" if match else None


NO_FIGURE = 1.0
"""In the place of one that is not on record, where no rate that is left follows from it."""

_NEEDED_FOR: Mapping[str, tuple[str, ...]] = {
    "peak_flops_per_s.bfloat16": ("matmul", "attention"),
    "memory_bytes_per_s": ("memory",),
    "link_bytes_per_s": ("busbw",),
}
"""Which rates follow from a figure of a datasheet."""


def typical_rates(
    card: Accelerator,
    node_network: float | None,
    given: Collection[str] = (),
    dtypes: Sequence[str] = ("bfloat16",),
    gpus_per_node: int | None = None,
) -> KnownRates:
    """What is known of a GPU from its datasheet.

    Parameters
    ----------
    node_network
        Bytes per second of all NICs of a node; None where that is not known: it is then taken for a NIC of 400 Gb/s
        for each GPU, between a quarter and twice that.
    given
        Names of rates that a file will put in place of these, of which the datasheet need say nothing.
    dtypes
        Of products: the first that the card multiplies.
    gpus_per_node
        Which share the NICs of a node; by default as many as its usual server has.

    Raises
    ------
    SuiteError
        If the datasheet on record lacks a figure that a rate follows from which is not given.
    """
    peaks = (card.peak_flops_per_s.get(dtype) for dtype in dtypes)
    peak = _figure(card, "peak_flops_per_s.bfloat16", next(filter(None, peaks), None), given)
    memory = _figure(card, "memory_bytes_per_s", card.memory_bytes_per_s, given)
    sheet = card.source
    of_node = gpus_per_node or card.usual_gpus_per_node
    whole = of_node * 50e9 if node_network is None else node_network
    # a GPU that is alone in its node sends nothing over a link of cards
    link = whole if of_node == 1 else _figure(card, "link_bytes_per_s", card.link_bytes_per_s, given)
    over_nodes = whole if link == NO_FIGURE else min(whole, link)
    of_nics = OF_NETWORK if node_network is not None else (OF_NETWORK[0] / 4, OF_NETWORK[1], 2 * OF_NETWORK[2])
    nics = "NICs as said" if node_network is not None else f"no NICs said: {of_node} x 400 Gb/s taken"
    by_key = {"matmul": _share(OF_MATMUL, peak, "FLOP/s", sheet)}
    if (best := MEASURED_BEST.get(card.name)) is not None:
        by_key["matmul"] = _share(OF_MEASURED_BEST, best, "FLOP/s", "mamf-finder's best shape, ml-engineering")
    for head_dim, share in OF_ATTENTION.items():
        by_key[f"attention[head_dim={head_dim}]"] = _share(share, peak, "FLOP/s", sheet)
    by_key["memory"] = _share(OF_MEMORY, memory, "B/s", sheet)
    reduces = card.name.split("-")[0] in _REDUCING_SWITCHES
    for op, of_link in OF_LINK.items():
        share = OF_LINK_WITHOUT_SWITCH if op == "all_reduce" and not reduces else of_link
        by_key[f"busbw[nodes=1,op={op}]"] = _share(share, link, "B/s", sheet)
        by_key[f"busbw[nodes=2,op={op}]"] = _share(of_nics, over_nodes, "B/s", nics)
    by_key["node_network"] = _share(of_nics, whole, "B/s", nics)
    # a message from stage to stage goes over the NIC of one GPU
    by_key["p2p_bandwidth"] = _share(of_nics, whole / of_node, "B/s", nics)
    for name, (interval, unit, source) in _TIMES.items():
        low, value, high = interval
        by_key[name] = Expectation(value, unit, low, high, "typical", source)
    figures = {"matmul": peak, "attention": peak, "memory": memory}
    return KnownRates(
        by_key,
        f"datasheet of {card.name} x typical",
        machine=Fingerprint(gpu=card.name),
        of_datasheet={name: figure for name, figure in figures.items() if figure != NO_FIGURE},
    )


_OF_A_CPU: Mapping[str, tuple[float, float, float]] = {
    "matmul": (5e9, 50e9, 500e9),
    "attention[head_dim=64]": (2e9, 20e9, 200e9),
    "memory": (2e9, 10e9, 40e9),
    "operator_time": (5e-6, 20e-6, 120e-6),
    "half_size": (4e3, 32e3, 256e3),
    "collective_time": (5e-6, 40e-6, 300e-6),
    "busbw[nodes=1,op=all_gather]": (2e8, 2e9, 2e10),
    "busbw[nodes=2,op=all_gather]": (5e7, 5e8, 1e10),
    "node_network": (1e8, 1e9, 2e10),
    "p2p_time": (2e-5, 2e-4, 2e-3),
    "p2p_bandwidth": (2e8, 2e9, 2e10),
    "step_time": (1e-4, 1e-3, 1e-2),
}
"""Of a rank on a few cores that talks over Gloo. No datasheet tells: these are orders of magnitude, to begin with."""


def typical_cpu_rates() -> KnownRates:
    """What is known of CPU ranks before any of them ran: next to nothing, so that calibration decides."""
    by_key = {
        key: Expectation(value, RATES[key.split("[")[0]][0], low, high, "typical", "an order of magnitude")
        for key, (low, value, high) in _OF_A_CPU.items()
    }
    for name in ("pipeline_factor", "model_error"):
        (low, value, high), unit, source = _TIMES[name]
        by_key[name] = Expectation(value, unit, low, high, "typical", source)
    return KnownRates(by_key, "orders of magnitude of CPU ranks")


def typical_of(
    card: str,
    node_network: float | None = None,
    given: Collection[str] = (),
    dtypes: Sequence[str] = ("bfloat16",),
    gpus_per_node: int | None = None,
) -> KnownRates:
    """Those of a card of the tables by its name there, or of CPU ranks."""
    if card == CPU:
        return typical_cpu_rates()
    return typical_rates(accelerators()[card], node_network, given, dtypes, gpus_per_node)


def _figure(card: Accelerator, name: str, figure: float | None, given: Collection[str]) -> float:
    if figure is not None:
        return figure
    if wanted := [rate for rate in _NEEDED_FOR[name] if rate not in given]:
        raise SuiteError(
            f"nothing can be priced on {card.name}: its datasheet on record has no {name}.\n"
            f"hint: give {' and '.join(wanted)} with --rates FILE"
        )
    return NO_FIGURE


def _share(interval: tuple[float, float, float], whole: float, unit: str, source: str) -> Expectation:
    low, value, high = (share * whole for share in interval)
    return Expectation(value, unit, low, high, "datasheet", f"{source}, x {interval[1]:g}")
