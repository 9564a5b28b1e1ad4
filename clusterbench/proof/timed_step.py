"""The timed step proves itself: what its first and its last iteration computed are numbers that others can repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.job.passes import MOST_UPDATES, between, updates_between
from clusterbench.parallel import Parallelism
from clusterbench.proof.compiled import FRAMES, PLAIN, CompiledStep
from clusterbench.proof.last_update import check_last_update
from clusterbench.training.built_step import BuiltStep
from clusterbench.words import plural

_FINAL = "final_loss"
_FORWARDS, _UPDATES, _CALLS, _SMALLER = "forward", "update", "call", "other input"


class TimedStep:
    """A step that keeps what its first calls showed, and the last that was asked for; reads nothing meanwhile.

    It counts the forwards and updates of all calls and what they were given, so that none did less than a step.

    Parameters
    ----------
    active
        What it was to be built with.
    asked
        Calls that a case asks for. Where clocks have to settle there are more, and not as many in each case: losses of
        cases can be compared after as many updates only.
    """

    def __init__(self, step: BuiltStep, asked: int = 0, active: Sequence[Parallelism] = ()) -> None:
        self.step, self._active = step, active
        self._asked, self._calls = asked, 0
        self._first: tuple[Tensor, Tensor | None] | None = None
        self._last: tuple[Tensor, Tensor | None] | None = None
        self._between: list[tuple[Tensor, Tensor | None]] = []
        self._compiled: CompiledStep | None = None
        self._forwards = self._updates = self._smaller = 0
        self._elements = self._of_first_call = 0
        self._counting: list[RemovableHandle] = []

    def __call__(self) -> None:
        if self._compiled is None:
            self._compiled = CompiledStep(self.step, self._active)
            self._counting = [module.register_forward_pre_hook(self._count) for module in self.step.modules]
        before, self._elements = self.step.num_steps, 0
        loss = self.step()
        self._calls += 1
        self._of_first_call = self._of_first_call or self._elements
        self._smaller += self._elements != self._of_first_call
        self._updates += self.step.num_steps - before
        if self._first is None:
            self._first = loss, self.step.last_norm
        elif self._calls < min(self._asked, MOST_UPDATES):
            self._between.append((loss, self.step.last_norm))
        if self._calls == self._asked:
            self._last = loss, self.step.last_norm

    def _count(self, _: object, arguments: tuple[Any, ...]) -> None:
        self._forwards += 1
        self._elements += sum(argument.numel() for argument in arguments if isinstance(argument, Tensor))

    def confirm(self, rig: Rig, is_first: bool) -> dict[str, float]:
        """Losses over the global batch and norms of the whole model's gradients, of the first, the last, and between.

        A collective: every rank gets the same answer.

        Parameters
        ----------
        is_first
            Of the repeats of a case: in the others the optimizer's arithmetic is the same, and there is no step more.

        Returns
        -------
        ``first_loss`` and ``first_norm`` are of the weights that the seed gives, ``loss`` and ``norm`` of those after
        all but one of ``num_updates``: of the last call, or the last that was asked for. Those of calls between are
        named by :func:`~clusterbench.job.passes.between`, on rank 0. Without clipping there are no norms. Also what
        :func:`~clusterbench.proof.last_update.check_last_update` found, and of a compiled step how many functions were
        compiled, and graph breaks.

        Raises
        ------
        WrongResult
            On every rank, if any is not finite, a call made fewer forwards or updates than a step does, the weights are
            not those that the optimizer should have made, or a rank that was to compile compiled nothing, or not all.
        """
        step = self.step
        assert self._first is not None
        assert self._compiled is not None
        assert step.last_loss is not None
        loss, norm = self._last or (step.last_loss, step.last_norm)
        num_updates = self._asked if self._last else step.num_steps
        seen = {"first_loss": step.global_loss(self._first[0]), "loss": step.global_loss(loss)}
        seen |= {name: norm for name, norm in (("first_norm", self._first[1]), ("norm", norm)) if norm is not None}
        for update, (loss_between, norm_between) in enumerate(self._between, start=2):
            seen[between(update, "loss")] = step.global_loss(loss_between)
            if norm_between is not None:
                seen[between(update, "norm")] = norm_between
        if step.num_steps > num_updates:
            seen[_FINAL] = step.global_loss(step.last_loss)
        for hook in self._counting:
            hook.remove()
        of_a_step = step.job.gradient_accumulation_steps * len(step.modules)
        counted = {
            _FORWARDS: self._forwards - self._calls * of_a_step,
            _UPDATES: self._updates - self._calls,
            _CALLS: min(0, self._calls - self._asked),
            _SMALLER: self._smaller,
        }
        made = self._compiled.found()
        seen |= {name: torch.tensor(count) for name, count in {**made, **counted}.items()}
        values = torch.zeros(rig.world_size, len(seen), dtype=torch.float64, device=rig.device)
        values[rig.rank] = torch.stack([value.detach().double().reshape(()) for value in seen.values()])
        dist.all_reduce(values)
        for name, of_ranks in zip(seen, values.T.tolist(), strict=True):
            not_finite = [rank for rank, value in enumerate(of_ranks) if not math.isfinite(value)]
            if not_finite:
                updates = updates_between(name) or (
                    1 if name.startswith("first") else step.num_steps if name == _FINAL else num_updates
                )
                raise WrongResult(
                    f"the {name.rpartition('_')[2]} of {step.job.layout} is not finite: {of_ranks[not_finite[0]]} on "
                    f"rank {not_finite[0]} after {plural(updates, 'step')}. The time of such a step is not that of "
                    "training."
                )
        of_all = dict(zip(seen, values.T.tolist(), strict=True))
        if any(of_all[_CALLS]):
            rank = of_all[_CALLS].index(min(of_all[_CALLS]))
            raise WrongResult(
                f"rank {rank} made {plural(int(self._asked + of_all[_CALLS][rank]), 'call')} of the {self._asked} that "
                f"were asked for of {step.job.layout}. Samples are of steps that did not run."
            )
        for name in (_FORWARDS, _UPDATES):
            if any(of_all[name]):
                rank, off = next((rank, off) for rank, off in enumerate(of_all[name]) if off)
                missing = f"{plural(int(abs(off)), name)} too {'many' if off > 0 else 'few'}"
                raise WrongResult(
                    f"{plural(self._calls, 'call')} of {step.job.layout} made {missing} on rank {rank}. The time of "
                    "such calls is not that of training."
                )
        if any(of_all[_SMALLER]):
            rank = next(rank for rank, calls in enumerate(of_all[_SMALLER]) if calls)
            raise WrongResult(
                f"{plural(int(of_all[_SMALLER][rank]), 'call')} of {step.job.layout} on rank {rank} computed on more "
                "or less than the first one did. The time of such calls is not that of training."
            )
        if self._compiled.is_compiled:
            self._compiled.judge(of_all[FRAMES], of_all[PLAIN])
        left_out = {_FINAL, PLAIN, *counted}
        if rig.rank:  # they are the same, and a record has those of every rank
            left_out |= {name for name in of_all if updates_between(name)}
        own = {name: of_ranks[rig.rank] for name, of_ranks in of_all.items() if name not in left_out}
        own["num_updates"] = float(num_updates)
        return own | check_last_update(step, rig, self._active, is_first)
