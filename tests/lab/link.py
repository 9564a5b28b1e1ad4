"""A slow, lossy cable in userspace: ``link.py NEAR FAR DELAY_MS LOSS``, for kernels without netem.

Makes two TAP interfaces of these names in its network namespace and carries every frame from one to the other, DELAY_MS
later, in both directions; a share LOSS of the segments never arrives. Frames carry virtio-net headers, so TCP hands
over 64 KiB at once and Python keeps up with several Gbit/s. The interfaces go when the process goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
SEGMENT_BYTES = 1448
LONGEST_FRAME_BYTES = 70_000
FRAMES_PER_LOOK = 64


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


def is_lost(frame: bytes, loss: float) -> bool:
    segments = max(1, len(frame) // SEGMENT_BYTES)
    return loss > 0 and random.random() < 1 - (1 - loss) ** segments


def carry(near: int, far: int, delay_s: float, loss: float) -> None:
    other_end = {near: far, far: near}
    on_the_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, end, frame = on_the_way.popleft()
            with contextlib.suppress(OSError):  # the interface is down or its queue is full: lost, as on any cable
                os.write(end, frame)
        wait_s = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        readable, _, _ = select.select([near, far], [], [], wait_s)
        arrival = time.monotonic() + delay_s
        for end in readable:
            with contextlib.suppress(BlockingIOError):
                for _ in range(FRAMES_PER_LOOK):
                    frame = os.read(end, LONGEST_FRAME_BYTES)
                    if not is_lost(frame, loss):
                        on_the_way.append((arrival, other_end[end], frame))


if __name__ == "__main__":
    near_name, far_name, delay_ms, loss = sys.argv[1:]
    taps = open_tap(near_name), open_tap(far_name)
    print("up", flush=True)
    carry(*taps, float(delay_ms) / 1e3, float(loss))
