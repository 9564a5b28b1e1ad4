"""``clusterbench plan``: a suite's plan for the machine that is here, or for one elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterbench.cluster import MachineOptions, decide_cluster
from clusterbench.engine.environment import host_environment
from clusterbench.engine.telemetry import found_here
from clusterbench.fingerprint import fingerprint_of
from clusterbench.planning import make_plan
from clusterbench.suite import load_suite
from clusterbench.types import Plan


def asked_plan(path: Path | str, machine: MachineOptions, baseline: Path | None, accepted: tuple[str, ...]) -> Plan:
    """The plan; of a machine elsewhere as many nodes as the suite asks for at least, where ``machine`` does not say.

    Raises
    ------
    SuiteError
        For a suite that cannot be read or of which nothing can run, and for what :func:`decide_cluster` refuses.
    """
    suite = load_suite(path, baseline=baseline)
    cluster = decide_cluster(machine, found_here(), suite.cpu.num_ranks)
    is_elsewhere = machine.gpu is not None or machine.gpus_per_node is not None
    if is_elsewhere and machine.num_nodes is None:
        cluster = replace(cluster, num_nodes=min(suite.on(cluster.device).num_nodes or (1,)))
    compares = suite.baseline is not None and not is_elsewhere
    here = fingerprint_of({"hosts": {"this": host_environment()}}) if compares else None
    return make_plan(suite, cluster, here, accepted)
