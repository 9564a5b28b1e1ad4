"""``clusterbench price``: a table of steps in, what each costs out, and how good that is where steps were measured."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from clusterbench.cluster import Accelerator, accelerators, find_card, meant_card, meant_cards, said_card
from clusterbench.csv_lines import unlike_a_formula
from clusterbench.errors import SuiteError
from clusterbench.expected.fits import NOT_SEEN
from clusterbench.expected.fits import fit as fits_card
from clusterbench.fingerprint import UNKNOWN
from clusterbench.formulas.statistics import median
from clusterbench.pricing import PARTS, Price, price, step_seconds
from clusterbench.pricing.advised_suite import OURS
from clusterbench.pricing.calibrate import (
    WISHES,
    Run,
    chosen,
    configuration,
    determined,
    fit,
    most_narrowing,
    rates_after,
    undetermined,
)
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.probes import probe_lines, probed_rates
from clusterbench.pricing.profiles import Profile, named_profile
from clusterbench.pricing.published_speed import named_lines, timed
from clusterbench.pricing.rates import CPU, KnownRates
from clusterbench.pricing.rates_file import expect_effect, given_names, rates_of
from clusterbench.pricing.scores import FEWEST, Scored, Scores, scores_of
from clusterbench.pricing.step_table import WRONG_RESULT, StepTable, TableRow, as_usual
from clusterbench.pricing.table_words import SPEEDS, is_speed
from clusterbench.pricing.typical import nics_bytes_per_s, nics_of_ports, typical_of
from clusterbench.pricing.work import StepWork
from clusterbench.units import format_value
from clusterbench.words import plural


@dataclass(frozen=True)
class Priced:
    """A row of the table with its price, or with the reason why there is none."""

    row: TableRow
    price: Price | None = None
    memory_bytes: float = 0.0
    card: Accelerator | None = None
    reason: str = ""


@dataclass(frozen=True)
class PricedTable:
    """All rows, and what has to be said before they are believed."""

    rows: Sequence[Priced]
    remarks: Sequence[str]


def price_table(
    table: StepTable,
    profile_name: str,
    gpu: str | None = None,
    nics: str | None = None,
    rates: Path | None = None,
    scale_from: int | None = None,
    accepted: Sequence[str] = (),
) -> PricedTable:
    """What each step of a table costs.

    Parameters
    ----------
    gpu
        The card, where the table's own column does not name one of the tables.
    rates
        A file whose rates stand in place of the typical ones; by default the one that a run was given.
    scale_from
        The line of a row whose measured time sets a factor for all.
    accepted
        Fields in which the machine of ``rates`` may be another than that of the table.

    Raises
    ------
    SuiteError
        For every mistake of table, file or option.
    """
    profile = named_profile(profile_name)
    table = as_usual(table, profile.usual_zero, profile.usual_dp_overlap, profile.usual_reduce_dtype)
    network = nics_bytes_per_s(nics)
    card_of = _cards(table.rows, table, gpu)
    if rates is None and profile_name == OURS and (accepted or not table.unused):
        rates = table.rates
    expect_effect(rates, accepted)

    rows, about_speed = timed(table.rows, _peaks(table.rows, card_of))
    table = replace(table, rows=rows)
    known: dict[_Node, KnownRates | SuiteError] = {}
    for node in sorted({_node(row, card_of[row.line]) for row in table.rows if row.line in card_of}):
        try:
            typical = _typical(node, network, table, rates)
            known[node] = typical if rates is None else rates_of(rates, typical, profile_name, accepted=accepted)
        except SuiteError as error:  # rows of other cards may have a price
            known[node] = error
    usable = [of for of in known.values() if isinstance(of, KnownRates)]
    if not usable:
        raise next(of for of in known.values() if isinstance(of, SuiteError))
    priced = [_priced(row, profile, card_of.get(row.line), known) for row in table.rows]
    factor = 1.0 if scale_from is None else _factor(priced, table, scale_from)
    scaled = [_scaled(each, factor) for each in priced]
    remarks = [
        *dict.fromkeys(_about_rates(usable, rates)),
        *(table.unused if rates is None else ()),
        *([] if scale_from is None else [f"all times x {factor:.4g}, so that line {scale_from} comes out as measured"]),
        *about_speed,
        *_not_judged(table),
        *_about_cards(table.rows, card_of, gpu),
        *table.defaults,
        *_about_rows(scaled, table),
    ]
    return PricedTable(scaled, remarks)


_Node = tuple[str, int]
"""The name of a card, and how many of them a node has; 0 where a row does not tell what ran."""


def _peaks(rows: Sequence[TableRow], card_of: Mapping[int, str]) -> dict[int, float]:
    """Line -> FLOP/s of products in bfloat16, or in float16 of a card that has no other."""
    cards = accelerators()
    found: dict[int, float] = {}
    for row in rows:
        if (card := cards.get(card_of.get(row.line, ""))) is not None:
            peak = max((card.peak_flops_per_s.get(name, 0.0) for name in ("bfloat16", "float16")), default=0.0)
            found |= {row.line: peak} if peak else {}
    return found


def _not_judged(table: StepTable) -> Iterator[str]:
    """Of a table without a time why no price is held against anything."""
    priced = [row for row in table.rows if row.priced is not None]
    if table.has_lines and priced and not any(row.step_s for row in priced):
        unread = [name for name in table.not_read if is_speed(name)]
        what = (
            f" Not read: {', '.join(unread)}, of one GPU or of all: the name of the column says which."
            if unread
            else ""
        )
        yield f"NOT JUDGED: no priced row has a measured time, {', '.join(SPEEDS)}, to hold a price against.{what}"


def _node(row: TableRow, card: str) -> _Node:
    """Of a step on one GPU as if that were alone in its node: it sends nothing to others."""
    if row.priced is None:
        return card, 0
    return card, 1 if row.priced.job.layout.world_size == 1 else row.priced.ranks_per_node


def _typical(node: _Node, network: float | None, table: StepTable, rates: Path | None) -> KnownRates:
    """Of the machine of the table, of which a CSV names no more than the card and how many there are in a node."""
    card, gpus_per_node = node
    dtypes = ("bfloat16", "float16")
    typical = typical_of(card, network or _network_of(table), given_names(rates), dtypes, gpus_per_node or None)
    return typical if table.machine == UNKNOWN else replace(typical, machine=table.machine)


def _network_of(table: StepTable) -> float | None:
    """What all ports of a node send, in bytes per second, as its hosts say; None where they differ or say none."""
    return nics_bytes_per_s(nics_of_ports(table.machine.network))


def _card(row: TableRow, gpu: str | None) -> str | None:
    """The name of a row's card in the tables; None where its words stand for none, or for several."""
    if row.gpu == CPU:
        return CPU
    card = said_card(gpu) if gpu is not None else find_card(row.gpu) or meant_card(row.gpu)
    return None if card is None else card.name


def _no_card(row: TableRow) -> str:
    meant = [card.name for card in meant_cards(row.gpu)]
    which = f": it may be {' or '.join(meant)}" if meant else ""
    return f"gpu {row.gpu!r} is not the name of one card of the tables{which}"


def _cards(rows: Sequence[TableRow], table: StepTable, gpu: str | None) -> dict[int, str]:
    """Line -> the card of each row of which that can be told.

    Raises
    ------
    SuiteError
        If it can be told of none.
    """
    found = {row.line: card for row in rows if (card := _card(row, gpu)) is not None}
    if rows and not found:
        first = next(row for row in rows if not row.is_unread)
        raise SuiteError(
            f"{table.place(first)}: {_no_card(first)}.\n"
            f"hint: --gpu NAME says it for all rows, one of {', '.join(accelerators())}"
        )
    return found


def _about_cards(rows: Sequence[TableRow], card_of: Mapping[int, str], gpu: str | None) -> Iterator[str]:
    """What the words of a table were taken for, where they are no card's name."""
    if gpu is None:
        for words in dict.fromkeys(row.gpu for row in rows if row.line in card_of and row.gpu != CPU):
            if find_card(words) is None and (card := meant_card(words)) is not None:
                yield f"gpu {words!r} is taken for {card.name}; --gpu NAME says otherwise"


def _priced(
    row: TableRow, profile: Profile, card: str | None, known: Mapping[_Node, KnownRates | SuiteError]
) -> Priced:
    of_card = None if card is None else accelerators().get(card)
    if row.is_unread or (card is not None and row.priced is None):
        return Priced(row, card=of_card, reason=row.reason)
    if card is None or row.priced is None:
        return Priced(row, reason=_no_card(row))
    if (why := profile.objection(row.priced)) is not None:
        return Priced(row, card=of_card, reason=why)
    rates = known[_node(row, card)]
    if isinstance(rates, SuiteError):
        return Priced(row, card=of_card, reason=str(rates).splitlines()[0])
    held = profile.held(row.priced)
    return Priced(row, price(profile.work(row.priced), rates), held, of_card)


def _factor(priced: Sequence[Priced], table: StepTable, line: int) -> float:
    of_line = next((each for each in priced if each.row.line == line), None)
    if of_line is None:
        last = priced[-1].row.line
        raise SuiteError(f"--scale-from {line}: {table.name} has rows in lines {priced[0].row.line} to {last}.")
    if of_line.price is None or of_line.row.step_s is None:
        why = of_line.reason or "the row has no measured step_s or tokens_per_s_per_gpu"
        raise SuiteError(f"--scale-from {line}: {why}.")
    return of_line.row.step_s / of_line.price.step_s


def _scaled(priced: Priced, factor: float) -> Priced:
    if priced.price is None or factor == 1.0:
        return priced
    of = priced.price
    parts = {part: seconds * factor for part, seconds in of.parts.items()}
    ranges = {part: (low * factor, high * factor) for part, (low, high) in of.part_ranges.items()}
    price = replace(
        of,
        step_s=of.step_s * factor,
        parts=parts,
        low_s=of.low_s * factor,
        high_s=of.high_s * factor,
        part_ranges=ranges,
    )
    return Priced(priced.row, price, priced.memory_bytes, priced.card)


def _about_rates(usable: Sequence[KnownRates], rates: Path | None) -> Iterator[str]:
    names = list(dict.fromkeys(known.name for known in usable))
    if rates is None:
        whose = "its" if len(names) == 1 else "their"
        yield (
            f"NOT MEASURED: {', '.join(names)}. None of {whose} rates was measured here; where launches and latency "
            "decide, believe the interval and not the value. 'clusterbench price --rates FILE' takes measured ones."
        )
        return
    for known in usable:
        yield f"rates: {known.name}"
        yield f"  of {known.machine.words or 'a machine that the file does not name'}"
        for origin, rate_names in known.words_by_origin.items():
            yield f"  {origin}: {', '.join(rate_names)}"


def _about_rows(priced: Sequence[Priced], table: StepTable) -> Iterator[str]:
    refused = [each for each in priced if each.price is None]
    if refused:
        yield f"{len(refused)} of {plural(len(table.rows), 'row')} not priced: see 'reason'"
        if table.has_lines:
            yield from (f"  {words}" for words in _reasons([(each.row.line, each.reason) for each in refused]))
    unsure: dict[str, int] = {}
    for each in priced:
        for what in not_validated(each.row.priced) if each.price is not None and each.row.priced is not None else ():
            unsure[what] = unsure.get(what, 0) + 1
    for what, number in unsure.items():
        yield f"not validated: {what} ({plural(number, 'row')})"
    yield from _about_measured(priced)
    yield from _about_memory(priced, table)


def _reasons(refused: Sequence[tuple[int, str]]) -> Iterator[str]:
    """The first few reasons why rows have no price, with their lines."""
    reasons: dict[str, list[int]] = {}
    for line, reason in refused:
        reasons.setdefault(reason, []).append(line)
    for reason, lines in islice(reasons.items(), MOST_REASONS):
        yield f"{named_lines(lines)}: {reason}"
    if len(reasons) > MOST_REASONS:
        yield f"and {len(reasons) - MOST_REASONS} more reasons"


def _about_measured(priced: Sequence[Priced]) -> Iterator[str]:
    """How prices and measured times compare, where the table has both."""
    both = [(each, each.price, each.row.step_s) for each in priced if each.price and each.row.step_s]
    if not both:
        return
    errors = [abs(math.expm1(math.log(of.step_s / step_s))) for _, of, step_s in both]
    inside = sum(of.low_s <= step_s <= of.high_s for _, of, step_s in both)
    yield (
        f"measured: {plural(len(both), 'row')}; off by {median(errors):.1%} (median), "
        f"{sum(errors) / len(errors):.1%} (mean); {inside / len(both):.0%} within the interval of 80 %"
    )
    scores = scores_of(_scored(both))
    if scores is not None:
        yield from score_lines(scores)


MEMORY_BAND = 0.2
"""Of measured memory: prices of it were 3 to 30 % off where it was known what ran (docs/prediction.md)."""


def _about_memory(priced: Sequence[Priced], table: StepTable) -> Iterator[str]:
    """How priced and measured memory compare, and whether 'does not fit' is said of rows that were out of memory."""
    both = [
        (each.row.line, each.memory_bytes / 1e9 / each.row.memory_gb - 1)
        for each in priced
        if each.price and each.row.memory_gb
    ]
    if both:
        errors = [abs(error) for _, error in both]
        out = sorted((line for line, error in both if abs(error) > MEMORY_BAND))
        bias = median([error for _, error in both])
        yield (
            f"measured memory ({table.memory or 'of what kind is not said'}): {plural(len(both), 'row')}; that of the "
            f"fullest stage off by {median(errors):.1%} (median), {sum(errors) / len(errors):.1%} (mean), "
            f"bias {bias:+.1%}; {1 - len(out) / len(both):.0%} within {MEMORY_BAND:.0%}"
            f"{f', not {named_lines(out)}' if out else ''}. {NOT_SEEN}"
        )
    ran = [each.row.line for each in priced if each.price and each.row.step_s and _fit(each) == "does not fit"]
    if ran:
        yield (
            f"measured, and priced as 'does not fit': {plural(len(ran), 'row')}, {named_lines(ran)}: their memory is "
            "less than priced, or another layout, micro-batch or recomputation ran"
        )
    crashed = [each for each in priced if each.price and each.row.out_of_memory]
    if crashed:
        fits = Counter(_fit(each) for each in crashed)
        words = ", ".join(f"{number} {words!r}" for words, number in fits.most_common() if words)
        yield f"out of memory by their cells: {plural(len(crashed), 'row')}; priced as {words or 'of an unknown card'}"


def _fit(priced: Priced) -> str:
    """Whether a row fits its card; nothing where the card's memory is not known."""
    if priced.card is None or not priced.card.memory_bytes:
        return ""
    return fits_card(priced.memory_bytes, priced.card.memory_bytes)


def _scored(both: Sequence[tuple[Priced, Price, float]]) -> Iterator[Scored]:
    for each, of, step_s in both:
        assert each.row.priced is not None
        job, nodes = each.row.priced.job, each.row.priced.num_nodes
        speed = job.tokens_per_step / job.layout.world_size
        cell = (job.shape.name, job.shape.num_parameters, nodes, job.seq_len)
        yield Scored(cell, speed / step_s, speed / of.step_s)


def score_lines(scores: Scores) -> Iterator[str]:
    """The scores in words."""
    yield (
        f"ranking within {plural(scores.cells, 'cell')} (a model on so many nodes, at least {FEWEST} layouts; "
        f"{scores.layouts} in all): Spearman {scores.spearman:.3f} (lowest {scores.lowest_spearman:.2f}), off by "
        f"{scores.near_error:.1%} near the best (bias {scores.near_bias:+.1%})"
    )
    for number, (middle, mean, most) in scores.regret.items():
        first = "the first" if number == 1 else f"the best of the first {number}"
        yield f"  regret of {first}: median {middle:.1%}, mean {mean:.1%}, most {most:.1%}"


def calibrate_table(
    table: StepTable,
    profile_name: str,
    gpu: str | None = None,
    nics: str | None = None,
    rates: Path | None = None,
    lines: Sequence[int] = (),
    accepted: Sequence[str] = (),
) -> tuple[KnownRates, Sequence[str]]:
    """The rates that a few measured rows of a table determine, and what has to be said of them.

    Parameters
    ----------
    rates
        What is known already, such as a network that was probed. What a run probed itself is believed more, unless a
        person wrote it.
    lines
        Of the rows to take; by default those that :data:`~clusterbench.pricing.calibrate.WISHES` choose, which see
        configurations only.
    accepted
        Fields in which the machine of ``rates`` may be another than that of the table.

    Raises
    ------
    SuiteError
        For every mistake, and where no row can be taken or rows are of several cards.
    """
    profile = named_profile(profile_name)
    table = as_usual(table, profile.usual_zero, profile.usual_dp_overlap, profile.usual_reduce_dtype)
    rows = [row for row in table.rows if row.step_s and row.priced and profile.objection(row.priced) is None]
    if not rows:
        raise SuiteError(f"{table.name}: {_why_no_row(table, profile)}.")
    card_of = _cards(rows, table, gpu)
    rows = [row for row in rows if row.line in card_of]
    if lines:
        rows = [row for row in rows if row.line in lines]
    if missing := sorted(set(lines) - {row.line for row in rows}):
        raise SuiteError(f"{table.name}:{missing[0]}: no row with a measured time that {profile_name} can run.")
    configurations = [configuration(row.priced) for row in rows if row.priced]
    wanted = [*range(len(rows))] if lines else chosen(configurations)
    if not table.has_lines and not lines:
        wanted = [*range(len(rows))]  # a run was made for it
    cards = {card_of[rows[number].line] for number in wanted}
    if len(cards) != 1:
        what = f"rows are of {', '.join(sorted(cards))}" if cards else "no row is of a kind that a calibration wants"
        raise SuiteError(f"{table.name}: {what}.\nhint: --lines A,B,C takes these rows")
    expect_effect(rates, accepted)
    measured = [rows[number] for number in wanted]
    typical = _typical(_node(measured[0], cards.pop()), nics_bytes_per_s(nics), table, rates)
    before = typical if rates is None else rates_of(rates, typical, profile_name, accepted=accepted)
    probed = probed_rates(table.probes, before, _dtype(measured), table.name)
    known = before.but(probed)
    runs = [_run(row, profile, table) for row in measured]
    fitted = fit(runs, known)
    found = replace(rates_after(fitted, known, len(runs), profile_name), machine=typical.machine)
    more = most_narrowing(_not_run(table, measured, profile), known, fitted)
    few = table.has_lines and not lines and len(measured) < len(WISHES)
    return found, [
        *([_too_few(len(measured), len(rows))] if few else []),
        *_reasons([(row.line, row.reason) for row in table.rows if row.is_unread]),
        *_about_cards(measured, card_of, gpu),
        *_about_runs(runs, found),
        *(f"not taken: {row.model}: {row.reason}" for row in table.rows if row.reason == WRONG_RESULT),
        *probe_lines(before, known),
        *determined(before, found),
        *undetermined(known, found, runs),
        *([more.words] if more else []),
    ]


def _too_few(taken: int, measured: int) -> str:
    return (
        f"of the {len(WISHES)} kinds of rows that a calibration wants the table has {taken}, of {measured} measured "
        "rows: --lines A,B,C takes others"
    )


def _why_no_row(table: StepTable, profile: Profile) -> str:
    """Why nothing can be learned of a table: no row has a time, or none that has one can be priced."""
    timed = [row for row in table.rows if row.step_s]
    if timed:
        reasons = Counter(profile.objection(row.priced) if row.priced else row.reason for row in timed)
        return f"no row with a measured time can be priced: {reasons.most_common(1)[0][0]}"
    if table.has_lines:
        return "no row has a measured time, a step_s or a tokens_per_s_per_gpu, so there is nothing to learn from"
    return "no case of train_step was timed, so there is nothing to learn from"


def _dtype(rows: Sequence[TableRow]) -> str:
    """In which most of the steps multiply."""
    return Counter(row.priced.job.dtype for row in rows if row.priced).most_common(1)[0][0]


def _not_run(table: StepTable, measured: Sequence[TableRow], profile: Profile) -> dict[str, StepWork]:
    """Steps that could be run: rows of a table that a calibration wants, cases of a run that need more nodes."""
    jobs = {
        f"{row.model} {job.job.layout}" if table.has_lines else row.model: job
        for row in table.rows
        if row not in measured and (job := row.elsewhere or row.priced) is not None
    }
    possible = {name: job for name, job in jobs.items() if profile.objection(job) is None}
    names = [*possible]
    taken = chosen([configuration(job) for job in possible.values()]) if table.has_lines else range(len(names))
    return {names[number]: profile.work(possible[names[number]]) for number in taken}


def _run(row: TableRow, profile: Profile, table: StepTable) -> Run:
    assert row.priced is not None
    assert row.step_s is not None
    name = f"line {row.line}: {row.model} {row.priced.job.layout}" if table.has_lines else row.model
    return Run(name, profile.work(row.priced), row.step_s)


def _about_runs(runs: Sequence[Run], found: KnownRates) -> Iterator[str]:
    for run in runs:
        off = step_seconds(run.work, found.rates) / run.step_s - 1
        yield f"{run.name}: measured {format_value(run.step_s, 's')}, priced {off:+.1%}"


MOST_REASONS = 8
"""That messages name; the column has all."""

COLUMNS = (
    *("line", "model", "layout", "nodes", "step_s", "low_s", "high_s", "tokens_per_s_per_gpu", "memory_gb", "fits"),
    *(f"{part}_{end}" for part in PARTS for end in ("s", "low_s", "high_s")),
    *("not_validated", "measured_step_s", "error", "shard_group_size", "measured_memory_gb", "memory_error", "reason"),
)


def as_csv(table: PricedTable) -> str:
    """A row for each row of the table, with the line it came from."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for each in table.rows:
        writer.writerow({name: unlike_a_formula(cell) for name, cell in _cells(each).items()})
    return out.getvalue()


def _cells(priced: Priced) -> Mapping[str, object]:
    row = priced.row
    cells: dict[str, object] = {"line": row.line, "model": row.model, "reason": priced.reason}
    if row.priced is not None:
        cells |= {"layout": str(row.priced.job.layout), "nodes": row.priced.num_nodes}
    of = priced.price
    if of is None or row.priced is None:
        return cells
    job = row.priced.job
    cells |= {name: f"{seconds:.6g}" for name, seconds in (("step_s", of.step_s), ("low_s", of.low_s))}
    cells |= {
        "high_s": f"{of.high_s:.6g}",
        "tokens_per_s_per_gpu": f"{job.tokens_per_step / job.layout.world_size / of.step_s:.6g}",
        "memory_gb": f"{priced.memory_bytes / 1e9:.4g}",
        "not_validated": ", ".join(not_validated(row.priced)),
    }
    cells["fits"] = _fit(priced)
    cells["shard_group_size"] = row.priced.shard_group_size or ""
    if row.memory_gb:
        error = priced.memory_bytes / 1e9 / row.memory_gb - 1
        cells |= {"measured_memory_gb": f"{row.memory_gb:.4g}", "memory_error": f"{error:+.4f}"}
    for part in PARTS:
        low_s, high_s = of.part_ranges.get(part, (0.0, 0.0))
        cells[f"{part}_s"] = f"{of.parts.get(part, 0.0):.4g}"
        cells[f"{part}_low_s"], cells[f"{part}_high_s"] = f"{low_s:.4g}", f"{high_s:.4g}"
    if row.step_s is not None:
        cells |= {"measured_step_s": f"{row.step_s:.6g}", "error": f"{of.step_s / row.step_s - 1:+.4f}"}
    return cells
