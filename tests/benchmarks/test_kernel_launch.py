import pytest
import torch

from clusterbench.benchmarks.kernel_launch import KernelLaunch
from clusterbench.errors import WrongResult
from tests.benchmarks.alone import CPU, H100, derived, median_s, rig


@pytest.mark.parametrize(
    ("mode", "metric"),
    [
        ("launch", "launch_time"),
        ("round_trip", "round_trip_time"),
        ("graph", "graph_node_time"),
        ("operator", "operator_overhead"),
    ],
)
def test_the_time_of_a_repetition_is_shared_among_its_launches(mode, metric):
    metrics = derived("kernel_launch", {"mode": mode, "launches": 1000}, [[4e-3], [5e-3]])
    assert {name: derived.value for name, derived in metrics.items()} == {metric: 5e-6}


def test_a_cpu_launches_no_kernels():
    assert [point["mode"] for point in KernelLaunch().points(CPU)] == ["operator"]
    assert [point["mode"] for point in KernelLaunch().points(H100)] == ["launch", "round_trip", "graph"]


def test_modes_are_a_mistake_on_a_cpu():
    assert list(KernelLaunch().ineffective(("modes",), H100)) == []
    assert list(KernelLaunch().ineffective(("modes", "launches"), CPU)) == [
        ("modes", "a CPU launches no kernels, so there is one way only, 'operator'")
    ]


def test_every_operator_counts_itself():
    step = KernelLaunch.prepare(rig(), {"mode": "operator", "launches": 7})
    assert step.check() == {"wrong_elements": 0.0}
    step.run()


def test_a_launch_that_does_nothing_is_found(monkeypatch):
    step = KernelLaunch.prepare(rig(), {"mode": "operator", "launches": 7})
    real, calls = torch.Tensor.add_, []

    def lazy(tensor, other):
        calls.append(other)
        return real(tensor, 0) if len(calls) == 3 else real(tensor, other)

    monkeypatch.setattr(torch.Tensor, "add_", lazy)
    with pytest.raises(WrongResult) as caught:
        step.check()
    assert str(caught.value) == (
        "launches gave wrong results on rank 0 (host here): 1 of 1 elements differ. "
        "First at index 0: got 6, expected 7."
    )


def test_one_operator_that_adds_what_all_should_is_found(monkeypatch):
    step = KernelLaunch.prepare(rig(), {"mode": "operator", "launches": 7})
    real, calls = torch.Tensor.add_, []

    def joined(tensor, other):
        calls.append(other)
        return real(tensor, 7) if len(calls) == 7 else tensor

    monkeypatch.setattr(torch.Tensor, "add_", joined)
    with pytest.raises(WrongResult, match=r"a repetition launched 1 operator on rank 0 .*, and 7 are counted of it"):
        step.check()


def test_launches_that_are_missing_while_they_are_timed_are_found(monkeypatch):
    here = rig()
    here.asked_calls = 2
    step = KernelLaunch.prepare(here, {"mode": "operator", "launches": 7})
    step.check()
    step.run()
    with pytest.raises(WrongResult, match=r"got 14, expected 21\.$"):
        step.confirm(True)
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_waiting_costs_more_than_launching_and_a_graph_less():
    times_s = {}
    for mode in ("launch", "round_trip", "graph"):
        step = KernelLaunch.prepare(rig("cuda"), {"mode": mode, "launches": 1000})
        assert step.check() == {"wrong_elements": 0.0}
        times_s[mode] = median_s(step.run) / 1000
    assert 1e-7 < times_s["graph"] < times_s["launch"] < times_s["round_trip"] < 1e-3
