"""Several runs in one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterbench.derive import write_rows
from clusterbench.diagnoses import examine
from clusterbench.errors import DiskError, SuiteError
from clusterbench.report import Report, page
from clusterbench.report.verdict import verdict
from clusterbench.run_directory import RunDirectory
from clusterbench.together import read_together


def render_together(runs: Sequence[RunDirectory], out: Path) -> Report:
    """Writes ``index.html`` and ``rows.csv`` of all runs into the new folder ``out``; the runs stay as they are.

    Raises
    ------
    SuiteError
        If ``out`` exists and is not empty.
    DiskError
        If it cannot be made.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SuiteError(f"{out} exists and is not empty.\nhint: name a new folder with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot make the folder {out}: {error.strerror}.\nhint: name another with --out") from None
    reading = read_together(runs)
    findings = examine(reading)
    judged = verdict(reading, findings)
    folder = RunDirectory(out)
    written = folder.write("index.html", page(reading, findings, judged))
    write_rows(folder, reading.rows)
    return Report(written, judged)
