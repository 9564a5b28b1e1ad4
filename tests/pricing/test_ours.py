"""The profile of our own step says what a dry run of that very step counts."""

from dataclasses import replace

import pytest

from clusterbench.cluster import Cluster
from clusterbench.dry.processes import dry_ranks
from clusterbench.expected.step import expected_step
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import from_options
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.profiles.ours import Ours
from clusterbench.shape import named_shape
from clusterbench.trainers.ours import Ours as OurTrainer

SHAPE = replace(named_shape("llama-1b"), num_layers=4, tied_embeddings=False, vocab_size=8192, name="four layers")
MULTIPLIED = ("products", "grouped products", "batched products", "causal attention", "attention")
ONCE = ("gradients", "the optimizer")


def dry_and_priced(layout, micro_batches, recompute="none", **changes):
    layout = ParallelLayout.parse(layout)
    job = TrainingJob(SHAPE, layout, 2048, micro_batches * layout.dp, 1, "bfloat16", device="cuda", **changes)
    options = {} if recompute == "none" else {"recompute": recompute}
    (rank,) = dry_ranks(OurTrainer(), job, from_options(options), "megatron", [0])
    return rank, Ours().work(PricedJob(job, 8, 1, recompute))


@pytest.mark.parametrize(
    ("layout", "micro_batches", "recompute"),
    [
        ("tp1", 2, "full"),
        ("tp2+sp", 2, "none"),
        ("dp2", 1, "none"),
        ("dp2+zero1", 3, "none"),
        ("dp2+zero3", 2, "none"),
        ("pp2", 4, "none"),
    ],
)
def test_work_and_messages_are_what_a_dry_run_counts(layout, micro_batches, recompute):
    rank, work = dry_and_priced(layout, micro_batches, recompute)
    stage = work.stages[0]
    flops = sum(each.flops for each in rank.work)
    # a dry run counts all of a causal block
    assert (stage.matmul_flops + 2 * stage.attention_flops) * micro_batches == pytest.approx(flops, rel=1e-6)
    within = [each for each in rank.work if each.kind not in MULTIPLIED and each.where not in ONCE]
    moved = sum(each.moved_bytes for each in within)
    assert stage.memory_bytes * micro_batches == pytest.approx(moved, rel=0.2)
    once = sum(each.moved_bytes for each in rank.work if each.where in ONCE)
    assert work.optimizer_bytes == pytest.approx(once, rel=0.15)
    operators = sum(each.count for each in rank.work if each.where not in ONCE)
    assert stage.operators * micro_batches == pytest.approx(operators, rel=0.2)
    # what passes from stage to stage has a place of its own
    sent = sum(each.size_bytes * each.count for each in rank.sent if each.op not in ("send", "recv"))
    messages = sum(each.size_bytes * each.count for each in stage.messages) * micro_batches
    messages += sum(each.size_bytes * each.count for each in (*work.gradients, *work.after))
    assert messages == pytest.approx(sent, rel=1e-6)


def test_stages_of_a_pipeline_are_of_three_kinds():
    job = TrainingJob(named_shape("llama-8b"), ParallelLayout.parse("pp8"), 4096, 16, 1, "bfloat16", device="cuda")
    work = Ours().work(PricedJob(job, 8))
    assert [stage.stages for stage in work.stages] == [1, 6, 1]
    assert [stage.neighbours for stage in work.stages] == [1, 2, 1]
    assert work.bubble == pytest.approx(1.0)
    assert Ours().work(PricedJob(job, 8, chunks=2)).bubble == pytest.approx(0.5)


def test_memory_is_that_of_the_plan():
    job = TrainingJob(
        named_shape("llama-8b"), ParallelLayout.parse("dp4-tp2+sp+zero3"), 4096, 4, 1, "bfloat16", device="cuda"
    )
    (held,) = Ours().memory(PricedJob(job, 8))
    assert sum(held.values()) / 1e9 == pytest.approx(28.9, abs=0.3)  # what README's dry run says


@pytest.mark.parametrize("precision", ["float32_master", "bfloat16_moments", "pure_bfloat16"])
def test_an_update_moves_the_bytes_of_its_precision(precision):
    rank, work = dry_and_priced("dp2", 2, precision=precision)
    once = sum(each.moved_bytes for each in rank.work if each.where in ONCE)
    assert work.optimizer_bytes == pytest.approx(once, rel=0.15)


def priced(layout, micro_batches=8, shape="llama-8b", **options):
    layout = ParallelLayout.parse(layout)
    job = TrainingJob(named_shape(shape), layout, 4096, micro_batches * layout.dp, 1, "bfloat16", device="cuda")
    return PricedJob(job, 8, options=options)


@pytest.mark.parametrize(
    ("layout", "shape", "options"),
    [
        ("dp64+zero2", "llama-8b", {}),
        ("dp64+zero3", "llama-8b", {}),
        ("dp64+zero3", "llama-8b", {"shard_group_size": 16}),
        ("dp8-tp8+sp+zero3", "llama-8b", {}),
        ("dp8+ep8+zero3", "mixtral-8x7b", {"routing": "balanced"}),
    ],
)
def test_messages_hide_behind_no_more_products_than_there_are(layout, shape, options):
    (stage,) = Ours().work(priced(layout, shape=shape, **options)).stages
    assert sum(each.behind_flops for each in stage.messages) == pytest.approx(stage.matmul_flops)


def test_what_shards_weights_within_a_node_is_sent_within_a_node():
    (stage,) = Ours().work(priced("dp64+zero3", shard_group_size=8)).stages
    gathered = [each for each in stage.messages if each.op in ("all_gather", "reduce_scatter")]
    summed = [each for each in stage.messages if each.op == "all_reduce"]
    assert {(each.ranks, each.nodes, each.sharing) for each in gathered} == {(8, 1, 1)}
    assert {(each.ranks, each.nodes, each.sharing) for each in summed} == {(8, 8, 8)}


@pytest.mark.parametrize(
    ("options", "boundaries"),
    [
        ({"schedule": "1f1b"}, [1, 2, 1]),
        ({"schedule": "interleaved_1f1b", "chunks_per_rank": 2}, [3, 4, 3]),
        ({"schedule": "zbv"}, [2, 2]),  # a V ends on the rank on which it begins
    ],
)
def test_stages_send_over_each_boundary_with_another_rank(options, boundaries):
    job = priced("pp4", **options)
    assert [stage.neighbours for stage in Ours().work(job).stages] == boundaries


def test_few_micro_batches_wait_as_the_schedule_is_played():
    waits = [Ours().work(priced("pp4", number, schedule="zbv")).bubble for number in (4, 6, 7)]
    assert waits == pytest.approx([1 / 3, 1 / 6, 1 / 6], abs=0.01)


@pytest.mark.parametrize(
    ("layout", "shape", "options"),
    [
        ("cp2", "llama-1b", {"context": "zigzag"}),
        ("cp4", "llama-1b", {"context": "zigzag"}),
        ("cp2", "llama-1b", {"context": "all_gather"}),
        ("dp2+ep2", "olmoe-1b-7b", {"routing": "balanced"}),
        ("dp2+ep2", "olmoe-1b-7b", {"routing": "balanced", "expert_overlap": True}),
        ("tp2+sp", "olmoe-1b-7b", {"routing": "balanced"}),
    ],
)
def test_operators_of_context_and_experts_are_what_a_dry_run_counts(layout, shape, options):
    layout = ParallelLayout.parse(layout)
    shape = replace(named_shape(shape), num_layers=4, tied_embeddings=False, vocab_size=8192, name="four layers")
    job = TrainingJob(shape, layout, 2048, 2 * layout.dp, 1, "bfloat16", device="cuda")
    (rank,) = dry_ranks(OurTrainer(), job, from_options(options), "megatron", [0])
    (stage,) = Ours().work(PricedJob(job, 8, options=options)).stages
    operators = sum(each.count for each in rank.work if each.where not in ONCE)
    assert 2 * stage.operators == pytest.approx(operators, rel=0.2)


@pytest.mark.parametrize(
    ("layout", "shape", "recompute", "micro_batch_size"),
    [
        ("pp7", "mixtral-8x7b", "selective", 2),  # 5 layers on the stages in the middle, 4 at the ends
        ("pp7-tp2+sp+ep2", "mixtral-8x7b", "none", 1),
        ("pp12-dp2-cp2", "llama-70b", "none", 1),
        ("pp5-dp5+zero1", "mixtral-8x7b", "none", 2),
        ("pp4-dp2", "llama-tiny", "selective", 1),
        ("pp4-dp2", "llama-8b", "full", 1),
    ],
)
def test_the_fullest_of_stages_that_do_not_come_out_even_is_that_of_the_plan(
    layout: str, shape: str, recompute: str, micro_batch_size: int
) -> None:
    """Of stages with as many layers the last was taken, with the fewest micro-batches in flight: 156.4 for 177.0 GB."""
    of = ParallelLayout.parse(layout)
    job = TrainingJob(
        named_shape(shape), of, 4096, 16 * micro_batch_size * of.dp, micro_batch_size, "bfloat16", device="cuda"
    )
    every = from_options({"recompute": recompute})
    planned = expected_step(job, every, Cluster(1, of.world_size, "cuda"))["peak_memory[category=total]"].value
    assert Ours().held(PricedJob(job, 8, recompute=recompute)) == planned
