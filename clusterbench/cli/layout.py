"""``clusterbench layout``: every group of a layout, and what passes in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterbench.cli.options import (
    global_batch_size_option,
    micro_batch_size_option,
    num_nodes_option,
    rank_order_option,
    said_options,
    seq_len_option,
)
from clusterbench.cli.output import expect_others, say, write
from clusterbench.errors import SuiteError
from clusterbench.terminal import columns


@click.command(short_help="Show every group of a layout, and what passes in it.")
@click.argument("layout")
@num_nodes_option("Nodes it runs on.  [default: with --gpu as many of its usual server as it takes, else 1]")
@rank_order_option
@click.option("--shape", help="A model of 'clusterbench list shapes', or its config.json; tells bytes per step.")
@seq_len_option
@global_batch_size_option("Sequences of a step.  [default: 4 x pp x dp micro-batches]")
@micro_batch_size_option
@click.option("--gpu", help="With --shape: the card that it should fit, such as 'NVIDIA H200'.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a page, too: axes drawn, memory, a step played.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write its pipeline's schedule for ui.perfetto.dev.")
@click.option("--schedule", default="1f1b", show_default=True, help="With --trace: the schedule that is played.")
def layout(out: Path | None, trace: Path | None, schedule: str, shape: str | None, **asked: Any) -> None:
    """Show which ranks of LAYOUT (as pp2-dp2-tp2) share weights, hold slices or pass activations, and over which link.

    First its axes, and with --shape whether its memory fits; then each axis with its groups, why they go together, the
    messages of one step in their order, and where each rank is. Bytes are those of bfloat16 training with the default
    of every other option.
    """
    from clusterbench.layout_view.text import layout_text
    from clusterbench.layout_view.verb import asked_view

    if shape is None and (idle := _said("gpu", "global_batch_size", "seq_len", "micro_batch_size")):
        raise SuiteError(f"{idle[0]} has no effect without --shape.")
    if trace is None and _said("schedule"):
        raise SuiteError("--schedule has no effect without --trace.")
    expect_others({"--out": out, "--trace": trace}, {})
    view, card = asked_view(shape=shape, **asked)
    if trace is not None:
        from clusterbench.layout_view.schedule import planned_trace

        planned = planned_trace(view, schedule)
    memory: list[str] = []
    if view.job is not None:
        from clusterbench.layout_view.memory import memory_text
        from clusterbench.parallel import from_options

        memory = [*memory_text(view.job, from_options({}), card)]
    say(layout_text(view, columns(), memory))
    if out is not None:
        from clusterbench.report.layout_page import layout_page

        write(layout_page(view, card), out)
        click.echo(f"page: {out}", err=True)
    if trace is not None:
        write("".join(planned.pieces()), trace, "--trace")
        click.echo(f"trace: {trace}", err=True)


def _said(*names: str) -> list[str]:
    """Of these options those that the command line names, as it spells them."""
    given = said_options()
    return [f"--{name.replace('_', '-')}" for name in names if name in given]
