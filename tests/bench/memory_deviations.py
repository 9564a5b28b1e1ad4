"""Memory of a step of every kind against its formula: how far the fullest ranks are from it, and how far they may be.

The pass that a run has is run here on steps of every schedule, recomputation, kind of context, routing, ZeRO stage,
compression and trainer, in float32 and bfloat16. A figure is the worst of its kind: the deviation of a case as a share
of what its own band allows.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.expected.memory import ACTIVATIONS
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.job.passes import STATES
from clusterbench.measured.memory import Deviation, deviations
from clusterbench.parallel.context import KINDS
from clusterbench.types import Case, Place
from tests.bench import Result, at_most
from tests.ranks import run_ranks

DTYPES = ("float32", "bfloat16")
RECOMPUTED = ("none", "selective", "full")
DENSE = {"shape": "llama-tiny", "seq_len": 128, "global_batch_size": 8, "micro_batch_size": 2}
PIPED = {"micro_batch_size": 1, "global_batch_size": 8}
MOE = {"shape": "moe-tiny"}
AT_ONCE = 12

Point = Mapping[str, Any]


def asked() -> Iterator[tuple[str, str, Point]]:
    """What a line of the table is about, with a layout and its options."""
    for again in RECOMPUTED:
        for layout in ("tp1", "dp2", "dp2+zero1", "dp2+zero2", "dp2+zero3", "tp2", "tp2+sp"):
            yield f"recompute {again}", layout, {"recompute": again}
        for layout, routing in product(("tp1", "dp2+ep2"), ("real", "balanced")):
            yield f"recompute {again}", layout, {"recompute": again, "routing": routing, **MOE}
    for schedule in SCHEDULES:
        for layout in ("pp2", "pp2-dp2", "pp2-dp2+zero1", "pp2-dp2+zero2", "pp2-dp2+zero3", "pp2-tp2+sp"):
            yield f"schedule {schedule}", layout, {"schedule": schedule, **PIPED}
        for again in RECOMPUTED[1:]:
            yield f"schedule {schedule}", "pp2", {"schedule": schedule, "recompute": again, **PIPED}
    for kind in KINDS:
        for layout in ("cp2", "cp2+zero3", "cp4", "cp2-tp2+sp"):
            yield f"context {kind}", layout, {"context": kind}
        yield f"context {kind}", "cp2", {"context": kind, "recompute": "selective"}
        yield f"context {kind}", "pp2-cp2", {"context": kind, **PIPED}
    for routing, zero in product(("real", "balanced"), ("", "+zero1", "+zero2", "+zero3")):
        for layout in ("dp2+ep2", "dp4+ep2", "dp4+ep4"):
            yield f"routing {routing}", f"{layout}{zero}", {"routing": routing, **MOE}
    for routing in ("real", "balanced"):
        for layout in ("tp2+sp+ep2", "cp2+ep2"):
            yield f"routing {routing}", layout, {"routing": routing, **MOE}
        yield f"routing {routing}", "pp2-dp2+ep2", {"routing": routing, **MOE, **PIPED}
        yield f"routing {routing}", "dp2+ep2", {"routing": routing, "expert_overlap": True, **MOE}
    for compress, layout in product(("bf16", "powersgd"), ("dp2", "dp2+zero1", "dp2-cp2")):
        yield f"compress {compress}", layout, {"compress": compress}
    for layout in ("dp2+zero2", "dp2+zero3"):
        yield "offload", layout, {"offload": True}
        yield "shard groups of 2", f"dp4{layout.removeprefix('dp2')}", {"shard_group_size": 2}
    for layout in ("tp1", "dp2"):
        yield "trainer plain_ddp", layout, {"trainer": "plain_ddp"}


def measure() -> list[Result]:
    found: dict[str, list[Deviation]] = defaultdict(list)
    for size, kinds in _cases_by_size().items():
        for at in range(0, len(kinds), AT_ONCE):
            some = kinds[at : at + AT_ONCE]
            ranks = run_ranks(size, seen_on_a_rank, [case.point for _, case in some])
            for index, (kind, case) in enumerate(some):
                found[kind] += _deviations(case, [seen[index] for seen in ranks])
    return [_worst(kind, some, of) for kind, some in found.items() for of in ("states", ACTIVATIONS)]


def _cases_by_size() -> dict[int, list[tuple[str, Case]]]:
    by_size: dict[int, list[tuple[str, Case]]] = defaultdict(list)
    for (kind, layout, options), dtype in product(asked(), DTYPES):
        place = Place(Cluster(1, 8, "cpu"), 1)
        benchmark = TrainStep.from_options({"layouts": (layout,), **DENSE, "dtype": dtype, **options})
        (point,) = benchmark.points(place)
        if benchmark.objection(point, place) is None:
            size, expected = benchmark.world_size(point, place), benchmark.predict(point, place)
            by_size[size].append(
                (kind, Case(layout, "train_step", 1, point, "cpu", 1, size, 1, 0, 60.0, expected=expected))
            )
    return dict(sorted(by_size.items()))


def seen_on_a_rank(points: Iterable[Point]) -> list[Mapping[str, int]]:
    """What the pass of memory says of each point on this rank."""
    from clusterbench.benchmarks.train_step import job_of
    from clusterbench.job.passes import MEMORY
    from clusterbench.parallel import from_options
    from clusterbench.trainers import trainer_of
    from clusterbench.training.passes import passes_of
    from tests.training.jobs import make_rig

    seen = []
    for point in points:
        job = job_of(point)
        rig = make_rig(job.layout)
        step = trainer_of(point).build(job, from_options(point), rig.grid, rig.device)
        seen.append(passes_of(step, rig)[MEMORY.name]())
        gc.collect()
    return seen


def _deviations(case: Case, ranks: Sequence[Mapping[str, int]]) -> list[Deviation]:
    from clusterbench.benchmarks.train_step import formulas_of

    return deviations(case, formulas_of(case), ranks)


def _worst(kind: str, found: Sequence[Deviation], of: str) -> Result:
    own = [each for each in found if each.category.startswith(STATES if of == "states" else ACTIVATIONS)]
    name = f"memory {kind}, {of}"
    if not own:
        return Result(name, None, "%", 100.0, "shown", "not predicted")
    worst = max(own, key=lambda each: each.fraction / each.limit)
    off, allowed = 100 * (worst.measured / worst.formula - 1), 100 * worst.limit
    return at_most(name, 100 * worst.fraction / worst.limit, "%", 100.0, f"{off:+.2g} % of {allowed:.3g} % allowed")
