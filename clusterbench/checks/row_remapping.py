from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import REMAPPED, Gpu

MOST_ROWS = 512


class RowRemapping(GpuCheck):
    """GPU memory whose broken rows wait to be replaced, could not be, or were too many.

    A pending replacement needs a reset of the GPU; until then the broken row is kept out of use. A failed one, or more
    than 512 rows, is a reason to return the board: NVIDIA's GPU memory error management guide (row remapping), and the
    limit of Azure's health checks, github.com/Azure/azurehpc-health-checks.
    """

    number = 20
    question = "Is the memory of every GPU free of rows that wait to be replaced or could not be?"
    severity = "error"
    source = "NVML, remapped rows"
    confirm = "nvidia-smi -q -d ROW_REMAPPER"
    fix = "pending: drain the host and reset the GPU (nvidia-smi -r); failed: run NVIDIA's field diagnostics, RMA"
    asks = REMAPPED
    parts = "NVIDIA GPUs with row remapping"
    in_order = "have no row pending and none failed"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        failed = answer(host, part, part.remap_failed, REMAPPED)
        pending = answer(host, part, part.remap_pending, REMAPPED)
        rows = answer(host, part, part.remapped_uncorrectable, REMAPPED)
        evidence = f"NVML remapped rows: pending {_yes(pending)}, failed {_yes(failed)}, uncorrectable {rows}"
        if failed:
            return Fault(part.place, "a row of its memory could not be replaced", evidence)
        if pending:
            return Fault(part.place, "a row of its memory waits to be replaced: the GPU needs a reset", evidence)
        if rows > MOST_ROWS:
            return Fault(part.place, f"{rows} rows of its memory were replaced, more than {MOST_ROWS}", evidence)
        return None


def _yes(value: bool) -> str:
    return "yes" if value else "no"
