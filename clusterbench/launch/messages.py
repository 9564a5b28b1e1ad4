"""What the processes of a run say to each other: one frozen dataclass a message, sent as one line of JSON.

A line is ``{"message": NAME, FIELD: VALUE, ...}``, NAME being that of the dataclass. It is read as strictly as the
files of a run: every field is there and of its type, no other is, numbers are finite and of a sensible size, text is
whole. Only what a benchmark measured (``evidence``, ``passes``) may hold what is no number, as in the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from clusterbench.engine.telemetry import GpuSample
from clusterbench.tools.nccl_ras import Stall
from clusterbench.types import PHASES, HostCounters, Point, Timing

Leaving = Literal["in order", "aborted", "abandoned"]
"""How MPI is left.

Not in order where a rank is stuck inside it, since that waits for all ranks. As long as every agent answers, the head
aborts it: this alone gives mpirun the run's exit code. Where one does not answer, mpirun might wait for its host for
ever, so each agent leaves by itself.
"""

Failure = Literal["wrong", "failed", "out_of_memory", "skipped"]
"""How a case can end by what one rank says."""

Descriptors = tuple[int, ...]
"""File descriptors that travel beside a message to another process of the host, which finds its own numbers here."""


# Values within messages.


@dataclass(frozen=True)
class PackageCopy:
    """Where a process has the package from, and the digest of its sources."""

    place: str
    digest: str


@dataclass(frozen=True)
class StorePlace:
    """Where the ranks of a start meet: a file on one host, a TCPStore where they live on several."""

    file: str = ""
    host: str = ""
    port: int = 0
    prefix: str = ""


@dataclass(frozen=True)
class WorkerPlace:
    """Which rank a worker is: in the start, on its host, among its agent's ranks; and where its log goes.

    Attributes
    ----------
    log
        In the run's folder.
    own_log
        On a disk of this host, where that cannot be made.
    """

    rank: int
    local_rank: int
    slot: int
    log: str
    own_log: str


@dataclass(frozen=True)
class RankPlace:
    """How far a rank got: the phase it has behind it, its process's state, its Python frames (innermost first).

    ``can_begin`` says whether torch is imported on its host: it is forked once that is done.
    """

    rank: int
    host: str
    phase: str
    iteration: int
    state: str
    stack: tuple[str, ...]
    log: str
    can_begin: bool = True

    def __post_init__(self) -> None:
        _expect_phase(self.phase)


@dataclass(frozen=True)
class GpuSamples:
    """All GPUs that an agent sees at one moment; ``reason`` says why there are none."""

    time_s: float
    gpus: tuple[GpuSample, ...]
    reason: str | None = None


# Orders of the head to every agent.


@dataclass(frozen=True)
class Own:
    """Says which ranks of its host an agent owns, and over which interface its workers talk."""

    local_ranks: tuple[int, ...]
    interface: Mapping[str, str]


@dataclass(frozen=True)
class Warm:
    """Has torch imported ahead of the first start, and what workers need for named benchmarks and parallelisms."""

    environment: Mapping[str, str]
    things: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenStore:
    """Asks the head's agent to host the store of the next start at ``address``; a :class:`StoreOpen` follows."""

    environment: Mapping[str, str]
    address: str


@dataclass(frozen=True)
class Start:
    """Forks an agent's share of a start: those of its ranks, from ``first_rank`` on, that are below ``world_size``.

    The ranks are split, in their order, into ``num_worlds`` of equal size that know nothing of one another.
    """

    id: int
    world_size: int
    device: str
    environment: Mapping[str, str]
    store: StorePlace
    timeout_s: float
    logs: str
    first_rank: int = 0
    ranks_per_gpu: int = 1
    num_worlds: int = 1


@dataclass(frozen=True)
class RunCase:
    """Has every rank of the start prepare a case; passed on to the workers.

    Attributes
    ----------
    passes
        Whether to take those that do not vary from repeat to repeat.
    check
        Whether to check it: not where what it would prove was proven on the same ranks.
    own_steps
        In how many steps each rank's own work is recorded, at least.
    on_one_rank
        Whether one rank computes it by itself behind the clock, too.
    """

    benchmark: str
    point: Point
    layout: str | None
    rank_order: str
    iterations: int
    warmup: int
    passes: bool
    check: bool
    own_steps: int
    on_one_rank: bool = False


@dataclass(frozen=True)
class GoOn:
    """Has every rank of the start take the next step, which all are ready for; passed on to the workers."""

    to: Literal["check", "time"]


@dataclass(frozen=True)
class Inspect:
    """Asks how far the ranks got; an :class:`Inspected` follows."""

    stacks: bool


@dataclass(frozen=True)
class End:
    """Ends the workers of a start: they leave by themselves, or are killed. An :class:`Ended` follows."""

    start: int
    kill: bool


@dataclass(frozen=True)
class SampleGpus:
    """Has the GPUs that an agent sees sampled from here on, by a process of their own.

    ``first_gpu`` is the number that the first of them has on its host.
    """

    interval_s: float
    first_gpu: int = 0


@dataclass(frozen=True)
class TellTime:
    """Asks what time it is there; a :class:`TimeTold` follows."""


@dataclass(frozen=True)
class TryAddress:
    """Asks whether a connection to there can be made; an :class:`AddressTried` follows, in some seconds at most."""

    address: str
    port: int


@dataclass(frozen=True)
class AskRas:
    """Asks NCCL's RAS at this address of the host what ranks do; a :class:`RasTold` follows, in 11 s at most."""

    address: str


# Orders to agents that are the ranks of a case of MPI.


@dataclass(frozen=True)
class PrepareMpi:
    """``agents`` are the ranks of the case, in order, by their number under mpirun; each is one on its host."""

    agents: tuple[int, ...]
    local_ranks: tuple[int, ...]
    point: Point
    iterations: int
    warmup: int
    limit_s: float


@dataclass(frozen=True)
class CheckMpi:
    limit_s: float


@dataclass(frozen=True)
class TimeMpi:
    limit_s: float


@dataclass(frozen=True)
class InspectMpi:
    """Asks how far this rank got, and where in the code it stands."""


@dataclass(frozen=True)
class EndMpi:
    """The case is over for the conductor; a :class:`MpiEnded` follows."""


# About the connection itself; the first goes both ways.


@dataclass(frozen=True)
class Sign:
    """A sign of life."""


@dataclass(frozen=True)
class ExpectSilence:
    """The head may say nothing for so many seconds from here on without being lost."""

    seconds: float


@dataclass(frozen=True)
class Quit:
    """The run is over; a :class:`Goodbye` follows."""

    exit_code: int
    leaving: Leaving


AgentOrder = (
    Own | Warm | OpenStore | Start | RunCase | GoOn | Inspect | End | SampleGpus | TellTime | TryAddress | AskRas
)
MpiOrder = PrepareMpi | CheckMpi | TimeMpi | InspectMpi | EndMpi
Order = AgentOrder | MpiOrder | Sign | ExpectSilence | Quit


# Events: what happened at an agent.


@dataclass(frozen=True)
class Hello:
    """What an agent says first; ``environment`` describes the host, ``asked`` is what it was started for.

    From all agents but its first the environment is empty, or has what the driver says of the GPUs alone that a
    launcher shows to this one.
    """

    host: str
    local_rank: int | None
    copy: PackageCopy
    environment: Mapping[str, Any]
    asked: str = ""


@dataclass(frozen=True)
class TimeTold:
    """Seconds since 1970 by the host's clock."""

    time_s: float


@dataclass(frozen=True)
class AddressTried:
    """``why_not`` is empty where the address with this port was reached."""

    port: int
    why_not: str


@dataclass(frozen=True)
class Interrupted:
    """This agent got a signal to stop, and wants the run ended in order."""


@dataclass(frozen=True)
class Goodbye:
    """The last an agent says."""


@dataclass(frozen=True)
class StoreOpen:
    """The store of the start waits at this port. Its process tells its agent, and the agent the head."""

    port: int


@dataclass(frozen=True)
class RankReady:
    """A rank has met the others; the first of each host says what it loaded."""

    stage: ClassVar[str] = "ready"
    rank: int
    host: str
    loaded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RankReached:
    """A rank is through with ``stage`` and waits for the order to go on."""

    rank: int
    host: str
    stage: Literal["prepared", "checked"]


@dataclass(frozen=True)
class RankDone:
    """A rank's record of a case: what its check proved, and what was seen of the steps that were timed."""

    stage: ClassVar[str] = "done"
    rank: int
    host: str
    seconds: Sequence[float]
    evidence: Mapping[str, float]
    passes: Mapping[str, Any]
    timing: Timing | None = None
    proof: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankFailed:
    """A rank could not go on, in the phase after ``phase``."""

    stage: ClassVar[str] = "failed"
    rank: int
    host: str
    status: Failure
    reason: str
    phase: str
    evidence: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _expect_phase(self.phase)


@dataclass(frozen=True)
class RankExited:
    """A rank's process ended. ``memory_limit_bytes`` where the kernel ended it for want of memory."""

    rank: int
    host: str
    code: int
    log: str
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class LostZygote:
    """The process from which an agent's ranks were forked ended, and they with it."""

    host: str
    reason: str


@dataclass(frozen=True)
class LostStore:
    """The process of the store at which ranks of several hosts meet ended before its start did."""

    host: str
    reason: str


@dataclass(frozen=True)
class Disabled:
    """An agent can start no rank any more, though it answers."""

    why: str


@dataclass(frozen=True)
class Inspected:
    ranks: tuple[RankPlace, ...]


@dataclass(frozen=True)
class Ended:
    """No worker of the start is left here. ``logs`` has the end of each that the head cannot see, by name."""

    start: int
    logs: Mapping[str, str]


@dataclass(frozen=True)
class GpusSampled:
    host: str
    sample: GpuSamples


@dataclass(frozen=True)
class CountersGrown:
    """What the counters of a host did from the order to run a case to the end of the last of its ranks there."""

    host: str
    counters: HostCounters


@dataclass(frozen=True)
class RasTold:
    """What NCCL says of all ranks, or why it says nothing."""

    host: str
    stall: Stall | None
    why_not: str = ""


@dataclass(frozen=True)
class MpiEnded:
    """Whether this rank of a case of MPI is still inside a call."""

    host: str
    is_stuck: bool


RankEvent = RankReady | RankReached | RankDone | RankFailed
MemberEvent = (
    Hello
    | Sign
    | TimeTold
    | AddressTried
    | Interrupted
    | Goodbye
    | StoreOpen
    | RankEvent
    | RankExited
    | LostZygote
    | LostStore
    | Disabled
    | Inspected
    | Ended
    | GpusSampled
    | CountersGrown
    | RasTold
    | MpiEnded
)


@dataclass(frozen=True)
class LostAgent:
    """An agent does not answer any more, or can do nothing for the run. Found by the head, and never sent."""

    agent: int
    host: str
    why: str


Event = MemberEvent | LostAgent


# Between the processes of a host.


@dataclass(frozen=True)
class Spawn:
    """To the spawner: starts a module with the first descriptor as standard input and output, the second for errors."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: Descriptors


@dataclass(frozen=True)
class ForkStore:
    """To a zygote: forks the process of a start's store, which talks over the descriptor."""

    address: str
    descriptors: Descriptors


@dataclass(frozen=True)
class ForkWorkers:
    """To a zygote: forks workers. The first descriptor is their progress page, then each has its channel."""

    start: Start
    host: str
    interface: Mapping[str, str]
    places: tuple[WorkerPlace, ...]
    descriptors: Descriptors


@dataclass(frozen=True)
class ZygoteBegun:
    """The process ``pid`` begins to import torch."""

    pid: int


@dataclass(frozen=True)
class ZygoteReady:
    """Torch is imported; ``threads`` has to be 1."""

    threads: int
    copy: PackageCopy


@dataclass(frozen=True)
class ImportFailed:
    error: str


@dataclass(frozen=True)
class Forked:
    """Of the start and the rank; a store's process has neither."""

    start: int | None
    rank: int | None
    pid: int


@dataclass(frozen=True)
class ChildExited:
    """As :class:`Forked`. A negative code is the signal that ended it."""

    start: int | None
    rank: int | None
    code: int


@dataclass(frozen=True)
class Leave:
    """To a worker: no case follows."""


ZygoteOrder = ForkStore | ForkWorkers
ZygoteEvent = ZygoteBegun | ZygoteReady | ImportFailed | Forked | ChildExited
WorkerOrder = RunCase | GoOn | Leave

Message = Order | MemberEvent | Spawn | ZygoteOrder | ZygoteEvent | WorkerOrder


def _expect_phase(phase: str) -> None:
    if phase not in PHASES:
        raise ValueError(f"'{phase}' is no phase; phases are {', '.join(PHASES)}")
