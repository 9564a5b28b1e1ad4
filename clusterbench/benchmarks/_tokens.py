"""Tokens of a training step from a disk: the file that ranks of one host share, written before anything is timed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterbench.benchmarks._files import SharedFile, cache_evidence, expect_room, leave_cache, on_disk
from clusterbench.types import SAMPLES, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.proof.fed_step import FedStep
    from clusterbench.training.token_reader import TokenReader

RESIDENT, READ = "resident", "read"
PATH = "/tmp"
FILE_BYTES = 2**26


def is_fed(point: Point) -> bool:
    """Whether a step's tokens are read while it is timed."""
    return str(point.get("tokens", RESIDENT)) == READ


def reading(step: Step, fed: FedStep, rig: Rig, point: Point) -> Step:
    """The step with its tokens read while it is timed, proven to be the right ones behind the clock."""
    cached: dict[str, float] = {}

    def begin() -> None:
        fed.reader, held = _begun(rig, point, fed)
        cached.update(held)

    def confirm(is_first: bool) -> Mapping[str, float]:
        fed.confirm(rig)
        return {**cached, **step.confirm(is_first)}

    return replace(step, begin=begin, confirm=confirm, passes={SAMPLES: lambda: fed.samples(rig), **step.passes})


def _begun(rig: Rig, point: Point, fed: FedStep) -> tuple[TokenReader, Mapping[str, float]]:
    """Writes a file for each rank of dp on each host, and begins to read this rank's. A collective.

    Ranks of tp, cp and pp that share a host and a place along dp read the same file, as they would the same corpus.

    Returns
    -------
    The reader, and what the page cache held of the file before it.
    """
    from clusterbench.training.token_reader import TokenFile, TokenReader, steps_of_file

    path, job = str(point.get("path", PATH)), fed.step.job
    num_steps = steps_of_file(job, rig.asked_calls, int(point.get("file_size", FILE_BYTES)))
    contents = TokenFile(job, fed.dp_rank, num_steps)
    name = f"{rig.tell(secrets.token_hex(8), 0)}-{rig.host}-dp{fed.dp_rank}"
    file = SharedFile(path, name, rig.comm.barrier)
    if file.is_first:
        with on_disk(path):
            expect_room(path, contents.size_bytes)
            contents.write(file.descriptor)
            leave_cache(file.descriptor)
    rig.comm.barrier()
    held = cache_evidence([file.descriptor])
    rig.comm.barrier()  # another rank's reader would bring pages in while this one looks
    return TokenReader(contents, fed.positions, file, rig.device), held
