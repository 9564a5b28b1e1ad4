"""The run of a training program's log as a case: the median of its printed steps, with low and high."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from clusterbench.errors import SuiteError
from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools.training_log import Step, TrainingLog
from clusterbench.types import metric_key
from clusterbench.words import plural

_OF_STEP = {
    "step_time": "time_s",
    "tokens_per_s_per_rank": "tokens_per_s_per_rank",
    "model_flops_per_s_per_rank": "flops_per_s_per_rank",
    metric_key("mfu", source="imported"): "mfu",
}
"""Metric -> the field of a step; a metric that not every step has is left out."""


def read_training(name: str, log: TrainingLog, facts: Facts) -> Read:
    """One case. The first printed step is left out where there are others: it holds the start of the program.

    Raises
    ------
    SuiteError
        If neither the text nor ``facts`` says on how many ranks and nodes it ran.
    """
    world_size, num_nodes = _place(name, log, facts)
    steps = _counted(log)
    where = f"{name}:{steps[-1].line if steps else log.stop.line if log.stop else 1}"
    notes = tuple(f"{name}: {note}" for note in (*log.notes, *_notes(log)))
    if log.stop or log.wrong:
        status = log.stop.status if log.stop else "wrong"
        reason = f"{name}:{log.stop.line}: {log.stop.words}" if log.stop else f"{name}: {log.wrong}"
        return Read([ImportedCase(where, log.about, world_size, num_nodes, status=status, reason=reason)], notes)
    figures: dict[str, Any] = {
        metric: samples
        for metric, field in _OF_STEP.items()
        if (samples := tuple(getattr(step, field) for step in steps)) and all(samples)
    }
    figures |= {metric_key("peak_memory", category=kind): size for kind, size in log.peak_bytes.items()}
    figures |= {"loss": steps[-1].loss} if steps[-1].loss is not None else {}
    time_s = median(_time_s(step, log, world_size) for step in steps)
    return Read([ImportedCase(where, log.about, world_size, num_nodes, figures=figures, time_s=time_s)], notes)


def _counted(log: TrainingLog) -> tuple[Step, ...]:
    return tuple(step for step in log.steps if step.line != log.first_line) or log.steps


def _place(name: str, log: TrainingLog, facts: Facts) -> tuple[int, int]:
    if log.world_size and facts.num_ranks and facts.num_ranks != log.world_size:
        raise SuiteError(f"{name} says that {log.world_size} ranks trained, and not {facts.num_ranks}.")
    world_size = log.world_size or facts.num_ranks
    if not world_size:
        raise SuiteError(f"{name} does not say on how many ranks it ran.\nhint: say it with --num-ranks")
    return world_size, facts.hosts_of(name, world_size)


def _time_s(step: Step, log: TrainingLog, world_size: int) -> float:
    if step.time_s:
        return step.time_s
    assert step.tokens_per_s_per_rank  # a log prints one of the two
    return log.tokens_per_step / (step.tokens_per_s_per_rank * world_size)


def _notes(log: TrainingLog) -> Iterator[str]:
    if not log.steps or log.stop or log.wrong:
        return
    counted, last = _counted(log), log.steps[-1]
    if any(step.line == log.first_line for step in counted):
        yield f"line {log.first_line} is the only step, and holds the start of the program"
    else:
        yield f"figures are of {plural(len(counted), 'printed step')}; the first, which holds the start, is left out"
    if last.number < log.total:
        yield f"the text ends at step {last.number} of {log.total}, and does not say why"
