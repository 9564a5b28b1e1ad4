"""The training steps of a run as pricing takes them: what each would be predicted to take, beside what it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterbench import derive
from clusterbench.cases import Reading
from clusterbench.cases.trained import Trained
from clusterbench.cluster import Cluster
from clusterbench.derive.prices import BENCHMARK, priced_job
from clusterbench.errors import ClusterbenchError, SuiteError
from clusterbench.fingerprint import fingerprint_of
from clusterbench.layout import ParallelLayout
from clusterbench.pricing.probes import Probe, is_probe
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.rates import CPU
from clusterbench.pricing.table import StepTable, TableRow
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
    reading = derive.read(RunFolder.open(folder))
    cases = [case for case in reading.trained if case.row.benchmark == BENCHMARK]
    if not cases:
        raise SuiteError(f"{folder} has no case of {BENCHMARK}, so there is nothing to price.")
    rows = [_row(number, case, reading) for number, case in enumerate(cases, 1)]
    step = max(case.row.version for case in cases)
    machine = fingerprint_of(reading.environment, step)
    return StepTable(str(folder), rows, has_lines=False, machine=machine, probes=[*_probes(reading)])


def _row(number: int, case: Trained, reading: Reading) -> TableRow:
    cluster = reading.plan.cluster
    gpu = CPU if case.row.device == "cpu" else cluster.gpu_name or ""
    if case.row.status == "refused":
        elsewhere = _elsewhere(case, cluster)
        return TableRow(number, case.row.case, gpu, reason="the plan refused it", elsewhere=elsewhere)
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


def _probes(reading: Reading) -> Iterator[Probe]:
    """What was measured alone, of cases that ended well; on GPUs that ranks share no time is that of a machine."""
    if reading.shares_gpus:
        return
    for row in reading.rows:
        if row.value is not None and row.value > 0 and row.status == "ok" and is_probe(row.benchmark, row.metric):
            ends = (row.value if end is None else end for end in (row.low, row.high))
            size_bytes, dtype = float(row.point.get("size_bytes") or 0), str(row.point.get("dtype") or "")
            where = row.num_nodes, row.world_size
            yield Probe(row.benchmark, row.case, dtype, *where, size_bytes, row.value, *ends)
