"""What torchtitan's step sends and keeps, where that follows from the sizes of weights and activations; no torch.

Source: ``distributed/fsdp.py``, ``models/common/decoder_sharding.py``, ``components/loss.py`` and ``trainer.py`` of
torchtitan 0.3. Counted are its backend ``partial_dtensor`` and PyTorch 2.13 and 2.15.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from clusterbench.expected.flops import METRIC as EXECUTED
from clusterbench.expected.flops import Work
from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.memory import ACTIVATIONS, DEVIATION, OF_STATES, TOTAL
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.job.flops import BACKWARD, PRODUCTS
from clusterbench.parallel import Parallelism, Traffic, of_kind
from clusterbench.parallel.recompute import Recompute
from clusterbench.parallel.tensor import TensorParallel
from clusterbench.torch_release import sums_norms_in_float32
from clusterbench.types import Expected, metric_key, split_key
from clusterbench.units import format_bytes

MASTER_BYTES = 4
_FLOAT32_BYTES, _COUNT_BYTES = 4, 8
_REDUCED_BY_LOSS = 3
"""Numbers of a token that ranks of tp reduce in the loss: its largest logit, the sum of exponentials, the label's."""

_NOT_GATHERED_AGAIN = "norm.weight", "head.weight"
"""Weights of the group that stays whole between forward and backward; with a tied embedding that is in it, too."""


def expected_of_torchtitan(job: TrainingJob, active: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    """Metric key -> what is expected of traffic and states; of tp without sp DTensor chooses what is sent."""
    sent = traffic_of_step(job, active)
    for axis in dict.fromkeys(each.axis for each in sent):
        along = [each for each in sent if each.axis == axis]
        words = " + ".join(f"{each.count} {each.op} of {format_bytes(each.size_bytes)} in all" for each in along)
        basis = f"{words}; torchtitan 0.3; {job.equation}"
        link = sum(each.bytes_on_link(job.layout) for each in along)
        yield metric_key("traffic_bytes", axis=axis), Expected(link, "B", f"{basis}; x bus factor")
        yield metric_key("collectives", axis=axis), Expected(sum(each.count for each in along), "1", basis)
    for category, (size_bytes, basis) in states_of_rank(job).items():
        yield metric_key("memory_at_rest", category=category), Expected(size_bytes, "B", basis)
        yield metric_key(DEVIATION, category=category), Expected(OF_STATES, "1", "at most; exact but for alignment")


def expected_flops_of_torchtitan(
    of_ours: Mapping[str, Expected], job: TrainingJob, active: Sequence[Parallelism]
) -> Iterator[tuple[str, Expected]]:
    """Metric key -> FLOPs of a step of all ranks, from what is expected of ours; of tp without sp nothing.

    There DTensor gives every rank the whole gradients of attention's and the feed-forward's last product, where that
    seems cheaper to it than to cut them, which depends on their sizes.
    """
    if _leaves_it_to_dtensor(job):
        return
    more = last_products_again(job, active) * job.layout.world_size
    for key, expected in of_ours.items():
        name, detail = split_key(key)
        if name == EXECUTED and more and detail["part"] == PRODUCTS:
            basis = f"{expected.basis}; torchtitan computes layers again to their end"
            yield key, Expected(expected.value + more, expected.unit, basis)
        elif name == EXECUTED:
            yield key, expected


def last_products_again(job: TrainingJob, active: Sequence[Parallelism]) -> int:
    """FLOPs on each rank of what ours does not compute again: the last product of a layer (``early_stop=False``)."""
    if of_kind(Recompute, active) is None:
        return 0
    shape, tokens = job.shape, job.micro_batch_size * job.seq_len * job.gradient_accumulation_steps
    return 2 * tokens * shape.num_layers * shape.hidden_size * shape.ffn_hidden_size // job.layout.tp


class TorchtitanFormulas(StepFormulas):
    """What is counted on ranks of torchtitan is held against this: all send alike."""

    @cached_property
    def executed(self) -> Sequence[Mapping[Work, int]]:
        more = Counter({(PRODUCTS, BACKWARD): last_products_again(self.job, self.active)})
        return [Counter(of_rank) + more for of_rank in super().executed]

    @cached_property
    def calls(self) -> Sequence[Mapping[tuple[str, str], int]]:
        return [{(sent.axis, sent.op): sent.count for sent in traffic_of_step(self.job, self.active)}]

    @cached_property
    def joined_calls(self) -> Mapping[tuple[str, str], tuple[float, float]]:
        return {}

    @cached_property
    def less_sent(self) -> Sequence[Mapping[str, float]]:
        return [{}] * self.job.layout.world_size

    @cached_property
    def not_predicted(self) -> Mapping[str, str]:
        return dict.fromkeys(("gradients", ACTIVATIONS, TOTAL), "torchtitan's activations have no formula here")


def traffic_of_step(job: TrainingJob, active: Sequence[Parallelism]) -> list[Traffic]:
    """Of a rank; nothing at all where tp is without sp."""
    layout = job.layout
    if _leaves_it_to_dtensor(job):
        return []
    of_norm = _FLOAT32_BYTES * len(weight_shapes(job))  # one number of each weight
    sent = []
    if layout.dp > 1:
        sent += [*_of_shards(job), Traffic("dp", "all_reduce", 2, _COUNT_BYTES + of_norm)]
    if layout.tp > 1:
        sent += _of_slices(job, 3 if of_kind(Recompute, active) is not None else 2, of_norm)
    return sent


def _leaves_it_to_dtensor(job: TrainingJob) -> bool:
    return job.layout.tp > 1 and not job.layout.sp


def states_of_rank(job: TrainingJob) -> Mapping[str, tuple[float, str]]:
    """Category -> bytes between steps on the fullest rank, and why."""
    layout, shape = job.layout, job.shape
    padded = [_padded(name, size, job) for name, size in weight_shapes(job).items()]
    part = sum(padded) // layout.dp
    tables = shape.num_layers * job.seq_len * 2 * shape.head_dim * _FLOAT32_BYTES
    of = f"a part of {shape.num_parameters:,} over tp{layout.tp} and dp{layout.dp}"
    kept = f"{of} in float32, and in each layer cosines and sines of {job.seq_len} positions, {format_bytes(tables)}"
    moments = 2 * MASTER_BYTES * part + _FLOAT32_BYTES * len(padded)  # and a step count each
    return {
        "parameters": (MASTER_BYTES * part + tables, kept),
        "optimizer_state": (moments, f"two float32 moments of {of}"),
    }


def _of_shards(job: TrainingJob) -> list[Traffic]:
    """FSDP: embedding, each layer, and last norm and head together are gathered and reduced in each micro-batch."""
    times, tied = job.gradient_accumulation_steps, job.shape.tied_embeddings
    sizes = {name: _padded(name, size, job) for name, size in weight_shapes(job).items()}
    whole = sum(sizes.values())
    stays = sum(sizes.get(name, 0) for name in _NOT_GATHERED_AGAIN) + (sizes["embedding.weight"] if tied else 0)
    groups = job.shape.num_layers + (1 if tied else 2)
    return [
        Traffic("dp", "all_gather", times * (2 * groups - 1), times * (2 * whole - stays) * job.compute_bytes),
        Traffic("dp", "reduce_scatter", times * groups, times * whole * _FLOAT32_BYTES),
    ]


def _of_slices(job: TrainingJob, passes: int, of_norm: int) -> list[Traffic]:
    """Tensor and sequence parallelism: into and out of attention and feed-forward, the embedding and the head."""
    times, layers, hidden = job.gradient_accumulation_steps, job.shape.num_layers, job.shape.hidden_size
    tokens = job.micro_batch_size * job.seq_len
    crossings = times * (2 * passes * layers + 2)
    crossed = crossings * tokens * hidden * job.compute_bytes
    norms = 2 * layers + 1
    of_norms = norms * hidden * (_FLOAT32_BYTES if sums_norms_in_float32() else job.compute_bytes)
    reduced = _REDUCED_BY_LOSS * tokens * _FLOAT32_BYTES + of_norms
    return [
        Traffic("tp", "all_gather", crossings, crossed),
        Traffic("tp", "reduce_scatter", crossings, crossed),
        Traffic("tp", "all_reduce", times * (_REDUCED_BY_LOSS + norms) + 1, times * reduced + of_norm),
    ]


def _padded(name: str, size: tuple[int, ...], job: TrainingJob) -> int:
    """Elements of a weight that one rank of tp has, its rows filled up so that ranks of dp have as many each."""
    rows, *others = TensorParallel().weight(name, size, job)
    return -(-rows // job.layout.dp) * job.layout.dp * prod(others)
