"""Where every rank of a start has got to, in memory that its agent can read even when the rank no longer answers."""

from __future__ import annotations

import mmap
import os
import struct

_RECORD = struct.Struct("=qq")


class ProgressPage:
    """Phase and iteration of each rank, shared between an agent and its workers.

    Writing is one store into mapped memory: no system call, nothing to wait for, so it may happen in a timed loop.
    """

    def __init__(self, descriptor: int, num_ranks: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, num_ranks * _RECORD.size)

    @classmethod
    def create(cls, num_ranks: int) -> ProgressPage:
        descriptor = os.memfd_create("clusterbench-progress", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_ranks * _RECORD.size)
        page = cls(descriptor, num_ranks)
        for slot in range(num_ranks):
            page.write(slot, 0, -1)  # a rank that is not there yet is in no iteration
        return page

    def write(self, slot: int, phase: int, iteration: int) -> None:
        """``slot`` counts the ranks of this agent; ``phase`` is an index into :data:`clusterbench.types.PHASES`."""
        _RECORD.pack_into(self._memory, slot * _RECORD.size, phase, iteration)

    def read(self, slot: int) -> tuple[int, int]:
        """The last (phase, iteration) a rank wrote."""
        phase, iteration = _RECORD.unpack_from(self._memory, slot * _RECORD.size)
        return phase, iteration

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)
