"""24 layouts of 2 and 4 CPU ranks, predicted and then run: how good prices are where they can be held against steps.

Rates are probed and fitted to four other steps with as many ranks busy at once as will run; then each layout is priced,
and then all run, three times in turn. Gloo ranks that share a few cores say nothing about GPUs: this is of the method.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from clusterbench.confront import steps_of_run
from clusterbench.formulas.statistics import median
from clusterbench.pricing import Price, price
from clusterbench.pricing.profiles import named_profile
from clusterbench.pricing.rates import KnownRates
from clusterbench.pricing.scores import Scored, regret, spearman
from clusterbench.pricing.verb import calibrate_table
from tests.bench import ROOT, Result, Verdict

PROFILE = "ours"
RUNS = 3
BEST_OF = 3
SPEARMAN, REGRET, COVERED = 0.85, 0.03, (0.70, 0.90)

PROBES = """\
suite: probes
benchmarks:
  - {benchmark: matmul, sizes: [128, 512], iterations: 10}
  - {benchmark: cpu_memory, kernels: [copy], size: 16MiB, iterations: 5, warmup: 1}
"""

MESSAGES = """\
  - {benchmark: all_gather, min_size: 1KiB, max_size: 1MiB, factor: 32, iterations: 5, warmup: 2}
  - {benchmark: reduce_scatter, min_size: 1KiB, max_size: 1MiB, factor: 32, iterations: 5, warmup: 2}
  - {benchmark: all_reduce, min_size: 1KiB, max_size: 1MiB, factor: 32, iterations: 5, warmup: 2}
  - {benchmark: send_recv, min_size: 1KiB, max_size: 1MiB, factor: 32, iterations: 5, warmup: 2}
"""

KNOWN: Mapping[int, Sequence[tuple[str, int, int, int]]] = {
    2: (("dp2", 128, 8, 16), ("tp2+sp", 64, 1, 4), ("dp2+zero3", 64, 1, 8), ("pp2", 128, 2, 8)),
    4: (("dp4", 128, 4, 16), ("tp4+sp", 64, 1, 4), ("dp4+zero3", 64, 1, 8), ("pp2-tp2+sp", 128, 2, 8)),
}
"""Steps to which rates are fitted, by ranks: a layout, its tokens of a sequence, sequences of a micro-batch and of a
step. All are of another shape than those that are predicted, and most of another batch."""

ASKED: Mapping[int, str] = {
    2: "dp2, dp2+zero1, dp2+zero2, dp2+zero3, tp2, tp2+sp, cp2, pp2",
    4: "dp4, dp4+zero1, dp4+zero3, tp4, tp4+sp, dp2-tp2, dp2-tp2+sp, dp2-tp2+sp+zero1, dp2-tp2+sp+zero3, dp2-cp2, "
    "cp2-tp2+sp, cp4, pp2-dp2, pp2-tp2+sp, pp2-cp2, pp4",
}
STEP = (
    "  - {{benchmark: train_step, layouts: [{layouts}], shape: {shape}, seq_len: {seq_len}, "
    "micro_batch_size: {micro}, global_batch_size: {whole}, dtype: float32, parity: false}}\n"
)
TIMED = "cpu:\n  num_ranks: {ranks}\n  train_step: {{iterations: 4, warmup: 2}}\n"


@dataclass(frozen=True)
class Layout:
    """One that was predicted and then run: seconds of a step in each run."""

    name: str
    num_ranks: int
    price: Price
    seconds: Sequence[float]

    @property
    def step_s(self) -> float:
        return median(self.seconds)


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        layouts = [*_layouts(Path(folder))]
    for layout in layouts:
        off = layout.price.step_s / layout.step_s - 1
        runs = " ".join(f"{1e3 * second:.0f}" for second in layout.seconds)
        print(f"{layout.name:20} {runs} ms, priced {1e3 * layout.price.step_s:.0f} ms, {off:+.0%}", file=sys.stderr)
    return [*_results(layouts)]


def _layouts(folder: Path) -> Iterator[Layout]:
    profile = named_profile(PROFILE)
    rates = {ranks: _rates(folder / f"known-{ranks}", ranks) for ranks in ASKED}  # before any of what is asked runs
    runs: dict[str, list[float]] = {}
    prices: dict[str, tuple[int, Price]] = {}
    for number in range(RUNS):
        for ranks, names in ASKED.items():
            step = STEP.format(layouts=names, shape="llama-tiny", seq_len=128, micro=2, whole=8)
            suite = f"suite: asked\nbenchmarks:\n{step}{TIMED.format(ranks=ranks)}"
            table = steps_of_run(_run(folder / f"asked-{ranks}-{number}", suite))
            for row in table.rows:
                assert row.priced is not None, row.reason
                assert row.step_s is not None, f"{row.model} was not timed"
                name = str(row.priced.job.layout)
                runs.setdefault(name, []).append(row.step_s)
                prices[name] = ranks, price(profile.work(row.priced), rates[ranks])
    for name, seconds in runs.items():
        yield Layout(name, *prices[name], seconds)


def _rates(folder: Path, ranks: int) -> KnownRates:
    steps = "".join(
        STEP.format(layouts=layout, shape="llama-flat-tiny", seq_len=seq_len, micro=micro, whole=whole)
        for layout, seq_len, micro, whole in KNOWN[ranks]
    )
    run = _run(folder, PROBES + MESSAGES + steps + TIMED.format(ranks=ranks))
    known, said = calibrate_table(steps_of_run(run), PROFILE)
    print(*said, sep="\n", file=sys.stderr)
    return known


def _run(folder: Path, suite: str) -> Path:
    path = folder.with_suffix(".yaml")
    path.write_text(suite)
    command = [sys.executable, "-m", "clusterbench", "run", str(path), "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode not in (0, 1):  # 1: a rank that other work on these cores made slow is a finding
        raise RuntimeError(done.stdout[-2000:])
    return folder


def _results(layouts: Sequence[Layout]) -> Iterator[Result]:
    noise = median([max(layout.seconds) / min(layout.seconds) for layout in layouts])
    for ranks in ASKED:
        cell = [layout for layout in layouts if layout.num_ranks == ranks]
        apart = _told_apart(cell)
        scored = [Scored(ranks, 1 / layout.step_s, 1 / layout.price.step_s) for layout in cell]
        rank = spearman([layout.step_s for layout in apart], [layout.price.step_s for layout in apart])
        note = (
            f"{len(apart)} of {len(cell)} layouts that three runs tell apart; runs differ by {noise - 1:.0%} (median)"
        )
        yield Result(f"predicted_here_spearman_{ranks}", rank, "1", SPEARMAN, _verdict(rank >= SPEARMAN), note)
        lost = regret(scored, BEST_OF)
        note = f"best of the first {BEST_OF}; of the first {regret(scored, 1):.1%}"
        yield Result(f"predicted_here_regret_{ranks}", lost, "1", REGRET, _verdict(lost <= REGRET), note)
    inside = [layout.price.low_s <= layout.step_s <= layout.price.high_s for layout in layouts]
    covered = sum(inside) / len(inside)
    off = median([abs(math.log(layout.price.step_s / layout.step_s)) for layout in layouts])
    note = f"of {len(layouts)} within the interval of 80 %; median error {math.expm1(off):.0%}"
    yield Result(
        "predicted_here_covered", covered, "1", COVERED[1], _verdict(COVERED[0] <= covered <= COVERED[1]), note
    )


def _told_apart(cell: Sequence[Layout]) -> list[Layout]:
    """Those of which every run differs the same way from every run of each other that is kept, the fastest first."""
    kept: list[Layout] = []
    for layout in sorted(cell, key=lambda each: each.step_s):
        if not kept or min(layout.seconds) > max(kept[-1].seconds):
            kept.append(layout)
    assert all(max(one.seconds) < min(other.seconds) for one, other in combinations(kept, 2))
    return kept


def _verdict(is_within: bool) -> Verdict:
    return "within" if is_within else "missed"
