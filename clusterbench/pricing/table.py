"""A table of steps to price: the columns in which training runs are published, a step a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterbench.errors import SuiteError
from clusterbench.options import as_yaml
from clusterbench.pricing.step_table import StepTable, TableRow
from clusterbench.pricing.table_cells import FIGURES, MEASURED, NUMBER, Cells, parts_fraction
from clusterbench.pricing.table_file import written_rows
from clusterbench.pricing.table_layout import DEGREES
from clusterbench.pricing.table_model import OF_SHAPE
from clusterbench.pricing.table_row import read_row
from clusterbench.pricing.table_words import (
    Meaning,
    has_units_of_memory,
    hint_for,
    is_memory,
    is_result,
    meaning_of,
    of_memory,
    without_marks,
)
from clusterbench.words import plural

MOST_ROWS = 100_000

MODEL = ("layers", "hidden", "ffn", "heads", "vocab")
STEP = ("seq", "gpus", "mbs", "gbs")
COLUMNS = (
    *("source", "model", "params_b", *MODEL, "kv_heads", *STEP, "gpu", "gpus_per_node", "precision", *DEGREES),
    *("sp", "vpp", "zero", "dp_overlap", "recompute", *MEASURED, "tflops_per_gpu", "mfu", "note"),
)
_PUBLISHED = (
    *("ga", "fsdp", "checkpointing", "num_nodes", "layout", "shard_group_size", "dp_replicate", "flops_convention"),
    *("reduce_dtype", "tokens_per_s_of_all"),
)
"""Of other tables, which say by them what ours say by ``dp``, ``zero`` and ``recompute``.

Columns that are not known are an error: a figure in one would be left out unseen."""


def read_steps(path: Path, gpus_per_node: int | None, gpu: str | None = None) -> StepTable:
    """The steps of a CSV file.

    Parameters
    ----------
    gpus_per_node
        Where the table does not say; None for the usual server of each row's card.
    gpu
        The card of all rows, in place of the table's column.

    Raises
    ------
    SuiteError
        ``file:line:`` and what is wrong, where a column is missing or not known, or no row can be read. A row that
        cannot be read or priced has a reason, and the others are priced.
    """
    if path.suffix in (".yaml", ".yml"):
        raise SuiteError(
            f"{path.name} is no table: a row of a CSV, or of Markdown, is a step.\n"
            f"hint: 'clusterbench run {path}' runs a suite, and the folder it writes can be priced"
        )
    rows = written_rows(path)
    line, header = next(rows, (1, []))
    header = [without_marks(name) for name in header]
    written = [(line, cells) for line, cells in rows]
    columns = _columns(path, line, header, written)
    defaults: Counter[str] = Counter()
    marked: list[str] = []
    read: list[TableRow] = []
    columns, about_mfu = _with_share(columns, written)
    meanings = {meaning.column: meaning for meaning in columns.values()}
    numbers = [number for number, meaning in columns.items() if meaning.column in FIGURES]
    has_decimal_commas = any(parts_fraction(cells[at]) for _, cells in written for at in numbers if at < len(cells))
    for line, cells in written:
        if len(read) == MOST_ROWS:
            raise SuiteError(f"{path.name}:{line}: more than {MOST_ROWS} rows.")
        while len(cells) > len(header) and not cells[-1]:
            cells = cells[:-1]
        if len(cells) != len(header):
            why = f"the row has {len(cells)} cells and the header {len(header)}"
            read.append(TableRow(line, "", "", reason=why, is_unread=True))
            continue
        of_columns = {meaning.column: cells[number] for number, meaning in columns.items()}
        cells_of_row = Cells(f"{path.name}:{line}", of_columns, meanings, has_decimal_commas)
        read.append(read_row(cells_of_row, path.parent, gpus_per_node, gpu))
        defaults.update(cells_of_row.said)
        marked += cells_of_row.marked
    if not read:
        raise SuiteError(f"{path.name} has a header and no rows, so there is nothing to price.")
    if all(row.is_unread for row in read):
        raise SuiteError(f"{path.name}:{read[0].line}: {read[0].reason}.")
    said = [f"{words}: {number} of {len(read)} rows" for words, number in defaults.items()]
    if marked:
        said.append(f"marks of footnotes are left out, as of {marked[0]}: {plural(len(marked), 'cell')}")
    not_read = [name for number, name in enumerate(header) if number not in columns]
    memory = next((meaning.said for meaning in columns.values() if meaning.column == "mem_gb"), "")
    about = [*_about_columns(header, columns), *about_mfu]
    return StepTable(path.name, read, [*about, *said], memory=memory, not_read=not_read)


def _with_share(
    columns: Mapping[int, Meaning], rows: Sequence[tuple[int, Sequence[str]]]
) -> tuple[dict[int, Meaning], list[str]]:
    """The columns with the factor that makes shares of MFU, which tables have in percent or not, and what to say."""
    found, said = dict(columns), []
    for number, meaning in columns.items():
        if meaning.column != "mfu":
            continue
        cells = [without_marks(cells[number]) for _, cells in rows if number < len(cells)]
        values = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
        if not values:
            continue
        in_percent = max(values) > 1
        if in_percent != (meaning.factor != 1):
            found[number] = meaning._replace(factor=0.01 if in_percent else 1.0)
            said.append(
                f"mfu is taken for {'percent' if in_percent else 'a share of 1'}, as its largest is {max(values):g}"
            )
    return found, said


def _columns(
    path: Path, line: int, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> dict[int, Meaning]:
    """What each column is in our words, without those that are results of no use here."""
    names = [name.lower() for name in header]
    for name, number in Counter(names).items():
        if number > 1:
            raise SuiteError(f"{path.name}:{line}: column {as_yaml(name)} is there {number} times.")
    known = (*COLUMNS, *_PUBLISHED)
    meanings = {number: Meaning(name) if name in known else meaning_of(name) for number, name in enumerate(names)}
    for number, name in enumerate(names):
        if meanings[number] is None and is_memory(name):
            cells = [without_marks(cells[number]) for _, cells in rows if number < len(cells)]
            if has_units_of_memory(cells):
                meanings[number] = of_memory(name)
    unknown = [name for number, name in enumerate(header) if meanings[number] is None and not is_result(name)]
    if unknown:
        which = f"unknown column{'s' if unknown[1:] else ''} {', '.join(map(as_yaml, unknown))}"
        hints = "".join(f"\nhint: {as_yaml(name)}: {hint_for(name)}" for name in unknown)
        raise SuiteError(f"{path.name}:{line}: {which}.\nColumns: {', '.join(known)}.{hints}")
    columns = {number: meaning for number, meaning in meanings.items() if meaning is not None}
    for column, count in Counter(meaning.column for meaning in columns.values()).items():
        if count > 1:
            both = [as_yaml(header[number]) for number, meaning in columns.items() if meaning.column == column]
            raise SuiteError(f"{path.name}:{line}: columns {' and '.join(both)} are both {column}.")
    there = {meaning.column for meaning in columns.values()}
    needed = (*OF_SHAPE, *STEP) if "model" not in there or there & {*OF_SHAPE} else STEP
    instead = {"gpus"} if there & {"num_nodes", "gpu"} else set()  # which may say how many
    if missing := [name for name in needed if name not in there | instead]:
        hint = (
            ""
            if "model" in there
            else "\nhint: a column 'model' with shapes on record may stand for those of the shape"
        )
        raise SuiteError(f"{path.name}:{line}: no column {missing[0]!r}. Needed: {', '.join(needed)}.{hint}")
    return columns


def _about_columns(header: Sequence[str], columns: Mapping[int, Meaning]) -> Iterator[str]:
    """Which columns were taken for which, and which were not read."""
    taken = [
        f"{header[number]} for {meaning.column}{f' x {meaning.factor:.4g}' if meaning.factor != 1 else ''}"
        f"{f' ({meaning.said})' if meaning.said else ''}"
        for number, meaning in columns.items()
        if header[number].lower() != meaning.column
    ]
    if taken:
        yield f"columns are taken as published: {', '.join(taken)}"
    if results := [name for number, name in enumerate(header) if number not in columns]:
        yield f"columns not read, as they say nothing of what ran: {', '.join(results)}"
