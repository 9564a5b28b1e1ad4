"""Suites of training steps drawn by a seed: odd models, every layout, options in any combination that nobody refuses.

Most are our step on all ranks; some are plain_ddp's, of one rank without the others, of each node, or without proof.

``python -m tests.random_steps 4 60 --seed 11 > steps.yaml`` draws 60 steps of 4 ranks, and ``clusterbench run
steps.yaml --num-ranks 4 --device cpu`` runs them; drawn with ``--device cuda`` they are for ``--ranks-per-gpu 4``.
Every one of them is right, so each ``wrong`` is a defect of the step or of its proof. With ``--alike 5`` five in a row
compute the same in other layouts, so that what timed steps show is held against each other.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import click
import yaml

import clusterbench
from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.errors import SuiteError
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.layout import RANK_ORDERS, ParallelLayout
from clusterbench.parallel.context import KINDS
from clusterbench.precision import PRECISIONS
from tests.training.layouts import layouts_on

Setting = dict[str, Any]
"""What a suite says of a benchmark."""

SECONDS = 600
"""After which a step counts as hanging: compilers take long where cores are few."""


PLAIN: Setting = {"trainer": "plain_ddp"}
ALONE: Setting = {"communication": "fake"}
FED: Setting = {"tokens": "read", "file_size": "64KiB"}
KINDS_OF_STEPS: list[Setting] = [
    *([{}] * 19 + [PLAIN] * 2 + [ALONE] * 2 + [FED] * 2),
    *({"each_node": True}, {"parity": False}),
]
"""Whose step is run, on which ranks, and whether it is proven."""

TRIES = 50
"""Of one kind, of which a layout may have none that is taken."""

ALTERING = frozenset(
    name
    for name, option in TrainStep.options().items()
    if option.alters != "nothing" and name not in Benchmark.options()
)
"""Options that steps which compute the same have in common."""

NAMED = 0.15
"""How often a model is one that has a name."""

NAMED_SHAPES = {
    False: ("llama-tiny", "llama-flat-tiny", "llama-deep-tiny"),
    True: ("moe-tiny", "moe-flat-tiny", "moe-shared-tiny"),
}
"""By whether they have experts."""


def _place(layout: ParallelLayout) -> tuple[int, ...]:
    return layout.pp, layout.cp, layout.tp, layout.ep, layout.sp, layout.zero


def drawn_shape(rng: random.Random, layout: ParallelLayout, has_experts: bool) -> Setting:
    """A small model whose sizes have little in common."""
    heads = rng.choice([1, 2, 3, 4, 5, 6, 8, 12])
    layers = max(2, layout.pp)
    shape: Setting = {
        "name": f"drawn-{rng.randrange(10**6)}",
        "hidden_size": rng.choice([32, 48, 50, 64, 96]),
        "num_layers": rng.choice([layout.pp, layers, 2 * layers, 2 * layers + 1]),
        "num_heads": heads,
        "num_kv_heads": rng.choice([kv for kv in range(1, heads + 1) if heads % kv == 0]),
        "head_dim": rng.choice([2, 8, 10, 16, 32]),
        "ffn_hidden_size": rng.choice([64, 66, 96, 128, 160]),
        "vocab_size": rng.choice([128, 256, 257, 384, 512, 3000]),
        "tied_embeddings": rng.random() < 0.3,
    }
    if has_experts:
        experts = rng.choice([1, 2, 3, 4, 6, 8])
        shape["num_experts"] = experts
        shape["experts_per_token"] = min(experts, rng.choice([1, 2, 4, experts]))
        shape["num_shared_experts"] = rng.choice([0, 0, 1, 2])
    return shape


def drawn_step(rng: random.Random, layout: ParallelLayout, compiled: float, kind: Setting) -> Setting:
    """One step, which may be one that is refused."""
    if kind is PLAIN:
        return _plain_step(rng, layout.world_size) | kind
    has_experts = layout.ep > 1 or rng.random() < 0.2
    step = _common(rng, layout, has_experts) | {
        "rank_order": rng.choice(list(RANK_ORDERS)),
        "recompute": rng.choice(["none", "none", "selective", "full"]),
        "compile": rng.random() < compiled,
    }
    for name, values, chance in (
        ("loss_chunks", [2, 3, 4, 8], 0.3),
        ("attention_backend", ["math", "flash"], 0.15),
    ):
        if rng.random() < chance:
            step[name] = rng.choice(values)
    if kind is ALONE and rng.random() < 0.7:
        step["fake_rank"] = rng.randrange(layout.world_size)
    return step | _precision(rng) | _of_axes(rng, layout, has_experts) | kind


def _plain_step(rng: random.Random, num_ranks: int) -> Setting:
    layout = ParallelLayout(dp=num_ranks)
    dtype = rng.choice(["float32", "bfloat16", "float64"])
    return _common(rng, layout, has_experts=False) | {"dtype": dtype}


def _common(rng: random.Random, layout: ParallelLayout, has_experts: bool) -> Setting:
    """What every trainer knows of a step."""
    is_named, micro_batch = rng.random() < NAMED, rng.choice([1, 1, 2, 3, 5])
    step: Setting = {
        "benchmark": "train_step",
        "layouts": [str(layout)],
        "shape": rng.choice(NAMED_SHAPES[has_experts]) if is_named else drawn_shape(rng, layout, has_experts),
        "seq_len": rng.choice([2, 7, 32, 40, 48, 64, 96, 99, 128]),
        "micro_batch_size": micro_batch,
        "global_batch_size": micro_batch * layout.dp * rng.choice([1, 2, 3, 4, 8]),
        "iterations": 2,
        "warmup": rng.choice([0, 1, 3]),
        "seed": rng.randrange(1000),
        "time_limit_s": SECONDS,
    }
    if rng.random() < 0.2:
        step["max_grad_norm"] = rng.choice([None, 0.1, 100.0])
    return step


def _precision(rng: random.Random) -> Setting:
    of: Setting = {"dtype": rng.choice(["float32", "bfloat16", "bfloat16", "float64"])}
    if of["dtype"] == "bfloat16":
        of["precision"] = rng.choice(["float32_master", *PRECISIONS])
        if rng.random() < 0.3:
            of["gradient_dtype"] = "bfloat16"
        if of["precision"] == "pure_bfloat16":
            of["update_rounding"] = rng.choice(["nearest", "stochastic"])
        of["float8"] = rng.choice(["none"] * 8 + ["tensorwise", "rowwise"])
    return of


def _of_axes(rng: random.Random, layout: ParallelLayout, has_experts: bool) -> Setting:
    of: Setting = {}
    if layout.cp > 1:
        of["context"] = rng.choice(KINDS)
    if layout.tp > 1:
        of["loss_parallel"] = rng.choice([True, False])
    if layout.pp > 1:
        of |= {"schedule": rng.choice(list(SCHEDULES)), "chunks_per_rank": rng.choice([0, 0, 0, 1, 2, 3])}
    if layout.zero >= 2:
        of |= {"offload": rng.choice([True, False, False]), "shard_group_size": rng.choice([0, 0, 2, 3, 4, 6])}
    if layout.dp * layout.cp > 1 and not layout.zero:
        of["compress"] = rng.choice(["none", "none", "bf16", "powersgd", "topk"])
        if of["compress"] == "powersgd":
            of["powersgd_rank"] = rng.choice([1, 2, 4])
        if of["compress"] == "topk":
            of["topk_share"] = rng.choice([0.001, 0.01, 0.5])
    if has_experts:
        of |= {"routing": rng.choice(["real", "balanced"]), "aux_loss": rng.choice([0.0, 0.01])}
    if layout.ep > 1:
        of["expert_overlap"] = rng.choice([True, False])
    return of


def like(first: Setting, step: Setting) -> Setting:
    """A step made into one that computes the same as the first."""
    own = {name: value for name, value in step.items() if name not in ALTERING}
    return own | {name: value for name, value in first.items() if name in ALTERING}


def drawn_suite(
    num_ranks: int,
    count: int,
    seed: int,
    compiled: float = 0.1,
    device: Literal["cpu", "cuda"] = "cpu",
    alike: int = 1,
) -> Setting:
    """A suite of ``count`` steps that a plan takes; the same for the same arguments. On GPUs all ranks share one.

    So many in a row are ``alike``: they compute the same, as far as there are layouts that can.
    """
    rng, layouts = random.Random(seed), sorted(layouts_on(num_ranks), key=_place)
    steps, known = list[Setting](), set[str]()
    with TemporaryDirectory() as folder:
        while len(steps) < count:
            kind = rng.choice(KINDS_OF_STEPS)
            first = steps[len(steps) // alike * alike] if len(steps) % alike else {}
            for _ in range(TRIES):
                step = drawn_step(rng, rng.choice(layouts), compiled, kind)
                step = like(first, step) if first else step
                cases = planned(step, num_ranks, Path(folder) / "suite.yaml", device)
                if cases and known.isdisjoint(cases):
                    known |= cases
                    steps.append(step | ({"settle": False} if device == "cuda" else {}))
                    break
    return {"suite": f"random_steps_{num_ranks}_{seed}", "benchmarks": steps}


def planned(drawn: Setting, num_ranks: int, place: Path, device: Literal["cpu", "cuda"] = "cpu") -> set[str]:
    """The identities of its cases; none where it is refused. ``place`` is a file to write."""
    place.write_text(yaml.safe_dump({"suite": "drawn", "benchmarks": [drawn]}, sort_keys=False))
    try:
        cluster = clusterbench.Cluster(1, num_ranks, device, ranks_per_gpu=1 if device == "cpu" else num_ranks)
        return {case.hash for case in clusterbench.plan(place, cluster).cases}
    except SuiteError:
        return set()


@click.command()
@click.argument("num_ranks", type=click.IntRange(1, 16))
@click.argument("count", type=click.IntRange(1, 10_000))
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--compiled", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share that compiles.")
@click.option("--alike", type=click.IntRange(1, 100), default=1, show_default=True, help="So many compute the same.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
def main(num_ranks: int, count: int, seed: int, compiled: float, alike: int, device: Literal["cpu", "cuda"]) -> None:
    """Print a suite of COUNT steps of NUM_RANKS ranks, which on a GPU share it."""
    yaml.safe_dump(drawn_suite(num_ranks, count, seed, compiled, device, alike), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
