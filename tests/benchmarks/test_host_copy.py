import pytest
import torch

from clusterbench.benchmarks.host_copy import HostCopy
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, SuiteError, WrongResult
from clusterbench.types import Place
from tests.benchmarks.alone import H100, derived, median_by_events_s, median_s, rig

MIB = 2**20


def point(direction, memory="pinned", size_bytes=256 * MIB):
    return {"size_bytes": size_bytes, "memory": memory, "direction": direction, "ranks": "one"}


def test_one_direction_counts_once_and_both_twice():
    assert derived("host_copy", point("host_to_device", size_bytes=10**9), [[0.1]])["bandwidth"].value == 1e10
    assert derived("host_copy", point("both", size_bytes=10**9), [[0.1]])["bandwidth"].value == 2e10


def test_all_ranks_together_are_as_fast_as_the_slowest_lets_them():
    metrics = derived("host_copy", point("host_to_device", size_bytes=10**9), [[0.1], [0.2]])
    assert (metrics["bandwidth_per_rank"].value, metrics["bandwidth"].value) == (5e9, 1e10)


def test_pageable_memory_has_no_point_for_both_directions():
    points = list(HostCopy(sizes=(MIB,)).points(H100))
    assert [(point["memory"], point["direction"]) for point in points] == [
        ("pinned", "host_to_device"),
        ("pinned", "device_to_host"),
        ("pinned", "both"),
        ("pageable", "host_to_device"),
        ("pageable", "device_to_host"),
    ]


def test_asking_for_that_alone_is_a_mistake():
    with pytest.raises(SuiteError) as caught:
        HostCopy(memory=("pageable",), directions=("both",))
    assert str(caught.value) == (
        "directions is 'both' and memory is 'pageable': copies from pageable memory keep their thread busy, so one "
        "rank cannot run two. Add 'pinned' to memory, or a single direction to directions"
    )


def test_one_rank_alone_and_all_at_once_are_different_points():
    (alone,) = HostCopy(sizes=(MIB,), memory=("pinned",), directions=("both",), ranks="one").points(H100)
    (all_at_once,) = HostCopy(sizes=(MIB,), memory=("pinned",), directions=("both",)).points(H100)
    assert (HostCopy().world_size(alone, H100), HostCopy().world_size(all_at_once, H100)) == (1, 8)
    assert (HostCopy().label(alone), HostCopy().label(all_at_once)) == ("both-pinned-1MiB-one", "both-pinned-1MiB-all")


def test_the_link_to_the_host_bounds_pinned_copies():
    one_way = HostCopy().predict(point("device_to_host"), H100)["bandwidth_per_rank"]
    both_ways = HostCopy().predict(point("both"), H100)["bandwidth_per_rank"]
    assert one_way.value == H100.cluster.accelerator.pcie_bytes_per_s
    assert both_ways.value == 2 * one_way.value
    assert both_ways.basis.startswith("each direction of the link to the host by the data sheet, an upper bound: ")
    assert HostCopy().predict(point("device_to_host", "pageable"), H100) == {}


def test_a_superchip_reaches_its_host_faster_than_over_pcie():
    # 380 GB/s is usual there, and six times what PCIe allows: with that as its bound every such figure was void
    place = Place(Cluster(1, 1, "cuda", "NVIDIA GH200 480GB"), 1)
    expected = HostCopy().predict(point("host_to_device"), place)["bandwidth_per_rank"]
    assert expected.is_upper_bound
    assert 380e9 < expected.value == 450e9


def test_cpu_ranks_have_nothing_to_copy_to():
    with pytest.raises(NotHere) as caught:
        HostCopy.prepare(rig(), point("both"))
    assert str(caught.value) == (
        "host_copy copies between a host and its GPUs, and these are CPU ranks.\n"
        "hint: the benchmark 'cpu_memory' measures copies within a host's memory"
    )


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host", "both"])
def test_a_copy_that_does_less_while_it_is_timed_is_found_behind_the_clock(two_gpus, copies_less, direction):
    step = HostCopy.prepare(rig("cuda"), point(direction, size_bytes=512))
    assert step.check() == {"wrong_elements": 0.0}
    copies_less()
    step.run()
    copies_less(is_whole=True)
    with pytest.raises(WrongResult, match=r"(host to device|device to host) gave wrong results on rank 0"):
        step.confirm(True)
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


@pytest.fixture
def copies(two_gpus, monkeypatch):
    """Bytes of each copy, with the kind of memory that it is from and to."""
    made, real_copy = [], torch.Tensor.copy_

    def noted(create):
        def called(*sizes, device="cpu", **rest):
            tensor = create(*sizes, **rest)
            tensor.kind = "gpu" if torch.device(device).type == "cuda" else "pageable"
            return tensor

        return called

    def pin_memory(tensor):
        tensor.kind = "pinned"
        return tensor

    def copy(target, source, non_blocking=False):
        made.append((source.kind, target.kind, source.nbytes))
        return real_copy(target, source)

    for name in ("zeros", "arange"):
        monkeypatch.setattr(torch, name, noted(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    return made


@pytest.mark.parametrize(
    ("direction", "memory", "expected"),
    [
        ("host_to_device", "pinned", [("pinned", "gpu", MIB)]),
        ("host_to_device", "pageable", [("pageable", "gpu", MIB)]),
        ("device_to_host", "pinned", [("gpu", "pinned", MIB)]),
        ("device_to_host", "pageable", [("gpu", "pageable", MIB)]),
        ("both", "pinned", [("gpu", "pinned", MIB), ("pinned", "gpu", MIB)]),
    ],
)
def test_what_is_timed_is_from_and_to_the_memory_that_the_point_says(copies, direction, memory, expected):
    step = HostCopy.prepare(rig("cuda"), point(direction, memory, MIB))
    step.check()
    copies.clear()
    step.run()
    assert copies == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host", "both"])
def test_what_arrives_is_proven_every_way(direction, memory):
    step = HostCopy.prepare(rig("cuda"), point(direction, memory, MIB))
    assert step.check() == {"wrong_elements": 0.0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_time_is_that_of_plain_events():
    here, there = torch.empty(256 * MIB, dtype=torch.uint8).pin_memory(), torch.empty(256 * MIB, dtype=torch.uint8)
    there = there.cuda()
    step = HostCopy.prepare(rig("cuda"), point("host_to_device"))
    plain_s = median_by_events_s(lambda: there.copy_(here, non_blocking=True))
    assert median_s(step.run) == pytest.approx(plain_s, rel=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_both_directions_at_once_take_less_than_one_after_the_other():
    times_s = {
        direction: median_s(HostCopy.prepare(rig("cuda"), point(direction)).run)
        for direction in ("host_to_device", "device_to_host", "both")
    }
    assert times_s["both"] < 0.9 * (times_s["host_to_device"] + times_s["device_to_host"])
