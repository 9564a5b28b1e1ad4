from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.heatmaps import Cell, Heatmap
from clusterbench.cases.ranking import (
    DEGREES,
    Contest,
    Mfu,
    Ranking,
    best,
    configuration,
    imported_mfu,
    mfus,
    named,
    outcome,
    percent,
    share_of_peak,
    throughput,
)
from clusterbench.cases.trained import Trained
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._stories import mfu_story, speed_story
from clusterbench.drawing.panel import Area, Column, Entry, Panel, Story
from clusterbench.drawing.style import GRID, INK, LETTERS, MUTED, PALETTE, PAPER, canvas
from clusterbench.units import digits, format_value
from clusterbench.words import LEGIBLE, legible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 4
MOST_TIED = 2
_MOST_IN_A_SENTENCE = 2
_AS_EXPECTED = 0.02  # an imported MFU of three digits is that near to the recomputed one

# In inches, of letters of LETTERS points. Six columns and their figures stand on a telephone held upright.
_NARROWEST, _WIDEST, _ALL_COLUMNS = 0.82, 1.5, 4.9
_BOLD_LETTER, _LETTER, _LINE, _GAP = 0.079, 0.066, 0.145, 0.02
_HEADING, _PADDING = 0.25, 0.16
_OF_KEY, _MOST_COLOURS = 0.8, 6

_PALEST, _DEEPEST = 0.06, 0.65


class TopConfig(Chart[list[Heatmap]]):
    """The fastest configuration of each shape on each number of nodes.

    How to read it
    --------------
    A cell names the configuration with the most tokens per second of all that were tried there: the degrees of
    parallelism in use, GAS (gradient accumulation steps), MBS (micro-batch size, in sequences) and the stage of
    ZeRO; under it that figure, and how the others ended. Of several attempts the best counts, and where others are
    equally fast the cell says how many, and its table which. The deeper the colour, the higher the MFU, the share
    of the peak FLOP/s that the model's own arithmetic takes; the key says how it is counted (palm without the input
    embedding, palm_6n with it, both with the whole of attention). Where no MFU is known it is the share that is
    kept of the throughput per rank of the row's smallest size. Choose a cell for the margin over the runner-up with
    its noise, and for what every other configuration lost: a step longer by 31 %, 22 points bubble means that of
    these 31 hundredths of the fastest step, 22 are idle time in the pipeline. Ranked by tokens per second, not by
    MFU, which some conventions count differently for different layouts: a second panel shows what an imported MFU
    would choose. On CPU ranks over Gloo the picture shows the method; which layout wins there says nothing about a
    GPU cluster.
    """

    title: ClassVar[str] = "The best configuration for each shape and number of nodes"
    section: ClassVar[Section] = "comparison"

    def select(self, reading: Reading) -> list[Heatmap] | None:
        return reading.heatmaps or None

    def draw(self, data: list[Heatmap]) -> list[Panel]:
        figures = []
        for heatmap in data[:MOST]:
            figures.append(_panel(heatmap, throughput))
            if heatmap.has_imported_mfu:
                figures.append(_panel(heatmap, imported_mfu))
        return figures

    def answer(self, data: list[Heatmap]) -> str:
        parts = [said for row in data[0].rows if (said := _fastest(data[0], row))]
        if len(parts) > _MOST_IN_A_SENTENCE:
            return "\n".join([f"Fastest {'at each length' if data[0].shape else 'of each shape'}:", *parts])
        return f"Fastest: {'; '.join(parts)}." if parts else ""

    def left_out(self, data: list[Heatmap]) -> str:
        alone = sum(heatmap.num_refused_alone for heatmap in data)
        refused = f"Not drawn: {alone:,} refused for numbers of ranks on which nothing was to run." if alone else ""
        notes = [curves_note(len(data), MOST, "workloads"), refused, _without_a_figure(data[0]), *_by_mfu(data[0])]
        return " ".join(filter(None, notes))


def _fastest(heatmap: Heatmap, row: str) -> str:
    """On how many ranks a row has the most tokens per second, with which layout, and whether more ranks have fewer."""
    best_of = {size: best(heatmap.cells.get((row, size), ()), throughput) for size in heatmap.world_sizes}
    speeds = {size: throughput(fastest[0]) for size, fastest in best_of.items() if fastest}
    if not speeds:
        return ""
    top, largest = max(speeds, key=lambda size: speeds[size]), max(speeds)
    names = " or ".join(str(case.layout) for case in best_of[top])
    measured = sum(case.is_measured for case in heatmap.cells[row, top])
    place = f"{heatmap.row_in_words(row)} on {heatmap.where(top)}"
    share = share_of_peak(best_of[top][0])
    used = f", MFU {100 * share:.0f} %" if share else ""
    said = f"{place} with {names} ({format_value(speeds[top], 'tokens/s')}{used}, best of {measured}"
    if top == largest:
        return f"{said})"
    return f"{said}; {heatmap.where(largest)} reach {format_value(speeds[largest], 'tokens/s')})"


def _without_a_figure(heatmap: Heatmap) -> str:
    ends = Counter(outcome(case) for case in heatmap.trained if not case.is_measured)
    said = ", ".join(f"{number:,} {status}" for status, number in ends.items())
    return f"Of the {len(heatmap.trained):,} cases in these cells some have no figure: {said}." if ends else ""


def moved_by_mfu(heatmap: Heatmap) -> tuple[list[Cell], int]:
    """Cells of which the highest imported MFU names none of the fastest configurations, and the number of all cells."""
    pairs = {
        cell: (best(cases, throughput), best(cases, imported_mfu))
        for cell, cases in heatmap.cells.items()
        if best(cases, throughput) and best(cases, imported_mfu)
    }
    moved = [
        cell
        for cell, (fastest, highest) in pairs.items()
        if not {*map(configuration, fastest)} & {*map(configuration, highest)}
    ]
    return moved, len(pairs)


def mfu_ratios(heatmap: Heatmap) -> dict[tuple[str, bool], float]:
    """Imported over recomputed MFU, the median for each row without and with pipeline stages."""
    ratios_of: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for (row, _), cases in heatmap.cells.items():
        for case in cases:
            if ratio := case.value("mfu_over_recomputed"):
                ratios_of[row, case.layout.pp > 1].append(ratio)
    return {key: median(ratios) for key, ratios in ratios_of.items()}


def _by_mfu(heatmap: Heatmap) -> Iterator[str]:
    """What ranking by the imported MFU would change, and why."""
    moved, number = moved_by_mfu(heatmap)
    if not number:
        return
    yield f"Ranked by the imported MFU instead, {len(moved)} of {number} cells name another layout or micro-batch."
    ratios = mfu_ratios(heatmap)
    unlike = {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > _AS_EXPECTED}
    if unlike:
        words = (
            f"{ratio:.3f} for {row}{' with pp > 1' if has_stages else ' without pp'}"
            for (row, has_stages), ratio in unlike.items()
        )
        rest = {f"{ratio:.2f}" for key, ratio in ratios.items() if key not in unlike}
        others = f", and {' to '.join(dict.fromkeys((min(rest), max(rest))))} for all others" if rest else ""
        yield (
            f"The imported MFU does not follow from throughput alone: over the MFU recomputed from it, it is "
            f"{', '.join(words)}{others}."
        )


# What stands in a cell


@dataclass(frozen=True)
class Words:
    """The text of one cell: its configuration in bold, its figures, and how the others ended."""

    upper: tuple[str, ...]
    figures: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def height(self) -> float:
        """In inches."""
        return _LINE * len((*self.upper, *self.figures, *self.notes)) + 2 * _GAP + _PADDING


@dataclass(frozen=True)
class Shade:
    """What the colour says: a share for each cell with a figure, and how it is counted."""

    name: str
    key: str
    of_cells: Mapping[Cell, float]
    mfu: Mfu | None = None

    def depth(self, share: float) -> float:
        return _PALEST + (_DEEPEST - _PALEST) * share / max(self.of_cells.values())


def _shade(heatmap: Heatmap, tops: Mapping[Cell, Sequence[Trained]], figure: Ranking) -> Shade:
    """MFU where every cell with a figure has one that is counted alike; otherwise the kept throughput per rank."""
    if figure is imported_mfu:
        return Shade("MFU", "MFU (as imported)", {cell: imported_mfu(top[0]) for cell, top in tops.items()})
    known = {cell: mfus(top[0]) for cell, top in tops.items()}
    common = set.intersection(*(set(shares) for shares in known.values())) if known else set()
    if common:
        kind = min(common, key=lambda kind: kind.preference)
        return Shade("MFU", f"MFU ({kind.words})", {cell: shares[kind] for cell, shares in known.items()}, kind)
    per_rank = {cell: throughput(top[0]) / cell[1] for cell, top in tops.items()}
    # More ranks keep of what the fewest reach; a row whose larger sizes gain from smaller shares is above 100 %.
    fewest = {row: min(size for of_row, size in per_rank if of_row == row) for row, _ in per_rank}
    key = f"throughput per {heatmap.noun}, of what the row's smallest size reaches; an MFU is not known of every cell"
    kept = {(row, size): speed / per_rank[row, fewest[row]] for (row, size), speed in per_rank.items()}
    return Shade("keeps", key, kept)


def _words(cases: Sequence[Trained], tops: Sequence[Trained], shade: str, figure: Ranking, wide: float) -> Words:
    bold, plain = (int((wide - 0.06) / letter) for letter in (_BOLD_LETTER, _LETTER))
    lost = Counter(outcome(case) for case in cases if not case.is_measured).most_common(2)
    ends = [line for status, number in lost for line in _wrapped(f"× {number} {status}", plain)]
    if not tops:
        return Words((), (), tuple(ends))
    upper: list[str] = []
    upper += _short(tops[0], bold)
    if len(tops) > 1:
        upper += _wrapped(f"or {len(tops) - 1} as fast", bold)
    figures = [digits(throughput(tops[0])), shade] if figure is throughput else [shade]
    return Words(tuple(upper), tuple(figures), (f"best of {sum(case.is_measured for case in cases)}", *ends))


def _short(case: Trained, letters: int) -> list[str]:
    """``DP4 TP2``, ``PP2``, ``GAS 8 MBS 2``, ``ZeRO-1``: the degrees in use, in lines of so many letters."""
    layout = case.layout
    degrees = [f"{axis.upper()}{layout.degree(axis)}" for axis in DEGREES if layout.uses(axis)]
    degrees = [f"{degree}+SP" if layout.sp and degree.startswith("TP") else degree for degree in degrees]
    _, micro_batch_size, steps = configuration(case)
    batch = [f"GAS\u00a0{steps}"] if steps else []
    batch += [f"MBS\u00a0{micro_batch_size}"] if micro_batch_size else []
    batch += [f"ZeRO-{layout.zero}"] if layout.zero else []
    lines = [*_wrapped(" ".join(degrees or ["1 rank"]), letters), *_wrapped(" ".join(batch), letters)]
    return [line.replace("\u00a0", " ") for line in lines]


def _wrapped(text: str, letters: int) -> list[str]:
    return wrap(text, letters, break_long_words=False, break_on_hyphens=False)


# The picture


Making = Callable[[Cell, Sequence[Trained], Shade, Words | None, Area], Entry]
"""Makes the line of a cell, given the best there, the colours, the text and where it stands."""


def _panel(heatmap: Heatmap, figure: Ranking) -> Panel:
    return heatmap_panel(
        heatmap,
        figure,
        _title(heatmap, figure),
        lambda shade: _columns(heatmap, figure, shade),
        lambda cell, tops, shade, words, area: _entry(heatmap, cell, tops, figure, shade, words, area),
    )


def heatmap_panel(
    heatmap: Heatmap, figure: Ranking, heading: str, columns: Callable[[Shade], tuple[Column, ...]], entry: Making
) -> Panel:
    """The picture of what is best by a figure, and its table by ``columns`` and ``entry``."""
    sizes = heatmap.world_sizes
    tops = {cell: top for cell, cases in heatmap.cells.items() if (top := best(cases, figure))}
    shade = _shade(heatmap, tops, figure)
    wide = min(_WIDEST, max(_NARROWEST, _ALL_COLUMNS / len(sizes)))
    words = {
        cell: _words(
            cases,
            tops.get(cell, ()),
            f"{shade.name} {percent(shade.of_cells[cell])}" if cell in tops else "",
            figure,
            wide,
        )
        for cell, cases in heatmap.cells.items()
    }
    tall = max(said.height for said in words.values())
    width, height = max(3.8, wide * len(sizes)), (tall + _HEADING) * len(heatmap.rows)
    title = "\n".join(wrap(heading, int(width / 0.092))[:3])
    key = wrap(f"Colour: {shade.key}", min(LEGIBLE, int(width / _LETTER))) if shade.of_cells else []
    in_line = int(width / _OF_KEY)  # colours of the key
    more_lines = title.count("\n") + max(0, len(key) - 1) + (in_line < _MOST_COLOURS)
    drawn, axes = canvas(title, width=width + 0.15, height=height + 1.35 + 0.16 * more_lines)
    entries: list[Entry] = []
    y = 0.0
    for row in heatmap.rows:
        axes.text(-0.47, y + 0.17, row, ha="left", va="center", fontsize=LETTERS, color=INK, fontweight="bold")
        y += _HEADING
        for column, size in enumerate(sizes):
            cell, area = (row, size), (column - 0.5, y + tall, column + 0.5, y)
            share = shade.of_cells.get(cell)
            _cell(axes, area, words.get(cell), None if share is None else shade.depth(share))
            entries.append(entry(cell, tops.get(cell, ()), shade, words.get(cell), area))
        y += tall
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(y, 0)
    nouns = f"{heatmap.noun}s"
    if heatmap.num_nodes:
        axes.set_xticks(range(len(sizes)), [f"{heatmap.num_nodes[size]}\n{size} {nouns}" for size in sizes])
        axes.set_xlabel("nodes")
    else:
        axes.set_xticks(range(len(sizes)), [f"{size}" for size in sizes])
        axes.set_xlabel(nouns)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(False)
    _key(
        drawn,
        shade,
        key,
        in_line,
        has_empty=len(tops) < len(heatmap.cells),
        has_untried=len(heatmap.cells) < len(entries),
    )
    return Panel(drawn, columns(shade), tuple(entries))


def _title(heatmap: Heatmap, figure: Ranking) -> str:
    what = "Fastest configuration, tokens/s" if figure is throughput else "Highest imported MFU"
    return ", ".join(filter(None, [what, heatmap.shape, legible(heatmap.name, 100)]))


def _cell(axes: Axes, area: Area, words: Words | None, depth: float | None) -> None:
    from matplotlib.patches import Rectangle

    left, bottom, right, top = area
    colour, alpha = (PALETTE[0], depth) if depth is not None else (PAPER, 1.0) if words else (GRID, 0.6)
    axes.add_patch(
        Rectangle((left, top), 1, bottom - top, facecolor=colour, alpha=alpha, edgecolor=GRID, linewidth=1.0)
    )
    middle = (left + right) / 2
    if words is None:
        axes.text(middle, (top + bottom) / 2, "not tried", ha="center", va="center", fontsize=LETTERS, color=MUTED)
        return
    y = top + _PADDING / 2
    for lines, weight, ink in (
        (words.upper, "bold", INK),
        (words.figures, "normal", INK),
        (words.notes, "normal", MUTED if depth is None else INK),
    ):
        if lines:
            axes.text(
                middle, y, "\n".join(lines), ha="center", va="top", fontsize=LETTERS, color=ink, fontweight=weight,
                linespacing=1.2,
            )  # fmt: skip
        y += _LINE * len(lines) + (_GAP if lines else 0.0)


def _key(
    drawn: Figure, shade: Shade, words: Sequence[str], in_line: int, *, has_empty: bool, has_untried: bool
) -> None:
    """What the colours say, with a few of them."""
    from matplotlib.patches import Patch

    patches, names = [], []
    if shade.of_cells:
        most = max(shade.of_cells.values())
        for part in (0.25, 0.5, 0.75, 1.0):
            patches.append(Patch(facecolor=PALETTE[0], alpha=shade.depth(part * most), edgecolor=GRID))
            names.append(percent(part * most))
    if has_empty:
        patches.append(Patch(facecolor=PAPER, edgecolor=GRID))
        names.append("no figure")
    if has_untried:
        patches.append(Patch(facecolor=GRID, alpha=0.6, edgecolor=GRID))
        names.append("not tried")
    legend = drawn.legend(
        patches, names, loc="outside lower left", ncols=min(in_line, len(patches)), frameon=False, fontsize=LETTERS,
        handlelength=1.1, handleheight=0.9, columnspacing=0.9, handletextpad=0.4, labelcolor=INK, alignment="left",
        title="\n".join(words) or None,
        title_fontsize=LETTERS,
    )  # fmt: skip
    legend.get_title().set_color(MUTED)


# What is behind a cell


def _columns(heatmap: Heatmap, figure: Ranking, shade: Shade) -> tuple[Column, ...]:
    share = "imported MFU" if figure is imported_mfu else "MFU" if shade.mfu else "throughput kept"
    return (
        Column("sequences" if heatmap.shape else "shape"),
        *([Column("nodes", "1")] if heatmap.num_nodes else []),
        Column(f"{heatmap.noun}s", "1"),
        Column("best"),
        Column("throughput", "tokens/s"),
        Column(share, "fraction"),
        Column("runner-up longer by", "fraction"),
        Column("note"),
    )


def _entry(
    heatmap: Heatmap,
    cell: Cell,
    tops: Sequence[Trained],
    figure: Ranking,
    shade: Shade,
    words: Words | None,
    area: Area,
) -> Entry:
    row, world_size = cell
    nodes: tuple[float, ...] = (heatmap.num_nodes[world_size],) if heatmap.num_nodes else ()
    contest = Contest(heatmap.cells.get(cell, ()), heatmap.histories)
    margin = contest.margin if figure is throughput else None
    cells = (
        row,
        *nodes,
        float(world_size),
        " or ".join(map(named, tops[:MOST_TIED])),
        (throughput(tops[0]) or None) if tops else None,
        shade.of_cells.get(cell),
        margin.longer_by if margin is not None and isfinite(margin.longer_by) else None,
        "not tried" if words is None else " ".join(words.notes).replace(" × ", ", × "),
    )
    return Entry(cells, tops[0].row.case if tops else "", area, _story(heatmap, cell, contest, figure, shade))


def _story(heatmap: Heatmap, cell: Cell, contest: Contest, figure: Ranking, shade: Shade) -> Story | None:
    if not contest.cases:
        return None
    row, world_size = cell
    title = f"{heatmap.row_in_words(row)} on {heatmap.where(world_size)}"
    if figure is imported_mfu:
        return mfu_story(f"{title}, by imported MFU", contest.cases)
    return speed_story(title, contest, shade.mfu, heatmap.noun)
