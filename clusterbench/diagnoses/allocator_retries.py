from __future__ import annotations

from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.job.passes import RETRIES
from clusterbench.rows import Row
from clusterbench.words import plural


class AllocatorRetries(Diagnosis):
    """Training steps whose GPU was so full that PyTorch gave memory back to the driver and asked for it again.

    What it looks for
    -----------------
    num_alloc_retries of PyTorch's CUDA allocator above 0 on any rank. It counts since the rank began, so that proof and
    warm-up are in it: whether a timed step was hit, it does not tell. Ranks on a CPU have no such count.

    Why it matters
    --------------
    Each retry waits for the device and frees every cached block. The step is slower than it would be with some more
    memory, and another case with a little less of it seems faster than it is. Source: PyTorch, CUDA semantics, memory
    management; torchtitan's metrics warn of it as well.

    How to confirm
    --------------
    Compare peak_memory, category reserved, with the memory of the GPU. Run the case again with a smaller
    micro_batch_size: if tokens/s rise, it was this.

    What usually fixes it
    ---------------------
    A smaller micro_batch_size, recomputation, or more ranks to share weights and optimizer states. Nothing else on the
    GPU. PYTORCH_ALLOC_CONF=expandable_segments:True, which is the default here.
    """

    subject: ClassVar[Subject] = "figures"

    def answer(self, reading: Reading) -> Answer:
        counted = [row for row in reading.rows_of(RETRIES) if row.value is not None]
        found = tuple(_finding(row) for row in counted if row.value)
        healthy = (f"no GPU of {plural(len(counted), 'training case')} ran out of memory on the way",)
        return Answer(found, healthy if counted and not found else ())


def _finding(row: Row) -> Finding:
    assert row.value is not None
    times = plural(int(row.value), "time")
    what = f"the allocator of the fullest rank emptied its cache {times}; its step is slower than with more memory"
    return Finding(row.case, what, "warning", row.basis, brief=f"cache emptied {times}")
