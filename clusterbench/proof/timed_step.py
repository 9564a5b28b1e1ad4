"""The timed step proves itself: what its first and its last iteration computed are numbers that others can repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.job.passes import LAST, between, kind_of_projection, most_updates, updates_between
from clusterbench.model.experts import MixtureOfExperts
from clusterbench.parallel import Parallelism, of_kind
from clusterbench.parallel.expert import ExpertParallel
from clusterbench.parallel.recompute import Recompute
from clusterbench.proof.compiled import FRAMES, PLAIN, CompiledStep
from clusterbench.proof.last_update import check_last_update
from clusterbench.proof.sketch import Sketch
from clusterbench.training.built_step import BuiltStep
from clusterbench.words import plural

_FINAL = "final_loss"
_FORWARDS, _BACKWARDS, _UPDATES, _CALLS, _SMALLER = "forward", "backward", "update", "call", "other input"
_TOKENS = "tokens of a call"
_OF_LAYERS, _UNBALANCED = "layer forward", "unbalanced layer"
_FIRST_NORM = "attention_norm"
_COUNTED = _FORWARDS, _OF_LAYERS, _BACKWARDS, _UPDATES, _CALLS, _SMALLER, _TOKENS, _UNBALANCED


class TimedStep:
    """A step that keeps what its first calls showed, and the last that was asked for; reads nothing meanwhile.

    It counts the forwards, backwards and updates of all calls and what they were given, so that none did less than a
    step.

    Parameters
    ----------
    active
        What it was to be built with.
    sketches
        Whether the first call is followed by a look at its gradients, which takes time.
    asked
        Calls that a case asks for. Where clocks have to settle there are more, and not as many in each case: losses of
        cases can be compared after as many updates only.
    """

    def __init__(
        self, step: BuiltStep, asked: int = 0, active: Sequence[Parallelism] = (), sketches: bool = True
    ) -> None:
        self.step, self._active, self._sketches = step, active, sketches
        self._asked, self._calls = asked, 0
        self._most = most_updates(step.job.shape.num_layers, step.job.dtype)
        self._first: tuple[Tensor, Tensor | None] | None = None
        self._last: tuple[Tensor, Tensor | None] | None = None
        self._between: list[tuple[Tensor, Tensor | None]] = []
        self._sketch: Sketch | None = None
        self._compiled: CompiledStep | None = None
        self._forwards = self._backwards = self._of_layers = self._updates = self._smaller = 0
        self._elements = self._of_first_call = self._tokens = 0
        self._counting: list[RemovableHandle] = []

    def __call__(self) -> None:
        if self._compiled is None:
            self._compiled = CompiledStep(self.step, self._active)
            self._counting = [
                hook
                for module in self.step.modules
                for hook in (
                    module.register_forward_pre_hook(self._count),
                    module.register_forward_hook(self._count_its_backward),
                )
            ]
            # a layer that is computed again goes through its own forward, and so through its first norm, once more
            self._counting += [norm.register_forward_pre_hook(self._count_layer) for norm in self._first_norms]
        before, self._elements = self.step.num_steps, 0
        loss = self.step()
        self._calls += 1
        self._of_first_call = self._of_first_call or self._elements
        self._smaller += self._elements != self._of_first_call
        self._updates += self.step.num_steps - before
        if self._first is None:
            self._first = loss, self.step.last_norm
            self._sketch = Sketch(self.step) if self._sketches else None
        elif self._calls < self._asked and self._calls <= self._most:
            self._between.append((loss, self.step.last_norm))
        if self._calls == self._asked:
            self._last = loss, self.step.last_norm

    def _count(self, _: object, arguments: tuple[Any, ...]) -> None:
        self._forwards += 1
        inputs = [argument for argument in arguments if isinstance(argument, Tensor)]
        self._elements += sum(each.numel() for each in inputs)
        self._tokens += sum(each.numel() for each in inputs if not each.is_floating_point())

    @property
    def _first_norms(self) -> list[nn.Module]:
        """Of the layers whose forwards are counted, ours or a trainer's that calls it so.

        None where layers are compiled, as hooks would be, too. Nor of a step of which it was not said what it was built
        with: whether layers are computed again is not known.
        """
        assert self._compiled is not None
        if self._compiled.is_compiled or not self._active:
            return []
        layers = [part for module in self.step.modules for part in module.modules()]
        return [child for layer in layers for name, child in layer.named_children() if name == _FIRST_NORM]

    def _count_layer(self, _: object, __: object) -> None:
        self._of_layers += 1

    def _count_its_backward(self, _: object, __: object, output: Tensor) -> None:
        """A gradient of what a forward gave comes once, with the backward of it."""
        output.register_hook(self._count_backward)  # type: ignore[no-untyped-call]

    def _count_backward(self, _: Tensor) -> None:
        self._backwards += 1

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
        named by :func:`~clusterbench.job.passes.between`, on rank 0. Without clipping there is one norm: of the
        gradients that the last call left, where it was the last that was asked for. Also what
        :func:`~clusterbench.proof.last_update.check_last_update` found, on rank 0 sketches of the first gradients and
        of what the last step left of all, where that may be compared, and of a compiled step how many functions were
        compiled, and graph breaks.

        Raises
        ------
        WrongResult
            On every rank, if any is not finite, a call made fewer forwards, backwards or updates than a step does, the
            weights are not those that the optimizer should have made, a rank that was to compile compiled nothing, or
            not all, or layers with experts weigh the load-balancing loss otherwise than asked.
        """
        for hook in self._counting:
            hook.remove()
        num_updates = self._asked if self._last else self.step.num_steps
        numbers = self._numbers(num_updates)
        counted = self._counted(rig)
        own = {**numbers, **{name: torch.tensor(count) for name, count in counted.items()}}
        of_all = _of_all_ranks(own, rig)
        self._expect_finite(of_all, num_updates)
        self._expect_whole_calls(of_all, rig.made_calls or self._asked)
        assert self._compiled is not None
        if self._compiled.is_compiled:
            self._compiled.judge(of_all[FRAMES], of_all[PLAIN])
        left_out = {_FINAL, PLAIN, *_COUNTED}
        if rig.rank:  # they are the same, and a record has those of every rank
            left_out |= {name for name in of_all if updates_between(name)}
        told = {name: of_ranks[rig.rank] for name, of_ranks in of_all.items() if name not in left_out}
        told["num_updates"] = float(num_updates)
        if is_first and self._sketch is not None:
            told |= self._of_gradients(self._sketch, rig)
        if is_first and 1 < num_updates == self.step.num_steps <= self._most:
            told |= self._of_gradients(Sketch(self.step, LAST), rig)
        return told | check_last_update(self.step, rig, self._active, is_first)

    def _of_gradients(self, sketch: Sketch, rig: Rig) -> dict[str, float]:
        """A collective; on rank 0, for they are the same on all."""
        numbers = sketch.numbers(rig)
        for name, value in numbers.items():
            if not math.isfinite(value):
                kind = kind_of_projection(name)
                raise WrongResult(f"the gradient of {kind} of {self.step.job.layout} is not finite.")
        return {} if rig.rank else numbers

    def _numbers(self, num_updates: int) -> dict[str, Tensor]:
        """Losses over the global batch, and norms where there are some."""
        step = self.step
        assert self._first is not None
        assert step.last_loss is not None
        loss, norm = self._last or (step.last_loss, step.last_norm)
        if norm is None and step.num_steps == num_updates:  # nobody has clipped the gradients, and they are still there
            norm = step.gradient_norm()
        first_norm = norm if num_updates == 1 else self._first[1]
        numbers = {"first_loss": step.global_loss(self._first[0]), "loss": step.global_loss(loss)}
        numbers |= {name: norm for name, norm in (("first_norm", first_norm), ("norm", norm)) if norm is not None}
        for update, (loss_between, norm_between) in enumerate(self._between, start=2):
            numbers[between(update, "loss")] = step.global_loss(loss_between)
            if norm_between is not None:
                numbers[between(update, "norm")] = norm_between
        if step.num_steps > num_updates:
            numbers[_FINAL] = step.global_loss(step.last_loss)
        return numbers

    def _counted(self, rig: Rig) -> dict[str, float]:
        """What was compiled, and how many more forwards, backwards and updates there were than whole steps have."""
        assert self._compiled is not None
        micro_batches, again = self.step.job.gradient_accumulation_steps, of_kind(Recompute, self._active)
        of_a_step = micro_batches * len(self.step.modules)
        of_layers = micro_batches * len(self._first_norms) * (1 if again is None else 2)
        return {
            **self._compiled.found(),
            _FORWARDS: self._forwards - self._calls * of_a_step,
            _OF_LAYERS: self._of_layers - self._calls * of_layers,
            _BACKWARDS: self._backwards - self._calls * of_a_step,
            _UPDATES: self._updates - self._calls,
            _CALLS: self._calls - rig.made_calls if rig.made_calls else min(0, self._calls - self._asked),
            _SMALLER: self._smaller,
            _TOKENS: self._tokens / self._calls * self.step.job.layout.degree("dp_cp"),
            _UNBALANCED: self._unbalanced(),
        }

    def _unbalanced(self) -> int:
        """Layers of experts whose load-balancing loss is not weighed as asked: it is in no loss that is shown."""
        asked = of_kind(ExpertParallel, self._active)
        if asked is None:
            return 0
        job = self.step.job
        # as the loss is, a mean over the micro-batches; over cp gradients are averaged of what makes up one such loss
        due = asked.aux_loss, job.layout.cp / job.gradient_accumulation_steps
        layers = (layer for module in self.step.modules for layer in module.modules())
        mixtures = (layer for layer in layers if isinstance(layer, MixtureOfExperts))
        return sum((mixture.aux_loss, mixture.aux_scale) != due for mixture in mixtures)

    def _expect_finite(self, of_all: Mapping[str, Sequence[float]], num_updates: int) -> None:
        for name, of_ranks in of_all.items():
            for rank, value in enumerate(of_ranks):
                if not math.isfinite(value):
                    last = self.step.num_steps if name == _FINAL else num_updates
                    updates = updates_between(name) or (1 if name.startswith("first") else last)
                    raise WrongResult(
                        f"the {name.rpartition('_')[2]} of {self.step.job.layout} is not finite: {value} on rank "
                        f"{rank} after {plural(updates, 'step')}. The time of such a step is not that of training."
                    )

    def _expect_whole_calls(self, of_all: Mapping[str, Sequence[float]], due: int) -> None:
        layout = self.step.job.layout
        more = of_all[_CALLS]
        if any(more):
            rank = more.index(max(more, key=abs))
            made = plural(int(due + more[rank]), "call")
            raise WrongResult(
                f"rank {rank} made {made} of the {due} that were asked for of {layout}. Samples are of steps that did "
                "not run."
                if more[rank] < 0
                else f"rank {rank} made {made} of {layout} in what counts as {due}. Samples are of more than one step."
            )
        for name in (_FORWARDS, _OF_LAYERS, _BACKWARDS, _UPDATES):
            if any(of_all[name]):
                rank, off = next((rank, off) for rank, off in enumerate(of_all[name]) if off)
                wrong = f"{plural(int(abs(off)), name)} too {'many' if off > 0 else 'few'}"
                raise WrongResult(
                    f"{plural(self._calls, 'call')} of {layout} made {wrong} on rank {rank}. The time of "
                    "such calls is not that of training."
                )
        if any(of_all[_SMALLER]):
            rank = next(rank for rank, calls in enumerate(of_all[_SMALLER]) if calls)
            raise WrongResult(
                f"{plural(int(of_all[_SMALLER][rank]), 'call')} of {layout} on rank {rank} computed on more "
                "or less than the first one did. The time of such calls is not that of training."
            )
        due_tokens = self.step.job.tokens_per_step
        for rank, tokens in enumerate(of_all[_TOKENS]):
            if tokens not in (0, due_tokens):  # a stage behind the first is given none
                raise WrongResult(
                    f"a call of {layout} computed on {tokens:,.0f} tokens, by those of rank {rank}, and {due_tokens:,} "
                    "are counted of a step. Its tokens/s are not those of training."
                )
        if any(of_all[_UNBALANCED]):
            rank = next(rank for rank, layers in enumerate(of_all[_UNBALANCED]) if layers)
            raise WrongResult(
                f"{plural(int(of_all[_UNBALANCED][rank]), 'layer')} of {layout} on rank {rank} weighed the "
                "load-balancing loss otherwise than aux_loss says."
            )


def _of_all_ranks(own: Mapping[str, Tensor], rig: Rig) -> dict[str, list[float]]:
    """Each of a rank's own numbers, as every rank has it. A collective."""
    values = torch.zeros(rig.world_size, len(own), dtype=torch.float64, device=rig.device)
    # counts are on the host, and torch stacks nothing over two devices
    values[rig.rank] = torch.stack([value.detach().reshape(()).to(rig.device, torch.float64) for value in own.values()])
    dist.all_reduce(values)
    return dict(zip(own, values.T.tolist(), strict=True))
