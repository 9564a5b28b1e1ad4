"""Writes the table of all checks into docs/doctor.md: ``python -m tests.doctor.write_table``."""

from __future__ import annotations

from clusterbench.doctor.catalogue import markdown
from tests.doctor.test_catalogue import BEGIN, END, ROOT

if __name__ == "__main__":
    path = ROOT / "docs/doctor.md"
    head, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{head}{BEGIN}{markdown()}{END}{rest.partition(END)[2]}")
