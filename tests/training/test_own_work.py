"""A rank that is slower in its own work is told from those that wait for it, in real steps on Gloo ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.straggler import Straggler
from clusterbench.layout import ParallelLayout
from tests.ranks import Calls
from tests.report.synthetic import case, observation, outcome, reading

NOBODY = -1
STEPS, MORE_STEPS = 20, 160
"""Where neighbouring steps are slow together, twenty of them are honestly too few."""
NEEDED = ("memory", "traffic", "executed", "own_seconds")
SLOWER = [("dp2", 1), ("tp2", 0), ("cp2", 0), ("dp2+zero3", 1), ("pp2-dp2", 3), ("dp2-tp2", 1)]
HEALTHY = [(layout, NOBODY) for layout in ("dp2", "tp2", "pp2", "pp2-dp2", "dp4+ep4")]


def records(layout: str, slow_rank: int, steps: int) -> dict[str, Any]:
    """What this rank's passes leave of so many steps, in which one rank computes six times as long in forward."""
    from clusterbench.parallel import from_options
    from clusterbench.training.passes import passes_of
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    shape = "moe-tiny" if "ep" in layout else "llama-tiny"
    job = make_job(layout, seq_len=64, dtype="float32", shape=shape)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    if rig.rank == slow_rank:
        for module in step.modules:
            compute_longer(module)
    step()
    rig.own_steps = steps
    return {name: observe() for name, observe in passes_of(step, rig).items() if name in NEEDED}


def compute_longer(module: Any) -> None:
    """Of a forward pass of one second of CPU it makes six: noise of busy cores may hide a rank that is 100 % slower."""
    import torch

    began: list[float] = []
    numbers = torch.ones(2**14)

    def burn(*_: object) -> None:
        now = time.thread_time()
        while time.thread_time() - now < 5 * (now - began[-1]):
            numbers.sin()

    module.register_forward_pre_hook(lambda *_: began.append(time.thread_time()))
    module.register_forward_hook(burn)


def num_ranks(layout: str) -> int:
    return ParallelLayout.parse(layout).world_size


recorded = Calls(records, [(num_ranks(layout), layout, slow, STEPS) for layout, slow in SLOWER + HEALTHY])


def answer(layout: str, slow_rank: int) -> Answer:
    """From twenty steps; where these are called too few, from more, as who reads that would run it again."""
    few = answer_of(layout, recorded(num_ranks(layout), layout, slow_rank, STEPS))
    if slow_rank == NOBODY or few.state != "not judged":
        return few
    again = num_ranks(layout), layout, slow_rank, MORE_STEPS
    return answer_of(layout, Calls(records, [again])(*again))


def answer_of(layout: str, ranks: list[dict[str, Any]]) -> Answer:
    one = case(layout, len(ranks), benchmark="train_step", layout=layout)
    seen = observation(one, hosts=("vm",))
    seen.passes.update({name: [rank[name] for rank in ranks] for name in ranks[0]})  # type: ignore[attr-defined]
    return Straggler().answer(reading((outcome(one), seen), cases=[one]))


def times_as_long(brief: str) -> float:
    """Of ``"167 % slower"`` 2.67, of ``"3 times slower"`` 3."""
    number, unit, slower = brief.split()
    assert slower == "slower"
    return {"%": 1 + float(number) / 100, "times": float(number)}[unit]


@pytest.mark.matrix
@pytest.mark.alone
@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "slow_rank"), SLOWER)
def test_a_rank_that_computes_longer_in_forward_is_named_and_those_that_wait_for_it_are_not(
    layout: str, slow_rank: int
) -> None:
    (finding,) = answer(layout, slow_rank).findings
    assert finding.where == f"rank {slow_rank} on vm"
    assert (
        1.75 < times_as_long(finding.brief) < 4.5
    )  # forward is a third of a step, half at most, and six times as long


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "slow_rank"), HEALTHY)
def test_nobody_is_named_where_all_are_alike(layout: str, slow_rank: int) -> None:
    assert answer(layout, slow_rank).findings == ()


@pytest.mark.gloo
def test_stages_of_a_pipeline_and_experts_with_other_rows_have_no_peers() -> None:
    (part,) = answer("pp2", NOBODY).not_judged
    assert part.sentence == (
        "2 ranks in train_step (no two of them do the same work; it takes a layout with dp or tp on these ranks, or "
        "matmul in the suite)"
    )
    assert answer("dp4+ep4", NOBODY).state == "not judged"
