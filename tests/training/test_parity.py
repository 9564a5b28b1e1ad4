"""Every layout computes what one rank computes, and a step that is broken on purpose is found out."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.training.tolerances import tolerances
from tests.ranks import run_ranks
from tests.training.jobs import make_job, parity_of

pytestmark = pytest.mark.gloo

LAYOUTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tp1", {}, {}),
    ("tp1", {"recompute": "full"}, {}),
    ("tp2", {}, {}),
    ("tp2", {"loss_parallel": False}, {}),
    ("tp2", {}, {"shape": "llama-tiny-tied"}),
    ("tp2", {"recompute": "full"}, {}),
    ("tp2", {"recompute": "selective"}, {}),
    ("tp2", {}, {"shape": "llama-tiny-mqa"}),
    ("tp2+sp", {}, {}),
    ("tp2+sp", {}, {"shape": "llama-tiny-mqa"}),
    ("tp2+sp", {"recompute": "full"}, {}),
    ("tp2+sp", {"recompute": "selective", "loss_parallel": False}, {"shape": "llama-tiny-tied"}),
    ("dp2", {}, {}),
    ("tp4", {}, {}),
    ("tp4+sp", {}, {}),
    ("dp2-tp2", {}, {}),
    ("dp2-tp2+sp", {"recompute": "full"}, {}),
    ("dp2-tp2+sp", {}, {"shape": "llama-tiny-mqa"}),
    ("dp4", {}, {}),
]


@pytest.mark.parametrize(("layout", "options", "changes"), LAYOUTS)
def test_a_layout_equals_one_rank_in_float64(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    # 1e-13 is far below the tolerance of 1e-9: it would tell a sum in another order from one in another precision.
    results = run_ranks(make_job(layout).layout.world_size, parity_of, layout, options, changes)
    assert all(max(evidence.values()) < 1e-13 for evidence in results), results
    assert all(evidence == results[0] for evidence in results)  # one verdict


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["dp2", "tp2", "dp2-tp2+sp"])
def test_a_layout_stays_within_the_tolerance_of_its_dtype(layout: str, dtype: str) -> None:
    evidence = run_ranks(make_job(layout).layout.world_size, parity_of, layout, {}, {"dtype": dtype})[0]
    assert {name: value <= tolerances(dtype)[name].value for name, value in evidence.items()} == dict.fromkeys(
        evidence, True
    )


def without_all_reduce(layout: str) -> Any:
    """Each rank takes its part of attention and feed-forward for the sum over all."""
    from torch import nn
    from torch.distributed.tensor.parallel import RowwiseParallel

    honest = RowwiseParallel._prepare_output_fn

    def forgetful(layouts: Any, local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local() if isinstance(module, nn.Linear) else honest(layouts, local, module, outputs, mesh)

    RowwiseParallel._prepare_output_fn = staticmethod(forgetful)  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_norm_gradients_unreduced(layout: str) -> Any:
    from clusterbench.training.step import TrainingStep

    TrainingStep.reduce = lambda self: None  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_gradients_summed(layout: str) -> Any:
    """DDP with a hook that forgets to divide, as hooks of one's own do."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    honest = DistributedDataParallel.__init__

    def summing(self: Any, *arguments: Any, **options: Any) -> None:
        honest(self, *arguments, **options)

        def send(group: Any, buffer: torch.Tensor) -> Any:
            work = dist.all_reduce(buffer, group=group, async_op=True)
            assert work is not None
            return work.get_future().then(lambda future: future.value()[0])

        # without annotations: DDP compares them with classes, and here they are text
        self.register_comm_hook(options["process_group"], lambda group, bucket: send(group, bucket.buffer()))

    DistributedDataParallel.__init__ = summing  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_a_micro_batch_skipped(layout: str) -> Any:
    from clusterbench.training import step

    honest = step.micro_batches

    def all_but_the_first(job: Any, dp_rank: int, positions: Any) -> Any:
        shares = honest(job, dp_rank, positions)
        return shares[1:] if len(shares) > 1 else shares  # one rank alone has a single, whole batch

    step.micro_batches = all_but_the_first
    return parity_of(layout, {}, {"global_batch_size": 2})  # the case itself has one micro-batch per rank


def with_wrong_positions(layout: str) -> Any:
    """Positions run backwards. A mere offset would be no mistake: rotary positions are relative."""
    import torch

    from clusterbench.training.model import rope_tables
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.__init__

    def backwards(self: Any, job: Any, *arguments: Any) -> None:
        honest(self, job, *arguments)
        if job.layout.world_size > 1:
            self.assembly.decoders[0].rope = rope_tables(job.shape, torch.arange(job.seq_len).flip(0), torch.float64)

    TrainingStep.__init__ = backwards  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


BROKEN: list[tuple[Any, str, str]] = [
    (without_all_reduce, "tp2", "deviates"),
    (with_norm_gradients_unreduced, "tp2+sp", "norm.weight"),
    (with_gradients_summed, "dp2", "gradient"),
    (with_gradients_summed, "dp2-tp2", "gradient"),
    (with_a_micro_batch_skipped, "tp2", "the loss"),
    (with_a_micro_batch_skipped, "dp2", "the loss"),
    (with_wrong_positions, "tp2", "deviates"),
]


@pytest.mark.parametrize(("broken", "layout", "names"), BROKEN)
def test_a_broken_step_is_wrong_on_every_rank(broken: Any, layout: str, names: str) -> None:
    sentences = run_ranks(make_job(layout).layout.world_size, broken, layout)
    assert len(set(sentences)) == 1
    assert sentences[0].startswith(f"{layout} does not compute what one rank computes: ")
    assert names in sentences[0], sentences[0]
    assert "allowed is 1e-09" in sentences[0]


def summed(layout: str) -> dict[str, float]:
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.training.parity import check_parity
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_rig

    honest = TrainingStep.forward_backward

    def doubling(self: Any) -> Any:
        loss = honest(self)
        for weight in self.weights if self.job.layout.world_size > 1 else ():
            weight.gradient.mul_(2)
        return loss

    TrainingStep.forward_backward = doubling  # type: ignore[method-assign]
    job = make_job(layout)
    rig = make_rig(job.layout)
    with pytest.raises(WrongResult) as caught:
        check_parity(job, from_options({}), rig.grid, rig.device)
    return caught.value.evidence


def test_the_evidence_of_a_wrong_step_says_how_wrong() -> None:
    evidence = run_ranks(2, summed, "dp2")[0]
    assert evidence["parity_gradients"] == pytest.approx(1.0)
    assert evidence["parity_loss"] < 1e-13
