from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import plural

LEAST_RATIO = 0.9
_OF_MEMORY = frozenset({"memory", "gpu_index"})
_OF_MESSAGE = frozenset({"size_bytes", "messages"})

Place = tuple[Hashable, ...]


class SlowGpuMemory(Diagnosis):
    """RDMA from the memory of GPUs that is slower than from the memory of hosts.

    What it looks for
    -----------------
    perftest's bandwidth of one test between one pair of hosts, of the largest message that was sent both from GPUs
    (memory: cuda, cuda_dmabuf) and from hosts: less than 90 % from a GPU. GPU and card take part on both hosts, so both
    are named.

    Why it matters
    --------------
    With GPUDirect RDMA the card reads the GPU's memory itself, as fast as the network. Where it goes around the CPU, or
    through bridges that send everything to the CPU first, less than half is left, and every collective between hosts
    pays for it. New clusters were found at 300 of 720 Gb/s.

    How to confirm
    --------------
    'nvidia-smi topo -m' should say PIX or PXB between GPU and card; 'clusterbench doctor --quick' as root judges ACS on
    the bridges between them. Run perftest with the GPU that is nearest to the card.

    What usually fixes it
    ---------------------
    Switch ACS off, put iommu=pt on the kernel's command line, let each GPU use the card behind its own switch, load
    nvidia_peermem or use DMA-BUF.
    """

    def answer(self, reading: Reading) -> Answer:
        rows = [row for row in reading.rows_of("bandwidth") if row.benchmark == "perftest" and row.value]
        places: dict[Place, list[Row]] = defaultdict(list)
        for row in rows:
            places[_without(row.point, _OF_MEMORY | _OF_MESSAGE)].append(row)
        findings, compared = [], 0
        for same in places.values():
            for of_gpu, of_host in _largest(same):
                compared += 1
                assert of_gpu.value is not None
                assert of_host.value is not None
                if of_gpu.value < LEAST_RATIO * of_host.value:
                    findings.append(_finding(of_gpu, of_host, of_gpu.value / of_host.value))
        if findings:
            return Answer(tuple(sorted(findings, key=lambda finding: finding.what, reverse=True)))
        if compared:
            within = f"{100 * (1 - LEAST_RATIO):.0f} %"
            words = f"RDMA from GPU memory is as fast as from host memory, within {within}"
            return Answer(healthy=(f"{words}: {plural(compared, 'pair')} of cases",))
        if any(row.point["memory"] != "host" for row in rows):
            takes = "perftest with memory: [host, cuda]"
            return Answer(not_judged=(NotJudged("RDMA from GPU memory", "no case is alike from host memory", takes),))
        return Answer()


def _without(point: Mapping[str, object], names: Iterable[str]) -> Place:
    left_out = frozenset(names)
    return tuple(sorted((name, str(value)) for name, value in point.items() if name not in left_out))


def _largest(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Of each kind of GPU memory the largest message that went from host memory too, and that."""
    by_size: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by_size[f"{row.point['memory']} {row.point['gpu_index']}"][int(row.point["size_bytes"])] = row
    hosts = by_size.pop("host None", {})
    for of_gpu in by_size.values():
        if common := of_gpu.keys() & hosts.keys():
            yield of_gpu[max(common)], hosts[max(common)]


def _finding(of_gpu: Row, of_host: Row, ratio: float) -> Finding:
    server, client = of_gpu.point["server"], of_gpu.point["client"]
    names = of_gpu.hosts.split() or [f"node {server}", f"node {client}"]
    rate, whole = (format_value(row.value or 0.0, row.unit) for row in (of_gpu, of_host))
    return Finding(
        f"hosts {' and '.join(names)}",
        f"{of_gpu.point['test']} reaches {100 * ratio:.0f} % from memory of GPU {of_gpu.point['gpu_index']} of what it "
        "reaches from host memory",
        "error",
        f"{rate} in {of_gpu.case}, {whole} in {of_host.case}",
        among=tuple(of_gpu.hosts.split()),
    )
