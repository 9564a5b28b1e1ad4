"""What a link can carry, as a data sheet says or as this run measured it between two ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterbench.cluster import Cluster
from clusterbench.rows import Row

SHEET, MATRIX, NEIGHBOURS = "GPU link, data sheet", "median link, measured", "send_recv at its best"
LEAST_BYTES = 2**16
"""Of a smaller message most of the time is latency, and it tells no rate of a link."""

Place = tuple[str, str, int]
"""Run, device and number of nodes over which ranks talk."""


@dataclass(frozen=True)
class Links:
    """Bytes per second in one direction, by run, device and nodes, and where the figure is from.

    An unknown rate is left out, and what one run measured says nothing of another. A data sheet speaks of the links
    between the GPUs of one node. A network card's rate is no limit here: it depends on the operation how many cards the
    bytes of a rank pass through.
    """

    rates: dict[Place, dict[str, float]]

    def of(self, row: Row) -> dict[str, float]:
        """What the sweep of this row may be held against; it is not held against itself."""
        known = self.rates.get(_place(row), {})
        return {name: rate for name, rate in known.items() if (name, row.benchmark) != (NEIGHBOURS, "send_recv")}


def links(rows: Iterable[Row], cluster: Cluster | None = None) -> Links:
    """Of this run: the data sheet, the best median of link matrices between ranks or nodes, the best of send_recv."""
    rates: dict[Place, dict[str, float]] = {}
    runs: set[str] = set()
    for row in rows:
        runs.add(row.run)
        if row.value is None or row.value <= 0:
            continue
        own = rates.setdefault(_place(row), {})
        if (row.benchmark, row.metric) == ("link_matrix", "median_bandwidth"):
            # Over the ranks of several nodes it would be the median of two kinds of links.
            is_of_one_kind = row.num_nodes == 1 or row.point.get("between") in ("nodes", "rails")
            if is_of_one_kind and float(row.point["size_bytes"]) >= LEAST_BYTES:
                own[MATRIX] = max(row.value, own.get(MATRIX, 0.0))
        elif (row.benchmark, row.metric) == ("send_recv", "busbw"):
            own[NEIGHBOURS] = max(row.value, own.get(NEIGHBOURS, 0.0))
    # Of several runs the cluster is that of one of them.
    if cluster is not None and len(runs) == 1 and cluster.accelerator and cluster.accelerator.link_bytes_per_s:
        rates.setdefault((runs.pop(), "cuda", 1), {})[SHEET] = cluster.accelerator.link_bytes_per_s
    return Links(rates)


def _place(row: Row) -> Place:
    return row.run, row.device, _num_nodes(row)


def _num_nodes(row: Row) -> int:
    """Nodes whose ranks talk with each other: 1 along tp, the innermost axis, where its groups stay within a node."""
    is_inner = row.point.get("axis") == "tp" and row.point.get("rank_order", "megatron") == "megatron"
    of_node, group = row.world_size // max(1, row.num_nodes), row.point.get("group_size")
    return 1 if is_inner and isinstance(group, int) and group > 0 and of_node % group == 0 else row.num_nodes


def worded(name: str, row: Row) -> str:
    """``median link, measured, 2 nodes``."""
    num_nodes = _num_nodes(row)
    return f"{name}, {num_nodes} nodes" if num_nodes > 1 else name
