"""Intel MPI Benchmarks as cases: one for each benchmark, number of ranks and size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import imb, osu
from clusterbench.types import metric_key
from clusterbench.words import plural


class ImbTables(Output):
    """Latency with its least and most over ranks, bandwidth and message rate, each as IMB counts it.

    Tables say their ranks. On how many hosts these were only Intel's MPI says; a part of the ranks may have been on
    fewer hosts than all, which is noted.
    """

    tool = "Intel MPI Benchmarks"
    question = "How fast is this MPI by Intel's benchmarks?"
    takes = frozenset({"num_nodes"})

    def holds(self, text: str) -> bool:
        return imb.is_imb(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        hosts = osu.hosts(text)
        tables = imb.parse(text)
        cases = [case for table in tables for case in _cases(name, table, hosts, facts)]
        return Read(cases, tuple(dict.fromkeys(_notes(name, tables, hosts))))


def _num_nodes(name: str, table: imb.Table, hosts: Sequence[str], facts: Facts) -> int:
    if len(hosts) >= table.ranks and not facts.num_nodes:
        return len({*hosts[: table.ranks]})
    num_nodes = facts.hosts_of(name, table.ranks + table.waiting, 1 if table.ranks == 1 else 0)
    return min(num_nodes, table.ranks)


def _notes(name: str, tables: Sequence[imb.Table], hosts: Sequence[str]) -> Iterator[str]:
    for table in tables:
        if table.waiting and table.ranks > 1 and len(hosts) < table.ranks:
            yield (
                f"{name}: {table.ranks} ranks of {table.name} ran while {table.waiting} waited; on how many hosts they "
                "were is not said: counted are as many as there can be"
            )
        if table.unread:
            yield f"{name}: columns of {table.name} that are left out: {', '.join(table.unread)}"
        if zero := [row for row in table.rows if _time_s(row) is None]:
            where = f"{name}:{zero[0].line}"
            yield f"{where}: {plural(len(zero), 'row')} of {table.name} left out, whose time is zero"
        for left_out in table.left_out:
            yield f"{name}: IMB left out a size of {table.name}: {left_out}"


def _time_s(row: imb.Row) -> float | None:
    """None where a call of no bytes took less than is printed."""
    return row.times_s.get("") or (1 / row.messages_per_s if row.messages_per_s else None)


def _cases(name: str, table: imb.Table, hosts: Sequence[str], facts: Facts) -> Iterator[ImportedCase]:
    num_nodes = _num_nodes(name, table, hosts, facts)
    about: dict[str, Any] = {TEST: f"IMB {table.name}"}
    about |= {"groups": table.groups} if table.groups > 1 else {}
    about |= {"mode": table.mode} if table.mode else {}
    for row in table.rows:
        if (time_s := _time_s(row)) is None:
            continue
        figures = {
            metric_key("latency", **({"statistic": statistic} if statistic else {})): value
            for statistic, value in row.times_s.items()
        }
        figures |= {"bandwidth": row.bytes_per_s} if row.bytes_per_s else {}
        figures |= {"message_rate": row.messages_per_s} if row.messages_per_s else {}
        yield ImportedCase(
            where=f"{name}:{row.line}",
            point=about if row.size_bytes is None else {**about, "size_bytes": row.size_bytes},
            world_size=table.ranks,
            num_nodes=num_nodes,
            figures=figures,
            time_s=time_s,
            hosts=tuple(hosts[: table.ranks]) if len(hosts) >= table.ranks else (),
        )
