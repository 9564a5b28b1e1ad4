"""The page in a real browser: the system's chromium, through playwright."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.drawing.lines import Lines, Mark, Series
from clusterbench.drawing.panel import Column, Entry, Panel, Story
from clusterbench.drawing.style import canvas
from clusterbench.report import render_report
from clusterbench.report.several import render_together
from clusterbench.rows import Row
from clusterbench.run_folder import RunFolder
from tests.report.synthetic import all_reduce_run, case, good_run, plant, tp_scale_run, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


class PlantedChart(Chart[list[Row]]):
    """A curve whose points lead to their cases, and a cell with a story.

    How to read it
    --------------
    MFU stands above, its rival below.
    """

    title: ClassVar[str] = "Planted figures"
    section: ClassVar[Section] = "comparison"

    def select(self, reading: Reading) -> list[Row] | None:
        return reading.rows_of("step_time") or None

    def draw(self, data: list[Row]) -> list[Panel]:
        marks = [Mark(number, row.value, case=row.case) for number, row in enumerate(data)]
        ticks = {float(number): str(row.world_size) for number, row in enumerate(data)}
        figure, axes = canvas("Best of all")
        axes.set_xlim(0, 2)
        axes.set_ylim(0, 2)
        story = Story(
            "Why it lost",
            ("It was slower by 31 %.", "<b>Markup</b> is text."),
            ("rank", "layout"),
            (("1", "tp1"), ("2", "refused")),
            (data[0].case, "refused/1n3/tp3"),
        )
        cells = (
            Entry(("=left", math.nan), area=(0, 0, 1, 1), story=story),
            Entry(("right", 2.0), area=(1, 0, 2, 1)),
            Entry(("above", 3.0), area=(1, 1, 2, 2)),
        )
        return [
            Lines("Time", [Series("times", tuple(marks))], "s", ticks, x_label="ranks").panel(),
            Panel(figure, (Column("cell"), Column("time", "s")), cells),
        ]


@pytest.fixture
def open_page(visit: Callable[..., Page]) -> Callable[..., Page]:
    """Opens the report of a run."""

    def open_page(
        run: RunFolder,
        width: int = 1280,
        scheme: str = "light",
        javascript: bool = True,
        touch: bool = False,
        address: str = "",
    ) -> Page:
        uri = render_report(run).path.as_uri() + address
        return visit(uri, width, color_scheme=scheme, java_script_enabled=javascript, has_touch=touch)

    return open_page


@pytest.fixture
def _planted_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbench.report.charts", lambda: {"planted": PlantedChart})


with_planted_chart = pytest.mark.usefixtures("_planted_chart")


def _leaves(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


def _first_column(page: Page) -> list[str]:
    return [text.rsplit("/", 1)[-1] for text in page.locator("#table tbody tr td:first-child").all_inner_texts()]


def test_the_table_sorts_by_a_figure_and_back(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    header = page.locator("#table th", has_text="step time")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    # The case without a figure stands last either way.
    assert _first_column(page) == ["tp8+sp", "tp1", "tp2+sp", "tp2", "tp4+sp", "tp4", "tp8"]
    header.locator("button").click()
    assert _first_column(page) == ["tp4", "tp4+sp", "tp2", "tp2+sp", "tp1", "tp8+sp", "tp8"]


def test_the_table_filters_by_words_and_by_outcome(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    page.fill("#filter", "sp tp4")
    assert _first_column(page) == ["tp4+sp"]
    assert page.inner_text("#shown") == "1 of 7 cases"
    page.fill("#filter", "")
    page.select_option("#outcome", "out_of_memory_as_expected")
    assert _first_column(page) == ["tp8"]


def test_a_line_unfolds_to_its_figures_and_its_suite_line(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    button = page.get_by_role("button", name="train_step/1n2/tp2", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    inside = page.inner_text(".unfolded")
    assert "suites/tp_scale.yaml:12" in inside
    assert "2 all-reduces a layer and direction" in inside
    button.click()
    assert page.locator(".unfolded").count() == 0


def test_long_tables_are_paged(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run", [case(f"{number:03d}") for number in range(120)]))
    assert len(_first_column(page)) == 50
    page.click("#next")
    page.click("#next")
    assert page.inner_text("#page") == "page 3 of 3"
    assert _first_column(page)[-1] == "119"
    page.fill("#filter", "077")
    assert _first_column(page) == ["077"]


def test_a_script_in_a_reason_is_text(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(all_reduce_run(tmp_path / "run"))
    assert "<script>alert('reason')</script>" in page.inner_text("#findings")
    assert "<script>alert('reason')</script>" in page.inner_text("#table")


def test_a_reason_is_read_without_scrolling_and_what_was_expected_is_no_cross(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    expected = page.locator("#table td.is-out_of_memory_as_expected")
    assert expected.inner_text() == "out of memory as expected"
    mark = expected.evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert mark not in ("none", '"✗ "')
    reason = page.get_by_role("cell", name="rank 5 asked for 1.5 GiB").bounding_box()
    frame = page.get_by_role("region", name="All cases").bounding_box()
    assert reason is not None
    assert frame is not None
    assert reason["x"] + reason["width"] <= frame["x"] + frame["width"]


def test_the_runs_of_a_page_fit_its_width(visit: Callable[..., Page], tmp_path: Path) -> None:
    runs = [tp_scale_run(tmp_path / "a"), tp_scale_run(tmp_path / "b")]
    page = visit(render_together(runs, tmp_path / "both").path.as_uri(), 1280)
    frame = page.get_by_role("region", name="Runs")
    assert frame.evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")


def test_a_phone_shows_a_figure_beside_the_name_of_a_case(open_page: Callable[..., Page], tmp_path: Path) -> None:
    """A number of ranks stands in the name; on a wide screen it has a column."""
    headers = "#table > thead th"
    narrow = open_page(good_run(tmp_path / "narrow"), 390)
    shown = [header for header in narrow.locator(headers).all() if header.is_visible()]
    figure = shown[2].bounding_box()  # behind case and outcome
    assert figure is not None
    assert shown[2].inner_text().split("\n")[0].startswith("step time")
    assert figure["x"] + figure["width"] <= 390
    assert narrow.locator("#table td.is-ok").first.inner_text() == "ok"  # drawn as its mark alone, and still read aloud
    wide = open_page(good_run(tmp_path / "wide"), 1280)
    assert "ranks" in {text.split("\n")[0].strip() for text in wide.locator(headers).all_inner_texts()}


@with_planted_chart
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440, 1920])
def test_nothing_sticks_out_sideways(open_page: Callable[..., Page], tmp_path: Path, width: int, scheme: str) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator(".unfold").first.click()
    for number in range(3):
        _entry(page, "planted-1", number).click()
        _entry(page, "planted-1", number).hover()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_dark_is_dark(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run"), scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 30)"


@with_planted_chart
def test_letters_of_charts_are_as_large_as_those_around_them(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run"))
    assert not page.locator("figcaption details p").first.is_visible()
    scales = page.locator("#charts svg").evaluate_all(
        "all => all.map(svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"
    )
    assert scales
    assert all(scale <= 1.41 for scale in scales)


@with_planted_chart
def test_without_javascript_verdict_findings_charts_and_cases_are_there(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(all_reduce_run(tmp_path / "run"), javascript=False)
    assert page.locator(".verdict.bad").is_visible()
    assert page.locator("#findings .finding.error").is_visible()
    assert page.locator("#charts svg").count() == 2
    assert len(_first_column(page)) == 26
    assert page.locator("#charts rect title").count() > 0  # the browser's own tooltips
    assert page.locator("details.behind").count() == 2
    assert not page.locator(".downloads, #tip, .moving:visible").count()


def _entry(page: Page, panel: str, number: int) -> Locator:
    return page.locator(f"[data-panel='{panel}'] [data-entry='{number}']")


@with_planted_chart
def test_a_place_says_what_it_shows_where_the_pointer_is(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    _entry(page, "planted-0", 1).hover()
    assert re.match(r"times\nranks 2\nvalue 36\d\.\d{3} ms\n", page.inner_text("#tip"))
    assert page.inner_text("#tip").split("\n")[-1] == "Click or Enter: its case"
    assert page.locator("rect title").count() == 0  # it would stand beside ours
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


@with_planted_chart
def test_a_figure_is_one_stop_of_tab_and_its_places_are_reached_by_arrows(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    assert page.locator("rect[tabindex='0']").count() == 2
    _entry(page, "planted-0", 0).focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        seen.append(page.evaluate("document.activeElement.dataset.entry"))
    assert seen == ["1", "2", "1", "5", "5", "0"]  # the seventh has no figure, and no place
    assert page.locator("#tip").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


@with_planted_chart
def test_arrows_up_and_down_go_to_the_nearest_place(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run"))
    _entry(page, "planted-1", 1).focus()
    seen = []
    for key in ("ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
        seen.append(page.evaluate("document.activeElement.dataset.entry"))
    assert seen == ["2", "2", "1", "1"]


@with_planted_chart
def test_from_a_place_home_to_its_case_and_back(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    page.fill("#filter", "tp1")
    _entry(page, "planted-0", 1).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".unfolded")
    assert page.evaluate("document.activeElement.textContent") == "train_step/1n2/tp2"
    assert page.evaluate("decodeURIComponent(location.hash)") == "#case=train_step/1n2/tp2"
    assert page.input_value("#filter") == ""
    assert page.locator("tr.found").is_visible()
    page.go_back()
    page.wait_for_function("document.activeElement.dataset.entry === '1'")


@with_planted_chart
def test_a_tap_shows_and_the_second_one_chooses(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"), width=390, touch=True)
    _entry(page, "planted-0", 3).tap()
    assert page.inner_text("#tip").split("\n")[-1] == "Tap again: its case"
    assert page.locator(".unfolded").count() == 0
    _entry(page, "planted-0", 3).tap()
    page.wait_for_selector(".unfolded")
    assert page.evaluate("document.activeElement.textContent") == "train_step/1n4/tp4"


@with_planted_chart
def test_a_line_of_the_table_behind_a_figure_leads_to_its_case_on_any_page(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(good_run(tmp_path / "run", [case(f"{number:03d}") for number in range(120)]))
    page.click("[data-panel='planted-0'] summary")
    page.locator("[data-panel='planted-0'] td a", has_text="119").click()
    page.wait_for_selector(".unfolded")
    assert page.inner_text("#page") == "page 3 of 3"
    assert page.evaluate("document.activeElement.textContent") == "planted/1n4/119"


def test_an_address_names_a_case(open_page: Callable[..., Page], tmp_path: Path) -> None:
    name = 'planted/1n4/50 % "of" <all> & more'
    run = good_run(tmp_path / "run", [case("a"), case("b", id=name)])
    page = open_page(run, address=f"#case={quote(name)}")
    assert page.evaluate("document.activeElement.textContent") == name
    open_page(run, address="#case=%E0%A4%A")  # damaged: nothing happens


@with_planted_chart
def test_a_case_is_found_where_nothing_unfolds(
    open_page: Callable[..., Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbench.report.table.MOST_FIGURES", 0)
    run = good_run(tmp_path / "run", [case(f"{number:03d}") for number in range(60)])
    page = open_page(run, address="#case=planted/1n4/055")
    assert page.evaluate("document.activeElement.textContent") == "planted/1n4/055"
    assert page.locator("tr.found").is_visible()
    assert page.locator(".unfold").count() == 0


@with_planted_chart
def test_a_story_unfolds_below_its_figure_and_closes(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    _entry(page, "planted-1", 0).click()
    assert page.evaluate("document.activeElement.textContent") == "Why it lost"
    # What the browser says when the page has scrolled below a pointer that stands still: no tooltip covers the story.
    _entry(page, "planted-1", 1).evaluate("it => it.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))")
    assert page.locator("#tip").is_hidden()
    _entry(page, "planted-1", 2).hover()
    assert page.locator("#tip").is_visible()
    assert "It was slower by 31 %.\n\n<b>Markup</b> is text." in page.inner_text(".story")
    assert page.locator(".story tbody tr").all_inner_texts() == ["1\ttp1\tcase\ntrain_step/1n1/tp1", "2\trefused\t"]
    page.keyboard.press("Escape")
    assert page.locator(".story").count() == 0
    assert page.evaluate("document.activeElement.dataset.entry") == "0"
    page.keyboard.press("Enter")
    page.click(".story a")
    page.wait_for_selector(".unfolded")
    assert page.evaluate("document.activeElement.textContent") == "train_step/1n1/tp1"
    page.click(".story >> text=Close")
    assert page.locator(".story").count() == 0


def _downloaded(page: Page, name: str, press: Callable[[], None]) -> bytes:
    with page.expect_download() as download:
        press()
    assert download.value.suggested_filename == name
    return Path(download.value.path()).read_bytes()


@with_planted_chart
def test_a_figure_is_downloaded_as_svg_png_and_csv(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"), scheme="dark")
    bar = page.locator("[data-panel='planted-1'] .downloads")
    svg = _downloaded(page, "run-planted-1-Best-of-all.svg", bar.locator("text=SVG").click).decode()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "var(" not in svg
    assert "data-entry" not in svg
    png = _downloaded(page, "run-planted-1-Best-of-all.png", bar.locator("text=PNG").click)
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") > 900  # twice what the screen shows
    table = _downloaded(page, "run-planted-1-Best-of-all.csv", bar.locator("text=CSV").click).decode()
    assert table == "cell,time [s]\n'=left,\nright,2\nabove,3\n"  # a formula is made text; what is no number is empty


@with_planted_chart
def test_the_svg_stands_alone(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    bar = page.locator("[data-panel='planted-0'] .downloads")
    svg = _downloaded(page, "run-planted-0-Time.svg", bar.locator("text=SVG").click)
    (tmp_path / "alone.svg").write_bytes(svg)
    page.goto((tmp_path / "alone.svg").as_uri())
    assert page.evaluate("document.querySelectorAll('text').length") > 5
    texts = [words.strip() for words in page.locator("text").all_text_contents()]
    said = " ".join(texts)
    assert "Planted figures clusterbench · tp_scale · run" in said
    assert "1 node × 8 CPU ranks" in said
    assert "not the speed of a cluster." in said
    assert page.evaluate(
        """() => {
            const { x, y, width, height } = document.documentElement.viewBox.baseVal;
            const lines = [...document.querySelectorAll("text")].map((text) => text.getBBox());
            return lines.every((box) => box.x + box.width <= x + width && box.y + box.height <= y + height);
        }"""
    )


def test_the_csv_of_cases_holds_what_is_filtered(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    page.fill("#filter", "sp")
    text = _downloaded(page, "run-cases.csv", page.locator("#csv").click).decode()
    table = list(csv.DictReader(io.StringIO(text)))
    assert [line["layout"] for line in table] == ["tp2+sp", "tp4+sp", "tp8+sp"]
    assert float(table[0]["step time [ms]"]) == pytest.approx(388, rel=0.1)


def test_an_unfolded_line_shows_the_samples_of_each_repeat(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"))
    page.get_by_role("button", name="train_step/1n4/tp4", exact=True).click()
    inside = page.locator(".unfolded")
    assert inside.locator("svg.samples circle").count() == 60
    assert re.search(
        r"repeat 2: 20 iterations; least \d+\.?\d*, median \d+\.?\d*, most \d+\.?\d* ms", inside.inner_text()
    )
    inside.locator("summary").click()
    assert len(re.findall(r"repeat 3: ([\d. ]+)", inside.inner_text())[-1].split()) == 20
    assert "observations.jsonl, the lines with identity" in inside.inner_text()


def test_of_many_panels_the_first_are_open_and_the_others_are_folded_but_on_paper(
    open_page: Callable[..., Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ManyPanels(PlantedChart):
        """Four times as many.

        How to read it
        --------------
        As one.
        """

        def draw(self, data: list[Row]) -> list[Panel]:
            return [panel for _ in range(4) for panel in super(ManyPanels, self).draw(data)]

    monkeypatch.setattr("clusterbench.report.charts", lambda: {"planted": ManyPanels})
    page = open_page(good_run(tmp_path / "run"))
    drawings = page.locator("#chart-planted .panel svg")
    assert [drawings.nth(number).is_visible() for number in range(drawings.count())] == [*[True] * 4, *[False] * 4]
    page.locator("#chart-planted .more > summary", has_text="4 more").click()
    page.locator("[data-panel='planted-5'] .places rect").first.hover()
    assert "left" in page.locator("#tip").inner_text()
    page.locator("#chart-planted .more > summary").click()
    page.emulate_media(media="print")
    assert drawings.last.is_visible()


@with_planted_chart
def test_on_paper_everything_is_unfolded_and_fits(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run", [case(f"{number:03d}") for number in range(120)]), width=700)
    page.emulate_media(media="print")
    assert page.locator("[data-panel='planted-0'] td a", has_text="011").is_visible()
    assert page.locator("[data-panel='planted-0'] td a", has_text="012").is_hidden()
    assert page.locator("text=Printed are the first 12 of 120 lines.").is_visible()
    assert page.locator("text=Printed are 50 of 120 cases").is_visible()
    assert not page.locator(".controls:visible, .downloads:visible, nav:visible, .pages:visible").count()
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_the_first_stop_of_tab_skips_to_the_findings(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
    assert page.locator(".skip").is_visible()


@with_planted_chart
def test_headings_are_in_order(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(all_reduce_run(tmp_path / "run"))
    _entry(page, "planted-1", 0).click()
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [all_reduce_run, tp_scale_run])
@with_planted_chart
def test_axe_finds_nothing_serious(
    open_page: Callable[..., Page],
    tmp_path: Path,
    make: Callable[[Path], RunFolder],
    scheme: str,
) -> None:
    page = open_page(make(tmp_path / "run"), scheme=scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    _entry(page, "planted-1", 0).click()
    page.locator(".unfold").first.click()
    page.evaluate("for (const one of document.querySelectorAll('.unfolded details')) one.open = true")
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"]) for one in serious] == []


def test_a_large_table_is_filtered_while_one_types(open_page: Callable[..., Page], tmp_path: Path) -> None:
    cases = [case(f"{number:05d}-tp{2 ** (number % 4)}", layout=f"tp{2 ** (number % 4)}") for number in range(5_000)]
    page = open_page(write_run(tmp_path / "run", cases, []))
    page.fill("#filter", "tp4 0012")
    assert page.inner_text("#shown") == "2 of 5,000 cases"
    elapsed_ms = page.evaluate(
        """() => {
            const filter = document.getElementById("filter"), start = performance.now();
            filter.value = "tp8";
            filter.dispatchEvent(new Event("input"));
            document.body.offsetHeight;
            return performance.now() - start;
        }"""
    )
    assert page.inner_text("#shown") == "1,250 of 5,000 cases"
    assert elapsed_ms < 3_000  # 300 are promised for 100,000 cases, on a machine that does nothing else
