"""NVIDIA's management library: opened and closed, its GPUs, and questions to one that may stay without an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

# Errors for what the driver or the board does not have. Any other error is reported.
_NOT_IN_DRIVER = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND)


@dataclass(frozen=True)
class Handle:
    """A GPU as NVML knows it, or why it gave none."""

    device: Any
    uuid: str | None
    name: str | None
    error: str | None


@contextmanager
def opened() -> Iterator[str | None]:
    """NVML initialised, or the reason why not. Leaves nothing open."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        hint = "no NVIDIA driver on this host" if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else "NVML failed"
        yield f"{hint}: {error}"
        return
    try:
        yield None
    finally:
        pynvml.nvmlShutdown()


def every_handle() -> tuple[list[Handle], str | None]:
    """All GPUs of the driver in its order, or why there is no list of them."""
    try:
        return [_handle(index) for index in range(pynvml.nvmlDeviceGetCount())], None
    except pynvml.NVMLError as error:
        return [], f"NVML failed: {error}"


def _handle(index: int) -> Handle:
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Handle(device, pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlDeviceGetName(device), None)
    except pynvml.NVMLError as error:
        return Handle(None, None, None, f"GPU {index} of the driver: {error}")


class Reader:
    """Reads one GPU; keeps the first error that is more than a missing function.

    Attributes
    ----------
    lacks
        Functions that this board does not support, by name.
    refused
        Why others gave nothing, by name.
    """

    def __init__(self, handle: Handle) -> None:
        self.device, self.error = handle.device, handle.error
        self.lacks: list[str] = []
        self.refused: dict[str, str] = {}

    def __call__(self, names: str, *arguments: Any) -> Any:
        """The answer of the first function (of ``a|b``) that this pynvml and this driver have."""
        for name in names.split("|"):
            function = getattr(pynvml, name, None)
            if self.device is None:
                continue
            if function is None:
                self.refused[name] = "is not in this nvidia-ml-py"
                continue
            try:
                return function(self.device, *arguments)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    self.lacks.append(name)
                    continue
                if error.value in _NOT_IN_DRIVER:
                    self.refused[name] = "is not in this driver"
                    continue
                self.refused[name] = f"said: {error}"
                self.error = self.error or str(error)
                if error.value in _LOST:  # every further call would fail, some of them after seconds
                    self.device = None
        return None
