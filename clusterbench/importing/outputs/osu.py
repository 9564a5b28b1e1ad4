"""OSU micro-benchmarks as cases: one for each test and size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterbench.errors import SuiteError
from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import osu
from clusterbench.types import metric_key


class OsuTables(Output):
    """Latency, bandwidth and message rate; of a collective the latency, whose size is what the MPI call counts.

    How many ranks ran, on how many hosts, only Intel's MPI says; a test between two ranks says that they are two.
    """

    tool = "OSU micro-benchmarks"
    question = "How fast is this MPI by OSU's micro-benchmarks?"
    takes = frozenset({"num_ranks", "num_nodes"})

    def holds(self, text: str) -> bool:
        return osu.is_osu(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        hosts = osu.hosts(text)
        cases: list[ImportedCase] = []
        notes: list[str] = []
        for table in osu.parse(text):
            world_size = _ranks(name, table, hosts, facts)
            num_nodes = facts.hosts_of(name, world_size, len({*hosts}))
            known = hosts if len(hosts) == world_size else ()
            cases += _cases(name, table, world_size, num_nodes, known)
            if table.unread:
                notes.append(f"{name}: columns of {table.title} that are left out: {', '.join(table.unread)}")
        return Read(cases, tuple(notes))


def _ranks(name: str, table: osu.Table, hosts: tuple[str, ...], facts: Facts) -> int:
    of_pairs = 2 * table.pairs if table.pairs else None
    is_pair = table.title.split(" ", 1)[0].startswith(("MPI", "NCCL")) and _is_between_two(table.title)
    of_text = of_pairs or (2 if is_pair else None) or len(hosts) or None
    if of_text and facts.num_ranks and of_text != facts.num_ranks:
        raise SuiteError(f"{name}: {table.title} ran on {of_text} ranks, but --num-ranks says {facts.num_ranks}.")
    if not (of_text or facts.num_ranks):
        raise SuiteError(f"{name} does not say on how many ranks it ran.\nhint: say it with --num-ranks")
    return of_text or facts.num_ranks or 0


def _is_between_two(title: str) -> bool:
    _, _, test = title.partition(" ")
    return test in ("Bandwidth", "Bi-Directional Bandwidth", "Latency", "Multi-threaded Latency")


def _cases(
    name: str, table: osu.Table, world_size: int, num_nodes: int, hosts: tuple[str, ...]
) -> Iterator[ImportedCase]:
    for row in table.rows:
        point: dict[str, Any] = {TEST: table.title}
        if row.size_bytes is not None:
            point["size_bytes"] = row.size_bytes
        about = {"buffers": table.buffers, "dtype": table.datatype, "pairs": table.pairs, "window": table.window}
        point |= {key: value for key, value in about.items() if value}
        figures = {
            metric_key("latency", **({"statistic": statistic} if statistic else {})): latency
            for statistic, latency in row.latencies_s.items()
        }
        if row.bytes_per_s is not None:
            figures["bandwidth"] = row.bytes_per_s
        if row.messages_per_s is not None:
            figures["message_rate"] = row.messages_per_s
        yield ImportedCase(
            where=f"{name}:{row.line}",
            point=point,
            world_size=world_size,
            num_nodes=num_nodes,
            figures=figures,
            time_s=_time_s(row),
            hosts=hosts,
        )


def _time_s(row: osu.Row) -> float | None:
    if "" in row.latencies_s:
        return row.latencies_s[""]
    if row.messages_per_s:
        return 1 / row.messages_per_s
    return row.size_bytes / row.bytes_per_s if row.size_bytes and row.bytes_per_s else None
