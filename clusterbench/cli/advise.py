"""``clusterbench advise``: which layout of a model should be fastest on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterbench.cli.inputs import known_cluster
from clusterbench.cli.options import (
    FiniteRange,
    accept_option,
    cluster_file_option,
    global_batch_size_option,
    gpus_per_node_option,
    num_nodes_option,
    profile_option,
    seq_len_option,
)
from clusterbench.cli.output import add_remark, expect_others, say, write
from clusterbench.errors import SuiteError
from clusterbench.garbage import uncollected

if TYPE_CHECKING:
    from clusterbench.pricing.advice import Advice
    from clusterbench.pricing.rates import KnownRates


@click.command(short_help="Tell which layout of a model should be fastest on a cluster.")
@click.option(
    "--shape",
    "shapes",
    required=True,
    multiple=True,
    help="A model of 'clusterbench list shapes', or its config.json; several times for several answers.",
)
@click.option("--gpu", help="The card, such as 'NVIDIA H100 80GB HBM3'.  [required, unless --cluster says]")
@num_nodes_option("Nodes of the cluster.  [default: those of --cluster, or 1]")
@gpus_per_node_option("GPUs of each node.  [default: the card's usual]")
@seq_len_option
@global_batch_size_option("Sequences of a step.  [required, unless --tokens says]")
@click.option("--tokens", help="Instead of --global-batch-size: tokens of a step, as 4194304 or 2^22.")
@click.option("--nics", metavar="NxGb", help="NICs of a node, as 8x400Gb.  [default: not known, so two answers]")
@cluster_file_option
@click.option("--rates", type=click.Path(path_type=Path), help="Measured rates, as 'calibrate' writes them.")
@accept_option
@profile_option
@click.option("--knee", is_flag=True, help="Price 1, 2, 4 ... nodes, too: from where on do GPUs bring less?")
@click.option("--gpu-hour", type=FiniteRange(min=0, min_open=True), help="What an hour of a GPU costs.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the suite that measures the first five of each answer."
)
@click.option(
    "--table",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all that fit, as layouts.csv: each layout with its time, range, parts and memory, the fastest first.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page, as heatmap.html, with the fastest layout of each --shape on 1, 2, 4 ... nodes.",
)
@uncollected(to_the_end=True)
def advise(
    shapes: tuple[str, ...],
    gpu: str | None,
    num_nodes: int | None,
    gpus_per_node: int | None,
    nics: str | None,
    cluster: Path | None,
    out: Path | None,
    table: Path | None,
    page: Path | None,
    gpu_hour: float | None,
    knee: bool,
    **options: Any,
) -> None:
    """Say what fits, which batch and which layout: every legal one priced, the five to measure, and why others lose.

    Nothing is run. Without --rates all of it is worked out from datasheets, and says so first.
    """
    from clusterbench.pricing.advise_verb import Asked, answers, expect_names, heatmaps
    from clusterbench.pricing.advised_suite import advised_suite, expect_replaceable

    if out is not None and len(shapes) > 1:
        raise SuiteError(f"--out {out} is the suite of one model, and --shape is given {len(shapes)} times.")
    files = {"--cluster": cluster, "--rates": options["rates"], **{f"--shape {name}": Path(name) for name in shapes}}
    expect_others({"--out": out, "--table": table, "--page": page}, files)
    if out is not None:
        expect_replaceable(out)
    of = known_cluster(cluster).but(gpu=gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node, nics=nics)
    asked = Asked(cluster=of, **options)
    if page is not None:
        expect_names(asked, shapes)
    found: list[tuple[Advice, KnownRates]] = []
    for shape in shapes:
        for text, advice, known in answers(asked, shape, gpu_hour, knee):
            say(f"\n{text}" if found else text)
            found.append((advice, known))
    if table is not None:
        from clusterbench.pricing.profiles import named_profile
        from clusterbench.pricing.ranked_table import ranked_csv

        write(ranked_csv(found, named_profile(asked.profile)), table, "--table")
    if page is not None:
        from clusterbench.report.predicted_page import predicted_page

        write(predicted_page(list(heatmaps(asked, shapes))), page, "--page")
        add_remark(f"{page}: the fastest layouts as predicted; nothing on it was measured")
    if out is not None:
        suite = advised_suite([advice for advice, _ in found], asked.profile)
        for remark in suite.remarks:
            add_remark(f"{out}: {remark}")
        write(suite.text, out)
