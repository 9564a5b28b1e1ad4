"""``nvidia-smi topo -m`` and ``topo -p2p``: how GPUs and network cards of a host reach each other.

The header is underlined with escapes, also in a file. Cards are columns named ``NIC0`` with a legend, or on older
drivers by their own name, cut to seven characters and so not always distinct. The rows of cards end without affinities,
and newer drivers put an empty cell before ``GPU NUMA ID``. Cells are apart by tabs, or, once pasted, by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.errors import ToolError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|[a-z]\w*")
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+|C2C")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|N/A")
_MEANING = re.compile(r"\s+(\S+)\s+= (.+)")
_NIC = re.compile(r"\s+(NIC\d+): (\S+)")

NOT_APPLICABLE = "N/A"


@dataclass(frozen=True)
class Topology:
    """How devices reach each other.

    Attributes
    ----------
    devices
        In order of the columns: ``GPU0``, ``mlx5_0``. Names that the driver cut until they were the same get
        ``#`` and a number: ``mlx5_ib#0``.
    paths
        ``paths[a][b]``, the kind: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``, and ``X`` to itself.
    cpus
        CPUs near each device, as the driver writes them (``0-31,64-95``); a device without an answer is absent.
    numa_nodes
        NUMA nodes near each device, as the driver writes them (``0``, ``0-1``).
    nic_names
        The legend: ``NIC0`` -> ``mlx5_0``.
    legend
        What each kind means, in this driver's words.
    """

    devices: tuple[str, ...]
    paths: Mapping[str, Mapping[str, str]]
    cpus: Mapping[str, str]
    numa_nodes: Mapping[str, str]
    nic_names: Mapping[str, str]
    legend: Mapping[str, str]

    def __post_init__(self) -> None:
        for device in self.devices:
            if missing := set(self.devices) - self.paths.get(device, {}).keys():
                raise ValueError(f"the matrix has no path from {device} to {min(missing)}")

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if name not in self.gpus)

    def links(self, device: str, peer: str) -> int:
        """NVLinks bonded between two devices; 0 where they are joined by PCIe, or are one."""
        bond = re.fullmatch(r"NV(\d+)", self.paths[device][peer])
        return int(bond[1]) if bond else 0


def parse_gpus(text: str) -> Topology:
    """The GPUs' rows and columns alone, where those of network cards were left out.

    Raises
    ------
    ToolError
        If the header or the row of a GPU is missing, or a cell is none of the kinds there are.
    """
    lines = _ESCAPE.sub("", text).splitlines()
    columns, rest = _header(lines, "nvidia-smi topo -m")
    gpus = [column for column in columns if re.fullmatch(r"GPU\d+", column)]
    rows = _rows(rest, gpus, "nvidia-smi topo -m")
    paths = {name: dict(zip(gpus, cells, strict=False)) for name, (cells, _) in rows.items()}
    for name, path in paths.items():
        if len(path) < len(gpus) or not all(map(_CELL.fullmatch, path.values())):
            raise ToolError(f"nvidia-smi topo -m has a row that cannot be read for {len(gpus)} GPUs: {rows[name][1]!r}")
    _expect_symmetric(paths)
    return Topology(tuple(gpus), paths, {}, {}, {}, {})


def parse(text: str) -> Topology:
    """The matrix of ``nvidia-smi topo -m``.

    Raises
    ------
    ToolError
        If the header is missing, a row is missing or cut, or a cell is none of the kinds there are.
    """
    lines = _ESCAPE.sub("", text).splitlines()
    columns, rest = _header(lines, "nvidia-smi topo -m")
    names = _distinct([column for column in columns if column not in _AFFINITIES])
    affinities = [column for column in columns if column in _AFFINITIES]
    paths: dict[str, dict[str, str]] = {}
    cpus: dict[str, str] = {}
    nodes: dict[str, str] = {}
    rows = _rows(rest, names, "nvidia-smi topo -m")
    for name, (cells, line) in rows.items():
        path, near = cells[: len(names)], cells[len(names) :]
        if len(path) < len(names) or not all(map(_CELL.fullmatch, path)):
            raise ToolError(f"nvidia-smi topo -m has a row that cannot be read for {len(names)} devices: {line!r}")
        paths[name] = dict(zip(names, path, strict=True))
        answers = _near(near, affinities, line)
        if cpu := answers.get("CPU Affinity"):
            cpus[name] = cpu
        if node := answers.get("NUMA Affinity"):
            nodes[name] = node
    _expect_symmetric(paths)
    nics = {match[1]: match[2] for line in rest if (match := _NIC.fullmatch(line.rstrip()))}
    return Topology(tuple(names), paths, cpus, nodes, nics, _legend(rest))


@dataclass(frozen=True)
class PeerAccess:
    """``status[a][b]``: ``OK``, or why GPU a has no access to the memory of b: ``CNS``, ``GNS``, ``TNS``, ``NS``.

    ``X`` is itself; ``legend`` says what each means, in this driver's words.
    """

    devices: tuple[str, ...]
    status: Mapping[str, Mapping[str, str]]
    legend: Mapping[str, str]


def parse_peers(text: str) -> PeerAccess:
    """The matrix of ``nvidia-smi topo -p2p r`` (or ``w``, ``n``, ``a``).

    Raises
    ------
    ToolError
        If the header is missing, or a row is missing or cut.
    """
    lines = _ESCAPE.sub("", text).splitlines()
    columns, rest = _header(lines, "nvidia-smi topo -p2p")
    status = {}
    for name, (cells, line) in _rows(rest, columns, "nvidia-smi topo -p2p").items():
        if len(cells) != len(columns) or not all(re.fullmatch("[A-Z]+", cell) for cell in cells):
            raise ToolError(f"nvidia-smi topo -p2p has a row that cannot be read for {len(columns)} GPUs: {line!r}")
        status[name] = dict(zip(columns, cells, strict=True))
    return PeerAccess(tuple(columns), status, _legend(rest))


def _header(lines: Sequence[str], program: str) -> tuple[list[str], Sequence[str]]:
    """The columns, and the lines under them."""
    for number, line in enumerate(lines):
        words = re.sub(r"(CPU|NUMA) (Affinity)|GPU (NUMA) (ID)", lambda match: match[0].replace(" ", "_"), line).split()
        columns = [word.replace("_", " ") if word.replace("_", " ") in _AFFINITIES else word for word in words]
        # A row begins with a name, too, and then holds an X.
        if columns[:1] == ["GPU0"] and "X" not in columns:
            devices = [column for column in columns if column not in _AFFINITIES]
            if columns[: len(devices)] != devices or not all(map(_DEVICE.fullmatch, devices)):
                raise ToolError(f"{program} has a header that cannot be read: {line.strip()!r}")
            return columns, lines[number + 1 :]
    raise ToolError(f"{program} printed no header: {' '.join(lines).strip()[:200]!r}")


def _rows(lines: Sequence[str], names: Sequence[str], program: str) -> dict[str, tuple[list[str], str]]:
    """The cells of each device's row, and the row itself; rows stand in the order of the columns."""
    rows: dict[str, tuple[list[str], str]] = {}
    for name in names:
        line = lines[len(rows)].rstrip() if len(rows) < len(lines) else ""
        first, *cells = line.split("\t") if "\t" in line else line.split() or [""]
        if first.strip() != name.partition("#")[0]:
            raise ToolError(f"{program} lacks the row of {name}; instead there is {line!r}")
        rows[name] = ([cell.strip() for cell in cells], line)
    return rows


def _near(cells: Sequence[str], columns: Sequence[str], line: str) -> dict[str, str]:
    """CPUs and NUMA nodes; the driver leaves cells empty, and pasting loses them, so only the first two are certain."""
    answers = dict(zip(columns, cells, strict=False))
    for column in ("CPU Affinity", "NUMA Affinity"):
        answer = answers.get(column, "")
        if answer and not _CPUS.fullmatch(answer):
            raise ToolError(f"nvidia-smi topo -m has a '{column}' that cannot be read, {answer!r}: {line!r}")
        if answer == NOT_APPLICABLE:
            del answers[column]
    return answers


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that occur once stay; of others each gets its number among its like."""
    last: dict[str, int] = {}
    distinct = []
    for name in names:
        number = last[name] = last.get(name, -1) + 1
        distinct.append(f"{name}#{number}" if names.count(name) > 1 else name)
    return distinct


def _expect_symmetric(paths: Mapping[str, Mapping[str, str]]) -> None:
    """A cut or shifted row shows in a diagonal or in a pair that is not the same from both sides."""
    for device, row in paths.items():
        for peer, kind in row.items():
            if (kind == "X") != (device == peer) or kind != paths[peer][device]:
                raise ToolError(
                    f"nvidia-smi topo -m contradicts itself: {device} reaches {peer} by {kind}, and back by "
                    f"{paths[peer][device]}"
                )


def _legend(lines: Sequence[str]) -> dict[str, str]:
    return {match[1]: match[2].strip() for line in lines if (match := _MEANING.fullmatch(line))}
