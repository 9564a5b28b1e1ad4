"""Cells that say how ranks share a step: several degrees in one, and HSDP in the words of those who publish it."""

import pytest

from clusterbench.errors import SuiteError
from clusterbench.pricing.profiles import profiles
from clusterbench.pricing.step_table import as_usual
from clusterbench.pricing.table import read_steps

HEADER = "model,seq,gpus,mbs,gbs,recompute"
ROW = "llama2-13b,4096,128,1,128,none"


def rows(tmp_path, header, *cells, row=ROW):
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([f"{HEADER},{header}", *(f'{row},"{cell}"' for cell in cells)]) + "\n")
    return read_steps(file, 8)


def said(table):
    return [words for words in table.defaults if "shape is" not in words and "dp is not said" not in words]


@pytest.mark.parametrize("words", ["HYBRID_SHARD", "hsdp", "HSDP", "Hybrid shard", "hybrid-shard"])
def test_hsdp_without_a_number_shards_within_a_node_and_that_is_said(tmp_path, words):
    table = rows(tmp_path, "zero", words)
    (row,) = table.rows
    assert (str(row.priced.job.layout), row.priced.shard_group_size) == ("dp128+zero3", 8)
    assert said(table) == [
        f"zero is '{words}': groups of 8 ranks, those of a node, as PyTorch's HYBRID_SHARD has it; a column "
        "shard_group_size says otherwise: 1 of 1 rows"
    ]
    assert profiles()["fsdp2"]().objection(row.priced) is None
    assert as_usual(table, 3, "").rows == table.rows


def test_hybrid_shard_of_zero_2_keeps_weights_for_backward(tmp_path):
    (row,) = rows(tmp_path, "zero", "_HYBRID_SHARD_ZERO2").rows
    assert (str(row.priced.job.layout), row.priced.shard_group_size) == ("dp128+zero2", 8)


@pytest.mark.parametrize(
    ("words", "group", "remark"),
    [
        (
            "HSDP 8x16",
            16,
            "zero is 'HSDP 8x16': 8 copies of 16 ranks that shard, in the order of the mesh of PyTorch's",
        ),
        ("HSDP (16, 8)", 8, "zero is 'HSDP (16, 8)': 16 copies of 8 ranks that shard"),
        ("hsdp (shard 16, replicate 8)", 16, None),
        ("HSDP dp_shard=16", 16, None),
        ("HSDP 1x128", 0, "zero is 'HSDP 1x128': 1 copies of 128 ranks that shard"),
    ],
)
def test_two_numbers_are_copies_and_ranks_that_shard(tmp_path, words, group, remark):
    table = rows(tmp_path, "zero", words)
    assert table.rows[0].priced.shard_group_size == group
    assert [each.startswith(remark) for each in said(table)] == [True] * (remark is not None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("HSDP 8", "zero is 'HSDP 8': of 8 ranks it cannot be told whether they shard or are copies"),
        ("HSDP 8x8", "zero is 'HSDP 8x8': 8 copies of 8 ranks that shard are not the 128 of dp x cp"),
        ("HSDP 128x1", "groups of 1 ranks that shard do not divide the 128 ranks of dp x cp"),
    ],
)
def test_numbers_that_do_not_say_it_cost_their_own_row(tmp_path, words, reason):
    first, second = rows(tmp_path, "zero", words, "FULL_SHARD").rows
    assert first.reason.startswith(reason)
    assert second.priced.shard_group_size == 0


def test_torchtitans_two_degrees_have_columns(tmp_path):
    for names, cells, group in (
        ("data_parallel_replicate_degree,dp_shard", "16,8", 8),
        ("dp_replicate,dp", "16,128", 8),
        ("shard_group_size,dp", "8,128", 8),
    ):
        file = tmp_path / "steps.csv"
        file.write_text(f"{HEADER},{names}\n{ROW},{cells}\n")
        (row,) = read_steps(file, 8).rows
        assert (str(row.priced.job.layout), row.priced.shard_group_size) == ("dp128+zero3", group)
    (row,) = rows(tmp_path, "dp_replicate", "3").rows
    assert row.reason == "dp_replicate 3 does not make the 128 ranks of dp x cp"


def test_groups_that_contradict_the_stage_or_one_another_are_refused(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(f"{HEADER},zero,shard_group_size\n{ROW},1,8\n{ROW},HSDP 8x16,8\n")
    first, second = read_steps(file, 8).rows
    assert first.reason == "groups of 8 ranks that shard, and zero is 1: HSDP shards weights, ZeRO 2 or 3"
    assert second.reason == "zero is 'HSDP 8x16', and the column of groups that shard makes them 8"
    file.write_text(f"{HEADER},fsdp,shard_group_size\n{ROW},16,8\n")
    assert read_steps(file, 8).rows[0].reason == "fsdp is '16', and the column of groups that shard makes them 8"


def test_hsdp_on_one_node_is_fsdp_and_with_tp_it_has_fewer_ranks_of_a_node(tmp_path):
    table = rows(tmp_path, "zero", "HYBRID_SHARD", row="llama2-13b,4096,8,1,8,none")
    assert table.rows[0].priced.shard_group_size == 0
    assert said(table) == ["zero is 'HYBRID_SHARD', and all ranks are in one node: all of them shard: 1 of 1 rows"]
    file = tmp_path / "steps.csv"
    file.write_text(f"{HEADER},zero,tp,sp\n{ROW},HSDP,4,1\n{ROW},HSDP,8,1\n")
    four, eight = read_steps(file, 8).rows
    assert (str(four.priced.job.layout), four.priced.shard_group_size) == ("dp32-tp4+sp+zero3", 2)
    assert eight.reason == (
        "zero is 'HSDP', which shards within a node, and of the 16 ranks with the same weights a node has 1: a column "
        "shard_group_size says how many shard"
    )


@pytest.mark.parametrize(
    ("header", "cell", "layout"),
    [
        ("layout", "tp4-pp2", "pp2-dp16-tp4+sp"),
        ("Parallelism", "TP=4, PP=2, DP=16", "pp2-dp16-tp4+sp"),
        ("Parallelism", "TP4 PP2 ZeRO-1", "pp2-dp16-tp4+sp+zero1"),
        ("Parallelism", "FSDP", "dp128+zero3"),
        ("Parallelism", "FSDP 32, TP 4", "dp32-tp4+sp+zero3"),
        ("TP/PP/DP", "8x4x4", "pp4-dp4-tp8+sp"),
        ("TP/PP/DP", "(8, 4, 4)", "pp4-dp4-tp8+sp"),
        ("TP/PP/DP", "tp8-pp4-dp4", "pp4-dp4-tp8+sp"),
        ("dp x tp", "16/8", "dp16-tp8+sp"),
    ],
)
def test_a_cell_may_have_several_degrees(tmp_path, header, cell, layout):
    (row,) = rows(tmp_path, f'"{header}"', cell).rows
    assert (row.reason, str(row.priced.job.layout)) == ("", layout)


@pytest.mark.parametrize(
    ("header", "cell", "reason"),
    [
        ("layout", "8x4x4", "layout is '8x4x4', of which '8x4x4' cannot be read: write tp4-pp2-dp8, or columns tp, pp"),
        ("layout", "tp4-tp8", "layout is 'tp4-tp8', which says tp twice"),
        ("layout", "turbo4", "layout is 'turbo4', of which 'turbo4' cannot be read"),
        ("TP/PP/DP", "8x4", "tp/pp/dp is '8x4', which are 2 numbers for 3"),
    ],
)
def test_a_cell_of_which_it_cannot_be_told_what_its_numbers_are_costs_its_row(tmp_path, header, cell, reason):
    first, second = rows(tmp_path, header, cell, "tp8-pp4-dp4").rows
    assert first.reason.startswith(reason)
    assert second.priced is not None


def test_a_merged_cell_and_a_column_that_differ_are_refused(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text(f"{HEADER},layout,tp\n{ROW},tp4-pp2,8\n{ROW},tp4-pp2,4\n")
    first, second = read_steps(file, 8).rows
    assert first.reason == "layout is 'tp4-pp2', and tp is 8: one of them is another step's"
    assert str(second.priced.job.layout) == "pp2-dp16-tp4+sp"


def test_nodes_or_the_number_before_a_card_say_how_many_gpus_there_are(tmp_path):
    file = tmp_path / "steps.csv"
    header = "model,seq,mbs,gbs,recompute,gpu,nodes"
    cells = "llama2-13b,4096,1,128,none"
    file.write_text(f"{header}\n{cells},H100,16\n{cells},128 * A100-80GB,\n{cells},H100,\n")
    by_nodes, by_card, neither = read_steps(file, None).rows
    assert by_nodes.priced.job.layout.world_size == by_card.priced.job.layout.world_size == 128
    assert by_card.gpu == "A100-80GB"
    assert neither.reason == "neither dp nor the number of GPUs says how many copies there are"
    file.write_text("model,seq,mbs,gbs,gpus,nodes\nllama2-13b,4096,1,128,128,8\n")
    assert read_steps(file, 8).rows[0].reason == "gpus is 128 and num_nodes 8, and a node has 8 GPUs"


def test_where_no_row_can_be_read_that_is_the_files_mistake(tmp_path):
    with pytest.raises(SuiteError, match=r"steps.csv:2: tp is 'x', and must be a number"):
        rows(tmp_path, "tp", "x", "y")
    assert [row.reason for row in rows(tmp_path, "tp", "x", "8").rows] == ["tp is 'x', and must be a number", ""]


def test_in_what_gradients_are_sent_is_said_and_read_where_it_is_a_choice(tmp_path):
    table = rows(tmp_path, "reduce_dtype", "bf16", "float32", "", "int8")
    narrow, wide, unsaid, wrong = table.rows
    assert [row.priced.reduce_dtype for row in (narrow, wide, unsaid)] == ["bfloat16", "float32", ""]
    assert wrong.reason == "reduce_dtype is 'int8', and must be one of bf16, bfloat16, fp32, float32"
    chosen = as_usual(table, 3, "", "float32")
    assert chosen.rows[0].priced is not None
    assert chosen.defaults[-1] == "reduce_dtype is not said: gradients are sent in float32: 1 of 4 rows"
    fixed = as_usual(table, 0, "").rows
    assert fixed[0].reason == "reduce_dtype is bfloat16, and this profile sends gradients in float32"
    assert fixed[1].priced is not None


def test_a_flag_may_be_a_tick(tmp_path):
    first, second, third = rows(tmp_path, "checkpointing", "✓", "✗", "maybe", row="llama2-13b,4096,128,1,128,").rows
    assert (first.priced.recompute, second.priced.recompute) == ("full", "none")
    assert third.reason.startswith("checkpointing is 'maybe', and prices are of none, selective and full")


def test_a_column_fsdp_may_have_words_and_must_agree_with_that_of_zero(tmp_path):
    file = tmp_path / "steps.csv"
    cells = ("HYBRID_SHARD,", "yes,1", "yes,2", "8,3", "hsdp,zero-3", '"1,024",')
    file.write_text("\n".join([f"{HEADER},fsdp,zero", *(f"{ROW},{each}" for each in cells)]) + "\n")
    words, contradicts, stage_2, degree, both, many = read_steps(file, 8).rows
    assert (str(words.priced.job.layout), words.priced.shard_group_size) == ("dp128+zero3", 8)
    assert contradicts.reason == "fsdp is 'yes', and zero is '1': FSDP is ZeRO 2 or 3"
    assert str(stage_2.priced.job.layout) == "dp128+zero2"
    assert (str(degree.priced.job.layout), degree.priced.shard_group_size) == ("dp128+zero3", 8)
    assert both.priced.shard_group_size == 8
    assert many.reason == "groups of 1024 ranks that shard do not divide the 128 ranks of dp x cp"
