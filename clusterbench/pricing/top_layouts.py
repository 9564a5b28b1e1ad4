"""The fastest layouts of each model on each number of nodes, by their prices: the heatmap of a cluster one lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clusterbench.formulas.transformer import flops_utilization, model_flops
from clusterbench.pricing import Price, price
from clusterbench.pricing.advice import Candidate, Question, ranking
from clusterbench.pricing.knee import node_counts
from clusterbench.pricing.profiles import Profile
from clusterbench.pricing.rates import KnownRates


@dataclass(frozen=True)
class TopLayouts:
    """One model on one number of nodes.

    Attributes
    ----------
    ranked
        Those that fit, or nearly do, the fastest first, each layout once in its best form; empty where nothing fits.
    price
        Of the first, with its interval; None where there is none.
    tried
        Forms that were asked about, whether they fit or not; 0 where no layout is legal.
    """

    question: Question
    ranked: Sequence[Candidate]
    price: Price | None
    tried: int

    def mfu(self, candidate: Candidate) -> float | None:
        """Of the card's datasheet in bfloat16, by the palm convention; None where its peak is not on record."""
        of = self.question
        peak = of.card.peak_flops_per_s.get("bfloat16")
        if peak is None:
            return None
        flops = model_flops(of.shape, of.seq_len, of.global_batch_size)
        return flops_utilization(flops, candidate.step_s, of.world_size, peak)


def top_layouts(question: Question, profile: Profile, known: KnownRates) -> Iterator[TopLayouts]:
    """On 1, 2, 4 ... nodes with the same batch, up to those that are asked about, which come last."""
    for num_nodes in node_counts(question.num_nodes):
        of = replace(question, num_nodes=num_nodes)
        found = ranking(of, profile, known)
        first = price(profile.work(found.ranked[0].priced), known) if found.ranked else None
        yield TopLayouts(of, found.ranked, first, found.tried)
