"""The fastest layouts by their prices as one self-contained page: a heatmap as a run's, of which nothing was run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from clusterbench.cases.heatmaps import Cell, Heatmap
from clusterbench.cases.ranking import throughput
from clusterbench.cases.trained import Trained
from clusterbench.charts.top_config import Shade, Words, heatmap_panel
from clusterbench.drawing.panel import Area, Column, Entry, Panel
from clusterbench.drawing.svg import svg
from clusterbench.layout import ParallelLayout
from clusterbench.own_copy import version
from clusterbench.pricing import advise_verb, spent
from clusterbench.pricing.advice import Candidate, order_words
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.top_layouts import TopLayouts
from clusterbench.report.glossary import glossary, words_in
from clusterbench.report.template import css, template
from clusterbench.rows import Row
from clusterbench.words import few

_HERE = Path(__file__).parent
_TITLE = "Fastest layout by price, tokens/s; nothing was measured"
_MOST_ALIKE = 3
_COLUMNS = (
    Column("model"),
    Column("nodes", "1"),
    Column("GPUs", "1"),
    Column("fastest by price"),
    Column("tokens/s", "tokens/s"),
    Column("80 % from", "tokens/s"),
    Column("to", "tokens/s"),
    Column("MFU", "fraction"),
    Column("memory of the fullest GPU", "B"),
    Column("in the card"),
    Column("as fast"),
    Column("price goes to (%)"),
    Column("never held against a measurement"),
)


def predicted_page(found: Sequence[advise_verb.Heatmap]) -> str:
    """The page as HTML: a heatmap and its table for each network, and above each by which rates."""
    first = found[0].cells[0].question
    panels = [_panel(heatmap) for heatmap in found]
    return template(_HERE / "predicted.html").render(
        card=first.card.nvml_names[0],
        batch=f"{first.global_batch_size:,} sequences of {first.seq_len:,} tokens a step",
        gpus_per_node=first.gpus_per_node,
        heatmaps=[
            {
                "said": _sentences(heatmap.head),
                "picture": Markup(svg(panel, f"heatmap-{number}", _TITLE)),
                "width": panel.width,
                "heads": [column.name for column in panel.columns],
                "lines": [
                    [column.text(cell) for column, cell in zip(panel.columns, entry.cells, strict=True)]
                    for entry in panel.entries
                ],
            }
            for number, (heatmap, panel) in enumerate(zip(found, panels, strict=True))
        ],
        words_in=lambda markup: words_in(markup, glossary()),
        version=version(),
        css=css(),
    )


def _sentences(head: Sequence[str]) -> list[str]:
    """What the terminal says as comments, each remark in one piece: its further lines begin with more blanks."""
    said: list[str] = []
    for line in head:
        words = line.removeprefix("#")
        if words.startswith("  ") and said:
            said[-1] += f" {words.strip()}"
        else:
            said.append(words.strip())
    return said


def _panel(found: advise_verb.Heatmap) -> Panel:
    by_cell = {(cell.question.shape.name, cell.question.world_size): cell for cell in found.cells}
    heatmap = Heatmap("", {name: _as_cases(cell) for name, cell in by_cell.items()})

    def entry(name: Cell, tops: Sequence[Trained], shade: Shade, words: Words | None, area: Area) -> Entry:
        return Entry(_cells(by_cell[name]), "", area)

    return heatmap_panel(heatmap, throughput, _TITLE, lambda shade: _COLUMNS, entry)


def _as_cases(cell: TopLayouts) -> list[Trained]:
    """In the words of a heatmap that was run: prices stand where figures would."""
    if cell.ranked:
        return [_as_case(cell, each) for each in cell.ranked]
    row = _row(cell, "not fitting" if cell.tried else "refused")
    return [Trained(row, ParallelLayout(dp=cell.question.world_size))] * max(1, cell.tried)


def _as_case(cell: TopLayouts, candidate: Candidate) -> Trained:
    job = candidate.priced.job
    point = {
        "layout": str(candidate.layout),
        "micro_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
    }
    row = _row(cell, "ok")._replace(case=candidate.words, point=point, value=_tokens_per_s(cell, candidate.step_s))
    figures: dict[tuple[str, ...], Row] = {("tokens_per_s",): row}
    if (mfu := cell.mfu(candidate)) is not None:
        detail = {"flops_convention": "palm", "peak": "datasheet"}
        figures["mfu", "palm"] = row._replace(metric="mfu", unit="fraction", value=mfu, detail=detail)
    return Trained(row, candidate.layout, figures)


def _row(cell: TopLayouts, status: str) -> Row:
    of = cell.question
    return Row(
        run="",
        case="",
        benchmark="train_step",
        version=0,
        status=status,
        point={},
        num_nodes=of.num_nodes,
        world_size=of.world_size,
        hosts="",
        device="cuda",
        metric="tokens_per_s",
        unit="tokens/s",
        value=None,
    )


def _as_fast(ranked: Sequence[Candidate]) -> list[str]:
    """Those whose price does not tell them from the first's."""
    first, *others = ranked
    return [other.words for other in others if order_words(first.step_s, other.step_s) == "as fast"]


def _tokens_per_s(cell: TopLayouts, step_s: float) -> float:
    """Of all GPUs together."""
    return cell.question.global_batch_size * cell.question.seq_len / step_s


def _cells(cell: TopLayouts) -> tuple[str | float | None, ...]:
    of = cell.question
    where = of.shape.name, float(of.num_nodes), float(of.world_size)
    if cell.price is None:
        why = f"none of {cell.tried} forms fits" if cell.tried else "no layout is legal"
        return *where, why, *[None] * 5, "", "", "", ""
    first = cell.ranked[0]
    return (
        *where,
        first.words,
        *(_tokens_per_s(cell, seconds) for seconds in (first.step_s, cell.price.high_s, cell.price.low_s)),
        cell.mfu(first),
        first.memory_bytes,
        first.fits,
        few(_as_fast(cell.ranked), _MOST_ALIKE, "; "),
        spent(cell.price.parts),
        ", ".join(not_validated(first.priced)),
    )
