"""What ``clusterbench dry-run`` is asked, as a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import yaml

from clusterbench.cluster import GPUS_OF_A_NODE, Accelerator, card_with_memory
from clusterbench.dry import objection, stage_ranks
from clusterbench.dry.processes import dry_ranks
from clusterbench.dry.text import dry_text
from clusterbench.errors import SuiteError, nearest
from clusterbench.expected.step import lacks_units
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank
from clusterbench.layout import AXES, ParallelLayout
from clusterbench.options import options_of
from clusterbench.parallel import Parallelism, active_in, from_options, parallelisms
from clusterbench.precision import MASTER, WIDE
from clusterbench.shape_file import asked_shape
from clusterbench.trainers.ours import Ours
from clusterbench.units import quotient

MICRO_BATCHES_TRIED = 1024

OF_THE_JOB = (
    *("shape", "seq_len", "micro_batch_size", "global_batch_size"),
    *("dtype", "precision", "gradient_dtype", "device", "rank_order"),
)
"""What a suite has beside options of parallelisms, and the command line as options of its own."""


@dataclass(frozen=True)
class AskedDryRun:
    """One step of which some ranks are to be run dry.

    Attributes
    ----------
    values
        Options of parallelisms that the command line sets.
    shape
        As it was asked for: a name on record, or a path.
    num_nodes, gpus_per_node
        That hold its ranks; all of them on one node where they do not come out even.
    """

    job: TrainingJob
    values: Mapping[str, Any]
    shape: str
    rank_order: str
    ranks: Sequence[int]
    num_nodes: int
    gpus_per_node: int
    gpu: str | None = None

    @property
    def card(self) -> Accelerator | None:
        return None if self.gpu is None else card_with_memory(self.gpu)

    @property
    def every(self) -> Sequence[Parallelism]:
        return from_options(self.values)

    def done(self) -> Sequence[DryRank]:
        """Its ranks, each run dry; how far it is goes to standard error."""
        done = []
        for each in dry_ranks(Ours(), self.job, self.every, self.rank_order, self.ranks):
            done.append(each)
            if len(self.ranks) > 1:
                click.echo(f"rank {each.rank}: {len(done)} of {len(self.ranks)} done", err=True)
        return sorted(done, key=lambda each: each.rank)

    def text(self, done: Sequence[DryRank]) -> str:
        """What a person reads of them."""
        job = self.job
        places = {rank: _place(job.layout.coordinates(rank, self.rank_order)) for rank in self.ranks}
        card = self.card
        memory_gb = (card.memory_bytes or 0) / 1e9 if card else 0.0
        kept = "" if job.precision == MASTER else f", {job.precision}"
        kept += "" if job.gradient_dtype == WIDE else f", {job.gradient_dtype} gradients"
        return (
            f"{job.layout} of {job.shape.name}, {job.dtype}{kept}, seq_len {job.seq_len}; {job.equation}\n"
            f"{dry_text(done, job, self.every, places, memory_gb, card, self.rank_order)}"
        )

    @property
    def suite(self) -> str:
        """A suite with this one step."""
        job = self.job
        said: dict[str, Any] = {
            "benchmark": "train_step",
            "layouts": [str(job.layout)],
            "shape": self.shape,
            "seq_len": job.seq_len,
            "micro_batch_size": job.micro_batch_size,
            "global_batch_size": job.global_batch_size,
            "dtype": job.dtype,
            "rank_order": self.rank_order,
        }
        said |= {"precision": job.precision} if job.precision != MASTER else {}
        said |= {"gradient_dtype": job.gradient_dtype} if job.gradient_dtype != WIDE else {}
        question = f"What does a step of {job.layout} of {job.shape.name} hold, send and launch?"
        whole = {"suite": "dry_run", "question": question, "num_nodes": [self.num_nodes]}
        return yaml.safe_dump({**whole, "benchmarks": [said | dict(self.values)]}, sort_keys=False)


def asked_dry_run(
    layout: str,
    gpu: str | None,
    options: Sequence[str],
    *,
    shape: str,
    num_nodes: int | None,
    gpus_per_node: int | None,
    ranks: Sequence[int],
    seq_len: int,
    micro_batch_size: int,
    global_batch_size: int | None,
    dtype: str,
    precision: str,
    gradient_dtype: str,
    device: str,
    rank_order: str,
) -> AskedDryRun:
    """What a command line asks for.

    Raises
    ------
    SuiteError
        If what is asked is mistaken, or cannot be dry-run.
    """
    card = None if gpu is None else card_with_memory(gpu)
    of_a_node = gpus_per_node or (GPUS_OF_A_NODE if card is None else card.usual_gpus_per_node)
    wanted = (
        ParallelLayout.parse(layout) if num_nodes is None else ParallelLayout.fitting(layout, num_nodes * of_a_node)
    )
    if num_nodes is not None and wanted.world_size != num_nodes * of_a_node:
        raise SuiteError(
            f"{wanted} has {wanted.world_size} ranks, and {num_nodes} nodes of {of_a_node} GPUs have "
            f"{num_nodes * of_a_node}.\nhint: dp* takes all that are left"
        )
    if num_nodes is None and gpus_per_node and wanted.world_size > gpus_per_node and wanted.world_size % gpus_per_node:
        raise SuiteError(
            f"{wanted} has {wanted.world_size} ranks, and nodes of {gpus_per_node} GPUs do not share them evenly: "
            f"{quotient(wanted.world_size, gpus_per_node)} nodes."
        )
    values = _values(options)
    every = from_options(values)
    job = TrainingJob(
        asked_shape(shape),
        wanted,
        seq_len,
        0,
        micro_batch_size,
        dtype,
        device=device,
        precision=precision,
        gradient_dtype=gradient_dtype,
    )
    for name in values:
        (kind,) = (each for each in every if name in options_of(type(each)))
        if not kind.concerned(wanted, job.shape):
            raise SuiteError(
                f"--set {name} has no effect: it belongs to {type(kind).__name__}, which {wanted} of {job.shape.name} "
                "does not use."
            )
    job = _with_batch(job, every, global_batch_size)
    if reason := objection(job, every):
        raise SuiteError(f"{wanted} of {job.shape.name} cannot be dry-run: {reason}.")
    if job.device == "cuda" and (reason := lacks_units(card, job, active_in(wanted, every))):
        raise SuiteError(f"{wanted} of {job.shape.name} is not judged on --gpu {gpu}: {reason}.")
    for rank in ranks:
        if rank >= wanted.world_size:
            raise SuiteError(f"--rank {rank}: {wanted} has the ranks 0 to {wanted.world_size - 1}.")
    chosen = list(dict.fromkeys(ranks)) or stage_ranks(job, rank_order)
    whole_nodes, others = divmod(wanted.world_size, of_a_node)
    nodes = (1, wanted.world_size) if others else (whole_nodes, of_a_node)
    return AskedDryRun(job, values, shape, rank_order, chosen, *nodes, gpu)


def _with_batch(job: TrainingJob, every: Sequence[Parallelism], global_batch_size: int | None) -> TrainingJob:
    """The job with the batch that is asked, or with the fewest micro-batches that the layout takes."""
    if global_batch_size is not None:
        return replace(job, global_batch_size=global_batch_size)
    each = job.micro_batch_size * job.layout.dp
    active, candidate = active_in(job.layout, every), job
    for number in range(1, MICRO_BATCHES_TRIED + 1 if job.layout.uses("pp") else 2):
        candidate = replace(job, global_batch_size=number * each)
        if not any(parallelism.objection(candidate) for parallelism in active):
            break
    return candidate  # where no number will do the largest: what refuses it is not that there are too few


def _values(options: Sequence[str]) -> Mapping[str, Any]:
    """``schedule=zbv`` as an option of a parallelism, read as a suite would."""
    known = {name: option for kind in parallelisms().values() for name, option in options_of(kind).items()}
    values: dict[str, Any] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if name in OF_THE_JOB:
            raise SuiteError(f"--set {text}: it is an option of its own: --{name.replace('_', '-')} {value or 'VALUE'}")
        if name not in known:
            raise SuiteError(f"--set {text}: NAME=VALUE is wanted, of {', '.join(known)}.{nearest(name, known)}")
        if not equals:
            raise SuiteError(f"--set {text} has no value: write {name}=VALUE; it is {known[name].allowed()}.")
        try:
            read = known[name].parse(yaml.safe_load(value))
        except yaml.YAMLError:
            raise SuiteError(f"--set {text}: '{value}' is not YAML.") from None
        except ValueError as error:
            raise SuiteError(f"--set {text}: option '{name}' {error}") from None
        if name in values:
            raise SuiteError(f"--set {name} is given twice, as {values[name]!r} and as {read!r}.")
        values[name] = read
    return values


def _place(coordinates: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {coordinates[axis]}" for axis in AXES)
