"""Whether a whole step goes through code that the smallest of its kind does not."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import clusterbench
from clusterbench.dry.processes import DryTask
from tests.dry.shipped import of_each_kind, pairwise

MOST_PASSES = 256
"""Layers of a stage times micro-batches: a traced step takes a second or two for each."""
OURS = str(Path(clusterbench.__file__).parent)


def ways(task: DryTask) -> frozenset[str]:
    """Of a dry step of a rank: lines of ours, collectives along axes, and operators in parts of the model."""
    ours, theirs = (context := multiprocessing.get_context("fork")).Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, task))
    process.start()
    theirs.close()
    told: frozenset[str] = ours.recv()
    process.join()
    return told


def whole_ones(first: Mapping[DryTask, str], count: int) -> dict[DryTask, DryTask]:
    """So many of the steps that are short enough, in which most comes together, each with the smallest of its kind."""
    whole = {few: task for task, few in of_each_kind(first, smallest=True) if _passes_of_layers(task) <= MOST_PASSES}
    return {whole[few]: few for few in pairwise(list(whole))[:count]}


def _passes_of_layers(task: DryTask) -> int:
    job = task.job
    return job.shape.num_layers // job.layout.pp * job.gradient_accumulation_steps


def _tell(answer: Any, task: DryTask) -> None:
    from clusterbench.dry.rank import dry_rank

    lines: set[str] = set()

    def line_of(frame: FrameType, event: str, _: object) -> Any:
        lines.add(f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}")
        return line_of

    def call_of(frame: FrameType, event: str, _: object) -> Any:
        return line_of if frame.f_code.co_filename.startswith(OURS) else None

    sys.settrace(call_of)
    seen = dry_rank(**vars(task))
    sys.settrace(None)
    sent = {f"{each.axis} {each.op} of {each.dtype}" for each in seen.sent}
    work = {f"{each.kind} in {each.where}, {each.during}" for each in seen.work}
    answer.send(frozenset(lines | sent | work))
