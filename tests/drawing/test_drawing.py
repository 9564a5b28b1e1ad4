import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from clusterbench.drawing.bars import Bars
from clusterbench.drawing.lines import Lines, Mark, Series
from clusterbench.drawing.panel import Panel
from clusterbench.drawing.spans import Span, spans
from clusterbench.drawing.style import INK, LETTERS, MUTED, PALETTE, PAPER, WORDS, canvas
from clusterbench.drawing.svg import svg
from clusterbench.report.template import css


def picture(name: str = "chart-0") -> str:
    series = [Series("TP", (Mark(1, 5.0, 4.0, 6.0), Mark(2, None, status="out_of_memory"), Mark(4, 0.0012)))]
    return svg(
        Lines("Title & more", series, "s", {1: "tp1", 2: "tp2", 4: "tp4"}, x_label="degree").panel(), name, 'a "label"'
    )


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert picture() == picture()


def test_ids_are_unique_in_a_page_and_every_reference_is_met() -> None:
    page = picture("first") + picture("second")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', page)) <= set(ids)


def test_colours_are_those_of_the_page_around_it() -> None:
    drawn = picture()
    assert f"var(--ink, {INK})" in drawn
    assert f"var(--series-0, {PALETTE[0]})" in drawn


def test_it_fetches_nothing_and_says_what_it_is() -> None:
    drawn = picture()
    assert drawn.startswith("<svg ")
    assert 'aria-label="a &quot;label&quot;"' in drawn
    assert set(re.findall(r"https?://[^\"]+", drawn)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_a_figure_says_what_it_shows_to_who_does_not_see_it() -> None:
    bars = Bars("Peak", ["tp1", "tp2", "tp4"], {"a": [20.0 * 2**20, 40.0 * 2**20, None]}, "B", missing={2: "timeout"})
    assert bars.panel().summary == "Peak. 3 entries: bar tp1 and 2 more; a 20MiB to 40MiB; outcome timeout"
    many = Bars("Peak", [f"<tp{number}>" for number in range(9)], {"a": [2.0**20] * 9}, "B").panel()
    assert many.summary == "Peak. 9 entries: bar <tp0> and 8 more; a 1MiB"
    drawn = svg(many, "chart-0", "l")
    assert ' aria-describedby="chart-0-shows"><desc id="chart-0-shows">Peak. 9 entries: bar &lt;tp0&gt; and' in drawn


def test_figures_in_text_keep_their_digits() -> None:
    series = [Series("a", (Mark(1, 0.00123456), Mark(2, 0.00123456)))]
    assert ">0.123%" not in svg(Lines("t", series, "fraction", {1: "1", 2: "2"}, x_label="x").panel(), "n", "l")
    assert ">0.123<" in svg(Lines("t", series, "fraction", {1: "1", 2: "2"}, x_label="x").panel(), "n", "l")


def test_figures_stand_clear_of_the_intervals_at_their_points() -> None:
    upper, lower = Mark(1, 50.0, 46.0, 54.0), Mark(1, 40.0, 36.0, 44.0)
    lines = Lines("t", [Series("a", (upper, Mark(2, 60.0))), Series("b", (lower,))], "s", {1: "1", 2: "2"}, x_label="x")
    figure = lines.panel().figure
    svg(Panel(figure, (), ()), "n", "l")  # lays it out
    (axes,) = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert boxes["50"].ymin > axes.transData.transform((0, 54))[1]
    assert boxes["40"].ymax < axes.transData.transform((0, 36))[1]


def test_a_gap_is_marked_with_how_the_case_ended() -> None:
    assert ">out of memory<" in picture()


def test_a_long_title_over_bars_with_long_names_ends_within_the_picture() -> None:
    title = "Throughput per rank on 64 ranks\nglobal batch size 256, shape nanotron-llama-1B, 8 nodes"
    label = "pp2-dp2-tp2+zero1, micro batch size 16, recompute selective"
    figure = Bars(title, [label], {"": [1.0]}, "tokens/s").panel().figure
    svg(Panel(figure, (), ()), "n", "l")  # lays it out
    heading = next(text for text in figure.findobj(Text) if text.get_text().startswith("Throughput"))
    assert " ".join(heading.get_text().split()) == " ".join(title.split())
    assert "nanotron-llama-1B" in heading.get_text()  # in one piece
    assert heading.get_window_extent().x1 <= 72 * figure.get_figwidth()


def test_crosses_of_a_panel_stand_at_one_height_at_its_foot_unless_a_curve_passes_there() -> None:
    """Of tp1 and tp2, both out of memory, one had its cross at the foot and one at the top."""

    def heights(*others: Mark) -> list[float]:
        gaps = [Mark(x, None, status="out_of_memory") for x in (1, 2)]
        series = [Series("TP", (*gaps, Mark(4, 1.0), Mark(8, 3.0))), Series("SP", others)]
        axes = Lines("t", series, "s", {x: f"tp{x}" for x in (1, 2, 4, 8)}, x_label="x").panel().figure.axes[0]
        return [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if line.get_marker() == "x"]

    assert heights(Mark(4, 0.5)) == [0.04, 0.04]
    assert heights(Mark(1, 0.2), Mark(4, 0.5)) == [0.95, 0.95]
    assert heights(Mark(1, 3.0), Mark(4, 3.1)) == [0.04, 0.04]


@pytest.mark.parametrize(("basis", "name"), [("at most; the peak", "expected at most"), ("a price", "expected")])
def test_a_bound_is_called_so_in_table_and_tooltip_as_below_the_axes(basis: str, name: str) -> None:
    """A point told 'expected 46,236' beside 15,658, of a bound that no step reaches."""
    series = [Series("TP", (Mark(1, 5.0, expected=9.0, basis=basis), Mark(2, 4.0)))]
    panel = Lines("t", series, "s", {1: "tp1", 2: "tp2"}, x_label="x").panel()
    assert [column.name for column in panel.columns][-2] == name
    assert f"◇ {name}" == panel.figure.get_supxlabel()


@pytest.mark.parametrize("many", [2, 12, 31])
def test_names_at_the_ends_do_not_touch_steep_curves(many: int) -> None:
    """Of 31 sizes the last marker of send_recv stood against the first letter of its name."""
    marks = tuple(Mark(2.0**n, 1e-5 * 2.0**n) for n in range(many))
    series = [Series(name, marks) for name in ("send_recv, 8 ranks", "send_recv, 16 ranks")]
    panel = Lines("t", series, "s", {mark.x: str(mark.x) for mark in marks}, x_label="x", logarithmic=True).panel()
    panel.figure.canvas.draw()
    axes = panel.figure.axes[0]
    names = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("send")]
    last, _ = axes.transData.transform((many - 1, 1.0))
    assert all(72 * (name.x0 - last) / panel.figure.dpi > 10 for name in names)  # a marker has 6


def test_a_bar_names_its_total_and_one_that_is_missing_its_reason() -> None:
    drawn = svg(
        Bars(
            "Memory", ["tp1", "tp2"], {"a": [2.0**20, None], "b": [2.0**20, None]}, "B", missing={1: "timeout"}
        ).panel(),
        "n",
        "l",
    )
    assert ">2<" in drawn
    assert ">× timeout<" in drawn


@pytest.mark.parametrize("factor", [1.0, 3.0, 7.0, 30.0, 1e4])
def test_a_logarithmic_axis_holds_low_and_high_and_has_two_ticks(factor: float) -> None:
    for start in (1.01, 2.1, 5.3, 9.7):
        marks = Mark(1, start * factor, start, start * factor), Mark(2, start * factor)
        lines = Lines("t", [Series("a", marks)], "1", {1: "1", 2: "2"}, x_label="x", logarithmic=True)
        (axes,) = lines.panel().figure.axes
        bottom, top = axes.get_ylim()
        assert bottom < start <= start * factor < top
        assert sum(bottom <= tick <= top for tick in axes.get_yticks()) >= 2


def test_on_an_axis_of_many_decades_each_tick_has_its_own_unit() -> None:
    def labels(least: float) -> tuple[str, list[str]]:
        marks = Mark(1, least), Mark(2, 2e9)
        series = [Series("a", marks)]
        figure = Lines("t", series, "B/s", {1: "1", 2: "2"}, x_label="x", logarithmic=True).panel().figure
        (axes,) = figure.axes
        bottom, top = axes.get_ylim()
        ticks = [tick for tick in axes.get_yticks() if bottom <= tick <= top]
        return axes.get_ylabel(), [axes.yaxis.get_major_formatter()(tick, 0) for tick in ticks]

    assert labels(2e4) == ("", ["100 kB/s", "1 MB/s", "10 MB/s", "100 MB/s", "1 GB/s"])
    assert labels(2e7) == ("GB/s", ["0.1", "1"])


def _axis(sizes: list[float], name: str = "{:.0f}") -> tuple[list[float], list[str]]:
    """Where points of these sizes stand, and the labels at the axis."""
    series = [Series("a", tuple(Mark(size, 1.0) for size in sizes))]
    (axes,) = Lines("t", series, "s", {size: name.format(size) for size in sizes}, x_label="x").panel().figure.axes
    return list(axes.lines[0].get_xdata()), [label.get_text() for label in axes.get_xticklabels()]


def test_points_stand_as_far_apart_as_the_logarithms_of_their_sizes() -> None:
    assert _axis([1, 2, 4, 8]) == ([0, 1, 2, 3], ["1", "2", "4", "8"])
    assert _axis([1, 2, 16]) == ([0, 0.5, 2], ["1", "2", "16"])
    assert _axis([0, 1, 16])[0] == [0, 1, 2]  # a size of 0 has no logarithm
    assert _axis([5])[0] == [0]


def test_labels_that_would_overlap_are_left_out() -> None:
    assert _axis([1000, 1001, 4000], "{:.0f}KiB")[1] == ["1000KiB", "4000KiB"]
    assert _axis([1, 1000, 1001, 1002])[1] == ["1", "1002"]
    assert len(_axis([2.0**number for number in range(28)], "{:.2g}")[1]) <= 10


@pytest.mark.parametrize(
    "name", ["link", "send_recv at its best, 16 nodes", "GPU link, data sheet, one direction of all"]
)
def test_labels_have_room_beside_long_names_at_the_ends_of_curves(name: str) -> None:
    """Beside 'send_recv at its best, 4 nodes' the sizes of an axis ran into each other."""
    ticks = {2.0 ** (3 * number): f"{2 ** (3 * number % 10)}{'Bkmg'[3 * number // 10]}iB" for number in range(12)}
    curve = Series("all_reduce", tuple(Mark(size, size) for size in ticks))
    lines = Lines("t", [curve, replace(curve, name="b")], "B/s", ticks, "size", logarithmic=True, levels={name: 2e9})
    figure = lines.panel().figure
    figure.draw_without_rendering()
    labels = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(labels) > 2
    assert all(left.x1 < right.x0 for left, right in pairwise(labels))


def test_a_point_on_other_hosts_is_hollow_and_said() -> None:
    stayed = (Mark(1, 5.0, world_size=2, hosts="cb1 cb2"), Mark(2, 4.0, world_size=4, hosts="cb1 cb2 cb3"))
    went = (stayed[0], Mark(2, 4.0, world_size=4, hosts="cb3 cb4"))
    drawn = [
        svg(Lines("t", [Series("a", marks)], "s", {1: "1", 2: "2"}, x_label="x").panel(), "n", "l")
        for marks in (stayed, went)
    ]
    assert "hollow" not in drawn[0]
    assert ">hollow: 4 ranks ran on cb3, cb4, the smaller ones on cb1, cb2<" in drawn[1]
    assert drawn[1].count("<use ") == drawn[0].count("<use ") + 1


def test_what_diamonds_are_is_said_below_the_axes() -> None:
    bound = Mark(1, 5.0, expected=9.0, basis="at most; the peak")
    formula = Mark(2, 4.0, expected=4.0, basis="bytes of the layout")
    ticks = {1: "1", 2: "2"}
    bounds, mixed, bare = [
        svg(Lines("t", [Series("a", marks)], "s", ticks, x_label="x").panel(), "n", "l")
        for marks in ((bound,), (bound, formula), (Mark(1, 5.0),))
    ]
    assert ">◇ expected at most<" in bounds
    assert ">◇ expected<" in mixed
    assert "◇" not in bare


def test_a_panel_is_a_table_of_what_it_shows_and_each_entry_has_its_place() -> None:
    marks = (Mark(1, 0.002, 0.001, 0.003, case="a"), Mark(2, None, status="out_of_memory", case="b"))
    panel = Lines("Time", [Series("TP", marks)], "s", {1: "tp1", 2: "tp2"}, x_label="degree").panel()
    assert [panel.words(entry) for entry in panel.entries] == [
        "TP; tp1; value 2.000 ms; low 1.000 ms; high 3.000 ms",
        "TP; tp2; out of memory",
    ]
    assert [entry.case for entry in panel.entries] == ["a", "b"]
    (place,) = re.findall(r'<rect data-entry="0" x="([\d.]+)" y="([\d.]+)" width="12.0" height="12.0"', drawn(panel))
    markers = [[float(x), float(y)] for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', drawn(panel))]
    assert any([float(at) + 6 for at in place] == pytest.approx(marker, abs=0.1) for marker in markers)
    assert 'data-entry="1"' not in drawn(panel)


def test_a_bar_and_a_span_are_hit_where_they_are_drawn() -> None:
    held = Bars("Memory", ["tp1"], {"a": [2.0], "b": [None]}, "B", markers=[3.0], cases=["one"]).panel()
    ran = spans("Step", ["stage 0"], [Span(0, 1.0, 2.0, "F")], {"F": "forward"}, "two")
    assert [held.words(entry) for entry in held.entries] == ["tp1; a 2B; sum 2B; formula 3B"]
    assert [ran.words(entry) for entry in ran.entries] == [
        "stage 0; forward; start 1.000 s; end 2.000 s; duration 1.000 s"
    ]
    for panel, case in ((held, "one"), (ran, "two")):
        assert [entry.case for entry in panel.entries] == [case]
        assert re.search(r'<rect data-entry="0" [^>]+><title>', drawn(panel))


def test_what_is_said_of_a_place_is_text_and_short() -> None:
    panel = Lines(
        "t", [Series('<b>"' + "x" * 9999, (Mark(1, 1.0), Mark(2, 1.0)))], "s", {1: "1", 2: "2"}, x_label="x"
    ).panel()
    assert "<b>" not in drawn(panel)
    assert len(drawn(panel)) < 20_000


def drawn(panel: Panel) -> str:
    return svg(panel, "n", "l")


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_colour_of_a_chart_stands_out_of_the_paper_by_day_and_by_night() -> None:
    by_day, by_night = re.findall(r"--paper: (#\w{6}).*?--series-0(.*?)--words", css(), re.DOTALL)[:2]
    assert re.findall(r"#\w{6}", by_day[1]) == [*PALETTE]
    for paper, series in (by_day, by_night):
        for colour in re.findall(r"#\w{6}", series):
            assert contrast(paper, colour) >= 3, colour


def test_words_in_the_colours_of_a_chart_are_read_by_day_and_by_night() -> None:
    on_screen, _ = css().split("@media print")
    papers = dict(zip(("day", "night"), re.findall(r"--paper: (#\w{6})", on_screen), strict=True))
    assert all(contrast(papers["day"], colour) >= 4.5 for colour in WORDS)
    day = dict(re.findall(r"--words-(\d): (#\w{6})", on_screen))
    assert day == {str(number): colour for number, colour in enumerate(WORDS) if colour != PALETTE[number]}
    night = dict(re.findall(r"--words-(\d): var\(--series-(\d)\)", on_screen))
    assert night == {number: number for number in day}
    at_night = re.findall(r"--series-\d: (#\w{6})", on_screen)[len(PALETTE) :]
    assert all(contrast(papers["night"], colour) >= 4.5 for colour in at_night)


def test_no_word_of_a_figure_is_in_a_colour_too_faint_to_read() -> None:
    """But for those with a box of a legend of their own, which are in ink."""
    ticks = {1: "1", 2: "2"}
    curves = [Series(f"curve {number}", (Mark(1, 1.0 + number), Mark(2, None, status="failed"))) for number in range(8)]
    few = [Series(name, (Mark(1, 1.0), Mark(2, 2.0))) for name in ("a", "b")]
    panels = [
        Lines("t", curves, "s", ticks, x_label="x").panel(),
        Lines("t", few, "s", ticks, x_label="x").panel(),
        Bars("t", ["a"], {"b": [1.0], "c": [2.0]}, "B", missing={}, limit=("capacity", 5.0)).panel(),
        spans("t", ["stage 0"], [Span(0, 0.0, 1.0, "F")], {"F": "forward"}),
    ]
    for panel in panels:
        words = [text for text in panel.figure.findobj(Text) if text.get_text()]
        assert words
        for text in words:
            assert contrast(PAPER, to_hex(text.get_color())) >= 4.5, text.get_text()
            assert to_hex(text.get_color()) in (INK, MUTED, *WORDS), (
                text.get_text()
            )  # the page has them by night as well
            assert text.get_fontsize() >= LETTERS, text.get_text()


def test_a_long_name_of_a_bar_takes_two_lines_and_not_the_width_of_the_page() -> None:
    name = "pp2-dp2-cp2-tp2+sp+ep4+zero1, 1f1b, zigzag, balanced, moe-flat-tiny, gbs 8"
    panel = Bars("Memory", ["dp8", name], {"a": [1.0, 2.0]}, "B").panel()
    assert panel.figure.get_figwidth() < 6.4  # two stand beside each other on a page of 1,248 pixels
    lines = panel.figure.axes[0].get_yticklabels()[1].get_text().splitlines()
    assert lines == ["pp2-dp2-cp2-tp2+sp+ep4+zero1, 1f1b, zigzag,", "balanced, moe-flat-tiny, gbs 8"]
    assert panel.entries[1].cells[0] == name


def test_a_long_title_over_a_narrow_figure_ends_within_it() -> None:
    figure, axes = canvas("Load of each rank\ndp4-cp2+ep8+zero1, full recompute, ring, real, gbs 8", 3.4, 2.0)
    axes.set_yticks([0], ["rank 15"])
    svg(Panel(figure, (), ()), "n", "l")  # lays it out
    assert len(axes.get_title(loc="left").splitlines()) == 3
    (heading,) = (text for text in figure.findobj(Text) if text.get_text().startswith("Load of"))
    assert heading.get_window_extent().x1 <= 72 * figure.get_figwidth()
    assert figure.get_figheight() > 2.0
