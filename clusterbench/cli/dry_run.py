"""``clusterbench dry-run``: a training step without a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.options import (
    WholeRange,
    global_batch_size_option,
    gpus_per_node_option,
    micro_batch_size_option,
    num_nodes_option,
    rank_order_option,
    seq_len_option,
)
from clusterbench.cli.output import say
from clusterbench.precision import GRADIENT_DTYPES, MASTER, PRECISIONS, WIDE


@click.command(name="dry-run", short_help="Run a training step without a machine: does it fit?")
@click.argument("layout")
@click.option("--shape", required=True, help="A model of 'clusterbench list shapes', or its config.json.")
@num_nodes_option("Nodes it runs on.  [default: what the layout needs]")
@gpus_per_node_option("GPUs of each node.  [default: the card's usual, or 8]")
@click.option(
    "--rank",
    "ranks",
    type=WholeRange(0),
    multiple=True,
    help="The rank to run; several times for several.  [default: one of each pipeline stage]",
)
@seq_len_option
@micro_batch_size_option
@global_batch_size_option("Sequences of a step.  [default: the fewest micro-batches that the layout takes]")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32", "float64"]),
    default="bfloat16",
    show_default=True,
    help="Dtype of the arithmetic.",
)
@click.option(
    "--precision",
    type=click.Choice([*PRECISIONS]),
    default=MASTER,
    show_default=True,
    help="Dtypes of weights and moments, where the arithmetic is in bfloat16.",
)
@click.option(
    "--gradient-dtype",
    type=click.Choice(GRADIENT_DTYPES),
    default=WIDE,
    show_default=True,
    help="Dtype in which gradients of float32 weights add up.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cuda",
    show_default=True,
    help="Device of the operators.",
)
@rank_order_option
@click.option("--gpu", help="The card, as a datasheet's name in the tables, such as 'NVIDIA H100 80GB HBM3'.")
@click.option(
    "--set",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of a parallelism, as schedule=zbv; several times for several.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for its rows and a page.  [default: none]")
def dry_run(layout: str, gpu: str | None, options: tuple[str, ...], out: Path | None, **asked: Any) -> None:
    """Run one step of LAYOUT (as dp128-tp8+sp+zero3) on tensors without data, of any rank, on this machine.

    Nothing is computed or sent: what is told is what the step that a run would time holds, sends and launches.
    """
    from clusterbench.dry.verb import asked_dry_run

    of_layout = asked_dry_run(layout, gpu, options, **asked)
    if out is None:
        say(of_layout.text(of_layout.done()))
        return
    from clusterbench.launch.dry import store_dry_run

    ranks, link = store_dry_run(of_layout, out)
    say(of_layout.text(ranks))
    click.echo(f"report: {link}", err=True)
