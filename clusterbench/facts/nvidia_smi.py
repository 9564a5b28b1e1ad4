from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

COMMAND = "nvidia-smi -L"


@dataclass(frozen=True, kw_only=True)
class NvidiaSmi(Facts):
    """How long NVIDIA's management program takes to list the GPUs, and how many; None where it fails or hangs."""

    time_s: float | None
    num_gpus: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        start = time.monotonic()
        printed = files.output(*COMMAND.split())
        time_s = round(time.monotonic() - start, 3)
        if printed is None:
            return cls(time_s=None, num_gpus=None, unread=files.unread)
        num_gpus = len(re.findall(r"^GPU \d+: ", printed, re.MULTILINE))
        return cls(time_s=time_s, num_gpus=num_gpus, unread=files.unread)
