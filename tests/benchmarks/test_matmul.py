import pytest
import torch

from clusterbench.benchmarks.matmul import SEARCHED, Matmul, _missing
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, WrongResult
from clusterbench.measured.step import _measured_peaks
from clusterbench.rows import Row
from clusterbench.types import Case, Observation, Place, Timing, WarmUp
from tests.benchmarks.alone import median_by_events_s, median_s, rig

CPU = Place(Cluster(1, 2, "cpu"), 1)


def test_the_rate_is_two_n_cubed_over_the_slowest_rank():
    case = Case("x", "matmul", 1, {"size": 1000, "dtype": "float32"}, "cpu", 1, 2, 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [[0.5], [2.0]])
    metrics = {metric.name: metric.value for metric in Matmul.derive(case, observation, CPU)}
    assert metrics["flops_per_s_per_rank"] == 1e9


def test_the_rate_is_taken_at_each_number_of_ranks_a_layout_may_use():
    place = Place(Cluster(1, 6, "cpu"), 1)
    points = [*Matmul(sizes=(64,)).points(place)]
    assert [point["num_ranks"] for point in points] == [1, 2, 4, 6]
    assert [Matmul().world_size(point, place) for point in points] == [1, 2, 4, 6]


def test_across_nodes_only_all_ranks_are_taken():
    points = Matmul(sizes=(64,)).points(Place(Cluster(2, 8, "cpu"), 2))
    assert [point["num_ranks"] for point in points] == [16]


def test_the_dense_peak_of_the_datasheet_stands_beside_it():
    place = Place(Cluster(1, 1, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 1)
    expected = Matmul().predict({"size": 8192, "dtype": "bfloat16", "num_ranks": 1}, place)["flops_per_s_per_rank"]
    assert expected.value == 989e12


def test_nothing_is_expected_of_a_cpu():
    assert Matmul().predict({"size": 64, "dtype": "float32", "num_ranks": 1}, Place(Cluster(1, 1, "cpu"), 1)) == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8"])
def test_a_right_product_is_proven_exactly_in_every_dtype(dtype):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": dtype, "num_ranks": 1})
    assert step.check() == {"wrong_elements": 0.0}
    step.run()


@pytest.mark.parametrize(("dtype", "precision"), [("tf32", "high"), ("float32", "highest")])
def test_tensor_cores_multiply_tf32_alone_and_the_next_case_finds_what_was_set_before(monkeypatch, dtype, precision):
    monkeypatch.setattr("clusterbench.benchmarks.matmul._missing", lambda device, dtype: "")
    step = Matmul.prepare(rig(), {"size": 96, "dtype": dtype, "num_ranks": 1})
    real, seen = torch.mm, []
    monkeypatch.setattr(torch, "mm", lambda *of, out: seen.append(torch.get_float32_matmul_precision()) or real(*of))
    step.run()
    assert seen == [precision]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_wrong_product_is_found(monkeypatch):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": "float32", "num_ranks": 1})
    real = torch.mm

    def broken(a, b, **more):
        product = real(a, b, **more)
        return product + 1 if product.dtype == torch.float32 else product

    monkeypatch.setattr(torch, "mm", broken)
    with pytest.raises(WrongResult, match="matmul gave wrong results on rank 0"):
        step.check()


def test_one_wrong_element_in_a_row_that_is_not_compared_is_found(monkeypatch):
    step = Matmul.prepare(rig(), {"size": 256, "dtype": "bfloat16", "num_ranks": 1})  # each fourth row is
    assert step.check() == {"wrong_elements": 0.0}
    real = torch.mm

    def broken(a, b, **more):
        product = real(a, b, **more)
        if "out" in more:
            product[1, 200] += 1
        return product

    monkeypatch.setattr(torch, "mm", broken)
    with pytest.raises(
        WrongResult, match=r"matmul, summed by rows, gave wrong .*: 1 of 256 elements differ\. First at index 1:"
    ):
        step.check()


def test_a_product_that_does_less_once_it_was_proven_is_found_behind_the_clock(monkeypatch):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": "float32", "num_ranks": 1})
    step.check()
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out=None: real(a, b) if out is None else out)
    step.run()
    with pytest.raises(WrongResult, match="matmul gave wrong results on rank 0"):
        step.confirm(True)


def test_a_product_that_is_not_made_again_of_the_same_operands_is_found(monkeypatch):
    step = Matmul.prepare(rig(), {"size": 96, "dtype": "float32", "num_ranks": 1})
    real, made = torch.mm, set()

    def lazy(a, b, out=None):
        operands = a.data_ptr(), a._version, b.data_ptr(), b._version
        if out is not None and operands in made:
            return out
        made.add(operands)
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", lazy)
    with pytest.raises(WrongResult, match="matmul gave wrong results on rank 0"):
        step.check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_what_is_timed_is_of_whole_matrices_of_normal_numbers_in_the_dtype_that_was_asked_for(monkeypatch, dtype):
    step = Matmul.prepare(rig(), {"m": 96, "n": 32, "k": 160, "dtype": dtype, "num_ranks": 1})
    step.check()
    real, seen = torch.mm, []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: seen.append((a, b, out)) or real(a, b, out=out))
    step.run()
    ((a, b, out),) = seen
    assert [(each.dtype, each.shape) for each in (a, b, out)] == [
        (getattr(torch, dtype), shape) for shape in ((96, 160), (160, 32), (96, 32))
    ]
    # whole numbers, most of them 0, as the proof has them, take less power than what a step multiplies
    for operand in (a, b):
        assert (operand == operand.round()).float().mean() < 0.05
        assert operand.float().std().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("left_out", ["a scale", "the layout"])
def test_a_wrong_product_of_eight_bit_floats_is_found(monkeypatch, left_out):
    step = Matmul.prepare(rig(), {"m": 96, "n": 32, "k": 160, "dtype": "float8", "num_ranks": 1})
    assert step.check() == {"wrong_elements": 0.0}
    real = torch._scaled_mm

    def broken(a, b, **options):
        if left_out == "a scale":
            options["scale_b"] = torch.ones(())
            return real(a, b, **options)
        return real(a, b.as_strided(b.shape, (b.shape[1], 1)).t().contiguous().t(), **options)

    monkeypatch.setattr(torch, "_scaled_mm", broken)
    with pytest.raises(WrongResult, match="matmul gave wrong results on rank 0"):
        step.check()


def test_the_peak_of_eight_bit_floats_is_their_own():
    place = Place(Cluster(1, 1, "cuda", gpu_name="NVIDIA H200"), 1)
    expected = Matmul().predict({"size": 8192, "dtype": "float8", "num_ranks": 1}, place)["flops_per_s_per_rank"]
    assert expected.value == 1979e12


def test_a_size_that_eight_bit_floats_cannot_have_is_refused():
    point = {"m": 96, "n": 100, "k": 96, "dtype": "float8", "num_ranks": 1}
    assert Matmul().objection(point, CPU) == "a float8 product takes multiples of 16 only, and 100 is none"
    assert Matmul().objection({**point, "dtype": "bfloat16"}, CPU) is None
    assert Matmul().objection({**point, "n": 112}, CPU) is None


def test_a_gpu_without_eight_bit_floats_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert _missing("cuda", "float8") == (
        "float8 products (e4m3fn) are those of NVIDIA GPUs since the L4 and the H100, and this device has none"
    )
    assert _missing("cuda", "tf32") == _missing("cuda", "bfloat16") == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert _missing("cuda", "float8") == ""


def test_a_search_adds_shapes_to_the_squares_and_repeats_none():
    points = list(Matmul(sizes=(8192, 6144), search=True).points(Place(Cluster(1, 1, "cpu"), 1)))
    shapes = [(point["size"],) * 3 if "size" in point else (point["m"], point["n"], point["k"]) for point in points]
    assert shapes[:2] == [(8192, 8192, 8192), (6144, 6144, 6144)]
    assert len(shapes) == len(set(shapes)) == 2 + len(SEARCHED) - 1
    assert all(length % 256 == 0 for shape in shapes for length in shape)
    assert any(m != n != k for m, n, k in shapes)


def test_the_help_says_how_many_shapes_a_search_tries():
    assert len(SEARCHED) == 16
    assert "sixteen more shapes" in Matmul.options()["search"].help
    assert max(SEARCHED, key=lambda shape: shape[0] * shape[1]) == (16384, 16384, 4096)


def test_a_shape_that_is_not_square_counts_two_m_n_k():
    point = {"m": 100, "n": 200, "k": 500, "dtype": "float32", "num_ranks": 1}
    case = Case("x", "matmul", 1, point, "cpu", 1, 1, 1, 0, 60.0)
    metrics = {
        metric.name: metric.value for metric in Matmul.derive(case, Observation("x", "", 0, 1, ("a",), [[0.02]]), CPU)
    }
    assert metrics["flops_per_s_per_rank"] == 1e9
    assert Matmul().label(point) == "100x200x500-float32"


def test_a_product_that_is_not_square_is_proven():
    step = Matmul.prepare(rig(), {"m": 96, "n": 32, "k": 160, "dtype": "float32", "num_ranks": 1})
    assert step.check() == {"wrong_elements": 0.0}
    assert step.run().shape == (96, 32)


def test_a_shape_of_the_search_can_be_the_peak_that_training_is_held_against():
    def row(value, **point):
        about = ("r", "x", "matmul", 1, "ok", {**point, "dtype": "bfloat16", "num_ranks": 1}, 1, 1, "a", "cuda")
        return Row(*about, "flops_per_s_per_rank", "FLOP/s", value)

    (best,) = _measured_peaks([row(7e14, size=8192), row(8e14, m=8192, n=8192, k=16384)], ()).values()
    assert best.value == 8e14


def test_a_product_that_need_not_settle_says_so_in_its_point():
    (point,) = Matmul(sizes=(64,)).points(Place(Cluster(1, 1, "cuda"), 1))
    (quick,) = Matmul(sizes=(64,), settle=False).points(Place(Cluster(1, 1, "cuda"), 1))
    assert "settle" not in point
    assert quick == {**point, "settle": False}


def test_the_sustained_rate_is_the_figure_and_the_burst_stands_beside_it():
    case = Case("x", "matmul", 1, {"size": 1000, "dtype": "bfloat16"}, "cuda", 1, 2, 3, 0, 60.0)
    warm_ups = [WarmUp(True, 0.002, 1.6, 1, burst_s) for burst_s in ([1.0, 1.0, 1.0], [0.5, 1.25, 1.0])]
    timing = [Timing(0.0, 8.0, warm_up) for warm_up in warm_ups]
    observation = Observation("x", "", 0, 1, ("a",), [[2.0] * 4, [1.0] * 4], timing=timing)
    metrics = {metric.name: metric for metric in Matmul.derive(case, observation, CPU)}
    assert metrics["flops_per_s_per_rank"].value == 1e9
    burst = metrics["burst_flops_per_s_per_rank"]
    assert (burst.value, burst.low, burst.high, burst.iterations) == (2e9, 1.6e9, 2e9, 3)


def test_without_a_burst_there_is_no_figure_of_one():
    case = Case("x", "matmul", 1, {"size": 1000, "dtype": "float32"}, "cpu", 1, 1, 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), [[2.0]], timing=[Timing(0.0, 8.0)])
    assert "burst_flops_per_s_per_rank" not in {metric.name for metric in Matmul.derive(case, observation, CPU)}


def test_tf32_is_not_on_a_cpu():
    with pytest.raises(NotHere) as caught:
        Matmul.prepare(rig(), {"size": 64, "dtype": "tf32", "num_ranks": 1})
    assert str(caught.value) == (
        "tf32 is a mode of the tensor cores of NVIDIA GPUs since the A100, and this device has none"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_time_on_a_gpu_is_that_of_plain_events(dtype):
    step = Matmul.prepare(rig("cuda"), {"size": 4096, "dtype": dtype, "num_ranks": 1})
    assert step.check() == {"wrong_elements": 0.0}
    a, b = (torch.randn(4096, 4096, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    c = torch.empty_like(a)
    assert median_s(step.run) == pytest.approx(median_by_events_s(lambda: torch.mm(a, b, out=c)), rel=0.15)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tf32_is_faster_than_float32_and_leaves_the_precision_as_it_was():
    times_s = {}
    for dtype in ("float32", "tf32"):
        step = Matmul.prepare(rig("cuda"), {"size": 8192, "dtype": dtype, "num_ranks": 1})
        assert step.check() == {"wrong_elements": 0.0}
        times_s[dtype] = median_s(step.run)
        assert torch.get_float32_matmul_precision() == "highest"
    assert times_s["tf32"] < 0.7 * times_s["float32"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or _missing("cuda", "float8") != "", reason="no GPU with float8")
def test_eight_bit_floats_are_faster_than_sixteen_bits():
    times_s = {}
    for dtype in ("bfloat16", "float8"):
        step = Matmul.prepare(rig("cuda"), {"size": 8192, "dtype": dtype, "num_ranks": 1})
        assert step.check() == {"wrong_elements": 0.0}
        times_s[dtype] = median_s(step.run)
    assert times_s["float8"] < 0.75 * times_s["bfloat16"]
