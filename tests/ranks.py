"""Runs a function on several Gloo ranks of this machine, each a process forked from one that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch.distributed.tensor.parallel",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
        "torch._dynamo",  # which the first optimizer of a process imports, for 1.6 s
    ]
)


def _rank(
    function: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world_size: int, store: str, queue: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
        )
        queue.put((rank, function(*arguments), None))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  the rank's traceback is the test's failure
        queue.put((rank, None, traceback.format_exc()))


def _without_a_word(processes: Sequence[Any]) -> str:
    """What became of ranks that a signal ended: the error of another is then only what it saw of that."""
    time.sleep(0.5)
    dead = [f"rank {rank} with {process.exitcode}" for rank, process in enumerate(processes) if process.exitcode]
    return f", after the end of {', '.join(dead)}" if dead else ""


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120) -> list[Any]:
    """What ``function(*arguments)`` returned on each rank, in rank order; or an AssertionError with a traceback.

    ``function`` lives at the top of a test module, and returns plain values.
    """
    with tempfile.TemporaryDirectory() as folder:
        queue = _context.Queue()
        processes = [
            _context.Process(target=_rank, args=(function, arguments, rank, world_size, f"{folder}/store", queue))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        results: list[Any] = [None] * world_size
        try:
            for _ in processes:
                rank, value, error = queue.get(timeout=timeout_s)
                assert error is None, f"rank {rank}{_without_a_word(processes)}:\n{error}"
                results[rank] = value
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()
            queue.close()
        return results
