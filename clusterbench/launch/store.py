"""The store on which the workers of a start meet when they live on several hosts.

It is PyTorch's and asks nobody who he is. So it listens at one address only, and a start's keys have a random prefix.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]  # documented, not re-exported
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from clusterbench.launch.channel import Channel

WAIT = timedelta(seconds=60)


def serve(descriptor: int, address: str) -> None:
    """Hosts one start's TCPStore at ``address`` and says on which port; ends with its channel. Outlives the ranks."""
    channel = Channel(socket.socket(fileno=descriptor))
    listener = socket.create_server((address, 0), backlog=4096)
    port = listener.getsockname()[1]
    # Handed a listening socket, the store does not open one of its own, which would be open to every network.
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=WAIT, master_listen_fd=listener.detach()
    )
    channel.send({"port": store.port})
    while not channel.closed:
        channel.receive(wait=True)
    os._exit(0)


def join(settings: dict[str, Any], world_size: int, timeout: timedelta) -> Store:
    """This worker's way to the store of its start: a file on one host, the store process on several."""
    if "file" in settings:
        return FileStore(settings["file"], world_size)
    store = TCPStore(settings["host"], settings["port"], is_master=False, timeout=timeout)
    return PrefixStore(settings["prefix"], store)
