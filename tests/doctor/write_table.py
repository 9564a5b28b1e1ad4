"""Writes the tables of all checks and of all samples into the documentation: ``python -m tests.doctor.write_table``."""

from __future__ import annotations

from pathlib import Path

from clusterbench.doctor.catalogue import markdown
from tests.doctor import samples_table, test_samples
from tests.doctor.samples import SAMPLES
from tests.doctor.test_catalogue import BEGIN, END, ROOT


def _write(path: Path, begin: str, table: str, end: str) -> None:
    head, _, rest = path.read_text().partition(begin)
    path.write_text(f"{head}{begin}{table}{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    _write(ROOT / "docs/doctor.md", BEGIN, markdown(), END)
    if SAMPLES.is_dir():
        _write(ROOT / "docs/samples.md", test_samples.BEGIN, samples_table.markdown(), test_samples.END)
