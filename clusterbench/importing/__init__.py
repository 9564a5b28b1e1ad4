"""Results of other tools as an ordinary run: nccl-tests, nanotron, kinds of ``outputs/``, any CSV with a mapping.

Figures stay what the file says; each case names file and line. A file that cannot be read whole, or that contradicts
itself, is one error and no run.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from clusterbench.errors import SuiteError, ToolError
from clusterbench.importing.mapping import Mapped, load_mapping, read_mapping
from clusterbench.importing.nanotron import MAPPING, SIGNS, is_nanotron
from clusterbench.importing.nccl import Facts, looks_like, read_nccl
from clusterbench.importing.output import Output
from clusterbench.importing.outputs import outputs
from clusterbench.importing.records import Contents, ImportedCase, nodes, write_import
from clusterbench.importing.table import header_of, read_table
from clusterbench.run_folder import RunFolder, default_path
from clusterbench.text_files import read_text
from clusterbench.tools._prefix import plain_text

__all__ = ["Facts", "import_files"]

_NOTHING = Facts()


def import_files(
    files: Sequence[Path],
    mapping: Path | None = None,
    out: Path | None = None,
    facts: Facts = _NOTHING,
) -> RunFolder:
    """The run that holds every row of ``files``.

    Parameters
    ----------
    mapping
        What the columns of a CSV mean. Without it the files must be of a kind that is known.
    out
        The run's folder; by default ``reports/DATE-TIME-NAME``.
    facts
        What a table of nccl-tests may leave out.

    Raises
    ------
    SuiteError
        For every mistake of a file or the mapping, with its place.
    RunFolderError
        If the folder cannot be written.
    """
    names = Counter(file.name for file in files)
    if twice := [name for name, number in names.items() if number > 1]:
        raise SuiteError(f"two files are called {twice[0]}, so their rows would have the same source.")
    contents = _contents(files, mapping, facts)
    checksums = {file.name: f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files}
    return write_import(out or default_path(Path("reports"), contents.name, datetime.now()), contents, checksums)


def _contents(files: Sequence[Path], mapping: Path | None, facts: Facts) -> Contents:
    if mapping is not None:
        if facts != _NOTHING:
            raise SuiteError("--op, --num-ranks and --num-nodes are for nccl-tests; a mapping says it for each row.")
        return _by_mapping(files, load_mapping(mapping))
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        raise SuiteError(f"the files are of several kinds: {', '.join(sorted(kinds))}.\nhint: import each kind alone")
    if kinds == {"nanotron"}:
        if facts != _NOTHING:
            raise SuiteError("--op, --num-ranks and --num-nodes are for nccl-tests; nanotron's CSV says it itself.")
        return _by_mapping(files, read_mapping(MAPPING, "nanotron's columns"))
    kind = next((output for output in outputs() if {output.tool} == kinds), None)
    return _of_nccl(files, facts) if kind is None else _of_output(files, kind, facts)


def _kind(file: Path) -> str:
    text = read_text(file)
    if looks_like(text):
        return "nccl-tests"
    plain = plain_text(text)
    if kind := next((output for output in outputs() if output.holds(plain)), None):
        return kind.tool
    header = text.lstrip().partition("\n")[0]
    if all(sign in header for sign in SIGNS) and is_nanotron(header_of(file)):
        return "nanotron"
    known = ", ".join(output.tool for output in outputs())
    raise SuiteError(
        f"{file} is neither a table or JSON of nccl-tests nor a CSV of nanotron (with columns {', '.join(SIGNS)}), nor "
        f"what one of these printed: {known}.\n"
        "hint: say what the columns of a CSV mean with --mapping FILE: docs/importing.md; 'clusterbench doctor --log "
        f"{file}' judges what other programs printed: docs/doctor.md"
    )


def _of_output(files: Sequence[Path], kind: Output, facts: Facts) -> Contents:
    given = {name for name, value in vars(facts).items() if value is not None}
    if left := sorted(given - kind.takes):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in left)
        raise SuiteError(f"{options}: not for {kind.tool}, whose output says it itself.")
    reads = []
    for file in files:
        try:
            reads.append(kind.read(file.name, plain_text(read_text(file)), facts))
        except ToolError as error:
            raise SuiteError(f"{file.name}: {error}") from None
    cases = _repeats(case for read in reads for case in read.cases)
    lines = "".join(f"# {file.name}\n" for file in files)
    return Contents(
        name=re.sub(r"\W+", "-", kind.tool.lower()),
        question=kind.question,
        source=kind.tool,
        device=kind.device,
        gpu=None,
        ranks_per_node=max(nodes(case.world_size, case.num_nodes) for case in cases),
        cases=cases,
        text=f"# Imported by 'clusterbench import' from the output of {kind.tool}:\n{lines}".encode(),
        notes=tuple(note for read in reads for note in read.notes),
    )


def _by_mapping(files: Iterable[Path], mapped: Mapped) -> Contents:
    cases = [case for file in files for case in read_table(file, mapped)]
    per_node = mapped.gpus_per_node or max(nodes(case.world_size, case.num_nodes) for case in cases)
    return Contents(
        name=mapped.name,
        question=mapped.question or f"What does {mapped.source or mapped.name} show?",
        source=mapped.source,
        device=mapped.device,
        gpu=mapped.gpu,
        ranks_per_node=per_node,
        cases=_attempts(cases) if mapped.attempts else cases,
        text=mapped.text,
    )


def _attempts(cases: Iterable[ImportedCase]) -> list[ImportedCase]:
    """Rows of one configuration numbered, in their order: each stays a case of its own."""
    return [replace(case, point={**case.point, "attempt": number}) for case, number in _counted(cases)]


def _repeats(cases: Iterable[ImportedCase]) -> list[ImportedCase]:
    """The same, of a program that ran again; the first keeps its configuration, which one that ran once has, too."""
    return [
        replace(case, point={**case.point, "attempt": number}) if number > 1 else case
        for case, number in _counted(cases)
    ]


def _counted(cases: Iterable[ImportedCase]) -> Iterator[tuple[ImportedCase, int]]:
    counts: Counter[object] = Counter()
    for case in cases:
        key = case.world_size, case.num_nodes, tuple(case.point.items())
        counts[key] += 1
        yield case, counts[key]


def _of_nccl(files: Sequence[Path], facts: Facts) -> Contents:
    tables = [read_nccl(file, facts) for file in files]
    gpus = {table.gpu for table in tables}
    lines = "".join(f"# {file.name}\n" for file in files)
    cases = _repeats(case for table in tables for case in table.cases)
    ops = ", ".join(dict.fromkeys(str(case.point["op"]) for case in cases))
    return Contents(
        name="nccl-tests",
        question=f"How fast is NCCL by nccl-tests: {ops}?",
        source="nccl-tests",
        device="cuda",
        gpu=next(iter(gpus)) if len(gpus) == 1 else None,
        ranks_per_node=max(table.ranks_per_node for table in tables),
        cases=cases,
        text=f"# Imported by 'clusterbench import' from the output of nccl-tests:\n{lines}".encode(),
        notes=tuple(note for table in tables for note in table.notes),
    )
