"""Whether what is to be compiled was: where it cannot, torch.compile runs a layer as it is and says nothing."""

from __future__ import annotations

import torch

from clusterbench.engine.compat import compiler_counts, plain_calls
from clusterbench.errors import WrongResult
from clusterbench.training.built_step import BuiltStep, is_compiled
from clusterbench.words import plural

FRAMES, BREAKS, PLAIN = "compiled_frames", "graph_breaks", "plain_calls"


class CompiledStep:
    """What the compiler made of one step. Before its first call, so that the step is compiled for its own shapes.

    A function that was compiled before for another shape, such as a proof's twin, would be compiled for all shapes now.
    """

    def __init__(self, step: BuiltStep) -> None:
        self.layout, self._modules = step.job.layout, step.modules
        self.is_compiled = is_compiled(step)
        if self.is_compiled:
            torch.compiler.reset()
            self._before = self._counts()

    def found(self) -> dict[str, float]:
        """Functions that were compiled, places where one had to be left for Python, and calls of layers, or of what of
        them is compiled, that were not; empty for a plain step."""
        if not self.is_compiled:
            return {}
        counts = zip((FRAMES, BREAKS, PLAIN), self._counts(), self._before, strict=True)
        return {name: float(now - before) for name, now, before in counts}

    def _counts(self) -> tuple[int, int, int]:
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
