"""What more than one verb takes is said once, so that it has one spelling and one range in all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from clusterbench.layout import RANK_ORDERS
from clusterbench.types import FAIL_ON, FAIL_ON_BY_DEFAULT
from clusterbench.units import parse_time

Command = TypeVar("Command", bound=Callable[..., Any])


class WholeRange(click.IntRange):
    """Whole numbers within bounds. What is none of them is answered with what is allowed, in the words of suites."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f"of {self.min} or more" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(f"must be a whole number {bounds}, not {value!r}", param, ctx)


class FiniteRange(click.FloatRange):
    """Numbers within bounds, answered likewise: NaN and infinity, which no bound keeps out, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        bounds = f"above {self.min}" if self.max is None else f"from {self.min} to {self.max}"
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"must be a number {bounds}, not {value!r}", param, ctx)
        return number


def said_options() -> list[str]:
    """The parameters of the verb that its command line names."""
    context = click.get_current_context()
    return [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def num_nodes_option(words: str) -> Callable[[Command], Command]:
    return click.option("--num-nodes", type=WholeRange(1, 100_000), help=words)


def gpus_per_node_option(words: str) -> Callable[[Command], Command]:
    return click.option("--gpus-per-node", type=WholeRange(1, 1024), help=words)


def global_batch_size_option(words: str) -> Callable[[Command], Command]:
    return click.option("--global-batch-size", type=WholeRange(1, 2**24), help=words)


def host_names(text: str | None) -> tuple[str, ...] | None:
    """The hosts of ``a,b``, ``n[1-4]`` or ``./FILE``, each once; None where nothing was said, which is all of them."""
    from clusterbench.launchers import named_hosts

    if text is None:
        return None
    if not (names := tuple(named_hosts(text))):
        raise click.BadParameter(
            f"must be names of hosts, as a,b or n[1-4], or a file of them, as ./FILE, not {text!r}"
        )
    return names


def hosts_option(words: str) -> Callable[[Command], Command]:
    return click.option("--hosts", metavar="A,B|FILE", callback=lambda _, __, text: host_names(text), help=words)


device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="What computes.  [default: cuda where there are GPUs]"
)
num_ranks_option = click.option(
    "--num-ranks", type=WholeRange(1, 4096), help="CPU ranks of each node.  [default: the suite's, or 2]"
)
seq_len_option = click.option(
    "--seq-len", type=WholeRange(2, 2**24), default=4096, show_default=True, help="Tokens of a sequence."
)
micro_batch_size_option = click.option(
    "--micro-batch-size", type=WholeRange(1, 2**20), default=1, show_default=True, help="Sequences of a forward."
)
rank_order_option = click.option(
    "--rank-order",
    default="megatron",
    show_default=True,
    help=f"Which ranks are neighbours, as in: {', '.join(RANK_ORDERS)}.",
)
profile_option = click.option(
    "--profile", default="ours", show_default=True, help="The framework, as 'list profiles' names it."
)


def _conditions(text: str | None) -> tuple[str, ...] | None:
    """``incomplete,suspect``: words of :data:`clusterbench.types.FAIL_ON`, apart by commas."""
    from clusterbench.errors import nearest

    if text is None:
        return None
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in FAIL_ON:
            raise click.BadParameter(f"must be of {', '.join(FAIL_ON)}, not {word!r}.{nearest(word, FAIL_ON)}")
    return words


fail_on_option = click.option(
    "--fail-on",
    metavar="A,B",
    callback=lambda _, __, text: _conditions(text),
    help=f"What ends with exit code 1 beside a wrong result: {', '.join(FAIL_ON)}.  "
    f"[default: {','.join(FAIL_ON_BY_DEFAULT)} and what the suite says]",
)


def _accepted(text: str | None) -> tuple[str, ...]:
    from clusterbench.fingerprint import accepted_fields

    return accepted_fields(text)


cluster_file_option = click.option(
    "--cluster",
    "cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the cluster is: a file with gpu, gpus_per_node, num_nodes and nics, or the folder of a run on it.",
)


def of_table_options(command: Command) -> Command:
    """Of which machine the steps of a table are: ``--gpu``, ``--gpus-per-node``, ``--nics`` and ``--cluster``."""
    for option in (
        cluster_file_option,
        click.option("--nics", metavar="NxGb", help="NICs of a node, as 8x400Gb.  [default: not known, so a range]"),
        gpus_per_node_option("Where the table does not say.  [default: the card's usual]"),
        click.option("--gpu", help="The card, such as 'NVIDIA H200'.  [default: the table's column gpu]"),
    ):
        command = option(command)
    return command


accept_option = click.option(
    "--accept-other",
    "accepted",
    metavar="A,B",
    callback=lambda _, __, text: _accepted(text),
    help="Use recorded figures although these differ on their machine: gpu, driver, nccl ...  [default: refuse]",
)


baseline_option = click.option(
    "--baseline", type=click.Path(path_type=Path), help="What floors 'of baseline' are shares of: a file, or a run."
)
ranks_per_gpu_option = click.option(
    "--ranks-per-gpu", type=WholeRange(1, 64), help="Ranks that share each GPU: proofs, but no rates."
)
