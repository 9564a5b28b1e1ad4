"""What another program calls: the verbs of the command line as functions. ``docs/api.md`` describes them."""

from __future__ import annotations

import os
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError, path_of
from clusterbench.types import Plan

if TYPE_CHECKING:  # a plan needs nothing of what reads runs
    from clusterbench.cases import Reading


def plan(suite: Path | str, cluster: Cluster) -> Plan:
    """The cases that a suite asks for on a cluster, each with what is expected of it, and the refusals with reasons.

    Pure: no device is touched and torch is not imported.

    Raises
    ------
    SuiteError
        For a suite that cannot be read or of which nothing can run, with file and line.
    """
    from clusterbench.planning import make_plan
    from clusterbench.suite import load_suite

    if not isinstance(cluster, Cluster):
        raise SuiteError(
            f"cluster is {cluster!r:.80}; it must be a Cluster, as clusterbench.Cluster(num_nodes=1, ranks_per_node=8, "
            "device='cuda')."
        )
    return make_plan(load_suite(path_of(suite, "suite")), cluster)


def run(
    suite: Path | str,
    *,
    out: Path | str | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    num_ranks: int | None = None,
    num_nodes: int | None = None,
    gpus_per_node: int | None = None,
    time_limit_s: float | None = None,
) -> Path:
    """Runs a suite as ``clusterbench run`` does, and returns the run's folder, which holds the report too.

    A case that fails is no exception but a row with its status and reason; :func:`read` has it. Progress is written to
    stderr. While it runs, SIGTERM, Ctrl-C and other such signals for which the program has no handler end it in order:
    call it from the main thread. Under mpirun or srun every process calls it, with the same ``out``.

    Parameters
    ----------
    out
        A new folder; by default ``reports/DATE-TIME-SUITE``.
    device, gpus_per_node
        By default what is found here.
    num_ranks
        CPU ranks of each node; by default the suite's number, or 2.
    num_nodes
        The first nodes of the allocation; by default all.
    time_limit_s
        Seconds after which the run ends in order; cheap cases come first.

    Raises
    ------
    SuiteError, RunFolderError, LaunchError
        What the command line prints: a mistake in the suite or among the arguments, a folder that is not empty, hosts
        that do not find each other.
    """
    from clusterbench.launch.run import RunOptions
    from clusterbench.launch.run import run as run_suite
    from clusterbench.launchers import detect
    from clusterbench.run_folder import default_path
    from clusterbench.suite import load_suite

    given: object = time_limit_s
    if given is not None and not isinstance(given, Real):  # of numpy, too
        raise SuiteError(f"time_limit_s is {given!r}; it must be a number of seconds.")
    if time_limit_s is not None and not time_limit_s > 0:
        raise SuiteError(f"time_limit_s is {time_limit_s}; it must be more than 0.")
    suite = path_of(suite, "suite")
    if out is None and detect(os.environ) is not None:
        raise SuiteError("under a launcher 'run' cannot choose a folder for all processes.\nhint: give it out=FOLDER")
    folder = path_of(out, "out") if out else default_path(Path("reports"), load_suite(suite).name, datetime.now())
    run_suite(
        RunOptions(
            suite,
            out=folder,
            device=device,
            num_ranks=num_ranks,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
            time_limit_s=time_limit_s,
        )
    )
    return folder


def read(folder: Path | str) -> Reading:
    """A run: its plan, every case with all attempts at it, and every row that follows from what was observed.

    Raises
    ------
    RunFolderError
        If it is not the folder of a run. A damaged line in it is no error: it is left out, and ``problems`` names it.
    """
    from clusterbench import derive
    from clusterbench.run_folder import RunFolder

    return derive.read(RunFolder.open(path_of(folder, "folder")))
