"""The store on which the workers of a start meet when they live on several hosts."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]  # documented, not re-exported

from clusterbench.launch.channel import Channel


def serve(descriptor: int) -> None:
    """Hosts one start's TCPStore and says on which port; ends with its channel. Outlives the ranks by design."""
    channel = Channel(socket.socket(fileno=descriptor))
    store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    channel.send({"port": store.port})
    while not channel.closed:
        channel.receive(wait=True)
    os._exit(0)


def join(settings: dict[str, Any], world_size: int, timeout: timedelta) -> Store:
    """This worker's way to the store of its start: a file on one host, the store process on several."""
    if "file" in settings:
        return FileStore(settings["file"], world_size)
    return TCPStore(settings["host"], settings["port"], is_master=False, timeout=timeout)
