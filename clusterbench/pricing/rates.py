"""How fast a machine does what a step asks of it: one figure for each kind of work, with where it comes from."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from clusterbench.errors import nearest
from clusterbench.expectation import Expectation
from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.formulas.collectives import traffic_bytes
from clusterbench.types import split_key

RATES: Mapping[str, tuple[str, str]] = {
    "matmul": ("FLOP/s", "products of matrices, sustained, of a rank"),
    "attention": ("FLOP/s", "fused causal attention, forward and backward together, of a rank; by head_dim"),
    "memory": ("B/s", "what operators bound by memory read and write, of a rank"),
    "operator_time": ("s", "what the host needs to launch an operator"),
    "half_size": ("B", "for each rank of a group: the message with which half of the bus bandwidth is reached"),
    "collective_time": ("s", "from one collective to the next that waits for it, for each rank of their group"),
    "pipeline_factor": ("1", "by how much collective_time is longer where a pipeline spans nodes"),
    "busbw": ("B/s", "bus bandwidth of 256 MiB, all ranks of so many nodes in one group; by nodes and op"),
    "node_network": ("B/s", "what a node can send at most over all of its NICs"),
    "p2p_time": ("s", "what a message from stage to stage takes beside its bytes"),
    "p2p_bandwidth": ("B/s", "of a message from stage to stage"),
    "step_time": ("s", "of any step beside its work"),
    "model_error": ("1", "the factor within which 80 % of measured steps lie of a price with the right rates"),
}
"""Every rate by name: its unit and what it is."""

PROBED_BYTES = 2**28
"""The message whose bus bandwidth is on record."""

LEAST: Mapping[str, float] = {"pipeline_factor": 1.0, "model_error": 1.0}
"""What a rate is at least, whatever was measured or written."""

_BY = {"attention": ("head_dim",), "busbw": ("nodes", "op")}
"""What tells rates of one name apart."""

_EXAMPLES = {"attention": "attention[head_dim=128]", "busbw": "busbw[nodes=2,op=all_gather]"}

CPU = "cpu"
"""What stands for the card where ranks compute on a CPU."""

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Operations whose bus bandwidth is asked for; one that is not known is taken for the first that is, in this order."""


@dataclass(frozen=True)
class Rates:
    """The figures alone, in base units: see :data:`RATES`.

    ``attention`` is by head_dim, ``busbw`` by operation and nodes, both ascending.
    """

    matmul: float
    attention: Mapping[int, float]
    memory: float
    operator_time: float
    half_size: float
    collective_time: float
    pipeline_factor: float
    busbw: Mapping[str, Mapping[int, float]]
    node_network: float
    p2p_time: float
    p2p_bandwidth: float
    step_time: float
    model_error: float

    def attention_at(self, head_dim: int) -> float:
        """Of the largest head size on record that is no larger, or of the smallest."""
        return _at(self.attention, head_dim)

    def collective_s(self, op: str, size_bytes: float, ranks: int, nodes: int, sharing: int) -> float:
        """Seconds of one collective: its bytes, and as many more as half of the bandwidth is reached with.

        Those grow with the ranks of a group, as a ring has a step for each. The bus bandwidth on record is that of
        :data:`PROBED_BYTES` among all ranks of the nodes it was probed on, which may be fewer than the group reaches.
        """
        if ranks == 1:
            return 0.0
        half = self.half_size * ranks
        probed_ranks = ranks if nodes == 1 else ranks / nodes * sharing * self._probed_nodes(op, nodes)
        bandwidth = self.busbw_of(op, nodes, sharing) * (1 + self.half_size * probed_ranks / PROBED_BYTES)
        return traffic_bytes(op, size_bytes + half, ranks) / bandwidth

    def busbw_of(self, op: str, nodes: int, sharing: int) -> float:
        """Bus bandwidth of one of several groups that use the network of a node at the same time.

        The network of a node, shared, is in series with what a ring over that many nodes loses to everything else:
        1/B = 1/B(nodes) - 1/N + sharing/N. Of fewer nodes than are on record those of the next larger number count, of
        more those of the largest.
        """
        key = op, nodes, sharing
        if key not in self._busbw_of:
            self._busbw_of[key] = self._busbw(op, nodes, sharing)
        return self._busbw_of[key]

    @cached_property
    def _busbw_of(self) -> dict[tuple[str, int, int], float]:
        """What was asked for before: of 20,000 layouts the same few."""
        return {}

    def _busbw(self, op: str, nodes: int, sharing: int) -> float:
        alone = self._of_nodes(op)[self._probed_nodes(op, nodes)]
        if nodes == 1 or sharing == 1:
            return alone
        return 1 / (1 / alone + (sharing - 1) / self.node_network)

    def _of_nodes(self, op: str) -> Mapping[int, float]:
        return next(self.busbw[known] for known in (op, *OPS) if known in self.busbw)

    def _probed_nodes(self, op: str, nodes: int) -> int:
        """The number of nodes on record that counts for so many."""
        of_nodes = self._of_nodes(op)
        return next((known for known in of_nodes if known >= nodes), max(of_nodes))


def _at(by_size: Mapping[int, float], size: int) -> float:
    sizes = list(by_size)
    return by_size[sizes[max(0, bisect_right(sizes, size) - 1)]]


@dataclass(frozen=True)
class KnownRates:
    """What is known of a machine's rates: each with its interval and its origin.

    Attributes
    ----------
    by_key
        ``memory``, ``attention[head_dim=128]``, ``busbw[nodes=2,op=all_gather]``.
    name
        What they were learned of, in words.
    profile
        The framework whose steps some were fitted to; empty where they say nothing of one.
    machine
        Of which they are known.
    of_datasheet
        By name what the card's datasheet says at most; nothing of names without a figure there.

    Raises
    ------
    ValueError
        If a rate is missing, not known, or in another unit.
    """

    by_key: Mapping[str, Expectation]
    name: str = ""
    profile: str = ""
    machine: Fingerprint = UNKNOWN
    of_datasheet: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, rate in self.by_key.items():
            if (why := objection_to_key(key)) is not None:
                raise ValueError(why)
            if rate.unit != (unit := RATES[split_key(key)[0]][0]):
                raise ValueError(f"{key} is in {rate.unit}, not in {unit}.")
        there = {split_key(key)[0] for key in self.by_key}
        if missing := [name for name in RATES if name not in there]:
            raise ValueError(f"no rate '{missing[0]}': {RATES[missing[0]][1]}.")

    @cached_property
    def rates(self) -> Rates:
        """The figures alone."""
        return _figures({key: rate.value for key, rate in self.by_key.items()})

    @cached_property
    def ends(self) -> Mapping[str, tuple[Rates, Rates]]:
        """By name the rates with that one at the lower and at the upper end of its interval, for each that has one.

        Those of one name are moved together, as what makes one of them wrong makes the others wrong, too.
        """
        return dict(self._ends())

    def _ends(self) -> Iterator[tuple[str, tuple[Rates, Rates]]]:
        for name in RATES:
            of_name = {key: rate for key, rate in self.by_key.items() if split_key(key)[0] == name}
            if name != "model_error" and any(rate.low < rate.high for rate in of_name.values()):
                others = {key: rate.value for key, rate in self.by_key.items()}
                lower = others | {key: rate.low for key, rate in of_name.items()}
                yield name, (_figures(lower), _figures(others | {key: rate.high for key, rate in of_name.items()}))

    def but(self, others: Mapping[str, Expectation], name: str = "", profile: str = "") -> KnownRates:
        """The same with other expectations of some; one given for a name alone stands for all of that name.

        Where what is there is believed more (:data:`~clusterbench.expectation.ORIGINS`), it stays.
        """
        believed = {key: rate for key, rate in others.items() if rate.belief <= self._belief(split_key(key)[0])}
        names = {split_key(key)[0] for key in believed}
        kept = {key: rate for key, rate in self.by_key.items() if split_key(key)[0] not in names}
        return replace(self, by_key=kept | believed, name=name or self.name, profile=profile or self.profile)

    def _belief(self, name: str) -> int:
        """Of what is least believed of a name."""
        return max(rate.belief for key, rate in self.by_key.items() if split_key(key)[0] == name)

    @property
    def by_origin(self) -> dict[str, list[str]]:
        """The names of rates, each once, by where they come from."""
        found: dict[str, dict[str, None]] = {}
        for key, rate in self.by_key.items():
            found.setdefault(rate.origin, {})[split_key(key)[0]] = None
        return {origin: list(names) for origin, names in found.items()}

    @property
    def words_by_origin(self) -> dict[str, list[str]]:
        """The same for people: of a name with several origins its keys, as ``busbw`` within a node and between."""
        origins = Counter(name for names in self.by_origin.values() for name in names)
        found: dict[str, dict[str, None]] = {}
        for key, rate in self.by_key.items():
            name = split_key(key)[0]
            found.setdefault(rate.origin, {})[name if origins[name] == 1 else key] = None
        return {origin: list(words) for origin, words in found.items()}


def rates_with(known: KnownRates, factors: Mapping[str, float]) -> Rates:
    """The rates with all of some names multiplied."""
    return _figures({key: rate.value * factors.get(split_key(key)[0], 1.0) for key, rate in known.by_key.items()})


def objection_to_key(key: str) -> str | None:
    """Why there is no rate of this key, and what there is; None where there may be one."""
    name, detail = split_key(key)
    if name not in RATES:
        return f"no rate '{name}'.{nearest(name, RATES)}\nRates: {', '.join(RATES)}."
    by = _BY.get(name, ())
    if set(detail) != set(by):
        return f"'{key}' is written '{_EXAMPLES.get(name, name)}'."
    if "op" in detail and detail["op"] not in OPS:
        return f"'{key}': op is one of {', '.join(OPS)}."
    if any(not number.isdigit() or int(number) < 1 for part, number in detail.items() if part != "op"):
        return f"'{key}': head_dim and nodes are whole numbers of 1 or more."
    return None


def _figures(values: Mapping[str, float]) -> Rates:
    attention: dict[int, float] = {}
    busbw: dict[str, dict[int, float]] = {}
    plain: dict[str, float] = {}
    for key, value in values.items():
        name, detail = split_key(key)
        if name == "attention":
            attention[int(detail["head_dim"])] = value
        elif name == "busbw":
            busbw.setdefault(detail["op"], {})[int(detail["nodes"])] = value
        else:
            plain[name] = value
    sorted_busbw = {op: dict(sorted(of_nodes.items())) for op, of_nodes in busbw.items()}
    return Rates(attention=dict(sorted(attention.items())), busbw=sorted_busbw, **plain)
