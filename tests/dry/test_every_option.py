"""Every value of every option is dry-run, alone and in odd mixtures, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from clusterbench.dry import objection
from clusterbench.dry.processes import dry_ranks
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import Option, options_of
from clusterbench.parallel import active_in, from_options, parallelisms
from clusterbench.trainers.ours import Ours
from tests.share import some_of
from tests.training.jobs import Case, Totals, expected, make_job, name_of

FLAT = {"shape": "llama-flat-tiny", "dtype": "bfloat16", "micro_batch_size": 1}
PIPED = {**FLAT, "shape": "llama-tiny", "global_batch_size": 4}
MOE = {**FLAT, "shape": "moe-flat-tiny", "seq_len": 32}
EVEN = {"routing": "balanced"}

SHOWS: dict[str, Case] = {
    "compile": ("dp2", {}, FLAT),
    "context": ("cp2", {}, FLAT),
    "compress": ("dp2", {}, FLAT),
    "powersgd_rank": ("dp2", {}, FLAT),
    "topk_share": ("dp2", {}, FLAT),
    "routing": ("dp2+ep2", {}, MOE),
    "expert_overlap": ("dp2+ep2", EVEN, {**MOE, "micro_batch_size": 2}),
    "aux_loss": ("dp2+ep2", EVEN, MOE),
    "offload": ("dp2+zero3", {}, FLAT),
    "shard_group_size": ("dp4+zero3", {}, FLAT),
    "schedule": ("pp2", {}, PIPED),
    "chunks_per_rank": ("pp2", {"schedule": "interleaved_1f1b"}, PIPED),
    "recompute": ("tp1", {}, FLAT),
    "loss_parallel": ("tp2+sp", {}, FLAT),
    "attention_backend": ("tp1", {}, {**FLAT, "shape": "llama-tiny-mha"}),
    "loss_chunks": ("dp2+zero3", {}, FLAT),
    "async_tp": ("tp2+sp", {"compile": True}, FLAT),
    "float8": ("dp2", {}, FLAT),
    "update_rounding": ("dp2-tp2+sp+zero3", {}, {**FLAT, "precision": "pure_bfloat16"}),
}
"""Where an option does something."""

VALUES: dict[str, tuple[Any, ...]] = {
    "powersgd_rank": (2,),
    "topk_share": (0.1,),
    "loss_chunks": (2,),
    "aux_loss": (0.01,),
    "shard_group_size": (2,),
    "chunks_per_rank": (2,),
}
"""Of options without a list of choices."""

REFUSED = {
    ("compress", "powersgd"): "callbacks",
    ("compress", "topk"): "places",
    ("routing", "real"): "routing balanced can be dry-run",
}

ON_GPUS = {"flash3", "cudnn", "efficient", "async_tp"}
"""Values, and an option, that a CPU does not have."""

MIXTURES: list[Case] = [
    ("dp2-tp2+sp+ep4", {**EVEN, "expert_overlap": True, "aux_loss": 0.01}, {**MOE, "micro_batch_size": 2}),
    ("tp4+sp+ep4", EVEN, {**MOE, "shape": "moe-shared-tiny"}),
    ("dp2-cp2+zero1", {}, {**FLAT, "dtype": "float64"}),
    ("dp4+ep2+zero3", {**EVEN, "recompute": "full"}, MOE),
    ("pp4-dp2-cp2-tp2+sp+zero2", {}, {**PIPED, "global_batch_size": 8}),
    ("pp2-dp2+ep2+zero3", {**EVEN, "schedule": "interleaved_1f1b"}, {**MOE, "shape": "moe-tiny"}),
    ("pp2-tp2", {"schedule": "gpipe", "recompute": "selective"}, {**PIPED, "shape": "llama-tiny-tied"}),
    ("pp2-dp2+zero1", {"schedule": "dualpipev"}, {**PIPED, "global_batch_size": 8}),
    ("cp4-tp2+sp", {"context": "ring", "recompute": "full"}, {**FLAT, "seq_len": 32}),
    ("pp2-dp2+zero1", {"update_rounding": "stochastic"}, {**PIPED, "precision": "pure_bfloat16"}),
    ("dp4+ep2+zero3", {**EVEN, "update_rounding": "stochastic"}, {**MOE, "precision": "pure_bfloat16"}),
    ("dp2-tp2+sp+zero3", {"float8": "rowwise", "recompute": "selective"}, FLAT),
    ("dp4+zero2", {"shard_group_size": 2, "recompute": "selective"}, FLAT),
    ("dp2-tp2+sp+zero1", {}, {**FLAT, "gradient_dtype": "bfloat16"}),
    ("dp4+ep2+zero3", EVEN, {**MOE, "gradient_dtype": "bfloat16"}),
    ("pp2-dp2", {"schedule": "zbv"}, {**PIPED, "gradient_dtype": "bfloat16"}),
]


def every_option() -> Iterator[Option]:
    for kind in parallelisms().values():
        yield from options_of(kind).values()


def values_of(option: Option) -> tuple[Any, ...]:
    return option.choices or VALUES.get(option.name) or ((not option.default,) if option.kind is bool else ())


def every_value() -> Iterator[tuple[Case, str]]:
    devices = cycle(("cuda", "cpu"))
    for option in every_option():
        for value in values_of(option):
            layout, options, job = SHOWS[option.name]
            if (option.name, value) not in REFUSED:
                yield (
                    (layout, {**options, option.name: value}, job),
                    "cuda" if {value, option.name} & ON_GPUS else next(devices),
                )
    yield from zip(MIXTURES, cycle(("cpu", "cuda")), strict=False)


def job_of(case: Case, device: str) -> TrainingJob:
    layout, _, changes = case
    least = changes["micro_batch_size"] * ParallelLayout.parse(layout).dp
    return make_job(layout, device=device, **{"global_batch_size": least, **changes})


def test_every_option_has_its_values_here() -> None:
    assert {option.name for option in every_option()} == SHOWS.keys()
    assert all(map(values_of, every_option()))


@pytest.mark.parametrize(("option", "value", "why"), [(*asked, why) for asked, why in REFUSED.items()])
def test_what_is_refused_says_why(option: str, value: Any, why: str) -> None:
    layout, options, job = SHOWS[option]
    assert why in str(objection(make_job(layout, **job), from_options({**options, option: value})))


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("case", "device"),
    some_of([*every_value()], lambda each: f"{name_of(each[0])} {each[1]}"),
    ids=lambda each: each if isinstance(each, str) else name_of(each),
)
def test_it_is_dry_run(case: Case, device: str) -> None:
    job, every = job_of(case, device), from_options(case[1])
    assert objection(job, every) is None
    (rank,) = dry_ranks(Ours(), job, every, "megatron", [job.layout.world_size - 1])
    assert rank.memory["total"] == sum(held.size_bytes for held in rank.held)
    assert sum(each.flops for each in rank.executed) == sum(each.flops for each in rank.work) > 0
    place = job.layout.coordinates(rank.rank)
    inexact = {axis for each in active_in(job.layout, every) for axis in each.traffic_basis(job)}
    told: Totals = {}
    for sent in rank.sent:
        count, size_bytes = told.get((sent.axis, sent.op), (0, 0))
        told[sent.axis, sent.op] = count + sent.count, size_bytes + sent.count * sent.size_bytes
    by_formula = expected(job, every, place["pp"])
    assert _but(told, inexact) == _but(by_formula, inexact)
    assert {axis for axis, _ in told} == {axis for axis, _ in by_formula}


def _but(totals: Totals, axes: set[str]) -> Totals:
    return {what: total for what, total in totals.items() if what[0] not in axes}
