from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

WAYS = {
    "launch_time": "launched behind others",
    "round_trip_time": "launched and waited for",
    "graph_node_time": "in a CUDA graph",
    "operator_overhead": "an operator on a CPU",
}
"""By metric, in the order of the bars."""


class KernelStarts(Chart[list[Row]]):
    """What it takes to start a kernel that has next to nothing to do, by how it is started.

    How to read it
    --------------
    Times are those of the slowest rank while all do the same. Launched behind others, a kernel costs what the host
    needs for it, PyTorch's own share with it: a training step of thousands of small kernels takes at least so many
    times that, however fast its GPU. Waited for, it costs the way there and back. In a CUDA graph the host is out of
    the way, and what remains is the GPU's. A CPU launches nothing: there an operator is dispatched and computed.
    """

    title: ClassVar[str] = "Starting a kernel"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "product_rates"

    def select(self, reading: Reading) -> list[Row] | None:
        rows = [row for row in reading.rows_of(*WAYS) if row.benchmark == "kernel_launch" and row.value is not None]
        return sorted(rows, key=lambda row: (row.world_size, [*WAYS].index(row.metric))) or None

    def draw(self, data: list[Row]) -> list[Panel]:
        of_several = len({row.world_size for row in data}) > 1
        return [
            Bars(
                "Time of one" if of_several else f"Time of one, {plural(data[0].world_size, 'rank')}",
                [_name(row, of_several) for row in data],
                {"time of one": [row.value for row in data]},
                "s",
                cases=[row.case for row in data],
            ).panel()
        ]

    def answer(self, data: list[Row]) -> str:
        first = {row.metric: row for row in reversed(data)}  # on the fewest ranks
        said = {metric: format_value(row.value or 0.0, "s") for metric, row in first.items()}
        if "operator_overhead" in said:
            return f"An operator with next to nothing to do takes {said['operator_overhead']} on a CPU."
        words = [f"{said[metric]} {words}" for metric, words in WAYS.items() if metric in said]
        return f"A kernel with next to nothing to do takes {', '.join(words)}."


def _name(row: Row, with_ranks: bool) -> str:
    return f"{WAYS[row.metric]}, {plural(row.world_size, 'rank')}" if with_ranks else WAYS[row.metric]
