import pytest
import torch

from clusterbench.benchmarks.all_reduce import AllReduce
from clusterbench.cluster import Cluster
from clusterbench.engine.rig import Rig
from clusterbench.errors import SuiteError, WrongResult
from clusterbench.types import Case, Observation, Place
from tests.ranks import run_ranks

PLACE = Place(Cluster(1, 8, "cpu"), 1)


def case(size_bytes, world_size):
    point = {"size_bytes": size_bytes, "dtype": "float32"}
    return Case("x", "all_reduce", 1, point, "cpu", 1, world_size, 1, 0, 60.0)


def derived(size_bytes, world_size, *iterations):
    observation = Observation("x", "", 0, 1, ("a",), [list(rank) for rank in zip(*iterations, strict=True)])
    return {metric.name: metric for metric in AllReduce.derive(case(size_bytes, world_size), observation)}


def test_bandwidths_are_those_of_nccl_tests():
    # 1 GiB over 8 ranks in 5 ms: 214.7484 and 375.8096 GB/s, by the factors of nccl-tests' doc/PERFORMANCE.md.
    metrics = derived(2**30, 8, [5e-3] * 8)
    assert metrics["algbw"].value == pytest.approx(214.7484e9, rel=1e-6)
    assert metrics["busbw"].value == pytest.approx(375.8096e9, rel=1e-6)


def test_an_iteration_takes_as_long_as_its_slowest_rank():
    metrics = derived(2**20, 2, [1.0, 3.0], [5.0, 2.0], [4.0, 4.0])
    assert metrics["latency"].value == 4.0


def test_one_rank_has_no_bus_bandwidth():
    assert derived(2**20, 1, [1e-3])["busbw"].value == 0.0


def test_sizes_grow_by_the_factor_up_to_the_largest():
    points = AllReduce(min_size=8, max_size=512, factor=4).points(PLACE)
    assert [point["size_bytes"] for point in points] == [8, 32, 128, 512]


def test_a_largest_size_below_the_smallest_is_a_mistake():
    with pytest.raises(SuiteError) as caught:
        AllReduce(min_size=1024, max_size=8)
    assert str(caught.value) == "max_size is 8B, below min_size, 1KiB: there is nothing to measure"


def test_half_an_element_is_refused():
    (point,) = AllReduce(min_size=6, max_size=6).points(PLACE)
    expected = "a size of 6 B is not a whole number of float32 elements of 4 B"
    assert AllReduce().objection(point, PLACE) == expected


def _check(dtype, fault):
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    rig = Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=torch.device("cpu"))
    if fault and rank == 1:
        real = rig.comm.all_reduce

        def broken(array):
            real(array)
            array[5] += 1

        rig.comm.all_reduce = broken
    step = AllReduce.prepare(rig, {"size_bytes": 4096, "dtype": dtype})
    try:
        evidence = step.check()
    except WrongResult as error:
        return str(error)
    if not fault:  # else the rank that found it is gone
        step.run()
    return evidence


@pytest.mark.gloo
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
def test_a_right_sum_is_proven_in_every_dtype(dtype):
    assert run_ranks(3, _check, dtype, False) == [{"wrong_elements": 0.0}] * 3


@pytest.mark.gloo
def test_one_wrong_element_on_one_rank_is_found_there():
    right, wrong, _ = run_ranks(3, _check, "float32", True)
    assert right == {"wrong_elements": 0.0}
    assert wrong == (
        "all_reduce gave wrong results on rank 1 (host here): 1 of 1024 elements differ. "
        "First at index 5: got 3.0, expected 2.0."
    )
