"""Groups as Megatron and Llama 3 print them, what crosses nodes, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.errors import SuiteError
from clusterbench.layout import AXES, VIEWS, ParallelLayout
from clusterbench.layout_view import MEANINGS, LayoutView, layout_text, view_layout
from clusterbench.report.layout_page import layout_page
from clusterbench.shape import named_shape
from clusterbench.training.job import TrainingJob


def view(text: str, num_nodes: int = 1, rank_order: str = "megatron") -> LayoutView:
    return view_layout(ParallelLayout.parse(text), num_nodes, rank_order)


def groups(of: LayoutView) -> dict[str, list[list[int]]]:
    return {axis.name: [list(group) for group in axis.groups] for axis in of.axes}


def test_megatrons_example_of_16_gpus() -> None:
    # NVIDIA/Megatron-LM, megatron/core/parallel_state.py, docstring of initialize_model_parallel.
    found = groups(view("pp4-dp2-tp2", num_nodes=2))
    assert found["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert found["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert found["pp"] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_figure_5_of_llama_3() -> None:
    # Grattafiori et al. 2024, arXiv:2407.21783, figure 5: 16 GPUs, TP2 CP2 PP2 DP2; GPU 0 with 1, 2, 4 and 8.
    found = groups(view("pp2-dp2-cp2-tp2", num_nodes=2, rank_order="llama3"))
    first = {name: of_axis[0] for name, of_axis in found.items()}
    assert (first["tp"], first["cp"], first["pp"], first["dp"]) == ([0, 1], [0, 2], [0, 4], [0, 8])


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
        "use pp or dp for the rest.",
    )
    (cp,) = view("cp4-tp4+sp", num_nodes=2).findings
    assert cp.startswith("tp4 x cp4 = 16 leaves a node of 8 ranks, so keys and values of every attention")
    (ep,) = view("dp16+ep16", num_nodes=2).findings
    assert ep.startswith("ep16 leaves a node of 8 ranks: every token may go to another node twice")


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
    assert lines[0].startswith("# pp2-tp2: pp2 x tp2 = 4 ranks on 2 x 2, in the order of megatron (as torchtitan")
    assert "    0 1" in lines
    assert "    0 | 2 *" in lines
    assert "# Link: 2 of 2 groups cross nodes (*), up to 2 of them." in lines


def test_a_large_layout_is_cut_short_and_says_so() -> None:
    text = layout_text(view("pp16-dp16-tp8+sp", num_nodes=256))
    assert "# and 1984 more ranks" in text
    assert "# and 240 more groups" in text
    assert len(text.splitlines()) < 200


def test_every_axis_and_view_is_explained() -> None:
    assert set(MEANINGS) == {*AXES, *VIEWS}


def test_the_command() -> None:
    shown = CliRunner().invoke(main, ["layout", "dp2-tp2+sp", "--shape", "llama-tiny", "--seq-len", "256"])
    assert shown.exit_code == 0
    assert "global_batch_size 8 = micro_batch_size 1 x gradient_accumulation_steps 4 x dp 2" in shown.output
    wrong = CliRunner().invoke(main, ["layout", "tp2-dp2"])
    assert wrong.exit_code == 2
    assert "layout 'tp2-dp2' is written 'dp2-tp2'." in wrong.output
    idle = CliRunner().invoke(main, ["layout", "tp2", "--global-batch-size", "8"])
    assert "--global-batch-size has no effect without --shape." in idle.output


def test_the_page_draws_every_rank_and_marks_what_crosses(tmp_path: Path) -> None:
    out = tmp_path / "layout.html"
    made = CliRunner().invoke(
        main, ["layout", "pp2-tp2", "--num-nodes", "2", "--out", str(out)], catch_exceptions=False
    )
    assert made.exit_code == 0
    assert made.output.splitlines()[-1] == f"page: {out}"
    page = out.read_text()
    drawings = page.split("<svg")[1:]
    assert [drawing.count("<circle") for drawing in drawings] == [4, 4, 4]  # tp, pp, ends
    assert [drawing.count('class="way crosses"') for drawing in drawings] == [0, 2, 2]
    assert "node 1" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_large_page_stays_small_and_says_what_is_left_out() -> None:
    page = layout_page(view("pp16-dp16-tp8+sp", num_nodes=256))
    assert "1536 more ranks are not drawn." in page
    assert len(page) < 2**20


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    out = tmp_path / "none" / "x.html"
    wrong = CliRunner().invoke(main, ["layout", "tp2", "--out", str(out)])
    assert wrong.exit_code == 2
    assert f"--out {out} cannot be written: No such file or directory." in wrong.output
