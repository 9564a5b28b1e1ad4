import pytest
import torch

from clusterbench.benchmarks.cpu_memory import CpuMemory, array_over_cache, last_level_caches
from clusterbench.cluster import Cluster
from clusterbench.errors import WrongResult
from clusterbench.types import Place
from tests.benchmarks.alone import CPU, derived, rig

KERNELS = ["copy", "scale", "add", "triad"]


def point(kernel, size_bytes=8000):
    return {"size_bytes": size_bytes, "kernel": kernel, "num_ranks": 1, "ranks_per_host": 1}


@pytest.mark.parametrize(("kernel", "arrays"), [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3)])
def test_bytes_are_counted_as_stream_does(kernel, arrays):
    metrics = derived("cpu_memory", point(kernel, 10**9), [[0.5], [1.0]])
    assert metrics["bandwidth_per_rank"].value == arrays * 1e9
    assert metrics["bandwidth"].value == 2 * arrays * 1e9


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_element_of_each_loop_is_proven(kernel):
    step = CpuMemory.prepare(rig(rank=3), point(kernel))
    assert step.check()["wrong_elements"] == 0.0
    step.run()


@pytest.mark.parametrize(("kernel", "function"), [("scale", "mul"), ("add", "add"), ("triad", "add")])
def test_a_wrong_element_is_found(monkeypatch, kernel, function):
    step = CpuMemory.prepare(rig(), point(kernel))
    real = getattr(torch, function)

    def broken(*inputs, out, **more):
        real(*inputs, out=out, **more)
        out[5] += 1

    monkeypatch.setattr(torch, function, broken)
    with pytest.raises(WrongResult, match=f"{kernel} gave wrong results on rank 0 .* 1 of 1000 .* at index 5: got"):
        step.check()


def test_a_loop_that_writes_nothing_while_it_is_timed_is_found():
    step = CpuMemory.prepare(rig(), point("triad"))
    step.check()
    with pytest.raises(WrongResult, match=r"triad gave wrong results on rank 0 .* 1000 of 1000 elements differ"):
        step.confirm(True)
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


def test_the_rate_is_taken_at_each_number_of_ranks_of_a_host():
    points = list(CpuMemory(kernels=("triad",)).points(Place(Cluster(1, 6, "cuda"), 1)))
    assert [(point["num_ranks"], point["ranks_per_host"]) for point in points] == [(1, 1), (2, 2), (4, 4), (6, 6)]


def test_across_nodes_all_ranks_run():
    (only,) = CpuMemory(kernels=("triad",)).points(Place(Cluster(2, 8, "cuda"), 2))
    assert (only["num_ranks"], only["ranks_per_host"]) == (16, 8)


def test_half_an_element_is_refused():
    assert CpuMemory().objection(point("copy", 12), CPU) == (
        "a size of 12 B is not a whole number of float64 elements of 8 B"
    )


def test_arrays_that_a_cache_may_hold_are_said_so():
    small = derived("cpu_memory", point("copy"), [[1.0]], [{"wrong_elements": 0.0, "array_over_cache": 1.6}])
    assert small["bandwidth"].basis == (
        "arrays are 1.6 times the last-level cache and STREAM asks for 4, so a part of this is the cache's rate"
    )
    ratios = [{"wrong_elements": 0.0, "array_over_cache": ratio} for ratio in (8.0, 1.6)]
    assert derived("cpu_memory", point("copy"), [[1.0]] * 2, ratios)["bandwidth"].basis == small["bandwidth"].basis
    large = derived("cpu_memory", point("copy"), [[1.0]], [{"wrong_elements": 0.0, "array_over_cache": 4.0}])
    assert large["bandwidth"].basis == ""


def cache(folder, index, level, size, kind="Unified", shared="0-1"):
    place = folder / "cache" / f"index{index}"
    place.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("type", kind), ("shared_cpu_list", shared)):
        (place / name).write_text(f"{text}\n")


def test_a_cache_that_cores_share_is_counted_once(tmp_path):
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}"
        cache(folder, 0, 1, "32K", "Data", str(cpu))
        cache(folder, 1, 1, "32K", "Instruction", str(cpu))
        cache(folder, 3, 3, "32768K", shared="0-1" if cpu < 2 else "2-3")
    assert last_level_caches(tmp_path) == [2**25, 2**25]


def test_a_cache_of_instructions_and_one_that_is_not_the_last_hold_no_array(tmp_path):
    for cpu in range(2):
        cache(tmp_path / f"cpu{cpu}", 0, 1, "32K", "Data", str(cpu))
        cache(tmp_path / f"cpu{cpu}", 1, 1, "64K", "Instruction", str(cpu))
    assert last_level_caches(tmp_path) == [2**15, 2**15]
    cache(tmp_path / "cpu0", 2, 2, "1024K", shared="0")  # of unlike cores one alone has a second level
    assert last_level_caches(tmp_path) == [2**20]


def test_a_host_that_says_nothing_of_its_caches_has_no_ratio(tmp_path, monkeypatch):
    assert last_level_caches(tmp_path) == []
    monkeypatch.setattr("clusterbench.benchmarks.cpu_memory.last_level_caches", list)
    assert CpuMemory.prepare(rig(), point("copy")).check() == {"wrong_elements": 0.0}


def test_more_ranks_than_caches_fill_all_of_them():
    assert array_over_cache(100, 1, [50, 25]) == 2.0
    assert array_over_cache(100, 3, [50, 25]) == 4.0
