"""Suites of probes drawn by a seed: every benchmark but training steps, with any of its options at small sizes.

``python -m tests.random_probes 4 60 --seed 11 > probes.yaml`` draws 60 probes on 4 ranks, and ``clusterbench run
probes.yaml --num-ranks 4 --device cpu`` runs them: each is measured, or skipped with its reason, and none is wrong.
What is drawn follows from the options that benchmarks declare, so a new one takes part by itself.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

from clusterbench.benchmarks import benchmarks
from clusterbench.layout import AXES
from clusterbench.options import Option, options_of
from tests.random_steps import Setting, planned
from tests.training.layouts import layouts_on

NO_PROBES = ("train_step", "rank_step", "dry_step", "imported", "fault_drill")
ON_GPUS = (
    *("deepep", "device_copy", "gdrcopy", "host_copy", "nccl_tests", "nccl_transport", "nvbandwidth"),
    *("nvshmem_perftest", "peer_copy", "perftest"),
)
"""Skipped on a CPU, whatever their options."""

LEFT_ALONE = (
    *("path", "expect", "time_limit_s", "tool_time_limit_s"),
    *("blocking", "graph", "settle", "memory", "to", "search"),
)
"""Places, what changes how a case is judged, and what has no effect on a CPU."""

MOST_BYTES, MOST = 2**20, 8
"""Of sizes, and of other numbers."""

MOST_OF = {"iterations": 5, "warmup": 2, "sizes": 300, "stride": 4, "root": 4}
WORDS = {"shape": ("llama-tiny", "llama-flat-tiny", "moe-tiny", "moe-shared-tiny"), "matrix": ("uniform", "skewed")}
"""What is drawn of options that take any text, or the names of models too large for a test."""

DRAWN = 0.4
"""How often an option is written that has a cheap default."""

SECONDS = 300
TRIES = 50


def drawn_probe(rng: random.Random, name: str, num_ranks: int) -> Setting:
    """One probe, which may be one that is refused."""
    probe: Setting = {"benchmark": name, "time_limit_s": SECONDS}
    for option in options_of(benchmarks()[name]).values():
        if option.name not in LEFT_ALONE and rng.random() < (0.95 if _is_costly(option) else DRAWN):
            value = _drawn(rng, option, num_ranks)
            if value is not None:
                probe[option.name] = value
    if "layouts" in probe:
        probe["axis"] = rng.choice(AXES)
    return probe


def _is_costly(option: Option) -> bool:
    """Whether its default is made for a cluster."""
    return option.unit == "B" or option.name in ("iterations", "sizes")


def _drawn(rng: random.Random, option: Option, num_ranks: int) -> object:
    if option.name == "layouts":
        return [str(rng.choice(sorted(layouts_on(num_ranks), key=str)))]
    if option.name in WORDS:
        return rng.choice(WORDS[option.name])
    if option.is_list:
        drawn = [_element(rng, option) for _ in range(rng.choice([1, 1, 2]))]
        return None if None in drawn else list(dict.fromkeys(drawn))
    return _element(rng, option)


def _element(rng: random.Random, option: Option) -> object:
    if option.choices is not None:
        return rng.choice(option.choices)
    if option.kind is bool:
        return rng.random() < 0.5
    if option.kind not in (int, float):
        return None
    least = 1.0 if option.minimum is None else option.minimum
    most = MOST_BYTES if option.unit == "B" else MOST_OF.get(option.name, MOST)
    most = max(least, min(most, option.maximum or math.inf))
    if option.unit == "B":
        value = math.exp(rng.uniform(math.log(least), math.log(most)))
        words = rng.choice([1, 8, 48, 4096])
        return f"{max(math.ceil(least), round(value) // words * words)}B"
    return rng.randint(int(least), int(most)) if option.kind is int else round(rng.uniform(least, most), 2)


def drawn_suite(num_ranks: int, count: int, seed: int) -> Setting:
    """A suite of ``count`` probes that a plan takes; the same for the same arguments."""
    rng, probes, known = random.Random(seed), list[Setting](), set[str]()
    names = [name for name in benchmarks() if name not in (*NO_PROBES, *ON_GPUS)]
    with TemporaryDirectory() as folder:
        place = Path(folder) / "suite.yaml"
        while len(probes) < count:
            name = rng.choice(names)
            for _ in range(TRIES):  # of some benchmarks most combinations of options are refused
                probe = drawn_probe(rng, name, num_ranks)
                cases = planned(probe, num_ranks, place)
                if cases and not cases & known:
                    probes.append(probe)
                    known |= cases
                    break
    return {"suite": f"random_probes_{num_ranks}_{seed}", "benchmarks": probes}


@click.command()
@click.argument("num_ranks", type=click.IntRange(1, 16))
@click.argument("count", type=click.IntRange(1, 10_000))
@click.option("--seed", type=int, default=0, show_default=True)
def main(num_ranks: int, count: int, seed: int) -> None:
    """Print a suite of COUNT probes on NUM_RANKS ranks."""
    yaml.safe_dump(drawn_suite(num_ranks, count, seed), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
