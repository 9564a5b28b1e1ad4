"""Runs a function on several Gloo ranks of this machine, each a process forked from one that has imported torch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty
from typing import Any

SECONDS_FOR_OTHERS = 2.0
SECONDS_TO_MEET = 240
"""Beside tests whose MPI ranks spin, on few cores, a rank may be late by a minute."""
MOST_STARTS = 3

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "torch.distributed.tensor.parallel",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
        "torch.distributed.optim",
        "torch._dynamo",  # which the first optimizer of a process imports, for 1.6 s
        "pytest",  # with each module of tests
        "tests.compiler",
        "clusterbench.planning",
        "clusterbench.proof.parity",
        "clusterbench.training.passes",
    ]
)


class _DidNotMeet(AssertionError):
    """A start of which the function under test has not run on every rank."""


def _rank(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
    queue: Any,
    all_said: Any,
) -> None:
    import torch
    import torch.distributed as dist

    gc.freeze()  # what was imported before the fork: looking through it takes each collection 0.14 s
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    has_met = False
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=SECONDS_TO_MEET),
        )
        has_met = True
        queue.put((rank, True, function(*arguments), None))
        all_said.wait(SECONDS_TO_MEET)  # whoever leaves early resets connections from which others still read
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  the rank's traceback is the test's failure
        queue.put((rank, has_met, None, traceback.format_exc()))


def _what_happened(processes: Sequence[Any], queue: Any, first: tuple[int, bool, str]) -> AssertionError:
    """Every rank's error: the first is often only what a rank saw of another's end."""
    rank, all_met, error = first
    errors = {rank: error}
    with suppress(Empty):
        while True:
            rank, has_met, _, error = queue.get(timeout=SECONDS_FOR_OTHERS)
            all_met = all_met and has_met
            if error:
                errors[rank] = error
    for rank, process in enumerate(processes):
        if process.exitcode and rank not in errors:
            errors[rank] = f"ended without a word, with {process.exitcode}\n"
    said = "\n".join(f"rank {rank}:\n{error}" for rank, error in errors.items())
    return AssertionError(said) if all_met else _DidNotMeet(said)


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 280) -> list[Any]:
    """What ``function(*arguments)`` returned on each rank, in rank order; or an AssertionError with a traceback.

    ``function`` lives at the top of a test module, and returns plain values. Where a rank did not meet the others, all
    are started again.
    """
    for _ in range(MOST_STARTS - 1):
        with suppress(_DidNotMeet):
            return _start(world_size, function, arguments, timeout_s)
    return _start(world_size, function, arguments, timeout_s)


def _start(world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        queue, all_said = FORKSERVER.Queue(), FORKSERVER.Event()
        processes = [
            FORKSERVER.Process(
                target=_rank, args=(function, arguments, rank, world_size, f"{folder}/store", queue, all_said)
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        results: list[Any] = [None] * world_size
        try:
            for _ in processes:
                rank, has_met, value, error = queue.get(timeout=timeout_s)
                if error is not None:
                    raise _what_happened(processes, queue, (rank, has_met, error))
                results[rank] = value
        finally:
            all_said.set()
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()
            queue.close()
        return results


class Calls:
    """What a function returns on each rank for many arguments: ``calls(num_ranks, *arguments)``.

    All arguments for as many ranks are tried in one start, when the first of them is asked for, since starting ranks
    takes longer than most calls. So the function leaves nothing changed behind.
    """

    def __init__(self, function: Callable[..., Any], every: Iterable[tuple[Any, ...]]) -> None:
        self._function = function
        self._arguments: dict[int, list[tuple[Any, ...]]] = {}
        for num_ranks, *arguments in every:
            self._arguments.setdefault(num_ranks, []).append(tuple(arguments))
        self._returned: dict[int, list[list[Any]] | AssertionError] = {}

    def __call__(self, num_ranks: int, *arguments: Any) -> list[Any]:
        together = self._arguments[num_ranks]
        if num_ranks not in self._returned:
            try:
                self._returned[num_ranks] = run_ranks(num_ranks, _each, self._function, together)
            except AssertionError as error:  # is that of all of them
                self._returned[num_ranks] = error
        returned = self._returned[num_ranks]
        if isinstance(returned, AssertionError):
            raise returned
        return [of_rank[together.index(arguments)] for of_rank in returned]


def _each(function: Callable[..., Any], every: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [function(*arguments) for arguments in every]
