"""Products of layers in eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.errors import NotHere
from clusterbench.job import TrainingJob
from clusterbench.job.flops import FLOAT8_GRADIENTS, FLOAT8_PRODUCTS
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Twin
from clusterbench.parallel.compile import Compile
from clusterbench.parallel.expert import is_of_mixture
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly

MULTIPLE = 16
"""Of which every size of a float8 product has to be one."""


@dataclass(frozen=True, kw_only=True)
class Float8(Parallelism):
    """Multiplies in float8 what attention and feed-forward multiply with weights, forward and backward.

    Operands are rounded where they are multiplied (torch._scaled_mm), by way of copies in float32. What is kept of
    weights, activations and gradients stays what it is, and so does traffic. Norms, attention itself, head, router and
    routed experts are left as they are. With tp each rank scales its own parts of a product. A CPU computes it too,
    slowly; on GPUs it takes one of compute capability 8.9 or more.

    Source
    ------
    Micikevicius et al. 2022, arXiv:2209.05433. pytorch/ao, ``torchao/float8``.
    """

    phase: ClassVar[str] = "tensor"
    changes_model: ClassVar[bool] = True

    float8: str = option(
        "none",
        "in float8 the products of layers with weights: tensorwise has one scale for each operand, rowwise one for "
        "each row of either",
        choices=("none", "tensorwise", "rowwise"),
        label="{} float8",
        is_later=True,
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.float8 != "none"

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def objection(self, job: TrainingJob) -> str | None:
        if job.dtype != "bfloat16":
            return f"float8 {self.float8} rounds what is multiplied in bfloat16, and dtype is {job.dtype}"
        if job.gradient_bytes != job.master_bytes:
            return (
                f"float8 {self.float8} and gradient_dtype {job.gradient_dtype}: how far both together may be from one "
                "rank was not measured"
            )
        for what, number in {
            "tokens of a micro-batch": job.local_tokens,
            **_channels(job.shape, job.layout.tp),
        }.items():
            if number % MULTIPLE:
                return f"float8 products take multiples of {MULTIPLE}, and the {what} on a rank are {number}"
        return None

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        if job.device == "cpu" and any(isinstance(other, Compile) for other in others):
            return f"float8 {self.float8} and compile: compiled for a CPU (torch 2.13), such products are not finite"
        for other in others:
            if isinstance(other, Pipeline) and other.splits_backward:
                return (
                    f"float8 {self.float8} and {other.schedule}: it splits backward, and a float8 product has both of "
                    "its gradients at once, so that each would be computed twice; 1f1b and interleaved_1f1b do not"
                )
        return None

    def twin(self, job: TrainingJob) -> Twin:
        # as small as products allow: steps of a twin that is wide learn its few tokens at once
        shapes = (job.shape.twin(1, head_dim) for head_dim in (2, 4, 8, MULTIPLE, 2 * MULTIPLE))
        fits = next(
            shape
            for shape in shapes
            if not any(number % MULTIPLE for number in _channels(shape, job.layout.tp).values())
        )
        return Twin(seq_unit=MULTIPLE * job.layout.cp, head_dim=fits.head_dim)

    @property
    def product_rounding(self) -> float:
        return 2.0**-4 if self.float8 != "none" else 0.0  # e4m3 has three bits of mantissa

    def hides_activations(self, job: TrainingJob) -> str:
        # Measured is from 17 % less to 60 % more, where the logits are not the peak.
        return "float8 rounds operands by way of float32 copies, of which no formula speaks"

    def exact(self) -> Self:
        return replace(self, float8="none")

    def in_float8(self, name: str) -> tuple[str, str] | None:
        if not name.startswith("layers.") or is_of_mixture(name):
            return None
        return FLOAT8_PRODUCTS, FLOAT8_PRODUCTS if self.float8 == "rowwise" else FLOAT8_GRADIENTS

    def apply(self, assembly: Assembly) -> None:
        from functools import partial

        from clusterbench.engine.compat import active_fake_mode, lacks_float8
        from clusterbench.model.experts import MixtureOfExperts
        from clusterbench.model.float8 import float8_linear
        from clusterbench.model.modules import Linear

        if active_fake_mode() is None and (reason := lacks_float8(assembly.device.type)):
            raise NotHere(reason)
        for layer in assembly.layers():
            parts = [
                layer.attention,
                *([] if isinstance(layer.feed_forward, MixtureOfExperts) else [layer.feed_forward]),
            ]
            for module in (module for part in parts for module in part.modules()):
                if isinstance(module, Linear):
                    module.product = partial(float8_linear, scaling=self.float8)


def _channels(shape: ModelShape, tp: int) -> dict[str, int]:
    """Inputs and outputs of the products that a rank computes."""
    return {
        "hidden channels": shape.hidden_size,
        "channels of queries": shape.num_heads * shape.head_dim // tp,
        "channels of keys": max(shape.num_kv_heads // tp, 1) * shape.head_dim,
        "feed-forward channels": 0 if shape.has_experts else shape.ffn_hidden_size // tp,
    }
