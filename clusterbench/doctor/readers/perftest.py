"""perftest (``ib_write_bw`` and its kin): completions that failed, and cards held against each other."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import perftest
from clusterbench.words import few, plural

_TITLE = re.compile(r"(?m)^\s*((?:RDMA_\w+|Send|Atomic\w*|Raw Ethernet\w*)(?: \w+)? (?:BW|Latency) Test)\s*$")
_HEADER = re.compile(r"(?m)^\s*#bytes\s+#iterations.*$")
_FAILED = re.compile(r"(?m)^.*(?:Completion with error at (?:client|server)|Failed status \d+: wr_id).*$")
_NOT_REGISTERED = re.compile(r"(?m)^.*(?:Couldn't allocate MR|[Ff]ailed to create [Mm][Rr]).*$")
_REGISTRATION = re.compile(r"Couldn't allocate MR|[Ff]ailed to create [Mm][Rr]")
"""Without the line around it, which in a long text takes long to try."""
_STOPPED = re.compile(
    r"(?m)^\s*(?:Unable to Connect the HCA's through the link|IB device \S+ not found|Couldn't create IB resources"
    r"|Port number \d+ state is \w+).*$"
)
"""What no other program says: before its table there is nothing else of perftest in a text."""
_NOT_RUN = re.compile(
    r"(?m)^.*(?:IB device \S+ not found|Port number \d+ state is|Unable to|Failed to"
    r"|Couldn't (?:connect|get|find|init|create|allocate|open|listen|read)).*$"
)
_FIELD = re.compile(r"(Device|Link type|Mtu|Number of qps|PCIe relax order)\s*:\s*(\S+)")
_SLOW, _FEWEST = 0.8, 3


@dataclass(frozen=True)
class _Run:
    """One table: what was run, on which device, and its bandwidths by size, in B/s, each with its line.

    ``in_order`` says that PCIe writes were kept in order: relaxed ordering was off.
    """

    kind: tuple[str, ...]
    device: str
    rates: Mapping[int, tuple[float, str]]
    in_order: bool = False


class PerftestTables(HostText):
    """Completions with an error, and a card that is far slower than the other cards at the same test.

    What a rate should be depends on the port, of which the table says nothing: one card alone is not judged. JSON
    names no unit.
    """

    kind = "perftest"

    def holds(self, text: str) -> bool:
        is_json = '"test_info"' in text and '"results"' in text and text.lstrip().startswith("{")
        return is_json or any(each.search(text) for each in (_HEADER, _TITLE, _REGISTRATION, _STOPPED))

    def read(self, text: str, name: str) -> Said:
        if failed := _FAILED.search(text):
            lines = "\n".join(line.strip() for line in _FAILED.findall(text))
            status = re.search(r"Failed status (\d+)", lines)
            what = "a transfer ended with an error" + (f", status {status[1]} of ibv_wc_status" if status else "")
            fix = "status 12: the other side does not answer (link, routes, MTU, GID); else the driver's log"
            evidence = f"{name}: {failed[0].strip()}"
            found = Found(
                "rdma_transfer", "error", (name,), "", what, evidence, "ibstat; rdma statistic; dmesg | grep mlx5", fix
            )
            return Said(found=(found,), hosts=(name,))
        if failed := _NOT_REGISTERED.search(text):
            what, fix = (
                "memory could not be registered with a network card",
                "of a GPU: nvidia_peermem, or --use_cuda_dmabuf with open modules; of the host: ulimit -l unlimited",
            )
            evidence, confirm = f"{name}: {failed[0].strip()}", "lsmod | grep peermem; ulimit -l"
            found = Found("memory_not_registered", "error", (name,), "", what, evidence, confirm, fix)
            return Said(found=(found,), hosts=(name,))
        try:
            runs = [_of_json(text)] if text.lstrip().startswith("{") else [*_runs(text)]
        except (ToolError, ValueError) as error:
            return Said(
                not_judged=(NotJudged("rdma_transfer", (name,), str(error), "the whole output"),), hosts=(name,)
            )
        if not runs:
            stopped = _NOT_RUN.search(text)
            why = f"the test did not run: {stopped[0].strip()}" if stopped else "no table is printed"
            return Said(not_judged=(NotJudged("rdma_transfer", (name,), why, "a test that ends"),), hosts=(name,))
        healthy = Healthy("rdma_transfer", (name,), f"{plural(len(runs), 'table')} without a transfer that failed")
        found_slow, peers = _slow(runs, name)
        if found_slow or peers:
            return Said(found=tuple(found_slow), healthy=(healthy,), not_judged=_in_order(runs, name), hosts=(name,))
        why = "the table does not say the port's rate, and no other cards are tested in it"
        takes = f"ibstat of this host, or tables of {_FEWEST} cards or more in one file"
        return Said(healthy=(healthy,), not_judged=(NotJudged("rdma_rate", (name,), why, takes),), hosts=(name,))


def _in_order(runs: Sequence[_Run], name: str) -> tuple[NotJudged, ...]:
    """Cards that are alike may all be slow: without relaxed ordering many hosts reach half of a card's rate."""
    cards = dict.fromkeys(run.device for run in runs if run.in_order)
    if not cards:
        return ()
    why = f"{few(cards)} ran without PCIe relaxed ordering (OFF), which halves the rate on many hosts"
    takes = "the test without --disable_pcie_relaxed; of the host: lspci -vvv | grep RlxdOrd"
    return (NotJudged("rdma_rate", (name,), why, takes),)


def _of_json(text: str) -> _Run:
    said = json.loads(text)
    if not isinstance(said, dict) or not {"test_info", "results"} <= said.keys() or not said["results"]:
        raise ToolError("perftest wrote JSON without results")
    return _Run((), str(said["test_info"].get("Device", "")), {})


def _runs(text: str) -> Iterator[_Run]:
    """Every table with what stands before it, behind the table before."""
    headers = list(_HEADER.finditer(text))
    for number, header in enumerate(headers, 1):
        before = text[: header.start()]
        behind = text[header.end() : headers[number].start() if number < len(headers) else len(text)]
        titles = list(_TITLE.finditer(before))
        about = before[titles[-1].start() :] if titles else ""
        fields = dict(_FIELD.findall(about))
        rows = [row for row in behind.split("\n")[:-1] if re.match(r"\s*\d+\s+\d+\s", row)]
        if not rows:
            continue
        title = titles[-1][1] if titles else ""
        parsed = perftest.parse("\n".join([title, header[0], *rows, ""]))
        kind = title, *(fields.get(word, "") for word in ("Link type", "Mtu", "Number of qps"))
        by_size = {int(row.split()[0]): row.strip() for row in rows}
        rates = {
            row.size_bytes: (row.bytes_per_s, by_size[row.size_bytes])
            for row in parsed
            if isinstance(row, perftest.Bandwidth)
        }
        yield _Run(kind, fields.get("Device", ""), rates, fields.get("PCIe relax order") == "OFF")


def _slow(runs: Sequence[_Run], name: str) -> tuple[list[Found], bool]:
    """Cards far below the median of those that ran the same test at the largest size, and whether any had peers.

    Of several runs of a card the slowest counts.
    """
    kinds: dict[tuple[tuple[str, ...], int], dict[str, tuple[float, str]]] = defaultdict(dict)
    for run in runs:
        if run.device and run.rates:
            size = max(run.rates)
            cards = kinds[run.kind, size]
            cards[run.device] = min(cards.get(run.device, run.rates[size]), run.rates[size])
    found, peers = [], False
    for (_, size), cards in kinds.items():
        if len(cards) < _FEWEST:
            continue
        peers = True
        usual = median(rate for rate, _ in cards.values())
        for device, (rate, line) in cards.items():
            if rate < _SLOW * usual:
                what = (
                    f"moves {rate / 1e9:.1f} GB/s in messages of {size} bytes, the median card {usual / 1e9:.1f} GB/s"
                )
                fix = "its link's rate and width, its PCIe link, the NUMA node that the test ran on"
                confirm = "ibstat; lspci -vv | grep LnkSta"
                found.append(Found("slow_card", "error", (name,), device, what, f"{name}: {line}", confirm, fix))
    return found, peers
