"""perftest as cases: one for each size of ``ib_write_bw`` and its kin."""

from __future__ import annotations

import re
from typing import Any

from clusterbench.errors import SuiteError
from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import perftest
from clusterbench.types import metric_key

_TITLE = re.compile(r"^[ \t]*(\w[\w ]* (?:BW|Latency)(?: [\w ]+)? Test)[ \t]*$", re.MULTILINE)
_ABOUT = {
    "device": re.compile(r"\bDevice\s*: (\S+)"),
    "qps": re.compile(r"\bNumber of qps\s*: (\d+)"),
    "connection": re.compile(r"\bConnection type\s*: (\S+)"),
    "mtu": re.compile(r"\bMtu\s*: (\d+)\[B\]"),
    "link": re.compile(r"\bLink type\s*: (\S+)"),
}
_LID = re.compile(r"^\s*(local|remote) address: LID (0x[0-9a-fA-F]+|0+)\b", re.MULTILINE)
_GID = re.compile(r"^\s*GID: (\S+)", re.MULTILINE)


class Perftest(Output):
    """Bandwidth and message rate, or latency, between two ends: what each program measures alone.

    One text is one test, from the server, the client or both. Both ends are on one host where one port is both.
    """

    tool = "perftest"
    question = "How fast is RDMA between two ends by perftest?"
    takes = frozenset({"num_nodes"})

    def holds(self, text: str) -> bool:
        return _TITLE.search(text) is not None and "#bytes" in text

    def read(self, name: str, text: str, facts: Facts) -> Read:
        titles = list(dict.fromkeys(_TITLE.findall(text)))
        if len(titles) > 1:
            raise SuiteError(f"{name} holds several tests: {', '.join(titles)}.\nhint: import a file of each")
        num_nodes = facts.num_nodes or (1 if _is_loopback(text) else None)
        if num_nodes is None:
            raise SuiteError(f"{name} does not say on how many hosts it ran.\nhint: say it with --num-nodes")
        if num_nodes > 2:
            raise SuiteError(f"{name}: perftest runs between two ends, which do not fill {num_nodes} nodes.")
        about: dict[str, Any] = {TEST: titles[0]}
        for key, said in _ABOUT.items():
            values = list(dict.fromkeys(said.findall(text)))
            if values:  # server and client may have other devices
                about[key] = int(values[0]) if values[0].isdigit() and len(values) == 1 else " ".join(values)
        return Read([_case(name, about, row, num_nodes) for row in perftest.parse(text)])


def _is_loopback(text: str) -> bool:
    """Whether all addresses that are said, of both ends, are those of one port.

    RoCE has no LID, and the GID of an address of its own; on InfiniBand without a subnet manager LIDs are zero.
    """
    ends = _LID.findall(text)
    if {end for end, _ in ends} != {"local", "remote"}:
        return False
    ports = {*_GID.findall(text)} or {lid for _, lid in ends if int(lid, 16)}
    return len(ports) == 1


def _case(name: str, about: dict[str, Any], row: perftest.Row, num_nodes: int) -> ImportedCase:
    return ImportedCase(
        where=f"{name}, {row.size_bytes} bytes",
        point={**about, "size_bytes": row.size_bytes},
        world_size=2,
        num_nodes=num_nodes,
        figures=_figures(row),
        time_s=1 / row.messages_per_s if isinstance(row, perftest.Bandwidth) else row.mean_s,
    )


def _figures(row: perftest.Row) -> dict[str, float]:
    if isinstance(row, perftest.Bandwidth):
        return {"bandwidth": row.bytes_per_s, "message_rate": row.messages_per_s}
    if isinstance(row, perftest.MeanLatency):
        return {"latency": row.mean_s}
    statistics = {"min": row.min_s, "p50": row.typical_s, "p99": row.p99_s, "max": row.max_s}
    return {
        "latency": row.mean_s,
        **{metric_key("latency", statistic=statistic): value for statistic, value in statistics.items()},
    }
