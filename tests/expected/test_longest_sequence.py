"""The longest sequence that fits a card, against the memory of every stage at that length and at the next."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from clusterbench.cluster import Cluster
from clusterbench.expected.step import expected_step
from clusterbench.expected.total import full_times, fullest_moment, held_at
from clusterbench.job import TrainingJob
from clusterbench.job.sequence import KINDS
from clusterbench.layout import ParallelLayout, every_layout
from clusterbench.parallel import active_in, from_options, objection_to, part_of
from clusterbench.shape import named_shape
from tests.share import some_of

H100 = Cluster(4, 8, "cuda", "NVIDIA H100 80GB HBM3")
CASES = [
    ("llama-1b", "cp2", {}),
    ("llama-8b", "cp8+zero3", {"recompute": "full"}),
    ("llama-8b", "cp8+zero3", {"recompute": "full", "loss_chunks": 8}),
    ("llama-8b", "pp4-cp2", {}),
    ("llama-8b", "pp4-cp2-tp2+sp", {"schedule": "interleaved_1f1b"}),
    ("llama-8b", "pp4-cp2-tp2+sp+zero1", {"schedule": "gpipe", "recompute": "selective"}),
    ("olmoe-1b-7b", "dp2-cp2+ep4", {}),
    ("olmoe-1b-7b", "pp2-cp2-tp4+sp+ep8", {"context": "all_gather"}),
    ("llama-1b", "dp2-cp4", {"context": "ulysses", "micro_batch_size": 2}),
]


def job_of(shape: str, layout: str, micro_batch_size: int = 1, **changes: Any) -> TrainingJob:
    parsed = ParallelLayout.parse(layout)
    job = TrainingJob(named_shape(shape), parsed, 4096, 16, micro_batch_size, "bfloat16", device="cuda")
    return replace(job, **changes)


def longest(job: TrainingJob, options: dict[str, Any]) -> int:
    return int(expected_step(job, from_options(options), H100)["longest_seq_len"].value)


def after(length: int, unit: int) -> int:
    """The next length whose units have seven binary digits."""
    units = length // unit
    return (units + (1 << max(0, units.bit_length() - 7))) * unit


@pytest.mark.parametrize(("shape", "layout", "options"), CASES)
def test_it_fits_on_every_stage_and_the_next_length_does_not(shape: str, layout: str, options: dict[str, Any]) -> None:
    options = dict(options)
    job = job_of(shape, layout, options.pop("micro_batch_size", 1))
    active = active_in(job.layout, from_options(options))
    unit = job.layout.cp * max(2, job.layout.sequence_parts)
    unit = unit // 2 if options.get("context") == "ulysses" else unit

    def fits(seq_len: int) -> bool:
        longer = replace(job, seq_len=seq_len)
        parts = [part_of(longer, active, pp_rank) for pp_rank in range(job.layout.pp)]
        return all(fullest_moment(active, part).held <= 80e9 for part in parts)

    found = longest(job, options)
    assert found % unit == 0
    assert fits(found)
    assert not fits(after(found, unit))
    # whatever the length that was asked for
    assert longest(replace(job, seq_len=unit), options) == found


def test_where_weights_alone_are_too_large_none_fits() -> None:
    assert longest(job_of("llama-70b", "cp2"), {}) == 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("context", KINDS)
@pytest.mark.parametrize("shape", ["llama-tiny", "moe-shared-tiny"])
def test_whatever_is_held_grows_along_a_line(shape: str, context: str, recompute: str) -> None:
    """In equal steps of the sequence by equal bytes, exactly: what the search for the longest goes by."""
    cells = product(every_layout(8, 4), ("float32", "bfloat16"), ("cpu", "cuda"))
    for layout, dtype, device in some_of([*cells], str):
        every = from_options({"context": context, "recompute": recompute})
        active = active_in(layout, every)
        jobs = [TrainingJob(named_shape(shape), layout, 64 * n, 64, 2, dtype, device=device) for n in (1, 2, 5)]
        if any(objection_to(job, active) for job in jobs):
            continue
        for pp_rank in range(layout.pp):
            parts = [part_of(job, active, pp_rank) for job in jobs]
            once, twice, five = (held_at(full_times(active, part)) for part in parts)
            along = [at_two + 3 * (at_two - at_one) for at_one, at_two in zip(once, twice, strict=True)]
            assert five == pytest.approx(along, abs=1), layout
