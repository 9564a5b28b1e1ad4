"""What the verbs that price steps read: a table or a run, and what is known of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterbench.cluster import find_card, said_card
from clusterbench.errors import SuiteError

if TYPE_CHECKING:
    from clusterbench.pricing.cluster_file import KnownCluster
    from clusterbench.pricing.step_table import StepTable


def steps_of(table: Path, of: KnownCluster) -> StepTable:
    """The steps of a CSV file, which are of this cluster, or of a run's folder."""
    from clusterbench.confront import steps_of_run
    from clusterbench.pricing.table import read_steps
    from clusterbench.run_folder import is_run

    if not is_run(table):
        return replace(read_steps(table, of.gpus_per_node, of.gpu), machine=of.machine)
    if said := f"--cluster {of.source}" if of.source else "--gpus-per-node" if of.gpus_per_node else "":
        raise SuiteError(f"{table} is a run and knows its own cluster: {said} has no effect.")
    steps = steps_of_run(table)
    unread = [option for option, value in (("--gpu", of.gpu), ("--nics", of.nics)) if value is not None]
    if unread and {row.gpu for row in steps.rows} == {"cpu"}:
        raise SuiteError(f"{table} is a run on CPU ranks: {unread[0]} has no effect.")
    cards = {card.name for row in steps.rows if (card := find_card(row.gpu)) is not None}
    if of.gpu is not None and cards and said_card(of.gpu).name not in cards:
        raise SuiteError(f"{table} is a run on {', '.join(sorted(cards))}, but --gpu is {of.gpu}.")
    return steps


def known_cluster(path: Path | None) -> KnownCluster:
    """What a file says of a cluster, or a run's folder; nothing where none is named."""
    from clusterbench.pricing.cluster_file import KnownCluster, read_cluster
    from clusterbench.run_folder import is_run

    if path is None:
        return KnownCluster()
    if not is_run(path):
        return read_cluster(path)
    from clusterbench.confront import cluster_of_run

    return cluster_of_run(path)
