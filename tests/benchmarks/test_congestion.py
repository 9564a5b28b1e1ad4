from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from clusterbench.benchmarks import congestion
from clusterbench.benchmarks.congestion import Congestion, Incast, roles_of
from clusterbench.cluster import Cluster
from clusterbench.engine import clock
from clusterbench.engine.communicator import Communicator
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.types import SAMPLES, Case, Observation, Place
from tests.benchmarks.alone import rig
from tests.ranks import run_ranks

SMALL = {"between": "ranks", "neighbour_size": 4096, "messages": 2, "calls": 5, "blocks": 3}
ALONE_S, BESIDE_S = 1e-3, 3e-3
FAST_SENDER_S, SLOW_SENDER_S, RECEIVER_S = 4e-3, 8e-3, 10e-3


def place(num_nodes, ranks_per_node=1):
    return Place(Cluster(num_nodes, ranks_per_node, "cpu"), num_nodes)


def point(num_nodes, ranks_per_node=1, **options):
    (only,) = Congestion(**{**SMALL, **options}).points(place(num_nodes, ranks_per_node))
    return only


def make_rig():
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Rig(rank=rank, world_size=world_size, local_rank=0, host="here", device=torch.device("cpu"))


def _outcome(call):
    """What a call returned, or its error."""
    try:
        return call()
    except WrongResult as error:
        return str(error)


class PlantedClock:
    """Shows the time that operations were planted to take, whatever they really took."""

    now_s = 0.0

    def mark(self):
        return self.now_s

    def settle(self):
        pass

    def seconds(self, marks):
        return [stop - start for start, stop in pairwise(marks)]


def _noted(blocks, costs, name, cost_s):
    """A kind of block that is noted with how many reductions it has, and in which one costs so much."""
    real = getattr(congestion._Part, name)

    def block(self):
        costs["reduce"], before = cost_s, costs["calls"]
        wrong = real(self)
        blocks.append((name, costs["calls"] - before))
        return wrong

    return block


def _planted(of, does_load=True):
    """Figures of this rank, and its blocks in order, where operations take what was planted; rank 4 takes longest."""
    rig, planted, blocks = make_rig(), PlantedClock(), []
    clock.clock_for = lambda device: planted
    congestion.LONGEST_BLOCK_S = 1e6 if does_load else 0.05
    costs = {"reduce": 0.0, "calls": 0}
    real_reduce, real_exchange = Communicator.all_reduce, Communicator.exchange

    def all_reduce(self, tensor, op="sum"):
        real_reduce(self, tensor, op)
        planted.now_s += costs["reduce"] * (1.0 if rig.rank == 4 else 0.5)
        costs["calls"] += op == "sum" and self.world_size == 3

    def exchange(self, sent, received):
        real_exchange(self, sent, received)
        receiver = sent[0][1] if sent else self.rank
        is_fast = self.rank == min({0, 1, 2} - {receiver})
        planted.now_s += RECEIVER_S if received else FAST_SENDER_S if is_fast else SLOW_SENDER_S

    Communicator.all_reduce, Communicator.exchange = all_reduce, exchange
    for name, cost_s in (("_alone", ALONE_S), ("_beside", BESIDE_S)):
        setattr(congestion._Part, name, _noted(blocks, costs, name, cost_s))
    if not does_load:
        congestion._Part._load = lambda self: None
    step = Congestion.prepare(rig, of)
    step.check()
    step.run()
    return _outcome(step.passes[SAMPLES]), blocks


class Sent:
    """A group of four that notes who sends what to whom."""

    def __init__(self):
        self.calls = []

    def send_receive(self, received, before, sent, after):
        self.calls.append((before, after, sent.nbytes))

    def all_to_all(self, received, sent):
        self.calls.append((sent.nbytes, received.nbytes))

    def exchange(self, sent, received):
        self.calls.append(([(to, each.nbytes) for each, to in sent], [(of, each.nbytes) for each, of in received]))


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        (congestion._Ring, [[(0, 2, 64)] * 3] * 2),
        (congestion._AllToAll, [[(256, 256)] * 3] * 2),
        # in the first round the first receives, in the second this one
        (congestion.Incast, [[([(0, 64)] * 3, [])], [([], [(0, 64), (2, 64), (3, 64)] * 3)]]),
    ],
)
def test_a_round_has_as_many_messages_as_its_bandwidth_counts(kind, rounds):
    act = kind(rig(), 1, 4, numel=8, messages=3)
    for expected in rounds:
        act.comm = Sent()
        act.call()
        assert act.comm.calls == expected


def test_rounds_are_those_that_ended_while_victims_were_timed():
    """One look in vain, then two rounds have ended; a third and a fourth end while victims are timed."""
    part, looks = object.__new__(congestion._Part), iter([(0, 1.0), (2, 2.0), (3, 1.0), (4, 2.0)])
    part.point, part.seen = {"calls": 1, "neighbours": "incast"}, congestion._Seen()
    part._since, part._timed, part._slowest = lambda name, seconds: next(looks), lambda: [1.0], list
    part._proven, part._say = lambda: None, lambda name: None
    assert part._beside() is None
    assert (part.seen.rounds, part.seen.beside, part.stretches) == ([2], [[1.0, 1.0]], (2, 2))


def test_neighbours_are_busy_for_the_share_of_a_block_in_which_they_are_in_a_round():
    """Two rounds of 1 s, each with half a second before the next one can be asked for."""
    planted, looks = PlantedClock(), iter([0, 0, 1])
    part = object.__new__(congestion._Part)
    part.clock, part.seen = planted, congestion._Seen()

    def passes(seconds):
        planted.now_s += seconds

    part.act = SimpleNamespace(rounds=0, fill=lambda: None, verify=dict, call=lambda: passes(1.0))
    part._since = lambda name: (next(looks), 0.0)
    part._say = lambda name: passes(0.5)
    assert part._load() is None
    assert part.seen.of_neighbours == {"neighbours_busy": [pytest.approx(2 / 3)]}


@pytest.fixture(scope="module")
def planted():
    return run_ranks(6, _planted, point(1, 6))


@pytest.mark.gloo
def test_victims_that_are_slower_beside_neighbours_show_it(planted):
    figures, blocks = planted[0]
    assert [name for name, _ in blocks] == ["_beside", "_alone", "_alone", "_beside", "_beside", "_alone"]
    assert len(figures["neighbour_rounds"]) == 3
    assert min(figures["neighbour_rounds"]) >= 2
    assert figures["victim_time[category=alone]"] == pytest.approx([ALONE_S] * 3)
    assert figures["victim_time[category=beside]"] == pytest.approx([BESIDE_S] * 3)
    assert figures["congestion_impact"] == pytest.approx([3.0] * 3)


@pytest.mark.gloo
def test_alone_victims_do_as_much_as_in_the_block_beside_neighbours_before(planted):
    calls = [number for _, number in planted[0][1]]
    # At least a stretch that waits, a timed one, each of 5 and one before them, and the proof.
    assert min(calls) >= 2 * 6 + 1
    assert calls[1] == calls[2] == calls[0]
    assert calls[5] == calls[4]


@pytest.mark.gloo
def test_incast_is_what_reaches_the_receiver_and_its_slowest_sender_is_held_against_the_mean(planted):
    figures = planted[1][0]
    assert figures.keys() == {"incast_bandwidth", "slowest_sender_share", "neighbours_busy"}
    assert figures["incast_bandwidth"] == pytest.approx([2 * 2 * 4096 / RECEIVER_S] * 3)
    slow, fast = 1 / SLOW_SENDER_S, 1 / FAST_SENDER_S
    assert figures["slowest_sender_share"] == pytest.approx([slow / ((slow + fast) / 2)] * 3)
    assert figures["neighbours_busy"] == pytest.approx([1.0] * 3)  # by a clock that stands still between rounds


@pytest.mark.gloo
def test_each_figure_is_told_by_one_rank_and_has_its_metric(planted):
    assert [bool(figures) for figures, _ in planted] == [True, True, False, False, False, False]
    of = point(1, 6)
    case = Case("c", "congestion", 1, of, "cpu", 1, 6, 3, 1, 60.0)
    passes = {SAMPLES: [figures for figures, _ in planted]}
    seen = Observation("c", case.hash, 0, 1, ("here",), [[0.1, 0.2, 0.3]] * 5 + [[0.4] * 3], passes=passes)
    by_key = {metric.key: metric for metric in Congestion.derive(case, seen, place(1, 6))}
    assert by_key["together_time"].value == 0.4
    assert by_key["congestion_impact"].value == pytest.approx(3.0)
    assert by_key["congestion_impact"].iterations == 3
    assert {metric.name for metric in by_key.values()} <= {kind.name for kind in Congestion.metrics}


@pytest.mark.gloo
def test_neighbours_that_complete_no_round_give_no_figure():
    said = [outcome for outcome, _ in run_ranks(6, _planted, point(1, 6), False)]
    of_victim = (
        "neighbours completed 0 rounds of incast while the victims' operation was timed for 0.0075 s; "
        "with fewer than 2 it is as good as alone"
    )
    assert said == [of_victim, {}, of_victim, {}, of_victim, {}]


# What is sent and received


def _figures(of):
    step = Congestion.prepare(make_rig(), of)
    evidence = step.check()
    step.run()
    return evidence, step.passes[SAMPLES](), step.passes[SAMPLES]()


def _figures_of_each(*points):
    return [_figures(of) for of in points]


@pytest.mark.gloo
def test_every_pattern_is_right_beside_every_victim_and_the_pass_may_be_taken_again():
    kinds = [
        (victim, neighbours)
        for victim in ("all_reduce", "send_recv")
        for neighbours in ("incast", "all_to_all", "send_recv")
    ]
    every = [point(1, 5, victim=victim, neighbours=neighbours, blocks=2) for victim, neighbours in kinds]
    for rank, cases in enumerate(run_ranks(5, _figures_of_each, *every)):
        for (_, neighbours), (evidence, once, again) in zip(kinds, cases, strict=True):
            assert evidence == {"wrong_elements": 0.0}
            assert once.keys() == again.keys()
            if rank == 0:
                assert min(once["neighbour_rounds"] + again["neighbour_rounds"]) >= 2
                assert len(again["congestion_impact"]) == 2
            if rank == 1:
                # Of two neighbours one sends: it is the slowest and the mean.
                assert "slowest_sender_share" not in once
                assert ("incast_bandwidth" in once) == (neighbours == "incast")
                assert all(0 < busy < 1 for busy in once["neighbours_busy"])


@pytest.mark.gloo
def test_between_nodes_the_first_rank_of_each_takes_part_and_others_wait():
    ranks = run_ranks(8, _figures, point(4, 2, between="nodes", blocks=1))
    assert [bool(once) for _, once, _ in ranks] == [True, False, True, False, False, False, False, False]


def _with_fault(of, fault, when):
    """What the check said on this rank, or the pass, of a communicator that is broken while it runs."""
    rig = make_rig()
    step = Congestion.prepare(rig, of)
    parts = {"check": step.check, "pass": step.passes[SAMPLES]}
    if when == "pass":
        step.check()
    real_reduce, real_exchange = Communicator.all_reduce, Communicator.exchange
    real_each = Communicator.all_to_all

    def all_reduce(self, tensor, op="sum"):
        real_reduce(self, tensor, op)
        if fault == "victim" and rig.rank == 2 and self.world_size == 2 and tensor.dtype == torch.int64:
            tensor[0] += 1

    def exchange(self, sent, received):
        if fault != "silent":
            real_exchange(self, sent, received)
        if fault == "neighbour" and received and rig.rank == 3:
            received[0][0][7] += 1

    def all_to_all(self, received, sent, *counts):
        real_each(self, received, sent, *counts)
        if fault == "neighbour" and rig.rank == 3:
            received[7] += 1

    Communicator.all_reduce, Communicator.exchange, Communicator.all_to_all = all_reduce, exchange, all_to_all
    try:
        return _outcome(parts[when])
    finally:
        Communicator.all_reduce, Communicator.exchange = real_reduce, real_exchange
        Communicator.all_to_all = real_each


def _with_faults(*every):
    return [_with_fault(*arguments) for arguments in every]


FAULTS = [
    (pattern, fault, when)
    for pattern, fault in (
        ("incast", "silent"),
        ("incast", "neighbour"),
        ("all_to_all", "neighbour"),
        ("incast", "victim"),
    )
    for when in ("check", "pass")
]
WHO = {"silent": {1, 3}, "neighbour": {3}, "victim": {2}}
SAID = {
    ("incast", "silent"): (
        "the neighbours' incast gave wrong results on rank 3 (host here): 512 of 1024 elements differ. "
        "First at index 0: got 127, expected 0."
    ),
    ("incast", "neighbour"): (
        "the neighbours' incast gave wrong results on rank 3 (host here): 1 of 1024 elements differ. "
        "First at index 7: got 71, expected 70."
    ),
    ("all_to_all", "neighbour"): (
        "the neighbours' all_to_all gave wrong results on rank 3 (host here): 1 of 1024 elements differ. "
        "First at index 7: got 72, expected 71."
    ),
    ("incast", "victim"): (
        "the victims' all_reduce gave wrong results on rank 2 (host here): 1 of 1 elements differ. "
        "First at index 0: got 5, expected 4."
    ),
}


@pytest.mark.gloo
def test_wrong_data_and_neighbours_that_send_nothing_are_found_where_they_arrive_and_nobody_hangs():
    every = [(point(1, 4, neighbours=pattern, blocks=1), fault, when) for pattern, fault, when in FAULTS]
    ranks = run_ranks(4, _with_faults, *every)
    for number, (pattern, fault, when) in enumerate(FAULTS):
        said = [of_rank[number] for of_rank in ranks]
        assert {rank for rank, outcome in enumerate(said) if isinstance(outcome, str)} == WHO[fault], said
        assert SAID[pattern, fault] in said
        healthy = {"wrong_elements": 0.0} if when == "check" else {}
        assert all(outcome == healthy for outcome in said if not isinstance(outcome, str))


# What needs no rank


def test_every_second_unit_is_a_victim():
    assert roles_of(point(1, 4)) == ([0, 2], [1, 3])
    assert roles_of(point(5, 8, between="nodes")) == ([0, 16, 32], [8, 24])


def test_a_tail_needs_100_samples_of_each():
    seen = congestion._Seen()
    seen.alone, seen.beside, seen.rounds = [[1.0] * 49 + [2.0]] * 2, [[1.0] * 49 + [9.0]] * 2, [2, 3]
    figures = seen.of_victims()
    assert figures["victim_time_p99[category=alone]"] == [2.0]
    assert figures["victim_time_p99[category=beside]"] == [9.0]
    assert figures["congestion_impact_p99"] == [4.5]
    assert figures["congestion_impact"] == [1.0, 1.0]
    seen.alone = [[1.0] * 49, [1.0] * 50]
    assert not [key for key in seen.of_victims() if "p99" in key]


def test_the_receiver_changes_from_round_to_round():
    rig = Rig(rank=0, world_size=3, local_rank=0, host="here", device=torch.device("cpu"))
    incast = Incast(rig, me=0, of=3, numel=128, messages=1)
    # Rounds 4 and 5: ranks 1 and 2 receive.
    figures = incast.figures(4, [[1.0, 1.0], [2.0, 0.5], [1.0, 4.0]])
    assert figures["incast_bandwidth"] == [(2 * 1024 / 2.0 + 2 * 1024 / 4.0) / 2]
    assert figures["slowest_sender_share"] == [(1.0 + 1 / 1.5) / 2]


@pytest.mark.parametrize(
    ("num_nodes", "ranks", "options", "reason"),
    [
        (
            1,
            8,
            {"between": "nodes"},
            "congestion between nodes needs 4 of them, two victims and two neighbours, but there is 1; "
            "'between: ranks' measures between ranks",
        ),
        (
            3,
            1,
            {"between": "nodes"},
            "congestion between nodes needs 4 of them, two victims and two neighbours, but there are 3",
        ),
        (1, 2, {}, "congestion between ranks needs 4 of them, two victims and two neighbours, but there are 2"),
        (1, 4, {"victim_size": 12}, "a message of 12 B is no whole number of 8 B words"),
        (1, 4, {"neighbour_size": 4100}, "a message of 4100 B is no whole number of 8 B words"),
        (1, 4, {}, None),
        (5, 8, {"between": "nodes"}, None),
    ],
)
def test_what_cannot_be_measured_is_refused(num_nodes, ranks, options, reason):
    assert Congestion().objection(point(num_nodes, ranks, **options), place(num_nodes, ranks)) == reason


def test_cases_are_told_apart_by_their_label():
    assert Congestion().label(point(1, 4)) == "ranks-all_reduce-8B-beside-incast-4KiBx2"
