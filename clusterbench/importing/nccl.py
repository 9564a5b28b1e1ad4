"""nccl-tests' table as it is printed, and its report in JSON, as cases.

Source: NVIDIA/nccl-tests, ``src/common.cu`` and ``src/util.cu`` (the JSON of ``-J``). That JSON lists every variable of
the environment, secrets among them: none is read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterbench.errors import SuiteError, ToolError, nearest
from clusterbench.formulas.collectives import BUS_FACTOR
from clusterbench.importing.records import ImportedCase
from clusterbench.run_folder.records import parsed
from clusterbench.text_files import read_text
from clusterbench.tools import nccl_tests
from clusterbench.tools._json import figure
from clusterbench.tools._prefix import plain_text
from clusterbench.tools._text import starts_with_figure, whole_lines
from clusterbench.types import metric_key

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
}
"""Programs of nccl-tests, without ``_perf``, and what their operation is called here."""

_DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
}
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+)")
_PROGRAM = re.compile(r"# Collective test starting: (\w+)_perf\s*")
_LIKENESS, _ROUNDED = 0.02, 1e8
_VERSIONS = (1, 2, 3)
_MOST_OF_A_PROCESS = 1024
_UNKNOWN_MEAN = "none"


@dataclass(frozen=True)
class Facts:
    """What the command line says that a file may not."""

    op: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None

    def hosts_of(self, name: str, num_ranks: int, seen: int = 0) -> int:
        """On how many hosts the ranks of file ``name`` ran; ``seen`` is how many its text tells, 0 where it tells none.

        Raises
        ------
        SuiteError
            If nothing says it, or these would be more hosts than ranks.
        """
        num_nodes = self.num_nodes or seen or (1 if num_ranks == 1 else 0)
        if not num_nodes:
            raise SuiteError(f"{name} does not say on how many hosts it ran.\nhint: say it with --num-nodes")
        if num_nodes > num_ranks:
            raise SuiteError(f"{name}: {num_ranks} ranks do not fill {num_nodes} nodes.")
        return num_nodes


@dataclass(frozen=True)
class Ran:
    """Where a program ran and which; ``hosts`` has one name for each rank."""

    program: str | None
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class NcclImport:
    """The cases of one file, the one kind of GPU they ran on (None where there are several), and what was left out."""

    cases: list[ImportedCase]
    gpu: str | None
    ranks_per_node: int
    notes: tuple[str, ...]


def looks_like(text: str) -> bool:
    """Whether nccl-tests printed it, as a table or as JSON, whatever stands before its lines."""
    text = nccl_tests.plain_table(plain_text(text))
    if text.lstrip().startswith("{"):
        return '"results"' in text and '"nccl_version"' in text
    return re.search(r"^#\s+size\s+count\s+type", text, re.MULTILINE) is not None


def read_nccl(path: Path, facts: Facts) -> NcclImport:
    """Every size of the file as a case.

    Raises
    ------
    SuiteError
        If it cannot be read whole, is wrong by its own verdict, or does not say what ran on how many ranks.
    """
    text = nccl_tests.plain_table(plain_text(read_text(path)))
    try:
        if text.lstrip().startswith("{"):
            rows, ran = _of_json(path.name, text)
        else:
            rows, ran = _of_text(path.name, text)
    except ToolError as error:
        raise SuiteError(f"{path.name}: {error}") from None
    return _cases(path.name, rows, ran, facts)


@dataclass(frozen=True)
class _Line:
    where: str
    dtype: str
    redop: str
    root: str
    row: nccl_tests.NcclRow


def _of_text(name: str, text: str) -> tuple[list[_Line], Ran]:
    if len(re.findall(r"^.*# Out of bounds values :", text, re.MULTILINE)) > 1:
        raise SuiteError(f"{name} holds several runs of nccl-tests.\nhint: a file each tells which figure is whose")
    table = nccl_tests.parse(text)
    if table.out_of_bounds:
        raise SuiteError(f"{name}: {table.out_of_bounds} checks failed in this run: its figures are of wrong results.")
    columns: list[str] = []
    numbered: list[tuple[int, dict[str, str]]] = []
    hosts: dict[int, tuple[str, str]] = {}
    program = None
    for number, line in enumerate(whole_lines(text), 1):
        cells = line.lstrip("# ").split()
        if match := _RANK.match(line):
            hosts[int(match[1])] = match[2], match[3].strip()
        elif match := _PROGRAM.match(line):
            program = match[1]
        elif line.startswith("#") and cells[:2] == ["size", "count"]:
            columns = cells
        elif columns and starts_with_figure(line):
            numbered.append((number, _before_the_time(columns, cells)))
    if sorted(hosts) != list(range(len(hosts))):
        hosts = {}  # the list was shortened: the rest does not say where the ranks were
    ran = Ran(program, tuple(hosts[rank][0] for rank in sorted(hosts)), tuple({gpu for _, gpu in hosts.values()}))
    lines = [
        _Line(f"{name}:{number}", cells.get("type", ""), cells.get("redop", ""), cells.get("root", ""), row)
        for (number, cells), row in zip(numbered, table.rows, strict=True)
    ]
    return lines, ran


def _before_the_time(columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """The cells before the time by name; where a blank one is missing, only the first three are sure."""
    first = columns.index("time")
    before = len(cells) - (len(columns) - first)
    names = columns[:first] if before == first else columns[: min(3, before)]
    return dict(zip(names, cells, strict=False))


def _of_json(name: str, text: str) -> tuple[list[_Line], Ran]:
    try:
        report = parsed(text.encode())
    except ValueError as error:
        raise SuiteError(f"{name}: not whole JSON: {error}.") from None
    version = report.get("version")
    if version not in _VERSIONS:
        versions = ", ".join(map(str, _VERSIONS))
        raise SuiteError(f"{name}: version {version!r} of nccl-tests' JSON is not known. Known: {versions}.")
    failed = figure("nccl-tests", report, "out_of_bounds.count")
    if failed:
        raise SuiteError(f"{name}: {failed:g} checks failed in this run: its figures are of wrong results.")
    results = report.get("results")
    if not isinstance(results, list) or not results:
        raise SuiteError(f"{name} holds no results.")
    args = report.get("args")
    words = re.match(r"(?:.*/)?(\w+)_perf$", str(args[0])) if isinstance(args, list) and args else None
    lines = [_json_line(name, f"results[{number}]", result) for number, result in enumerate(results)]
    return lines, Ran(words[1] if words else None, *_devices(report.get("config")))


def _devices(config: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Host of each rank and the kinds of GPU; nothing where they are not sure.

    A process writes the first of its ranks only, and has as many as it has threads times GPUs.
    """
    if not isinstance(config, Mapping) or not isinstance(devices := config.get("devices"), list):
        return (), ()
    per_process = int(figure("nccl-tests", config, "nthreads") * figure("nccl-tests", config, "ngpus"))
    if not 1 <= per_process <= _MOST_OF_A_PROCESS:
        return (), ()
    if not all(
        isinstance(device, Mapping) and device.get("rank") == index * per_process
        for index, device in enumerate(devices)
    ):
        return (), ()
    hosts = tuple(str(device.get("hostname", "")) for device in devices for _ in range(per_process))
    return hosts, tuple({str(device.get("device_info", "")) for device in devices})


def _json_line(name: str, place: str, result: Any) -> _Line:
    where = f"{name} {place}"
    if not isinstance(result, Mapping):
        raise SuiteError(f"{where} is no object.")
    halves = []
    for part in ("out_of_place", "in_place"):
        time_us = figure(place, result, f"{part}.time")
        wrong = result[part].get("nwrong")
        if time_us <= 0:
            raise SuiteError(f"{where}: {part}.time is {time_us:g}; it must be above 0.")
        if wrong not in (None, 0):
            raise SuiteError(f"{where}: {wrong} elements are wrong, so its figures are of wrong results.")
        algbw, busbw = (figure(place, result, f"{part}.{word}") * 1e9 for word in ("alg_bw", "bus_bw"))
        halves.append(nccl_tests.Placement(time_us / 1e6, algbw, busbw, None if wrong is None else 0))
    size, count = (int(figure(place, result, word)) for word in ("size", "count"))
    row = nccl_tests.NcclRow(size, count, *halves)
    for part, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        if half.algbw > _ROUNDED and not math.isclose(half.algbw, size / half.time_s, rel_tol=_LIKENESS):
            raise SuiteError(f"{where}: {part}.alg_bw is not its size over its time: the file contradicts itself.")
    return _Line(
        where, str(result.get("type", "")), str(result.get("redop", "")), str(result.get("root", "")).strip(), row
    )


def _cases(name: str, lines: Sequence[_Line], ran: Ran, facts: Facts) -> NcclImport:
    op = _op(name, ran, facts)
    world_size = facts.num_ranks or len(ran.hosts)
    if not world_size:
        nodes = "" if facts.num_nodes else ", and on how many nodes they were with --num-nodes"
        raise SuiteError(
            f"{name} does not list every rank, so their number is unknown.\nhint: say it with --num-ranks{nodes}"
        )
    if ran.hosts and facts.num_ranks and facts.num_ranks != len(ran.hosts):
        raise SuiteError(f"{name} lists {len(ran.hosts)} ranks, but --num-ranks says {facts.num_ranks}.")
    num_nodes = facts.num_nodes or len(dict.fromkeys(ran.hosts))
    if not num_nodes:
        raise SuiteError(f"{name} does not list the hosts of all ranks.\nhint: say how many with --num-nodes")
    if ran.hosts and facts.num_nodes and facts.num_nodes != len(set(ran.hosts)):
        raise SuiteError(f"{name} lists {len(set(ran.hosts))} hosts, but --num-nodes says {facts.num_nodes}.")
    if num_nodes > world_size:
        raise SuiteError(f"{name}: {world_size} ranks do not fill {num_nodes} nodes.")
    cases = [_case(line, op, world_size, num_nodes, ran.hosts) for line in lines if line.row.size_bytes]
    if not cases:
        raise SuiteError(f"{name} holds no row of a size above 0.")
    empty = len(lines) - len(cases)
    notes = (f"{name}: {empty} rows of 0 bytes are left out: they moved nothing",) if empty else ()
    per_node = max(Counter(ran.hosts).values()) if ran.hosts else -(-world_size // num_nodes)
    return NcclImport(cases, ran.gpus[0] if len(ran.gpus) == 1 else None, per_node, notes)


def _op(name: str, ran: Ran, facts: Facts) -> str:
    if facts.op is not None and facts.op not in BUS_FACTOR:
        raise SuiteError(
            f"--op {facts.op!r} is no collective.{nearest(facts.op, OPS.values())}\nCollectives: "
            f"{', '.join(OPS.values())}."
        )
    if ran.program is None:
        if facts.op is None:
            raise SuiteError(
                f"{name} does not say which collective it timed; versions before 2.17 do not print it.\n"
                f"hint: say it with --op, one of {', '.join(OPS.values())}"
            )
        return facts.op
    if ran.program not in OPS:
        raise SuiteError(f"{name}: '{ran.program}_perf' is not known. Known: {', '.join(OPS)}.")
    op = OPS[ran.program]
    if facts.op not in (None, op):
        raise SuiteError(f"{name} was printed by '{ran.program}_perf', but --op says {facts.op}.")
    return op


def _case(line: _Line, op: str, world_size: int, num_nodes: int, hosts: tuple[str, ...]) -> ImportedCase:
    if line.dtype not in _DTYPES:
        raise SuiteError(f"{line.where}: type {line.dtype!r} is not known. Known: {', '.join(_DTYPES)}.")
    point: dict[str, Any] = {"op": op, "size_bytes": line.row.size_bytes, "dtype": _DTYPES[line.dtype]}
    if line.redop not in ("", _UNKNOWN_MEAN):
        point["redop"] = line.redop
    if line.root not in ("", "-1"):
        point["root"] = line.root
    _expect_ranks(line, op, world_size)
    return ImportedCase(
        where=line.where,
        point=point,
        world_size=world_size,
        num_nodes=num_nodes,
        figures=dict(_figures(nccl_tests.unrounded(line.row, BUS_FACTOR[op](world_size)))),
        time_s=line.row.out_of_place.time_s,
        hosts=hosts,
    )


def _expect_ranks(line: _Line, op: str, world_size: int) -> None:
    """The file's own busbw over algbw is the factor of the collective on so many ranks."""
    factor = BUS_FACTOR[op](world_size)
    for half in (line.row.out_of_place, line.row.in_place):
        if half.algbw > 10 * _ROUNDED and abs(half.busbw / half.algbw - factor) > _LIKENESS * max(factor, 1):
            raise SuiteError(
                f"{line.where}: busbw over algbw is {half.busbw / half.algbw:.3f}, but {op} on {world_size} ranks has "
                f"the factor {factor:.3f}: it was another collective or another number of ranks."
            )


def _figures(row: nccl_tests.NcclRow) -> Iterator[tuple[str, float]]:
    for part, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        yield metric_key("latency", part=part), half.time_s
        yield metric_key("algbw", part=part), half.algbw
        yield metric_key("busbw", part=part), half.busbw
