"""Steps to price and what was measured of them: the rows of a table, or the cases of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterbench.fingerprint import UNKNOWN, Fingerprint
from clusterbench.pricing.probes import Probe
from clusterbench.pricing.profiles import PricedJob

WRONG_RESULT = "its result was wrong"
"""The reason of a case of a run that no time is taken of."""

_ABOUT_ZERO = "so each rank of dp holds all of the optimizer's states"


@dataclass(frozen=True)
class TableRow:
    """A row as it may be priced.

    Attributes
    ----------
    model, gpu
        As the table has them.
    priced
        None where it cannot be told what ran; ``reason`` then says why.
    step_s, memory_gb
        Measured, where they were.
    elsewhere
        Of a case that needs more nodes than its run had: the step that it would be.
    says_zero, says_recompute
        Whether it names a stage of ZeRO, and what is computed again.
    tflops, mfu, convention
        FLOP/s of a GPU in units of 1e12 and their share of its peak, as published, and how they were counted, where
        the table says so.
    rounding
        What figures are rounded to at most, by column, in our units.
    out_of_memory
        Whether it did not run for that.
    is_unread
        Whether the reason is a cell that cannot be read.
    """

    line: int
    model: str
    gpu: str
    priced: PricedJob | None = None
    reason: str = ""
    step_s: float | None = None
    memory_gb: float | None = None
    elsewhere: PricedJob | None = None
    says_zero: bool = True
    says_recompute: bool = True
    tflops: float | None = None
    mfu: float | None = None
    convention: str = ""
    rounding: Mapping[str, float] = field(default_factory=dict)
    out_of_memory: bool = False
    is_unread: bool = False


@dataclass(frozen=True)
class StepTable:
    """All rows of a table, or cases of a run, and what was taken for empty cells, in words.

    ``has_lines`` tells a table from a run, whose cases are counted from 1; ``machine`` is that of the run, and
    ``probes`` are its figures of products, copies, collectives and messages. ``memory`` says which memory was measured,
    as the column's name has it, and ``not_read`` are columns of results. ``rates`` is the file that the run was given,
    and ``unused`` says why its reports do not use it.
    """

    name: str
    rows: Sequence[TableRow]
    defaults: Sequence[str] = ()
    has_lines: bool = True
    machine: Fingerprint = UNKNOWN
    probes: Sequence[Probe] = ()
    memory: str = ""
    not_read: Sequence[str] = ()
    rates: Path | None = None
    unused: Sequence[str] = ()

    def place(self, row: TableRow) -> str:
        """Where a row stands: ``steps.csv:12``, or the case of a run."""
        return f"{self.name}:{row.line}" if self.has_lines else f"{self.name}: {row.model}"


def as_usual(table: StepTable, zero: int, dp_overlap: str, reduce_dtype: str = "") -> StepTable:
    """The table with what a profile takes of rows that do not say it; see :class:`~.profiles.Profile`.

    A row that says whether gradients are hidden has a reason where that is no choice.
    """
    rows, said = [], Counter[str]()
    for row in table.rows:
        of = row.priced
        if of is not None and of.job.layout.degree(of.job.layout.data_axis) > 1:
            if not row.says_zero:
                of = replace(of, job=replace(of.job, layout=replace(of.job.layout, zero=zero)))
                row = replace(row, priced=of, says_zero=True)
                said[f"zero is not said: {zero} taken, {_ABOUT_ZERO if zero == 0 else 'as the profile has it'}"] += 1
            if dp_overlap and of.dp_overlap is None:
                said[f"dp_overlap is not said: {dp_overlap}"] += of.job.layout.zero == 1
            elif not dp_overlap and of.dp_overlap is not None:
                row = replace(row, priced=None, reason="dp_overlap is said, and is no choice in this profile")
            if reduce_dtype and not of.reduce_dtype:
                said[f"reduce_dtype is not said: gradients are sent in {reduce_dtype}"] += 1
            elif not reduce_dtype and of.reduce_dtype not in ("", "float32"):
                why = f"reduce_dtype is {of.reduce_dtype}, and this profile sends gradients in float32"
                row = replace(row, priced=None, reason=why)
        rows.append(row)
    words = [f"{what}: {number} of {len(rows)} rows" for what, number in said.items() if number]
    return replace(table, rows=rows, defaults=[*table.defaults, *words])
