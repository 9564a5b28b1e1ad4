import pytest
import torch

from clusterbench.benchmarks.device_copy import DeviceCopy
from clusterbench.errors import NotHere, WrongResult
from tests.benchmarks.alone import H100, derived, median_by_events_s, median_s, rig

GIB = 2**30


def test_a_copy_counts_what_it_reads_and_what_it_writes():
    metrics = derived("device_copy", {"size_bytes": 10**9, "operation": "copy"}, [[0.5], [1.0]])
    assert metrics["transfer_time"].value == 1.0
    assert metrics["bandwidth_per_rank"].value == 2e9
    assert metrics["bandwidth"].value == 4e9


def test_a_fill_counts_what_it_writes():
    assert derived("device_copy", {"size_bytes": 10**9, "operation": "fill"}, [[0.5]])["bandwidth"].value == 2e9


def test_the_data_sheet_bounds_what_no_cache_can_hold():
    """The largest cache is that of MI300X, 256 MiB, by AMD's CDNA 3 white paper."""
    (small, cached, large) = DeviceCopy(sizes=(2**20, 2**28, GIB), operations=("copy",)).points(H100)
    assert DeviceCopy().predict(small, H100) == DeviceCopy().predict(cached, H100) == {}
    expected = DeviceCopy().predict(large, H100)["bandwidth_per_rank"]
    assert expected.value == H100.cluster.accelerator.memory_bytes_per_s
    assert expected.basis.startswith("memory bandwidth of the data sheet, an upper bound: ")


def test_half_a_word_is_refused():
    (point,) = DeviceCopy(sizes=(12,), operations=("copy",)).points(H100)
    assert DeviceCopy().objection(point, H100) == "a size of 12 B is not a whole number of words of 8 B"


def test_cpu_ranks_are_sent_to_the_probe_of_a_hosts_memory():
    with pytest.raises(NotHere) as caught:
        DeviceCopy.prepare(rig(), {"size_bytes": 64, "operation": "copy"})
    assert str(caught.value) == (
        "device_copy measures a GPU's own memory, and these are CPU ranks.\n"
        "hint: the benchmark 'cpu_memory' measures a host's memory"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("operation", ["copy", "fill"])
def test_the_time_on_a_gpu_is_that_of_plain_events(operation):
    step = DeviceCopy.prepare(rig("cuda"), {"size_bytes": GIB, "operation": operation})
    assert step.check() == {"wrong_elements": 0.0}
    source, target = (torch.empty(GIB // 4, device="cuda") for _ in range(2))
    plain = {"copy": lambda: target.copy_(source), "fill": lambda: target.fill_(1.5)}[operation]
    assert median_s(step.run) == pytest.approx(median_by_events_s(plain), rel=0.1)


POINT = {"size_bytes": 512, "operation": "copy"}


def test_a_copy_that_does_less_while_it_is_timed_is_found_behind_the_clock(two_gpus, copies_less):
    step = DeviceCopy.prepare(rig("cuda"), POINT)
    assert step.check() == {"wrong_elements": 0.0}
    copies_less()
    step.run()
    copies_less(is_whole=True)
    with pytest.raises(
        WrongResult, match=r"copy gave wrong results on rank 0 \(host here\): (64|63|32) of 64 elements"
    ):
        step.confirm(True)
    assert step.confirm(False) == {}
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


def test_a_copy_that_does_less_from_its_second_call_on_is_found_behind_the_clock(two_gpus, copies_less):
    step = DeviceCopy.prepare(rig("cuda"), POINT)
    step.check()
    step.run()
    copies_less()
    step.run()
    with pytest.raises(WrongResult, match="copy gave wrong results"):
        step.confirm(True)


def test_a_fill_that_does_nothing_while_it_is_timed_is_found(two_gpus):
    step = DeviceCopy.prepare(rig("cuda"), POINT | {"operation": "fill"})
    assert step.check() == {"wrong_elements": 0.0}
    with pytest.raises(WrongResult, match="fill gave wrong results"):
        step.confirm(True)
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_copy_that_leaves_out_an_element_is_found(monkeypatch):
    step = DeviceCopy.prepare(rig("cuda"), {"size_bytes": 8192, "operation": "copy"})
    real = torch.Tensor.copy_

    def broken(target, source, *more, **options):
        real(target, source, *more, **options)
        target[5] = 0
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", broken)
    with pytest.raises(WrongResult, match=r"1 of 1024 elements differ\. First at index 5: got 0, expected "):
        step.check()
