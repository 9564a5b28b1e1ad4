"""Bytes that ranks counted, with faults planted in what they left: which rank and axis is named, and what is void."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.dry_step import moved_in
from clusterbench.benchmarks.train_step import formulas_of, job_of
from clusterbench.dry.processes import dry_ranks
from clusterbench.job.passes import Moved
from clusterbench.measured.traffic import differences
from clusterbench.parallel import active_in, expected_traffic, from_options, part_of
from clusterbench.run_folder.passes import as_json
from clusterbench.shape import named_shape, written
from clusterbench.trainers.ours import Ours
from clusterbench.types import Case
from clusterbench.words import plural
from tests.measured.steps import case_of, derived

Ranks = list[list[Moved]]

TIED = written(replace(named_shape("llama-tiny"), name="tied", tied_embeddings=True))


def honest(case: Case) -> Ranks:
    """What each rank leaves that sends what the formula of its stage says."""
    job = job_of(case.point, case.device)
    active, ranks = active_in(job.layout, from_options(case.point)), []
    for rank in range(case.world_size):
        part = part_of(job, active, job.layout.coordinates(rank, str(case.point["rank_order"]))["pp"])
        sent = expected_traffic(active, part)
        ranks.append([Moved(t.axis, t.op, t.count, t.size_bytes, t.bytes_on_link(job.layout)) for t in sent])
    return ranks


def changed(of_rank: list[Moved], axis: str, factor: float) -> list[Moved]:
    """The same with other bytes along an axis."""
    return [
        replace(moved, traffic_bytes=factor * (moved.traffic_bytes or 0.0)) if moved.axis == axis else moved
        for moved in of_rank
    ]


def found(case: Case, ranks: Ranks) -> list[str]:
    return [str(difference) for difference in differences(case, formulas_of(case), ranks)]


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("tp2+sp", {}),
        ("dp2+zero3", {}),
        ("pp2-dp2+zero1", {"schedule": "zbv"}),
        ("pp2-dp2-cp2", {"context": "ring", "rank_order": "llama3"}),
        ("pp2-tp2+sp", {"shape": "llama-1b"}),
        ("dp2+ep2", {"shape": "moe-tiny", "routing": "balanced"}),
    ],
)
def test_ranks_that_send_what_the_formula_says_are_silent(layout, options):
    case = case_of(layout, **options)
    assert found(case, honest(case)) == []
    figures = derived(case, traffic=as_json(honest(case)))
    assert [key for key, figure in figures.items() if key.startswith("traffic_bytes") and figure.value is None] == []


def test_the_rank_that_sends_half_is_named_though_another_sends_all_of_it():
    """The largest of all ranks, which is the figure, is what the formula says."""
    case = case_of("dp2-tp2+sp")
    ranks = honest(case)
    ranks[3] = changed(ranks[3], "tp", 0.5)
    assert found(case, ranks) == ["axis tp on rank 3: counted -50.0 % against the formula"]


def test_each_stage_is_held_against_its_own_formula():
    """The first stage sums nothing over dp for the head; sending as much as the last one is too much."""
    case = case_of("pp2-dp2", shape="llama-flat-tiny")
    ranks, order = honest(case), str(case.point["rank_order"])
    stages = [job_of(case.point, "cpu").layout.coordinates(rank, order)["pp"] for rank in range(4)]
    along = [sum(moved.traffic_bytes or 0.0 for moved in rank if moved.axis == "dp") for rank in ranks]
    small = min(range(4), key=along.__getitem__)
    large = max(range(4), key=along.__getitem__)
    assert stages[small] != stages[large]
    assert along[small] < along[large]
    ranks[small] = changed(ranks[small], "dp", along[large] / along[small])
    (what,) = found(case, ranks)
    assert what.startswith(f"axis dp on rank {small}: counted +")


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("dp3-tp2+sp+zero3", {}),
        ("cp3-tp2+sp+zero2", {"context": "ring"}),
        ("pp2-dp3+zero3", {"shape": TIED, "rank_order": "picotron"}),
    ],
)
def test_the_last_of_ranks_that_share_weights_unevenly_sums_less(layout: str, options: dict[str, object]) -> None:
    """What it lacks is its own, and the same again is a difference: of three ranks that share it the last has less."""
    case = case_of(layout, **{"shape": "llama-flat-tiny", "global_batch_size": 24, "seq_len": 48, **options})
    job, every = job_of(case.point, case.device), from_options(case.point)
    dry = dry_ranks(Ours(), job, every, str(case.point["rank_order"]), range(case.world_size))
    ranks = [moved_in(rank) for rank in sorted(dry, key=lambda rank: rank.rank)]
    assert found(case, ranks) == []
    less = formulas_of(case).less_sent
    last = max(range(case.world_size), key=lambda rank: sum(less[rank].values()))
    ((axis, lacked),) = less[last].items()
    sent = sum(moved.traffic_bytes or 0.0 for moved in ranks[last] if moved.axis == axis)
    ranks[last] = changed(ranks[last], axis, (sent - lacked) / sent)
    assert found(case, ranks) == [
        f"axis {axis} on rank {last}: counted {-100 * lacked / sent:.1f} % against the formula"
    ]


def leave_out(of_rank: list[Moved]) -> list[Moved]:
    return [moved for moved in of_rank if moved.axis != "dp"]


def add_an_axis(of_rank: list[Moved]) -> list[Moved]:
    return [*of_rank, Moved("world", "all_reduce", 1, 4, 6.0)]


def call_what_is_not_known(of_rank: list[Moved]) -> list[Moved]:
    return [*of_rank, Moved("dp", "c10d::odd", 1, 1, None)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (leave_out, "axis dp on rank 0: counted -100.0 % against the formula"),
        (add_an_axis, "axis world on rank 0: counted traffic where the formula has none"),
        (call_what_is_not_known, "axis dp on rank 0: counted c10d::odd, which the formula does not have"),
    ],
)
def test_what_is_missing_added_or_unknown_is_named(change: Callable[[list[Moved]], list[Moved]], said: str):
    case = case_of("dp2")
    assert found(case, [change(of_rank) for of_rank in honest(case)]) == [said]


def test_the_bytes_of_that_axis_are_void_and_the_time_is_kept():
    case = case_of("dp2-tp2")
    figures = derived(case, traffic=as_json([changed(of_rank, "dp", 4.0) for of_rank in honest(case)]))
    void = figures["traffic_bytes[axis=dp]"]
    assert (void.value, void.basis) == (None, "void: axis dp on rank 0: counted +300.0 % against the formula")
    assert void.high == 4 * case.expected["traffic_bytes[axis=dp]"].value
    assert figures["traffic_bytes[axis=tp]"].value == case.expected["traffic_bytes[axis=tp]"].value
    assert figures["step_time"].value is not None


def test_bytes_that_a_router_decides_are_not_judged_and_the_others_are():
    case = case_of("dp2+ep2", shape="moe-tiny")
    ranks = honest(case)
    assert found(case, [changed(of_rank, "ep", 1.3) for of_rank in ranks]) == []
    (said,) = found(case, [changed(of_rank, "dp", 2.0) for of_rank in ranks])
    assert said.startswith("axis dp on rank 0: counted +100.0 %")


def test_where_a_router_decides_the_calls_are_counted():
    """expert_overlap that is not done: every second call of the halves is missing."""
    case = case_of("dp2+ep2", shape="moe-tiny")
    calls = sum(moved.count for moved in honest(case)[0] if moved.axis == "ep")
    half = [[replace(m, count=m.count // 2) if m.axis == "ep" else m for m in rank] for rank in honest(case)]
    (said,) = found(case, half)
    assert said.startswith("axis ep on rank 0: counted ")
    assert said.endswith(f" collectives, and the formula has {calls}")
    void = derived(case, traffic=as_json(half))["traffic_bytes[axis=ep]"]
    assert (void.value, void.basis) == (None, f"void: {said}")


@pytest.mark.parametrize(
    ("layout", "axis", "options"),
    [
        ("tp2+sp", "tp", {}),
        ("cp2", "cp", {}),
        ("pp2-dp2", "dp", {}),
        ("dp2+zero3", "dp", {}),
        ("dp2+ep2", "ep", {"shape": "moe-tiny", "routing": "balanced"}),
    ],
)
def test_as_many_bytes_in_more_messages_are_found(layout: str, axis: str, options: dict[str, str]):
    case = case_of(layout, **options)
    uncounted = {(axis, "recv")}

    def is_counted(moved: Moved) -> bool:
        return moved.axis == axis and (axis, moved.op) not in uncounted

    twice = [[replace(m, count=2 * m.count) if is_counted(m) else m for m in rank] for rank in honest(case)]
    calls = sum(moved.count for moved in twice[0] if is_counted(moved))
    (difference,) = differences(case, formulas_of(case), twice)
    assert str(difference) == (f"axis {axis} on rank 0: counted {calls} collectives, and the formula has {calls // 2}")
    assert difference.evidence.endswith("; together they carry as many bytes")


@pytest.mark.parametrize("options", [{}, {"compress": "bf16"}])
@pytest.mark.parametrize("buckets", [1, 3, 5])
def test_buckets_of_another_size_are_found(buckets: int, options: dict[str, str]):
    """Gradients of llama-tiny are 4.2 MB, 0.5 of the largest: a first bucket of a MiB, and what is left of 25."""
    case = case_of("dp2", **options)
    sent = [[replace(m, count=buckets) if m.op == "all_reduce" else m for m in of_rank] for of_rank in honest(case)]
    (difference,) = differences(case, formulas_of(case), sent)
    assert str(difference) == f"axis dp on rank 0: counted {plural(buckets, 'collective')}, and the formula has 2"


def test_a_run_of_an_earlier_version_is_held_against_its_own_plan():
    """FSDP had one group around the layers until 2026-11-30: as many bytes in fewer collectives, as its plans say."""
    case, key = case_of("dp2+zero3"), "collectives[axis=dp]"
    joined = ("all_gather", "reduce_scatter")
    earlier = [[replace(m, count=m.count - 2) if m.op in joined else m for m in rank] for rank in honest(case)]
    calls = sum(moved.count for moved in earlier[0])
    planned = replace(case, expected={**case.expected, key: replace(case.expected[key], value=calls)})
    assert found(planned, earlier) == []
    (said,) = found(planned, honest(case))
    assert said == f"axis dp on rank 0: counted {calls + 4} collectives, and the formula has {calls}"


def test_stages_of_an_earlier_version_are_held_against_what_it_planned():
    """Of stages a plan has the largest figures alone; today's of each stage are those of another step."""
    case = case_of("pp2-dp2+zero3")
    earlier = [[replace(m, count=2 * m.count) if m.axis == "dp" else m for m in rank] for rank in honest(case)]
    assert found(case, earlier) != []
    calls, key = max(sum(m.count for m in rank if m.axis == "dp") for rank in earlier), "collectives[axis=dp]"
    planned = replace(case, expected={**case.expected, key: replace(case.expected[key], value=float(calls))})
    assert found(planned, earlier) == []
    assert found(planned, [changed(rank, "dp", 1.5) for rank in earlier]) != []
    # figures of the plan that are today's say nothing against what is worked out for each stage
    assert found(case, [*honest(case)[:2], *honest(case)[:2]]) != []


def test_a_barrier_within_the_step_is_found():
    case = case_of("dp2")
    (said,) = found(case, [[*of_rank, Moved("dp", "barrier", 1, 0, 0.0)] for of_rank in honest(case)])
    assert said == "axis dp on rank 0: counted barrier, which the formula does not have"


@pytest.mark.parametrize(
    ("layout", "axis", "options"),
    [
        ("dp2", "dp", {"compress": "powersgd"}),
        ("dp2", "dp", {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}),
        ("tp2+sp", "tp", {"compile": True}),
    ],
)
def test_where_torch_joins_messages_they_are_not_counted(layout: str, axis: str, options: dict[str, Any]):
    """DDP fills buckets of either dtype as gradients come, and a compiler has a layer before it."""
    case = case_of(layout, **options)
    twice = [[replace(m, count=2 * m.count) if m.axis == axis else m for m in rank] for rank in honest(case)]
    assert found(case, twice) == []


def test_a_case_without_a_formula_or_without_a_count_is_not_judged():
    case = case_of("dp2")
    assert found(replace(case, expected={}), honest(case)) == []
    assert found(case, []) == []
