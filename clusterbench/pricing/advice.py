"""``clusterbench advise``: which layout of a model would be fastest on a cluster, and why the others would not.

In the three steps of the Ultra-Scale Playbook (section "Finding the best training configuration"): what fits, which
batch, which layout. Every legal layout is priced, with each micro-batch and each way to recompute; the five to measure
come out as a suite.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from clusterbench import forked
from clusterbench.cluster import Accelerator
from clusterbench.errors import ClusterbenchError, SuiteError
from clusterbench.expected.fits import Fit, fit
from clusterbench.job import TrainingJob
from clusterbench.layout import AXES, RIDERS, ParallelLayout, every_layout
from clusterbench.parallel.recompute import KINDS
from clusterbench.precision import MASTER
from clusterbench.pricing import Price, price, step_seconds
from clusterbench.pricing.profiles import PricedJob, Profile
from clusterbench.pricing.rates import KnownRates
from clusterbench.shape import ModelShape
from clusterbench.units import divisors

TO_MEASURE = 5
MOST_RANKS = 4096
"""Up to which more nodes are tried where nothing fits."""

FEWEST_LAYOUTS, PARTS_OF_A_CORE = 100, 4
"""Of a part that is priced in a process of its own, and how many of these a core has, as some take longer."""

TIE, PROBABLY = 0.05, 0.20
"""Gaps between two prices below which their order means nothing, and below which it is only probable.

Of pairs near the best of a cell of the Playbook's sweep about 6 of 10 are in the right order up to 5 %, 19 of 20 from
20 % on.
"""


@dataclass(frozen=True)
class Question:
    """What is asked: a model, a cluster and a batch.

    ``global_batch_size`` is in sequences.
    """

    shape: ModelShape
    card: Accelerator
    num_nodes: int
    gpus_per_node: int
    seq_len: int
    global_batch_size: int
    precision: str = MASTER

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def memory_bytes(self) -> float:
        """Of a card.

        Raises
        ------
        SuiteError
            If it is not on record.
        """
        if not self.card.memory_bytes:
            raise SuiteError(
                f"the memory of {self.card.name} is not on record, so nothing can be said to fit it.\n"
                "hint: 'clusterbench price TABLE.csv' prices the layouts of a table, whether they fit or not"
            )
        return self.card.memory_bytes


@dataclass(frozen=True)
class Form:
    """A layout with its batch and its recomputation, as it would run; ``memory_bytes`` is of the fullest stage."""

    priced: PricedJob
    memory_bytes: float

    @property
    def layout(self) -> ParallelLayout:
        return self.priced.job.layout

    @property
    def words(self) -> str:
        """``dp8-tp4+sp, micro-batch 2, full recompute``."""
        again = "" if self.priced.recompute == "none" else f", {self.priced.recompute} recompute"
        return f"{self.layout}, micro-batch {self.priced.job.micro_batch_size}{again}"


@dataclass(frozen=True)
class Candidate(Form):
    """A form with its price.

    Of one that does not fit ``memory_bytes`` is any figure above the card's.

    Attributes
    ----------
    step_s
        Its price; of one that does not fit none was worked out, and it is endless.
    """

    step_s: float
    fits: Fit

    @property
    def tokens_per_s_per_rank(self) -> float:
        job = self.priced.job
        return job.tokens_per_step / job.layout.world_size / self.step_s

    @property
    def kind(self) -> tuple[str, ...]:
        """Which parallelisms it uses, whatever their degrees."""
        return tuple(name for name in (*AXES, *RIDERS) if self.layout.uses(name))


@dataclass(frozen=True)
class Advice:
    """What was found.

    Attributes
    ----------
    ranked
        Those that fit, or nearly do, the fastest first; each layout once, in its best form.
    prices
        Of the first :data:`TO_MEASURE`, with intervals and parts.
    least
        The form that needs the least memory of all, fast or not; None where no layout is legal.
    enough_nodes
        Where nothing fits: on how many nodes the same batch does, and in which form; None where on none that was tried.
    narrower
        Where nothing fits: in which other precision something does, and in which form; None where in none.
    other_batches
        Where dp cannot take the odd part of the ranks: the batches next to this one of which it can.
    refused
        Reasons, with how many layouts each refused.
    tried
        How many were priced.
    """

    question: Question
    ranked: Sequence[Candidate]
    prices: Sequence[Price]
    least: Form | None
    refused: Counter[str]
    tried: int
    num_fitting: int
    enough_nodes: tuple[int, Form] | None = None
    narrower: tuple[str, Form] | None = None
    other_batches: Sequence[int] = ()

    @property
    def of_other_kinds(self) -> Sequence[Candidate]:
        """The best of each other set of parallelisms than the fastest one's, the fastest first."""
        best: dict[tuple[str, ...], Candidate] = {}
        for each in self.ranked:
            best.setdefault(each.kind, each)
        return list(best.values())[1:]


def advise(question: Question, profile: Profile, known: KnownRates) -> Advice:
    """Every legal layout priced, and the fastest that fit."""
    found = ranking(question, profile, known)
    prices = [price(profile.work(each.priced), known) for each in found.ranked[:TO_MEASURE]]
    least = least_form(question, profile)
    is_too_large = not found.num_fitting and least is not None
    return Advice(
        question,
        found.ranked,
        prices,
        least,
        found.refused,
        found.tried,
        found.num_fitting,
        enough_nodes(question, profile) if is_too_large else None,
        narrower_precision(question, profile) if is_too_large else None,
        other_batches(question, profile),
    )


@dataclass(frozen=True)
class Ranked:
    """Layouts by their prices, as :class:`Advice` has them."""

    ranked: Sequence[Candidate]
    refused: Counter[str]
    tried: int
    num_fitting: int


def ranking(question: Question, profile: Profile, known: KnownRates) -> Ranked:
    """Every legal layout priced; those that fit, the fastest first, each in its best form."""
    refused: Counter[str] = Counter()
    candidates = _candidates(question, profile, known, refused)
    fitting = [each for each in candidates if each.fits != "does not fit"]
    best: dict[str, Candidate] = {}
    for each in sorted(fitting, key=lambda one: one.step_s):
        best.setdefault(str(each.layout), each)
    return Ranked(list(best.values()), refused, len(candidates), len(fitting))


def fastest(question: Question, profile: Profile, known: KnownRates) -> Candidate | None:
    """The fastest layout that fits, and nothing else; None where none does."""
    fitting = (each for each in _candidates(question, profile, known, Counter()) if each.fits != "does not fit")
    return min(fitting, key=lambda each: each.step_s, default=None)


def least_form(question: Question, profile: Profile) -> Form | None:
    """The form that needs the least memory; None where no layout is legal.

    The search for the fastest leaves it out: it ends at the first form of a layout that fits.
    """
    least: Form | None = None
    for priced in _smallest_forms(question, profile):
        held = profile.held(priced, math.inf if least is None else least.memory_bytes)
        if least is None or held < least.memory_bytes:
            least = Form(priced, held)
    return least


def _smallest_forms(question: Question, profile: Profile) -> Iterator[PricedJob]:
    """Each legal layout with micro-batches of one sequence, and as much recomputed as the framework can."""
    for layout in _layouts(question):
        for recompute in reversed(KINDS):
            priced = PricedJob(_job(question, layout, 1), question.gpus_per_node, recompute=recompute)
            if profile.objection(priced) is None:
                yield priced
                break


def _layouts(question: Question) -> Sequence[ParallelLayout]:
    of = question
    return every_layout(of.world_size, of.shape.num_experts, of.gpus_per_node, of.seq_len)


def enough_nodes(question: Question, profile: Profile) -> tuple[int, Form] | None:
    """The first of 2, 4, 8 ... times as many nodes on which the same batch fits, and the least form."""
    more = replace(question, num_nodes=2 * question.num_nodes)
    while more.world_size <= MOST_RANKS:
        least = least_form(more, profile)
        if least is not None and fit(least.memory_bytes, question.memory_bytes) == "fits":
            return more.num_nodes, least
        more = replace(more, num_nodes=2 * more.num_nodes)
    return None


def narrower_precision(question: Question, profile: Profile) -> tuple[str, Form] | None:
    """The first other precision in which the batch fits the same cards, and the least form."""
    for precision in profile.precisions:
        if precision == question.precision:
            continue
        least = least_form(replace(question, precision=precision), profile)
        if least is not None and fit(least.memory_bytes, question.memory_bytes) == "fits":
            return precision, least
    return None


def odd_part(number: int) -> int:
    """What is left of a number without its factors of two.

    >>> odd_part(96)
    3
    """
    return number // (number & -number)


def other_batches(question: Question, profile: Profile) -> tuple[int, ...]:
    """The batches next to this one of which dp can take all the odd part of the ranks, and as much else as of this one.

    Those alone that some layout is legal for; none where dp can take it of this batch.
    """
    odd, size = odd_part(question.world_size), question.global_batch_size
    if size % odd == 0:
        return ()
    step = math.lcm(odd, math.gcd(size, question.world_size))
    fewer = size // step
    asked = (replace(question, global_batch_size=size) for size in (fewer * step, (fewer + 1) * step) if size)
    return tuple(of.global_batch_size for of in asked if any(True for _ in _smallest_forms(of, profile)))


def _job(question: Question, layout: ParallelLayout, micro_batch_size: int) -> TrainingJob:
    return TrainingJob(
        question.shape,
        layout,
        question.seq_len,
        question.global_batch_size,
        micro_batch_size,
        "bfloat16",
        device="cuda",
        precision=question.precision,
    )


def _candidates(question: Question, profile: Profile, known: KnownRates, refused: Counter[str]) -> list[Candidate]:
    """Every form of every legal layout, in their order; where they are many each core prices a part of them.

    Raises
    ------
    SuiteError
        If the memory of the card is not on record.
    ClusterbenchError
        If a part was not priced to its end.
    """
    layouts, memory_bytes = _layouts(question), question.memory_bytes

    def answer(places: range) -> str:
        why = Counter[str]()
        forms = [
            (place, *form)
            for place in places
            for form in _forms(question, profile, known, layouts[place], memory_bytes, why)
        ]
        return json.dumps([forms, why])

    found = []
    for text in _answered(_parts(len(layouts)), answer):
        forms, why = json.loads(text)
        refused.update(why)
        for place, micro_batch_size, recompute, held, step_s, fits in forms:
            job = _job(question, layouts[place], micro_batch_size)
            priced = PricedJob(job, question.gpus_per_node, recompute=recompute)
            found.append(Candidate(priced, held, step_s, fits))
    return found


def _parts(number: int) -> list[range]:
    """So many places as parts, a few for each core; one where they are few, or there is one core."""
    cores = forked.cores()
    size = max(FEWEST_LAYOUTS, math.ceil(number / (PARTS_OF_A_CORE * cores if cores > 1 else 1)))
    return [range(start, min(start + size, number)) for start in range(0, number, size)]


def _answered(parts: Sequence[range], answer: Callable[[range], str]) -> Iterator[str]:
    if len(parts) == 1:
        yield answer(parts[0])
        return
    answered = dict(forked.answers(parts, answer))
    for part in parts:
        text = answered[part]
        if isinstance(text, forked.Failed):
            raise ClusterbenchError(
                f"layouts {part.start + 1} to {part.stop} were not priced: {text.why}.\n"
                "hint: where it was killed for want of memory, 'taskset -c 0 clusterbench advise ...' takes one process"
            )
        yield text


def _forms(
    question: Question,
    profile: Profile,
    known: KnownRates,
    layout: ParallelLayout,
    memory_bytes: float,
    refused: Counter[str],
) -> Iterator[tuple[int, str, float, float, Fit]]:
    """Micro-batch, recomputation, bytes held, price and whether it fits, of each form of a layout that is tried."""
    too_large: set[str] = set()
    for micro_batch_size in _micro_batches(question.global_batch_size, layout.dp):
        job = _job(question, layout, micro_batch_size)
        # where more than fill the pipeline, as many are in flight as of smaller ones, and gradients beside them
        is_larger = job.gradient_accumulation_steps > layout.pp
        fits: Fit | None = None
        for recompute in KINDS:
            priced = PricedJob(job, question.gpus_per_node, recompute=recompute)
            if (why := profile.objection(priced)) is not None:
                refused[why] += recompute == KINDS[0]
                continue
            is_hopeless = is_larger and recompute in too_large
            held = math.inf if is_hopeless else profile.held(priced, memory_bytes)
            # above what is sold nothing is advised, though some of it may fit what the driver shows
            fits = fit(held, memory_bytes) if held <= memory_bytes else "does not fit"
            too_large |= {recompute} if fits == "does not fit" else set()
            step_s = math.inf if fits == "does not fit" else step_seconds(profile.work(priced), known.rates)
            yield micro_batch_size, recompute, held, step_s, fits
            if fits == "fits":
                break  # what recomputes more is slower
        if fits == "does not fit":
            break  # nor does a larger micro-batch


@lru_cache(maxsize=1024)  # layouts that differ in all but dp have the same
def _micro_batches(global_batch_size: int, dp: int) -> Sequence[int]:
    """Sizes that the batch of a dp rank is a multiple of, the smallest first; 1 where there is none, to hear why.

    >>> _micro_batches(48, 4), _micro_batches(48, 5)
    ((1, 2, 3, 4, 6, 12), (1,))
    """
    of_rank, left = divmod(global_batch_size, dp)
    if left or not of_rank:
        return (1,)
    return tuple(divisors(of_rank))


def order_words(first: float, other: float) -> str:
    """How sure it is that the faster of two prices is faster.

    >>> [order_words(1.0, other) for other in (1.02, 1.1, 1.5)]
    ['as fast', 'probably slower', 'slower']
    """
    gap = other / first - 1
    return "as fast" if gap < TIE else "probably slower" if gap < PROBABLY else "slower"
