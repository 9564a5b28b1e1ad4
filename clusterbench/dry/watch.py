"""One look at each operator of a step, for everything that a dry run counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from clusterbench.dry.launches import Launches
from clusterbench.dry.work import WorkTable
from clusterbench.engine.compat import active_fake_mode
from clusterbench.engine.flops import FlopCounter
from clusterbench.engine.memory import MemoryTracker
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.training.built_step import BuiltStep


class StepWatch(MemoryTracker):
    """Follows memory, and hands each operator on to what counts FLOPs, traffic, launches and bytes.

    Four dispatch modes, one above the other, took four times as long. All of a dry step runs on one thread, so that
    nothing passes beside this.

    Parameters
    ----------
    axes
        Name of a process group -> axis, as :meth:`clusterbench.engine.grid.Grid.names` has them.
    """

    def __init__(self, step: BuiltStep, device: torch.device, axes: Mapping[str, str]) -> None:
        super().__init__(step.modules, step.optimizers, device)
        self.traffic, self.flops, self.work = TrafficCounter(axes), FlopCounter(), WorkTable()
        self.launches = Launches(self.traffic)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # more than half of all calls
            return func(*args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        # DTensor asks for shapes on fakes of its own
        if result is not NotImplemented and active_fake_mode() is self._fake_mode:
            self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.traffic.saw(func, args, kwargs, result)
        self.launches.saw(func, args, kwargs, result)
        multiplied = self.flops.saw(func, args, kwargs, result)
        self.work.saw(func, args, kwargs, result, multiplied, self.where)
