"""The store on which the workers of a start meet when they live on several hosts."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from clusterbench.launch.channel import Channel


def serve(descriptor: int) -> None:
    """Hosts one start's TCPStore and says on which port; ends with its channel. Outlives the ranks by design."""
    channel = Channel(socket.socket(fileno=descriptor))
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    channel.send({"port": store.port})
    while not channel.closed:
        channel.receive(wait=True)
    os._exit(0)


def join(settings: dict[str, Any], world_size: int, timeout: timedelta) -> dist.Store:
    """This worker's way to the store of its start: a file on one host, the store process on several."""
    if "file" in settings:
        return dist.FileStore(settings["file"], world_size)
    return dist.TCPStore(settings["host"], settings["port"], is_master=False, timeout=timeout)
