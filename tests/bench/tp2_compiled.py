"""Compiled tensor-parallel steps on two ranks: against the same step not compiled, and ours against one by hand.

``tp2_compiled`` is our compiled step over our plain one, ``tp2_compiled_by_hand_gain`` the same of the step by hand:
what compiling the layers saves. ``tp2_compiled_by_hand`` is ours over the one by hand, both compiled. By hand is what a
person writes: ``parallelize_module``, which leaves DTensors as weights, then ``compile`` of each layer, as torchtitan
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tests.bench import Result
from tests.bench.tp2_by_hand import StepByHand
from tests.by_hand import BATCH, MicroBatches, race

ROUNDS, SHOWN_ROUNDS = 48, 24


def measure() -> list[Result]:
    compiled = {"compile": True}
    return [
        race("tp2_compiled_by_hand", "tp2", CompiledByHand, ROUNDS, compiled),
        _shown(race("tp2_compiled", "tp2", Plain, SHOWN_ROUNDS, compiled)),
        _shown(race("tp2_compiled_by_hand_gain", "tp2", StepByHand, SHOWN_ROUNDS, ours=CompiledByHand)),
    ]


def _shown(result: Result) -> Result:
    return replace(result, verdict="shown")


class CompiledByHand(StepByHand):
    """The step by hand with its layers compiled."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Any, micro_batches: MicroBatches) -> None:
        super().__init__(weights, shape, micro_batches)
        # One operator before the first layer: the embedding returns the promise of a collective, and an argument of
        # this kind has no gradient in what torch compiles.
        self.model.embedding.register_forward_hook(lambda module, inputs, output: output * 1)
        for layer in self.model.layers.values():
            layer.compile()


class Plain:
    """Our step without compilation."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Any, micro_batches: MicroBatches) -> None:
        from clusterbench.parallel import from_options
        from clusterbench.training.step import TrainingStep
        from tests.training.jobs import make_job, make_rig

        job = make_job("tp2", **BATCH)
        rig = make_rig(job.layout)
        self.step = TrainingStep(job, from_options({}), rig.grid, rig.device)

    def __call__(self) -> Tensor:
        return self.step()
