"""Recomputation: activations are dropped in forward and computed again in backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Traffic
from clusterbench.parallel.tensor import crossing_bytes
from clusterbench.training.job import TrainingJob

if TYPE_CHECKING:
    from clusterbench.training.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class Recompute(Parallelism):
    """Trades arithmetic for memory, layer by layer (torch.utils.checkpoint). No axis of its own.

    ``full`` keeps the input of each layer. ``selective`` keeps what matrix products, attention and collectives gave, and
    computes norms, rotations and SwiGLU again: nothing expensive twice.

    Source
    ------
    Korthikanti et al. 2022, arXiv:2205.05198, section 5. Theirs is selective about the attention scores, which flash
    attention never stores.
    """

    phase: ClassVar[str] = "recompute"

    recompute: str = option(
        "none", "which activations are computed again in backward", choices=("none", "selective", "full")
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.recompute != "none"

    def activation(self, name: str, size_bytes: float, job: TrainingJob) -> float:
        return size_bytes

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        return ()

    def apply(self, assembly: Assembly) -> None:
        from functools import partial

        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

        context_fn = noop_context_fn
        if self.recompute == "selective":
            context_fn = partial(create_selective_checkpoint_contexts, _keep_what_costs)
        for layer in assembly.decoder.layers:
            # preserve_rng_state: nothing here is random
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, context_fn=context_fn
            )


def _keep_what_costs(context: Any, operator: Any, *arguments: Any, **options: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    name = operator.name()
    costs = name.startswith(("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product", "_c10d_functional::"))
    return CheckpointPolicy.MUST_SAVE if costs else CheckpointPolicy.PREFER_RECOMPUTE
