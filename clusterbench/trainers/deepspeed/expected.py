"""What DeepSpeed's stages 1 and 2 send and keep, where that follows from the sizes of weights; no torch.

Source: ``runtime/zero/stage_1_and_2.py`` and ``runtime/bf16_optimizer.py`` of DeepSpeed 0.19. A bucket of gradients is
reduced on all ranks, of which each keeps its part: an all-reduce, where the paper has a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.memory import ACTIVATIONS, DEVIATION, OF_STATES, TOTAL
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.parallel import Traffic
from clusterbench.types import Expected, metric_key
from clusterbench.units import format_bytes

BUCKET = 500_000_000
"""Elements of a bucket by default."""

MASTER_BYTES = 4
_NORM_BYTES, _OVERFLOW_BYTES = 4, 1
_ALIGNMENT = 2
"""Of a rank's part of the flattened weights, in elements."""


def expected_of_deepspeed(job: TrainingJob) -> Iterator[tuple[str, Expected]]:
    """Metric key -> what is expected of traffic and states; stage 3 gathers as it has traced, of which nothing is."""
    if job.layout.zero < 3 and job.shape.num_parameters <= BUCKET and job.layout.dp > 1:
        sent = traffic_of_step(job)
        words = " + ".join(f"{each.count} {each.op} of {format_bytes(each.size_bytes)} in all" for each in sent)
        basis = f"{words}; DeepSpeed 0.19 reduces every gradient on all ranks; {job.equation}"
        link = sum(each.bytes_on_link(job.layout) for each in sent)
        yield metric_key("traffic_bytes", axis="dp"), Expected(link, "B", f"{basis}; x bus factor")
        yield metric_key("collectives", axis="dp"), Expected(sum(each.count for each in sent), "1", basis)
    for category, (size_bytes, basis) in states_of_rank(job).items():
        yield metric_key("memory_at_rest", category=category), Expected(size_bytes, "B", basis)
        why = "at most; exact but for what fills up the parts of ranks"
        yield metric_key(DEVIATION, category=category), Expected(OF_STATES, "1", why)


class DeepSpeedFormulas(StepFormulas):
    """What is counted on ranks of DeepSpeed is held against this: all have the same part."""

    @cached_property
    def calls(self) -> Sequence[Mapping[tuple[str, str], int]]:
        return [{(sent.axis, sent.op): sent.count for sent in traffic_of_step(self.job)}]

    @cached_property
    def joined_calls(self) -> Mapping[tuple[str, str], tuple[float, float]]:
        return {}

    @cached_property
    def less_sent(self) -> Sequence[Mapping[str, float]]:
        return [{}] * self.job.layout.world_size

    @cached_property
    def not_predicted(self) -> Mapping[str, str]:
        return dict.fromkeys(("gradients", ACTIVATIONS, TOTAL), "DeepSpeed has buffers of its own, of which none says")


def traffic_of_step(job: TrainingJob) -> list[Traffic]:
    """Of a rank in stages 1 and 2, with a model that fits one bucket."""
    weights = _padded(job) * job.compute_bytes
    if _adds_up_beside(job):  # flattened, and so filled up as weights are
        gradients = _padded(job) * job.gradient_bytes
        return [Traffic("dp", "all_reduce", 1, gradients), Traffic("dp", "all_gather", 1, weights)]
    gradients = job.shape.num_parameters * job.gradient_bytes
    times = job.gradient_accumulation_steps if job.layout.zero == 2 else 1
    scalars = [_NORM_BYTES, *([_OVERFLOW_BYTES] if job.compute_bytes == 2 else [])]
    reduced = Traffic("dp", "all_reduce", times + len(scalars), times * gradients + sum(scalars))
    return [reduced, Traffic("dp", "all_gather", 1, weights)]


def states_of_rank(job: TrainingJob) -> Mapping[str, tuple[float, str]]:
    """Category -> bytes between steps, and why."""
    numel, ranks = job.shape.num_parameters, job.layout.dp
    if job.layout.zero == 3:
        part = sum(-(-prod(size) // ranks) for size in weight_shapes(job).values())
        basis = f"two float32 moments of a part of {numel:,}, each weight over {ranks}"
        return {"optimizer_state": (_moments(part), basis)}
    part = _padded(job) // ranks
    kept = f"{numel:,} of {job.compute_bytes} B, and a part of 1 / {ranks} of them in float32"
    return {
        "parameters": (part * (ranks * job.compute_bytes + MASTER_BYTES), kept),
        "optimizer_state": (_moments(part), f"two float32 moments of a part of {numel:,} flattened over {ranks}"),
    }


def _moments(numel: int) -> int:
    return 2 * MASTER_BYTES * numel + MASTER_BYTES  # and a step count


def _adds_up_beside(job: TrainingJob) -> bool:
    """Whether gradients in bfloat16 are added up in float32: another optimizer of DeepSpeed's then has stage 1."""
    return job.layout.zero == 1 and job.compute_bytes == 2 and job.gradient_bytes == 4


def _padded(job: TrainingJob) -> int:
    """Elements of all weights, flattened and filled up so that ranks have equal parts."""
    unit = _ALIGNMENT * job.layout.dp
    return -(-job.shape.num_parameters // unit) * unit
