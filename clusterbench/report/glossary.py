"""The words of the field that a page may use: what each means, in a sentence, with its formula or its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import unescape
from itertools import chain

from markupsafe import Markup, escape

from clusterbench.benchmarks import benchmarks
from clusterbench.charts import charts
from clusterbench.diagnoses import diagnoses
from clusterbench.parallel import as_told
from clusterbench.rows import Row
from clusterbench.words import Word

_EVERYWHERE = (
    # How a step is shared
    *(word for kind in as_told() for word in kind.glossary),
    Word(
        "MBS",
        "Micro-batch size: sequences of one forward pass on one data-parallel rank.",
        r"mbs\d*|MBS\d+",
    ),
    Word(
        "GAS",
        "Gradient accumulation steps: forward passes of one data-parallel rank before the optimizer steps.",
        r"gas\d*|acc\d+|GAS\d+",
    ),
    Word(
        "GBS",
        "Global batch size in sequences: micro-batch size × gradient accumulation steps × data-parallel ranks.",
        r"gbs\d*|GBS\d+",
    ),
    # Figures
    Word(
        "MFU",
        "Model FLOP/s utilization: FLOP that the mathematics of a step needs ÷ (time × ranks × peak FLOP/s of one "
        "rank). Chowdhery et al., arXiv:2204.02311, appendix B.",
        "mfu",
    ),
    Word(
        "HFU",
        "Hardware FLOP/s utilization: as MFU, with what recomputation computes a second time. Korthikanti et al., "
        "arXiv:2205.05198.",
        "hfu",
    ),
    Word(
        "MAMF",
        "Maximum achievable matmul FLOP/s: the fastest matrix product measured on the device itself, on a GPU once its "
        "clocks have settled.",
    ),
    Word(
        "FLOP",
        "Floating-point operations: a sum or a product of two numbers each; FLOP/s is how many a second. GFLOP is 1e9, "
        "TFLOP 1e12 of them.",
        "[GTPM]?FLOPs?|flops",
    ),
    Word(
        "busbw",
        "Bus bandwidth: algbw × a factor of the collective, 2(n−1)/n for an all-reduce of n ranks, so that it can be "
        "held against one direction of a link. nccl-tests, doc/PERFORMANCE.md.",
    ),
    Word("algbw", "Algorithm bandwidth: bytes of the whole array ÷ time. nccl-tests, doc/PERFORMANCE.md."),
    Word("cv", "Coefficient of variation: the standard deviation of samples ÷ their mean."),
    Word("IOPS", "Input and output operations a second."),
)
"""Of training steps and of figures."""

OF_MACHINES = (
    # Sizes
    Word(
        "GiB, MiB, KiB",
        "2^30, 2^20 and 2^10 bytes: sizes of messages and of memory.",
        "[KMGTP]iB",
    ),
    Word("GB, MB, kB", "1e9, 1e6 and 1e3 bytes: rates of links and disks, as vendors give them.", "[kKMGTP]B"),
    Word("us", "Microseconds: millionths of a second.", "μs|µs"),
    # Machines and what joins them
    Word("GPU", "Graphics processing unit: the accelerator that computes.", "GPUs"),
    Word("CPU", "Central processing unit: the processor of the host.", "CPUs"),
    Word("CUDA", "NVIDIA's platform for programs on its GPUs.", "cuda"),
    Word("SM", "Streaming multiprocessor: what a GPU has many of, and what its clock drives."),
    Word("HBM", "High-bandwidth memory: the memory on a GPU's package.", r"HBM\d\w*"),
    Word("SXM", "NVIDIA's socket for GPUs on a board with NVLink, in place of a PCIe card.", r"SXM\d*"),
    Word("ECC", "Error-correcting code: finds and mends bits of memory that flipped."),
    Word("SRAM", "Static memory: the caches and registers of a chip."),
    Word("MIG", "Multi-instance GPU: one GPU cut into several that programs take for GPUs of their own."),
    Word("VBIOS", "The firmware of a GPU."),
    Word("Xid", "An error that NVIDIA's driver writes into the kernel's log, by its number in NVIDIA's catalogue."),
    Word("RMA", "Return merchandise authorization: the vendor replaces the part."),
    Word("NVLink", "NVIDIA's link between GPUs.", "NVLinks"),
    Word("NVSwitch", "NVIDIA's switch between NVLinks: each GPU of a node reaches each other at full rate."),
    Word("IMEX", "NVIDIA's service by which GPUs of several hosts reach each other's memory over NVLink."),
    Word("IOMMU", "Input and output memory management unit: translates the addresses by which devices reach memory."),
    Word("PCIe", "Peripheral component interconnect express: joins GPUs, network cards and disks to the CPU."),
    Word("NUMA", "Non-uniform memory access: each socket of a host has memory of its own, nearer than the others'."),
    Word("NIC", "Network interface card.", "NICs"),
    Word(
        "RDMA",
        "Remote direct memory access: a network card reads and writes memory of another host without that host's CPU.",
    ),
    Word("RoCE", "RDMA over converged Ethernet."),
    Word("IB", "InfiniBand, a network made for RDMA.", "InfiniBand"),
    Word("NDR", "InfiniBand at 400 Gb/s a port; EDR is 100, HDR 200, XDR 800 Gb/s.", "EDR|HDR|XDR"),
    Word(
        "GDR",
        "GPUDirect RDMA: the network card reads and writes the GPU's memory itself, past the host's.",
        "GPUDirect|gdr",
    ),
    Word(
        "DMA",
        "Direct memory access: a device copies memory without a processor; by DMA-BUF drivers of Linux share memory.",
        "BUF",
    ),
    Word("MTU", "Maximum transmission unit: the largest packet a network passes whole."),
    Word("LID", "Local identifier: the address of a port in its InfiniBand network."),
    Word("GID", "Global identifier: the address of a port for RDMA; each port has several."),
    Word("TCP", "Transmission control protocol: ordinary network connections, by way of the CPU."),
    # Programs
    Word("NCCL", "NVIDIA collective communications library: what carries collectives between GPUs.", "nccl"),
    Word("Gloo", "The library that carries PyTorch's collectives between processes on CPUs.", "gloo"),
    Word("NVLS", "NVLink SHARP: sums are made in the NVLink switches, so that less passes the links.", "nvls"),
    Word("SHARP", "Scalable hierarchical aggregation and reduction protocol: switches of the network make the sums."),
    Word(
        "PXN",
        "NCCL sends by way of another GPU of the node, over NVLink, to the network card that is nearer to the goal.",
        "pxn",
    ),
    Word(
        "NET",
        "NCCL's transports: P2P from GPU to GPU, SHM through memory of the host, NET over the network.",
        "SHM|P2P",
    ),
    Word("NVML", "NVIDIA management library: what tells clocks, power and temperature of a GPU."),
    Word("UCX", "Unified communication X: the library below many MPIs, over RDMA, shared memory or TCP.", "ucx"),
    Word("MPI", "Message passing interface: the standard by which parallel programs talk.", "MPICH"),
)
"""Of machines, their parts and programs, and sizes: all that a page without charts needs."""

_TOKEN = re.compile(r"[A-Za-zμµ0-9]+")
_BETWEEN_TAGS = re.compile(r">([^<]+)<")


def glossary(measured: Iterable[str] = ()) -> tuple[Word, ...]:
    """Words of every page, those that a chart or a diagnosis brings, and those of the benchmarks that were measured.

    On demand, because charts load a plotting library, and a verdict needs none.
    """
    known = benchmarks()
    brought = (
        *(known[name].glossary for name in sorted(known.keys() & {*measured})),
        *(kind.glossary for kind in charts().values()),
        *(kind.glossary for kind in diagnoses().values()),
    )
    return (*_EVERYWHERE, *OF_MACHINES, *chain.from_iterable(brought))


def words_in(markup: str, words: Iterable[Word], texts: Iterable[str] = ()) -> list[Word]:
    """Those of ``words`` that a page uses: what stands between its tags, and ``texts`` beside it.

    >>> [word.name for word in words_in("<td>tp2+sp</td><p>MFU &amp; KiB</p>", glossary(), ["2 GPUs"])]
    ['TP', 'SP', 'MFU', 'GiB, MiB, KiB', 'GPU']
    """
    pieces = map(unescape, {*_BETWEEN_TAGS.findall(markup)})
    tokens = {token for piece in chain(pieces, {*texts}) for token in _TOKEN.findall(piece)}
    return [word for word in words if word.is_among(tokens)]


def figures_in(by_metric: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, str]]:
    """What each metric means, as the first benchmark says it that knows it and has rows of it."""
    known = benchmarks()

    @cache
    def meanings(benchmark: str) -> Mapping[str, str]:
        return {kind.name: kind.meaning for kind in known[benchmark].metrics} if benchmark in known else {}

    for metric, rows in by_metric.items():
        if meaning := next(filter(None, (meanings(row.benchmark).get(metric) for row in rows)), None):
            yield metric, meaning


def explainer(words: Iterable[Word]) -> Callable[[str], Markup]:
    """For the texts of one page: where one of ``words`` is first used, it leads to what it means."""
    met: set[str] = set()
    named = {name: word for word in words for name in word.name.split(", ")}

    def explained(text: str) -> Markup:
        pieces, end = [], 0
        for match in _TOKEN.finditer(text):
            word = named.get(match[0]) or named.get(match[0].removesuffix("s"))
            if word is None or word.name in met:
                continue
            met.add(word.name)
            link = f'<a class="word" href="#{word.anchor}" title="{escape(word.meaning)}">{escape(match[0])}</a>'
            pieces += [escape(text[end : match.start()]), Markup(link)]
            end = match.end()
        return Markup("").join([*pieces, escape(text[end:])])

    return explained
