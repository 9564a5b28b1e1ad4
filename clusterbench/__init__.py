"""Benchmarks and diagnoses clusters that train large models.

::

    rows = clusterbench.read_rows("reports/2026-03-02-1410-tp_scale")   # tidy: one row per figure
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterbench.api import plan, read, run
    from clusterbench.cluster import Cluster
    from clusterbench.derive import read_rows, wide_rows
    from clusterbench.errors import ClusterbenchError

    __version__: str

__all__ = ["Cluster", "ClusterbenchError", "__version__", "plan", "read", "read_rows", "run", "wide_rows"]

_MODULES = {
    "Cluster": "cluster",
    "ClusterbenchError": "errors",
    "plan": "api",
    "read": "api",
    "read_rows": "derive",
    "run": "api",
    "wide_rows": "derive",
}


def __getattr__(name: str) -> Any:
    # On demand, so that 'clusterbench --help' waits neither for pandas nor for the package's metadata.
    if name in _MODULES:
        return getattr(import_module(f"clusterbench.{_MODULES[name]}"), name)
    if name == "__version__":
        from clusterbench.own_copy import version

        return version()
    raise AttributeError(f"module 'clusterbench' has no attribute '{name}'")
