"""The store on which the workers of a start meet when they live on several hosts.

It is PyTorch's and has no authentication. So it listens at one address only, and a start's keys have a random prefix.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import (  # type: ignore[attr-defined]  # documented, not re-exported
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from clusterbench.launch.channel import Channel
from clusterbench.launch.lines import decode_store_event
from clusterbench.launch.messages import StoreOpen, StorePlace

WAIT = timedelta(seconds=60)


def serve(descriptor: int, address: str) -> None:
    """Hosts one start's TCPStore at ``address`` and says on which port; ends with its channel. Outlives the ranks."""
    channel = Channel(socket.socket(fileno=descriptor), decode_store_event)  # nothing is said to it
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=4096)
    port = listener.getsockname()[1]
    # Handed a listening socket, the store does not open one of its own, which would be open to every network.
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=WAIT, master_listen_fd=listener.detach()
    )
    channel.send(StoreOpen(store.port))
    while not channel.closed:
        channel.receive(wait=True)
    os._exit(0)


def join(place: StorePlace, num_ranks: int, world: int, timeout: timedelta) -> Store:
    """This worker's way to the store of its start: a file on one host, the store process on several.

    ``num_ranks`` are all of the start; those of each ``world`` meet under keys of their own.
    """
    if place.file:
        return PrefixStore(f"{world}", FileStore(place.file, num_ranks))
    store = TCPStore(place.host, place.port, is_master=False, timeout=timeout)
    return PrefixStore(f"{place.prefix}/{world}", store)
