"""One rank of an operation of MPI itself, through mpi4py; needs no torch for host memory.

Two ways lead here. Agents that are MPI ranks already call :func:`prepare` and :func:`seconds_of` on a communicator of
their own; a plain run has mpirun start ``python -m clusterbench.engine.mpi FOLDER ORDER`` as every rank, which leaves
its record in ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy

from clusterbench.errors import ClusterbenchError, LaunchError, NotHere, WrongResult
from clusterbench.types import Point, Step

WINDOW = 64
"""Messages under way at once when bandwidth is measured. Source: OSU micro-benchmarks, osu_bw and osu_bibw."""

NO_LIBRARY = "not_here"
"""The file in which ranks that find no MPI library say so: they have no number by which to name a record."""

SECONDS_BEFORE_THE_LAST = 0.05
_PERIOD = 250
_PR_SET_PDEATHSIG = 1
_ACKNOWLEDGEMENT = 4
_ANSWERS, _COMES, _LEAVES = 1, 2, 3  # tags

Array = Any
"""What mpi4py takes for a buffer: a numpy array, or a torch tensor on a CUDA device."""


class _HostMemory:
    def on_device(self, values: numpy.ndarray[Any, Any]) -> Array:
        return values.copy()

    def on_host(self, buffer: Array) -> numpy.ndarray[Any, Any]:
        values: numpy.ndarray[Any, Any] = buffer
        return values

    def clear(self, buffer: Array) -> None:
        buffer.fill(0)


class _CudaMemory:
    def __init__(self, local_rank: int) -> None:
        import torch

        self._device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(self._device)

    def on_device(self, values: numpy.ndarray[Any, Any]) -> Array:
        import torch

        tensor = torch.from_numpy(values).to(self._device)
        torch.cuda.synchronize()  # MPI reads it on no stream of torch's
        return tensor

    def on_host(self, buffer: Array) -> numpy.ndarray[Any, Any]:
        values: numpy.ndarray[Any, Any] = buffer.cpu().numpy()
        return values

    def clear(self, buffer: Array) -> None:
        import torch

        buffer.zero_()
        torch.cuda.synchronize()


def _memory(name: str, local_rank: int) -> _HostMemory | _CudaMemory:
    if name == "host":
        return _HostMemory()
    if not (able := takes_cuda_memory()):
        says = "does not say whether it takes" if able is None else "says that it does not take"
        raise NotHere(
            f"the MPI library ({library()}) {says} CUDA memory.\n"
            "hint: load one that is CUDA-aware, or write memory: host, which needs no such library"
        )
    import torch

    if not torch.cuda.is_available():
        raise NotHere(f"this torch ({torch.__version__}) sees no CUDA device on {socket.gethostname()}")
    return _CudaMemory(local_rank)


def takes_cuda_memory() -> bool | None:
    """Whether the loaded MPI library says that its calls take pointers to CUDA memory; None where it says nothing.

    Source: ``MPIX_Query_cuda_support`` of Open MPI and of MPICH.
    """
    from mpi4py import MPI

    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())  # finds what that module has loaded
    except (OSError, AttributeError):
        return None


def library() -> str:
    """Name and version of the MPI library that mpi4py has loaded.

    MPICH prints ``MPICH Version: 5.0.2``, Open MPI ``Open MPI v5.0.11, package: ...``, each with more behind it.
    """
    from mpi4py import MPI

    first = str(MPI.Get_library_version()).splitlines()[0]
    return " ".join(first.split(",")[0].replace("Version:", "").split())


@dataclass(frozen=True)
class _Operation:
    """This rank's view of one operation. Arrays are flat; ``numel`` counts the elements of the whole one."""

    comm: Any
    point: Point
    host: str
    memory: _HostMemory | _CudaMemory

    @property
    def rank(self) -> int:
        return int(self.comm.Get_rank())

    @property
    def size(self) -> int:
        return int(self.comm.Get_size())

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return numpy.dtype(str(self.point["dtype"]))

    @property
    def numel(self) -> int:
        return int(self.point["size_bytes"]) // self.dtype.itemsize

    def addends(self) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
        """What this rank adds to a sum over all ranks, and the sum: that of ``engine.rig.Rig.operands``.

        Element i gets ``1 + (i // size) % 7`` from rank ``i % size`` and nothing from the others: exact in every dtype,
        whatever the order, and a lost, doubled or misplaced contribution shows.
        """
        index = numpy.arange(7 * self.size)
        whole = (1 + index // self.size).astype(self.dtype)
        mine = numpy.where(index % self.size == self.rank, whole, 0).astype(self.dtype)
        return numpy.resize(mine, self.numel), numpy.resize(whole, self.numel)

    def pattern(self, numel: int, of: int) -> numpy.ndarray[Any, Any]:
        """``numel`` elements that only the sender number ``of`` sends, of any 250 in a row; never 0."""
        period = (7 * numpy.arange(_PERIOD) + 31 * of) % _PERIOD + 1
        return numpy.resize(period.astype(self.dtype), numel)

    def zeros(self, numel: int) -> Array:
        return self.memory.on_device(numpy.zeros(numel, self.dtype))

    def expect_equal(self, buffer: Array, expected: numpy.ndarray[Any, Any]) -> dict[str, float]:
        """Compares every element, and counts and locates those that differ; the evidence of a right result."""
        got = self.memory.on_host(buffer)
        wrong = numpy.flatnonzero(got != expected)  # NaN is unlike everything
        if len(wrong):
            index = int(wrong[0])
            raise WrongResult(
                f"{self.point['op']} gave wrong results on rank {self.rank} (host {self.host}): {len(wrong)} of "
                f"{len(got)} elements differ. First at index {index}: got {got[index].item()}, "
                f"expected {expected[index].item()}."
            )
        return {"wrong_elements": 0.0}


def prepare(comm: Any, point: Point, host: str, local_rank: int) -> Step:
    """Allocates what ``point["op"]`` needs and returns what to run; never communicates.

    Parameters
    ----------
    comm
        An mpi4py communicator of exactly the ranks of the case, used for nothing else.
    point
        Of the benchmark ``mpi``.
    local_rank
        Counted on its host; selects the GPU where memory is CUDA's.

    Raises
    ------
    NotHere
        If the point wants CUDA memory and library or host have none to offer; alike on every rank of like hosts.
    """
    operation = _Operation(comm, point, host, _memory(str(point["memory"]), local_rank))
    return _OPERATIONS[str(point["op"])](operation)


def seconds_of(
    step: Step, comm: Any, point: Point, iterations: int, warmup: int, at: Callable[[int, bool], object]
) -> list[float]:
    """Seconds of each of ``iterations`` calls, back to back as in nccl-tests; all ranks call this together.

    Of an operation between two ranks the sender's clock counts, and every rank gets its samples. The other ranks
    sleep meanwhile: waiting in MPI would take the cores that the two measure on.

    Parameters
    ----------
    at
        Called with the number of the iteration about to start, and whether it belongs to the warm-up.
    """
    sender = point["sender"]
    comm.Barrier()
    seconds = numpy.zeros(iterations)
    if sender is None or comm.Get_rank() in (sender, point["receiver"]):
        seconds[:] = _measure(step.run, iterations, warmup, at)
    if sender is not None:
        request = comm.Ibcast(seconds, sender)
        while not request.Test():
            time.sleep(1e-3)
    return [float(second) for second in seconds]


def _measure(run: Callable[[], object], iterations: int, warmup: int, at: Callable[[int, bool], object]) -> list[float]:
    """As ``engine.loop.measure``, which comes with torch: consecutive iterations share a mark, nothing is collected."""
    for iteration in range(warmup):
        at(iteration, True)
        run()
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        marks = [time.perf_counter()]
        for iteration in range(iterations):
            at(iteration, False)
            run()
            marks.append(time.perf_counter())
    finally:
        if collecting:
            gc.enable()
    return [stop - start for start, stop in pairwise(marks)]


# Collectives. Every rank calls them; the root of those that have one is rank 0.

NOTHING_RECEIVED: Mapping[str, float] = {"wrong_elements": 0.0}


def _collective(
    operation: _Operation, call: Callable[[], object], got: Array, expected: numpy.ndarray[Any, Any] | None
) -> Step:
    """``expected`` is what ``got`` has to hold after the call; None on ranks that receive nothing."""
    if expected is None:
        return Step.proven(call, forget=lambda: None, verify=lambda: NOTHING_RECEIVED)
    return Step.proven(
        call, forget=lambda: operation.memory.clear(got), verify=lambda: operation.expect_equal(got, expected)
    )


def _all_reduce(operation: _Operation) -> Step:
    mine, whole = operation.addends()
    sent, received = operation.memory.on_device(mine), operation.zeros(operation.numel)
    return _collective(operation, lambda: operation.comm.Allreduce(sent, received), received, whole)


def _reduce(operation: _Operation) -> Step:
    mine, whole = operation.addends()
    sent = operation.memory.on_device(mine)
    received = operation.zeros(operation.numel) if operation.rank == 0 else None
    return _collective(
        operation, lambda: operation.comm.Reduce(sent, received), received, whole if operation.rank == 0 else None
    )


def _reduce_scatter(operation: _Operation) -> Step:
    mine, whole = operation.addends()
    part = operation.numel // operation.size
    sent, received = operation.memory.on_device(mine), operation.zeros(part)
    expected = whole[operation.rank * part : (operation.rank + 1) * part]
    return _collective(operation, lambda: operation.comm.Reduce_scatter_block(sent, received), received, expected)


def _all_gather(operation: _Operation) -> Step:
    part = operation.numel // operation.size
    sent, received = (
        operation.memory.on_device(operation.pattern(part, operation.rank)),
        operation.zeros(operation.numel),
    )
    expected = numpy.concatenate([operation.pattern(part, rank) for rank in range(operation.size)])
    return _collective(operation, lambda: operation.comm.Allgather(sent, received), received, expected)


def _gather(operation: _Operation) -> Step:
    part = operation.numel // operation.size
    sent = operation.memory.on_device(operation.pattern(part, operation.rank))
    if operation.rank != 0:
        return _collective(operation, lambda: operation.comm.Gather(sent, None), None, None)
    received = operation.zeros(operation.numel)
    expected = numpy.concatenate([operation.pattern(part, rank) for rank in range(operation.size)])
    return _collective(operation, lambda: operation.comm.Gather(sent, received), received, expected)


def _scatter(operation: _Operation) -> Step:
    part = operation.numel // operation.size
    whole = [operation.pattern(part, rank) for rank in range(operation.size)]
    sent = operation.memory.on_device(numpy.concatenate(whole)) if operation.rank == 0 else None
    received = operation.zeros(part)
    return _collective(operation, lambda: operation.comm.Scatter(sent, received), received, whole[operation.rank])


def _all_to_all(operation: _Operation) -> Step:
    part = operation.numel // operation.size

    def exchanged(pairs: list[tuple[int, int]]) -> numpy.ndarray[Any, Any]:
        return numpy.concatenate([operation.pattern(part, source * operation.size + to) for source, to in pairs])

    sent = operation.memory.on_device(exchanged([(operation.rank, to) for to in range(operation.size)]))
    received = operation.zeros(operation.numel)
    expected = exchanged([(source, operation.rank) for source in range(operation.size)])
    return _collective(operation, lambda: operation.comm.Alltoall(sent, received), received, expected)


def _broadcast(operation: _Operation) -> Step:
    whole = operation.pattern(operation.numel, 0)
    array, is_root = operation.memory.on_device(whole), operation.rank == 0
    return Step.proven(
        lambda: operation.comm.Bcast(array),
        forget=lambda: None if is_root else operation.memory.clear(array),
        verify=lambda: operation.expect_equal(array, whole),
    )


def _barrier(operation: _Operation) -> Step:
    last = operation.size - 1

    def check() -> Mapping[str, float]:
        """Each rank reports to the last one before and after the barrier; the last enters a while after the others."""
        word = numpy.zeros(1)
        if operation.rank != last:
            operation.comm.Send(word, last, _COMES)
            operation.comm.Barrier()
            operation.comm.Send(word, last, _LEAVES)
            return {"early_ranks": 0.0}
        for rank in range(last):
            operation.comm.Recv(word, rank, _COMES)
        early: set[int] = set()
        until = time.monotonic() + SECONDS_BEFORE_THE_LAST
        while time.monotonic() < until:
            early |= {rank for rank in range(last) if operation.comm.Iprobe(rank, _LEAVES)}
            time.sleep(1e-3)
        operation.comm.Barrier()
        for rank in range(last):
            operation.comm.Recv(word, rank, _LEAVES)
        if early:
            raise WrongResult(
                f"barrier gave wrong results on rank {last} (host {operation.host}): {len(early)} of {last} ranks had "
                f"left it before rank {last} entered. The first is rank {min(early)}."
            )
        return {"early_ranks": 0.0}

    return Step(run=operation.comm.Barrier, check=check, confirm=lambda is_first: check() if is_first else {})


# Between two ranks, by the conventions of the OSU micro-benchmarks; the other ranks do nothing.


def _pair(operation: _Operation, exchange: Callable[[Array, Array, int], object], answers: bool) -> Step:
    """``exchange(sent, received, peer)`` is one iteration; the sender receives something only where ``answers``."""
    sender, receiver = int(operation.point["sender"]), int(operation.point["receiver"])
    if operation.rank not in (sender, receiver):
        return Step(run=lambda: None, check=lambda: NOTHING_RECEIVED)
    peer = receiver if operation.rank == sender else sender
    sent, received = (
        operation.memory.on_device(operation.pattern(operation.numel, operation.rank)),
        operation.zeros(operation.numel),
    )
    receives = answers or operation.rank == receiver
    expected = operation.pattern(operation.numel, peer) if receives else None
    return _collective(operation, lambda: exchange(sent, received, peer), received, expected)


def _latency(operation: _Operation) -> Step:
    """A ping-pong: an iteration is a whole round trip, of which the latency is half."""
    is_sender = operation.rank == operation.point["sender"]

    def round_trip(sent: Array, received: Array, peer: int) -> None:
        if is_sender:
            operation.comm.Send(sent, peer)
            operation.comm.Recv(received, peer)
        else:
            operation.comm.Recv(received, peer)
            operation.comm.Send(sent, peer)

    return _pair(operation, round_trip, answers=True)


def _bandwidth(operation: _Operation) -> Step:
    """A window of messages one way, and a short answer when all have arrived."""
    from mpi4py import MPI

    is_sender = operation.rank == operation.point["sender"]
    answer = bytearray(_ACKNOWLEDGEMENT)

    def window(sent: Array, received: Array, peer: int) -> None:
        if is_sender:
            MPI.Request.Waitall([operation.comm.Isend(sent, peer) for _ in range(WINDOW)])
            operation.comm.Recv(answer, peer, _ANSWERS)
        else:
            MPI.Request.Waitall([operation.comm.Irecv(received, peer) for _ in range(WINDOW)])
            operation.comm.Send(answer, peer, _ANSWERS)

    return _pair(operation, window, answers=False)


def _bi_bandwidth(operation: _Operation) -> Step:
    """A window of messages each way at the same time, and a short answer from the receiver."""
    from mpi4py import MPI

    is_sender = operation.rank == operation.point["sender"]
    answer = bytearray(_ACKNOWLEDGEMENT)

    def windows(sent: Array, received: Array, peer: int) -> None:
        requests = [operation.comm.Irecv(received, peer) for _ in range(WINDOW)]
        MPI.Request.Waitall(requests + [operation.comm.Isend(sent, peer) for _ in range(WINDOW)])
        if is_sender:
            operation.comm.Recv(answer, peer, _ANSWERS)
        else:
            operation.comm.Send(answer, peer, _ANSWERS)

    return _pair(operation, windows, answers=True)


_OPERATIONS: Mapping[str, Callable[[_Operation], Step]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "bi_bandwidth": _bi_bandwidth,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}


# As a process of its own, one rank of an mpirun.


def main(folder: Path, order: Mapping[str, Any]) -> None:
    """Runs one case as one rank. ``order`` holds ``point``, ``world_size``, ``iterations`` and ``warmup``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also when it is stopped, a launcher's end is its own
    try:
        from mpi4py import MPI
    except RuntimeError as error:
        first_line = str(error).splitlines()[0]
        (folder / NO_LIBRARY).write_text(
            f"mpirun was found on {socket.gethostname()}, but mpi4py cannot load an MPI library: {first_line}.\n"
            "hint: install the runtime that belongs to this mpirun, or 'pip install clusterbench[mpi]' for MPICH's",
            encoding="utf-8",
        )
        return
    world = MPI.COMM_WORLD
    try:
        record = _record(world.Dup(), order)
    except Exception:  # noqa: BLE001  the others may be waiting for this rank inside MPI, for ever
        _end_all(world)
    unfinished = folder / f"{world.Get_rank()}.unfinished"
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    unfinished.rename(folder / f"{world.Get_rank()}.json")


def _record(comm: Any, order: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and evidence of this rank; or the status of what went wrong here, and the reason."""
    from mpi4py import MPI

    rank, world_size, point = comm.Get_rank(), int(order["world_size"]), order["point"]
    record: dict[str, Any] = {"library": library(), "host": socket.gethostname()}
    try:
        if comm.Get_size() != world_size:
            raise LaunchError(
                f"mpirun started {world_size} processes, but the MPI library that mpi4py loaded ({library()}) sees "
                f"{comm.Get_size()}: they belong to different MPIs.\n"
                "hint: use the mpirun of that library ('python -m mpi4py --mpi-lib-version' names it)"
            )
        step = prepare(comm, point, socket.gethostname(), local_rank=rank)
        record["evidence"] = dict(step.check())
        problem = None
    except ClusterbenchError as error:
        problem = error
    good = numpy.array([problem is None])
    comm.Allreduce(MPI.IN_PLACE, good, MPI.LAND)
    if problem is not None:
        return record | {"failure": type(problem).__name__, "reason": str(problem)}
    if good[0]:
        iterations, warmup = int(order["iterations"]), int(order["warmup"])
        record["seconds"] = seconds_of(step, comm, point, iterations, warmup, lambda *_: None)
        try:
            step.confirm(True)
        except WrongResult as error:
            return record | {"failure": type(error).__name__, "reason": str(error)}
    return record


def _end_all(world: Any) -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    world.Abort(1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
