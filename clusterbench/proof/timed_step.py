"""The timed step proves itself: what its first and its last iteration computed are numbers that others can repeat."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.proof.compiled import FRAMES, CompiledStep
from clusterbench.proof.last_update import check_last_update
from clusterbench.training.built_step import BuiltStep
from clusterbench.words import plural


class TimedStep:
    """A step that keeps what its first call showed; reads nothing from the device meanwhile."""

    def __init__(self, step: BuiltStep) -> None:
        self.step = step
        self._first: tuple[Tensor, Tensor | None] | None = None
        self._compiled: CompiledStep | None = None

    def __call__(self) -> None:
        if self._compiled is None:
            self._compiled = CompiledStep(self.step)
        loss = self.step()
        if self._first is None:
            self._first = loss, self.step.last_norm

    def confirm(self, rig: Rig, is_first: bool) -> dict[str, float]:
        """Losses over the global batch and norms of the whole model's gradients, of the first and of the last call.

        A collective: every rank gets the same answer.

        Parameters
        ----------
        is_first
            Of the repeats of a case: in the others the optimizer's arithmetic is the same, and only the losses and
            norms are looked at again.

        Returns
        -------
        ``first_loss`` and ``first_norm`` are of the weights that the seed gives, ``loss`` and ``norm`` of those after
        all but one of ``num_updates``. Without clipping there are no norms. In the first repeat also what
        :func:`~clusterbench.proof.last_update.check_last_update` found. Of a compiled step also how many functions were
        compiled, and graph breaks.

        Raises
        ------
        WrongResult
            On every rank, if any is not finite, the weights are not those that the optimizer should have made, or a
            rank that was to compile compiled nothing.
        """
        step = self.step
        assert self._first is not None
        assert self._compiled is not None
        assert step.last_loss is not None
        seen = {"first_loss": step.global_loss(self._first[0]), "loss": step.global_loss(step.last_loss)}
        seen |= {
            name: norm for name, norm in (("first_norm", self._first[1]), ("norm", step.last_norm)) if norm is not None
        }
        made = self._compiled.found()
        seen |= {name: torch.tensor(count) for name, count in made.items()}
        values = torch.zeros(rig.world_size, len(seen), dtype=torch.float64, device=rig.device)
        values[rig.rank] = torch.stack([value.detach().double().reshape(()) for value in seen.values()])
        dist.all_reduce(values)
        for name, of_ranks in zip(seen, values.T.tolist(), strict=True):
            not_finite = [rank for rank, value in enumerate(of_ranks) if not math.isfinite(value)]
            if not_finite:
                updates = 1 if name.startswith("first") else step.num_steps
                raise WrongResult(
                    f"the {name.rpartition('_')[2]} of {step.job.layout} is not finite: {of_ranks[not_finite[0]]} on "
                    f"rank {not_finite[0]} after {plural(updates, 'step')}. The time of such a step is not that of "
                    "training."
                )
            if name == FRAMES:
                self._compiled.judge(of_ranks)
        own = dict(zip(seen, values[rig.rank].tolist(), strict=True))
        own["num_updates"] = float(step.num_steps)
        return own | check_last_update(step, rig) if is_first else own
