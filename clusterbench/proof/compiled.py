"""Whether what is to be compiled was: where it cannot, torch.compile runs a layer as it is and says nothing."""

from __future__ import annotations

import torch

from clusterbench.engine.compat import compiler_counts, is_to_be_compiled
from clusterbench.errors import WrongResult
from clusterbench.training.built_step import BuiltStep

FRAMES, BREAKS = "compiled_frames", "graph_breaks"


class CompiledStep:
    """What the compiler made of one step. Before its first call, so that the step is compiled for its own shapes.

    A function that was compiled before for another shape, such as a proof's twin, would be compiled for all shapes now.
    """

    def __init__(self, step: BuiltStep) -> None:
        self.layout = step.job.layout
        self.is_compiled = any(map(is_to_be_compiled, (part for module in step.modules for part in module.modules())))
        if self.is_compiled:
            torch.compiler.reset()
            self._before = compiler_counts()

    def found(self) -> dict[str, float]:
        """Functions that were compiled, and places where one had to be left for Python; empty for a plain step."""
        if not self.is_compiled:
            return {}
        counts = zip((FRAMES, BREAKS), compiler_counts(), self._before, strict=True)
        return {name: float(now - before) for name, now, before in counts}

    def judge(self, frames: list[float]) -> None:
        """
        Raises
        ------
        WrongResult
            If one of the ranks, each with its number of frames, compiled nothing.
        """
        plain = [rank for rank, count in enumerate(frames) if not count]
        if plain:
            raise WrongResult(
                f"{self.layout} was to be compiled, and nothing was on rank {plain[0]}: torch.compile left every layer "
                "as it is. The time is that of a plain step."
            )
