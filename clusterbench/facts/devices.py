from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

RDMA = "/dev/infiniband"
GDRDRV = "/dev/gdrdrv"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
VERBS = "/sys/class/infiniband_verbs"


@dataclass(frozen=True, kw_only=True)
class Devices(Facts):
    """Device files through which programs reach GPUs and RDMA devices; a container may lack what its host has.

    Attributes
    ----------
    files
        By path, whether this user may read and write it.
    verbs
        RDMA device of each ``uverbs`` that the kernel made: ``{"uverbs0": "mlx5_0"}``.
    """

    files: Mapping[str, bool]
    verbs: Mapping[str, str]

    @classmethod
    def read(cls, files: Files) -> Self:
        rdma = [f"{RDMA}/{name}" for name in files.names(RDMA) if name.startswith(("uverbs", "rdma_cm"))]
        nvidia = [f"/dev/{name}" for name in files.names("/dev") if name.startswith("nvidia")]
        imex = [f"{IMEX_CHANNELS}/{name}" for name in files.names(IMEX_CHANNELS)]
        gdrdrv = [GDRDRV] if files.exists(GDRDRV) else []
        uverbs = [name for name in files.names(VERBS) if name.startswith("uverbs")]
        named = {name: files.text(f"{VERBS}/{name}/ibdev") for name in uverbs}
        return cls(
            files=dict(_usable(files, [*rdma, *gdrdrv, *nvidia, *imex[:4]])),
            verbs={name: device for name, device in named.items() if device is not None},
            unread=files.unread,
        )


def _usable(files: Files, paths: Iterable[str]) -> Iterable[tuple[str, bool]]:
    for path in paths:
        if not os.path.isdir(place := files.root / path.lstrip("/")):
            yield path, os.access(place, os.R_OK | os.W_OK)
