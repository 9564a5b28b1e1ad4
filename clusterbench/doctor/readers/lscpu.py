"""``lscpu``: CPUs that are off-line, and NUMA nodes with fewer CPUs than their siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import lscpu
from clusterbench.tools.lscpu import Lscpu
from clusterbench.types import Severity
from clusterbench.words import few, plural

_NAME = "cpus_online"
_TWO = 2
_FIX = "cat /sys/devices/system/cpu/offline; the kernel's command line (maxcpus, nosmt); the BIOS's log"


class LscpuFields(HostText):
    """Clocks are not judged: they are those of the moment, and idle CPUs lower theirs.

    Where each core shows one thread the others may have been switched off, so that off-line CPUs are a note. Nodes of
    a virtual machine are cut as it was asked for.
    """

    kind = "lscpu"

    def holds(self, text: str) -> bool:
        return lscpu.is_lscpu(text)

    def read(self, text: str, name: str) -> Said:
        said = lscpu.parse(text)
        found = tuple(_found(said, name))
        is_cut = said.num_cpus is None or not said.num_cpus - said.offline <= sum(said.nodes.values()) <= said.num_cpus
        why = NotJudged(_NAME, (name,), "the text does not say the CPUs of all NUMA nodes", "lscpu, whole")
        unknown = (why,) if is_cut and not found else ()
        counts = sorted(set(said.nodes.values()))
        what = f"{plural(said.num_cpus or 0, 'CPU')} on-line, {' or '.join(map(str, counts))} on each NUMA node"
        healthy = () if unknown or any(each.counts for each in found) else (Healthy(_NAME, (name,), what),)
        return Said(found=found, healthy=healthy, not_judged=unknown, hosts=(name,))


def _found(said: Lscpu, name: str) -> Iterator[Found]:
    if said.offline:
        what = f"{said.offline} of {plural(said.num_cpus or 0, 'CPU')} are off-line"
        evidence = f"{name}: {said.lines['Off-line CPU(s) list']}"
        severity: Severity = "note" if said.threads_per_core == 1 else "warning"
        yield Found(_NAME, severity, (name,), "", what, evidence, "lscpu -e", _FIX)
    if len(said.nodes) > 1 and not said.is_virtual and sum(said.nodes.values()) == said.num_cpus:
        most = Counter(said.nodes.values()).most_common(1)[0]
        usual = max(said.nodes.values()) if len(said.nodes) == _TWO else most[0]
        fewer = [node for node, number in said.nodes.items() if number < usual]
        if fewer and (len(said.nodes) == _TWO or 2 * most[1] > len(said.nodes)):
            what = f"has {said.nodes[fewer[0]]} CPUs, and most NUMA nodes have {usual}"
            evidence = f"{name}: {said.lines[f'NUMA node{fewer[0]} CPU(s)']}"
            where = f"NUMA node {few(fewer)}"
            yield Found(_NAME, "warning", (name,), where, what, evidence, "lscpu; numactl --hardware", _FIX)
    if said.boost is False:
        evidence = f"{name}: {said.lines['Frequency boost']}"
        what, fix = "clocks may not rise above their base (boost is off)", "turn boost on in the BIOS or the driver"
        yield Found("cpu_boost", "note", (name,), "", what, evidence, "lscpu; cpupower frequency-info", fix)
