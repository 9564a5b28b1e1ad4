from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24
_BENCHMARKS = ("file_io", "checkpoint", "token_reads")


@dataclass(frozen=True)
class Rate:
    """One bar: ``value`` in bytes per second of all ranks, or None and how the case ended.

    Attributes
    ----------
    often
        Of a save, where failures were given: what share of the time is training at the interval that loses least, and
        the sentence that says so.
    tokens_per_s
        Of a corpus that is read in random order.
    """

    case: str
    operation: str
    label: str
    value: float | None
    status: str
    often: tuple[float, str] | None = None
    tokens_per_s: float | None = None


class StorageRates(Chart[list[Rate]]):
    """Bytes per second to and from a file system: large files, sharded checkpoints, tokens in random order.

    How to read it
    --------------
    A bar is what all ranks move together in the time of the slowest. Writes end when the disk has everything. Reads say
    what the kernel found before: cold means that this host's memory held nothing of the file, cached that it did, and
    then the bar is the memory's and not the disk's. Training that takes more tokens a second than the file system gives
    waits for them.
    """

    title: ClassVar[str] = "Bandwidth of the file system"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "host_memory"

    def select(self, reading: Reading) -> list[Rate] | None:
        often = _often(reading)
        tokens = {row.case: row.value for row in reading.rows_of("read_tokens_per_s")}
        rates = [
            Rate(
                row.case,
                str(row.point["operation"]),
                _label(row),
                row.value,
                row.status,
                often.get(row.case),
                tokens.get(row.case),
            )
            for row in reading.rows_of("bandwidth", "")
            if row.benchmark in _BENCHMARKS and row.status != "refused"
        ]
        return rates if any(rate.value is not None for rate in rates) else None

    def draw(self, data: list[Rate]) -> list[Panel]:
        shown = data[:MOST]
        missing = {number: rate.status for number, rate in enumerate(shown) if rate.value is None}
        values = {"bandwidth": [rate.value for rate in shown]}
        labels, cases = [rate.label for rate in shown], [rate.case for rate in shown]
        return [Bars("All ranks together", labels, values, "B/s", missing=missing, cases=cases).panel()]

    def answer(self, data: list[Rate]) -> str:
        words = []
        for name, operations in (("gives", ("read", "load")), ("takes", ("write", "save", "async_save"))):
            rates = [
                (rate.value, rate.label)
                for rate in data
                if rate.operation in operations and rate.value is not None and not rate.label.endswith("cached")
            ]
            words += [f"{name} {format_value(max(rates)[0], 'B/s')} ({max(rates)[1]})"] if rates else []
        said = [f"At its best the file system {' and '.join(words)}."] if words else []
        read = [(rate.tokens_per_s, rate.label) for rate in data if rate.tokens_per_s is not None]
        said += [f"Training gets at most {format_value(max(read)[0], 'tokens/s')} ({max(read)[1]})."] if read else []
        often = [rate.often for rate in data if rate.often]
        return " ".join([*said, *([max(often)[1]] if often else [])])

    def left_out(self, data: list[Rate]) -> str:
        return curves_note(len(data), MOST, "cases")


def _often(reading: Reading) -> dict[str, tuple[float, str]]:
    intervals = {row.case: row.value for row in reading.rows_of("best_interval")}
    return {
        row.case: (row.value, _keeps(row, interval_s, row.value))
        for row in reading.rows_of("training_share")
        if row.value is not None and (interval_s := intervals.get(row.case)) is not None
    }


def _keeps(row: Row, interval_s: float, share: float) -> str:
    save = "an asynchronous save" if row.point["operation"] == "async_save" else "a save"
    seconds = f"{interval_s:,.0f}" if interval_s >= 10 else f"{interval_s:.2g}"
    return (
        f"Where a job fails every {row.point['mtbf_h']:g} h, {save} after each {seconds} s of training keeps "
        f"{100 * share:.3g} % of the time, before what restarts take."
    )


def _label(row: Row) -> str:
    point = row.point
    if row.benchmark == "token_reads":
        what = [f"sequences of {point['seq_len']:,} tokens", plural(point["workers"], "worker")]
    else:
        operation = str(point["operation"]).replace("_", " ")
        what = [f"{row.benchmark.replace('_io', '')} {operation}", format_bytes(point["size_bytes"])]
    words = [*what, plural(row.world_size, "rank")]
    words += ["direct"] if point.get("direct") else []
    words += ["to the GPU"] if point.get("to") == "device" else []
    return ", ".join([*words, *filter(None, [row.detail.get("category")])])
