"""States in host memory: what is there, and what is left on the card, against ranks of Gloo, where the two are one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterbench.dry.processes import dry_ranks
from clusterbench.dry.text import dry_text
from clusterbench.engine.grid import Grid
from clusterbench.engine.memory import MemoryTracker
from clusterbench.expected.memory import held_memory
from clusterbench.job.dry import HOST
from clusterbench.job.passes import STATES
from clusterbench.parallel import active_in, expected_states, from_options
from clusterbench.trainers.ours import Ours
from tests.ranks import run_ranks
from tests.training.jobs import Case, make_job, name_of

OFF = {"offload": True}
ONE = {"shape": "llama-flat-tiny", "dtype": "bfloat16", "micro_batch_size": 1}
CASES: list[Case] = [
    ("dp2+zero3", OFF, {**ONE, "global_batch_size": 2}),
    ("dp2+zero3", {**OFF, "recompute": "full"}, {**ONE, "global_batch_size": 4, "dtype": "float32"}),
    ("dp2-tp2+sp+zero2", OFF, {**ONE, "global_batch_size": 2}),
]


def held_for_real(case: Case) -> tuple[dict[str, int], dict[str, int]]:
    """At rest, and at most, of a rank whose card is its host's memory."""
    job, device = make_job(case[0], **case[2]), torch.device("cpu")
    step = Ours().build(job, from_options(case[1]), Grid(job.layout, "megatron", device.type), device)
    step()
    with MemoryTracker(step.modules, step.optimizers, device) as tracker:
        step()
    peak = tracker.peak()
    return dict(peak.at_rest), dict(peak.peak_by_category)


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_states_are_in_host_memory_and_what_is_gathered_is_on_the_card(case: Case) -> None:
    job, every = make_job(case[0], device="cuda", **case[2]), from_options(case[1])
    (dry,) = dry_ranks(Ours(), job, every, "megatron", [0])
    at_rest, at_most = run_ranks(job.layout.world_size, held_for_real, case)[0]
    assert {name: dry.host[name] for name in STATES} == {name: at_rest[name] for name in STATES}
    states = expected_states(active_in(job.layout, every), job)
    assert {name: dry.host[name] for name in STATES} == states
    assert dry.memory["parameters"] == at_most["parameters"] - at_rest["parameters"]
    assert dry.memory["optimizer_state"] == 0


@pytest.mark.gloo
def test_on_a_cpu_they_are_where_all_else_is() -> None:
    """A rank was said to need 3.7 MB, with 5.2 MB of states *in host memory, not on the card* beside them."""
    layout, options, changes = CASES[0]
    job, every = make_job(layout, **changes), from_options(options)
    (dry,) = dry_ranks(Ours(), job, every, "megatron", [0])
    assert dry.host == {}
    assert dry.memory["total"] == pytest.approx(held_memory(active_in(job.layout, every), job)["total"], rel=0.001)


@pytest.mark.gloo
def test_a_card_is_left_with_the_rest_and_the_host_does_the_update() -> None:
    layout, _, changes = CASES[0]
    job = make_job(layout, device="cuda", **changes)
    (kept,) = dry_ranks(Ours(), job, from_options({}), "megatron", [0])
    (off,) = dry_ranks(Ours(), job, from_options(OFF), "megatron", [0])
    assert kept.host == {}
    assert off.memory["total"] < kept.memory["total"] - off.host["parameters"] - off.host["optimizer_state"]
    # for forward a layer's shares are copied to the card before they are gathered
    copied = off.memory["activations"] - kept.memory["activations"]
    assert 0 <= copied <= off.host["parameters"] / job.shape.num_layers
    assert off.sent == kept.sent
    assert off.executed == kept.executed
    assert off.chain == kept.chain
    update = [each for each in off.work if each.where == HOST]
    assert sum(each.moved_bytes for each in update) > 2 * off.host["optimizer_state"]
    assert not [each for each in off.work if each.where == "the optimizer"]
    words = dry_text([off], job, from_options(OFF), {0: "dp 0"}, 0).splitlines()
    (at,) = [index for index, line in enumerate(words) if line.startswith("# in host memory, not on the card")]
    assert [line.split()[:-1] for line in words[at + 2 : at + 6]] == [
        ["parameters"],
        ["gradients"],
        ["optimizer", "state"],
        ["copies"],
    ]
    assert words[at + 6].startswith("host memory: ")


def test_offload_is_advised_where_a_step_is_sharded() -> None:
    from clusterbench.dry.advice import changes

    def advised(layout: str, **options: Any) -> list[str]:
        job = make_job(layout, shape="llama-8b", seq_len=4096, dtype="bfloat16")
        return [change for change, _, _ in changes(job, from_options(options))]

    assert "offload" in advised("dp2+zero3")
    assert "offload" not in advised("dp2")
    assert "offload" not in advised("dp2+zero3", **OFF)
