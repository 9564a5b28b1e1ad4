"""The page of a layout: what stands in it, and its clock in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from click.testing import CliRunner
from playwright.sync_api import Page

from clusterbench.cli import main
from clusterbench.cluster import card_with_memory
from clusterbench.expected.fits import CLOSE, SHOWN
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.layout_view import LayoutView, view_layout
from clusterbench.layout_view.memory import memory_of_stages
from clusterbench.parallel import from_options
from clusterbench.report.layout_page import layout_page
from clusterbench.shape import named_shape

FIVE = "pp2-dp2-cp2-tp2+sp+ep2+zero1"
WIDTHS = (390, 768, 1440, 1920)


def view(text: str, num_nodes: int = 1, shape: str | None = None) -> LayoutView:
    layout = ParallelLayout.parse(text)
    job = None
    if shape is not None:
        job = TrainingJob(named_shape(shape), layout, 256, 4 * layout.pp * layout.dp, 1, dtype="bfloat16")
    return view_layout(layout, num_nodes, "megatron", job)


def test_every_axis_draws_every_rank_and_marks_what_crosses(tmp_path: Path) -> None:
    out = tmp_path / "layout.html"
    made = CliRunner().invoke(
        main, ["layout", "pp2-tp2", "--num-nodes", "2", "--out", str(out)], catch_exceptions=False
    )
    assert made.exit_code == 0
    assert made.output.splitlines()[-1] == f"page: {out}"
    page = out.read_text(encoding="utf-8")
    drawings = page.split("<svg")[1:]
    assert [drawing.count("<circle") for drawing in drawings] == [4, 4, 4, 4]  # the step, tp, pp, ends
    assert [drawing.count('class="way crosses"') for drawing in drawings] == [0, 0, 2, 2]
    assert "node 1" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_every_phase_and_every_remark_is_in_the_page() -> None:
    of = view(FIVE, 2, "moe-tiny")
    page = layout_page(of)
    for phase in of.phases:
        assert f"<li><strong>{phase.words.title}</strong>" in page
    for remark in of.mix.remarks:
        assert remark.text.split(".")[0].replace("'", "&#39;") in page


def test_bars_show_which_phase_has_most_bytes_and_which_cross_the_network() -> None:
    page = layout_page(view("dp2-tp2", 2, "llama-8b"))
    phases = page.split('<ol class="phases">')[1].split("</ol>")[0].split("<li>")[1:]
    averaged = next(phase for phase in phases if "Gradients are averaged" in phase)
    assert '<i class="bytes far" style="width: 100.0%">' in averaged
    assert '<i class="bytes" style="width: ' in phases[0]
    assert "bytes" not in layout_page(view("dp2-tp2", 2)).split('<ol class="phases">')[1].split("</ol>")[0]


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_the_bar_of_a_stage_is_made_of_parts_that_add_up_to_what_it_holds_at_most() -> None:
    of = view("pp2-dp2", 1, "llama-8b")
    memory = section(layout_page(of, card_with_memory("h100-sxm-80gb")), "memory")
    stages = re.findall(r'aria-label="(first|last) stage: ([\d.]+) GB at most, of which (.*?)">(.*?)</div>', memory)
    assert [name for name, *_ in stages] == ["first", "last"]
    for _, total, words, bar in stages:
        parts = [float(size) for size in re.findall(r"([\d.]+) GB", words)]
        assert sum(parts) == pytest.approx(float(total), rel=0.01)
        widths = [float(width) for width in re.findall(r"<i [^>]*width: ([\d.]+)%", bar)]
        assert [width / sum(widths) for width in widths] == pytest.approx(
            [part / sum(parts) for part in parts], abs=0.01
        )
        (line,) = re.findall(r'<b style="left: ([\d.]+)%" title="80 GB">', bar)  # to scale with the bar
        assert float(line) / sum(widths) == pytest.approx(80 / float(total), rel=0.01)
    assert "The 80 GB of h100-sxm-80gb: does not fit" in memory


@pytest.mark.parametrize(
    ("gpu", "own"), [("h100-sxm-80gb", "too much"), ("h20-96gb", "close"), ("h200-sxm-141gb", "")], ids=str
)
def test_longer_sequences_and_recomputation_say_what_they_would_take(gpu: str, own: str) -> None:
    """The cell of the step itself is the total of its fullest stage; others are those of a step of its own."""
    of, card = view("pp2-dp2", 1, "llama-8b"), card_with_memory(gpu)
    assert card.memory_bytes is not None
    memory = section(layout_page(of, card), "memory")
    rows = re.findall(r'<tr(?: class="own")?><td class="number">(\d+)</td>(.*?)</tr>', memory)
    cells = {
        int(seq_len): re.findall(r'<td class="number">([\d.]+)(?: <small[^>]*>(.*?)</small>)?', row)
        for seq_len, row in rows
    }
    assert list(cells) == [128, 256, 512, 1024]
    for seq_len, of_ways in cells.items():
        assert of.job is not None
        for recompute, (size, verdict) in zip(("none", "selective", "full"), of_ways, strict=True):
            stages = memory_of_stages(replace(of.job, seq_len=seq_len), from_options({"recompute": recompute}))
            total = max(stage.total or 0.0 for stage in stages)
            assert float(size) == pytest.approx(total / 1e9, rel=0.01)
            assert verdict == (
                "too much"
                if total > SHOWN * card.memory_bytes
                else "close"
                if total > CLOSE * card.memory_bytes
                else ""
            )
    assert cells[256][0][1] == own
    assert float(cells[256][0][0]) == max(float(size) for size in re.findall(r"stage: ([\d.]+) GB", memory))


def test_without_a_card_no_size_is_judged_and_without_a_shape_none_is_told() -> None:
    memory = section(layout_page(view("dp8+zero3", 1, "llama-8b")), "memory")
    assert re.findall(r"<li>(\d+ GB): ", memory) == ["24 GB", "80 GB", "141 GB", "192 GB"]
    assert "too much</small>" not in memory
    assert 'id="memory"' not in layout_page(view("dp8+zero3"))


def test_of_a_step_of_which_no_total_is_predicted_the_reason_stands_there() -> None:
    memory = section(layout_page(view("pp2-dp2+zero3", 1, "llama-8b")), "memory")
    assert "Whether it fits is not predicted: FSDP gathers and reduces stages of a pipeline" in memory
    assert 'class="bar"' not in memory
    assert re.findall(r"<tr><td>(.*?)</td>", memory) == ["first stage", "last stage"]  # what is known of categories


def test_a_large_page_stays_small_and_says_what_is_left_out() -> None:
    page = layout_page(view("pp16-dp16-tp8+sp", 256))
    assert "1,536 more ranks not drawn." in page
    assert len(page) < 2**20


def test_a_node_of_very_many_ranks_is_drawn_in_part() -> None:
    page = layout_page(view("dp4096"))
    assert "3,584 more ranks not drawn." in page
    assert len(page) < 2**19


@pytest.fixture
def open_page(visit: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Opens a layout's page."""

    def open_page(of: LayoutView, width: int = 1280, javascript: bool = True, **options: str) -> Page:
        file = tmp_path / "layout.html"
        file.write_text(layout_page(of), encoding="utf-8")
        return visit(file.as_uri(), width, java_script_enabled=javascript, **options)

    return open_page


def now(page: Page) -> str:
    """The heading of the phase that is shown."""
    return page.inner_text("#now strong")


def edges(page: Page, which: str = "") -> int:
    return page.locator(f".edges .edge{which}").count()


@pytest.mark.browser
def test_next_previous_and_the_slider_walk_through_the_phases(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2, "moe-tiny"))
    assert now(page) == "1 of 15: Forward: slices of weights work together"
    assert (edges(page), edges(page, ".far")) == (16, 0)  # 8 pairs, there and back, each within its node
    for _ in range(3):
        page.click("#next")
    assert now(page) == "4 of 15: Forward: activations go to the next stage"
    assert (edges(page), edges(page, ".far")) == (8, 8)  # from the first node's ranks to the second's
    assert page.locator(".phases li[aria-current=step]").count() == 1
    assert "pp2 over the network: 8 x send (128KiB in all)" in page.inner_text("#now")
    page.click("#previous")
    assert now(page).startswith("3 of 15: Forward: tokens")
    page.fill("#phase", "15")
    assert now(page) == "15 of 15: ZeRO: updated weights go to the other copies"
    page.click("#next")
    assert now(page).startswith("15 of 15")


@pytest.mark.browser
def test_a_phase_is_chosen_in_the_list(open_page: Callable[..., Page]) -> None:
    page = open_page(view("dp2-tp2", 2))
    page.get_by_role("button", name="Clipping: the norm of all gradients").click()
    assert "Clipping" in now(page)


@pytest.mark.browser
def test_it_plays_pauses_and_ends(open_page: Callable[..., Page]) -> None:
    page = open_page(view("tp2"))
    page.clock.install()
    page.reload()
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    assert page.evaluate("getComputedStyle(document.querySelector('.dots')).animationName") == "pass"
    page.clock.run_for(4_500)
    assert now(page) == "2 of 5: Loss: over the split vocabulary"
    page.click("#play")
    page.clock.run_for(20_000)
    assert now(page).startswith("2 of 5")
    assert page.evaluate("getComputedStyle(document.querySelector('.dots')).animationName") == "none"
    page.click("#play")
    page.clock.run_for(60_000)
    assert now(page).startswith("5 of 5")
    assert page.inner_text("#play") == "Play"
    page.click("#play")
    assert now(page).startswith("1 of 5")


@pytest.mark.browser
def test_the_keyboard_does_all_of_it(open_page: Callable[..., Page]) -> None:
    page = open_page(view("dp2-tp2", 2))
    page.focus("#play")
    page.keyboard.press("ArrowRight")
    assert now(page).startswith("2 of ")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert now(page).startswith("1 of ")
    page.keyboard.press("End")
    assert now(page).startswith("6 of 6")
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert page.inner_text("#play") == "Pause"
    page.keyboard.press("Space")
    assert page.inner_text("#play") == "Play"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert now(page).startswith("2 of ")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")  # of the slider
    assert now(page).startswith("3 of ")


@pytest.mark.browser
def test_one_ranks_messages_are_shown_alone(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2))
    page.fill("#rank", "5")
    assert edges(page) == 2  # to its neighbour and back
    assert page.inner_text("#rank-words") == (
        "rank 5 on node 0: slice 1 of stage 0, experts' share 1, part 0 of each sequence, sequences of dp1; "
        "the same weights: 1 3 7; slices beside it: 4; other stages: 13; other experts: 4"
    )
    page.fill("#rank", "99")
    assert edges(page) == 16
    page.locator(".spot").nth(9).click()
    assert page.input_value("#rank") == "9"
    page.locator(".spot").nth(9).click()
    assert (page.input_value("#rank"), edges(page)) == ("", 16)


@pytest.mark.browser
def test_who_wants_no_motion_gets_none(open_page: Callable[..., Page]) -> None:
    page = open_page(view("tp2"), reduced_motion="reduce")
    page.click("#play")
    assert page.evaluate("document.getAnimations().length") == 0


@pytest.mark.browser
def test_nothing_moves_before_it_is_asked_to(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2))
    assert page.evaluate("document.getAnimations().length") == 0


@pytest.mark.browser
def test_without_javascript_the_phases_stand_there_as_a_list(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2, "moe-tiny"), javascript=False)
    assert page.locator(".phases li").count() == 15
    assert not page.locator("#play").is_visible()
    assert page.locator(".spot").count() == 16


@pytest.mark.browser
def test_print_keeps_the_list_and_drops_the_clock(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2))
    page.emulate_media(media="print")
    assert page.locator(".phases li").last.is_visible()
    assert not page.locator("#play").is_visible()
    assert not page.locator("#now").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("text", [FIVE, "dp64-tp8+sp+zero3", "tp1"])
def test_nothing_sticks_out_sideways(open_page: Callable[..., Page], text: str, scheme: str) -> None:
    page = open_page(view(text, 64 if "64" in text else 1), color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = {"light": "rgb(253, 253, 254)", "dark": "rgb(20, 24, 30)"}
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper[scheme]


@pytest.mark.browser
def test_headings_are_in_order(open_page: Callable[..., Page]) -> None:
    page = open_page(view(FIVE, 2))
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page: Callable[..., Page], scheme: str) -> None:
    page = open_page(view("dp2-tp8+sp", 4, "llama-8b"), color_scheme=scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    assert [
        (violation["id"], violation["nodes"][0]["html"][:200], violation["nodes"][0]["failureSummary"])
        for violation in serious
    ] == []
