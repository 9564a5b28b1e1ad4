import pytest
import torch

from clusterbench.benchmarks.matmul import Matmul
from clusterbench.cluster import Cluster
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.types import Case, Observation, Place


def rig():
    return Rig(rank=0, world_size=1, local_rank=0, host="here", device=torch.device("cpu"))


def test_the_rate_is_two_n_cubed_over_the_slowest_rank():
    case = Case("x", "matmul", 1, {"size": 1000, "dtype": "float32"}, "cpu", 1, 2, 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [[0.5], [2.0]])
    metrics = {metric.name: metric.value for metric in Matmul.derive(case, observation)}
    assert metrics["flops_per_s_per_rank"] == 1e9


def test_the_rate_is_taken_at_each_number_of_ranks_a_layout_may_use():
    points = Matmul(sizes=(64,)).points(Place(Cluster(1, 6, "cpu"), 1))
    assert [point["num_ranks"] for point in points] == [1, 2, 4, 6]


def test_across_nodes_only_all_ranks_are_taken():
    points = Matmul(sizes=(64,)).points(Place(Cluster(2, 8, "cpu"), 2))
    assert [point["num_ranks"] for point in points] == [16]


def test_the_dense_peak_of_the_datasheet_stands_beside_it():
    place = Place(Cluster(1, 1, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 1)
    expected = Matmul().predict({"size": 8192, "dtype": "bfloat16", "num_ranks": 1}, place)["flops_per_s_per_rank"]
    assert expected.value == 989e12


def test_nothing_is_expected_of_a_cpu():
    assert Matmul().predict({"size": 64, "dtype": "float32", "num_ranks": 1}, Place(Cluster(1, 1, "cpu"), 1)) == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_right_product_is_proven_exactly_in_every_dtype(dtype):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": dtype, "num_ranks": 1})
    assert step.check() == {"wrong_elements": 0.0}
    step.run()


def test_a_wrong_product_is_found(monkeypatch):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": "float32", "num_ranks": 1})
    real = torch.mm

    def broken(a, b, **more):
        product = real(a, b, **more)
        return product + 1 if product.dtype == torch.float32 else product

    monkeypatch.setattr(torch, "mm", broken)
    with pytest.raises(WrongResult, match="matmul gave wrong results on rank 0"):
        step.check()
