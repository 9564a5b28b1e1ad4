"""Every layout computes what one rank computes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterbench.expected.tolerances import ONE_RANK, PARITY_METRICS, allowed_of
from clusterbench.formulas.schedules import SCHEDULES, splits_backward
from clusterbench.parallel import from_options
from clusterbench.parallel.context import KINDS
from tests.share import some_of
from tests.training.jobs import Case, Together, make_job, name_of, objection_to, parity_of

pytestmark = pytest.mark.gloo

# A hundredth of what is allowed: it tells a sum in another order (1e-15, and what AdamW makes of it: 1e-12) from one in
# another precision (1e-8).
OF_ALLOWED = 0.01

TIED, MQA = {"shape": "llama-tiny-tied"}, {"shape": "llama-tiny-mqa"}
MOE, SHARED = {"shape": "moe-tiny"}, {"shape": "moe-shared-tiny"}
SWITCH = {"shape": "llama-tiny-switch"}
"""With one expert for each token."""
EIGHT = {"micro_batch_size": 1, "global_batch_size": 8}
"""As many micro-batches as any schedule needs on four ranks."""
DEEP = {**EIGHT, "shape": "llama-tiny-deep"}

TENSOR: list[Case] = [
    ("tp1", {}, {}),
    ("tp1", {"recompute": "full"}, {}),
    ("tp2", {}, {}),
    ("tp2", {"loss_parallel": False}, {}),
    ("tp2", {}, TIED),
    ("tp2", {"recompute": "full"}, {}),
    ("tp2", {"recompute": "selective"}, {}),
    ("tp2", {}, MQA),
    ("tp2+sp", {}, {}),
    ("tp2+sp", {}, MQA),
    ("tp2+sp", {"recompute": "full"}, {}),
    ("tp2+sp", {"recompute": "selective", "loss_parallel": False}, TIED),
    ("tp4", {}, {}),
    ("tp4+sp", {}, {}),
]
DATA: list[Case] = [
    *((layout, {"loss_chunks": 2}, TIED) for layout in ("tp1", "dp2", "cp2", "dp2+zero3")),
    ("dp2+zero2", {"loss_chunks": 4, "recompute": "full"}, {}),
    ("dp2+zero3", {"loss_chunks": 4}, {}),
    ("dp2", {}, {}),
    ("dp4", {}, {}),
    ("dp2-tp2", {}, {}),
    ("dp2-tp2+sp", {"recompute": "full"}, {}),
    ("dp2-tp2+sp", {}, MQA),
]
ZERO: list[Case] = [
    *((f"{layout}+zero{stage}", {}, {}) for stage in (1, 2, 3) for layout in ("dp2", "cp2", "dp2-cp2", "dp2-tp2+sp")),
    *((f"dp2+zero{stage}", {"recompute": kind}, {}) for stage in (1, 2, 3) for kind in ("selective", "full")),
    *((f"dp2+zero{stage}", {"offload": True}, {}) for stage in (2, 3)),
    *((f"{layout}+zero{stage}", {"shard_group_size": 2}, {}) for stage in (2, 3) for layout in ("dp4", "dp2-cp2")),
    ("dp2-tp2+sp+zero3", {}, TIED),
    ("dp2-tp2+sp+zero2", {}, MQA),
]
CONTEXT: list[Case] = [
    *((layout, {"context": kind}, {}) for kind in KINDS for layout in ("cp2", "cp4")),
    *(("cp2", {"context": kind, "recompute": how}, {}) for kind in KINDS for how in ("selective", "full")),
    # with one kv head, and two tp ranks that keep it whole
    *(("cp2-tp2+sp", {"context": kind}, MQA) for kind in KINDS),
    ("dp2-cp2", {}, {}),
]
PIPELINE: list[Case] = [
    *(("pp2", {"schedule": schedule}, EIGHT) for schedule in SCHEDULES),
    # with stages in the middle, one of a kind: whole stages, several chunks a rank, a v with its backward in two parts
    *(("pp4", {"schedule": schedule}, DEEP) for schedule in ("1f1b", "interleaved_1f1b", "zbv")),
    *(
        ("pp2", {"schedule": schedule, "recompute": how}, EIGHT)
        for schedule in SCHEDULES
        if not splits_backward(schedule)
        for how in ("selective", "full")
    ),
    *(
        ("pp2", {"schedule": schedule, "chunks_per_rank": 4}, DEEP)
        for schedule in ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
    ),
    *(
        (f"pp2-dp2+zero{stage}", {"schedule": schedule}, {**EIGHT, "global_batch_size": 16})
        for stage in (2, 3)
        for schedule in SCHEDULES
        if not splits_backward(schedule)
    ),
    *(("pp2-dp2+zero1", {"schedule": schedule}, EIGHT) for schedule in ("interleaved_zero_bubble", "zbv", "dualpipev")),
    ("pp2", {}, TIED),
    ("pp2-tp2+sp", {"schedule": "interleaved_1f1b"}, {**TIED, **EIGHT}),
    ("pp2-dp2+zero1", {}, TIED),
    ("pp2-dp2+zero3", {}, TIED),
    ("pp2-tp2", {}, MQA),
    ("pp2-cp2", {}, {}),
    ("pp2-cp2-tp2", {"context": "all_gather"}, MQA),
    ("pp2-cp2-tp2+sp", {"context": "ulysses"}, MQA),
]
# Of 5 layers the stages have 3 and 2, the four of two chunks a rank 1, 2, 1 and 1; of 7 on four stages 2, 2, 2 and 1.
UNEVEN: list[Case] = [
    *(("pp2", {"schedule": schedule}, {**EIGHT, "shape": "llama-tiny-five"}) for schedule in SCHEDULES),
    ("pp2-dp2+zero3", {"schedule": "interleaved_1f1b"}, {**EIGHT, "shape": "llama-tiny-seven"}),
    ("pp4", {"schedule": "1f1b", "recompute": "full"}, {**EIGHT, "shape": "llama-tiny-seven"}),
]
EXPERTS: list[Case] = [
    *(("dp2+ep2", {"routing": routing}, shape) for routing in ("real", "balanced") for shape in (MOE, SHARED)),
    *(("dp2+ep2", {"expert_overlap": True, "routing": routing}, SHARED) for routing in ("real", "balanced")),
    *(("dp2+ep2", {"recompute": how}, MOE) for how in ("selective", "full")),
    *((layout, {"aux_loss": 0.01}, MOE) for layout in ("dp2+ep2", "cp2", "dp2-cp2+ep4", "dp2-tp2+sp+ep2", "tp2+sp")),
    ("dp2", {}, MOE),
    *(("dp2+ep2", {"routing": routing}, SWITCH) for routing in ("real", "balanced")),
    *((layout, {}, SWITCH) for layout in ("cp2", "pp2", "tp2+sp+ep2", "dp2+zero3")),
    ("tp2+sp+ep2", {}, SHARED),
    ("cp2+ep2", {"routing": "balanced"}, MOE),
    ("pp2-dp2+ep2", {"aux_loss": 0.01, "recompute": "full"}, MOE),
    ("pp2-dp2+ep2", {"schedule": "dualpipev"}, {**MOE, **EIGHT}),
    *((f"{layout}+zero{stage}", {}, MOE) for stage in (1, 2, 3) for layout in ("dp2+ep2", "dp4+ep2", "pp2-dp2+ep2")),
]
IN_FLOAT64 = [*TENSOR, *DATA, *ZERO, *CONTEXT, *PIPELINE, *UNEVEN, *EXPERTS]
IN_LESS: list[Case] = [
    (layout, options, {**changes, "dtype": dtype})
    for dtype in ("float32", "bfloat16")
    for layout, options, changes in [
        ("dp2", {}, {}),
        ("tp2", {}, {}),
        ("cp2", {}, {}),
        ("pp2", {}, {}),
        ("dp2+zero2", {}, {}),
        ("dp2+zero3", {"recompute": "selective"}, {}),
        ("dp2+ep2", {"routing": "balanced"}, MOE),
        ("dp2-tp2+sp", {}, {}),
        ("dp4-cp2+zero3", {}, {"shape": "llama-flat-tiny"}),  # parts of a norm's weight with eight elements
        ("pp2-cp2", {}, {"shape": "llama-tiny-single"}),  # a twin as wide as its one head had gradients off by a tenth
    ]
]
PURE: list[Case] = [
    (layout, options, {**changes, "dtype": "bfloat16", "precision": "pure_bfloat16"})
    for layout, options, changes in [
        ("tp1", {"recompute": "full"}, {}),
        ("dp2", {"loss_chunks": 2}, {}),
        ("tp2+sp", {}, TIED),
        ("cp2", {}, {}),
        ("pp2", {}, {}),
        ("dp2+zero1", {}, {}),
        ("dp2+zero2", {}, {}),
        ("dp2+zero3", {"offload": True}, {}),
        ("dp2+ep2", {}, MOE),
        ("dp2-tp2+sp", {}, {}),
    ]
]
"""Weights, gradients and moments in 16 bits."""
BY_CHANCE: list[Case] = [
    (layout, {**options, "update_rounding": "stochastic"}, {**changes, "seed": seed})
    for seed, (layout, options, changes) in enumerate(PURE)
]
"""The same, with updated weights rounded by chance: by other random bits in each case."""
BY_CHANCE += [
    (layout, {"float8": scaling, "update_rounding": "stochastic"}, {"dtype": "bfloat16", "precision": "pure_bfloat16"})
    for layout, scaling in (("dp2", "tensorwise"), ("pp2", "tensorwise"), ("dp2+zero3", "rowwise"))
]
HALF_MOMENTS: list[Case] = [
    (layout, options, {"dtype": "bfloat16", "precision": "bfloat16_moments"})
    for layout, options in [("dp2", {}), ("tp2", {}), ("pp2", {}), ("dp2+zero1", {}), ("dp2+zero3", {"offload": True})]
]
NARROW: list[Case] = [
    (layout, options, {**changes, "dtype": "bfloat16", "gradient_dtype": "bfloat16"})
    for layout, options, changes in [
        ("tp1", {"recompute": "full"}, {}),
        ("dp2", {}, {}),
        ("dp2", {"loss_chunks": 2}, TIED),
        ("dp2", {"compile": True}, {"precision": "bfloat16_moments"}),
        ("dp2+zero1", {}, {}),
        ("dp2+zero2", {}, {}),
        ("dp2+zero3", {"offload": True}, {}),
        ("tp2", {}, TIED),
        ("tp2+sp", {}, MQA),
        ("cp2", {}, {}),
        ("pp2", {}, EIGHT),
        ("pp2", {"schedule": "zbv"}, EIGHT),
        ("dp2+ep2", {}, MOE),
        ("dp2+ep2+zero3", {}, MOE),
        ("dp4", {}, {}),
        ("dp2-tp2+sp+zero3", {}, {}),
    ]
]
"""Gradients in 16 bits, of weights in 32."""
FLOAT8: list[Case] = [
    (layout, {**options, "float8": scaling}, {**changes, "dtype": "bfloat16"})
    for scaling in ("tensorwise", "rowwise")
    for layout, options, changes in [
        ("tp1", {"recompute": "selective"}, {}),
        ("dp2", {}, {"precision": "pure_bfloat16"}),
        ("dp2+zero3", {"recompute": "full"}, {}),
        ("cp2", {}, {}),
        ("pp2", {}, {}),
        ("dp2+ep2", {}, SHARED),
        ("tp2", {}, {"precision": "pure_bfloat16"}),
        ("tp2+sp", {"recompute": "selective"}, MQA),
        ("tp2+sp", {}, SHARED),
        ("dp2-tp2+zero3", {}, {}),
        ("dp4+zero3", {}, {"seed": 2}),
    ]
]
# Healthy mixes that were called wrong: parts of 8 elements, 32 layers, and a second loss after the updates of float8.
BATCH = {"global_batch_size": 64, "micro_batch_size": 1, "seq_len": 128, "dtype": "bfloat16"}
WIDE: list[Case] = [
    ("dp8+zero2", {}, {**BATCH, "precision": "bfloat16_moments", "seed": 35}),
    (
        "dp8+ep2+zero2",
        {"routing": "balanced"},
        {**BATCH, "shape": "moe-shared-tiny", "gradient_dtype": "bfloat16", "seed": 24},
    ),
    ("pp8", {"schedule": "looped_bfs"}, {**BATCH, "shape": "llama-8b", "seed": 66}),
    ("tp8", {"float8": "rowwise"}, {**BATCH, "shape": "llama-70b", "seed": 28}),
]
QUICK = [case for case in [*TENSOR, *DATA] if case[0] in ("tp2", "tp2+sp", "dp2")]
"""Of the first start of two ranks."""

EXACT = [*QUICK, *some_of([case for case in IN_FLOAT64 if case not in QUICK], name_of)]
IN_BOTH = some_of([*IN_LESS, *PURE, *BY_CHANCE, *HALF_MOMENTS, *NARROW, *FLOAT8, *WIDE], name_of)
PROVEN = Together(parity_of, [*EXACT, *IN_BOTH])


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.quick if case in QUICK else (), id=name_of(case)) for case in EXACT],
)
def test_a_layout_equals_one_rank_in_float64(case: Case) -> None:
    assert objection_to(case) is None
    prove(case, PROVEN)


def prove(case: Case, proven: Together) -> None:
    results = proven(case)
    assert not isinstance(results[0], str), results[0]
    assert shares_of_allowed(case, results[0]).keys() == {*PARITY_METRICS}
    assert max(shares_of_allowed(case, results[0]).values()) < OF_ALLOWED, results[0]
    assert all(evidence == results[0] for evidence in results)  # one verdict
    # where a router decides: by more than rounding could turn
    assert results[0].get("routing_margin", 1.0) > 1e-9


def shares_of_allowed(case: Case, evidence: Mapping[str, float]) -> dict[str, float]:
    """Metric key -> how much of what is allowed was needed."""
    allowed = allowed_of(make_job(case[0], **case[2]), from_options(case[1]))
    return {key: evidence[key] / limit.value for key, limit in allowed.items()}


@pytest.mark.parametrize("case", IN_BOTH, ids=name_of)
def test_a_layout_is_well_within_the_tolerances_of_float64_and_of_its_dtype(case: Case) -> None:
    evidence = PROVEN(case)[0]
    assert not isinstance(evidence, str), evidence
    shares = shares_of_allowed(case, evidence)
    exact = {key: share for key, share in shares.items() if key.endswith("[source=float64]")}
    assert len(exact) == len(PARITY_METRICS)
    in_bfloat16 = {ONE_RANK} if case[2]["dtype"] == "bfloat16" else set()
    assert shares.keys() - exact.keys() == {*PARITY_METRICS, *in_bfloat16}
    assert max(exact.values()) < OF_ALLOWED
    assert max(shares.values()) < 0.9, shares


def test_recomputing_under_a_split_backward_is_refused() -> None:
    reason = objection_to(("pp2", {"schedule": "zbv", "recompute": "full"}, EIGHT))
    assert reason == (
        "zbv computes the gradients of weights apart from those of inputs, and recompute full would compute a layer "
        "again for each; 1f1b and interleaved_1f1b go through it once"
    )
