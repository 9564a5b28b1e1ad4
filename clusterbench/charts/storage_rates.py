from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
_BENCHMARKS = ("file_io", "checkpoint", "token_reads", "fio")
_TAKES = ("write", "save", "async_save", "randwrite")


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


@dataclass(frozen=True)
class Storage:
    """Of a file system: bytes per second, and operations on small files per second."""

    rates: list[Rate]
    files: list[Rate]


class StorageRates(Chart[Storage]):
    """What a file system gives and takes: large files, sharded checkpoints, tokens in random order, many small files.

    How to read it
    --------------
    A bar is what all ranks move together in the time of the slowest, or how many small files they create, look up,
    list, read or delete a second, for which imports and data of many files wait. Writes end when the disk has
    everything. Reads say what the kernel found before: cold means that this host's memory held nothing of the file,
    cached that it did, and then the bar is the memory's and not the disk's. Training that takes more tokens a second
    than the file system gives waits for them.
    """

    title: ClassVar[str] = "What the file system gives and takes"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "host_memory"

    def select(self, reading: Reading) -> Storage | None:
        often = _often(reading)
        tokens = {row.case: row.value for row in reading.rows_of("read_tokens_per_s")}
        rates = [
            Rate(
                row.case,
                _operation(row),
                _label(row),
                row.value,
                row.status,
                often.get(row.case),
                tokens.get(row.case),
            )
            for row in reading.rows_of("bandwidth", "")
            if row.benchmark in _BENCHMARKS and row.status != "refused"
        ]
        files = [
            Rate(row.case, str(row.point["operation"]), _label_of_files(row), row.value, row.status)
            for row in reading.rows_of("file_rate", "")
            if row.benchmark == "small_files" and row.status != "refused"
        ]
        found = Storage(rates, files)
        return found if any(rate.value is not None for rate in (*rates, *files)) else None

    def draw(self, data: Storage) -> list[Panel]:
        panels = []
        for title, name, unit, rates in (
            ("All ranks together", "bandwidth", "B/s", data.rates),
            ("Small files a second, all ranks together", "files", "1/s", data.files),
        ):
            shown = rates[:MOST]
            missing = {number: rate.status for number, rate in enumerate(shown) if rate.value is None}
            values = {name: [rate.value for rate in shown]}
            labels, cases = [rate.label for rate in shown], [rate.case for rate in shown]
            if len(missing) < len(shown):
                panels.append(Bars(title, labels, values, unit, missing=missing, cases=cases).panel())
        return panels

    def answer(self, data: Storage) -> str:
        words = []
        for name, is_meant in (("gives", False), ("takes", True)):
            rates = [
                (rate.value, rate.label)
                for rate in data.rates
                if (rate.operation in _TAKES) is is_meant and rate.value is not None and not _is_cached(rate)
            ]
            words += [f"{name} {format_value(max(rates)[0], 'B/s')} ({max(rates)[1]})"] if rates else []
        said = [f"At its best the file system {' and '.join(words)}."] if words else []
        said += _checkpoints(data.rates, said)
        read = [(rate.tokens_per_s, rate.label) for rate in data.rates if rate.tokens_per_s is not None]
        said += [f"Training gets at most {format_value(max(read)[0], 'tokens/s')} ({max(read)[1]})."] if read else []
        said += _slowest(data.files)
        often = [rate.often for rate in data.rates if rate.often]
        return " ".join([*said, *([max(often)[1]] if often else [])])

    def left_out(self, data: Storage) -> str:
        return curves_note(len(data.rates), MOST, "cases")


def _checkpoints(rates: list[Rate], said: list[str]) -> list[str]:
    """What a sharded checkpoint reaches at best each way, where that is not ``said`` as the best of all."""
    best: dict[bool, tuple[float, str]] = {}
    for rate in rates:
        if rate.label.startswith("checkpoint ") and rate.value is not None and not _is_cached(rate):
            way = rate.operation in _TAKES
            best[way] = max(best.get(way, (0.0, "")), (rate.value, rate.label))
    left = [f"{format_value(rate, 'B/s')} ({label})" for rate, label in best.values() if label not in " ".join(said)]
    return [f"A sharded checkpoint reaches {' and '.join(left)}."] if left else []


def _slowest(files: list[Rate]) -> list[str]:
    """What of small files takes longest, and what is quickest."""
    rates = sorted((rate.value, rate.label) for rate in files if rate.value)
    if not rates:
        return []
    (least, slow), (most, quick) = rates[0], rates[-1]
    to = f" to {format_value(most, '1/s')} ({quick})" if len(rates) > 1 else ""
    return [f"Of small files it does {format_value(least, '1/s')} ({slow}){to}."]


def _is_cached(rate: Rate) -> bool:
    return rate.label.endswith("cached")


def _operation(row: Row) -> str:
    return str(row.point["test" if row.benchmark == "fio" else "operation"])


def _label_of_files(row: Row) -> str:
    point = row.point
    words = [f"{point['operation']} {format_bytes(point['file_bytes'])}", plural(row.world_size, "rank")]
    words += ["written to the disk"] if point.get("sync") else []
    return ", ".join([*words, *filter(None, [row.detail.get("category")])])


def _often(reading: Reading) -> dict[str, tuple[float, str]]:
    intervals = {row.case: row.value for row in reading.rows_of("best_interval")}
    goodput: dict[str, list[Row]] = defaultdict(list)
    for row in reading.rows_of("goodput"):
        goodput[row.case].append(row)
    return {
        row.case: (row.value, _keeps(row, interval_s, row.value, goodput[row.case]))
        for row in reading.rows_of("training_share")
        if row.value is not None and (interval_s := intervals.get(row.case)) is not None
    }


def _keeps(row: Row, interval_s: float, share: float, goodput: Sequence[Row]) -> str:
    save = "an asynchronous save" if row.point["operation"] == "async_save" else "a save"
    seconds = f"{interval_s:,.0f}" if interval_s >= 10 else f"{interval_s:.2g}"
    return (
        f"Where a job fails every {row.point['mtbf_h']:.3g} h, {save} after each {seconds} s of training keeps "
        f"{100 * share:.3g} % of the time, {_beyond_saves(goodput)}."
    )


def _beyond_saves(goodput: Sequence[Row]) -> str:
    """What restarts leave of it, and repairs, with none and with most spare nodes."""
    known = [(100 * row.value, row.detail.get("category", "")) for row in goodput if row.value is not None]
    if not known:
        return "before what restarts take"
    if len(known) == 1 and not known[0][1]:
        return f"and {known[0][0]:.3g} % with restarts"
    least, most = min(known), max(known)
    said = " and ".join(f"{share:.3g} % with {spares}" for share, spares in dict.fromkeys((least, most)))
    return f"and where nodes are repaired {said}"


def _label(row: Row) -> str:
    point = row.point
    if row.benchmark == "token_reads":
        what = [f"sequences of {point['seq_len']:,} tokens", plural(point["workers"], "worker")]
    elif row.benchmark == "fio":
        words = [
            f"fio {point['test']}",
            f"blocks of {format_bytes(point['block_bytes'])}",
            plural(point["jobs"], "job"),
        ]
        return ", ".join([*words, *(["direct"] if point["direct"] else [])])
    else:
        operation = str(point["operation"]).replace("_", " ")
        what = [f"{row.benchmark.replace('_io', '')} {operation}", format_bytes(point["size_bytes"])]
    words = [*what, plural(row.world_size, "rank")]
    words += ["direct"] if point.get("direct") else []
    words += ["to the GPU"] if point.get("to") == "device" else []
    return ", ".join([*words, *filter(None, [row.detail.get("category")])])
