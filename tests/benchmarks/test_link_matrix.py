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
from tests.ranks import run_ranks
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
        "First at index 7: got 510, expected 509."
    )


def test_ranks_are_named_by_their_host():
    matrix = point(2, ranks_of_node=2, between="ranks")
    samples = [{"pair_bandwidth[part=3,source=0]": [1e9]}, {}, {}, {}]
    (row_of_pair,) = [row for row in rows(matrix, 4, samples, ("n0", "n1")) if row.metric == "pair_bandwidth"]
    assert dict(row_of_pair.detail) == {"source": "n0:0", "part": "n1:3"}


def test_bandwidth_is_bytes_of_the_window_over_its_time_and_latency_half_the_round_trip():
    samples = {(0, 1): {"latency": [4e-6], "forth": [0.5], "back": [0.25], "both": [1.0]}}
    figures = link_matrix._figures(samples, {}, point(2, size=2**20, window=8))
    assert figures[0, 1] == {
        "pair_bandwidth[part=1,source=0]": [16 * 2**20],
        "pair_latency[part=1,source=0]": [2e-6],
        "pair_bandwidth_both[part=1,source=0]": [16 * 2**20],
    }
    assert figures[1, 0] == {"pair_bandwidth[part=0,source=1]": [32 * 2**20]}


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
