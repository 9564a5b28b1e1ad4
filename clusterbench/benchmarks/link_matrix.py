"""Every pair of nodes, of ranks, or of ranks of a rail: latency, and bandwidth forth, back, and both ways at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import WrongResult
from clusterbench.formulas.pairing import Pair, Round, num_links, rounds_in_rails, rounds_of
from clusterbench.formulas.slow_pairs import attribute, second_pass
from clusterbench.formulas.statistics import median, summarise
from clusterbench.options import option
from clusterbench.types import (
    SAMPLES,
    Case,
    Expected,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    metric_key,
)
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.clock import Clock
    from clusterbench.engine.rig import Rig

_KINDS = ("latency", "forth", "back", "both")
"""What is measured of a pair (a, b), a below b: half a round trip, a to b, b to a, and both at once."""

_WORD_BYTES = 8
_PATTERN = 251  # a prime: no block of a message looks like another that is a power of two away

Samples = Mapping[Pair, Mapping[str, Sequence[float]]]
"""Seconds of each repetition, by pair and kind; the same on every rank."""


@dataclass(frozen=True, kw_only=True)
class LinkMatrix(Benchmark):
    """How fast each pair of nodes (or of ranks, or of ranks of one rail) sends to each other, pair by pair.

    Rounds of disjoint pairs are measured at once, so no unit is in two measurements at a time. Up to 16 units all pairs
    are measured; beyond, the two halves against each other and some random partners of each, and ``links_covered`` says
    how many links that were. A unit that looks slow is measured again with partners that proved good.

    Bandwidth one way is a window of messages over the time until their receiver has answered with 8 bytes, as in OSU's
    micro-benchmarks. Both ways it is the sum of both directions. Latency is half the round trip of 8 bytes. Messages
    are torch's isend and irecv in one batch: NCCL between GPUs, Gloo otherwise. Where several ranks of a node send at
    once (``ranks_per_node: all``), the bytes are all of theirs and the time that of the slowest. ``between: rails``
    pairs each rank with those of the same place in other nodes, one rail after the other and alone: a network card that
    is slow shows as a rank, and a switch of a rail as that rail.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("traversal_time", "s", "lower", "every pair exchanging one message, round after round"),
        MetricKind("pair_latency", "s", "lower", "half the round trip of 8 bytes"),
        MetricKind("pair_bandwidth", "B/s", "higher", "from source to part alone"),
        MetricKind("pair_bandwidth_both", "B/s", "higher", "both directions at once, summed"),
        MetricKind("proven_bandwidth", "B/s", "higher", "of a suspect in the second pass, from source to part"),
        MetricKind("median_bandwidth", "B/s", "higher", "median of pair_bandwidth over all pairs"),
        MetricKind("median_latency", "s", "lower", "median of pair_latency over all pairs"),
        MetricKind("links_covered", "1", "higher", "links that were measured, in both directions", exact=True),
        MetricKind("links_total", "1", "neither", "links that there are: n(n-1)/2, in each rail"),
    )
    predicts: ClassVar[tuple[str, ...]] = ("links_total", "median_bandwidth")

    between: str = option(
        "nodes", "what is paired: whole nodes, single ranks, or ranks of one rail", choices=("nodes", "ranks", "rails")
    )
    ranks_per_node: str = option(
        "first", "ranks of a node that send at once: its first alone, or each with its like", choices=("first", "all")
    )
    size: int = option(2**22, "one message", unit="B", minimum=_WORD_BYTES, maximum=2**34)
    window: int = option(8, "messages under way at once", minimum=1, maximum=1024)
    pair_iterations: int = option(10, "timed repetitions of each figure of a pair", minimum=1, maximum=10_000)
    pair_warmup: int = option(2, "repetitions before them, not timed", minimum=0, maximum=10_000)
    partners: int = option(8, "random partners of each, where there are more than 16", minimum=1, maximum=1000)
    seed: int = option(0, "which partners those are", minimum=0, maximum=2**31)
    iterations: int = option(5, "timed traversals of all pairs", minimum=1, maximum=1_000_000)
    warmup: int = option(1, "traversals before them, not timed", minimum=0, maximum=1_000_000)

    def points(self, place: Place) -> Iterable[Point]:
        ranks_per_node = place.cluster.ranks_per_node
        yield {
            "size_bytes": self.size,
            "window": self.window,
            "between": self.between,
            "ranks_per_node": self.ranks_per_node if self.between == "nodes" else "first",
            "num_units": place.num_nodes if self.between == "nodes" else place.world_size,
            "ranks_in_node": ranks_per_node,
            "pair_iterations": self.pair_iterations,
            "pair_warmup": self.pair_warmup,
            "partners": self.partners,
            "seed": self.seed,
        }

    def label(self, point: Point) -> str:
        paired = str(point["between"]) + ("-all" if point["ranks_per_node"] == "all" else "")
        return f"{paired}-{format_bytes(point['size_bytes'])}x{point['window']}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["between"] == "rails" and place.num_nodes == 1:
            return "rails are between nodes, but there is one; 'between: ranks' measures inside it"
        if point["num_units"] < 2:
            advice = "; 'between: ranks' measures inside a node" if place.world_size > 1 else ""
            return f"a link matrix between {point['between']} needs two of them, but there is one{advice}"
        if point["size_bytes"] % _WORD_BYTES:
            return f"a message of {point['size_bytes']} B is no whole number of {_WORD_BYTES} B words"
        return None

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if self.between != "nodes" and "ranks_per_node" in keys:
            yield "ranks_per_node", f"between {self.between} each pair is two ranks"

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        formula = "n(n-1)/2 links between n units"
        if point["between"] == "rails":
            formula = "n(n-1)/2 links between n nodes, times the ranks of a node"
        expected = {"links_total": Expected(_links_total(point), "1", formula)}
        gpu = place.cluster.accelerator
        if point["between"] == "ranks" and place.num_nodes == 1 and gpu and gpu.link_bytes_per_s:
            basis = f"one direction of the GPU's links, an upper bound: {gpu.source}"
            expected["median_bandwidth"] = Expected(gpu.link_bytes_per_s, "B/s", basis, is_upper_bound=True)
        return expected

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        """Bytes of one rank in the traversal and in the pass: a window forth, back and both ways, some once more.

        Of ranks in rails those of all rails, which wait for each other.
        """
        repetitions = int(point["pair_iterations"]) + int(point["pair_warmup"]) + 1  # which is compared
        return int(point["size_bytes"]) * (1 + 4 * int(point["window"]) * repetitions) * len(_schedule(point))

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        wire = _Wire(rig, point)
        rounds = _schedule(point)

        def check() -> Mapping[str, float]:
            evidence = wire.prove(rounds)
            wire.rest()
            return evidence

        def confirm(is_first: bool) -> Mapping[str, float]:
            if not is_first:
                return {}
            wire.look_at_the_last(rounds)
            return wire.prove(rounds)

        def run() -> None:
            for pairs in rounds:
                wire.meet(pairs, wire.swap)

        def samples() -> dict[str, list[float]]:
            first = wire.measured(rounds)
            rates = {cell: median(of_cell) for cell, of_cell in _rates(first, point).items()}
            rails = _rails(point)
            faults = attribute(rates, host_of=_hosts(point), rail_of=rails)
            again = wire.measured(second_pass(faults, rates, rail_of=rails))
            wire.expect_right()
            return wire.figures_from_here(_figures(first, again, point))

        return Step(run=run, check=check, passes={SAMPLES: samples}, confirm=confirm)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("traversal_time", "s", time.value, time.low, time.high, time.n)
        pairs = list(cls.sampled(observation))
        for name in ("latency", "bandwidth"):
            values = [metric.value for metric in pairs if metric.name == f"pair_{name}" and metric.value is not None]
            if values:
                over = summarise(values)
                unit = "s" if name == "latency" else "B/s"
                yield Metric(f"median_{name}", unit, over.value, over.low, over.high, over.n)
        covered = {frozenset(metric.detail.values()) for metric in pairs if metric.name == "pair_bandwidth"}
        yield Metric("links_covered", "1", len(covered))
        yield Metric("links_total", "1", _links_total(case.point))
        for metric in pairs:
            names = {key: _name(int(unit), case.point, observation.hosts) for key, unit in metric.detail.items()}
            yield metric._replace(detail=names)


def _schedule(point: Point) -> list[Round]:
    partners, seed = int(point["partners"]), int(point["seed"])
    if point["between"] == "rails":
        rails = int(point["ranks_in_node"])
        return rounds_in_rails(int(point["num_units"]) // rails, rails, partners, seed)
    return rounds_of(int(point["num_units"]), partners, seed)


def _links_total(point: Point) -> int:
    if point["between"] == "rails":
        rails = int(point["ranks_in_node"])
        return num_links(int(point["num_units"]) // rails) * rails
    return num_links(int(point["num_units"]))


def _rails(point: Point) -> Mapping[int, int] | None:
    """The rail of each rank, where ranks are paired in rails."""
    if point["between"] != "rails":
        return None
    return {rank: rank % int(point["ranks_in_node"]) for rank in range(int(point["num_units"]))}


def _hosts(point: Point) -> Mapping[int, int] | None:
    """The node of each rank, where ranks are paired; between nodes each is its own."""
    if point["between"] == "nodes":
        return None
    return {rank: rank // int(point["ranks_in_node"]) for rank in range(int(point["num_units"]))}


def _name(unit: int, point: Point, hosts: Sequence[str]) -> str:
    """A node by its host, ``cb2``; a rank by its host and its own number, ``cb2:5``."""
    ranks_per_node = int(point["ranks_in_node"])
    node = unit if point["between"] == "nodes" else unit // ranks_per_node
    num_nodes = (
        int(point["num_units"]) if point["between"] == "nodes" else -(-int(point["num_units"]) // ranks_per_node)
    )
    host = hosts[node] if len(hosts) == num_nodes else f"node {node}"
    return host if point["between"] == "nodes" else f"{host}:{unit}"


def _bytes_each_way(point: Point) -> int:
    senders = int(point["ranks_in_node"]) if point["ranks_per_node"] == "all" else 1
    return int(point["size_bytes"]) * int(point["window"]) * senders


def _rates(samples: Samples, point: Point) -> dict[Pair, list[float]]:
    """Bytes per second of each (from, to), one way."""
    moved = _bytes_each_way(point)
    rates: dict[Pair, list[float]] = {}
    for (a, b), seconds in samples.items():
        rates[a, b] = [moved / second for second in seconds["forth"]]
        rates[b, a] = [moved / second for second in seconds["back"]]
    return rates


def _figures(first: Samples, again: Samples, point: Point) -> dict[Pair, dict[str, list[float]]]:
    """Figures of both passes, by (from, to) and the metric's key."""
    figures: dict[Pair, dict[str, list[float]]] = {}
    for name, samples in (("pair_bandwidth", first), ("proven_bandwidth", again)):
        for cell, rates in _rates(samples, point).items():
            figures.setdefault(cell, {})[_key(name, cell)] = rates
    for pair, seconds in first.items():
        figures[pair][_key("pair_latency", pair)] = [second / 2 for second in seconds["latency"]]
        rates_both_ways = [2 * _bytes_each_way(point) / second for second in seconds["both"]]
        figures[pair][_key("pair_bandwidth_both", pair)] = rates_both_ways
    return figures


def _key(name: str, cell: Pair) -> str:
    return metric_key(name, source=str(cell[0]), part=str(cell[1]))


class _Wire:
    """One rank's end of every link, and what can be done over it."""

    def __init__(self, rig: Rig, point: Point) -> None:
        import torch

        from clusterbench.engine.clock import clock_for

        self.rig, self.point = rig, point
        self.clock: Clock = clock_for(rig.device)
        ranks_per_node, window = int(point["ranks_in_node"]), int(point["window"])
        is_of_nodes = point["between"] == "nodes"
        self.unit = rig.rank // ranks_per_node if is_of_nodes else rig.rank
        self.local = rig.rank % ranks_per_node if is_of_nodes else 0
        self.stride = ranks_per_node if is_of_nodes else 1  # from a unit to the next, in ranks
        self.takes_part = self.local == 0 or point["ranks_per_node"] == "all"
        words = int(point["size_bytes"]) // _WORD_BYTES
        self.sent = torch.empty(words, dtype=torch.int64, device=rig.device)
        self.received = torch.empty(window, words, dtype=torch.int64, device=rig.device)
        self.word = torch.zeros(1, dtype=torch.int64, device=rig.device)
        self.wrong: list[WrongResult] = []

    def meet(self, pairs: Round, exchange: Callable[[int, bool], object]) -> None:
        """Does ``exchange(peer, is first)`` with the partner this rank has in a round, if it has one."""
        for a, b in pairs if self.takes_part else ():
            if self.unit in (a, b):
                exchange((b if self.unit == a else a) * self.stride + self.local, self.unit == a)

    # What two ranks do. The first is the one of the lower unit.

    def swap(self, peer: int, is_first: bool) -> None:
        """One message each way."""
        transfer([self.sent], [self.received[0]], peer)

    def latency(self, peer: int, is_first: bool) -> None:
        """A round trip of one word."""
        for is_sender in (is_first, not is_first):
            transfer([self.word] if is_sender else [], [] if is_sender else [self.word], peer)

    def forth(self, peer: int, is_sender: bool) -> None:
        """A window of messages, and one word back when all have arrived."""
        messages = [self.sent] * len(self.received)
        transfer(messages if is_sender else [], [] if is_sender else list(self.received), peer)
        transfer([] if is_sender else [self.word], [self.word] if is_sender else [], peer)

    def back(self, peer: int, is_first: bool) -> None:
        self.forth(peer, not is_first)

    def both(self, peer: int, is_first: bool) -> None:
        transfer([self.sent] * len(self.received), list(self.received), peer)

    # What all ranks do

    def prove(self, rounds: Sequence[Round]) -> Mapping[str, float]:
        """Each message says from whom to whom it goes; what arrived is compared word by word."""

        def exchange(peer: int, is_first: bool) -> None:
            self._address(peer)
            self.swap(peer, is_first)
            self._compare(self.received[:1], peer, self.rig.rank)

        for pairs in rounds:
            self.meet(pairs, exchange)
        self.rig.comm.barrier()
        return self.expect_right()

    def rest(self) -> None:
        """Before traversals are timed: whom a message is for it cannot say then, and nothing has arrived."""
        self._address(self.rig.rank)

    def look_at_the_last(self, rounds: Sequence[Round]) -> None:
        """Compares what timed traversals left, the message of the last partner."""
        partners: list[int] = []
        for pairs in rounds:
            self.meet(pairs, lambda peer, is_first: partners.append(peer))
        if partners:
            self._compare(self.received[:1], partners[-1], partners[-1])

    def expect_right(self) -> Mapping[str, float]:
        """The evidence, where nothing that was compared is wrong; asked when no partner waits for this rank.

        Raises
        ------
        WrongResult
            The first that was found.
        """
        if self.wrong:
            raise self.wrong[0]
        return {"wrong_elements": 0.0}

    def measured(self, rounds: Sequence[Round]) -> Samples:
        """Seconds of every pair of these rounds, on every rank; a pair takes as long as the slowest rank of it."""
        import torch

        pairs = [pair for pairs in rounds for pair in pairs]
        count = int(self.point["pair_iterations"])
        seconds = torch.zeros(len(pairs), len(_KINDS), count, dtype=torch.float64, device=self.rig.device)
        if not pairs:
            return {}
        place = {pair: number for number, pair in enumerate(pairs)}
        for of_round in rounds:
            self.rig.comm.barrier()  # all ranks have ended the round before
            mine = next((pair for pair in of_round if self.unit in pair), None)
            self.meet(of_round, partial(self._measure, seconds[place[mine]] if mine else None))
        self.rig.comm.all_reduce(seconds, op="max")
        return {
            pair: dict(zip(_KINDS, of_pair, strict=True)) for pair, of_pair in zip(pairs, seconds.tolist(), strict=True)
        }

    def figures_from_here(self, figures: Mapping[Pair, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
        """The figures of cells whose source is this unit, so that each is reported by one rank."""
        if self.local != 0:
            return {}
        figures_of_cells = [of_cell for (source, _), of_cell in figures.items() if source == self.unit]
        return {key: list(values) for of_cell in figures_of_cells for key, values in of_cell.items()}

    def _measure(self, seconds: torch.Tensor | None, peer: int, is_first: bool) -> None:
        """Fills (kinds x repetitions) with what this end of a pair saw; the end that only receives leaves zeros.

        Behind what is timed of each kind there is one more, of which everything that arrives is compared: what is left
        of the warm-up would be as right.
        """
        import torch

        from clusterbench.engine.loop import measure, warm_up

        assert seconds is not None
        for number, kind in enumerate(_KINDS):
            self._address(peer)
            step = partial(getattr(self, kind), peer, is_first)
            warm_up(step, self.clock, int(self.point["pair_warmup"]), _unwatched)
            # One word each way: both ends begin together.
            self.latency(peer, is_first)
            taken = measure(step, self.clock, int(self.point["pair_iterations"]), _unwatched)
            if kind == "both" or is_first == (kind != "back"):
                seconds[number] = torch.tensor(taken, dtype=torch.float64, device=seconds.device)
            self._address(peer)
            step()
            if kind == "latency":
                self._note("the word of", peer, self.word, torch.full_like(self.word, min(peer, self.rig.rank)))
            elif kind == "both" or is_first == (kind == "back"):
                self._compare(self.received, peer, self.rig.rank)

    def _address(self, peer: int) -> None:
        """The next messages say that they are for ``peer``, and nothing has arrived."""
        self.sent.copy_(self._message(self.rig.rank, peer))
        self.received.zero_()
        self.word.fill_(self.rig.rank)

    def _compare(self, arrived: torch.Tensor, sender: int, receiver: int) -> None:
        """Each of the messages that ``sender`` sent here, word by word."""
        expected = self._message(sender, receiver)
        for message in arrived:
            self._note("the message from", sender, message, expected)

    def _note(self, what: str, sender: int, got: torch.Tensor, expected: torch.Tensor) -> None:
        """An error raised at once would leave the partners of later rounds waiting for this rank."""
        try:
            self.rig.expect_equal(f"{what} rank {sender} to rank {self.rig.rank}", got, expected)
        except WrongResult as error:
            self.wrong.append(error)

    def _message(self, sender: int, receiver: int) -> torch.Tensor:
        import torch

        index = torch.arange(self.sent.numel(), device=self.rig.device)
        return 1 + (index % _PATTERN) + _PATTERN * (sender * self.rig.world_size + receiver)  # never 0


def transfer(sent: Sequence[Any], received: Sequence[Any], peer: int) -> None:
    """Sends and receives whole tensors to and from a rank, all at once, and waits for them."""
    import torch.distributed as dist

    sends = [dist.P2POp(dist.isend, tensor, peer) for tensor in sent]
    receives = [dist.P2POp(dist.irecv, tensor, peer) for tensor in received]
    for work in dist.batch_isend_irecv([*sends, *receives]):
        work.wait()


def _unwatched(iteration: int) -> None:
    """The loop's ``at``: in a pass single iterations are not reported."""
