"""Formulas of memory and traffic against dry runs of mixes that are drawn from a seed.

``python -m tests.dry.formulas [--deep] [NUMBER [SEED [FILE]]]`` draws so many steps that can be run, dry-runs a rank of
the first and of the last stage of each, and prints how far each formula is from what the rank held and sent. With
``--deep`` a step has three to eight layers, or as many as its stages take, and a pipeline micro-batches enough to run
full. FILE keeps what the ranks did, also when interrupted: with it a later call goes on, or compares other formulas
with the same ranks at once.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterbench.dry import objection
from clusterbench.dry.processes import DryRunFailed, DryTask, dry_answers
from clusterbench.engine.compat import fake_tensors
from clusterbench.errors import LayoutError
from clusterbench.expected.memory import held_memory, not_predicted
from clusterbench.formulas.schedules import SCHEDULES, default_chunks
from clusterbench.job import TrainingJob
from clusterbench.job.sequence import KINDS
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Traffic, active_in, expected_traffic, from_options, part_of
from clusterbench.parallel.zero import ZeroOptimizer, shares_of
from clusterbench.shape import ModelShape, named_shape
from clusterbench.trainers.ours import Ours
from clusterbench.words import aligned

SHAPES: Mapping[str, ModelShape] = {
    "dense": replace(named_shape("llama-tiny"), num_kv_heads=8, vocab_size=512, ffn_hidden_size=512),
    "gqa": replace(named_shape("llama-tiny"), num_kv_heads=2, vocab_size=2048),
    "moe": named_shape("moe-tiny"),
    "tied": replace(named_shape("llama-tiny"), vocab_size=8192, tied_embeddings=True),
    "shared": named_shape("moe-shared-tiny"),
    "eight": replace(named_shape("mixtral-8x7b"), vocab_size=2048),
    "few": replace(named_shape("llama-tiny"), hidden_size=256, head_dim=8, ffn_hidden_size=512, vocab_size=32),
    "wide": replace(
        named_shape("llama-tiny"), hidden_size=64, num_kv_heads=8, head_dim=8, ffn_hidden_size=4096, vocab_size=256
    ),
    "all": replace(named_shape("moe-tiny"), num_experts=8, experts_per_token=8, ffn_hidden_size=128, vocab_size=512),
    "many": replace(named_shape("moe-tiny"), num_experts=16, experts_per_token=8, ffn_hidden_size=48, vocab_size=128),
}
DEEP_ONLY: Mapping[str, str] = {"dense": "tied", "moe": "shared"}
"""Shape -> what is drawn in its place now and then, of deep steps alone."""

BANDS: Mapping[str, float] = {
    "parameters": 0.0,
    "gradients": 0.0,
    "optimizer_state": 0.0,
    "activations": 0.02,
    "total": 0.03,
}
"""Category -> how far a rank may be from its formula, as a fraction of it."""

SCALARS_BYTES = 512
"""Losses and norms, of which no formula speaks."""


class Mix(NamedTuple):
    """A step as it is drawn: the options are those of parallelisms, the job's what it has beside shape and layout."""

    shape: str
    layers: int
    layout: str
    options: Mapping[str, Any]
    of_job: Mapping[str, Any]

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in {**self.options, **self.of_job}.items()]
        return " ".join([self.shape, f"{self.layers} layers", self.layout, *named])

    @property
    def job(self) -> TrainingJob:
        shape = replace(SHAPES[self.shape], num_layers=self.layers)
        return TrainingJob(shape, ParallelLayout.parse(self.layout), **self.of_job)


@dataclass(frozen=True)
class Apart:
    """A figure of a rank beside its formula; ``band`` is how far they may be apart, as a fraction of the formula."""

    mix: Mix
    rank: int
    what: str
    measured: float
    formula: float
    band: float = 0.0

    @property
    def fraction(self) -> float:
        """Of the formula, beyond some scalars; negative where the rank holds less."""
        off = self.measured - self.formula
        beyond = max(0.0, abs(off) - (SCALARS_BYTES if self.what in BANDS else 0))
        return (beyond if off > 0 else -beyond) / max(self.formula, 1.0)

    @property
    def is_beyond(self) -> bool:
        return abs(self.fraction) > self.band

    def __str__(self) -> str:
        figures = f"measured {self.measured:,.0f}, formula {self.formula:,.0f}"
        return f"{100 * self.fraction:+8.2f} %  {self.what}: {figures}; rank {self.rank} of {self.mix}"


# Drawing


def mixes(number: int, seed: int, deep: bool = False) -> list[Mix]:
    """So many different steps that can be run and dry-run."""
    source, found = random.Random(seed), dict[str, Mix]()
    while len(found) < number:
        mix = _drawn(source)
        if mix is not None and deep:
            mix = _deeper(source, mix)
        if mix is not None:
            found[str(mix)] = mix
    return list(found.values())


def _drawn(source: random.Random) -> Mix | None:
    """A step, or None where what came is none that can be run."""
    shape = source.choice(["dense", "gqa", "moe", "moe"])
    layout = _layout(source, shape)
    if layout is None:
        return None
    options: dict[str, Any] = {"recompute": source.choice(["none", "none", "selective", "full"])}
    if layout.uses("pp"):
        options["schedule"] = source.choice(list(SCHEDULES))
    if layout.uses("cp"):
        options["context"] = source.choice(KINDS)
    if layout.uses("tp"):
        options["loss_parallel"] = source.random() < 0.75
    if layout.shards_gradients and source.random() < 0.25:
        options["shard_group_size"] = 2
    elif layout.degree("dp_cp") > 1 and not layout.shards_gradients and not layout.uses("pp"):
        options["compress"] = source.choice(["none", "none", "bf16"])
    if shape == "moe":
        options |= {"routing": "balanced", "aux_loss": source.choice([0.0, 0.01])}
        options["expert_overlap"] = layout.spreads_experts and source.random() < 0.3
    micro_batch_size = source.choice([1, 2])
    micro_batches = source.choice([2, 4, 6, 8] if layout.uses("pp") else [1, 2, 3])
    of_job = {
        "seq_len": source.choice([64, 128, 256]),
        "global_batch_size": micro_batches * micro_batch_size * layout.dp,
        "micro_batch_size": micro_batch_size,
        "dtype": source.choice(["float32", "bfloat16", "bfloat16"]),
        "device": source.choice(["cpu", "cuda"]),
    }
    if of_job["dtype"] == "bfloat16" and source.random() < 0.3:
        of_job["gradient_dtype"] = "bfloat16"
    stages = layout.pp * default_chunks(options.get("schedule", "naive"))
    layers = source.choice([stages, stages + 1, 2 * stages]) if layout.uses("pp") else 2  # one more: not even
    mix = Mix(shape, layers, str(layout), options, of_job)
    return mix if objection(mix.job, from_options(options)) is None else None


def _deeper(source: random.Random, mix: Mix) -> Mix | None:
    """With more layers and micro-batches, and what saves memory where there are many; None where it cannot be run."""
    layout, options, of_job = ParallelLayout.parse(mix.layout), dict(mix.options), dict(mix.of_job)
    if layout.uses("pp"):
        layout = replace(layout, pp=source.choice([layout.pp, layout.pp, 3, 6]))
        stages = layout.pp * default_chunks(options["schedule"])
        layers = source.randint(max(3, stages), max(8, stages + 3))
        micro_batches = layout.pp * source.choice([1, 2, 3]) + source.choice([0, 0, 1])
        of_job["global_batch_size"] = micro_batches * of_job["micro_batch_size"] * layout.dp
    else:
        layers = source.randint(3, 8)
        options["loss_chunks"] = 1 if layout.uses("tp") else source.choice([1, 1, 4])
    if layout.shards_gradients:
        options["offload"] = source.random() < 0.15
    shape = source.choice([mix.shape, mix.shape, DEEP_ONLY.get(mix.shape, mix.shape)])
    deeper = Mix(shape, layers, str(layout), options, of_job)
    return deeper if objection(deeper.job, from_options(options)) is None else None


def _layout(source: random.Random, shape: str) -> ParallelLayout | None:
    degrees: dict[str, Any] = {axis: source.choice([1, 1, 1, 2, 2, 4]) for axis in ("pp", "dp", "cp", "tp")}
    riders: dict[str, Any] = {"sp": degrees["tp"] > 1 and source.random() < 0.6, "zero": source.choice([0, 0, 1, 2, 3])}
    if shape == "moe":
        riders["ep"] = source.choice([1, 2, 4, 8])
    try:
        layout = ParallelLayout(**degrees, **riders)
    except LayoutError:
        return None
    return layout if layout.world_size <= 16 else None


# Running


Kept = dict[str, Any]
"""What a dry rank says, by the rank and the mix."""


def dry_ranks_of(drawn: Iterable[Mix], kept: Kept) -> None:
    """Adds what the ranks of these do that is not ``kept`` yet."""
    with fake_tensors():  # imports what each process would import for itself
        pass
    keys = {
        DryTask(Ours(), mix.job, from_options(mix.options), "megatron", rank): key
        for mix in drawn
        for rank in ranks_of(mix)
        if (key := _key(mix, rank)) not in kept
    }
    for number, (task, answer) in enumerate(dry_answers(keys), start=1):
        if isinstance(answer, DryRunFailed):
            raise answer
        kept[keys[task]] = json.loads(json.dumps(asdict(answer)))
        if sys.stderr.isatty():
            print(f"{number} of {len(keys)} ranks", end="\r", file=sys.stderr)


def ranks_of(mix: Mix) -> list[int]:
    """Of the first and of the last stage those that may hold most, which is whom the formulas speak of."""
    return [rank for ranks in _of_each_stage(mix) for rank in ranks]


def _of_each_stage(mix: Mix) -> Iterator[Sequence[int]]:
    job, every = mix.job, from_options(mix.options)
    active, layout = active_in(job.layout, every), job.layout
    for stage in dict.fromkeys((0, layout.pp - 1)):
        states = _weights_updated(part_of(job, active, stage)) if layout.zero == 1 else defaultdict[int, int](int)
        own = [rank for rank in range(layout.world_size) if layout.coordinates(rank)["pp"] == stage]
        # of FSDP the first one's share is never padded, and the last one of cp attends to most blocks
        keeps = max(own, key=lambda rank: (states[rank], -rank))
        attends = max(own, key=lambda rank: (layout.coordinates(rank)["cp"], states[rank], -rank))
        yield tuple(dict.fromkeys((keeps, attends)))


def _weights_updated(part: TrainingJob) -> Mapping[int, int]:
    """Of ZeRO 1 the elements of which each rank has the optimizer's state."""
    numbers = defaultdict[int, int](int)
    for axis, sizes, ranks in ZeroOptimizer().sharers(part):
        shares = [sum(share) for share in shares_of(sizes, ranks)]
        for group in part.layout.groups(axis):
            for rank, share in zip(group, shares, strict=True):
                numbers[rank] += share
    return numbers


def _key(mix: Mix, rank: int) -> str:
    return f"{rank} of {mix}"


# Comparing


def compared(drawn: Iterable[Mix], kept: Kept) -> Iterator[Apart]:
    """Every figure of every rank beside its formula, but for those of which nothing is predicted."""
    for mix in drawn:
        job = mix.job
        active = active_in(job.layout, from_options(mix.options))
        for ranks in _of_each_stage(mix):
            said = {rank: kept[_key(mix, rank)] for rank in ranks}
            part = part_of(job, active, job.layout.coordinates(ranks[0])["pp"])
            held = {rank: of_rank["memory"] for rank, of_rank in said.items()}
            yield from _memory(mix, held, held_memory(active, part), not_predicted(job, active))
            yield from _traffic(mix, ranks[0], said[ranks[0]]["sent"], expected_traffic(active, part))


def _memory(
    mix: Mix,
    held: Mapping[int, Mapping[str, int]],
    formula: Mapping[str, float],
    unknown: Mapping[str, str],
) -> Iterator[Apart]:
    """Of each category the rank that holds most."""
    for what, band in BANDS.items():
        if what in formula and what not in unknown:
            rank = max(held, key=lambda rank: held[rank][what])
            yield Apart(mix, rank, what, held[rank][what], formula[what], band)


def _traffic(mix: Mix, rank: int, sent: Sequence[Mapping[str, Any]], formula: Iterable[Traffic]) -> Iterator[Apart]:
    counted = {(each["axis"], each["op"]): [0, 0] for each in sent}
    for each in sent:
        total = counted[each["axis"], each["op"]]
        total[0] += each["count"]
        total[1] += each["count"] * each["size_bytes"]
    expected = {(each.axis, each.op): (each.count, each.size_bytes) for each in formula}
    for axis, op in dict.fromkeys([*counted, *expected]):
        for unit, measured, of in zip(
            ("calls", "bytes"), counted.get((axis, op), (0, 0)), expected.get((axis, op), (0, 0)), strict=True
        ):
            yield Apart(mix, rank, f"traffic {axis} {op}, {unit}", measured, of)


# Printing


def features_of(mix: Mix) -> Iterator[str]:
    """What a mix has, in words, by which deviations are told apart."""
    layout = ParallelLayout.parse(mix.layout)
    yield mix.shape
    yield from (f"{name}={value}" for name, value in {**mix.options, **mix.of_job}.items() if name not in _NUMBERS)
    yield f"zero{layout.zero}" + (" in a pipeline" if layout.uses("pp") else "")
    yield from (axis for axis in ("dp", "cp", "tp", "pp", "ep") if layout.degree(axis) > 1)
    yield "one micro-batch" if mix.job.gradient_accumulation_steps == 1 else "several micro-batches"
    if layout.sp:
        yield "sp"


_NUMBERS = ("seq_len", "global_batch_size", "micro_batch_size", "routing")


def table(found: Sequence[Apart], largest: int) -> Iterator[str]:
    """By category and by feature how far formulas are off, then the largest deviations."""
    by_what: dict[str, list[Apart]] = defaultdict(list)
    for each in found:
        by_what["traffic" if each.what.startswith("traffic") else each.what].append(each)
    rows = [[what, *_figures(some)] for what, some in by_what.items()]
    header = ["what", "figures", "beyond", "half", "19 in 20", "least", "most"]
    yield from aligned(header, rows, ["", "", "the band", "within %", "within %", "%", "%"])
    for what in ("activations", "total"):
        by_feature: dict[str, list[Apart]] = defaultdict(list)
        for each in by_what.get(what, ()):
            for feature in features_of(each.mix):
                by_feature[feature].append(each)
        rows = [[feature, *_figures(some)] for feature, some in sorted(by_feature.items())]
        yield from ["", *aligned([f"{what} with", *header[1:]], rows)]
    beyond = sorted((each for each in found if each.is_beyond), key=lambda each: -abs(each.fraction))
    yield f"\n{len(beyond)} of {len(found)} figures are beyond their band, the largest first:"
    yield from map(str, beyond[:largest])


def _figures(some: Sequence[Apart]) -> list[str]:
    off = sorted(abs(each.fraction) for each in some)
    fractions = [each.fraction for each in some]
    beyond = sum(each.is_beyond for each in some)
    quantiles = [off[len(off) // 2], off[len(off) * 19 // 20], min(fractions), max(fractions)]
    return [str(len(some)), str(beyond), *(f"{100 * fraction:.3g}" for fraction in quantiles)]


def main(arguments: Sequence[str]) -> int:
    deep, figures = "--deep" in arguments, [each for each in arguments if each != "--deep"]
    number, seed = int(next(iter(figures), "200")), int(next(iter(figures[1:]), "0"))
    file = Path(figures[2]) if len(figures) > 2 else None
    kept = json.loads(file.read_text()) if file and file.exists() else {}
    drawn = mixes(number, seed, deep)
    try:
        dry_ranks_of(drawn, kept)
    finally:
        if file:
            file.write_text(json.dumps(kept))
    found = list(compared(drawn, kept))
    print("\n".join(table(found, largest=40)))
    return int(any(each.is_beyond for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
