"""Speeds that a table gives as FLOP/s or as a share of the peak: the times they stand for, if their count is known."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from clusterbench.formulas.statistics import median
from clusterbench.formulas.transformer import CONVENTIONS, hardware_flops, model_flops
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from clusterbench.pricing.profiles import PricedJob
    from clusterbench.pricing.step_table import TableRow

SIX_N, MEGATRON = "6n", "megatron"

COUNTS: Mapping[str, str] = {
    **CONVENTIONS,
    SIX_N: "6 N per token with N whole, attention left out; Kaplan et al. 2020, arXiv:2001.08361, section 2.1",
    MEGATRON: "as palm, and what is computed again; Narayanan et al. 2021, arXiv:2104.04473, equation 3",
}
"""How published FLOP may have been counted, by the words of a column ``flops_convention``."""

OF_MFU = "palm"
"""What MFU is where nobody says: the paper that defined it counts no recomputation, and attention without its mask."""

_WITH_ALL_AGAIN = ("palm, all layers computed again",)
_AS_PUBLISHED = 0.02  # figures have two or three digits
_NEARLY_ALL = 0.8
_CONTRADICTS = 0.05
_MOST_LINES = 5
_EVERY_RECOMPUTATION = ("none", "megatron_selective", "full", "megatron_full")
_OF_MEGATRON = {"selective": "megatron_selective", "selective+SP": "megatron_selective", "full": "megatron_full"}


def counted(priced: PricedJob, count: str) -> float:
    """FLOP of a step of all ranks, by one of :data:`COUNTS`, or as many as Megatron may have counted."""
    job = priced.job
    of_step = job.shape, job.seq_len, job.global_batch_size
    if count in _WITH_ALL_AGAIN:
        return hardware_flops(*of_step, "megatron_full", "palm")
    if count == SIX_N:
        return 6.0 * job.shape.num_active_parameters * job.tokens_per_step
    if count == MEGATRON:
        return hardware_flops(*of_step, _OF_MEGATRON.get(priced.recompute, "none"), "palm")
    return model_flops(*of_step, count)


@dataclass(frozen=True)
class _Figure:
    """A published speed of a row: FLOP/s of a GPU, and its name and value as the table has them."""

    row: TableRow
    priced: PricedJob
    name: str
    value: float
    flops_per_s: float

    @property
    def rounding(self) -> float:
        """Of the figure and of the row's time, as a share."""
        times = self.row.rounding.get("step_s", 0.0) / (self.row.step_s or 1.0)
        return self.row.rounding.get(self.name, 0.0) / self.value + times

    def step_s(self, count: str) -> float:
        return counted(self.priced, count) / (self.flops_per_s * self.priced.job.layout.world_size)


def timed(rows: Sequence[TableRow], peaks: Mapping[int, float]) -> tuple[list[TableRow], list[str]]:
    """The rows, with times where FLOP/s or MFU tell them, and what has to be said of that.

    Parameters
    ----------
    peaks
        FLOP/s of a row's card by its line, where that is known.
    """
    said: list[str] = []
    times: dict[int, float] = {}
    for name in ("tflops_per_gpu", "mfu"):
        figures = [of for row in rows if (of := _figure(row, name, peaks)) is not None]
        said += _contradictions([of for of in figures if of.row.step_s])
        without = [of for of in figures if not of.row.step_s and of.row.line not in times]
        # of a row whose FLOP may have been counted in any way its MFU, which comes next, tells the time
        has_mfu = {of.row.line for of in without if name == "tflops_per_gpu" and of.row.mfu and of.row.line in peaks}
        beyond = {of.row.line for of in without if of.flops_per_s > peaks.get(of.row.line, of.flops_per_s)}
        if beyond:
            said.append(f"{name} of {named_lines(sorted(beyond))} is more than the card's peak: not judged")
        told = _told_by_others([of for of in figures if of.row.step_s])
        said += _give_times([of for of in without if of.row.line not in beyond], told, times, has_mfu)
    said += _disagreements(rows, peaks)
    return [replace(row, step_s=times[row.line]) if row.line in times else row for row in rows], said


def _figure(row: TableRow, name: str, peaks: Mapping[int, float]) -> _Figure | None:
    value = row.tflops if name == "tflops_per_gpu" else row.mfu
    if value is None or row.priced is None:
        return None
    if name == "tflops_per_gpu":
        return _Figure(row, row.priced, name, value, 1e12 * value)
    return _Figure(row, row.priced, name, value, peaks[row.line] * value) if row.line in peaks else None


def _told_by_others(figures: Sequence[_Figure]) -> str | None:
    """The count that rows have used which have a time, too; None where no count explains nearly all of them."""
    off = {count: sorted(abs(of.step_s(count) / (of.row.step_s or 1) - 1) for of in figures) for count in COUNTS}
    explains = [
        count for count in COUNTS if figures and off[count][ceil(_NEARLY_ALL * len(figures)) - 1] <= _AS_PUBLISHED
    ]
    return min(explains, key=lambda count: median(off[count]), default=None)


def _give_times(
    figures: Sequence[_Figure], told: str | None, times: dict[int, float], told_otherwise: Container[int]
) -> Iterator[str]:
    counts: dict[tuple[str, str], list[_Figure]] = {}
    unknown: list[_Figure] = []
    for of in figures:
        if of.row.convention == MEGATRON and not of.row.says_recompute:
            unknown.append(of)
        elif of.row.convention:
            counts.setdefault((of.row.convention, "as the table says"), []).append(of)
        elif told is not None:
            counts.setdefault((told, "as the rows that have a time, too, were counted"), []).append(of)
        elif of.name == "mfu":
            counts.setdefault((OF_MFU, _about_mfu(figures)), []).append(of)
        elif of.row.line not in told_otherwise:
            unknown.append(of)
    for (count, why), alike in counts.items():
        times |= {of.row.line: of.step_s(count) for of in alike}
        yield (
            f"{alike[0].name} makes a time where there is none ({plural(len(alike), 'row')}): counted as {count} "
            f"({COUNTS[count].partition(';')[0]}), {why}"
        )
    if unknown:
        least, most = _spread(unknown, "palm", (*COUNTS, *_WITH_ALL_AGAIN))
        yield (
            f"NOT JUDGED: {plural(len(unknown), 'row')} with {unknown[0].name} and no time. How FLOP were counted "
            f"is not said, and by how it may be they stand for a time {least:+.0%} to {most:+.0%} off that by palm. "
            f"A column flops_convention says it: {', '.join(COUNTS)}, the last where recompute is said, too"
        )


def _about_mfu(figures: Sequence[_Figure]) -> str:
    least, most = _spread(figures, OF_MFU, (*CONVENTIONS, SIX_N))
    return (
        f"as Chowdhery et al. 2022 define MFU. By another count the times would be {least:+.0%} to {most:+.0%}; a "
        "column flops_convention says which"
    )


def _spread(figures: Sequence[_Figure], of: str, counts: Sequence[str] = tuple(COUNTS)) -> tuple[float, float]:
    """From what to what share other counts make the times shorter or longer."""
    ratios = [counted(each.priced, count) / counted(each.priced, of) - 1 for each in figures for count in counts]
    return min(ratios), max(ratios)


def _contradictions(figures: Sequence[_Figure]) -> Iterator[str]:
    """Rows whose figure no count of FLOP makes of their time."""
    wrong = [of for of in figures if min(_distances(of)) > _CONTRADICTS + of.rounding]
    if wrong:
        first = wrong[0]
        by_palm = first.value * first.step_s("palm") / (first.row.step_s or 1)
        yield (
            f"{first.name} is not what the measured time makes by any count of FLOP, to {_CONTRADICTS:.0%} and what "
            f"both are rounded to: {plural(len(wrong), 'row')}, {named_lines([of.row.line for of in wrong])} (in line "
            f"{first.row.line} {first.value:.4g}, and the time makes {by_palm:.4g} by palm). Times were taken"
        )


def _distances(of: _Figure) -> Iterator[float]:
    step_s, job = of.row.step_s or 1.0, of.priced.job
    published = of.flops_per_s * step_s * job.layout.world_size
    for count in COUNTS:
        yield abs(counted(of.priced, count) / published - 1)
    yield abs(4 / 3 * counted(of.priced, SIX_N) / published - 1)
    for again in _EVERY_RECOMPUTATION:
        for convention in ("palm", "causal"):
            flops = hardware_flops(job.shape, job.seq_len, job.global_batch_size, again, convention)
            yield abs(flops / published - 1)


def _disagreements(rows: Sequence[TableRow], peaks: Mapping[int, float]) -> Iterator[str]:
    """Rows whose FLOP/s are another share of the peak than their MFU."""
    both = [(row, 1e12 * row.tflops / peaks[row.line]) for row in rows if row.tflops and row.mfu and row.line in peaks]
    wrong = [(row, share) for row, share in both if abs(share / (row.mfu or 1) - 1) > _CONTRADICTS]
    if wrong:
        row, share = wrong[0]
        yield (
            f"mfu is not the share of the card's peak that tflops_per_gpu makes in {plural(len(wrong), 'row')}: "
            f"{named_lines([row.line for row, _ in wrong])} (in line {row.line} {row.mfu:.4g} and {share:.4g}): FLOP "
            "were counted in two ways, or the peak is another"
        )


def named_lines(numbers: Sequence[int]) -> str:
    """Lines of a table, the first few of many.

    >>> named_lines([3]), named_lines([2, 3, 4, 5, 6, 7, 8])
    ('line 3', 'lines 2, 3, 4, 5, 6 and 2 more')
    """
    return f"line{'s' if numbers[1:] else ''} {few(numbers, _MOST_LINES)}"
