"""What mpirun starts for ``test_mpi.py``: every operation in every size and dtype asked for, checked and timed.

``python -m tests.engine.mpi_ranks FOLDER POINTS [FAULT]``; each rank leaves what came of each point in ``FOLDER``.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from mpi4py import MPI

from clusterbench.engine import mpi
from clusterbench.engine.mpi import prepare, seconds_of
from clusterbench.errors import WrongResult

OPERATIONS = (
    "Allreduce",
    "Reduce",
    "Reduce_scatter_block",
    "Allgather",
    "Gather",
    "Scatter",
    "Alltoall",
    "Bcast",
    "Barrier",
)


class Broken:
    """A communicator of which rank 1 gets one wrong element, or whose barrier holds nobody.

    With ``later`` it is right in its first call, and from then on moves nothing.
    """

    def __init__(self, comm, fault):
        self._comm = comm
        self._fault = fault
        self._calls = Counter()

    def __getattr__(self, name):
        real = getattr(self._comm, name)
        if self._fault == "later":
            return self._once(name, real) if name in OPERATIONS else real
        if self._fault == "barrier" and name == "Barrier":
            return lambda: None
        if self._fault != name:
            return real

        def broken(sent, received):
            real(sent, received)
            if self._comm.Get_rank() == 1:
                received[5] += 1

        return broken

    def _once(self, name, real):
        def called(*arguments):
            self._calls[name] += 1
            return real(*arguments) if self._calls[name] == 1 else None

        return called


class Noted:
    """A communicator that counts its calls, each with the bytes of its largest array."""

    def __init__(self, comm):
        self._comm = comm
        self.calls = Counter()

    def __getattr__(self, name):
        real = getattr(self._comm, name)
        if not name[0].isupper() or name.startswith("Get_"):
            return real

        def noted(*arguments):
            sizes = [memoryview(each).nbytes for each in arguments if each is not None and not isinstance(each, int)]
            self.calls[f"{name} {max(sizes, default=0)}"] += 1
            return real(*arguments)

        return noted


def calls_of_an_iteration(comm, point):
    """The calls of an iteration behind the proof."""
    noted = Noted(comm)
    step = prepare(noted, point, "here", 0)
    step.check()
    noted.calls.clear()
    step.run()
    return noted.calls


def main(folder, points, fault):
    comm = MPI.COMM_WORLD.Dup()
    if fault == "clock" and comm.Get_rank() != 0:  # an hour from mark to mark
        mpi.time = SimpleNamespace(perf_counter=(3600.0 * hour for hour in count()).__next__, sleep=time.sleep)
    found = []
    for point in points:
        if fault == "noted":
            found.append(calls_of_an_iteration(comm, point))
            continue
        step = prepare(Broken(comm, fault) if fault else comm, point, "here", 0)
        try:
            evidence = dict(step.check())
        except WrongResult as error:
            found.append([str(error), []])
            continue
        seconds = seconds_of(step, comm, point, 3, 1, lambda *_: None) if fault in ("", "later", "clock") else []
        try:
            evidence = dict(step.confirm(not fault or fault == "later")) or evidence
        except WrongResult as error:
            evidence = str(error)
        found.append([evidence, seconds])
    (folder / f"{comm.Get_rank()}.json").write_text(json.dumps(found))
    left = comm.Ibarrier()
    while not left.Test():
        time.sleep(0.01)  # ranks that wait in MPI_Finalize spin


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
