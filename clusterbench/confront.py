"""The training steps of a run as pricing takes them: what each would be predicted to take, beside what it took."""

from __future__ import annotations

from pathlib import Path

from clusterbench import derive
from clusterbench.cases import Reading
from clusterbench.cases.trained import Trained
from clusterbench.derive.prices import BENCHMARK, priced_job
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import fingerprint_of
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
    return StepTable(str(folder), rows, has_lines=False, machine=fingerprint_of(reading.environment, step))


def _row(number: int, case: Trained, reading: Reading) -> TableRow:
    cluster = reading.plan.cluster
    gpu = CPU if case.row.device == "cpu" else cluster.gpu_name or ""
    if case.row.status == "refused":
        return TableRow(number, case.row.case, gpu, reason="the plan refused it")
    priced = priced_job(case.point, case.row.device, cluster)
    if isinstance(priced, str):
        return TableRow(number, case.row.case, gpu, reason=priced)
    return TableRow(number, case.row.case, gpu, priced, step_s=case.value("step_time"))
