"""Matrices of nvbandwidth, the cells of each held against each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.peers import WeakPairs, weak_gpus, weak_pairs
from clusterbench.doctor.readers._copies import OF_HOST, OF_PAIRS
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import nvbandwidth
from clusterbench.tools.nvbandwidth import MULTINODE, Matrix
from clusterbench.words import few, plural

_TITLE = re.compile(r"(?m)^\s*(?:mem|Device )[^\n]*GPU\(column\)[^\n]*\((?:GB/s|ns)\)\s*$")
_DEVICE = re.compile(r"(?m)^\s*Device (\d+): \S.*\([0-9A-Fa-f:.]+\)\s*$")
_PROCESS = re.compile(r"(?m)^\s*Process +(\d+) \((\S+)\): device (\d+): ")
_FAILED = re.compile(r"(?m)^.*\[?CUDA_ERROR_(?!NOT_SUPPORTED)[A-Z_]+\]?.*$")
_WRONG = re.compile(r"(?m)^.*Invalid value when checking the pattern.*$")
_ONE_BY_ONE = re.compile("host_to_device|device_to_host|host_device|device_local")
"""Tests of one GPU after the other. Where all copy at once they share the host, and healthy ones differ twofold."""


class NvbandwidthTables(HostText):
    """Pairs of GPUs, and GPUs with the host, that are far slower than the others of the same matrix.

    A cell ``N/A`` between two GPUs is a pair without access to each other's memory. A matrix with another number of
    GPUs than the list of devices contradicts it, and is not judged.
    """

    kind = "nvbandwidth"

    def holds(self, text: str) -> bool:
        is_json = text.lstrip().startswith("{") and '"nvbandwidth"' in text and '"testcases"' in text
        return (
            is_json
            or _TITLE.search(text) is not None
            or ("nvbandwidth Version" in text and bool(_FAILED.search(text) or _WRONG.search(text)))
        )

    def read(self, text: str, name: str) -> Said:
        if wrong := _WRONG.search(text):
            what = "nvbandwidth read back other data than it had copied"
            fix = "Xids and ECC errors; ACS and IOMMU off for bare metal; each pair of GPUs alone says which"
            evidence = f"{name}: {wrong[0].strip()}"
            return Said(
                found=(Found("wrong_result", "error", (name,), "", what, evidence, "nvidia-smi -q", fix),),
                hosts=(name,),
            )
        if failed := _FAILED.search(text):
            what, fix = "nvbandwidth failed: no figure of it counts", "look for Xids in the kernel's log"
            evidence = f"{name}: {failed[0].strip()}"
            return Said(
                found=(Found("nvbandwidth", "error", (name,), "", what, evidence, "nvidia-smi", fix),), hosts=(name,)
            )
        pieces = _of_json(text) if text.lstrip().startswith("{") else _pieces(text)
        matrices: dict[str, Matrix] = {}
        unclear: list[str] = []
        for test, piece in pieces.items():
            try:
                (matrices[test],) = nvbandwidth.parse(f"Running {test}.\n{piece.text}\n\n").values()
            except ToolError as error:
                unclear.append(str(error))
        devices = len({*_DEVICE.findall(text)})
        sized = {test: len({column for _, column in matrix.cells}) for test, matrix in matrices.items()}
        unlike = [test for test, number in sized.items() if devices and number > devices]
        judged = {test: matrix for test, matrix in matrices.items() if test not in unlike}
        found: list[Found] = []
        peers = num_alike = 0
        for test, matrix in judged.items():
            faults, why, cells = _judged(test, matrix, pieces[test], name)
            found += faults
            unclear += [why] if why else []
            peers += cells
            num_alike += cells > 0
        if unlike:
            unclear.append(f"{few(unlike)}: more GPUs in the matrix than the {devices} that are listed")
        if not peers and not unclear:
            unclear.append("no cell has a peer: every matrix is of one GPU, or of copies that share the host")
        unknown = tuple(NotJudged("weak_pair", (name,), why, "another host's output") for why in dict.fromkeys(unclear))
        what = f"{plural(peers, 'cell')} of {plural(num_alike, 'matrix', 'matrices')} alike for every GPU"
        healthy = (Healthy("weak_pair", (name,), what),) if peers and not found else ()
        return Said(found=tuple(found), healthy=healthy, not_judged=unknown, hosts=(name,))


class _Piece(NamedTuple):
    """A matrix with its title, which stands in a line of the text; rows of JSON have no lines of their own.

    ``of_processes`` has the GPUs of a run on several hosts, whose rows are processes.
    """

    line: int
    text: str
    has_rows: bool = True
    of_processes: Mapping[int, str] = {}

    def gpu(self, row: int) -> str:
        return self.of_processes.get(row, f"GPU {row}")

    def row(self, row: int) -> str:
        """``12: 3 150.00 N/A``: a row as printed, behind the matrix' title and head, with its line."""
        lines = self.text.split("\n")
        index = next((index for index, line in enumerate(lines) if index > 1 and line.split()[:1] == [str(row)]), 0)
        return f"{self.line + (index if self.has_rows else 0)}: {lines[index].strip()}"


def _pieces(text: str) -> dict[str, _Piece]:
    """The matrices of each test, from its title on; a test that prints several gives each a word of its title's end.

    Where its name was not copied, the sum below it has it; a matrix between GPUs is judged without a name, too. Where a
    test ran several times, each run is numbered.
    """
    pieces: dict[str, _Piece] = {}
    of_processes = {int(process): f"GPU {device} of {host}" for process, host, device in _PROCESS.findall(text)}
    for title in _TITLE.finditer(text):
        running = re.findall(r"Running (\w+)", text[: title.start()])
        running = running or re.findall(r"SUM (\w+)", text[title.end() :])[:1] or [f"unnamed_test_{len(pieces) + 1}"]
        suffix = re.search(r"GPU\(column\) (\w+) bandwidth", title[0])
        test = f"{running[-1]}_{suffix[1].lower()}" if suffix else running[-1]
        again = sum(other.partition("_run")[0] == test for other in pieces)
        test += f"_run{again + 1}" if again else ""
        start = title.end() - len(title[0].lstrip())
        lines = text[start:].split("\n")
        end = next((number for number, line in enumerate(lines) if not line.strip()), None)
        whole = "\n".join(lines[:end] if end is not None else lines[:-1])
        of_hosts = of_processes if test.startswith(MULTINODE) else {}
        pieces[test] = _Piece(text.count("\n", 0, start) + 1, whole, of_processes=of_hosts)
    return pieces


def _of_json(text: str) -> dict[str, _Piece]:
    """The same of the report of ``-j``."""
    try:
        report = json.loads(text)
        tests = report["nvbandwidth"]["testcases"]
        return {
            test["name"]: _Piece(
                text.count("\n", 0, max(0, text.find(json.dumps(test["name"])))) + 1,
                "\n".join(_lines_of_json(test["bandwidth_description"], test["bandwidth_matrix"])),
                has_rows=False,
            )
            for test in tests
            if test.get("bandwidth_matrix")
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _lines_of_json(title: str, rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield title
    yield " ".join(map(str, range(len(rows[0]))))
    yield from (" ".join(map(str, [number, *row])) for number, row in enumerate(rows))


def _judged(test: str, matrix: Matrix, piece: _Piece, name: str) -> tuple[list[Found], str, int]:
    """What is slow in one matrix, what is not clear, and how many cells have peers, where all is clear."""
    # A latency is held against others as what can be done in a second, so that more is better in both.
    rates = {pair: cell if matrix.unit == "B/s" else 1 / cell for pair, cell in matrix.cells.items()}
    if matrix.between_gpus:
        said = weak_pairs(_with_refused(rates))
        worst = sorted(said.pairs, key=lambda pair: rates.get(pair, 0.0))
        shown = worst[:1] if said.gpu is not None else worst
        return [*_of_pairs(test, matrix, shown, said, piece, name)], said.unclear, 0 if said.unclear else len(rates)
    if not _ONE_BY_ONE.match(test):
        return [], "", 0
    found, unclear = [], ""
    rows = sorted({row for row, _ in rates})
    for row in rows:
        of_gpu = {column: rate for (at, column), rate in rates.items() if at == row}
        said_of_gpus = weak_gpus(of_gpu)
        unclear = unclear or said_of_gpus.unclear
        for gpu in said_of_gpus.gpus:
            what = f"{test}: {_words(of_gpu[gpu], matrix)}, the median GPU {_words(said_of_gpus.usual, matrix)}"
            evidence = f"{name}:{piece.row(row)}"
            found.append(Found("weak_copy", "error", (name,), f"GPU {gpu}", what, evidence, *OF_HOST))
    return found, unclear, len(rates) if len(rates) > len(rows) and not unclear else 0


def _of_pairs(
    test: str, matrix: Matrix, pairs: Sequence[tuple[int, int]], said: WeakPairs, piece: _Piece, name: str
) -> Iterator[Found]:
    for pair in pairs:
        of_pair = " and ".join(map(piece.gpu, pair))
        where = of_pair if said.gpu is None else f"{piece.gpu(said.gpu)} and all others"
        rate = matrix.cells.get(pair)
        own = "N/A" if rate is None else _words(rate if matrix.unit == "B/s" else 1 / rate, matrix)
        what = f"{test}: {own}, the median pair {_words(said.usual, matrix)}"
        evidence = f"{name}:{piece.row(pair[0])}"
        yield Found("weak_pair", "error", (name,), where, what, evidence, *OF_PAIRS)


def _with_refused(rates: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """All pairs of the GPUs that have any; those without a rate refused."""
    gpus = {gpu for pair in rates for gpu in pair}
    return {(row, column): rates.get((row, column), 0.0) for row in gpus for column in gpus if row != column}


def _words(rate: float, matrix: Matrix) -> str:
    return f"{rate / 1e9:.1f} GB/s" if matrix.unit == "B/s" else f"{1e9 / rate:.0f} ns"
