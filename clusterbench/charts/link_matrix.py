from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.matrices import Matrix, why_not_judged
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import GRID, INK, LETTERS, MUTED, PALETTE, canvas
from clusterbench.formulas.pairing import Pair
from clusterbench.host_facts import described_hosts, port_bytes_per_s
from clusterbench.rows import Row
from clusterbench.units import format_value, scale
from clusterbench.words import legible

MOST = 6
MOST_WITH_FIGURES = 12
"""Of more units a cell has no room for its figure."""

MOST_NAMED = 32
_SLOW = PALETTE[1]
_TITLES = {
    "pair_bandwidth": "Bandwidth, one way",
    "pair_bandwidth_both": "Bandwidth, both ways summed",
    "pair_latency": "Latency, half a round trip",
    "copy_bandwidth": "Copies, one way",
    "copy_bandwidth_both": "Copies, both ways summed",
    "copy_latency": "Latency of a small copy",
}
_CATEGORIES = {"peer": "between peers", "driver": "staged by the driver", "host": "through pinned host memory"}


@dataclass(frozen=True)
class Picture:
    """One panel: the units of a matrix that are drawn together, by their numbers in it.

    ``port_bytes_per_s`` is what a network port of its hosts carries by its rate, where links are between hosts.
    """

    matrix: Matrix
    units: tuple[int, ...]
    port_bytes_per_s: float | None = None

    @property
    def cells(self) -> dict[Pair, Row]:
        """What was measured, by place in the panel; one row for both directions stands in both."""
        place = {unit: number for number, unit in enumerate(self.units)}
        own = {
            (place[source], place[part]): row
            for (source, part), row in self.matrix.cells.items()
            if source in place and part in place
        }
        is_mutual = self.matrix.metric in ("pair_latency", "pair_bandwidth_both", "copy_bandwidth_both")
        return {**{cell[::-1]: row for cell, row in own.items()}, **own} if is_mutual else own

    @property
    def values(self) -> list[float]:
        return [row.value for row in self.cells.values() if row.value is not None]


class LinkMatrix(Chart[list[Picture]]):
    """How fast each pair of nodes, ranks or GPUs is, as a matrix.

    How to read it
    --------------
    The row sends and the column receives; all cells of a panel share one scale, and a fuller colour is a faster cell
    (for latency, a longer one). A frame and an exclamation mark are what the diagnosis blames: a whole row and column
    is a node, one cell a link, a block a leaf switch or a rack. Where ranks were paired in rails, each rail is a square
    along the diagonal. An empty cell was not measured. On the diagonal nothing travels. Between CPU ranks of one
    host, figures are those of its cores.
    """

    title: ClassVar[str] = "Links, pair by pair"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "collective_fits"

    def select(self, reading: Reading) -> list[Picture] | None:
        pictures = [picture for matrix in reading.matrices for picture in _pictures(matrix) if picture.values]
        return [replace(picture, port_bytes_per_s=_of_port(picture.matrix, reading)) for picture in pictures] or None

    def draw(self, data: list[Picture]) -> list[Panel]:
        return [_heatmap(picture) for picture in data[:MOST]]

    def answer(self, data: list[Picture]) -> str:
        one_way = (picture.matrix for picture in data if picture.matrix.metric in ("pair_bandwidth", "copy_bandwidth"))
        largest: dict[str, Matrix] = {}
        for matrix in one_way:
            where = "between" if _is_between_hosts(matrix) else "within"
            if where not in largest or _weight(matrix) > _weight(largest[where]):
                largest[where] = matrix
        # NVLinks say nothing of the network, nor it of them; what is to blame comes first
        told = sorted(largest.items(), key=lambda item: (not item[1].slow, item[0] != "within"))
        reaches = {where: f" {where} hosts" if len(told) > 1 else "" for where, _ in told}
        return " ".join(_told(matrix, reaches[where], data) for where, matrix in told)

    def left_out(self, data: list[Picture]) -> str:
        return curves_note(len(data), MOST, "matrices")


def _is_between_hosts(matrix: Matrix) -> bool:
    host_of = matrix.host_of
    return host_of is None or any(host_of[source] != host_of[part] for source, part in matrix.cells)


def _of_port(matrix: Matrix, reading: Reading) -> float | None:
    """Of GPUs' hosts of one run: ranks of CPUs talk over sockets, whatever else the ports could carry."""
    if reading.plan.cluster.device != "cuda" or reading.hosts_of_runs or not _is_between_hosts(matrix):
        return None
    hosts = described_hosts(reading.environment)
    return port_bytes_per_s(hosts.values()) if {*matrix.hosts} <= {*hosts} else None


def _weight(matrix: Matrix) -> tuple[bool, int]:
    return bool(matrix.slow), len(matrix.cells)


def _told(matrix: Matrix, reach: str, data: Sequence[Picture]) -> str:
    """How many links of a matrix were measured, what they carry and which are slow."""
    values = {cell: row.value for cell, row in matrix.cells.items() if row.value is not None}
    source, part = min(values, key=lambda cell: values[cell])
    covered, total = len({frozenset(cell) for cell in values}), matrix.num_links
    # The median is of links that nothing is blamed for: with the slow ones it would be of neither.
    sound = [value for cell, value in values.items() if not any(fault.has(*cell) for fault in matrix.slow)]
    usual, of_others = median(sound or values.values()), " of the others" if matrix.slow and sound else ""
    slowest, its_rate = f"{matrix.names[source]} -> {matrix.names[part]}", format_value(values[source, part], "B/s")
    one = f"carries {its_rate} ({slowest}{', the slower way' if len(values) > 1 else ''})"
    many = f"median{of_others} {format_value(usual, 'B/s')}, slowest {slowest} with {its_rate}"
    number = f"All {total:,}" if covered == total else f"{covered:,} of {total:,}"
    measured = f"{number} links{reach} {'was' if covered == 1 else 'were'} measured: "
    sentences = [
        f"The one link{reach} {one}." if total == 1 else f"{measured}{f'it {one}' if covered == 1 else many}.",
        _judgement(matrix),
        *_by_rate(picture for picture in data if picture.matrix is matrix),
        *_latencies(picture.matrix for picture in data if picture.matrix.case == matrix.case),
    ]
    answer = " ".join(filter(None, sentences))
    has_several_runs = len({picture.matrix.run for picture in data}) > 1
    return f"{matrix.run}: {answer[0].lower()}{answer[1:]}" if has_several_runs else answer


def _judgement(matrix: Matrix) -> str:
    """Which links are slower than their peers, that none is, or why that is not known."""
    if matrix.slow:
        return f"Slower than their peers: {'; '.join(map(matrix.place_of, matrix.slow))}."
    unknown = [reason for spread in matrix.spreads if (reason := why_not_judged(spread)) is not None]
    if unknown:
        return f"Not judged: {unknown[0][0]}."
    would_show = max((spread.would_show or 0.0 for spread in matrix.spreads), default=None)
    return "" if would_show is None else f"None carries {100 * would_show:.0f} % less than its peers."


def _by_rate(pictures: Iterable[Picture]) -> Iterator[str]:
    """Where all links are slow alike, only a figure from elsewhere shows it."""
    rate = next((picture.port_bytes_per_s for picture in pictures), None)
    if rate is not None:
        yield f"By its rate a port of these hosts carries {format_value(rate, 'B/s')}."


def _latencies(matrices: Iterable[Matrix]) -> Iterator[str]:
    for matrix in matrices:
        values = [row.value for row in matrix.cells.values() if row.value is not None]
        if matrix.metric == "pair_latency" and values:
            ends = dict.fromkeys(format_value(end, "s") for end in (min(values), max(values)))
            yield f"Latency is {' to '.join(ends)}."
            return


def _pictures(matrix: Matrix) -> Iterator[Picture]:
    """The whole matrix, rail after rail; or one of each host, where nothing was measured across hosts."""
    host_of, rail_of = matrix.host_of, matrix.rail_of
    everything = tuple(range(len(matrix.names)))
    if rail_of is not None:
        yield Picture(matrix, tuple(sorted(everything, key=lambda unit: (rail_of[unit], unit))))
        return
    if host_of is None or any(host_of[source] != host_of[part] for source, part in matrix.cells):
        yield Picture(matrix, everything)
        return
    for host in dict.fromkeys(host_of.values()):
        yield Picture(matrix, tuple(unit for unit in everything if host_of[unit] == host))


def _heatmap(picture: Picture) -> Panel:
    from matplotlib.patches import Rectangle

    matrix, cells, count = picture.matrix, picture.cells, len(picture.units)
    names = [legible(name, 20) for name in _names(picture)]
    of = scale(next(iter(cells.values())).unit, picture.values)
    size = min(9.0, max(3.6, 1.6 + 0.62 * count)) if count <= MOST_WITH_FIGURES else 7.0
    figure, axes = canvas(_title(picture, of.unit), width=size, height=size)
    top, slow = max(picture.values), _blamed(matrix, picture.units)
    for (source, part), row in cells.items():
        if row.value is None:
            continue
        depth = 0.06 + 0.5 * row.value / top
        axes.add_patch(Rectangle((part - 0.5, source - 0.5), 1, 1, facecolor=PALETTE[0], alpha=depth, edgecolor="none"))
        is_slow = (source, part) in slow
        if is_slow:
            inset = Rectangle((part - 0.46, source - 0.46), 0.92, 0.92, fill=False, edgecolor=_SLOW, linewidth=1.8)
            axes.add_patch(inset)
        if count <= MOST_WITH_FIGURES:
            text = of.text(row.value, 3) + (" !" if is_slow else "")
            axes.text(part, source, text, ha="center", va="center", fontsize=LETTERS, color=INK)
        elif is_slow:
            axes.text(part, source, "!", ha="center", va="center", fontsize=6, color=_SLOW)
    for unit in range(count):
        axes.add_patch(Rectangle((unit - 0.5, unit - 0.5), 1, 1, facecolor=GRID, alpha=0.6, edgecolor="none"))
    step = -(-count // MOST_NAMED)
    axes.set_xticks(range(0, count, step), names[::step], rotation=90 if count > 6 or _is_long(names) else 0)
    axes.set_yticks(range(0, count, step), names[::step])
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_xlabel("to")
    axes.set_ylabel("from", color=MUTED)
    axes.grid(False)
    entries = tuple(
        Entry(
            (names[source], names[part], row.value, row.low, row.high, "slow" if (source, part) in slow else ""),
            row.case,
            (part - 0.5, source - 0.5, part + 0.5, source + 0.5),
        )
        for (source, part), row in cells.items()
    )
    numbers = (Column(name, next(iter(cells.values())).unit) for name in ("value", "low", "high"))
    return Panel(figure, (Column("from"), Column("to"), *numbers, Column("note")), entries)


def _title(picture: Picture, unit: str) -> str:
    matrix = picture.matrix
    words = [f"{_TITLES[matrix.metric]}, {unit}", _CATEGORIES.get(matrix.category, matrix.category)]
    host = matrix.names[picture.units[0]].partition(":")[0]
    is_of_a_host = matrix.host_of is not None and len({matrix.host_of[unit] for unit in picture.units}) == 1
    return "\n".join(filter(None, [words[0], ", ".join(filter(None, [words[1], host if is_of_a_host else ""]))]))


def _names(picture: Picture) -> list[str]:
    """What stands at the axes: hosts; or where all units are of one host, their numbers, as the title has its name."""
    names = [picture.matrix.names[unit] for unit in picture.units]
    hosts = {name.partition(":")[0] for name in names}
    return [name.partition(":")[2] for name in names] if len(hosts) == 1 and ":" in names[0] else names


def _blamed(matrix: Matrix, units: Sequence[int]) -> set[Pair]:
    """Cells of the panel that make up what the diagnosis names."""
    place: Mapping[int, int] = {unit: number for number, unit in enumerate(units)}
    return {
        (place[source], place[part])
        for source, part in matrix.cells
        if source in place and part in place and any(fault.has(source, part) for fault in matrix.slow)
    }


def _is_long(names: Sequence[str]) -> bool:
    return max(map(len, names)) > 8
