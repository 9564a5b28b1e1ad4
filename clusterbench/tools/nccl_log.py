"""NCCL's INFO log: which transport, network card, rings, trees, algorithm and protocol carried the bytes.

Source: NVIDIA/nccl 2.30, ``src/debug.cc`` (prefix), ``src/transport/{p2p,shm,net,coll_net,generic}.cc`` (connections),
``src/enqueue.cc``, ``src/ce_coll.cc`` and ``src/scheduler/symmetric_sched.cc`` (what was chosen for a size),
``src/init.cc`` and ``src/graph/rings.cc``; logs of 2.4 to 2.28 for older wordings; ROCm/rccl, whose lines
are the same but for what it adds.

The bracket after the thread is the CUDA device, never the rank. Most is printed only if ``NCCL_DEBUG_SUBSYS`` asks for
it, so that a line that is not there proves nothing. Where several processes write to one file their lines break into
each other; what is not whole is counted in ``unread`` and gives no value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from clusterbench.errors import ToolError
from clusterbench.run_folder.redaction import redacted_value
from clusterbench.tools._nccl import Channels, Tuning
from clusterbench.tools._prefix import AHEAD, without_escapes


@dataclass(frozen=True)
class Membership:
    """One rank of one communicator, from its ``Init START`` or ``Init COMPLETE`` line.

    ``identity`` is the communicator's, the same on all of its ranks; empty where this version prints none.
    """

    identity: str
    rank: int
    num_ranks: int
    host: str
    pid: int


@dataclass(frozen=True)
class Edge:
    """One connection of one channel, as one of its two ends logged it.

    Attributes
    ----------
    source, destination
        Ranks. None is the switch of a CollNet.
    connection
        0 for rings and trees, 1 for send and receive; None where this version or transport does not say.
    direction
        ``send`` or ``receive``: the end that logged it. P2P and SHM are logged by the sender alone.
    kind
        ``P2P``, ``SHM``, ``NET`` or ``COLLNET``.
    detail
        The rest of ``via``: ``CUMEM``, ``IPC/read``, ``direct/direct``; for a network its name.
    device
        The network's number of the card on the end that logged it; None without a network.
    nic
        That card's name, where the network listed its cards.
    gdr
        Whether the card reads and writes GPU memory (GPUDirect RDMA); None without a network.
    pxn
        The rank over whose GPU this one sends to a card that is nearer to it; None where it sends itself.
    shared
        Whether channels share the buffers.
    """

    source: int | None
    destination: int | None
    channel: int
    connection: int | None
    direction: str
    kind: str
    detail: str
    host: str
    device: int | None = None
    nic: str | None = None
    gdr: bool | None = None
    pxn: int | None = None
    shared: bool = False

    @property
    def transport(self) -> str:
        """``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/IB``."""
        return f"{self.kind}/{self.detail}"


@dataclass(frozen=True)
class Ring:
    """Ranks in the order in which one channel's data goes round; told by rank 0.

    NCCL cuts the line, at 20 ranks or at 128 characters; only where ``is_whole`` are these all ranks.
    """

    channel: int
    ranks: tuple[int, ...]
    is_whole: bool


@dataclass(frozen=True)
class Tree:
    """One rank's place in one channel's tree; ``parent`` is None for the root."""

    channel: int
    rank: int
    parent: int | None
    children: tuple[int, ...]


@dataclass(frozen=True)
class Warned:
    """A WARN: where in NCCL's source, and what."""

    host: str
    place: str
    text: str


@dataclass(frozen=True)
class RingsConnected:
    """A process's word on its ring connections; both None before 2.20, which does not say.

    ``gdr`` starts true and is cleared by any connection of a ring to the network without GPUDirect RDMA, so without a
    network it is true.
    """

    host: str
    pid: int
    pxn: bool | None
    gdr: bool | None


@dataclass(frozen=True)
class NcclLog:
    """All that was read, in the order of the text.

    Attributes
    ----------
    nics
        Name of each card by host, network (``IB``, ``Socket``) and number. Cards over which hosts disagree are absent.
    nvls
        By host whether NVLink SHARP's multicast is available on its GPUs.
    environment
        Variables that NCCL says it was given, as it printed them.
    plugins
        Network plugins that were loaded, by name.
    without_rdma
        Hosts where ``NET/IB`` found no device, or its library could not be opened.
    gdr_refused
        (host, card) for each card of which NCCL says that GPUDirect RDMA is disabled.
    unread
        Lines that look like NCCL's, or like the rest of one, and could not be read whole.
    """

    version: str | None
    members: tuple[Membership, ...]
    edges: tuple[Edge, ...]
    rings: tuple[Ring, ...]
    trees: tuple[Tree, ...]
    channels: tuple[Channels, ...]
    tunings: tuple[Tuning, ...]
    connected: tuple[RingsConnected, ...]
    warnings: tuple[Warned, ...]
    networks: tuple[str, ...]
    plugins: tuple[str, ...]
    nics: Mapping[tuple[str, str, int], str]
    nvls: Mapping[str, bool]
    environment: Mapping[str, str]
    without_rdma: tuple[str, ...]
    gdr_refused: tuple[tuple[str, str], ...]
    num_lines: int
    unread: int

    @cached_property
    def hosts(self) -> Mapping[int, str]:
        """The host of each rank that has the same in all communicators; others are left out."""
        return _agreed((member.rank, member.host) for member in self.members)

    def between_hosts(self, edge: Edge) -> bool | None:
        """Whether an edge leaves its host, by the hosts of its ranks; None where one of them is not known.

        The word NET does not tell: NVLink reaches other hosts as ``P2P/MNNVL``, and a network may join ranks of one.
        """
        ends = [self.hosts.get(rank) for rank in (edge.source, edge.destination) if rank is not None]
        return None if len(ends) < 2 or None in ends else ends[0] != ends[1]


def parse(text: str) -> NcclLog:
    """Everything a log says, of one process or of many.

    Raises
    ------
    ToolError
        If no line of it is NCCL's.
    """
    lines = list(_lines(text))
    whole = _without_cut_hosts(lines)
    reader = _LogReader()
    reader.unread = len(lines) - sum(line.message is not None and reader.read(line) for line in whole)
    if not reader.num_lines:
        raise ToolError(f"no line of this is from NCCL's log: {text.strip()[-200:]!r}")
    return reader.log()


def messages(text: str) -> Iterator[tuple[str, str]]:
    """The host and the words of every whole line of NCCL's, of whatever kind."""
    for line in _lines(text):
        if line.message is not None:
            yield line.host, line.message.strip()


# Lines

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.?")
_TIMESTAMP = r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\] )?"
_PREFIX = re.compile(
    AHEAD + _TIMESTAMP + r"(?P<host>[^\s:\[\]<>]+):(?P<pid>\d+):(?P<tid>\d+) (?:\[\d+\] )?"
    r"(?:NCCL INFO (?P<info>.*)|(?P<place>\S+:\d+(?: \([^()]*\))?) NCCL WARN (?P<warn>.*))"
)
_VERSION = re.compile(AHEAD + r"NCCL version (\d+\.\d+\S*)")
_MARK = re.compile(r"NCCL (?:INFO|WARN)\b")
_RARE = 5
"""A host with so many times fewer lines than one whose name ends alike is a part of that name."""
_LOOKS_CUT = re.compile(
    r"\d\[\w+\] -> |\] via (?:P2P|SHM|NET|COLLNET)/|Bytes -> |- Init (?:START|COMPLETE)|NCCL INF?O?$"
)


@dataclass(frozen=True)
class _Line:
    """One line of NCCL's; ``message`` is None where it is not whole, ``place`` empty unless it is a WARN."""

    host: str
    pid: int
    place: str
    message: str | None


_NOT_WHOLE = _Line("", 0, "", None)


def _lines(text: str) -> Iterator[_Line]:
    """NCCL's lines; those of other programs are passed over."""
    *ended, last = text.split("\n")
    for number, raw in enumerate((*ended, last)):
        line = without_escapes(_ESCAPE.sub("", raw).rstrip("\r"))
        is_ended = number < len(ended)
        if is_ended and (version := _VERSION.fullmatch(line)):
            yield _Line("", 0, "", f"NCCL version {version[1]}")
        elif is_ended and len(_MARK.findall(line)) == 1 and (match := _PREFIX.fullmatch(line)):
            message = match["info"] if match["warn"] is None else match["warn"]
            yield _Line(match["host"], int(match["pid"]), match["place"] or "", message)
        elif _MARK.search(line) or _LOOKS_CUT.search(line):
            yield _NOT_WHOLE


def _without_cut_hosts(lines: list[_Line]) -> list[_Line]:
    """Without the lines whose host is one that another line broke into.

    Of ``node-a:7:9`` there may remain ``de-a:7:9``, or it begins ``nodnode-a:7:9``. Such a name is rare, and ends as
    that of many lines, or those end as it does.
    """
    counts = Counter(line.host for line in lines if line.host)
    broken = {
        host
        for host in counts
        for frequent in counts
        if host != frequent
        and (host.endswith(frequent) or frequent.endswith(host))
        and counts[host] * _RARE <= counts[frequent]
    }
    return [line for line in lines if line.host not in broken]


# Messages

_OF_RCCL = re.compile(
    r" comm 0x[0-9a-f]+ nRanks \d+(?: busId \w+)?$|(?: localSize \d+)? used \d+ bytes(?= - Init COMPLETE$)"
)
"""What RCCL adds: the communicator behind each line, the memory in the line of a rank."""
_EDGE = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? via (.+)"
)
"""Up to 2.6 it begins with Ring, and up to 2.4 nothing stands behind ranks of other hosts."""
_COLLNET = re.compile(r"CollNet (\d+)/(\d+) : (\d+) \[(send|receive)\] via COLLNET/(.+)")
_NET = re.compile(r"(?P<net>.+?)/(?P<dev>\d+)(?:\((?P<pxn>\d+)\))?(?P<gdr>/GDRDMA)?(?:\(PCI\))?(?P<shared>/Shared)?")
_P2P = re.compile(r"(?:direct pointer|CUMEM|MNNVL|IPC|indirect/\d+\[\w+\])(?:/read)?(?:/CE)?")
_SHM = re.compile(r"(?:direct|CE)(?:/(?:direct|CE))?")
_RING = re.compile(r"Channel (\d+)/(\d+) :((?: +\d+)+)(?: *|(?<=\d)(\.\.\.)| +(\.\.\.))")
_UP = r"-?\d+/-?\d+/-?\d+->-?\d+->-?\d+"
_DOWN = r"-?\d+->-?\d+->-?\d+/-?\d+/-?\d+"
_TREES = re.compile(rf"Trees((?: \[\d+\] (?:{_UP}(?:\|{_DOWN})?|{_DOWN}))+) *")
"""Up to 2.7 with a second half, of the way down, and in 2.4 that half alone."""
_TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(-?\d+)->(-?\d+)")
_TREE_DOWN = re.compile(r"\[(\d+)\] [^ |]+\|(-?\d+)->(-?\d+)->(-?\d+)/(-?\d+)/(-?\d+)")
_TREE_ALONE = re.compile(r"\[(\d+)\] (-?\d+)->(-?\d+)->(-?\d+)/(-?\d+)/(-?\d+)")
_RING_OF = re.compile(r"Ring \d+ : \d+ -> \d+ -> \d+")
_TREE_OF = re.compile(r"Tree (\d+) : (-?\d+) -> (\d+) -> (-?\d+)/(-?\d+)/(-?\d+)")
_INIT = re.compile(
    r"(?:\[Rank \d+\] )?(?:ncclComm[A-Z]\w* )?comm 0x[0-9a-f]+ rank (\d+) nranks (\d+) cudaDev \d+"
    r"(?: nvmlDev \d+)?(?: busId \w+)?(?: parent 0x[0-9a-f]+ \w+ \d+ color (\d+) key \d+| commId (0x[0-9a-f]+))? ?"
    r"- Init (?:START|COMPLETE)"
)
_CHANNELS = re.compile(
    r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels, "
    r"\d+ p2p channels per peer"
)
_CONNECTED = re.compile(r"Connected all rings(?:, use ring PXN ([01]) GDR ([01]))?")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev \d+.*")
_USING = re.compile(r"NET/(\w+) : Using((?: \[\d+\][^\s\[\]]+)+)(?: .*|; .*)?")
_CARD = re.compile(r"\[(\d+)\]([^\s\[\]:]+):\S+")
_MADE = re.compile(r"NET/(\w+) : Made virtual device \[(\d+)\] name=(\S+) .*")
_GDR_OF = re.compile(r"NET/.+ : GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '(.+)'")
_SET = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?")
_NETWORK = re.compile(r"Using network (.+)")
_PLUGIN = re.compile(r"NET/Plugin: Loaded net plugin (.+) \(v\d+\)")
_CHOSEN = re.compile(
    r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}| time .*)"
)
_SYMMETRIC = re.compile(r"(\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels (\d+) nthreads \d+ nWorks \d+")
_COPIED = re.compile(r"(\w+) \[(?:Copy Engine|Hierarchical CE)\]: (\d+) Bytes -> (cudaMemcpy|RMA proxy \+ CE)(?:;.*)?")

_MUST_BE_READ = re.compile(
    r"Channel \d|CollNet \d|Trees? |Ring \d|.*Init (?:START|COMPLETE)|\d+ coll channels|Connected all rings"
    r"|.*Bytes -> |NET/\w+ : (?:Using|Made)|.*-> \d+\[|.* via (?:P2P|SHM|NET|COLLNET)/"
    r"|.*nranks \d+ cudaDev (?!.*- (?:Destroy|Abort))"
)
"""How messages begin, or what they hold, that must be read whole or be counted."""

# The names that replaced the numbers in 2.22, by number: NVIDIA/nccl, src/include/nccl_common.h.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


class _LogReader:
    """Collects the content of lines; :meth:`log` is the result."""

    def __init__(self) -> None:
        self.unread = self.num_lines = 0
        self.versions: list[str] = []
        self.members: dict[Membership, None] = {}
        self.edges: list[Edge] = []
        self.rings: dict[tuple[int, tuple[int, ...], bool], None] = {}
        self.trees: dict[Tree, None] = {}
        self.channels: dict[Channels, None] = {}
        self.tunings: list[Tuning] = []
        self.connected: dict[RingsConnected, None] = {}
        self.warnings: list[Warned] = []
        self.networks: dict[str, None] = {}
        self.plugins: dict[str, None] = {}
        self.cards: list[tuple[tuple[str, str, int], str]] = []
        self.nvls: list[tuple[str, bool]] = []
        self.environment: dict[str, str] = {}
        self.without_rdma: dict[str, None] = {}
        self.gdr_refused: dict[tuple[str, str], None] = {}

    def read(self, line: _Line) -> bool:
        """Takes the content of one whole line; False where it begins as a known message and then differs."""
        self.num_lines += 1
        message = _OF_RCCL.sub("", (line.message or "").rstrip())
        if line.place:
            if not self.surroundings(line, message):
                self.warnings.append(Warned(line.host, line.place, message))
            return True
        return (
            self.connection(line, message)
            or self.shape(line, message)
            or self.choice(message)
            or self.surroundings(line, message)
            or not _MUST_BE_READ.match(message)
        )

    def connection(self, line: _Line, message: str) -> bool:
        """An edge."""
        if match := _EDGE.fullmatch(message):
            channel, connection, source, destination, direction, via = match.groups()
            kind, _, rest = via.replace("direct shared memory", "SHM/direct").partition("/")  # so up to 2.12
            ends: tuple[int | None, int | None] = (int(source), int(destination))
        elif match := _COLLNET.fullmatch(message):
            channel, connection, rank, direction, rest = match.groups()
            kind = "COLLNET"
            ends = (int(rank), None) if direction == "send" else (None, int(rank))
        else:
            return False
        number = None if connection is None else int(connection)
        if kind in ("NET", "COLLNET"):
            net = _NET.fullmatch(rest)
            if net is None or direction is None:
                return False
            edge = Edge(
                *ends,
                int(channel),
                number,
                direction,
                kind,
                net["net"],
                line.host,
                int(net["dev"]),
                gdr=net["gdr"] is not None,
                pxn=None if net["pxn"] is None else int(net["pxn"]),
                shared=net["shared"] is not None,
            )
        elif (kind == "P2P" and _P2P.fullmatch(rest)) or (kind == "SHM" and _SHM.fullmatch(rest)):
            edge = Edge(*ends, int(channel), number, direction or "send", kind, rest, line.host)
        else:
            return False
        self.edges.append(edge)
        return True

    def shape(self, line: _Line, message: str) -> bool:
        """Ranks, rings, trees and channels."""
        if match := _INIT.fullmatch(message):
            rank, num_ranks, color, identity = match.groups()
            name = identity or (f"color {color}" if color else "")
            self.members[Membership(name, int(rank), int(num_ranks), line.host, line.pid)] = None
        elif match := _RING.fullmatch(message):
            ranks = [int(rank) for rank in match[3].split()]
            if match[4]:
                ranks.pop()  # of which the dots may have taken digits
            if int(match[1]) >= int(match[2]) or len(set(ranks)) < len(ranks):
                return False
            self.rings[int(match[1]), tuple(ranks), not (match[4] or match[5])] = None
        elif match := _TREES.fullmatch(message):
            for channel, *down, rank, up in _TREE.findall(match[1]):
                self.tree(channel, rank, up, down)
            for channel, up, rank, *down in (*_TREE_DOWN.findall(match[1]), *_TREE_ALONE.findall(match[1])):
                self.tree(channel, rank, up, down)
        elif match := _TREE_OF.fullmatch(message):
            channel, up, rank, *down = match.groups()
            self.tree(channel, rank, up, down)
        elif match := _CHANNELS.fullmatch(message):
            coll, collnet, nvls, p2p = (None if number is None else int(number) for number in match.groups())
            assert coll is not None
            assert p2p is not None
            self.channels[Channels(coll, p2p, collnet, nvls)] = None
        elif match := _CONNECTED.fullmatch(message):
            pxn, gdr = (None if flag is None else flag == "1" for flag in match.groups())
            self.connected[RingsConnected(line.host, line.pid, pxn, gdr)] = None
        else:
            return _RING_OF.fullmatch(message) is not None
        return True

    def tree(self, channel: str, rank: str, up: str, down: list[str]) -> None:
        parent = int(up) if int(up) >= 0 else None
        children = tuple(int(child) for child in down if int(child) >= 0)
        self.trees[Tree(int(channel), int(rank), parent, children)] = None

    def choice(self, message: str) -> bool:
        """What was chosen for a size."""
        if match := _CHOSEN.fullmatch(message):
            op, size_bytes, algorithm, protocol, low, high = match.groups()
            named = [_named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS)]
            if None in named:
                return False
            number = None if low is None else int(high) - int(low) + 1
            self.tunings.append(Tuning(op, int(size_bytes), str(named[0]), str(named[1]), number))
        elif match := _SYMMETRIC.fullmatch(message):
            op, size_bytes, kernel, channels = match.groups()
            self.tunings.append(Tuning(op, int(size_bytes), "SYMMETRIC", kernel, int(channels)))
        elif match := _COPIED.fullmatch(message):
            op, size_bytes, how = match.groups()
            self.tunings.append(Tuning(op, int(size_bytes), "COPY_ENGINE", how, None))
        else:
            return False
        return True

    def surroundings(self, line: _Line, message: str) -> bool:
        """Version, cards, plugins and variables."""
        if message.startswith("NCCL version "):
            self.versions.append(message.removeprefix("NCCL version "))
        elif match := _USING.fullmatch(message):
            for number, name in _CARD.findall(match[2]):
                self.cards.append(((line.host, match[1], int(number)), name))
        elif match := _MADE.fullmatch(message):
            self.cards.append(((line.host, match[1], int(match[2])), match[3]))
        elif match := _GDR_OF.fullmatch(message):
            if match[1] == "Disabled":
                self.gdr_refused[line.host, match[2]] = None
        elif match := _NVLS.fullmatch(message):
            self.nvls.append((line.host, match[1] is None))
        elif match := _NETWORK.fullmatch(message):
            self.networks[match[1]] = None
        elif match := _PLUGIN.fullmatch(message):
            self.plugins[match[1]] = None
        elif match := _SET.fullmatch(message):
            self.environment[match[1]] = redacted_value(match[1], match[2])
        elif message == "NET/IB : No device found." or message.startswith("Failed to open libibverbs.so"):
            self.without_rdma[line.host] = None
        else:
            return False
        return True

    def log(self) -> NcclLog:
        nics = _agreed(self.cards)
        sizes = {member.num_ranks for member in self.members}
        return NcclLog(
            version=Counter(self.versions).most_common(1)[0][0] if self.versions else None,
            members=tuple(self.members),
            edges=tuple(_with_nic(edge, nics) for edge in self.edges),
            rings=tuple(Ring(channel, ranks, to_end and len(ranks) in sizes) for channel, ranks, to_end in self.rings),
            trees=tuple(self.trees),
            channels=tuple(self.channels),
            tunings=tuple(self.tunings),
            connected=tuple(self.connected),
            warnings=tuple(self.warnings),
            networks=tuple(self.networks),
            plugins=tuple(self.plugins),
            nics=nics,
            nvls=_agreed(self.nvls),
            environment=self.environment,
            without_rdma=tuple(self.without_rdma),
            gdr_refused=tuple(self.gdr_refused),
            num_lines=self.num_lines,
            unread=self.unread,
        )


def _named(text: str, names: tuple[str, ...]) -> str | None:
    """The name that replaced a number; a name stays itself, and an unknown number has none."""
    if not text.isdigit():
        return text
    return names[int(text)] if int(text) < len(names) else None


def _with_nic(edge: Edge, nics: Mapping[tuple[str, str, int], str]) -> Edge:
    """The edge with its card's name. Plugins that use verbs list their cards as ``NET/IB`` does."""
    if edge.kind != "NET" or edge.device is None:
        return edge
    verbs = edge.detail.startswith("IB") or "RDMA" in edge.detail
    return replace(edge, nic=nics.get((edge.host, "IB" if verbs else edge.detail, edge.device)))


Key = TypeVar("Key")
Value = TypeVar("Value")


def _agreed(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    """The value of each key; a key with values that contradict each other is left out."""
    values_of: dict[Key, set[Value]] = {}
    for key, value in pairs:
        values_of.setdefault(key, set()).add(value)
    return {key: next(iter(values)) for key, values in values_of.items() if len(values) == 1}
