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
from typing import assert_never

from clusterbench import own_copy
from clusterbench.garbage import uncollected
from clusterbench.launch.channel import Channel
from clusterbench.launch.lines import decode_zygote_order
from clusterbench.launch.messages import (
    ChildExited,
    Forked,
    ForkStore,
    ForkWorkers,
    ImportFailed,
    PackageCopy,
    ZygoteBegun,
    ZygoteOrder,
    ZygoteReady,
)
from clusterbench.launch.spawner import die_with, end_group, wake_when_it_dies

_Child = tuple[int | None, int | None]
"""The start and the rank of a forked process; a store's has neither."""


def main() -> None:
    die_with(int(sys.argv[1]))
    agent = Channel(socket.socket(fileno=os.dup(0)), decode_zygote_order)
    _detach_standard_streams()
    agent.send(ZygoteBegun(os.getpid()))
    try:
        with uncollected():  # a tenth of the time
            from clusterbench.launch import store, worker  # imports torch

            worker.import_ahead(sys.argv[2:])
    except Exception as error:
        agent.send(ImportFailed(f"{type(error).__name__}: {error}"))
        raise
    wake_when_it_dies()  # from here on it ends with its channel, once it has ended what its workers started
    threads = len(os.listdir("/proc/self/task"))
    agent.send(ZygoteReady(threads, PackageCopy(str(own_copy.FOLDER), own_copy.digest())))

    children: dict[int, _Child] = {}
    wakeup, wakeup_write = socket.socketpair()
    wakeup.setblocking(False)
    wakeup_write.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write.fileno())
    selector = selectors.DefaultSelector()
    selector.register(agent, selectors.EVENT_READ)
    selector.register(wakeup, selectors.EVENT_READ)

    def fork(run: Callable[[], object], not_its: list[int], child: _Child) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # A worker that held another's channel would hide that other's death from the agent.
            _become_child(parent, [agent.fileno(), wakeup.fileno(), wakeup_write.fileno(), *not_its])
            try:
                run()
            finally:
                os._exit(1)  # run ends its process itself; coming here means that it raised
        children[pid] = child
        agent.send(Forked(*child, pid))

    while not agent.closed:
        selector.select()
        _drain(wakeup)
        for order in agent.receive():
            match order:
                case ForkStore():
                    fork(partial(store.serve, order.descriptors[0], order.address), [], (None, None))
                case ForkWorkers():
                    page, *channels = order.descriptors
                    for place, descriptor in zip(order.places, channels, strict=True):
                        fork(
                            partial(worker.work, order, place, descriptor, page),
                            [other for other in channels if other != descriptor],
                            (order.start.id, place.rank),
                        )
                case _:
                    assert_never(order)
            for descriptor in order.descriptors:
                os.close(descriptor)
        _reap(children, agent)
    for pid in children:
        end_group(pid)
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
    os.setpgid(0, 0)  # with what it may start itself, which must not outlive it: see end_group
    die_with(parent)


def _drain(wakeup: socket.socket) -> None:
    try:
        while wakeup.recv(4096):
            pass
    except BlockingIOError:
        pass


def _reap(children: dict[int, _Child], agent: Channel[ZygoteOrder]) -> None:
    while children:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        end_group(ended.si_pid)  # while its number is its own
        pid, status = os.waitpid(ended.si_pid, 0)
        child = children.pop(pid, None)
        if child is not None:
            agent.send(ChildExited(*child, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
