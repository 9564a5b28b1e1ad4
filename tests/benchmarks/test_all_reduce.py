import pytest

from clusterbench.benchmarks.all_reduce import AllReduce
from clusterbench.cluster import Cluster
from clusterbench.engine.rig import Rig
from clusterbench.errors import SuiteError, WrongResult
from clusterbench.types import Case, Observation, Place
from tests.ranks import run_ranks

PLACE = Place(Cluster(1, 8, "cpu"), 1)


def derived(size_bytes, world_size, *iterations):
    point = {"size_bytes": size_bytes, "group_size": world_size}
    case = Case("x", "all_reduce", 2, point, "cpu", 1, world_size, 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [list(rank) for rank in zip(*iterations, strict=True)])
    return {metric.name: metric for metric in AllReduce.derive(case, observation, PLACE)}


def test_an_iteration_takes_as_long_as_its_slowest_rank():
    metrics = derived(2**20, 2, [1.0, 3.0], [5.0, 2.0], [4.0, 4.0])
    assert metrics["latency"].value == 4.0


def test_the_slow_end_of_the_time_is_the_low_end_of_the_bandwidth():
    algbw = derived(100, 2, [1.0, 1.0], [2.0, 2.0], [4.0, 4.0])["algbw"]
    assert (algbw.low, algbw.value, algbw.high) == (25.0, 50.0, 100.0)


def test_one_rank_has_no_bus_bandwidth():
    assert derived(2**20, 1, [1e-3])["busbw"].value == 0.0


def test_sizes_grow_by_the_factor_up_to_the_largest():
    points = AllReduce(min_size=8, max_size=512, factor=4.0).points(PLACE)
    assert [point["size_bytes"] for point in points] == [8, 32, 128, 512]


def test_a_largest_size_below_the_smallest_is_a_mistake():
    with pytest.raises(SuiteError) as caught:
        AllReduce(min_size=1024, max_size=8)
    assert str(caught.value) == "max_size is 8B, below min_size, 1KiB: there is nothing to measure"


def _check(fault):
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    rig = Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=torch.device("cpu"))
    if fault and rank == 1:
        real = rig.comm.all_reduce

        def broken(array, op):
            real(array, op)
            array[5] += 1

        rig.comm.all_reduce = broken
    (point,) = AllReduce(min_size=4096, max_size=4096).points(Place(Cluster(1, world_size, "cpu"), 1))
    try:
        return AllReduce.prepare(rig, point).check()
    except WrongResult as error:
        return str(error), error.evidence


@pytest.mark.gloo
def test_one_wrong_element_on_one_rank_is_found_there():
    right, wrong, _ = run_ranks(3, _check, True)
    assert right == {"wrong_elements": 0.0}
    assert wrong == (
        "all_reduce gave wrong results on rank 1 (host here): 1 of 1024 elements differ. "
        "First at index 5: got 6.0, expected 5.0.",
        {"wrong_elements": 1.0},
    )
