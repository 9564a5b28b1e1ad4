"""One look at each operator of a step, for everything that a dry run counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from clusterbench.dry.work import WorkTable
from clusterbench.engine.compat import active_fake_mode, tensors_in
from clusterbench.engine.flops import FlopCounter
from clusterbench.engine.launches import Launches
from clusterbench.engine.memory import MemoryTracker
from clusterbench.engine.traffic import TrafficCounter
from clusterbench.job.dry import HOST
from clusterbench.job.flops import FORWARD
from clusterbench.job.passes import STATES
from clusterbench.training.built_step import BuiltStep

CARD = torch.device("cpu")
CARD_BESIDE_HOST = torch.device("cpu", 0)
"""What tensors on a card say where they are; the second where others are kept in host memory, which is the first then.

For torch the two are different places, between which it copies as between a card and its host.
"""


class StepWatch(MemoryTracker):
    """Follows memory, and hands each operator on to what counts FLOPs, traffic, launches and bytes.

    Four dispatch modes, one above the other, took four times as long. All of a dry step runs on one thread, so that
    nothing passes beside this.

    Parameters
    ----------
    axes
        Name of a process group -> axis, as :meth:`clusterbench.engine.grid.Grid.names` has them.
    has_host
        Whether states are in host memory, where the host works on them.
    """

    def __init__(self, step: BuiltStep, device: torch.device, axes: Mapping[str, str], has_host: bool) -> None:
        super().__init__(step.modules, step.optimizers, device)
        self._has_host = has_host
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
        if self._has_host and self._is_on_host([args, kwargs, result]):
            self.traffic.saw(func, args, kwargs, result)
            self.launches.saw(func, args, kwargs, result, on_host=True)
            self.work.saw(func, args, kwargs, result, None, lambda: (HOST, FORWARD))
            return
        self.traffic.saw(func, args, kwargs, result)
        self.launches.saw(func, args, kwargs, result)
        multiplied = self.flops.saw(func, args, kwargs, result)
        self.work.saw(func, args, kwargs, result, multiplied, self.where)

    def _is_on_host(self, values: Any) -> bool:
        devices = {tensor.device for tensor in tensors_in(values)}
        return CARD in devices and self._device not in devices


class HostTracker(MemoryTracker):
    """Follows what is in host memory, where nothing changes its size as what FSDP gathers does."""

    def __init__(self, step: BuiltStep) -> None:
        super().__init__(step.modules, step.optimizers, CARD)

    def _follow_resize(self) -> None:
        pass

    def by_category(self) -> Mapping[str, int]:
        """Peaks of the states and of all else, each at a moment of its own."""
        peak = self.peak().peak_by_category
        states = {category: peak[category] for category in STATES}
        return states | {"copies": sum(size_bytes for name, size_bytes in peak.items() if name not in STATES)}
