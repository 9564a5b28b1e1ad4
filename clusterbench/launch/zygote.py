"""Imports torch once and forks workers from it: a start costs milliseconds instead of seconds.

A zygote never computes and never asks CUDA anything. A forked child of a process that has run a multi-threaded kernel
hangs at its first own one, and a CUDA context does not survive a fork at all.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial

from clusterbench import own_copy
from clusterbench.launch.channel import Channel, Message
from clusterbench.launch.spawner import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    agent = Channel(socket.socket(fileno=os.dup(0)))
    _detach_standard_streams()
    try:
        from clusterbench.launch import store, worker  # imports torch

        worker.import_ahead()
    except Exception as error:
        agent.send({"import_error": f"{type(error).__name__}: {error}"})
        raise
    threads = len(os.listdir("/proc/self/task"))
    agent.send({"ready": True, "threads": threads, "place": str(own_copy.FOLDER), "digest": own_copy.digest()})

    children: dict[int, Message] = {}
    wakeup, wakeup_write = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_write.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write.fileno())
    selector = selectors.DefaultSelector()
    selector.register(agent, selectors.EVENT_READ)
    selector.register(wakeup, selectors.EVENT_READ)

    def fork(run: Callable[[], object], not_its: list[int], label: Message) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # A worker that held another's channel would hide that other's death from the agent.
            _become_child(parent, [agent.fileno(), wakeup.fileno(), wakeup_write.fileno(), *not_its])
            try:
                run()
            finally:
                os._exit(1)  # run ends its process itself; coming here means that it raised
        children[pid] = label
        agent.send({"forked": label, "pid": pid})

    while not agent.closed:
        selector.select()
        _drain(wakeup)
        for order in agent.receive():
            descriptors = order["descriptors"]
            if "store" in order:
                fork(partial(store.serve, descriptors[0], order["store"]), [], {"store": True})
            else:
                page, *channels = descriptors
                for rank, descriptor in zip(order["ranks"], channels, strict=True):
                    fork(
                        partial(worker.work, order["start"], rank, descriptor, page),
                        [other for other in channels if other != descriptor],
                        {"start": order["start"]["id"], "rank": rank["rank"]},
                    )
            for descriptor in descriptors:
                os.close(descriptor)
        _reap(children, agent)
    os._exit(0)


def _detach_standard_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # the channel must not catch what a library prints
    os.close(null)


def _become_child(parent: int, not_its: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in not_its:
        os.close(descriptor)
    die_with(parent)


def _drain(wakeup: socket.socket) -> None:
    try:
        while wakeup.recv(4096):
            pass
    except BlockingIOError:
        pass


def _reap(children: dict[int, Message], agent: Channel) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        label = children.pop(pid, None)
        if label is not None:
            agent.send({"exited": label, "code": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main()
