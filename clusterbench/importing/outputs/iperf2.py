"""iperf 2 over TCP as a case: what its client wrote, or what arrived at its server."""

from __future__ import annotations

from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import iperf2


class Iperf2(Output):
    """The rate over all streams, and who counted it.

    Both ends count as ranks, on one host where their addresses are the same. UDP is refused, as is a text of several
    runs or of both directions.
    """

    tool = "iperf 2"
    question = "How much goes over TCP between two hosts, by iperf 2?"

    def holds(self, text: str) -> bool:
        return iperf2.is_iperf2(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        said = iperf2.parse(text)
        point: dict[str, Any] = {"protocol": "TCP", "streams": said.num_streams, "between": " ".join(said.ends)}
        if said.side:
            point["counted_by"] = said.side
        num_nodes = 1 if said.ends[0] == said.ends[1] else 2
        figures = {"bandwidth": said.bytes_per_s}
        return Read([ImportedCase(f"{name}:{said.line}", point, 2, num_nodes, figures=figures, time_s=said.seconds)])
