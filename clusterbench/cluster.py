"""What the machine is said to be: nodes, ranks, devices, and the vendor's figures for them.

Nothing here looks at a device. Who does (the agent, by NVML) hands in the product name, and the figures are looked up
by that exact name: a wrong near miss would be a wrong MFU that nobody notices.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from clusterbench.errors import SuiteError, nearest
from clusterbench.words import plural

_HARDWARE = Path(__file__).parent / "hardware"

GPUS_OF_A_NODE = 8
"""Of a machine elsewhere, where neither a person nor the tables say."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU by its data sheet. None means that no source is on record, not zero.

    Parameters
    ----------
    peak_flops_per_s
        FLOP/s by dtype (``bfloat16``, ``float16``, ``float8``, ``float4``), dense.
    memory_bytes
        As sold, in GB of 1e9; the driver reports another figure.
    link_bytes_per_s
        Scale-up link (NVLink, XGMI), one direction.
    pcie_bytes_per_s
        To the host, one direction: over PCIe, or over NVLink-C2C where that takes its place.
    nvml_names
        Exact product names under which drivers report it.
    gpus_per_node, server
        Of the server in which it is usually sold, and which that is; None and empty where servers differ.
    lacks
        Of ``bfloat16`` and ``float8`` (e4m3fn) those that it does not multiply.
    """

    name: str
    nvml_names: tuple[str, ...]
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: float | None
    memory_bytes_per_s: float | None
    link_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    source: str
    note: str
    gpus_per_node: int | None = None
    server: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def usual_gpus_per_node(self) -> int:
        """Of its usual server; :data:`GPUS_OF_A_NODE` where that is not on record."""
        return self.gpus_per_node or GPUS_OF_A_NODE


def fewest_nodes(num_ranks: int, most_per_node: int) -> int:
    """Of the numbers of nodes that share ranks evenly, the least with at most so many on each.

    >>> [fewest_nodes(num_ranks, 8) for num_ranks in (4, 16, 12, 11)]
    [1, 2, 2, 11]
    """
    return next(nodes for nodes in count(-(-num_ranks // most_per_node)) if num_ranks % nodes == 0)


@cache
def accelerators() -> dict[str, Accelerator]:
    """All accelerators of ``hardware/*.toml``, by their names there."""
    by_name: dict[str, Accelerator] = {}
    for path in sorted(_HARDWARE.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            by_name[name] = _accelerator(name, entry, path.name)
    return by_name


def _accelerator(name: str, entry: dict[str, Any], file: str) -> Accelerator:
    optional = ("memory_bytes", "memory_bytes_per_s", "link_bytes_per_s", "pcie_bytes_per_s")
    required = ("nvml_names", "peak_flops_per_s", "source")
    if unknown := sorted(set(entry) - {*optional, *required, "note", "gpus_per_node", "server", "lacks"}):
        raise ValueError(f"hardware/{file}: [{name}] has unknown keys {', '.join(unknown)}.")
    if missing := [key for key in required if not entry.get(key)]:
        raise ValueError(f"hardware/{file}: [{name}] lacks {', '.join(missing)}.")
    return Accelerator(
        name=name,
        nvml_names=tuple(entry["nvml_names"]),
        peak_flops_per_s=dict(entry["peak_flops_per_s"]),
        source=entry["source"],
        note=entry.get("note", ""),
        gpus_per_node=entry.get("gpus_per_node"),
        server=entry.get("server", ""),
        lacks=tuple(entry.get("lacks", ())),
        **{key: entry.get(key) for key in optional},
    )


def name_of_drivers(gpu: str) -> str:
    """What is wrong with a card's name that is that of the tables, where a driver's is asked for; empty if it is not.

    >>> name_of_drivers("h200-sxm-141gb")
    "'h200-sxm-141gb', as the tables have it; it must be 'NVIDIA H200', as drivers do."
    >>> name_of_drivers("NVIDIA H200")
    ''
    """
    if (card := accelerators().get(gpu)) is None:
        return ""
    return f"{gpu!r}, as the tables have it; it must be {' or '.join(map(repr, card.nvml_names))}, as drivers do."


@cache  # a plan asks for every case
def find_accelerator(nvml_name: str) -> Accelerator | None:
    """The accelerator a driver calls exactly so; None if nobody has recorded the name.

    >>> find_accelerator("NVIDIA H100 PCIe").peak_flops_per_s["bfloat16"]
    756000000000000.0
    >>> find_accelerator("NVIDIA H200 NVL") is None
    True
    """
    return next((accelerator for accelerator in accelerators().values() if nvml_name in accelerator.nvml_names), None)


def find_card(name: str) -> Accelerator | None:
    """The accelerator of this name in the tables, which words in brackets may follow, or of this product name.

    >>> find_card("gb200 (NVL72)").gpus_per_node
    4
    """
    return accelerators().get(name.split(" (")[0].lower()) or find_accelerator(name)


SHARES_OF_PEAK = ("mfu", "hfu")
"""Metrics that are a share of a card's peak: of another card they mean something else."""


def have_other_peaks(first: str | None, second: str | None) -> bool:
    """Whether two GPUs, by their names, are not known to have the same peak."""
    cards = find_card(first or ""), find_card(second or "")
    if cards[0] is None or cards[1] is None:
        return first != second
    return cards[0].peak_flops_per_s != cards[1].peak_flops_per_s


_FORM, _GIGABYTES = re.compile(r"sxm\d?"), re.compile(r"(\d+)g(?:i?b)?")
_BRACKETS, _SIZE = re.compile(r"\(.*?\)"), re.compile(r"\b(\d+) ?(G(?:i?B)?)\b")
"""A size is of memory where its B is large: 200Gb in brackets are of a network."""

_NO_PART_OF_A_NAME = re.compile(
    r"^\d+ ?x ?|\b(?:nvidia|amd|instinct|tesla|[dh]gx|nvl\d+|hbm\d\w?|gpus?|tensor[ -]core)\b"
)


def meant_cards(words: str) -> list[Accelerator]:
    """Accelerators that a publication's words may stand for: where they name no form, the modules of servers.

    >>> [card.name for words in ("A100-80GB (Selene)", "8xH100", "H100 PCIe", "A100") for card in meant_cards(words)]
    ['a100-sxm4-80gb', 'h100-sxm-80gb', 'h100-pcie-80gb', 'a100-sxm4-80gb', 'a100-sxm4-40gb']
    >>> [card.name for words in ("DGX-H100", "A100 (40 GB)", "A100 40 GB (200Gb IB)") for card in meant_cards(words)]
    ['h100-sxm-80gb', 'a100-sxm4-40gb', 'a100-sxm4-40gb']
    >>> [card.name for words in ("A100-80G", "A100 40G PCIe") for card in meant_cards(words)]
    ['a100-sxm4-80gb', 'a100-pcie-40gb']
    >>> [meant_cards(words) for words in ("H100-94GB", "80GB", "Hopper", "")]
    [[], [], [], []]
    """
    sizes = " ".join("".join(size) for size in _SIZE.findall(words))
    name = _SIZE.sub(" ", _BRACKETS.sub(" ", words))
    parts = _parts(f"{_NO_PART_OF_A_NAME.sub(' ', name.strip().lower())} {sizes.lower()}")
    meant = [card for card in accelerators().values() if parts and _may_be(card, parts)]
    return [card for card in meant if "sxm" in _parts(card.name)] or meant


def meant_card(words: str) -> Accelerator | None:
    """The one accelerator that a publication's words may stand for; None where they fit several, or none."""
    meant = meant_cards(words)
    return meant[0] if len(meant) == 1 else None


def unlike_a_drivers(gpu: str) -> str:
    """What is wrong with a card's name where a driver's is asked for, if it is words of a publication; empty if not.

    A name with its vendor's may be that of a driver nobody has recorded.

    >>> unlike_a_drivers("h100")
    "'h100'; it must be a driver's name: 'NVIDIA H100 80GB HBM3'."
    >>> unlike_a_drivers("NVIDIA H100 80GB HBM2e"), unlike_a_drivers("Hopper")
    ('', '')
    """
    if of_tables := name_of_drivers(gpu):
        return of_tables
    if find_accelerator(gpu) or re.match(r"(?i)(nvidia|amd|tesla) ", gpu) or not (meant := meant_cards(gpu)):
        return ""
    names = " or ".join(repr(card.nvml_names[0]) for card in meant)
    return f"{gpu!r}; it must be a driver's name: {names}."


def _parts(words: str) -> list[str]:
    return [_FORM.sub("sxm", part) for part in re.split(r"[\s_-]+", words) if part]


def _may_be(card: Accelerator, parts: Sequence[str]) -> bool:
    """Whether words begin with the card's chip, and say nothing that it is not."""
    of_card = _parts(card.name)
    sizes = [float(size[1]) for part in parts if (size := _GIGABYTES.fullmatch(part))]
    has_memory = all(card.memory_bytes is not None and abs(size * 1e9 / card.memory_bytes - 1) < 0.1 for size in sizes)
    others = [part for part in parts if not _GIGABYTES.fullmatch(part)]
    is_half = "gcd" in of_card  # of a package, which the words may count as one GPU
    return others[:1] == of_card[:1] and set(others) <= set(of_card) and has_memory and is_half == ("gcd" in others)


def named_accelerator(name: str, said: str = "--gpu") -> Accelerator:
    """The accelerator of a record, as the tables in ``clusterbench/hardware`` or as its driver has it.

    What a person says is :func:`said_card`'s to read.

    Parameters
    ----------
    said
        Where, for the message.

    Raises
    ------
    SuiteError
        If nobody has recorded the name.
    """
    card = accelerators().get(name) or find_accelerator(name)
    if card is None:
        names = accelerators()
        raise SuiteError(f"{said} {name!r} is not in the tables.{_meant(name)}\nCards: {', '.join(names)}.")
    return card


def card_with_memory(name: str) -> Accelerator:
    """What a person says is the card, of which the memory is on record.

    Raises
    ------
    SuiteError
        If the words stand for no card or for several, or its memory is not on record.
    """
    card = said_card(name)
    if not card.memory_bytes:
        raise SuiteError(f"--gpu {name!r}: the tables have no memory of it.")
    return card


def said_card(words: str, said: str = "--gpu") -> Accelerator:
    """The accelerator that a person means: by a name of the tables or of a driver, or by words that fit one card only.

    The words may be those of a publication, and stand in an option, in a file, or in a table of steps.

    Raises
    ------
    SuiteError
        If they stand for no card, or for several.

    Examples
    --------
    >>> said_card("H100").name, said_card("NVIDIA H200").name
    ('h100-sxm-80gb', 'h200-sxm-141gb')
    """
    return find_card(words) or meant_card(words) or named_accelerator(words, said)


def _meant(name: str) -> str:
    """Which cards a part of a name may stand for, or the nearest one.

    >>> _meant("H100"), _meant("h200"), _meant("zebra")
    (' Did you mean h100-sxm-80gb, h100-pcie-80gb, h100-nvl?', ' Did you mean h200-sxm-141gb?', '')
    """
    names = accelerators()
    parts = [card for card in names if card.startswith(name.lower())]
    return f" Did you mean {', '.join(parts)}?" if parts else nearest(name, names)


def nearest_accelerator(name: str) -> str | None:
    """The recorded product name most like this one, for a hint and never for a figure.

    The words a name starts with say more than its letters: 'NVIDIA H200 NVL' is nearer to 'NVIDIA H200' than to
    'NVIDIA H100 NVL'.

    >>> nearest_accelerator("NVIDIA H200 NVL")
    'NVIDIA H200'
    """
    known = [nvml_name for accelerator in accelerators().values() for nvml_name in accelerator.nvml_names]

    def likeness(other: str) -> tuple[int, float]:
        return _common_words(name, other), difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()

    best = max(known, key=likeness)
    return best if likeness(best)[1] >= 0.6 else None


def _common_words(first: str, second: str) -> int:
    common = 0
    for left, right in zip(re.split(r"[ -]", first.lower()), re.split(r"[ -]", second.lower()), strict=False):
        if left != right:
            break
        common += 1
    return common


def is_same_host(name: str, other: str) -> bool:
    """Whether two names are of one host: alike, or one of them with the domain that the other leaves out.

    >>> is_same_host("n1", "n1.fabric.example"), is_same_host("n1.a", "n1.b"), is_same_host("10", "10.0.0.1")
    (True, False, False)
    """
    short, long = sorted((name, other), key=len)
    return short == long or (not short.isdigit() and "." not in short and long.startswith(f"{short}."))


def nodes_and_ranks(num_nodes: int, ranks_per_node: int, device: str) -> str:
    """A machine's size in words.

    >>> nodes_and_ranks(8, 8, "cuda"), nodes_and_ranks(1, 1, "cpu")
    ('8 nodes x 8 GPUs', '1 node x 1 CPU rank')
    """
    kind = "GPU" if device == "cuda" else "CPU rank"
    return f"{plural(num_nodes, 'node')} x {plural(ranks_per_node, kind)}"


def _expect_machine(of: Cluster | MachineOptions, *counts: str) -> None:
    """That its device is one, and these are whole numbers of 1 and more, where they are said."""
    if of.device not in ("cpu", "cuda", None):
        raise SuiteError(f"device is {of.device!r}; it must be 'cpu' or 'cuda'.")
    for name in counts:
        number = getattr(of, name)
        if number is not None and not isinstance(number, Integral):  # of numpy, too
            raise SuiteError(f"{name} is {number!r}; it must be a whole number.")
        if number is not None and number < 1:
            raise SuiteError(f"{name} is {number}; it must be 1 or more.")


@dataclass(frozen=True)
class Cluster:
    """Nodes that are alike, and the ranks on each: one per GPU, or as many as were asked for on a CPU.

    Parameters
    ----------
    device
        What the ranks compute on.
    gpu_name
        Product name as the driver reports it; None on a CPU.
    hosts
        Names in the order of ``node_rank``.
    ranks_per_gpu
        More than one where ranks share each GPU: what they compute and hold is real, and no time is.

    Raises
    ------
    SuiteError
        If a number is below 1, the device is another, or the GPU's name is that of the tables.

    Examples
    --------
    >>> cluster = Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3", None, ("gpu-01", "gpu-02"))
    >>> cluster.world_size, cluster.peak_flops_per_s("bfloat16")[0]
    (16, 989000000000000.0)
    """

    num_nodes: int
    ranks_per_node: int
    device: Literal["cpu", "cuda"]
    gpu_name: str | None = None
    cpu_name: str | None = None
    hosts: tuple[str, ...] = ()
    ranks_per_gpu: int = 1

    def __post_init__(self) -> None:
        _expect_machine(self, "num_nodes", "ranks_per_node", "ranks_per_gpu")
        if self.gpu_name and (of_drivers := name_of_drivers(self.gpu_name)):
            raise SuiteError(f"gpu_name is {of_drivers}")

    @property
    def size(self) -> str:
        """In words.

        >>> Cluster(1, 4, "cuda", ranks_per_gpu=2).size
        '1 node x 2 GPUs with 2 ranks each'
        """
        if self.ranks_per_gpu == 1:
            return nodes_and_ranks(self.num_nodes, self.ranks_per_node, self.device)
        gpus = nodes_and_ranks(self.num_nodes, -(-self.ranks_per_node // self.ranks_per_gpu), self.device)
        return f"{gpus} with {self.ranks_per_gpu} ranks each"

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def accelerator(self) -> Accelerator | None:
        """The data sheet of the GPUs; None on a CPU and for a GPU that is not on record."""
        return find_accelerator(self.gpu_name) if self.device == "cuda" and self.gpu_name else None

    def peak_flops_per_s(self, dtype: str) -> tuple[float, str] | None:
        """Dense peak of one rank in FLOP/s, with its source; None where nobody has published one that we know of."""
        if self.accelerator is None or dtype not in self.accelerator.peak_flops_per_s:
            return None
        return self.accelerator.peak_flops_per_s[dtype], self.accelerator.source

    def missing_peak(self, dtype: str, num_rows: int | None = None) -> str:
        """Why ``mfu`` is empty, and what to do about it; to be said once, not per row.

        >>> print(Cluster(1, 4, "cpu").missing_peak("float32"))
        A CPU has no peak FLOP/s on record, so mfu is left empty.
        hint: the benchmark 'matmul' measures one for this machine
        """
        empty = "so mfu is left empty" + {None: "", 1: " in 1 row"}.get(num_rows, f" in {num_rows} rows")
        if self.device == "cpu":
            hint = "hint: the benchmark 'matmul' measures one for this machine"
            return f"A CPU has no peak FLOP/s on record, {empty}.\n{hint}"
        name = self.gpu_name or "unknown GPU"
        file = "amd.toml" if name.lower().startswith("amd") else "nvidia.toml"
        hint = f"hint: add it with its source to clusterbench/hardware/{file}"
        near = None if self.accelerator else nearest_accelerator(name)
        if near:
            hint += f"; the nearest entry is '{near}'"
        return f"No peak FLOP/s on record for '{name}' in {dtype}, {empty}.\n{hint}"


@dataclass(frozen=True)
class MachineOptions:
    """What a command line says of the machine; None is what it leaves open.

    Parameters
    ----------
    num_ranks
        CPU ranks of each node.
    ranks_per_agent
        Ranks that each process of a launcher owns; 0 is all of its host.
    gpu
        The card of a machine elsewhere, as :func:`said_card` reads it.
    ranks_per_gpu
        That share each GPU; None for one.

    Raises
    ------
    SuiteError
        If a number is below 1 or not whole, or the device is none; there may be 0 ``ranks_per_agent``.
    """

    device: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    ranks_per_agent: int | None = None
    gpu: str | None = None
    ranks_per_gpu: int | None = None

    def __post_init__(self) -> None:
        _expect_machine(self, "num_ranks", "num_nodes", "gpus_per_node", "ranks_per_gpu")


@dataclass(frozen=True)
class Found:
    """What a host has, and for a run which hosts there are, all like it.

    Parameters
    ----------
    gpu_names
        Product name of each GPU; None where the driver does not say.
    why_no_gpus
        The driver's reason, where there are none.
    hosts
        That take part in a run, in the order of ``node_rank``; none for a plan, which may be for a machine elsewhere.
    agents_per_node
        Processes that a launcher started on each host; None where it started none.
    """

    gpu_names: tuple[str | None, ...] = ()
    why_no_gpus: str | None = None
    cpu_name: str | None = None
    hosts: tuple[str, ...] = ()
    agents_per_node: int | None = None


def decide_cluster(asked: MachineOptions, found: Found, num_ranks: int | None) -> Cluster:
    """The cluster that is planned for or run on: what the command line asks for, of what was found.

    Parameters
    ----------
    num_ranks
        CPU ranks of each node where the command line does not say: the suite's; 2 if that leaves it open, too.

    Raises
    ------
    SuiteError
        If an option belongs to the other kind of device, or asks for GPUs, nodes or ranks that are not there.

    Examples
    --------
    >>> decide_cluster(MachineOptions(num_nodes=2, gpus_per_node=8), Found(), None)
    Cluster(num_nodes=2, ranks_per_node=8, device='cuda', gpu_name=None, cpu_name=None, hosts=(), ranks_per_gpu=1)
    """
    if asked.gpu is not None:
        card = said_card(asked.gpu)
        found = Found((card.nvml_names[0],) * card.usual_gpus_per_node)
    num_gpus, is_run = len(found.gpu_names), bool(found.hosts)
    device: Literal["cpu", "cuda"] = "cuda" if num_gpus or asked.gpus_per_node else "cpu"
    if asked.device is not None:
        device = "cpu" if asked.device == "cpu" else "cuda"
    if device == "cpu" and asked.gpus_per_node is not None:
        raise SuiteError("--gpus-per-node has no effect with --device cpu. Say --num-ranks.")
    if device == "cpu" and asked.ranks_per_gpu is not None:
        raise SuiteError("--ranks-per-gpu has no effect on CPU ranks. Say --num-ranks.")
    if device == "cpu" and asked.gpu is not None:
        raise SuiteError("--gpu has no effect with --device cpu.")
    if device == "cuda" and asked.num_ranks is not None:
        raise SuiteError("--num-ranks counts CPU ranks and has no effect on GPUs. Say --gpus-per-node or --device cpu.")
    if device == "cuda" and not num_gpus and (is_run or not asked.gpus_per_node):
        why = f": {found.why_no_gpus}" if found.why_no_gpus else "."
        raise SuiteError(
            f"no GPU was found on {found.hosts[0] if is_run else 'this host'}{why}\n"
            "hint: 'clusterbench plan SUITE --gpus-per-node 8' plans for a machine elsewhere; --device cpu needs no GPU"
        )
    if is_run and found.agents_per_node is None and (asked.num_nodes or 1) > 1:
        raise SuiteError(
            f"--num-nodes {asked.num_nodes} needs a launcher that starts clusterbench on as many hosts; this is one "
            "process on one host.\nhint: 'mpirun -n 2 -host a,b clusterbench run SUITE --ranks-per-agent all'"
        )
    per_gpu, gpus_per_node = asked.ranks_per_gpu or 1, asked.gpus_per_node or num_gpus
    ranks_per_node = gpus_per_node * per_gpu if device == "cuda" else (asked.num_ranks or num_ranks or 2)
    if is_run:
        agents, usual = (1, 0) if found.agents_per_node is None else (found.agents_per_node, 1)
        per_agent = (usual if asked.ranks_per_agent is None else asked.ranks_per_agent) or ranks_per_node
        _expect_ranks_asked_for(asked, agents, per_agent)
        ranks_per_node = per_agent * agents
    if is_run and device == "cuda" and ranks_per_node > num_gpus * per_gpu:
        each = f", with {per_gpu} ranks each" if per_gpu > 1 else ""
        raise SuiteError(
            f"{ranks_per_node} ranks on a node need as many GPUs, but {found.hosts[0]} has {num_gpus}{each}.\n"
            "hint: start fewer processes per node, or let ranks share a GPU, without rates, by --ranks-per-gpu"
        )
    gpu_name = found.gpu_names[0] if device == "cuda" and num_gpus else None
    num_nodes = len(found.hosts) or asked.num_nodes or 1
    return Cluster(num_nodes, ranks_per_node, device, gpu_name, found.cpu_name, found.hosts, per_gpu)


def _expect_ranks_asked_for(asked: MachineOptions, agents: int, per_agent: int) -> None:
    """Makes sure that a number of ranks has its effect where processes of a launcher own them."""
    if asked.num_ranks is not None:
        option, wanted = f"--num-ranks {asked.num_ranks}", asked.num_ranks
    elif asked.gpus_per_node is not None:
        option, wanted = f"--gpus-per-node {asked.gpus_per_node}", asked.gpus_per_node * (asked.ranks_per_gpu or 1)
    else:
        return
    if wanted != agents * per_agent:
        owned = plural(per_agent, "rank") + (" each" if agents > 1 else "")
        raise SuiteError(
            f"{option} asks for {plural(wanted, 'rank')} on a node, but there "
            f"{plural(agents, 'process', 'processes')} of clusterbench {'own' if agents > 1 else 'owns'} {owned}.\n"
            "hint: start one process on each host with --ranks-per-agent all, or one process for each rank"
        )
