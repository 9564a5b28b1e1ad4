"""Formulas of memory and traffic against dry runs of a few drawn mixes; ``python -m tests.dry.formulas`` has more."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from clusterbench.expected.total import fullest_moment
from clusterbench.job.passes import STATES
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options, part_of
from tests.dry.formulas import Apart, Kept, Mix, compared, dry_ranks_of, mixes, table
from tests.training.jobs import make_job

pytestmark = pytest.mark.in_turn
SEED, NUMBER = 1, 10


@pytest.fixture(scope="module")
def found() -> Sequence[Apart]:
    drawn, kept = mixes(NUMBER, SEED), Kept()
    dry_ranks_of(drawn, kept)
    return list(compared(drawn, kept))


@pytest.mark.gloo
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["parameters", "gradients", "optimizer_state", "total", "traffic"])
def test_ranks_hold_and_send_what_the_formulas_say(found: Sequence[Apart], what: str) -> None:
    of_these = [each for each in found if each.what.startswith(what)]
    assert len(of_these) >= NUMBER // 2
    assert not [str(each) for each in of_these if each.is_beyond]


NARROW = {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}
WIDE = {"dtype": "float32", "device": "cpu"}
"""On a GPU heads of such a shape that share keys have no kernel, and no activations are predicted."""


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "micro_batches", "loss_chunks", "changes"),
    [
        ("tp1", 1, 1, WIDE),
        ("tp1", 2, 1, {"dtype": "bfloat16"}),
        ("tp1", 1, 4, {"dtype": "bfloat16"}),
        ("dp2+zero1", 2, 4, {"dtype": "bfloat16"}),
        ("dp2+zero1", 2, 1, WIDE),
        ("dp2+zero3", 2, 1, NARROW),
        ("dp2+zero3", 1, 4, WIDE),
        ("dp2+zero3", 2, 4, {"dtype": "bfloat16"}),
        ("dp2+zero2", 1, 4, {"dtype": "bfloat16", "device": "cpu"}),
        ("tp2", 2, 1, WIDE),
        ("tp2", 1, 1, {"dtype": "bfloat16"}),
    ],
)
def test_the_two_gradients_of_a_tied_table_are_there_with_their_sum(
    layout: str, micro_batches: int, loss_chunks: int, changes: dict[str, str]
) -> None:
    """A table of 8,192 rows, of which the formula had one too few: up to 26 % of the whole."""
    options = {"recompute": "full", "loss_chunks": loss_chunks}
    batch = micro_batches * ParallelLayout.parse(layout).dp
    of_job = {"seq_len": 64, "global_batch_size": batch, "micro_batch_size": 1, "device": "cuda", **changes}
    mix, kept = Mix("tied", 2, layout, options, of_job), Kept()
    dry_ranks_of([mix], kept)
    found = list(compared([mix], kept))
    (total,) = [each for each in found if each.what == "total"]
    assert abs(total.fraction) < 0.002
    assert not [str(each) for each in found if each.what in STATES and each.is_beyond]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("schedule", "precision"),
    [("1f1b", "float32_master"), ("interleaved_1f1b", "pure_bfloat16"), ("naive", "pure_bfloat16")],
)
def test_the_table_of_a_tied_head_is_gathered_in_the_last_stage_as_a_parameter(schedule: str, precision: str) -> None:
    """Nothing is looked up there, so that its module is never called: 27 % of the parameters were activations."""
    of_job = {"seq_len": 64, "global_batch_size": 8, "micro_batch_size": 1, "device": "cpu", "dtype": "bfloat16"}
    mix, kept = Mix("tied", 4, "pp2-dp2+zero3", {"schedule": schedule}, {**of_job, "precision": precision}), Kept()
    dry_ranks_of([mix], kept)
    states = [each for each in compared([mix], kept) if each.what in STATES]
    assert len(states) == 6
    assert not [str(each) for each in states if each.is_beyond]


@pytest.mark.gloo
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_a_layer_of_which_only_the_input_is_kept_ends_with_what_sp_cuts(micro_batch_size: int) -> None:
    """Its last product whole, and once more as it is cut: 34 % more than the formula of llama-8b in pp4-tp8+sp."""
    of_job = {"dtype": "bfloat16", "device": "cuda", "micro_batch_size": micro_batch_size, "global_batch_size": 8}
    options = {"recompute": "full", "schedule": "1f1b"}
    assert _deviation("activations", "dense", 4, "pp2-tp8+sp", options, of_job) < 0.01


@pytest.mark.gloo
def test_what_is_around_the_layers_stays_gathered_while_a_later_stage_goes_back() -> None:
    """The table of embeddings, beside a later stage that has more layers: 7 % of the parameters were missing."""
    assert _deviation("parameters", "dense", 6, "pp2-dp2+zero3", {"schedule": "looped_bfs"}, {"dtype": "float32"}) == 0


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("what", "shape", "layout", "options", "changes"),
    [
        ("total", "wide", "dp2+zero2", {}, {"seq_len": 64}),  # as it is taken apart, the last layer as it came
        ("total", "dense", "dp4-tp4+sp+zero2", {}, {"seq_len": 64, "dtype": "float32"}),  # before its input is
        ("total", "gqa", "dp2+zero3", {}, {"seq_len": 64}),  # as it is reduced
        ("total", "gqa", "dp2+zero2", {"loss_chunks": 4}, {"seq_len": 64}),  # no more as it came, at the loss
        ("total", "dense", "dp2+zero3", {"loss_chunks": 4}, {"seq_len": 64, "dtype": "float32"}),
        ("total", "gqa", "dp2+zero2", {"recompute": "full"}, {"seq_len": 64, "global_batch_size": 2}),
        ("total", "gqa", "dp4+zero3", {"shard_group_size": 2}, {"seq_len": 64}),
        ("total", "dense", "dp4+zero2", {"recompute": "full"}, {"seq_len": 64, "device": "cpu"}),  # packed as it came
        ("parameters", "gqa", "dp2-tp2+sp+zero2", {}, {}),
        ("gradients", "gqa", "dp2-tp2+zero3", {}, {"global_batch_size": 2}),
    ],
)
def test_a_head_and_an_embedding_are_gathered_and_reduced_alone(
    what: str, shape: str, layout: str, options: dict[str, object], changes: dict[str, object]
) -> None:
    of_job = {"device": "cuda", "dtype": "bfloat16", **changes}
    assert _deviation(what, shape, 3, layout, options, of_job) < 0.0005


@pytest.mark.gloo
def test_experts_that_are_whole_on_a_rank_have_gradients_from_the_first_backward_of_their_stage_on() -> None:
    """Beside the head, while an earlier stage of the rank has not begun: 13 % of the gradients were too many."""
    options = {"schedule": "looped_bfs", "routing": "balanced"}
    of_job = {"dtype": "bfloat16", "precision": "pure_bfloat16", "device": "cuda"}
    assert _deviation("gradients", "moe", 4, "pp2-dp2+ep2+zero2", options, of_job) == 0


@pytest.mark.gloo
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_of_two_halves_one_is_weighted_when_a_layer_of_experts_is_computed_again(recompute: str) -> None:
    """Beside the sum of the half before it: up to 7.4 % of the activations were too many."""
    options = {"recompute": recompute, "expert_overlap": True, "routing": "balanced"}
    of_job = {"dtype": "bfloat16", "device": "cuda"}
    assert _deviation("activations", "many", 2, "dp4+ep4", options, of_job) < 0.005


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("recompute", "is_overlapped"), [("full", False), ("full", True), ("selective", True)], ids=str
)
def test_rows_are_there_as_they_came_and_as_they_came_back_when_they_are_made_anew(
    recompute: str, is_overlapped: bool
) -> None:
    """Beside the weighted ones, with full recomputation: up to 10 % of the whole were missing, of two halves 2.7 %."""
    options = {"recompute": recompute, "expert_overlap": is_overlapped}
    apart = _experts_apart("many", "dp4+ep4", options, {"dtype": "bfloat16", "device": "cuda", "global_batch_size": 16})
    assert max(apart["activations"]) < 0.005
    assert max(apart["total"]) < 0.005


@pytest.mark.gloo
@pytest.mark.parametrize("gradient_dtype", ["float32", "bfloat16"])
def test_an_update_with_narrow_moments_is_computed_beside_the_states(gradient_dtype: str) -> None:
    """Of each weight three tensors in float32, and its gradient where that is narrower."""
    of_job = {"seq_len": 64, "global_batch_size": 2, "micro_batch_size": 1, "device": "cuda", "dtype": "bfloat16"}
    of_job |= {"precision": "bfloat16_moments", "gradient_dtype": gradient_dtype}
    mix, kept = Mix("gqa", 1, "dp2", {"recompute": "full", "loss_chunks": 4}, of_job), Kept()
    dry_ranks_of([mix], kept)
    (total,) = [each for each in compared([mix], kept) if each.what == "total"]
    assert abs(total.fraction) < 0.005
    (said,) = kept.values()
    assert said["peak_at"] == "the optimizer"


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("shape", "layers", "layout", "options", "changes"),
    [
        ("dense", 2, "pp2-tp2+sp", {"schedule": "1f1b"}, {"dtype": "bfloat16", "device": "cuda"}),
        ("gqa", 3, "pp2", {"schedule": "naive"}, {"dtype": "bfloat16"}),
        ("moe", 2, "pp2", {"schedule": "1f1b", "routing": "balanced"}, {"dtype": "bfloat16"}),
    ],
)
def test_the_end_of_a_stage_without_a_head_is_where_it_holds_most(
    shape: str, layers: int, layout: str, options: dict[str, object], changes: dict[str, str]
) -> None:
    """The stream before the last sum, what is added to it, and what 1F1B has sent: up to 8 % of what is kept."""
    assert _deviation("activations", shape, layers, layout, options, changes) < 0.005


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("shape", "layout", "options", "changes"),
    [
        ("dense", "tp4+sp", {"recompute": "full"}, {"dtype": "float32"}),
        ("dense", "pp2-cp2", {"recompute": "selective", "context": "all_gather"}, {"dtype": "float32"}),
        ("dense", "pp2-cp2", {"recompute": "full", "context": "ulysses"}, {"dtype": "bfloat16"}),
        ("dense", "pp2-cp2", {"recompute": "selective", "context": "ulysses"}, {"dtype": "bfloat16"}),
        ("gqa", "pp2-cp4", {"recompute": "selective", "context": "ulysses"}, {"dtype": "float32"}),
    ],
)
def test_of_a_layer_that_is_computed_again_there_is_what_is_still_needed(
    shape: str, layout: str, options: dict[str, object], changes: dict[str, str]
) -> None:
    """With sp the norm's result as well as what was gathered of it; results of blocks only until they are joined."""
    assert _deviation("activations", shape, 2, layout, options, changes) < 0.005


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("tp1", {"dtype": "float32", "device": "cpu"}),
        ("tp1", {"dtype": "bfloat16", "device": "cpu"}),
        ("cp2+zero3", {"dtype": "float32", "device": "cuda"}),
        ("dp2+ep2", {"dtype": "bfloat16", "device": "cuda"}),
        ("dp16+ep16", {"dtype": "float32", "device": "cpu", "global_batch_size": 64}),
        ("tp2+sp", {"dtype": "bfloat16", "device": "cpu"}),
        ("pp2", {"dtype": "bfloat16", "device": "cuda"}),
        ("pp2-dp2+ep2", {"dtype": "bfloat16", "device": "cuda", "global_batch_size": 16}),
    ],
)
def test_rows_of_many_experts_are_more_than_few_logits(layout: str, changes: dict[str, object]) -> None:
    """Eight copies of each token, and again with their weights: 12 to 29 % of the activations, 7 % of the whole."""
    apart = _experts_apart("many", layout, {}, changes)
    # of a last stage the total leaves out the logits of the micro-batch before, which torch's 1F1B has for a while
    assert max(apart["activations"]) < 0.005
    assert apart["total"][0] < 0.005
    assert max(apart["total"]) < 0.02


@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp2+ep2", "dp2-tp2+sp+ep4", "pp2-dp2+ep2"])
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_rows_are_gone_when_they_are_in_order_and_halves_are_half_as_many(layout: str, is_overlapped: bool) -> None:
    """Under selective recomputation as they came to the experts: 2.3 to 3.8 % of the whole were too many."""
    options = {"recompute": "selective" if not is_overlapped else "none", "expert_overlap": is_overlapped}
    apart = _experts_apart("many", layout, options, {"dtype": "bfloat16", "device": "cuda", "global_batch_size": 16})
    assert max(apart["activations"]) < 0.005
    assert max(apart["total"]) < 0.02


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp8+ep8", "dp8-tp2+sp+ep8", "pp2-dp8+ep8"])
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_what_single_experts_made_is_kept_as_it_came_back_alone(layout: str, is_overlapped: bool) -> None:
    """Of Mixtral on ep8 with selective recomputation 2 to 7 % of the activations were too many."""
    options = {"recompute": "selective", "expert_overlap": is_overlapped}
    changes = {"dtype": "bfloat16", "device": "cuda", "global_batch_size": 64}
    apart = _experts_apart("eight", layout, options, changes)
    assert max(apart["activations"]) < 0.015
    assert max(apart["total"]) < 0.005


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp8+ep8", "dp8+ep8+zero1", "pp2-dp8+ep8", "dp4-cp2+ep8+zero3"])
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_rows_as_they_came_back_are_gone_when_the_backward_of_a_layer_begins(layout: str, is_overlapped: bool) -> None:
    """Where all tokens go to all experts, one on each rank: 3.5 to 5 % of the whole were too many."""
    options = {"recompute": "selective", "expert_overlap": is_overlapped}
    changes = {"dtype": "bfloat16", "device": "cuda", "global_batch_size": 32, "seq_len": 256}
    assert max(_experts_apart("all", layout, options, changes)["total"]) < 0.015


def _experts_apart(
    shape: str, layout: str, options: dict[str, object], changes: dict[str, object]
) -> dict[str, list[float]]:
    """Of each rank how far a step of two layers is from its formula, by category."""
    mix, kept = Mix(shape, 2, layout, {"routing": "balanced", **options}, {**OF_EXPERTS, **changes}), Kept()
    dry_ranks_of([mix], kept)
    found = list(compared([mix], kept))
    return {what: [abs(each.fraction) for each in found if each.what == what] for what in ("activations", "total")}


OF_EXPERTS = {"seq_len": 64, "micro_batch_size": 2, "global_batch_size": 8}
NARROW_EXPERTS = {"recompute": "selective", "schedule": "gpipe", "context": "all_gather", "routing": "balanced"}


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("what", "shape", "layout", "options", "changes"),
    [
        ("total", "dense", "dp2-cp4-tp2", {"recompute": "full", "context": "all_gather"}, {"seq_len": 256}),
        ("total", "moe", "pp2-dp2-cp2+zero1", NARROW_EXPERTS, {"global_batch_size": 16, **NARROW}),
        (
            "total",
            "moe",
            "dp2+zero2",
            {"recompute": "selective", "routing": "balanced"},
            {"seq_len": 64, "device": "cpu"},
        ),
        ("total", "dense", "dp4+zero2", {"recompute": "full", "shard_group_size": 2}, {}),
        ("gradients", "moe", "dp4+ep2+zero3", {"routing": "balanced"}, {"seq_len": 64, "global_batch_size": 4}),
    ],
)
def test_most_is_held_where_no_logits_are(
    what: str, shape: str, layout: str, options: dict[str, object], changes: dict[str, object]
) -> None:
    """In attention over several ranks, with all gradients of experts, at the last gather, behind a sum over replicas.

    And of FSDP's groups of one layer the experts' are reduced first: totals were up to 10 % more, gradients 2 % less.
    """
    of_job = {"dtype": "float32", "device": "cuda", "global_batch_size": 2 * ParallelLayout.parse(layout).dp, **changes}
    assert _deviation(what, shape, 4 if "pp" in layout else 2, layout, options, of_job) < 0.012


SELECTIVE, CUT = {"recompute": "selective"}, {"loss_parallel": False}
LONGER = {"seq_len": 256, "micro_batch_size": 2, "dtype": "float32"}


# gathered logits are a view of a DTensor, and nothing writes to them in place
@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("what", "shape", "layout", "options", "changes"),
    [
        ("activations", "gqa", "pp2-tp2", {"schedule": "1f1b", "loss_parallel": False}, {"dtype": "float32"}),
        ("activations", "gqa", "pp2-tp2", {"schedule": "naive"}, {"dtype": "bfloat16"}),
        ("activations", "tied", "pp2-dp2-tp2+zero2", {"recompute": "full", "schedule": "gpipe"}, {"seq_len": 16}),
        ("gradients", "gqa", "pp2-dp2-tp2+zero3", {"schedule": "interleaved_1f1b"}, {"seq_len": 64}),
        ("total", "gqa", "pp2-tp2", {"schedule": "gpipe"}, {"dtype": "float32", "seq_len": 16}),
        ("total", "gqa", "tp2", {}, {"dtype": "float32", "seq_len": 16, "global_batch_size": 1}),
        ("total", "dense", "pp2-dp2-tp4", {"schedule": "1f1b"}, {"dtype": "bfloat16", "micro_batch_size": 2}),
        ("total", "dense", "dp2-tp2", {"recompute": "full", "compress": "bf16"}, {"seq_len": 64}),
        (
            "activations",
            "dense",
            "pp2-dp2-tp4+sp+zero3",
            {**SELECTIVE, "schedule": "naive"},
            {"device": "cuda", **LONGER},
        ),
        ("total", "dense", "pp2-tp4+sp", {**SELECTIVE, "schedule": "1f1b"}, {"dtype": "float32"}),
        ("total", "dense", "dp2-cp2-tp4+zero1", {**SELECTIVE, "context": "zigzag", **CUT}, LONGER),
        ("total", "dense", "dp2-tp2+sp+zero2", CUT, {"dtype": "float32", "seq_len": 64}),
    ],
)
def test_where_little_is_kept_what_comes_and_goes_is_most(
    what: str, shape: str, layout: str, options: dict[str, object], changes: dict[str, object]
) -> None:
    """Formulas were off by up to 24 %.

    A head that gathers its logits beside the last ones, or beside what FSDP gathered last; no output of a look-up over
    tp; FSDP's rounded weights, which are messages; gradients of a stage that is over and not reduced; a table's
    gradient as if it were whole, beside its part; what a CPU has in a norm; a bucket as it is sent; a stage's last
    product as +sp cuts it; sums over tp, which selective recomputation keeps.
    """
    stages = 4 if options.get("schedule") == "interleaved_1f1b" else 2
    assert _deviation(what, shape, stages, layout, options, {"dtype": "bfloat16", **changes}) < 0.022


@pytest.mark.gloo
def test_what_was_gathered_last_is_there_twice_beside_the_last_feed_forward() -> None:
    """Of one wide layer most is held before it is computed again: 4.4 % more than the formula said."""
    options, changes = {"recompute": "selective", "context": "ring"}, {"dtype": "float32", "device": "cuda"}
    assert _deviation("total", "wide", 1, "cp4+zero3", options, {"seq_len": 64, **changes}) < 0.001


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "dtype", "loss_chunks"),
    [("dp2+zero3", "bfloat16", 1), ("dp2+zero3", "bfloat16", 4), ("tp1", "float32", 4), ("tp2", "float32", 1)],
)
def test_the_last_norm_takes_most_on_a_cpu_where_logits_are_few(layout: str, dtype: str, loss_chunks: int) -> None:
    """It is made of plain operators: 24 % of the whole of a layer with few logits were missing, 10 of activations."""
    changes = {"dtype": dtype, "seq_len": 256, "micro_batch_size": 2, "global_batch_size": 4}
    for what in ("total", "activations"):
        assert _deviation(what, "few", 1, layout, {"loss_chunks": loss_chunks}, changes) < 0.005


@pytest.mark.gloo
def test_what_replicas_summed_is_held_until_backward_is_over() -> None:
    """Of every layer, and not of the last one alone: 14 % more than the formula said of eight layers."""
    options = {"shard_group_size": 2, "recompute": "full"}
    assert _deviation("total", "dense", 8, "dp4+zero3", options, {"dtype": "bfloat16", "seq_len": 16}) < 0.005


def _deviation(
    what: str, shape: str, layers: int, layout: str, options: dict[str, object], changes: Mapping[str, object]
) -> float:
    batch = 4 * ParallelLayout.parse(layout).dp
    of_job = {"seq_len": 128, "global_batch_size": batch, "micro_batch_size": 1, "device": "cpu", **changes}
    mix, kept = Mix(shape, layers, layout, options, of_job), Kept()
    dry_ranks_of([mix], kept)
    return max(abs(each.fraction) for each in compared([mix], kept) if each.what == what)


def test_a_deviation_is_told_with_its_mix() -> None:
    (mix,) = mixes(1, SEED)
    off, within = Apart(mix, 3, "gradients", 2e6, 1e6), Apart(mix, 3, "activations", 1.01e6, 1e6, 0.02)
    assert off.is_beyond
    assert not within.is_beyond
    *_, count, line = table([off, within], largest=5)
    assert count == "\n1 of 2 figures are beyond their band, the largest first:"
    assert line == f"  +99.95 %  gradients: measured 2,000,000, formula 1,000,000; rank 3 of {mix}"


def test_the_same_seed_draws_the_same_mixes() -> None:
    assert mixes(5, SEED) == mixes(NUMBER, SEED)[:5]
    assert mixes(5, SEED) != mixes(5, SEED + 1)


def test_deep_steps_are_of_three_layers_at_least() -> None:
    drawn = mixes(NUMBER, SEED, deep=True)
    assert all(mix.layers >= max(3, mix.job.layout.pp) for mix in drawn)
    assert drawn[:5] == mixes(5, SEED, deep=True)


def test_what_interleaved_stages_sent_is_held_to_the_end_of_the_step() -> None:
    """Outputs and gradients: two messages of each micro-batch on the last rank, one on the first; 9 % of 16 of them."""
    words = [
        "pp2",
        "--shape",
        "llama-tiny",
        "--seq-len",
        "128",
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--global-batch-size",
        "16",
    ]
    command = [sys.executable, "-m", "clusterbench", "dry-run", *words, "--set", "schedule=interleaved_1f1b"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured = [float(found) for found in re.findall(r"^rank \d.*: ([\d.]+) MB at most", said, re.MULTILINE)]
    job = make_job("pp2", seq_len=128, dtype="float32", micro_batch_size=1, global_batch_size=16)
    active = active_in(job.layout, from_options({"schedule": "interleaved_1f1b"}))
    formula = [fullest_moment(active, part_of(job, active, rank)).held / 1e6 for rank in (0, 1)]
    assert measured == pytest.approx(formula, rel=0.005)  # with torch 2.15 a message more, on its way
