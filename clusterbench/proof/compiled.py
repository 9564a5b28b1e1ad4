"""Whether what is to be compiled was: where it cannot, torch.compile runs a layer as it is and says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from clusterbench.engine.compat import compiler_counts, compiles_float64, is_to_be_compiled, plain_calls
from clusterbench.errors import WrongResult
from clusterbench.model.decoder import Decoder
from clusterbench.parallel import Parallelism
from clusterbench.parallel.compile import Compile, compiled_parts
from clusterbench.training.built_step import BuiltStep, is_compiled
from clusterbench.words import plural

FRAMES, BREAKS, PLAIN = "compiled_frames", "graph_breaks", "plain_calls"


class CompiledStep:
    """What the compiler made of one step. Before its first call, so that the step is compiled for its own shapes.

    A function that was compiled before for another shape, such as a proof's twin, would be compiled for all shapes now.
    """

    def __init__(self, step: BuiltStep, active: Sequence[Parallelism] = ()) -> None:
        self.layout, self._modules = step.job.layout, step.modules
        due = [*_due(step)] if any(isinstance(parallelism, Compile) for parallelism in active) else []
        self.is_compiled, self._left_out = is_compiled(step) or bool(due), 0
        for part in due:
            if not is_to_be_compiled(part):
                part.register_forward_pre_hook(self._note)
        if self.is_compiled:
            torch.compiler.reset()
            self._before = self._counts()

    def found(self) -> dict[str, float]:
        """Functions that were compiled, places where one had to be left for Python, and calls of layers, or of what of
        them is compiled, that were not, or were never to be; empty for a plain step."""
        if not self.is_compiled:
            return {}
        frames, breaks, by_inductor, plain = (
            now - before for now, before in zip(self._counts(), self._before, strict=True)
        )
        return {
            FRAMES: float(frames if by_inductor else 0),
            BREAKS: float(breaks),
            PLAIN: float(plain + self._left_out),
        }

    def _note(self, part: nn.Module, arguments: object) -> None:
        self._left_out += 1

    def _counts(self) -> tuple[int, int, int, int]:
        return *compiler_counts(), sum(plain_calls(part) for module in self._modules for part in module.modules())

    def judge(self, frames: list[float], plain_calls: list[float]) -> None:
        """
        Raises
        ------
        WrongResult
            If one of the ranks, each with its number of frames and of plain calls, compiled nothing, or not all.
        """
        plain = [rank for rank, count in enumerate(frames) if not count]
        if plain:
            raise WrongResult(
                f"{self.layout} was to be compiled, and nothing was on rank {plain[0]}: torch.compile left every layer "
                "as it is. The time is that of a plain step."
            )
        left = [rank for rank, count in enumerate(plain_calls) if count]
        if left:
            raise WrongResult(
                f"{self.layout} was to be compiled, and on rank {left[0]} not all was: what was to be compiled of its "
                f"layers ran {plural(int(plain_calls[left[0]]), 'time')} as it is. The time is partly that of a plain "
                "step."
            )


def _due(step: BuiltStep) -> Iterator[nn.Module]:
    """All that is to be compiled of a step that was asked for so, whatever was made of it.

    Of a trainer's own model each layer, or all of it where none is called so.
    """
    if step.job.dtype == "float64" and not compiles_float64():
        return
    for module in step.modules:
        if isinstance(module, Decoder):
            for layer in module.layers.values():
                yield from compiled_parts(layer)  # type: ignore[arg-type]
        else:
            layers = getattr(module, "layers", None)
            yield from layers.children() if isinstance(layers, nn.Module) else [module]
