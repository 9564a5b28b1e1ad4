"""The page in a real browser: the system's chromium, through playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from clusterbench.report import render_report
from clusterbench.run_directory import RunDirectory
from tests.report.synthetic import all_reduce_run, case, good_run, plant, tp_scale_run

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a report, and fails the test on whatever the browser complains of or asks the network for."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "chromium is not installed: apt-get install --no-install-recommends chromium"
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)

        def open_page(run: RunDirectory, width: int = 1280, scheme: str = "light", javascript: bool = True) -> Page:
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,  # type: ignore[arg-type]
                java_script_enabled=javascript,
            )
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: complaints.append(request.url) if _leaves(request.url) else None)
            page.goto(render_report(run).path.as_uri())
            return page

        yield open_page
        browser.close()
    assert complaints == []


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
    page.select_option("#outcome", "out_of_memory")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(open_page: Callable[..., Page], tmp_path: Path, width: int, scheme: str) -> None:
    page = open_page(tp_scale_run(tmp_path / "run"), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_dark_is_dark(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(good_run(tmp_path / "run"), scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 30)"


def test_without_javascript_verdict_findings_charts_and_cases_are_there(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_page(all_reduce_run(tmp_path / "run"), javascript=False)
    assert page.locator(".verdict.fail").is_visible()
    assert page.locator("#findings .finding.error").is_visible()
    assert page.locator("#charts svg").count() == 2
    assert len(_first_column(page)) == 26
