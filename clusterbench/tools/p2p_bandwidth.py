"""``p2pBandwidthLatencyTest`` of NVIDIA's CUDA samples: copies between each two GPUs, peer access on and off.

Source: NVIDIA/cuda-samples, ``Samples/5_Domain_Specific/p2pBandwidthLatencyTest``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import positive, whole_lines

_BEGIN = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"
_DEVICE = re.compile(r"Device: (\d+), (.+?), pciBusID: .*")
_PEER = re.compile(r"Device=(\d+) (CAN|CANNOT) Access Peer Device=(\d+)")
_TITLE = re.compile(r"(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth .*Matrix \(GB/s\)")
_ONE_WAY = re.compile(r"(?m)^ *Unidirectional P2P=Enabled Bandwidth .*Matrix \(GB/s\)")
_HEAD = re.compile(r"\s*D\\D((?:\s+\d+)+)\s*")
_ROW = re.compile(r"\s*(\d+)((?:\s+[\d.]+)+)\s*")

Matrix = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class P2pBandwidth:
    """Rates in B/s by (from, to), a GPU's with itself among them; ``peers`` says who can reach whose memory.

    ``one_way_off`` and ``one_way`` are in one direction without and with peer access, ``both_ways_off`` and
    ``both_ways`` in both at once. Of a part that was cut out all but ``one_way`` may be empty.
    """

    names: Mapping[int, str]
    peers: Mapping[tuple[int, int], bool]
    one_way_off: Matrix
    one_way: Matrix
    both_ways_off: Matrix
    both_ways: Matrix


def is_p2p_bandwidth(text: str) -> bool:
    """Whether a text is its output, or has the matrix of one direction with peer access that was cut out of it."""
    return _BEGIN in text or _ONE_WAY.search(text) is not None


def row_of(text: str, source: int) -> int:
    """Where in a text that :func:`parse` takes the row of a GPU begins, of copies in one direction with peer access."""
    title = _ONE_WAY.search(text)
    row = re.compile(rf"(?m)^\s*{source}\s+[\d.]").search(text, title.end() if title else 0)
    return row.end() if row else 0


def parse(text: str) -> P2pBandwidth:
    """What it measured.

    Raises
    ------
    ToolError
        If a matrix is missing, not square or there twice, or a cell is no number.
    """
    names: dict[int, str] = {}
    peers: dict[tuple[int, int], bool] = {}
    matrices: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    columns: list[int] = []
    current: dict[tuple[int, int], float] | None = None
    for line in whole_lines(text):
        if device := _DEVICE.fullmatch(line.strip()):
            names[int(device[1])] = device[2]
        elif peer := _PEER.fullmatch(line.strip()):
            peers[int(peer[1]), int(peer[3])] = peer[2] == "CAN"
        elif title := _TITLE.fullmatch(line.strip()):
            if (title[1], title[2]) in matrices:
                raise ToolError(
                    "the text holds several runs of p2pBandwidthLatencyTest: a file of each tells them apart"
                )
            current = matrices[title[1], title[2]] = {}
        elif current is not None and (head := _HEAD.fullmatch(line)):
            columns = [int(word) for word in head[1].split()]
        elif current is not None and (row := _ROW.fullmatch(line)):
            cells = row[2].split()
            if len(cells) != len(columns):
                raise ToolError(f"p2pBandwidthLatencyTest printed a row of {len(cells)} cells: {line.strip()!r}")
            for column, cell in zip(columns, cells, strict=True):
                current[int(row[1]), column] = positive("p2pBandwidthLatencyTest", cell, line) * 1e9
        else:
            current = None
    wanted = [(way, state) for way in ("Uni", "Bi") for state in ("Disabled", "Enabled")]
    needed = wanted if _BEGIN in text else {("Uni", "Enabled"), *matrices}
    if _BEGIN not in text:
        names = names or {source: "" for source, _ in matrices.get(("Uni", "Enabled"), {})}
    for way, state in needed:
        if len(matrices.get((way, state), {})) != len(names) ** 2 or not names:
            raise ToolError(f"p2pBandwidthLatencyTest: the matrix {way}directional P2P={state} is not whole")
    return P2pBandwidth(names, peers, *(matrices.get(each, {}) for each in wanted))
