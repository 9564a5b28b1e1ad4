"""Benchmarks and diagnoses clusters that train large models.

::

    rows = clusterbench.read_rows("reports/2026-03-02-1410-tp_scale")   # tidy: one row per figure
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterbench.derive import read_rows, wide_rows

__all__ = ["__version__", "read_rows", "wide_rows"]


def __getattr__(name: str) -> Any:
    # On demand, so that 'clusterbench --help' waits neither for pandas nor for the package's metadata.
    if name in ("read_rows", "wide_rows"):
        from clusterbench import derive

        return getattr(derive, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("clusterbench")
    raise AttributeError(f"module 'clusterbench' has no attribute '{name}'")
