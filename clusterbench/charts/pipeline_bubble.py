from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import groups_apart
from clusterbench.cases.trained import Trained, are_most, groups_that_differ, said
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import INK, LETTERS, MUTED, PALETTE, PAPER, canvas
from clusterbench.units import format_value

MOST = 4


class PipelineBubble(Chart[list[list[Trained]]]):
    """Idle share of pipeline ranks by schedule: measured, simulated and by formula, with speed and activations.

    How to read it
    --------------
    A dot is the share of a step in which a rank computed nothing, as seen, mean over ranks. The diamond is the same
    schedule played with the times that were seen of each action and messages that cost nothing, so dot and diamond
    part by what messages and waiting for a core cost. The tick is the formula, for equal stages and free messages;
    where stages are uneven, because one has the head, the diamond parts from it. Beside it: what each schedule makes of
    that, and what it holds in flight. With more ranks than cores a rank also waits for its core, and the dots are high.
    """

    title: ClassVar[str] = "Pipeline bubble: measured, simulated and by formula"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "context_scaling"

    def select(self, reading: Reading) -> list[list[Trained]] | None:
        cases = reading.trained_with("bubble", "tokens_per_s_per_rank", "peak_memory")
        groups = groups_that_differ(
            [case for case in cases if case.layout.pp > 1],
            lambda case: None if _bubble(case) is None else _name(case),
            lambda case: (case.layout, case.row.num_nodes),
            frozenset({"schedule", "chunks_per_rank"}),
        )
        return groups if groups and are_most(groups, cases) else None

    def draw(self, data: list[list[Trained]]) -> list[Panel]:
        return [figure for group in data[:MOST] for figure in _panels(group, _title(group, data))]

    def answer(self, data: list[list[Trained]]) -> str:
        return "\n".join(_sentence(group, _title(group, data)) for group in data[:MOST])

    def left_out(self, data: list[list[Trained]]) -> str:
        return curves_note(len(data), MOST, "layouts and workloads")


def _name(case: Trained) -> str:
    chunks = case.point.get("chunks_per_rank")
    return f"{case.point.get('schedule', '?')}{f' x{chunks}' if chunks else ''}"


def _bubble(case: Trained, source: str = "measured") -> float | None:
    return case.value("bubble", source)


def _title(group: Sequence[Trained], data: Sequence[Sequence[Trained]]) -> str:
    words = groups_apart([[case.row for case in members] for members in data], [members[0].layout for members in data])
    own = words[next(place for place, members in enumerate(data) if members is group)]
    return ", ".join(filter(None, [str(group[0].layout), own]))


def _panels(group: Sequence[Trained], title: str) -> list[Panel]:
    shown = sorted(group, key=lambda case: (_bubble(case) is None, _bubble(case) or 0.0))
    labels = [_name(case) for case in shown]
    missing = {number: said(case.row.status) for number, case in enumerate(shown) if not case.is_measured}
    speeds = [case.value("tokens_per_s_per_rank") for case in shown]
    held = [case.value("peak_memory", "activations") for case in shown]
    cases = [case.row.case for case in shown]
    figures = [
        _bubbles(shown, labels, title),
        Bars(
            f"Throughput per rank\n{title}", labels, {"throughput": speeds}, "tokens/s", missing=missing, cases=cases
        ).panel(),
    ]
    if any(held):
        planned = [case.expected("peak_memory", "activations") for case in shown]
        figures.append(
            Bars(
                f"Peak activations, fullest rank\n{title}",
                labels,
                {"activations": held},
                "B",
                markers=planned,
                missing=missing,
                cases=cases,
                colours=memory_colours(["activations"]),
            ).panel()
        )
    return figures


def _bubbles(shown: Sequence[Trained], labels: Sequence[str], title: str) -> Panel:
    figure, axes = canvas(f"Idle share of a step\n{title}", height=max(1.9, 1.25 + 0.29 * len(shown)))
    places = range(len(shown))
    sources = {"measured": _shares(shown, "measured"), "simulated": _shares(shown, "simulated")}
    formula = [case.expected("bubble", "measured") for case in shown]
    styles = {
        "measured": {"marker": "o", "color": PALETTE[0], "markersize": 7, "markeredgecolor": PAPER},
        "simulated": {"marker": "D", "markerfacecolor": PAPER, "markeredgecolor": INK, "markersize": 5.5},
        "formula": {"marker": "|", "markeredgecolor": INK, "markersize": 15, "markeredgewidth": 1.3},
    }
    for name, values in (*sources.items(), ("formula", formula)):
        points = [(100 * value, place) for place, value in zip(places, values, strict=True) if value is not None]
        if points:
            style: dict[str, object] = {"linestyle": "", "zorder": 3, "label": name, **styles[name]}
            axes.plot(*zip(*points, strict=True), **style)  # type: ignore[arg-type]
    for place, case in enumerate(shown):
        if not case.is_measured:
            axes.annotate(
                f"× {said(case.row.status)}", (0, place), (4, 0), textcoords="offset points", va="center",
                color=MUTED, fontsize=LETTERS,
            )  # fmt: skip
    top = max([100 * value for values in (*sources.values(), formula) for value in values if value], default=1.0)
    axes.set_xlim(0, 1.12 * top)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(places, labels)
    axes.set_xlabel("%")
    axes.grid(True, axis="x")
    figure.legend(
        loc="outside lower left", ncols=3, frameon=False, fontsize=LETTERS, handlelength=1.0, columnspacing=1.2,
        labelcolor=INK, markerscale=0.75,
    )  # fmt: skip
    figures = {**sources, "formula": formula}
    entries = tuple(
        Entry(
            (label, *(values[place] for values in figures.values()), "" if case.is_measured else said(case.row.status)),
            case.row.case,
            (
                0.0,
                place - 0.4,
                100 * max(values[place] or 0.0 for values in figures.values()),
                place + 0.4,
            ),
        )
        for place, (label, case) in enumerate(zip(labels, shown, strict=True))
    )
    shares = (Column(name, "fraction") for name in figures)
    return Panel(figure, (Column("schedule"), *shares, Column("outcome")), entries)


def _shares(cases: Sequence[Trained], source: str) -> list[float | None]:
    return [_bubble(case, source) for case in cases]


def _sentence(group: Sequence[Trained], name: str) -> str:
    known = [case for case in group if _bubble(case) is not None]
    least, most = min(known, key=lambda case: _bubble(case) or 0.0), max(known, key=lambda case: _bubble(case) or 0.0)
    fastest = max(known, key=lambda case: case.value("tokens_per_s_per_rank") or 0.0)
    speed = fastest.value("tokens_per_s_per_rank")
    ending = f"; fastest is {_name(fastest)} with {format_value(speed, 'tokens/s')} per rank." if speed else "."
    if _bubble(least) == _bubble(most):
        return f"On {name} all {len(known)} schedules idle alike, {_shares_said(least)}{ending}"
    return f"On {name} {_name(least)} idles least, {_shares_said(least)}, and {_name(most)} most, " + (
        f"{_shares_said(most)}{_held_said(least, most)}{ending}"
    )


def _held_said(least: Trained, most: Trained) -> str:
    """What the least bubble costs: ``; of activations zbv holds 6.6MiB, naive 1.6MiB``; nothing where not known."""
    own, other = (case.value("peak_memory", "activations") for case in (least, most))
    if not own or not other:
        return ""
    return f"; of activations {_name(least)} holds {format_value(own, 'B')}, {_name(most)} {format_value(other, 'B')}"


def _shares_said(case: Trained) -> str:
    """``31 % of the step (simulated 27 %, formula 25 %)``."""
    others = [("simulated", _bubble(case, "simulated")), ("formula", case.expected("bubble", "measured"))]
    inner = ", ".join(f"{name} {100 * value:.0f} %" for name, value in others if value is not None)
    return f"{100 * (_bubble(case) or 0.0):.0f} % of the step" + (f" ({inner})" if inner else "")
