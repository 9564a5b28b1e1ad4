"""How good prices are on published sweeps: ``python -m tests.predict --sweep FILE --slow-mode FILE [--failed FILE]``.

``--open-tables FOLDER`` prices the tables of :data:`OPEN_TABLES`, too.

The sweep is the Ultra-Scale Playbook's interactive one (assets/data/benchmarks of its space), a row a layout, in the
columns of ``clusterbench price``; the second file says by the same rows which are in the mode that costs a second a
micro-batch, the third has those that crashed. None of them is part of this project. Each line names its cells.
"""

from __future__ import annotations

import csv
import math
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from clusterbench.cluster import accelerators
from clusterbench.expected.fits import CLOSE
from clusterbench.pricing import price, step_seconds
from clusterbench.pricing.calibrate import Run, calibrated, chosen, configuration
from clusterbench.pricing.profiles.nanotron import Nanotron
from clusterbench.pricing.rates import KnownRates
from clusterbench.pricing.rates_file import read_rates
from clusterbench.pricing.scores import FEWEST, Scored, Scores, regret, scores_of
from clusterbench.pricing.step_table import TableRow
from clusterbench.pricing.table import read_steps
from clusterbench.pricing.typical import typical_rates
from clusterbench.pricing.verb import price_table
from clusterbench.pricing.work import StepWork
from clusterbench.words import aligned

NETWORK = Path(__file__).parent / "pricing" / "playbook_network.yaml"
NIC_BYTES_PER_S = 8 * 50e9
NOISE = 0.028
"""Of a single iteration, which is what the sweep has: from pairs of rows that should be alike."""

REDRAWS, OTHER_DRAWS, BOOTSTRAPS = 200, 20, 1000
OPEN_TABLES = (
    ("korthikanti2022_table5.csv", "megatron_core", 8, "8x200Gb"),
    ("internevo.csv", "megatron_core", 8, "4x100Gb"),
    ("kempnerforge_h200.csv", "fsdp2", 4, "4x400Gb"),
    ("megatron_2020_tp_scaling.csv", "megatron_core", 8, "8x200Gb"),
)
"""File, profile, GPUs and NICs of a node: the model was fitted to none."""

OF_INTERVAL = 0.8
GIB = 2**30
MEMORY_LIMIT = 77 * GIB
"""Of an H100 of 80 GB, less what the CUDA context and NCCL take."""


@dataclass(frozen=True)
class Layout:
    """A measured layout of the sweep."""

    row: TableRow
    work: StepWork
    is_slow: bool

    @property
    def model(self) -> str:
        job = self.row.priced.job
        return f"{job.shape.name} ({job.shape.num_parameters / 1e9:.1f} B)"

    @property
    def nodes(self) -> int:
        return self.row.priced.num_nodes

    def scored(self, step_s: float, measured_s: float | None = None) -> Scored:
        return Scored((self.model, self.nodes), 1 / (measured_s or self.row.step_s), 1 / step_s)


def layouts(sweep: Path, slow_mode: Path) -> list[Layout]:
    """The rows with a true batch, each with what its step does."""
    profile = Nanotron()
    slow = defaultdict(list)
    for line in csv.DictReader(slow_mode.open(encoding="utf-8")):
        slow[_key(line)].append(line["slow"] == "1")
    read = []
    with sweep.open(encoding="utf-8") as file:
        lines = [*csv.DictReader(file)]
    for row, line in zip(read_steps(sweep, 8).rows, lines, strict=True):
        known = slow.get(_key(line))
        if known and row.priced and row.step_s:
            if (why := profile.objection(row.priced)) is not None:
                raise click.ClickException(f"{sweep}:{row.line}: ran, and is refused: {why}")
            read.append(Layout(row, profile.work(row.priced), known.pop(0)))
    return read


def _key(line: dict[str, str]) -> tuple[object, ...]:
    speed = float(line["tokens_per_s_per_gpu"])
    return (*(line[name] for name in ("model", "params_b", "gpus", "tp", "pp", "dp", "zero", "mbs")), speed)


def scored(of: Iterable[Layout], known: KnownRates) -> list[Scored]:
    return [layout.scored(step_seconds(layout.work, known.rates)) for layout in of]


def fitted(of: Iterable[Layout], known: KnownRates) -> KnownRates:
    return calibrated([Run("", layout.work, layout.row.step_s) for layout in of], known, "nanotron")


def eight(of: Sequence[Layout], shuffled: random.Random | None = None) -> list[Layout]:
    """The runs of a calibration; ``shuffled``: by the same rule, of a random half of the configurations."""
    pool = of if shuffled is None else shuffled.sample(of, len(of) // 2)
    return [pool[number] for number in chosen([configuration(layout.row.priced) for layout in pool])]


def table_line(name: str, of: Sequence[Scored]) -> list[str]:
    scores = scores_of(of)
    if scores is None:
        return [name, *["-"] * 8]
    spans = {number: span_of_mean([regret(cell, number) for cell in cells_of(of)]) for number in scores.regret}
    return [
        name,
        str(scores.cells),
        str(scores.layouts),
        f"{scores.spearman:.3f}",
        f"{scores.lowest_spearman:.2f}",
        f"{scores.near_error:.1%}",
        *(
            f"{middle:.1%} / {mean:.2%} ({spans[number]}) / {most:.0%}"
            for number, (middle, mean, most) in scores.regret.items()
        ),
    ]


def cells_of(of: Iterable[Scored]) -> list[list[Scored]]:
    """The cells that are scored."""
    cells = defaultdict(list)
    for layout in of:
        cells[layout.cell].append(layout)
    return [cell for cell in cells.values() if len(cell) >= FEWEST]


def span_of_mean(values: Sequence[float]) -> str:
    """The 5th and 95th percentile of means of as many values, drawn with replacement: a bootstrap over cells."""
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(BOOTSTRAPS))
    return f"{means[BOOTSTRAPS // 20]:.2%} to {means[-BOOTSTRAPS // 20]:.2%}"


def redrawn(of: Sequence[Layout], known: KnownRates) -> list[str]:
    """Means of regret over draws of the measured times with their noise: the 5th and 95th percentile."""
    prices = [step_seconds(layout.work, known.rates) for layout in of]
    draw = random.Random(0)
    means: dict[int, list[float]] = defaultdict(list)
    for _ in range(REDRAWS):
        noisy = [layout.row.step_s * math.exp(draw.gauss(0, NOISE)) for layout in of]
        again = zip(of, prices, noisy, strict=True)
        scores = scores_of([layout.scored(price, measured) for layout, price, measured in again])
        assert scores is not None
        for number, (_, mean, _) in scores.regret.items():
            means[number].append(mean)
    spans = {number: (sorted(of)[REDRAWS // 20], sorted(of)[-REDRAWS // 20]) for number, of in means.items()}
    return [f"{low:.2%} to {high:.2%}" for low, high in spans.values()]


def model_out(clean: Sequence[Layout], known: KnownRates) -> tuple[list[Scored], list[str]]:
    """Each model priced by rates fitted to the others, and how many of its times lie within the others' intervals."""
    models = dict.fromkeys(layout.model for layout in clean)
    all_scored, lines, inside, halves = [], [], [], []
    for model in models:
        others = [layout for layout in clean if layout.model != model]
        held = [layout for layout in clean if layout.model == model and layout.nodes <= 32]
        found = fitted(others, known)
        errors = sorted(
            abs(math.log(each.predicted / each.measured)) for each in scored(others, found) if each.cell[1] <= 32
        )
        width = errors[int(OF_INTERVAL * len(errors))]
        of_model = scored(held, found)
        all_scored += of_model
        covered = [abs(math.log(each.predicted / each.measured)) <= width for each in of_model]
        inside += covered
        halves.append(math.expm1(width))
        lines.append(f"{model}: {sum(covered) / len(covered):.2f} of {len(covered)} within +-{math.expm1(width):.1%}")
    lines.append(f"pooled: {sum(inside) / len(inside):.3f}; half-width at most {max(halves):.1%}")
    return all_scored, lines


def memory_lines(every: Sequence[Layout], failed: Path | None) -> list[str]:
    profile = Nanotron()

    def held(row: TableRow) -> list[float]:
        return [sum(of.values()) for of in profile.memory(row.priced)]

    known = [layout.row for layout in every if layout.row.priced.job.layout.tp == 1 and layout.row.memory_gb]
    errors = sorted(abs(held(row)[0] / (row.memory_gb * GIB) - 1) for row in known)
    lines = [f"memory, rows with tp 1, first stage: {errors[len(errors) // 2]:.1%} median of {len(errors)}"]
    if failed is not None:
        crashed = [row for row in read_steps(failed, 8).rows if row.priced]

        def called(row: TableRow) -> bool:
            return profile.objection(row.priced) is not None or max(held(row)) > MEMORY_LIMIT

        right = sum(map(called, crashed))
        wrong = sum(called(layout.row) for layout in every if not layout.is_slow)
        between = sum(
            CLOSE * MEMORY_LIMIT < max(held(row)) <= MEMORY_LIMIT
            for row in crashed
            if profile.objection(row.priced) is None
        )
        lines.append(
            f"crashes called: precision {right / (right + wrong):.3f}, recall {right / len(crashed):.2f} of "
            f"{len(crashed)}; {between} more are close to the limit"
        )
    return lines


def worst(of: Sequence[Layout], known: KnownRates, most: int = 5) -> list[str]:
    cells = defaultdict(list)
    for each in scored(of, known):
        cells[each.cell].append(each)
    regrets = {cell: scores_of(layouts) for cell, layouts in cells.items()}
    ranked = sorted(((scores.regret[1][1], cell) for cell, scores in regrets.items() if scores), reverse=True)
    return [f"{model} on {nodes} nodes: {regret:.1%}" for regret, (model, nodes) in ranked[:most]]


@click.command()
@click.option("--sweep", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--slow-mode", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--failed", type=click.Path(path_type=Path, exists=True))
@click.option("--open-tables", type=click.Path(path_type=Path, exists=True), help="The folder of the open tables.")
def main(sweep: Path, slow_mode: Path, failed: Path | None, open_tables: Path | None) -> None:
    """Print how good prices are on the Playbook's sweep."""
    began = time.process_time()
    every = layouts(sweep, slow_mode)
    clean = [layout for layout in every if not layout.is_slow]
    sheet = typical_rates(accelerators()["h100-sxm-80gb"], NIC_BYTES_PER_S)
    probed = read_rates(NETWORK, sheet)
    runs = eight(clean)
    suite = fitted(runs, probed)
    few = [layout for layout in clean if layout.nodes <= 32]
    unseen = [layout for layout in few if layout.nodes >= 4]
    out, coverage = model_out(clean, probed)

    at_64 = [layout for layout in clean if layout.nodes == 64]
    lines = [
        table_line("datasheet x typical, to 32 nodes", scored(few, sheet)),
        table_line("the same, with the network's figure", scored(few, probed)),
        table_line("eight runs, 4 to 32 nodes", scored(unseen, suite)),
        table_line("each model by the others, to 32 nodes", out),
        table_line("no goal: eight runs, 64 nodes", scored(at_64, suite)),
        table_line("no goal: eight runs, slow mode too", scored(every, suite)),
    ]
    heads = ["rates from", "cells", "layouts", "Spearman", "lowest", "near"]
    regrets = [
        f"regret of the best of {number}: median / mean (5 to 95 % of draws of cells) / most" for number in (1, 3, 5)
    ]
    click.echo(f"{len(every)} layouts, {len(clean)} clean; {Counter(layout.model for layout in clean)}")
    click.echo("\n".join(aligned([*heads, *regrets], lines)))
    click.echo(f"eight runs, with {NOISE:.1%} of noise drawn {REDRAWS} times, mean regret: {redrawn(unseen, suite)}")
    for line in other_draws(clean, unseen, probed):
        click.echo(line)
    click.echo("intervals of 80 %, each model's by the others:")
    for line in [*coverage, *memory_lines(every, failed), *worst(unseen, suite)]:
        click.echo(f"  {line}")
    covered = [
        f"{share_within(of, known):.0%} by {name}"
        for name, of, known in (
            ("datasheet x typical", few, sheet),
            ("the network's figure", few, probed),
            ("eight runs", unseen, suite),
        )
    ]
    click.echo(f"times within the price's own interval of 80 %: {', '.join(covered)}")
    for line in open_lines(open_tables) if open_tables is not None else ():
        click.echo(line)
    click.echo(f"{time.process_time() - began:.0f} CPU seconds")


def share_within(of: Sequence[Layout], known: KnownRates) -> float:
    """How many of all times lie within the interval that their price has of itself."""
    prices = [(layout.row.step_s, price(layout.work, known)) for layout in of]
    return sum(of_step.low_s <= step_s <= of_step.high_s for step_s, of_step in prices) / len(prices)


def open_lines(folder: Path) -> Iterable[str]:
    """Each open table as published, and with one factor for all rows, of each row by the others."""
    rows = []
    for name, profile, of_a_node, nics in OPEN_TABLES:
        with TemporaryDirectory() as scratch:
            completed = Path(scratch) / name
            complete(folder / name, completed)
            priced = price_table(read_steps(completed, of_a_node), profile, None, nics).rows
        logs = [math.log(of.price.step_s / of.row.step_s) for of in priced if of.price and of.row.step_s]
        by_others = [log - (sum(logs) - log) / (len(logs) - 1) for log in logs]
        rows.append([name, profile, str(len(logs)), *_errors(logs), *_errors(by_others)])
    heads = ["open table", "profile", "rows", "mean error", "most", "with one factor", "most"]
    yield from aligned(heads, rows)


def complete(table: Path, completed: Path) -> None:
    """A table with what its publication says of a row and no cell does."""
    rows = [*csv.DictReader(table.open(encoding="utf-8-sig"))]
    for row in rows:
        row |= said_beside(table.name, row)
    with completed.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def said_beside(name: str, row: Mapping[str, str]) -> dict[str, str]:
    """Cards, and sequence parallelism, which came with Korthikanti et al. 2022, whose baseline is without.

    >>> said_beside("megatron_2020_tp_scaling.csv", {"gpu": "A100 (DGX-A100)"})
    {'gpu': 'A100-80GB (DGX-A100)', 'sp': '0'}
    """
    if name == "megatron_2020_tp_scaling.csv":
        return {"gpu": row["gpu"].replace("A100 (", "A100-80GB ("), "sp": "0"}
    if name == "korthikanti2022_table5.csv":
        return {"sp": "0" if row["recompute"] == "full" else "1"}
    return {}


def _errors(logs: Sequence[float]) -> list[str]:
    errors = [abs(math.expm1(log)) for log in logs]
    return [f"{sum(errors) / len(errors):.1%}", f"{max(errors):.0%}"]


def other_draws(clean: Sequence[Layout], unseen: Sequence[Layout], known: KnownRates) -> Iterable[str]:
    """The same with eight runs that the same rule chooses of a random half of all configurations."""
    draws = [eight(clean, random.Random(seed)) for seed in range(OTHER_DRAWS)]
    scores = [scores_of(scored(unseen, fitted(runs, known))) for runs in draws]
    found = [each for each in scores if each is not None]

    def span(figure: Callable[[Scores], float]) -> str:
        values = sorted(map(figure, found))
        return f"{values[len(values) // 2]:.4f} ({values[0]:.4f} to {values[-1]:.4f})"

    yield f"{len(found)} other draws by the same rule, median (lowest to highest):"
    yield f"  Spearman {span(lambda of: of.spearman)}; near {span(lambda of: of.near_error)}"
    for number in (1, 3, 5):
        yield f"  mean regret of the best of {number}: {span(lambda of, number=number: of.regret[number][1])}"


if __name__ == "__main__":
    sys.exit(main())
