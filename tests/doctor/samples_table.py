"""The table of docs/samples.md: what is said of each text of public origin, by which line, and by what it is read."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterbench.doctor import Examination
from clusterbench.doctor.logs import examine_logs
from clusterbench.errors import SuiteError
from clusterbench.importing import Facts, import_files
from tests.doctor.samples import FAULTY, SAMPLES

WORDS = {"SUSPECT": "faulty", "HEALTHY": "healthy", "NOT JUDGED": "cannot tell"}
_OPS = {"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all", "broadcast": "broadcast"}
_OPS |= {"reduce": "reduce", "reducescatter": "reduce_scatter"}
"""What the command line says of a table of nccl-tests that does not name its collective."""


@dataclass(frozen=True)
class Row:
    """One sample. ``verdict`` is healthy, faulty, cannot tell, or refused; ``why`` names checks, and a fault's line."""

    name: str
    kinds: str
    verdict: str
    why: str
    imported: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return self.name, self.kinds, self.verdict, self.why, "yes" if self.imported else ""


@cache
def rows() -> list[Row]:
    """Every sample in the order of their names."""
    files = (path for path in SAMPLES.iterdir() if path.suffix != ".source" and path.name != "README.md")
    return [_row(path) for path in sorted(files)]


def markdown() -> str:
    """The table, below a sentence of numbers."""
    said = rows()
    of_verdict = Counter(row.verdict for row in said)
    numbers = ", ".join(f"{of_verdict[word]} {word}" for word in ("healthy", "faulty", "cannot tell", "refused"))
    both = sum(row.imported for row in said)
    lines = [
        f"{len(said)} samples: {numbers}; {both} are tables that `clusterbench import` takes.",
        "",
        "| sample | read as | says | by | import |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row.cells)} |" for row in said),
    ]
    return "".join(f"{line}\n" for line in lines)


def _row(path: Path) -> Row:
    imported = _is_imported(path)
    try:
        examination, taken = examine_logs([path])
    except SuiteError as error:
        unknown = "nothing in it is known" in str(error)
        return Row(path.name, "", "refused", "of no known program" if unknown else "lines were left out", imported)
    kinds = taken[0].partition(": ")[2].replace("|", "\\|")
    return Row(path.name, kinds, WORDS[examination.word], "; ".join(dict.fromkeys(_why(path, examination))), imported)


def _why(path: Path, examination: Examination) -> Iterator[str]:
    """Names of checks alone: texts hold names of hosts."""
    if examination.word == "SUSPECT":
        first = next(found for found in examination.found if found.counts)
        cited = re.match(r"[^:\s]+?:(\d+)\b", first.evidence)
        line = int(cited[1]) if cited else _line_of(path)
        yield f"`{first.name}`" + (f", line {line}" if line else "")
    elif examination.word == "HEALTHY":
        yield from (f"`{said.name}`" for said in examination.healthy[:4])
    else:
        yield from (f"in order: `{said.name}`" for said in examination.healthy[:2])
        yield from (f"not judged: `{part.name}`" for part in examination.not_judged[:2])


def _line_of(path: Path) -> int | None:
    """The first line that shows a fault which the doctor finds in many lines together, or in JSON."""
    known = FAULTY.get(path.name, ("", ""))[1]
    lines = path.read_text(errors="replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if known and known in line), None)


def _is_imported(path: Path) -> bool:
    words = path.name.split("_")
    op = next((_OPS[word] for word in words if word in _OPS), None)
    choices = (Facts(), Facts(op=op), Facts(num_ranks=16, num_nodes=2))
    return any(_takes(path, facts) for facts in choices)


def _takes(path: Path, facts: Facts) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            import_files([path], out=Path(folder) / "run", facts=facts)
        except SuiteError:
            return False
    return True
