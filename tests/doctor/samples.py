"""Where real output of public origin is; it is no part of the project."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
