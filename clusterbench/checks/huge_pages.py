from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.memory_settings import HUGE_PAGES, MEMINFO, MemorySettings

MOST_RESERVED = 0.1


class HugePages(HostCheck):
    """Huge pages: transparent ones for all memory (``always``), or so many reserved that little is left.

    With ``always`` the kernel compacts memory when it likes, which shows as jitter; NVIDIA's dgxc-benchmarking sets
    ``never`` for its NCCL systems. Reserved pages serve only who asks for them: above a tenth of all memory (our bound)
    they are worth knowing.
    """

    number = 71
    question = "Are huge pages given only to those who ask for them?"
    severity = "note"
    source = f"{HUGE_PAGES}, {MEMINFO}"
    confirm = f"cat {HUGE_PAGES}; grep Huge {MEMINFO}"
    fix = f"echo madvise > {HUGE_PAGES}, or transparent_hugepage=madvise on the kernel's command line"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(MemorySettings)
        chosen = known(facts, facts.transparent_huge_pages, HUGE_PAGES)
        faults = tuple(_faults(facts, chosen))
        return Judged(faults, "" if faults else f"transparent huge pages: {chosen}")


def _faults(facts: MemorySettings, chosen: str) -> Iterator[Fault]:
    if chosen == "always":
        what = "transparent huge pages are given always, and the kernel may compact memory while a step runs"
        yield Fault("", what, f"{HUGE_PAGES}: {chosen}")
    number = known(facts, facts.reserved_huge_pages, MEMINFO)
    reserved = number * known(facts, facts.huge_page_bytes, MEMINFO)
    total = known(facts, facts.total_bytes, MEMINFO)
    if reserved > MOST_RESERVED * total:
        what = f"huge pages reserve {reserved / 2**30:,.0f} of {total / 2**30:,.0f} GiB of memory"
        said = f"HugePages_Total: {number} of {(facts.huge_page_bytes or 0) // 1024} kB"
        yield Fault("", what, f"{MEMINFO}: {said}", confirm=f"grep Huge {MEMINFO}")
