"""Parallelisms mixed: chosen by a seed among all that are legal on 2, 4 and 8 ranks, and some by hand on 16.

A mix is legal where no parallelism in it objects. Each is proven like any layout; and whatever two of them can meet at
all have met somewhere.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import combinations
from math import prod
from typing import Any

import pytest

from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.layout import ParallelLayout
from clusterbench.parallel.context import KINDS
from tests.proof.test_parity import prove
from tests.share import some_of
from tests.training.jobs import Case, Together, name_of, objection_to, parity_of
from tests.training.layouts import layouts_on

SEED = 20261120
MIXES = {2: 10, 4: 16, 8: 16}
"""How many are drawn for so many ranks; more, where not all pairs have met."""

ON_16_RANKS: list[Case] = [
    ("pp2-dp2-cp2-tp2+sp+ep2+zero1", {}, {"shape": "moe-tiny"}),
    ("pp2-dp2-cp2-tp2+sp+ep4+zero3", {"context": "all_gather", "aux_loss": 0.01}, {"shape": "moe-shared-tiny"}),
    ("dp2-cp2-tp4+sp+ep8+zero2", {"context": "ring", "recompute": "full"}, {"shape": "moe-tiny"}),
    ("pp4-cp2-tp2+sp", {"schedule": "interleaved_zero_bubble"}, {"shape": "llama-tiny-deep", "global_batch_size": 8}),
    (
        "pp2-dp4-tp2+sp+zero3",
        {"schedule": "interleaved_1f1b", "shard_group_size": 2, "recompute": "selective"},
        {"shape": "llama-tiny-tied", "global_batch_size": 16, "rank_order": "picotron"},
    ),
]


def names_in(layout: ParallelLayout) -> list[str]:
    """Axes and riders in use; each stage of ZeRO is another way of sharing."""
    used = [name for name in ("pp", "dp", "cp", "tp", "sp", "ep") if layout.uses(name)]
    return used + ([f"zero{layout.zero}"] if layout.zero else [])


def pairs_in(layout: ParallelLayout) -> set[tuple[str, str]]:
    return set(combinations(names_in(layout), 2))


def drawn(layout: ParallelLayout, rng: random.Random) -> Case | None:
    """Options for a layout, none of which is without effect; None where none were found to which nobody objects."""
    for _ in range(12):
        options: dict[str, Any] = {"recompute": rng.choice(["none", "none", "selective", "full"])}
        dense = ["llama-tiny-deep" if layout.pp > 2 else "llama-tiny", "llama-tiny-tied", "llama-tiny-mqa"]
        shape = rng.choice(["moe-tiny", "moe-shared-tiny"] if layout.ep > 1 else [*dense, "moe-tiny"])
        if layout.pp > 1:
            options["schedule"] = rng.choice(list(SCHEDULES))
        if layout.cp > 1:
            options["context"] = rng.choice(KINDS)
        if layout.tp > 1:
            options["loss_parallel"] = rng.choice([True, False])
        if layout.zero >= 2:
            options["offload"] = rng.choice([True, False])
            options["shard_group_size"] = rng.choice([0, 2])
        if shape.startswith("moe"):
            options |= {"routing": rng.choice(["real", "balanced"]), "aux_loss": rng.choice([0.0, 0.01])}
            options["expert_overlap"] = layout.ep > 1 and rng.choice([True, False])
        changes = {
            "shape": shape,
            "seq_len": 64,
            "micro_batch_size": 1,
            "global_batch_size": 8 * layout.dp,
            "rank_order": rng.choice(["megatron", "picotron"]),
        }
        case = str(layout), {name: value for name, value in options.items() if value}, changes
        if objection_to(case) is None:
            return case
    return None


@cache
def legal_on(world_size: int) -> dict[ParallelLayout, Case]:
    """Every layout that somebody could run, with options."""
    rng = random.Random(SEED + world_size)
    cases = {layout: drawn(layout, rng) for layout in layouts_on(world_size)}
    return {layout: case for layout, case in cases.items() if case is not None}


def chosen_on(world_size: int) -> list[Case]:
    """A sample in random order, in which those come first that bring the most pairs together for the first time."""
    rng = random.Random(SEED)
    legal = legal_on(world_size)
    left = sorted(legal, key=str)
    rng.shuffle(left)
    unmet = set().union(*map(pairs_in, left))
    chosen: list[Case] = []
    while unmet or len(chosen) < MIXES[world_size]:
        best = max(left, key=lambda layout: len(pairs_in(layout) & unmet))
        left.remove(best)
        unmet -= pairs_in(best)
        chosen.append(legal[best])
    return chosen


CHOSEN = [case for world_size in MIXES for case in chosen_on(world_size)]
TRIED, TRIED_ON_16_RANKS = some_of(CHOSEN, name_of), some_of(ON_16_RANKS, name_of)
PROVEN = Together(parity_of, [*TRIED, *TRIED_ON_16_RANKS], at_once=16)


@pytest.mark.gloo
@pytest.mark.parametrize("case", TRIED, ids=name_of)
def test_a_mix_that_nobody_objects_to_equals_one_rank(case: Case) -> None:
    prove(case, PROVEN)


@pytest.mark.gloo
@pytest.mark.parametrize("case", TRIED_ON_16_RANKS, ids=name_of)
def test_mixes_of_everything_on_16_ranks(case: Case) -> None:
    assert objection_to(case) is None
    prove(case, PROVEN)


def test_whatever_two_can_meet_have_met() -> None:
    possible = set().union(*(pairs_in(layout) for world_size in MIXES for layout in legal_on(world_size)))
    met = Counter(pair for layout, _, _ in CHOSEN for pair in pairs_in(ParallelLayout.parse(layout)))
    print(f"seed {SEED}: {len(CHOSEN)} mixes of {sum(len(legal_on(size)) for size in MIXES)} that are legal")
    for pair in sorted(possible):
        print(f"{' x '.join(pair):>16} {met[pair]:3}")
    assert set(met) == possible
    # Only the stages of ZeRO exclude one another: of nine names, all pairs but those three.
    assert len(possible) == prod((9, 8)) // 2 - 3
