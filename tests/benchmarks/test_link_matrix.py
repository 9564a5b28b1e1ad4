from collections import Counter
from itertools import combinations, groupby, pairwise

import pytest
import torch

from clusterbench.benchmarks import link_matrix
from clusterbench.benchmarks.link_matrix import LinkMatrix
from clusterbench.cluster import Cluster
from clusterbench.diagnoses.slow_link import SlowLink
from clusterbench.engine import clock
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.formulas.pairing import num_links
from clusterbench.rows import Row
from clusterbench.types import SAMPLES, Case, Observation, Place
from tests.ranks import Calls, run_ranks
from tests.report.synthetic import case as planted_case
from tests.report.synthetic import reading

MESSAGES_S, WORD_S = 1e-3, 1e-5


def point(num_nodes, ranks_of_node=1, **options):
    small = {"size": 8192, "window": 2, "pair_iterations": 3, "pair_warmup": 1}
    (only,) = LinkMatrix(**{**small, **options}).points(Place(Cluster(num_nodes, ranks_of_node, "cpu"), num_nodes))
    return only


class PlantedClock:
    """Shows the time that messages were planted to take, whatever they really took."""

    now_s = 0.0

    def mark(self):
        return self.now_s

    def settle(self):
        pass

    def seconds(self, marks):
        return [stop - start for start, stop in pairwise(marks)]


def _samples(matrix, slow):
    """What the pass gave on this rank, and the peers of its transfers, in order.

    A message takes twice as long between two ranks of ``slow``, or to and from its only one.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    real, peers, planted = link_matrix.transfer, [], PlantedClock()

    def watched(sent, received, peer):
        real(sent, received, peer)
        peers.append(peer)
        is_slow = {rank, peer} <= slow if len(slow) > 1 else bool(slow & {rank, peer})
        is_word = (*sent, *received)[0].numel() == 1
        planted.now_s += WORD_S if is_word else 2 * MESSAGES_S if is_slow else MESSAGES_S

    rig = Rig(rank=rank, world_size=dist.get_world_size(), local_rank=0, host="here", device=torch.device("cpu"))
    step = LinkMatrix.prepare(rig, matrix)
    step.check()
    step.run()
    link_matrix.transfer, real_clock_for, clock.clock_for = watched, clock.clock_for, lambda device: planted
    try:
        return LinkMatrix.prepare(rig, matrix).passes[SAMPLES](), peers
    finally:
        link_matrix.transfer, clock.clock_for = real, real_clock_for


def rows(matrix, world_size, samples, hosts):
    """The rows that follow from what the ranks gave."""
    case = Case("links", "link_matrix", 1, matrix, "cpu", len(hosts), world_size, 1, 0, 60.0)
    observation = Observation("links", case.hash, 0, 1, hosts, [[0.1]] * world_size, passes={SAMPLES: samples})
    about = ("run", "links", "link_matrix", 1, "ok", matrix, len(hosts), world_size, " ".join(hosts), "cpu")
    return [
        Row(
            *about,
            metric.name,
            metric.unit,
            metric.value,
            metric.low,
            metric.high,
            metric.iterations,
            detail=metric.detail,
        )
        for metric in LinkMatrix.derive(case, observation, Place(Cluster(len(hosts), 1, "cpu"), len(hosts)))
    ]


def findings(of_rows):
    return [
        (finding.where, finding.what)
        for finding in SlowLink().findings(reading(cases=[planted_case("a")], rows=of_rows))
    ]


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_every_pair_is_measured_once_and_no_rank_with_two_at_a_time(world_size):
    matrix = point(world_size)
    ranks = run_ranks(world_size, _samples, matrix, set())
    assert [sorted(peer for peer, _ in groupby(peers)) for _, peers in ranks] == [
        [peer for peer in range(world_size) if peer != rank] for rank in range(world_size)
    ]
    hosts = tuple(f"n{index}" for index in range(world_size))
    derived = rows(matrix, world_size, [samples for samples, _ in ranks], hosts)
    one_way = [(row.detail["source"], row.detail["part"]) for row in derived if row.metric == "pair_bandwidth"]
    assert len(one_way) == len(set(one_way)) == world_size * (world_size - 1)
    pairs_both_ways = {frozenset(row.detail.values()) for row in derived if row.metric == "pair_bandwidth_both"}
    assert pairs_both_ways == {frozenset(pair) for pair in combinations(hosts, 2)}
    links = {row.metric: row.value for row in derived if row.metric.startswith("links_")}
    assert links == {"links_covered": num_links(world_size), "links_total": num_links(world_size)}
    exactly = {
        "pair_bandwidth": 2 * 8192 / (MESSAGES_S + WORD_S),
        "pair_bandwidth_both": 4 * 8192 / MESSAGES_S,
        "pair_latency": WORD_S,
    }
    for metric, value in exactly.items():
        figures = [row.value for row in derived if row.metric == metric]
        assert figures == pytest.approx([value] * len(figures))
    assert {row.iterations for row in derived if row.metric.startswith("pair_")} == {3}


@pytest.mark.gloo
def test_a_slow_pair_is_the_one_cell_that_is_named_after_a_second_look():
    matrix = point(4)
    samples = [of_rank for of_rank, _ in run_ranks(4, _samples, matrix, {1, 3})]
    derived = rows(matrix, 4, samples, ("n0", "n1", "n2", "n3"))
    ((where, what),) = findings(derived)
    assert where == "n1 <-> n3"
    assert what == "the link carries 50 % of what the median link does"
    again = [tuple(row.detail.values()) for row in derived if row.metric == "proven_bandwidth"]
    assert sorted(again) == [("n1", "n3"), ("n3", "n1")]


@pytest.mark.gloo
def test_a_slow_node_is_named_after_it_met_proven_partners():
    matrix = point(5)
    samples = [of_rank for of_rank, _ in run_ranks(5, _samples, matrix, {2})]
    derived = rows(matrix, 5, samples, ("n0", "n1", "n2", "n3", "n4"))
    ((where, what),) = findings(derived)
    assert where == "n2"
    assert what == "slow with most of its partners: 50 % of what the median node carries"
    again = [row.detail for row in derived if row.metric == "proven_bandwidth"]
    assert len(again) == 4  # with two partners, both ways
    assert all("n2" in detail.values() for detail in again)


@pytest.mark.gloo
def test_equal_nodes_are_silent():
    matrix = point(4)
    samples = [of_rank for of_rank, _ in run_ranks(4, _samples, matrix, set())]
    assert findings(rows(matrix, 4, samples, ("n0", "n1", "n2", "n3"))) == []


@pytest.mark.gloo
def test_all_ranks_of_a_node_may_send_at_once():
    matrix = point(2, ranks_of_node=2, ranks_per_node="all")
    ranks = run_ranks(4, _samples, matrix, set())
    assert [set(peers) for _, peers in ranks] == [{2}, {3}, {0}, {1}]
    assert [bool(samples) for samples, _ in ranks] == [True, False, True, False]
    derived = rows(matrix, 4, [samples for samples, _ in ranks], ("n0", "n1"))
    rates = [row.value for row in derived if row.metric == "pair_bandwidth"]
    # Two ranks, two messages of 8 KiB each.
    assert rates == pytest.approx([4 * 8192 / (MESSAGES_S + WORD_S)] * 2)


@pytest.mark.gloo
def test_ranks_of_a_rail_meet_alone_and_a_slow_one_is_named_by_its_host():
    matrix = point(3, ranks_of_node=2, between="rails")
    ranks = run_ranks(6, _samples, matrix, {3})
    assert [sorted({*peers}) for _, peers in ranks] == [[2, 4], [3, 5], [0, 4], [1, 5], [0, 2], [1, 3]]
    derived = rows(matrix, 6, [samples for samples, _ in ranks], ("n0", "n1", "n2"))
    assert {row.metric: row.value for row in derived if row.metric.startswith("links_")} == {
        "links_covered": 6,
        "links_total": 6,
    }
    ((where, what),) = findings(derived)
    assert (where, what) == ("n1:3", "slow with most of its partners: 50 % of what the median link carries")


def in_rails(num_nodes, rails, slow):
    """What is said of nodes with as many ranks, of which those that ``slow`` names carry 60 %."""
    matrix = point(num_nodes, ranks_of_node=rails, between="rails")
    samples = [{} for _ in range(num_nodes * rails)]
    for a, b in (pair for pairs in link_matrix._schedule(matrix) for pair in pairs):
        for source, part in ((a, b), (b, a)):
            rate = 6e9 if {a, b} & slow else 1e10
            samples[source][f"pair_bandwidth[part={part},source={source}]"] = [rate] * 3
    return rows(matrix, num_nodes * rails, samples, tuple(f"n{number}" for number in range(num_nodes)))


def test_a_slow_rail_and_a_host_that_is_slow_in_most_are_named_as_such():
    assert findings(in_rails(4, 4, slow={2, 6, 10, 14})) == [
        (
            "rail 2 (n0:2, n1:6, n2:10, n3:14)",
            "the whole rail is slow: its links carry 60 % of what the median link does",
        )
    ]
    assert findings(in_rails(4, 4, slow={4, 5, 6, 7})) == [
        ("n1, in most rails", "slow with most of its partners: 60 % of what the median link carries")
    ]
    assert findings(in_rails(4, 4, slow=set())) == []


def test_rails_of_one_node_are_refused():
    place = Place(Cluster(1, 8, "cpu"), 1)
    (only,) = LinkMatrix(between="rails").points(place)
    assert LinkMatrix(between="rails").objection(only, place) == (
        "rails are between nodes, but there is one; 'between: ranks' measures inside it"
    )


def _check(fault):
    import torch.distributed as dist

    rank = dist.get_rank()
    rig = Rig(rank=rank, world_size=3, local_rank=0, host="here", device=torch.device("cpu"))
    real = link_matrix.transfer

    def broken(sent, received, peer):
        real(sent, received, peer)
        if fault and (rank, peer) == (2, 0):
            received[0][7] += 1

    link_matrix.transfer = broken
    try:
        return LinkMatrix.prepare(rig, point(3)).check()
    except WrongResult as error:
        return str(error)
    finally:
        link_matrix.transfer = real


@pytest.mark.gloo
def test_every_message_is_proven_to_come_from_its_sender():
    assert run_ranks(3, _check, False) == [{"wrong_elements": 0.0}] * 3


@pytest.mark.gloo
def test_one_wrong_word_is_found_where_it_arrived_and_nobody_hangs():
    *right, wrong = run_ranks(3, _check, True)
    assert right == [{"wrong_elements": 0.0}] * 2
    assert wrong == (
        "the message from rank 0 to rank 2 gave wrong results on rank 2 (host here): 1 of 1024 elements differ. "
        "First at index 7: got 511, expected 510."
    )


def _proven_behind_the_clock(fault, moment):
    """What is said by ``confirm`` and by the pass of messages that are less than they were, from a moment on."""
    import torch.distributed as dist

    rig = Rig(rank=dist.get_rank(), world_size=3, local_rank=0, host="here", device=torch.device("cpu"))
    real, step = link_matrix.transfer, LinkMatrix.prepare(rig, point(3, between="ranks"))

    def less(sent, received, peer):
        arrived = [torch.empty_like(message) for message in received]
        real(sent, arrived, peer)
        for message, whole in zip(received, arrived, strict=True) if fault != "nothing" else ():
            numel = len(whole) // 2 if fault == "half" else len(whole)
            message[:numel] = whole[:numel] + (1 if fault == "another's" else 0)

    said = []
    step.check()
    link_matrix.transfer = less if moment == "timed" else real
    step.run()
    link_matrix.transfer = less if moment == "pass" else real
    for look in (lambda: step.confirm(True), step.passes[SAMPLES]) if moment != "pass" else (step.passes[SAMPLES],):
        try:
            look()
            said.append("")
        except WrongResult as error:
            said.append(str(error))
    link_matrix.transfer = real
    return said


def _rank_1_reads_an_hour():
    """Figures of a pair, of which rank 1 sees every repetition last an hour."""
    import torch.distributed as dist

    from clusterbench.engine import loop

    rank, real = dist.get_rank(), loop.measure
    rig = Rig(rank=rank, world_size=2, local_rank=0, host="here", device=torch.device("cpu"))
    step = LinkMatrix.prepare(rig, point(2, between="ranks", size=2**13, window=4))
    step.check()
    if rank == 1:
        loop.measure = lambda *arguments: [3600.0 for _ in real(*arguments)]
    try:
        return step.passes[SAMPLES]()
    finally:
        loop.measure = real


@pytest.mark.gloo
def test_one_way_the_clock_of_the_sender_counts_and_both_ways_the_slower():
    """Four messages of 8 KiB in an hour are 9.1 B/s."""
    first, second = run_ranks(2, _rank_1_reads_an_hour)
    an_hour = 4 * 2**13 / 3600
    assert min(first["pair_bandwidth[part=1,source=0]"]) > an_hour
    assert {*second["pair_bandwidth[part=0,source=1]"]} == {an_hour}
    assert {*first["pair_bandwidth_both[part=1,source=0]"]} == {2 * an_hour}
    assert max(first["pair_latency[part=1,source=0]"]) < 1800


def _one_wrong_message_of_a_window(kind, number):
    """What the pass of two ranks says where the third message of a window differs, one way or both."""
    import torch.distributed as dist

    rank = dist.get_rank()
    rig = Rig(rank=rank, world_size=2, local_rank=0, host="here", device=torch.device("cpu"))
    real, step = link_matrix.transfer, LinkMatrix.prepare(rig, point(2, between="ranks", window=4))

    def broken(sent, received, peer):
        real(sent, received, peer)
        if rank == 1 and len(received) == 4 and (kind == "both") == (len(sent) == 4):
            received[number][7] += 1

    step.check()
    link_matrix.transfer = broken
    try:
        step.passes[SAMPLES]()
    except WrongResult as error:
        return str(error)
    finally:
        link_matrix.transfer = real
    return ""


@pytest.mark.gloo
@pytest.mark.parametrize(("kind", "number"), [("forth", 2), ("both", 3)])
def test_every_message_of_a_window_is_compared(kind, number):
    right, wrong = run_ranks(2, _one_wrong_message_of_a_window, kind, number)
    assert right == ""
    assert wrong.startswith("the message from rank 0 to rank 1 gave wrong results on rank 1 (host here): 1 of 1024 ele")


_FAULTS = [(3, fault, moment) for fault in ("nothing", "half", "another's") for moment in ("timed", "pass")]
_proofs = Calls(_proven_behind_the_clock, [*_FAULTS, (3, "", "never")])


def _less_from_the_second_on():
    """What the pass of two ranks says where the first window of each kind alone has all its messages."""
    import torch.distributed as dist

    rig = Rig(rank=dist.get_rank(), world_size=2, local_rank=0, host="here", device=torch.device("cpu"))
    real, step, windows = link_matrix.transfer, LinkMatrix.prepare(rig, point(2, between="ranks", window=4)), Counter()

    def lazy(sent, received, peer):
        ways = len(sent), len(received)
        windows[ways] += 1
        some = slice(0, 1 if max(ways) > 1 and windows[ways] > 1 else None)
        real(sent[some], received[some], peer)

    step.check()
    link_matrix.transfer = lazy
    try:
        step.passes[SAMPLES]()
    except WrongResult as error:
        return str(error)
    finally:
        link_matrix.transfer = real
    return ""


@pytest.mark.gloo
def test_windows_that_have_less_behind_the_first_are_found():
    for rank, said in enumerate(run_ranks(2, _less_from_the_second_on)):
        assert said.startswith(f"the message from rank {1 - rank} to rank {rank} gave wrong results on rank {rank}")


@pytest.mark.gloo
@pytest.mark.parametrize(("num_ranks", "fault", "moment"), _FAULTS)
def test_messages_that_are_less_once_they_are_timed_are_found_behind_the_clock(num_ranks, fault, moment):
    for rank, (said, *_) in enumerate(_proofs(num_ranks, fault, moment)):
        assert said.startswith(("the message from rank ", "the word of rank "))
        assert f"gave wrong results on rank {rank} (host here)" in said


@pytest.mark.gloo
def test_right_messages_are_right_behind_the_clock_and_in_the_pass():
    assert _proofs(3, "", "never") == [["", ""]] * 3


def test_ranks_are_named_by_their_host():
    matrix = point(2, ranks_of_node=2, between="ranks")
    samples = [{"pair_bandwidth[part=3,source=0]": [1e9]}, {}, {}, {}]
    (row_of_pair,) = [row for row in rows(matrix, 4, samples, ("n0", "n1")) if row.metric == "pair_bandwidth"]
    assert dict(row_of_pair.detail) == {"source": "n0:0", "part": "n1:3"}


def test_ranks_of_two_nodes_with_three_ranks_each_have_rails_and_hosts():
    """Three rails of one link each; between ranks 6 * 5 / 2 links."""
    rails, ranks = (point(2, ranks_of_node=3, between=between) for between in ("rails", "ranks"))
    assert link_matrix._rails(rails) == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}
    assert link_matrix._hosts(rails) == link_matrix._hosts(ranks) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    assert (link_matrix._links_total(rails), link_matrix._links_total(ranks)) == (3, 15)
    assert (link_matrix._rails(ranks), link_matrix._hosts(point(2))) == (None, None)


def test_both_directions_are_one_link_and_medians_are_each_of_their_own():
    there, back = {"pair_bandwidth[part=1,source=0]": [3e9]}, {"pair_bandwidth[part=0,source=1]": [1e9]}
    samples = [
        {**there, "pair_latency[part=1,source=0]": [4e-6]},
        {**back, "pair_bandwidth_both[part=0,source=1]": [5e9]},
    ]
    figures = {row.metric: row.value for row in rows(point(2), 2, samples, ("n0", "n1"))}
    assert (figures["links_covered"], figures["links_total"]) == (1, 1)
    assert (figures["median_bandwidth"], figures["median_latency"]) == (2e9, 4e-6)


def test_bandwidth_is_bytes_of_the_window_over_its_time_and_latency_half_the_round_trip():
    samples = {(0, 1): {"latency": [4e-6], "forth": [0.5], "back": [0.25], "both": [1.0]}}
    figures = link_matrix._figures(samples, {}, point(2, size=2**20, window=8))
    assert figures[0, 1] == {
        "pair_bandwidth[part=1,source=0]": [16 * 2**20],
        "pair_latency[part=1,source=0]": [2e-6],
        "pair_bandwidth_both[part=1,source=0]": [16 * 2**20],
    }
    assert figures[1, 0] == {"pair_bandwidth[part=0,source=1]": [32 * 2**20]}


def test_what_is_proven_is_what_the_second_pass_saw():
    first = {(0, 1): {"latency": [4e-6], "forth": [0.5], "back": [0.25], "both": [1.0]}}
    again = {(0, 1): {"latency": [8e-6], "forth": [1.0], "back": [2.0], "both": [4.0]}}
    figures = link_matrix._figures(first, again, point(2, size=2**20, window=8))
    assert figures[0, 1]["proven_bandwidth[part=1,source=0]"] == [8 * 2**20]
    assert figures[1, 0]["proven_bandwidth[part=0,source=1]"] == [4 * 2**20]
    assert figures[0, 1]["pair_bandwidth[part=1,source=0]"] == [16 * 2**20]


def test_beyond_16_nodes_only_some_links_are_planned():
    matrix = point(100, partners=4)
    covered = sum(map(len, link_matrix._schedule(matrix)))
    assert 4 * 50 <= covered <= 5 * 50
    assert LinkMatrix().predict(matrix, Place(Cluster(100, 1, "cpu"), 100))["links_total"].value == 4950


def test_one_node_has_no_pair():
    place = Place(Cluster(1, 4, "cpu"), 1)
    (matrix,) = LinkMatrix().points(place)
    assert LinkMatrix().objection(matrix, place) == (
        "a link matrix between nodes needs two of them, but there is one; 'between: ranks' measures inside a node"
    )
    (matrix,) = LinkMatrix(between="ranks").points(place)
    assert LinkMatrix().objection(matrix, place) is None


def test_a_broken_word_is_refused():
    place = Place(Cluster(2, 1, "cpu"), 2)
    (matrix,) = LinkMatrix(size=4100).points(place)
    assert LinkMatrix().objection(matrix, place) == "a message of 4100 B is no whole number of 8 B words"


def test_inside_a_node_of_known_gpus_the_link_is_the_upper_bound():
    place = Place(Cluster(1, 8, "cuda", "NVIDIA H100 80GB HBM3"), 1)
    (matrix,) = LinkMatrix(between="ranks").points(place)
    assert LinkMatrix().predict(matrix, place)["median_bandwidth"].value == 450e9
    between_nodes = Place(Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3"), 2)
    (matrix,) = LinkMatrix().points(between_nodes)
    assert "median_bandwidth" not in LinkMatrix().predict(matrix, between_nodes)
