"""What stands for all weights of a kind, counted, is what one gets weight by weight."""

from __future__ import annotations

from collections import Counter

import pytest

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    active_in,
    from_options,
    held_weights,
    local_weights,
    part_of,
    split_over,
    summed_over,
)
from clusterbench.shape import named_shape

CASES = [
    ("llama-tiny", "tp1", {}),
    ("llama-tiny", "dp2-tp4+sp", {}),
    ("llama-tiny", "dp4-tp8+zero3", {"shard_group_size": 2}),
    ("llama-deep-tiny", "pp4-dp2+zero1", {}),
    ("llama-deep-tiny", "pp2-dp2-cp2-tp2+sp+zero2", {"schedule": "interleaved_1f1b"}),
    ("llama-1b", "pp4-tp2", {}),  # tied: the embedding is on the first and on the last stage
    ("olmoe-1b-7b", "pp2-dp4-tp2+sp+ep4", {}),
    ("olmoe-1b-7b", "dp8+ep4+zero3", {}),
    ("moe-tiny", "dp2-cp2+ep4", {}),
]


@pytest.mark.parametrize(("shape", "layout", "options"), CASES)
def test_counted_kinds_are_all_weights_of_each_stage(shape: str, layout: str, options: dict[str, object]) -> None:
    job = TrainingJob(named_shape(shape), ParallelLayout.parse(layout), 64, 64, 1)
    active = active_in(job.layout, from_options(options))
    for pp_rank in range(job.layout.pp):
        part = part_of(job, active, pp_rank)
        one_by_one = Counter(
            (size, split_over(active, name, part), summed_over(active, name, part))
            for name, size in local_weights(active, part).items()
        )
        counted: Counter[tuple[object, ...]] = Counter()
        for weight, number in held_weights(active, part):
            counted[weight.size, weight.split_over, weight.summed_over] += number
        assert counted == one_by_one
