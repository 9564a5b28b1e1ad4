"""Congestion: an operation of some nodes alone, and again while their neighbours load the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import WrongResult
from clusterbench.formulas.statistics import median, percentile, summarise
from clusterbench.options import option
from clusterbench.types import (
    SAMPLES,
    Case,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    metric_key,
)
from clusterbench.units import format_bytes
from clusterbench.words import Word, plural

if TYPE_CHECKING:
    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig

_FEWEST_UNITS = 4
"""Two victims that have something to say to each other, and two neighbours."""

FEWEST_ROUNDS = 2
"""The end of a first one may be all that was seen of it; of two ends, the second one's round was seen whole."""

LONGEST_BLOCK_S = 60.0
"""Seconds of the victims' operation in which neighbours have to complete that many rounds."""

_FEWEST_FOR_P99 = 100
_WORD_BYTES = 8
_DTYPE = "int64"
_ROUNDS, _DONE = "congestion rounds", "congestion blocks"
"""What is counted at the store: completed rounds of neighbours, and blocks beside them that victims are done with."""


@dataclass(frozen=True, kw_only=True)
class Congestion(Benchmark):
    """How much slower some nodes communicate while others load the network, and how fast many send to one.

    Units are nodes (the first rank of each) or ranks, and at least four. The first, the third and so on are the
    victims: each second one, in the order of ranks. All others are neighbours. Of an odd number one more is a victim.

    The victims' operation is timed in pairs of blocks, one alone and one beside the neighbours; which comes first
    changes from pair to pair, so that drift cancels. Alone the neighbours wait. Beside they send round after round
    until the victims are done, which they read at the store where all ranks met. Between two rounds they send next to
    nothing: ``neighbours_busy`` is the share of the time in which they are in one. Victims begin once a round is
    complete, and go on until two more are. Where that takes more than a minute of their operation, the result is wrong:
    it would be one of victims alone. Alone they do as many operations as in the last block beside neighbours. After
    each block what victims and neighbours received is compared.

    Times of an operation are from the slowest victim. ``congestion_impact`` is the median beside over the median alone,
    by pair of blocks, as GPCNeT's: 1 is an operation that neighbours do not slow. Bandwidth under incast is all bytes
    that reach the receiver, over its time (factor 1, as PARAM has it). A sender's rate is its bytes over the time until
    they have left it, so of messages that fit into the buffers on the way it says little. Messages go over NCCL between
    GPUs, over Gloo otherwise; Gloo's figures are of the hosts' sockets and say nothing of a network of GPUs.

    Source: Chunduri et al., GPCNeT, SC 2019, doi:10.1145/3295500.3356215. There, victims and neighbours are drawn at
    random, and patterns of neighbours are mixed.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind(
            "together_time", "s", "lower", "one operation of the victims and one round of the neighbours at once"
        ),
        MetricKind("victim_time", "s", "lower", "the victims' operation alone or beside neighbours, median of a block"),
        MetricKind("victim_time_p99", "s", "lower", "99th percentile of that operation over all blocks"),
        MetricKind("congestion_impact", "1", "lower", "victim_time beside neighbours over alone: 1 is none"),
        MetricKind("congestion_impact_p99", "1", "lower", "victim_time_p99 beside neighbours over alone"),
        MetricKind("incast_bandwidth", "B/s", "higher", "bytes of all senders over the time of their one receiver"),
        MetricKind("slowest_sender_share", "fraction", "higher", "slowest sender's rate over the mean rate of senders"),
        MetricKind("neighbour_rounds", "1", "neither", "rounds that neighbours completed while a block was timed"),
        MetricKind("neighbours_busy", "fraction", "neither", "share of a block in which neighbours were in a round"),
    )
    glossary: ClassVar[tuple[Word, ...]] = (
        Word("incast", "Many senders to one receiver at the same time."),
        Word("victim", "Node or rank whose operation is timed while others load the network."),
    )

    between: str = option("nodes", "what units are: whole nodes, or single ranks", choices=("nodes", "ranks"))
    victim: str = option(
        "all_reduce", "what victims do; send_recv is round a ring", choices=("all_reduce", "send_recv")
    )
    victim_size: int = option(8, "array that victims reduce, or message", unit="B", minimum=_WORD_BYTES, maximum=2**34)
    neighbours: str = option(
        "incast",
        "what neighbours do; incast sends to one of them, another in each round",
        choices=("incast", "all_to_all", "send_recv"),
    )
    neighbour_size: int = option(
        2**20, "one message from neighbour to neighbour", unit="B", minimum=_WORD_BYTES, maximum=2**34
    )
    messages: int = option(8, "messages from each sender to each receiver in a round", minimum=1, maximum=1024)
    calls: int = option(20, "timed operations of a block, at least", minimum=1, maximum=10_000)
    blocks: int = option(10, "pairs of blocks, alone and beside neighbours", minimum=1, maximum=1000)
    iterations: int = option(5, "timed calls of both at once, before the blocks", minimum=1, maximum=1_000_000)
    warmup: int = option(2, "such calls before them, not timed", minimum=0, maximum=1_000_000)

    def points(self, place: Place) -> Iterable[Point]:
        yield {
            "size_bytes": self.victim_size,
            "victim": self.victim,
            "neighbours": self.neighbours,
            "neighbour_size_bytes": self.neighbour_size,
            "messages": self.messages,
            "between": self.between,
            "num_units": place.num_nodes if self.between == "nodes" else place.world_size,
            "ranks_in_node": place.cluster.ranks_per_node,
            "calls": self.calls,
            "blocks": self.blocks,
        }

    def label(self, point: Point) -> str:
        victims = f"{point['victim']}-{format_bytes(point['size_bytes'])}"
        neighbours = f"{point['neighbours']}-{format_bytes(point['neighbour_size_bytes'])}x{point['messages']}"
        return f"{point['between']}-{victims}-beside-{neighbours}".replace(" ", "")

    def objection(self, point: Point, place: Place) -> str | None:
        if (units := int(point["num_units"])) < _FEWEST_UNITS:
            can = point["between"] == "nodes" and place.world_size >= _FEWEST_UNITS
            advice = "; 'between: ranks' measures between ranks" if can else ""
            verb = "is" if units == 1 else "are"
            return (
                f"congestion between {point['between']} needs {_FEWEST_UNITS} of them, two victims and two "
                f"neighbours, but there {verb} {units}{advice}"
            )
        for name in ("size_bytes", "neighbour_size_bytes"):
            if int(point[name]) % _WORD_BYTES:
                return f"a message of {point[name]} B is no whole number of {_WORD_BYTES} B words"
        return None

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        """Bytes into one rank: rounds that are waited for, one before and one after, and the victims' own."""
        num_neighbours = len(roles_of(point)[1])
        of_rounds = int(point["neighbour_size_bytes"]) * int(point["messages"]) * num_neighbours * (FEWEST_ROUNDS + 2)
        of_victims = 2 * int(point["size_bytes"]) * int(point["calls"])  # there and back, as an all-reduce
        return int(point["blocks"]) * (of_rounds + 2 * of_victims)

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        part = _Part(rig, point)
        return Step(run=part.together, check=part.prove, passes={SAMPLES: part.samples})

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("together_time", "s", time.value, time.low, time.high, time.n)
        yield from cls.sampled(observation)


def roles_of(point: Point) -> tuple[list[int], list[int]]:
    """Ranks of the victims, and those of the neighbours.

    >>> roles_of({"between": "ranks", "num_units": 5, "ranks_in_node": 5})
    ([0, 2, 4], [1, 3])
    >>> roles_of({"between": "nodes", "num_units": 4, "ranks_in_node": 8})
    ([0, 16], [8, 24])
    """
    stride = int(point["ranks_in_node"]) if point["between"] == "nodes" else 1
    ranks = [unit * stride for unit in range(int(point["num_units"]))]
    return ranks[::2], ranks[1::2]


# What a rank does among its like: the victims, or the neighbours


class _Act(ABC):
    """An operation of ``of`` ranks on the buffers of the ``me``-th. Allocates when made, and communicates later.

    Attributes
    ----------
    comm
        These ranks; there once they have met.
    rounds
        How many there were, where it depends on that what is done.
    """

    comm: Communicator
    rounds = 0

    def __init__(self, rig: Rig, me: int, of: int, numel: int, messages: int) -> None:
        self.rig, self.me, self.of, self.numel, self.messages = rig, me, of, numel, messages

    @abstractmethod
    def call(self) -> None:
        """The operation, once: of neighbours a round."""

    @abstractmethod
    def fill(self) -> None:
        """Writes what is given, and into what is to be filled a value that no result has."""

    @abstractmethod
    def verify(self) -> Mapping[str, float]:
        """Compares all that was received since :meth:`fill`."""


class _AllReduce(_Act):
    def __init__(self, rig: Rig, me: int, of: int, numel: int, messages: int) -> None:
        super().__init__(rig, me, of, numel, messages)
        self.array = rig.full(numel, _DTYPE, 0)
        self.mine, self.whole = rig.operands("sum", _DTYPE, me, of)

    def call(self) -> None:
        self.comm.all_reduce(self.array)

    def fill(self) -> None:
        self.rig.write(self.array, [(self.numel, self.mine)])

    def verify(self) -> Mapping[str, float]:
        try:
            return self.rig.expect("the victims' all_reduce", self.array, [(self.numel, self.whole)])
        finally:
            self.array.zero_()  # it is reduced again and again: sums of sums would run out of the dtype's range


class _Ring(_Act):
    """Each sends to the next."""

    def __init__(self, rig: Rig, me: int, of: int, numel: int, messages: int) -> None:
        super().__init__(rig, me, of, numel, messages)
        self.sent, self.received = rig.empty(numel, _DTYPE), rig.empty(numel, _DTYPE)

    def call(self) -> None:
        before, after = (self.me - 1) % self.of, (self.me + 1) % self.of
        for _ in range(self.messages):
            self.comm.send_receive(self.received, before, self.sent, after)

    def fill(self) -> None:
        self.rig.forget(self.received)
        self.rig.write(self.sent, [(self.numel, self.rig.block(_DTYPE, self.me))])

    def verify(self) -> Mapping[str, float]:
        sender = (self.me - 1) % self.of
        what = f"the message from rank {self.comm.global_rank(sender)} to rank {self.rig.rank}"
        return self.rig.expect(what, self.received, [(self.numel, self.rig.block(_DTYPE, sender))])


class _AllToAll(_Act):
    def __init__(self, rig: Rig, me: int, of: int, numel: int, messages: int) -> None:
        super().__init__(rig, me, of, numel, messages)
        self.sent, self.received = rig.empty(of * numel, _DTYPE), rig.empty(of * numel, _DTYPE)

    def call(self) -> None:
        for _ in range(self.messages):
            self.comm.all_to_all(self.received, self.sent)

    def fill(self) -> None:
        block, numel = self.rig.block, self.numel
        self.rig.forget(self.received)
        self.rig.write(self.sent, [(numel, block(_DTYPE, self.me * self.of + peer)) for peer in range(self.of)])

    def verify(self) -> Mapping[str, float]:
        block, numel = self.rig.block, self.numel
        pieces = [(numel, block(_DTYPE, peer * self.of + self.me)) for peer in range(self.of)]
        return self.rig.expect("the neighbours' all_to_all", self.received, pieces)


class Incast(_Act):
    """All but one send to that one: the first in the first round, the second in the second, and so on."""

    def __init__(self, rig: Rig, me: int, of: int, numel: int, messages: int) -> None:
        super().__init__(rig, me, of, numel, messages)
        self.sent, self.received = rig.empty(numel, _DTYPE), rig.empty(of * numel, _DTYPE)
        self.of_sender = list(self.received.view(of, numel))
        self.filled_at = 0

    def call(self) -> None:
        receiver = self.rounds % self.of
        self.rounds += 1
        if self.me == receiver:
            senders = [(place, peer) for peer, place in enumerate(self.of_sender) if peer != receiver]
            self.comm.exchange([], senders * self.messages)
        else:
            self.comm.exchange([(self.sent, receiver)] * self.messages, [])

    def fill(self) -> None:
        self.filled_at = self.rounds
        self.rig.forget(self.received)
        self.rig.write(self.sent, [(self.numel, self.rig.block(_DTYPE, self.me))])

    def verify(self) -> Mapping[str, float]:
        since = range(self.filled_at, min(self.rounds, self.filled_at + self.of))
        if self.me not in {number % self.of for number in since}:
            return {"wrong_elements": 0.0}
        tiles = [self.rig.block(_DTYPE, peer) for peer in range(self.of)]
        tiles[self.me] = self.of_sender[self.me][:1].clone()  # it sends nothing to itself
        return self.rig.expect("the neighbours' incast", self.received, [(self.numel, tile) for tile in tiles])

    def figures(self, first: int, seconds: Sequence[Sequence[float]]) -> dict[str, list[float]]:
        """Medians over rounds, the first of them number ``first``; ``seconds`` are by rank, then by round."""
        sent = self.numel * _WORD_BYTES * self.messages
        bandwidths, shares = [], []
        for number, of_ranks in enumerate(zip(*seconds, strict=True), start=first):
            receiver = number % self.of
            senders = [sent / time_s for rank, time_s in enumerate(of_ranks) if rank != receiver]
            bandwidths.append(len(senders) * sent / of_ranks[receiver])
            shares.append(min(senders) / fmean(senders))
        figures = {"incast_bandwidth": [median(bandwidths)]}
        return figures | ({"slowest_sender_share": [median(shares)]} if self.of > 2 else {})


_VICTIMS: Mapping[str, type[_Act]] = {"all_reduce": _AllReduce, "send_recv": _Ring}
_NEIGHBOURS: Mapping[str, type[_Act]] = {"incast": Incast, "all_to_all": _AllToAll, "send_recv": _Ring}


class _Part:
    """One rank's part: that of a victim, of a neighbour, or of one that waits for them."""

    def __init__(self, rig: Rig, point: Point) -> None:
        from clusterbench.engine.clock import clock_for

        self.rig, self.point, self.clock = rig, point, clock_for(rig.device)
        self.roles = roles_of(point)
        victims, neighbours = self.roles
        self.act: _Act | None = None
        self.is_victim = rig.rank in victims
        if self.is_victim:
            self.act = _VICTIMS[point["victim"]](
                rig, victims.index(rig.rank), len(victims), int(point["size_bytes"]) // _WORD_BYTES, 1
            )
        elif rig.rank in neighbours:
            numel = int(point["neighbour_size_bytes"]) // _WORD_BYTES
            self.act = _NEIGHBOURS[point["neighbours"]](
                rig, neighbours.index(rig.rank), len(neighbours), numel, int(point["messages"])
            )
        self.is_first = self.act is not None and self.act.me == 0
        self.before: Mapping[str, int] = {}  # what was counted when the block began
        self.stretches = 0, 1  # of operations in the last block beside neighbours: before they were timed, and timed
        self.seen = _Seen()
        self.idle = rig.full(1, "float32", 0)

    # What all ranks do

    def meet(self) -> None:
        """Victims and neighbours each become a group; a collective of all ranks when first called."""
        comm = self.rig.group_of(self.roles)
        if self.act is not None:
            assert comm is not None
            self.act.comm = comm

    def together(self) -> None:
        if self.act is not None:
            self.act.call()
        else:
            self.idle.zero_()  # takes next to nothing, but no time of 0, which no record may hold

    def prove(self) -> Mapping[str, float]:
        """Victims and neighbours at once; under incast each neighbour is the receiver once."""
        self.meet()
        wrong: WrongResult | None = None
        if self.act is not None:
            self.act.fill()
            for _ in range(self.act.of if isinstance(self.act, Incast) else 1):
                self.act.call()
            wrong = self._wrong()
        self._all_right(wrong)
        return {"wrong_elements": 0.0}

    def samples(self) -> dict[str, list[float]]:
        """All pairs of blocks; what victims and neighbours saw of them is told by the first of each."""
        self.meet()
        self.seen = _Seen()
        for number in range(int(self.point["blocks"])):
            for is_beside in (number % 2 == 0, number % 2 == 1):
                if not self._block(is_beside):
                    return {}
        if not self.is_first:
            return {}
        return self.seen.of_victims() if self.is_victim else self.seen.of_neighbours

    def _block(self, is_beside: bool) -> bool:
        """Whether all ranks found it right."""
        if self.is_first:
            self.before = {name: self.rig.count(name) for name in (_ROUNDS, _DONE)}
        self.rig.comm.barrier()  # none counts before both have read
        self.clock.settle()
        wrong: WrongResult | None = None
        if self.is_victim:
            wrong = self._beside() if is_beside else self._alone()
        elif self.act is not None and is_beside:
            wrong = self._load()
        return self._all_right(wrong)

    def _all_right(self, wrong: WrongResult | None) -> bool:
        """Waits for all ranks, and tells those without a mistake of their own whether others found one."""
        found = self.rig.full(1, _DTYPE, 0 if wrong is None else 1)
        self.rig.comm.all_reduce(found)
        if wrong is not None:
            raise wrong
        return int(found) == 0

    # What victims do

    def _alone(self) -> WrongResult | None:
        """As much as in the last block beside neighbours: what a network lends for a moment lasts equally long."""
        for _ in range(self.stretches[0]):
            self._timed()
        seconds = [second for _ in range(self.stretches[1]) for second in self._timed()]
        self.seen.alone.append(self._slowest(seconds))
        return self._proven()

    def _beside(self) -> WrongResult | None:
        """Times the operation once neighbours have completed a round, until they have completed some more."""
        begun, waits, waited_s = 0, 0, 0.0
        while begun == 0 and waited_s < LONGEST_BLOCK_S:
            begun, waited_s = self._since(_ROUNDS, waited_s + sum(self._timed()))
            waits += 1
        seconds, rounds, timed_s = list[float](), 0, 0.0
        while not seconds or (rounds < FEWEST_ROUNDS and waited_s + timed_s < LONGEST_BLOCK_S):
            seconds += self._timed()
            ended, timed_s = self._since(_ROUNDS, sum(seconds))
            rounds = ended - begun
        self.stretches = waits, len(seconds) // int(self.point["calls"])
        wrong = self._proven()
        self._say(_DONE)
        self.seen.beside.append(self._slowest(seconds))
        self.seen.rounds.append(rounds)
        if rounds < FEWEST_ROUNDS and wrong is None:
            return WrongResult(
                f"neighbours completed {plural(rounds, 'round')} of {self.point['neighbours']} while the victims' "
                f"operation was timed for {timed_s:.3g} s; with fewer than {FEWEST_ROUNDS} it is as good as alone",
                {"neighbour_rounds": float(rounds)},
            )
        return wrong

    def _timed(self) -> list[float]:
        """Seconds of a stretch of operations on this rank. One goes before, so that all begin together."""
        from clusterbench.engine.loop import measure

        assert self.act is not None
        self.act.call()
        return measure(self.act.call, self.clock, int(self.point["calls"]), _unwatched)

    def _slowest(self, seconds: Sequence[float]) -> list[float]:
        """Seconds of each operation from the slowest victim, on every one."""
        import torch

        assert self.act is not None
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self.rig.device)
        self.act.comm.all_reduce(slowest, "max")
        return [float(second) for second in slowest.tolist()]

    def _proven(self) -> WrongResult | None:
        """The operation once more, and what is wrong with it."""
        assert self.act is not None
        self.act.fill()
        self.act.call()
        return self._wrong()

    # What neighbours do

    def _load(self) -> WrongResult | None:
        """Round after round until victims are done with the block."""
        from clusterbench.engine.loop import measure

        assert self.act is not None
        act, seconds, first = self.act, list[float](), self.act.rounds
        act.fill()

        def rounds() -> None:
            while self._since(_DONE)[0] == 0:
                seconds.extend(measure(act.call, self.clock, 1, _unwatched))
                self._say(_ROUNDS)

        (whole_s,) = measure(rounds, self.clock, 1, _unwatched)
        wrong = self._wrong()
        if seconds:
            self.seen.keep({"neighbours_busy": [min(1.0, sum(seconds) / whole_s)]})
        if seconds and isinstance(act, Incast):
            self.seen.keep(act.figures(first, self._of_all(seconds)))
        return wrong

    def _of_all(self, seconds: Sequence[float]) -> list[list[float]]:
        """Seconds of each neighbour's rounds, which are equally many, on every one."""
        import torch

        assert self.act is not None
        mine = torch.tensor(seconds, dtype=torch.float64, device=self.rig.device)
        whole = torch.empty(self.act.of * len(mine), dtype=torch.float64, device=self.rig.device)
        self.act.comm.all_gather(whole, mine)
        return [[float(second) for second in row] for row in whole.view(self.act.of, -1).tolist()]

    # What both do

    def _wrong(self) -> WrongResult | None:
        assert self.act is not None
        try:
            self.act.verify()
        except WrongResult as error:
            return error
        return None

    def _since(self, name: str, seconds: float = 0.0) -> tuple[int, float]:
        """What was counted since the block began, and seconds, both as the first has them: so all stop together."""
        import torch

        assert self.act is not None
        counted = self.rig.count(name) - self.before[name] if self.is_first else 0
        word = torch.tensor([counted, seconds], dtype=torch.float64, device=self.rig.device)
        self.act.comm.broadcast(word)
        told, told_s = word.tolist()
        return int(told), float(told_s)

    def _say(self, name: str) -> None:
        """The first counts one more."""
        if self.is_first:
            self.rig.count(name, 1)


class _Seen:
    """What was seen of all blocks: seconds of the victims' operation, by block, and figures of the neighbours."""

    def __init__(self) -> None:
        self.alone: list[list[float]] = []
        self.beside: list[list[float]] = []
        self.rounds: list[float] = []
        self.of_neighbours: dict[str, list[float]] = {}

    def keep(self, figures: Mapping[str, list[float]]) -> None:
        for key, values in figures.items():
            self.of_neighbours.setdefault(key, []).extend(values)

    def of_victims(self) -> dict[str, list[float]]:
        """Figures by metric key: a value for each block, or for each pair of them; a tail is that of all."""
        medians = [[median(block) for block in kind] for kind in (self.alone, self.beside)]
        tails = [_tail(kind) for kind in (self.alone, self.beside)]
        figures = {
            **_by_category("victim_time", *medians),
            "congestion_impact": [beside / alone for alone, beside in zip(*medians, strict=True)],
            "neighbour_rounds": self.rounds,
        }
        if all(tails):
            figures |= _by_category("victim_time_p99", *tails)
            figures["congestion_impact_p99"] = [tails[1][0] / tails[0][0]]
        return figures


def _by_category(name: str, alone: list[float], beside: list[float]) -> dict[str, list[float]]:
    return {metric_key(name, category="alone"): alone, metric_key(name, category="beside"): beside}


def _tail(blocks: Sequence[Sequence[float]]) -> list[float]:
    """The 99th percentile of all blocks' samples; empty where they are too few to have one."""
    samples = [second for block in blocks for second in block]
    return [percentile(samples, 0.99)] if len(samples) >= _FEWEST_FOR_P99 else []


def _unwatched(iteration: int) -> None:
    """The loop's ``at``: in a pass single iterations are not reported."""
