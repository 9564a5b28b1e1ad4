"""iperf3 over TCP as a case: what arrived, from JSON (``-J``) or as it prints for people."""

from __future__ import annotations

from typing import Any

from clusterbench.errors import SuiteError
from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import iperf3, iperf3_text
from clusterbench.tools._json import document


class Iperf3(Output):
    """The rate at the receiver over all streams, and the packets that were sent again.

    Both ends count as ranks, on one host where their addresses are the same. UDP is refused, as is a text of several
    runs.
    """

    tool = "iperf3"
    question = "How much arrives over TCP between two hosts, by iperf3?"

    def holds(self, text: str) -> bool:
        is_json = text.lstrip().startswith("{") and '"sum_received"' in text and '"tcp_mss_default"' in text
        return is_json or iperf3_text.is_iperf3(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        if text.lstrip().startswith("{"):
            result = iperf3.parse(f"{text}\n")
            ends = _ends(document("iperf3", f"{text}\n"))
            figures = result.bytes_per_s, result.seconds, result.num_streams, result.retransmits
            return Read([_case(f"{name} end.sum_received", ends, *figures)])
        said = iperf3_text.parse(text)
        figures = said.bytes_per_s, said.seconds, said.num_streams, said.retransmits
        return Read([_case(f"{name}:{said.line}", said.ends, *figures)])


def _ends(report: dict[str, Any]) -> tuple[str, str] | None:
    connected = report.get("start", {}).get("connected") or [{}]
    if not isinstance(connected[0], dict) or not {"local_host", "remote_host"} <= connected[0].keys():
        return None
    return str(connected[0]["local_host"]), str(connected[0]["remote_host"])


def _case(
    where: str, ends: tuple[str, str] | None, rate: float, seconds: float, streams: int, retransmits: int | None
) -> ImportedCase:
    if ends is None:
        raise SuiteError(f"{where}: the line that says which addresses are connected is missing.")
    point: dict[str, Any] = {"protocol": "TCP", "streams": streams, "between": " ".join(ends)}
    figures = {"bandwidth": rate}
    if retransmits is not None:
        figures["retransmits"] = float(retransmits)
    return ImportedCase(where, point, 2, 1 if ends[0] == ends[1] else 2, figures=figures, time_s=seconds)
