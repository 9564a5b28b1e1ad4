"""What runs around a timed step mixes no tensors of the device with those of the host."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from clusterbench.job.passes import kind_of_projection
from tests.share import some_of
from tests.training.jobs import Case, Together, make_job, make_rig, name_of
from tests.two_devices import DEVICE, MixedDevices, TwoDevices


def test_a_number_of_the_host_goes_with_arithmetic_and_not_into_a_stack():
    exec_ours = compile(
        "a = torch.zeros(2, device=DEVICE)\nb = torch.tensor(1.0)\nc = a + b\nd = torch.ones(2)",
        f"{__file__.rpartition('/tests/')[0]}/clusterbench/planted.py",
        "exec",
    )
    names: dict[str, Any] = {"torch": torch, "DEVICE": DEVICE}
    with TwoDevices():
        exec(exec_ours, names)
        assert names["c"].device == DEVICE
        for planted in ("torch.stack([c[0], b])", "c + d", "torch.equal(c, d)", "torch.cat([d, c[:1]])"):
            with pytest.raises(MixedDevices):
                eval(compile(planted, exec_ours.co_filename, "eval"), names)
        for sound in ("c + d.to(DEVICE)", "c.cpu() + d", "c.copy_(d)", "torch.stack([c[0], b.to(c.device)])"):
            eval(compile(sound, exec_ours.co_filename, "eval"), names)


def proven(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.own_size import on_one_rank
    from clusterbench.proof.parity import check_parity
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.trainers.ours import Ours
    from clusterbench.training.passes import passes_of

    job = make_job(layout, **changes)
    rig, every = copy.copy(make_rig(job.layout)), from_options(options)
    rig.device, rig.asked_calls = DEVICE, 2
    assert rig.grid is not None
    with TwoDevices():
        evidence = check_parity(Ours(), job, every, rig.grid, rig.device)
        step = Ours().build(job, every, rig.grid, rig.device)
        timed = TimedStep(step, 2, active_in(job.layout, every))
        timed()
        timed()
        told = timed.confirm(rig, is_first=True)
        for take in passes_of(step, rig).values():
            take()
        on_one_rank(step, every, rig)
    return sorted(name for name in {*evidence, *told} if not kind_of_projection(name))  # rank 0 alone records those


EVERY: list[Case] = [
    ("dp2", {}, {}),
    ("dp2", {"compress": "powersgd"}, {}),
    ("dp2", {"loss_chunks": 2}, {}),
    ("dp2", {"float8": "tensorwise"}, {"dtype": "bfloat16"}),
    ("dp2+ep2", {"routing": "balanced"}, {"shape": "moe-tiny", "dtype": "bfloat16"}),
    ("dp2+zero1", {}, {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}),
    ("dp2+zero3", {}, {"dtype": "bfloat16"}),
    ("dp2+zero3", {"offload": True}, {}),
    ("dp2+zero3", {"recompute": "selective"}, {"dtype": "bfloat16", "precision": "bfloat16_moments"}),
    ("dp2+ep2", {"routing": "real", "expert_overlap": True, "aux_loss": 0.01}, {"shape": "moe-tiny"}),
    ("tp2+sp", {}, {"dtype": "bfloat16"}),
    ("tp2", {"update_rounding": "stochastic"}, {"dtype": "bfloat16", "precision": "pure_bfloat16"}),
    ("pp2", {}, {}),
    ("cp2", {}, {}),
    ("cp2", {"context": "ulysses"}, {}),
]
CASES = some_of(EVERY, name_of)
PROVEN = Together(proven, CASES)


@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_proof_and_passes_keep_device_and_host_apart(case):
    first, second = PROVEN(case)
    assert first == second
    assert {"first_loss", "loss", "parity_gradients"} <= {name.partition("[")[0] for name in first}
