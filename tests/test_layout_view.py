"""Groups as Megatron and Llama 3 print them, what crosses nodes, and what is said of it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.errors import SuiteError
from clusterbench.formulas.pipeline import bubble_fraction
from clusterbench.job import TrainingJob
from clusterbench.layout import AXES, RANK_ORDERS, VIEWS, ParallelLayout, every_layout
from clusterbench.layout_view import LayoutView, group_words, rank_words, view_layout
from clusterbench.layout_view.meanings import MEANINGS, mix_of
from clusterbench.layout_view.text import layout_text
from clusterbench.shape import named_shape
from clusterbench.torch_release import makes_buffers_for_messages
from tests.drawing.chrome import busy_s, threads_of


def view(text: str, num_nodes: int = 1, rank_order: str = "megatron") -> LayoutView:
    return view_layout(ParallelLayout.parse(text), num_nodes, rank_order)


def with_job(text: str, shape: str, num_nodes: int = 1, sequences: int = 8) -> LayoutView:
    layout = ParallelLayout.parse(text)
    job = TrainingJob(named_shape(shape), layout, 256, sequences, 1, dtype="bfloat16")
    return view_layout(layout, num_nodes, "megatron", job)


def remarks(text: str, rank_order: str = "megatron") -> str:
    return " ".join(remark.text for remark in mix_of(ParallelLayout.parse(text), rank_order).remarks)


def groups(of: LayoutView) -> dict[str, list[list[int]]]:
    return {axis.name: [list(group) for group in axis.groups] for axis in of.axes}


def test_megatrons_example_of_16_gpus() -> None:
    # NVIDIA/Megatron-LM, megatron/core/parallel_state.py, docstring of initialize_model_parallel.
    of = view("pp4-dp2-tp2", num_nodes=2)
    found = groups(of)
    assert found["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert found["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert found["pp"] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    # "rank 0 to 7 belong to the first box and ranks 8 to 15 belong to the second box": only pipelines leave a box.
    assert {axis.name for axis in of.axes if axis.crossing} == {"pp", "ends"}


def test_figure_5_of_llama_3() -> None:
    # Grattafiori et al. 2024, arXiv:2407.21783, figure 5: 16 GPUs, TP2 CP2 PP2 DP2; GPU 0 with 1, 2, 4 and 8.
    of = view("pp2-dp2-cp2-tp2", num_nodes=2, rank_order="llama3")
    found = groups(of)
    first = {name: of_axis[0] for name, of_axis in found.items()}
    assert (first["tp"], first["cp"], first["pp"], first["dp"]) == ([0, 1], [0, 2], [0, 4], [0, 8])
    # Its caption: GPU 1 is [TP1, CP0, PP0, DP0].
    assert of.layout.coordinates(1, "llama3") == {"tp": 1, "cp": 0, "pp": 0, "dp": 0}


def test_the_expert_grid_stands_beside_the_dense_one() -> None:
    found = groups(view("pp2-dp2-tp2+sp+ep4"))
    assert found["ep"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "edp" not in found
    assert groups(view("dp4-tp2+sp+ep4"))["edp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("text", "num_nodes", "rank_order", "crossing"),
    [
        ("pp2-dp2-tp2", 2, "megatron", {"tp": 0, "dp": 0, "pp": 4, "ends": 4}),
        ("pp2-dp2-tp2", 2, "llama3", {"tp": 0, "dp": 4, "pp": 0, "ends": 0}),
        ("pp2-dp2-tp2", 1, "megatron", {"tp": 0, "dp": 0, "pp": 0, "ends": 0}),
        ("tp4+sp", 2, "megatron", {"tp": 1}),
    ],
)
def test_what_crosses_nodes(text: str, num_nodes: int, rank_order: str, crossing: dict[str, int]) -> None:
    assert {axis.name: axis.crossing for axis in view(text, num_nodes, rank_order).axes} == crossing


def test_tp_that_leaves_a_node_is_a_finding_and_health_is_none() -> None:
    assert view("dp2-tp8+sp", num_nodes=2).findings == ()
    assert view("dp2-tp8+sp", num_nodes=4).findings == (
        "tp8 leaves a node of 4 ranks: what it sends in every layer goes over the network. Keep tp at 4 or below, and "
        "use pp or dp for the rest (Narayanan et al. 2021, arXiv:2104.04473, section 3.2).",
    )
    (cp,) = view("cp4-tp4+sp", num_nodes=2).findings
    assert cp.startswith("tp4 x cp4 = 16 leaves a node of 8 ranks, so keys and values of every attention")
    (ep,) = view("dp16+ep16", num_nodes=2).findings
    assert ep.startswith("ep16 leaves a node of 8 ranks: every token may go to another node twice")


def test_a_pipeline_with_few_micro_batches_is_a_finding_and_with_many_is_none() -> None:
    assert with_job("pp4", "llama-tiny", sequences=16).findings == ()
    assert with_job("pp4", "llama-tiny", sequences=4).findings == (
        "4 micro-batches for pp4: stages idle 43 % of the step while the pipeline fills and drains ((p-1) / (m + p-1), "
        "arXiv:2104.04473, section 2.2.1). With 16 or more it hardly matters (Huang et al. 2019, arXiv:1811.06965, "
        "section 2.3).",
    )


def test_each_group_is_said_in_words() -> None:
    of = view("pp2-dp2-cp2-tp2+sp+ep2+zero1", num_nodes=2)
    assert {axis.name: group_words(of, axis, axis.groups[-1]) for axis in of.axes} == {
        "tp": "slices 0 and 1 of stage 1, the same tokens (dp1 cp1)",
        "cp": "parts 0 and 1 of each sequence of dp1, the same slice 1 of stage 1",
        "dp": "the same slice 1 of stage 1, other tokens",
        "pp": "stages 0 and 1 of slice 1, dp1 cp1, one after the other",
        "dp_cp": "the same slice 1 of stage 1, other tokens; each keeps 1/4 of the optimizer states",
        "ep": "all experts of stage 1, each 1/2 of them; other tokens",
        "edp": "the same experts' share 1 of stage 1, other tokens",
        "ends": "both ends of the pipeline of slice 1, dp1 cp1",
    }


def test_with_a_job_words_name_layers_and_experts() -> None:
    of = with_job("pp2-dp2-tp2+sp+ep2", "moe-tiny")
    assert group_words(of, of.axis("edp"), (1, 3)) == "the same experts 4 to 7 of stage 0 (layers 0 to 1), other tokens"
    assert rank_words(of, 5) == (
        "rank 5 on node 0: slice 1 of stage 1 (layers 2 to 3), experts 4 to 7, sequences of dp0; "
        "the same weights: 7; slices beside it: 4; other stages: 1; other experts: 4"
    )


def test_zero_says_what_each_copy_keeps() -> None:
    of = view("dp4+zero3")
    assert group_words(of, of.axis("dp"), (0, 1, 2, 3)) == (
        "the same weights, other tokens; each keeps 1/4 of weights, gradients and optimizer states"
    )


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("tp1", "One rank: nothing passes"),
        ("dp4+zero3", "1-D: fully sharded data parallelism"),
        ("dp2-tp2", "2-D: tensor and data parallelism"),
        ("dp2-tp2+zero3", "2-D: tensor and fully sharded data parallelism"),
        ("pp2-dp2-tp2", "3-D: tensor, pipeline and data parallelism (PTD-P)"),
        ("pp2-dp2-cp2-tp2", "4-D: tensor, context, pipeline and data parallelism (as Llama 3)"),
        ("pp2-dp2-cp2-tp2+sp+ep2", "5-D: tensor, context, expert, pipeline and data parallelism"),
    ],
)
def test_a_mix_has_its_name(text: str, title: str) -> None:
    assert mix_of(ParallelLayout.parse(text), "megatron").title == title


def test_a_mix_says_what_its_axes_are_to_each_other_and_no_more() -> None:
    assert "a stage sends once a micro-batch" in remarks("pp2-tp2")
    assert "Shards exchange weights" in remarks("dp2-tp2+zero3")
    assert "Shards" not in remarks("dp2-tp2")
    assert "gradients are averaged over dp2 x cp2 = 4 ranks" in remarks("dp2-cp2")
    assert "as ep2 x edp4" in remarks("dp4-tp2+sp+ep2")
    assert remarks("tp1") == ""


def test_the_order_of_ranks_says_what_stays_near() -> None:
    assert "pp is outermost, so ranks that average gradients stay closer" in remarks("pp2-dp2-tp2", "megatron")
    assert "dp is outermost, so a pipeline stays together" in remarks("pp2-dp2-tp2", "llama3")
    assert "neighbours first: tp, then cp, then pp, then dp." in remarks("pp2-dp2-cp2-tp2", "llama3")


def test_every_named_order_says_what_would_cross_nodes() -> None:
    of = view("pp2-dp2-tp2", num_nodes=2)
    assert [(order.names[0], order.crossing) for order in of.orders] == [("megatron", ("pp",)), ("picotron", ("dp",))]
    assert {name for order in of.orders for name in order.names} == set(RANK_ORDERS)
    assert view("pp2-dp2-tp2", num_nodes=2, rank_order="llama3").orders[0].names == ("picotron", "llama3", "calculon")


def test_every_remark_has_its_source() -> None:
    for layout in every_layout(32, num_experts=4):
        for rank_order in ("megatron", "llama3"):
            for remark in mix_of(layout, rank_order).remarks:
                assert remark.text.endswith(".")
                assert "arXiv:" in remark.source or ".py" in remark.source


def test_bytes_are_those_that_a_run_is_held_against() -> None:
    layout = ParallelLayout.parse("dp2-tp2")
    job = TrainingJob(named_shape("llama-tiny"), layout, 256, 8, 1)
    of_axis = {axis.name: axis for axis in view_layout(layout, 1, "megatron", job).axes}
    # suites/tp_scale.yaml measured 18.02 MiB on tp2 for 8 sequences; four of them are half of it.
    assert of_axis["tp"].bytes_per_step is not None
    assert of_axis["tp"].bytes_per_step / 2**20 == pytest.approx(18.02 / 2, rel=1e-3)
    assert [op for op, _, _ in of_axis["dp"].ops or ()] == ["all_reduce"]


def test_a_job_that_cannot_be_shared_so_is_refused() -> None:
    layout = ParallelLayout.parse("tp3")
    with pytest.raises(SuiteError) as caught:
        view_layout(layout, 1, "megatron", TrainingJob(named_shape("llama-tiny"), layout, 256, 8, 1))
    assert str(caught.value).startswith("layout 'tp3' cannot train llama-tiny so: ")


def test_nodes_that_do_not_share_the_ranks_evenly_are_refused() -> None:
    with pytest.raises(SuiteError) as caught:
        view("tp3", num_nodes=2)
    assert str(caught.value) == (
        "layout 'tp3' has 3 ranks, which 2 nodes do not share evenly: 1.5. Say --num-nodes with a divisor of 3."
    )


def test_the_text_marks_what_crosses_and_says_what_passes() -> None:
    lines = layout_text(view("pp2-tp2", num_nodes=2)).splitlines()
    assert lines[0].startswith("# pp2-tp2: pp2 x tp2 = 4 ranks on 2 nodes x 2, in the order of megatron (as torchtitan")
    assert "    0 | 2 *  stages 0 and 1 of slice 0, one after the other" in lines
    assert "# Link: 2 of 2 groups cross nodes (*), up to 2 of them: over the network." in lines
    assert "    0 1  slices 0 and 1 of stage 0, the same tokens" in lines
    assert "#     pp2 over the network: send" in lines


def test_the_text_begins_with_the_axes_in_a_table_and_ends_with_the_ranks() -> None:
    lines = layout_text(view("pp2-tp2", num_nodes=2), memory=["# the 80 GB of a card: fits"]).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("# axis"))
    assert lines[start : start + 6] == [
        "# axis   what it is            groups  link",
        "  tp2    tensor parallelism         2  within a node",
        "  pp2    pipeline parallelism       2  over the network",
        "  ends2  first and last stage       2  over the network",
        "#",
        "# the 80 GB of a card: fits",
    ]
    assert lines[-5:-3] == ["# rank  node  pp  tp", "     0     0   0   0"]


def test_with_a_job_the_table_says_what_is_sent_and_silent_ends_have_no_part() -> None:
    text = layout_text(with_job("pp2-dp2", "llama-8b"))
    assert "  pp2    pipeline parallelism       2  within a node  " in text
    assert "  ends2  first and last stage       2  within a node  -      -" in text
    assert "ends2, first and last stage" not in text


def test_bytes_of_a_link_are_whole_and_are_not_called_the_size_of_a_call() -> None:
    """The norm of 4 bytes was '1 x all_reduce of 7.50B': what a link carries of it, in the mean."""
    text = " ".join(layout_text(with_job("pp16", "llama-405b", sequences=64)).replace("\n#", " ").split())
    assert "pp16 within a node: 1 x all_reduce (8B)" in text
    assert ".50B" not in text


def test_warnings_stand_above_the_table() -> None:
    lines = layout_text(view("tp4", num_nodes=2)).splitlines()
    assert [line[:10] for line in lines].index("# warning:") < lines.index("#", 3)


def test_a_large_layout_is_cut_short_and_says_so() -> None:
    text = layout_text(view("pp16-dp16-tp8+sp", num_nodes=256))
    assert "# and 1,984 more ranks" in text
    assert "# and 240 more groups" in text
    assert "0 | 8 | 16 | 24 | 32 | 40 | 48 | 56" in text
    assert len(text.splitlines()) < 300


@pytest.mark.parametrize("rank_order", RANK_ORDERS)
@pytest.mark.parametrize(
    ("text", "num_nodes"), [("pp2-dp2-cp2-tp2+sp+ep2+zero1", 2), ("dp512+zero3", 64), ("dp2-tp16+sp", 4)]
)
def test_the_text_fits_a_terminal_of_80_columns(text: str, num_nodes: int, rank_order: str) -> None:
    lines = layout_text(view(text, num_nodes, rank_order), width=80).splitlines()
    assert max(map(len, lines)) <= 80


def test_every_axis_and_view_is_explained() -> None:
    assert set(MEANINGS) == {*AXES, *VIEWS}


def test_the_command() -> None:
    shown = CliRunner().invoke(
        main, ["layout", "dp2-tp2+sp", "--shape", "llama-tiny", "--seq-len", "256"], env={"COLUMNS": "120"}
    )
    assert shown.exit_code == 0
    assert "global_batch_size 8 = micro_batch_size 1 x gradient_accumulation_steps 4 x dp 2" in shown.output
    wrong = CliRunner().invoke(main, ["layout", "tp2-dp2"])
    assert wrong.exit_code == 2
    assert "layout 'tp2-dp2' is written 'dp2-tp2'." in wrong.output
    idle = CliRunner().invoke(main, ["layout", "tp2", "--global-batch-size", "8"])
    assert "--global-batch-size has no effect without --shape." in idle.output


def test_the_command_names_every_rank_order() -> None:
    told = CliRunner().invoke(main, ["layout", "--help"]).output
    assert [order for order in RANK_ORDERS if order not in told] == []


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    out = tmp_path / "none" / "x.html"
    wrong = CliRunner().invoke(main, ["layout", "tp2", "--out", str(out)])
    assert wrong.exit_code == 2
    assert f"--out {out} cannot be written: No such file or directory." in wrong.output


def test_a_layout_of_a_shape_says_whether_its_memory_fits() -> None:
    """8B on one H200, as a dry run has it: 145.6 GB when gradients are complete, 27.4 GB of activations before."""
    alone = ["layout", "tp1", "--shape", "llama-8b", "--global-batch-size", "1", "--gpu"]
    said = CliRunner().invoke(main, [*alone, "NVIDIA H200"]).output
    line = next(line.split() for line in said.splitlines() if line.startswith("  any rank"))
    assert float(line[5]) == pytest.approx(27.4, rel=0.02)
    assert float(line[6]) == pytest.approx(145.6, rel=0.03)
    assert "141 GB of h200-sxm-141gb: close, measure it: 4.6 GB above what is sold" in said
    assert "does not fit" in CliRunner().invoke(main, [*alone, "rtx-4090"]).output


def test_a_pipeline_says_it_of_its_first_and_its_last_stage() -> None:
    said = CliRunner().invoke(main, ["layout", "pp4-tp2", "--shape", "llama-8b"]).output
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("  first ", "  last "))] == [
        "first",
        "last",
    ]
    assert "24 GB: does not fit" in said
    assert "192 GB: fits" in said


def test_of_a_pipeline_the_fullest_stage_decides_whether_it_fits() -> None:
    """Llama 3's 126 layers on 16 stages: 7 on the first, 8 on the second, which was not asked: 119.4 GB, not 126.6.

    From torch 2.15 on there is no buffer for each message.
    """
    asked = ["layout", "pp16-tp8+sp", "--shape", "llama-405b", "--global-batch-size", "64", "--gpu"]
    lines = CliRunner().invoke(main, [*asked, "NVIDIA H200"]).output.splitlines()
    names = [line[:22].strip() for line in lines if line.startswith(("  first ", "  fullest ", "  last "))]
    assert names == ["first stage", "fullest stage, pp 1", "last stage"]
    left = 16.5 if makes_buffers_for_messages() else 14.4
    assert f"# the 141 GB of h200-sxm-141gb: fits, {left} GB left" in lines


def test_a_card_of_which_no_memory_is_on_record_is_refused() -> None:
    wrong = CliRunner().invoke(main, ["layout", "dp2", "--shape", "llama-tiny", "--gpu", "NVIDIA GB300"])
    assert (wrong.exit_code, wrong.output) == (2, "error: --gpu 'NVIDIA GB300': the tables have no memory of it.\n")
    wrong = CliRunner().invoke(main, ["layout", "dp2", "--shape", "llama-tiny", "--gpu", "v100-sxm2-32gb"])
    assert (wrong.exit_code, wrong.output) == (
        2,
        "error: --gpu v100-sxm2-32gb has no units for bfloat16, and what is told here is of bfloat16 training.\n"
        "hint: 'clusterbench dry-run dp2 --dtype float32' with the same --shape and --gpu\n",
    )


@pytest.mark.parametrize("option", ["--gpu", "--seq-len", "--micro-batch-size", "--global-batch-size"])
def test_what_tells_of_a_model_needs_a_shape(option: str) -> None:
    said = CliRunner().invoke(main, ["layout", "tp1", option, "NVIDIA H200" if option == "--gpu" else "8"])
    assert (said.exit_code, said.output) == (2, f"error: {option} has no effect without --shape.\n")


@pytest.mark.parametrize(("layout", "on"), [("tp16", "2 nodes x 8"), ("dp12", "2 nodes x 6"), ("dp4", "1 node x 4")])
def test_with_a_card_a_layout_takes_as_many_of_its_servers_as_it_needs(layout: str, on: str) -> None:
    words = ["layout", layout, "--shape", "llama-8b", "--gpu", "h100-sxm-80gb"]
    told = CliRunner().invoke(main, words, env={"COLUMNS": "120"}).output
    assert f"ranks on {on}, " in told


def test_what_fits_no_card_is_said_without_an_exponent() -> None:
    words = ["layout", "dp2+zero1", "--shape", "llama-8b", "--seq-len", "1048576"]
    told = CliRunner().invoke(main, words, env={"COLUMNS": "120"}).output
    row = next(line for line in told.splitlines() if line.startswith("  any rank"))
    assert "e+" not in row
    assert re.search(r" \d,\d{3} ", row)


def test_nodes_that_are_said_are_taken() -> None:
    words = ["layout", "tp16", "--shape", "llama-8b", "--gpu", "h100-sxm-80gb", "--num-nodes", "1"]
    assert "16 ranks on 1 node x 16" in CliRunner().invoke(main, words, env={"COLUMNS": "120"}).output


def planned(tmp_path: Path, *words: str) -> dict[str, list[Any]]:
    """The threads of the schedule that is written."""
    done = CliRunner().invoke(main, ["layout", *words, "--trace", str(tmp_path / "t.json")])
    assert done.exit_code == 0, done.output
    ((_, threads),) = threads_of((tmp_path / "t.json").read_text()).items()
    return threads


def test_the_schedule_of_a_pipeline_is_written_to_zoom_into(tmp_path: Path) -> None:
    threads = planned(tmp_path, "pp4-dp2")
    assert [*threads] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert threads["stage 3"][0]["name"] == "F0 of stage 3"
    assert [busy_s(events) for events in threads.values()] == pytest.approx([16 * 3e-3] * 4)
    ends_us = [event["ts"] + event["dur"] for events in threads.values() for event in events]
    assert max(ends_us) / 1e6 == pytest.approx(16 * 3e-3 / (1 - bubble_fraction(4, 16)))


def test_other_schedules_are_played_with_their_chunks_and_of_a_model_the_stage_with_the_head_is_longer(
    tmp_path: Path,
) -> None:
    assert [*planned(tmp_path, "pp2", "--schedule", "zbv")] == ["stages 0, 3", "stages 1, 2"]
    threads = planned(tmp_path, "pp4", "--shape", "llama-8b", "--global-batch-size", "8")
    forwards = [next(event["dur"] for event in events if event["name"][0] == "F") for events in threads.values()]
    assert forwards[:3] == pytest.approx([forwards[0]] * 3, abs=0.002)
    assert forwards[3] > 1.1 * forwards[0]
    assert sum(forwards) == pytest.approx(4000, abs=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dp2", "--trace", "t"), "error: --trace shows the schedule of a pipeline, and dp2 has none.\n"),
        (("pp2", "--schedule", "zbv"), "error: --schedule has no effect without --trace.\n"),
        (("pp2", "--out", "t", "--trace", "t"), "error: --trace t is the file of --out; name another one.\n"),
        (("pp2", "--trace", "none/t"), "error: --trace none/t cannot be written: No such file or directory.\n"),
        (
            ("pp2", "--trace", "t", "--schedule", "zb"),
            "error: there is no schedule 'zb'. Did you mean 'zbv'?\n"
            "Schedules: naive, gpipe, 1f1b, interleaved_1f1b, looped_bfs, interleaved_zero_bubble, zbv, dualpipev.\n",
        ),
        (
            ("pp2", "--trace", "t", "--shape", "llama-8b", "--global-batch-size", "100000"),
            "error: --trace plays 4,096 micro-batches at most, and a step has 100,000.\n",
        ),
    ],
)
def test_what_has_no_schedule_to_show_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(main, ["layout", *words])
    assert (done.exit_code, done.stderr) == (2, said)
