"""Advice as a person reads it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from clusterbench.expected.fits import CLOSE
from clusterbench.precision import PRECISIONS
from clusterbench.pricing import PARTS, SMALL, Price, parts_of, spent
from clusterbench.pricing.advice import (
    MOST_RANKS,
    TIE,
    TO_MEASURE,
    Advice,
    Candidate,
    Form,
    Question,
    odd_part,
    order_words,
)
from clusterbench.pricing.knee import FALL, OnNodes, knee
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.playbook_rules import checked
from clusterbench.pricing.profiles import Profile
from clusterbench.pricing.rates import KnownRates
from clusterbench.units import digits
from clusterbench.words import aligned, comment, plural

_FIGURES = re.compile(r"\S*[0-9]\S*")
"""What tells two reasons of one kind apart: numbers, and layouts."""

OTHER_KINDS = 6
_SHOWN = 0.0005
"""Of a step: what is less is 0.0 % of it."""

MOST_REASONS = 4
TERA = 1e12


def advice_text(
    advice: Advice,
    profile: Profile,
    known: KnownRates,
    gpu_hour: float | None,
    on_nodes: Sequence[OnNodes] = (),
) -> str:
    """The three steps with their figures, what to measure, and what becomes of the Playbook's rules.

    Parameters
    ----------
    on_nodes
        The fastest layouts on fewer nodes, where that is asked.
    gpu_hour
        What an hour of a GPU costs, in any currency; None where that is not asked.
    """
    lines = [*comment(_asked(advice)), "#", *comment(_fits(advice), indent="   ")]
    if advice.ranked:
        batch = _batch(advice.ranked[0]) + _of_another_batch(advice)
        lines += [*comment(batch, indent="   "), "#", *_layouts(advice), "#"]
        lines += [*_parts(advice.prices[0]), "#"]
        lines += [*_others(advice, profile, known), *comment(_cost(advice.ranked[0], gpu_hour))]
        lines += [*_scaling(on_nodes), *_rules(advice)]
        if unsure := dict.fromkeys(what for each in advice.ranked[:TO_MEASURE] for what in not_validated(each.priced)):
            lines += comment(f"Not validated against any measurement: {', '.join(unsure)}.")
    return "\n".join([*lines, *_refused(advice.refused)])


def _refused(refused: Counter[str]) -> Iterator[str]:
    """The commonest reasons; those that differ in their figures only are one, and the commonest of them is said."""
    alike: dict[str, Counter[str]] = {}
    for why, number in refused.items():
        alike.setdefault(_FIGURES.sub("", why), Counter())[why] = number
    for reasons in sorted(alike.values(), key=Counter.total, reverse=True)[:MOST_REASONS]:
        (why, _), *others = reasons.most_common()
        more = f" (and {plural(len(others), 'other')} alike)" if others else ""
        yield from comment(f"refused, {plural(reasons.total(), 'form')}: {why}{more}", indent="  ")


def _asked(advice: Advice) -> str:
    of = advice.question
    tokens = of.seq_len * of.global_batch_size
    return (
        f"{of.shape.name} on {plural(of.num_nodes, 'node')} x {of.gpus_per_node} {of.card.nvml_names[0]}: "
        f"{plural(of.global_batch_size, 'sequence')} of {of.seq_len:,} = {tokens:,} tokens a step"
    )


def _fits(advice: Advice) -> str:
    of, least = advice.question, advice.least
    room = f"{of.memory_bytes / 1e9:.0f} GB"
    if least is None:
        return (
            "1. What fits: no layout is legal for this model, batch and number of ranks; the reasons are below."
            f"{_left_out(of)}{_other_batch(advice)}"
        )
    if not advice.ranked:
        return (
            f"1. What fits: nothing, in {room}. {least.words} needs least: {_gigabytes(least.memory_bytes)} GB. "
            f"{_what_it_takes(advice, least)}{_in_fewer_bytes(advice)}{_of_another_batch(advice)}{_left_out(of)}"
        )
    return (
        f"1. What fits: {plural(len(advice.ranked), 'layout')} in {room}, in some form of micro-batch and "
        f"recomputation ({advice.num_fitting:,} of {advice.tried:,} forms). The least is needed by {least.words}: "
        f"{_gigabytes(least.memory_bytes)} GB.{_left_out(of)}"
    )


def _gigabytes(size_bytes: float) -> str:
    """To a tenth, and of what would be none, two digits.

    >>> _gigabytes(28.94e9), _gigabytes(3.1e6)
    ('28.9', '0.0031')
    """
    number = size_bytes / 1e9
    return f"{number:.1f}" if number >= 0.1 else digits(number, 2)


def _left_out(of: Question) -> str:
    """Where ranks have an odd part, so that there are other degrees than were asked about.

    >>> from types import SimpleNamespace
    >>> _left_out(SimpleNamespace(world_size=48, num_nodes=6, gpus_per_node=8))
    ' Left out are layouts whose tp or cp is no power of two, such as 3.'
    >>> _left_out(SimpleNamespace(world_size=12, num_nodes=2, gpus_per_node=6))
    ' Left out are layouts whose cp is no power of two, such as 3, and a tp that neither is one nor divides a node.'
    >>> _left_out(SimpleNamespace(world_size=6, num_nodes=1, gpus_per_node=6))
    ' Left out are layouts whose cp is no power of two, such as 3.'
    >>> _left_out(SimpleNamespace(world_size=64, num_nodes=8, gpus_per_node=8))
    ''
    """
    odd = odd_part(of.world_size)
    if odd == 1:
        return ""
    if odd_part(of.gpus_per_node) == 1:
        return f" Left out are layouts whose tp or cp is no power of two, such as {odd}."
    tp = "" if of.num_nodes == 1 else ", and a tp that neither is one nor divides a node"
    return f" Left out are layouts whose cp is no power of two, such as {odd}{tp}."


def _other_batch(advice: Advice) -> str:
    """Where no layout is legal: the batches next to this one for which there are some."""
    return f" A batch of {_sizes(advice)} sequences would have some." if advice.other_batches else ""


def _of_another_batch(advice: Advice) -> str:
    """Where dp cannot take all the odd part of the ranks, and could with a batch that is nearly as large."""
    of = advice.question
    if not advice.other_batches or min(advice.other_batches) > 2 * of.global_batch_size:
        return ""
    odd, batch = odd_part(of.world_size), plural(of.global_batch_size, "sequence")
    others = "pp" if odd_part(of.gpus_per_node) == 1 else "pp or tp"
    what = "be faster" if advice.ranked else "fit"
    return (
        f" {odd} divides {of.world_size:,} ranks, but not {batch}: what dp cannot take of it is left to {others}. With "
        f"{_sizes(advice)} sequences dp can, which may {what}: ask about those, too."
    )


def _sizes(advice: Advice) -> str:
    return " or ".join(f"{size:,}" for size in advice.other_batches)


def _what_it_takes(advice: Advice, least: Form) -> str:
    card = f"a card of {least.memory_bytes / 1e9 / CLOSE:.0f} GB"
    if advice.enough_nodes is None:
        return f"Nor does the same batch fit up to {MOST_RANKS:,} GPUs. Shorter sequences need less; {card} would do."
    num_nodes, form = advice.enough_nodes
    return (
        f"Of twice, four times ... as many nodes the same batch first fits on {num_nodes}, as {form.words}: "
        f"{_gigabytes(form.memory_bytes)} GB; or "
        f"{card} would do."
    )


def _in_fewer_bytes(advice: Advice) -> str:
    if advice.narrower is None:
        return ""
    precision, form = advice.narrower
    kept = PRECISIONS[precision].words
    return f" With 'precision: {precision}' ({kept}) {form.words} needs {_gigabytes(form.memory_bytes)} GB and fits."


def _batch(best: Candidate) -> str:
    job = best.priced.job
    where = f" on each of {job.layout.dp} dp ranks" if job.layout.dp > 1 else ""
    return (
        f"2. Which batch: micro-batches of {job.micro_batch_size} x {job.seq_len:,} tokens, "
        f"{job.gradient_accumulation_steps} of them a step{where}."
    )


def _layouts(advice: Advice) -> Iterator[str]:
    yield from comment("3. Which layout: the fastest that fit, to be measured in this order.")
    first = advice.ranked[0].step_s
    rows = []
    for each, price in zip(advice.ranked, advice.prices, strict=False):
        job = each.priced.job
        low, high = (job.tokens_per_step / job.layout.world_size / seconds for seconds in (price.high_s, price.low_s))
        rows.append(
            [
                str(each.layout),
                str(job.micro_batch_size),
                each.priced.recompute,
                f"{each.tokens_per_s_per_rank:,.0f}",
                f"{low:,.0f}",
                f"{high:,.0f}",
                _gigabytes(each.memory_bytes),
                each.fits,
                "fastest" if each is advice.ranked[0] else order_words(first, each.step_s),
                spent(price.parts),
            ]
        )
    heads = [
        "layout",
        "micro-batch",
        "recompute",
        "tokens/s/GPU",
        "from",
        "to",
        "memory",
        "in the card",
        "",
        "time goes to",
    ]
    units = ["", "", "", "", "", "", "(GB)", "", "", "(% of a step)"]
    yield from aligned(heads, rows, units)


def _parts(price: Price) -> Iterator[str]:
    """The parts of a step with their ranges, those aside that are small at their most."""
    yield from comment(
        f"A step of the first: {price.step_s:.3g} s, with 80 % from {price.low_s:.3g} to {price.high_s:.3g} s. "
        "The range of a part is by the intervals of the rates alone; how far the model is off is known of steps only:"
    )
    rows = [
        [part, *(f"{seconds:.3g}" for seconds in (price.parts.get(part, 0.0), *ends))]
        for part in PARTS
        if (ends := price.part_ranges.get(part)) and ends[1] > SMALL * price.step_s
    ]
    yield from aligned(["part", "time", "from", "to"], rows, ["", "(s)", "(s)", "(s)"])


def _others(advice: Advice, profile: Profile, known: KnownRates) -> Iterator[str]:
    """Why the best of other kinds are slower."""
    others = advice.of_other_kinds[:OTHER_KINDS]
    if not others:
        return
    yield "# The best of other mixes, and where they lose:"
    best = advice.ranked[0]
    parts = parts_of(profile.work(best.priced), known.rates)
    rows = []
    for each in others:
        its = parts_of(profile.work(each.priced), known.rates)
        more = {part: its.get(part, 0.0) - parts.get(part, 0.0) for part in {*its, *parts}}
        worst = max(more, key=lambda part: more[part])
        slower = each.step_s / best.step_s - 1
        why = f"{worst} +{more[worst]:.3g} s of {each.step_s:.3g} s" if more[worst] > _SHOWN * each.step_s else ""
        rows.append([each.words, f"{slower:.1%}", why])
    yield from aligned(["layout", "slower by", "most of it"], rows)


def _scaling(on_nodes: Sequence[OnNodes]) -> Iterator[str]:
    """The fastest layout on each number of nodes, and where the knee is."""
    if not on_nodes:
        return
    yield from comment("On fewer nodes, with the same batch:")
    rows = [
        [str(each.num_nodes), each.best.words, f"{each.best.tokens_per_s_per_rank:,.0f}"]
        if each.best is not None
        else [str(each.num_nodes), "nothing fits", ""]
        for each in on_nodes
    ]
    yield from aligned(["nodes", "fastest", "tokens/s/GPU"], rows)
    found, most = knee(on_nodes), on_nodes[-1].num_nodes
    falls = f"tokens/s per GPU falls by more than {FALL:.0%} of what fewer nodes reach"
    where = f"at {plural(found.num_nodes, 'node')}" if found else f"not reached up to {plural(most, 'node')}"
    yield from comment(f"The knee, from where on {falls}: {where}.")


def _rules(advice: Advice) -> Iterator[str]:
    """What becomes of the Playbook's rules by these prices."""
    found = list(checked(advice.question, advice.ranked))
    if not found:
        return
    broken = [each for each in found if not each.holds]
    yield from comment(
        f"The Playbook's rules by these prices: {len(found) - len(broken)} of {len(found)} hold. A rule holds where "
        f"the fastest layout that follows it is less than {TIE:.0%} slower than the fastest of all."
    )
    rows = [
        [
            "holds" if each.holds else "DOES NOT",
            "none fits" if each.follows is None else str(each.follows.layout),
            "" if each.follows is None else f"{each.slower_by:.1%}",
            each.rule.says,
        ]
        for each in found
    ]
    yield from aligned(["", "fastest that follows", "slower by", "rule"], rows)


def _cost(best: Candidate, gpu_hour: float | None) -> str:
    hours = TERA / best.tokens_per_s_per_rank / 3600
    money = "" if gpu_hour is None else f", {hours * gpu_hour:,.0f} at {gpu_hour:g} an hour"
    return f"10^12 tokens with the first: {hours:,.0f} GPU-hours{money}."
