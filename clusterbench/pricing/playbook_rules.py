"""The rules of the Ultra-Scale Playbook for choosing a layout, each held against the prices of all layouts.

Source: Hugging Face, The Ultra-Scale Playbook, "Finding the Best Training Configuration", step 1 and its special
considerations; "Tensor Parallelism" on staying within a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clusterbench.layout import ParallelLayout
from clusterbench.pricing.advice import TIE, Candidate, Question

LONG = 32_768
"""Tokens from which on a sequence is very long, which the Playbook does not say in figures."""

_TP = 8  # that the Playbook writes


@dataclass(frozen=True)
class Rule:
    """What is advised, for which questions, and which layouts follow it."""

    says: str
    applies: Callable[[Question], bool]
    is_followed: Callable[[ParallelLayout, Question], bool]


def _is_alone(layout: ParallelLayout) -> bool:
    """One way of sharing the work: tp, or copies of the data in whatever stage of ZeRO."""
    return len(layout.axes) == 1 and not layout.uses("ep")


def _is_data_only(layout: ParallelLayout) -> bool:
    return layout.dp == layout.world_size and layout.zero == 3


RULES = (
    Rule(
        "below 10 B parameters one parallelism alone is enough",
        lambda of: of.shape.num_parameters < 10e9 and 1 < of.world_size < 512,
        lambda layout, of: _is_alone(layout) and not layout.uses("pp") and not layout.uses("cp"),
    ),
    Rule(
        "10 to 100 B on more than 8 GPUs: tp8 with pp, tp8 with ZeRO-3, or ZeRO-3 alone",
        lambda of: 10e9 <= of.shape.num_parameters <= 100e9 and 8 < of.world_size < 512,
        lambda layout, of: _is_data_only(layout) or (layout.tp == _TP and (layout.uses("pp") or layout.zero == 3)),
    ),
    Rule(
        "from 512 GPUs on dp with tp or pp in place of ZeRO-3 alone",
        lambda of: of.world_size >= 512,
        lambda layout, of: layout.uses("dp") and (layout.uses("tp") or layout.uses("pp")),
    ),
    Rule(
        "from 1,024 GPUs on tp8 with dp and pp (the Playbook's ZeRO-2 is not among the layouts: any stage counts)",
        lambda of: of.world_size >= 1024,
        lambda layout, of: layout.tp == _TP and layout.uses("dp") and layout.uses("pp"),
    ),
    Rule(
        "tp stays within a node",
        lambda of: of.num_nodes > 1,
        lambda layout, of: of.gpus_per_node % layout.tp == 0,  # of 7 GPUs the last shares no node with the next
    ),
    Rule(
        f"cp for very long sequences (here from {LONG:,} tokens on)",
        lambda of: of.seq_len >= LONG,
        lambda layout, of: layout.uses("cp"),
    ),
    Rule(
        f"no need of cp for shorter sequences (here below {LONG:,} tokens)",
        lambda of: of.seq_len < LONG,
        lambda layout, of: not layout.uses("cp"),
    ),
    Rule(
        "ep for mixtures of experts",
        lambda of: of.shape.num_experts > 0,
        lambda layout, of: layout.uses("ep"),
    ),
)


@dataclass(frozen=True)
class Checked:
    """A rule that is meant for the question.

    Attributes
    ----------
    follows
        The fastest layout that follows it; None where none fits.
    slower_by
        What its step is longer than that of the fastest of all.
    """

    rule: Rule
    follows: Candidate | None
    slower_by: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it costs no more than two prices may differ and be *as fast*."""
        return self.follows is not None and self.slower_by < TIE


def checked(question: Question, ranked: Sequence[Candidate]) -> Iterator[Checked]:
    """Every rule that is meant for the question, held against layouts that fit, the fastest first."""
    for rule in RULES:
        if not ranked or not rule.applies(question):
            continue
        first = next((each for each in ranked if rule.is_followed(each.layout, question)), None)
        yield Checked(rule, first, 0.0 if first is None else first.step_s / ranked[0].step_s - 1)
