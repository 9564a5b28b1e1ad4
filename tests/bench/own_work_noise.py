"""How much the CPU seconds of a rank's own work vary over the steps of a case: what tests/diagnoses simulates."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, pstdev

from clusterbench.layout import ParallelLayout
from tests.bench import Result
from tests.ranks import run_ranks

LAYOUTS = ("dp2", "tp2", "dp4", "dp2-tp2")  # of each all ranks do the same work
STEPS = 40


def measure() -> list[Result]:
    results = []
    for layout in LAYOUTS:
        ranks = run_ranks(ParallelLayout.parse(layout).world_size, _own_seconds, layout)
        logs = [[math.log(second) for second in rank] for rank in ranks]
        means = [fmean(step) for step in zip(*logs, strict=True)]
        own = [[one - mean for one, mean in zip(rank, means, strict=True)] for rank in logs]
        apart = max(map(fmean, own)) - min(map(fmean, own))
        note = (
            f"{STEPS} steps of {1e3 * math.exp(fmean(means)):.0f} ms; shared {100 * pstdev(means):.1f} %, from step to "
            f"step correlated by {_correlation(means):.2f}, own by {fmean(map(_correlation, own)):.2f}; furthest "
            f"{100 * max(abs(one) for rank in own for one in rank):.0f} %; ranks {100 * apart:.1f} % apart"
        )
        results.append(Result(f"own_work_{layout}", fmean(map(pstdev, own)), "spread", math.inf, "shown", note))
    return results


def _correlation(values: list[float]) -> float:
    mean = fmean(values)
    squares = sum((value - mean) ** 2 for value in values)
    return sum((a - mean) * (b - mean) for a, b in pairwise(values)) / squares


def _own_seconds(layout: str) -> list[float]:
    from clusterbench.engine import own_work
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    job = make_job(layout, dtype="float32", seq_len=128, global_batch_size=8)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    for _ in range(3):
        step()
    own_work.LONGEST_S, rig.own_steps = 60.0, STEPS
    return own_work.own_seconds(step, rig)
