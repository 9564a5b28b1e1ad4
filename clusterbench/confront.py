"""A run as pricing takes it: its training steps, each beside what it took, and its cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from clusterbench import derive
from clusterbench.cases import Reading
from clusterbench.cases.trained import Trained
from clusterbench.cluster import Cluster, named_accelerator
from clusterbench.derive.prices import BENCHMARK, priced_job
from clusterbench.diagnoses import wrong_figures
from clusterbench.errors import ClusterbenchError, SuiteError
from clusterbench.fingerprint import Fingerprint, fingerprint_of, named_gpu
from clusterbench.layout import ParallelLayout
from clusterbench.pricing.cluster_file import NAMES, KnownCluster
from clusterbench.pricing.probes import Probe, is_probe
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.rates import CPU
from clusterbench.pricing.step_table import WRONG_RESULT, StepTable, TableRow
from clusterbench.pricing.typical import nics_of_ports
from clusterbench.run_folder import RunFolder


def steps_of_run(folder: Path) -> StepTable:
    """Every training case of a run, those that have no time too.

    Raises
    ------
    SuiteError
        If the run has no training case.
    RunFolderError
        If it is not the folder of a run.
    """
    run = RunFolder.open(folder)
    reading = derive.read(run)
    cases = [case for case in reading.trained if case.row.benchmark == BENCHMARK]
    if not cases:
        raise SuiteError(
            f"{folder} has no case of {BENCHMARK}, so there is nothing to price or to calibrate by.\n"
            "hint: a suite with training steps makes one, such as suites/calibrate.yaml"
        )
    wrong = _wrong(reading)
    rows = [_row(number, case, reading, case.row.case in wrong) for number, case in enumerate(cases, 1)]
    step = max(case.row.version for case in cases)
    machine = fingerprint_of(reading.environment, step)
    return StepTable(
        str(folder),
        rows,
        has_lines=False,
        machine=machine,
        probes=[*_probes(reading, wrong)],
        rates=run.rates,
        unused=reading.prices.unused,
    )


def cluster_of_run(folder: Path) -> KnownCluster:
    """The cluster of a run, as its hosts describe themselves; of GPUs that were not there, as the run was told.

    Raises
    ------
    SuiteError
        If it has no GPUs, none that are in the tables, or hosts that differ.
    RunFolderError
        If it is not the folder of a run.
    """
    run, place = RunFolder.open(folder), str(folder)
    cluster, machine = run.plan().cluster, fingerprint_of(run.environment())
    if cluster.device == "cpu":
        raise SuiteError(f"{place} is a run on CPU ranks, and a cluster of GPUs is asked for.")
    gpu = cluster.gpu_name and named_accelerator(named_gpu(cluster.gpu_name), f"{place}: gpu").name
    if gpu not in machine.gpu.split(" and "):
        of_plan = cluster.ranks_per_node // cluster.ranks_per_gpu
        machine = Fingerprint(gpu=gpu or "", gpus_per_node=str(of_plan))
    for name in ("gpu", "gpus_per_node"):
        if " and " in (differing := getattr(machine, name)):
            raise SuiteError(f"{place}: its hosts differ in {name}: {differing}. Prices are of nodes that are alike.")
    return KnownCluster(
        gpu=gpu,
        gpus_per_node=int(machine.gpus_per_node),
        num_nodes=cluster.num_nodes,
        nics=nics_of_ports(machine.network),
        source=place,
        places=dict.fromkeys(NAMES, place),
        may_have_more=True,
        machine=machine,
    )


def _wrong(reading: Reading) -> set[str]:
    """Cases of which a repeat was wrong, or whose figures cannot be right: what they took is the speed of no result."""
    ended = {h.case.id for h in reading.histories if any(fault.status == "wrong" for fault in h.faults)}
    return ended | {*wrong_figures(reading)}


def _row(number: int, case: Trained, reading: Reading, is_wrong: bool) -> TableRow:
    cluster = reading.plan.cluster
    gpu = CPU if case.row.device == "cpu" else cluster.gpu_name or ""
    if case.row.status == "refused":
        elsewhere = _elsewhere(case, cluster)
        return TableRow(number, case.row.case, gpu, reason="the plan refused it", elsewhere=elsewhere)
    if is_wrong:
        return TableRow(number, case.row.case, gpu, reason=WRONG_RESULT)
    priced = priced_job(case.point, case.row.device, cluster)
    if isinstance(priced, str):
        return TableRow(number, case.row.case, gpu, reason=priced)
    return TableRow(number, case.row.case, gpu, priced, step_s=case.value("step_time"))


def _elsewhere(case: Trained, cluster: Cluster) -> PricedJob | None:
    """The step of a refused case that needs more nodes than there were; None for every other reason to refuse it."""
    layout = str(case.point.get("layout") or "")
    try:
        ranks = ParallelLayout.parse(layout).world_size
        if ranks <= cluster.world_size or ranks % cluster.ranks_per_node:
            return None
        priced = priced_job(case.point, case.row.device or cluster.device, cluster)
    except ClusterbenchError:
        return None
    return None if isinstance(priced, str) else priced


def _probes(reading: Reading, wrong: Collection[str]) -> Iterator[Probe]:
    """What was measured alone, of cases that ended well; on GPUs that ranks share no time is that of a machine."""
    if reading.shares_gpus:
        return
    for row in reading.rows:
        if row.case in wrong:
            continue
        if row.value is not None and row.value > 0 and row.status == "ok" and is_probe(row.benchmark, row.metric):
            ends = (row.value if end is None else end for end in (row.low, row.high))
            size_bytes, dtype = float(row.point.get("size_bytes") or 0), str(row.point.get("dtype") or "")
            where = row.num_nodes, row.world_size
            yield Probe(row.benchmark, row.case, dtype, *where, size_bytes, row.value, *ends)
