"""Owns some ranks of one host: has them forked, hears them, and ends them whatever state they are in.

An agent is small on purpose. It imports no torch, touches no device, and survives anything a worker does.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, assert_never

from clusterbench import own_copy
from clusterbench.engine.host_memory import memory_limit_bytes, oom_kills
from clusterbench.errors import ToolError
from clusterbench.launch.channel import Channel
from clusterbench.launch.counters import HostCounterReader
from clusterbench.launch.culprit import death
from clusterbench.launch.lines import (
    decode_rank_event,
    decode_samples,
    decode_spawn,
    decode_store_event,
    decode_zygote_event,
)
from clusterbench.launch.messages import (
    AddressTried,
    AgentOrder,
    AskRas,
    ChildExited,
    CountersGrown,
    Disabled,
    End,
    Ended,
    Forked,
    ForkStore,
    ForkWorkers,
    GoOn,
    GpuSamples,
    GpusSampled,
    ImportFailed,
    Inspect,
    Inspected,
    Leave,
    LostStore,
    LostZygote,
    MemberEvent,
    OpenStore,
    Own,
    PackageCopy,
    RankDone,
    RankEvent,
    RankExited,
    RankFailed,
    RankPlace,
    RankReached,
    RankReady,
    RasTold,
    RunCase,
    SampleGpus,
    Spawn,
    Start,
    StoreOpen,
    TellTime,
    TimeTold,
    TryAddress,
    Warm,
    WorkerPlace,
    ZygoteBegun,
    ZygoteEvent,
    ZygoteReady,
)
from clusterbench.launch.progress_page import ProgressPage
from clusterbench.launch.ras import ask
from clusterbench.launch.reach import why_not_reached
from clusterbench.launch.spawner import end_group, start_module
from clusterbench.launchers import without_launchers
from clusterbench.run_folder import log_name
from clusterbench.run_folder.disk import remedy
from clusterbench.run_folder.redaction import redacted, secrets_of, set_by_suite
from clusterbench.types import PHASES

SECONDS_FOR_A_STACK = 0.5
SECONDS_OF_A_DISK = 2.0
"""For the disk of the run's folder to answer; longer than one that is well takes."""
MOST_READERS = 4
"""Of GPU samples in a run: one that dies is started again, but one that always dies would disturb what is timed."""
STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""
BYTES_OF_A_LOG = 16_384
"""Of a worker's log, how much goes to the head where it cannot see the file."""


@dataclass
class Zygote:
    """A process that forks workers, for one set of variables that are read when torch is imported.

    Attributes
    ----------
    pid
        Once it runs.
    is_ready
        Whether torch is imported.
    num_unforked
        Processes that it was asked to fork, and has not said to have.
    """

    channel: Channel[ZygoteEvent]
    errors: Path
    pid: int = 0
    is_ready: bool = False
    import_error: str = ""
    num_unforked: int = 0


@dataclass
class Worker:
    """A forked rank as its agent sees it.

    Attributes
    ----------
    shared_log, own_log
        Its log in the run's folder, and on a disk of this host where it cannot be made there. The agent waits for no
        other disk than that: one of a network may stall, and the agent would be taken for lost.
    """

    rank: int
    slot: int
    channel: Channel[RankEvent]
    shared_log: Path
    own_log: Path
    pid: int = 0
    exit_code: int | None = None

    @property
    def log(self) -> Path:
        return self.own_log if self.own_log.exists() else self.shared_log


@dataclass
class Agent:
    """The local ranks of one process of the launcher.

    Attributes
    ----------
    host
        This host's name, as it stands in every message about its ranks.
    local_ranks
        The ranks this agent owns, counted on its host; ``local_ranks[slot]`` selects the device.
    interface
        Variables that tell this host's workers over which network interface to talk.
    copy
        Where this copy of the package lies, and the digest of its sources as the agent began.
    restarts_spawner
        Whether a spawner that died is started again. An MPI rank must not: its fork is forbidden on many fabrics.
    counters
        Reads the error counters of this host. Of several agents of a host the one with its first rank does.
    """

    host: str
    scratch: Path
    local_ranks: Sequence[int] = ()
    interface: Mapping[str, str] = field(default_factory=dict)
    restarts_spawner: bool = True
    counters: HostCounterReader = field(default_factory=HostCounterReader)
    copy: PackageCopy = field(init=False)
    _spawner: Channel[Spawn] = field(init=False)
    _spawner_process: subprocess.Popen[bytes] = field(init=False)
    _zygotes: dict[tuple[tuple[str, str], ...], Zygote] = field(default_factory=dict)
    _things: tuple[str, ...] = ()
    _workers: dict[int, Worker] = field(default_factory=dict)
    _page: ProgressPage | None = None
    _store: Channel[StoreOpen] | None = None
    _telemetry: Channel[GpuSamples] | None = None
    _sampling: SampleGpus | None = None
    _num_readers: int = 0
    _has_gpus: bool = True
    _in_use: Zygote | None = None
    _can_start: bool = True
    _is_closed: bool = False
    _start_id: int = -1
    _oom_kills: int = 0
    _at_work: set[int] = field(default_factory=set)
    _events: list[MemberEvent] = field(default_factory=list)
    _told: SimpleQueue[RasTold] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.copy = PackageCopy(str(own_copy.FOLDER), own_copy.digest())
        self._start_spawner()

    def _start_spawner(self) -> None:
        self._spawner, given = Channel.pair(decode_spawn)
        with given:
            self._spawner_process = start_module(
                "clusterbench.launch.spawner", [str(os.getpid())], given, 2, without_launchers(os.environ)
            )
        self._selector.register(self._spawner, selectors.EVENT_READ)

    # Orders. Each arrives from the conductor, in this process or over the control plane.

    def execute(self, order: AgentOrder) -> None:
        """Does what the conductor asks; whatever comes of it is an event."""
        match order:
            case Own():
                self.local_ranks, self.interface = order.local_ranks, order.interface
            case Warm():
                self._things = order.things
                if self._can_begin():
                    self._zygote(order.environment)
            case OpenStore():
                self._open_store(order)
            case Start():
                self._begin(order)
            case RunCase() | GoOn():
                if isinstance(order, RunCase):
                    self._begin_case()
                for worker in self._workers.values():
                    worker.channel.send(order)
            case Inspect():
                self._inspect(order.stacks)
            case End():
                self._end(order)
            case SampleGpus():
                self._sample_gpus(order)
            case TellTime():
                self._events.append(TimeTold(time.time()))
            case TryAddress():
                self._events.append(AddressTried(order.port, why_not_reached(order.address, order.port)))
            case AskRas():
                Thread(target=self._ask_ras, args=(order.address,), name="ras", daemon=True).start()
            case _:
                assert_never(order)

    def _ask_ras(self, address: str) -> None:
        """In a thread of its own: the ranks can be inspected and ended meanwhile."""
        try:
            self._told.put(RasTold(self.host, ask(address)))
        except ToolError as error:
            self._told.put(RasTold(self.host, None, str(error)))

    def _open_store(self, order: OpenStore) -> None:
        self._close_store()
        if not self._can_begin():
            return
        self._in_use = zygote = self._zygote(order.environment)
        self._store, given = Channel.pair(decode_store_event)
        with given:
            zygote.channel.send(ForkStore(order.address, (given.fileno(),)))
        zygote.num_unforked += 1
        self._selector.register(self._store, selectors.EVENT_READ)

    def _begin(self, start: Start) -> None:
        owned = range(start.first_rank, min(start.first_rank + len(self.local_ranks), start.world_size))
        self._start_id = start.id
        if not owned or not self._can_begin():
            return
        self._in_use = zygote = self._zygote(start.environment)
        self._oom_kills = oom_kills()
        self._page = ProgressPage.create(len(owned))
        given_ends, places = [], []
        logs, own_logs = Path(start.logs), self.scratch / "logs"
        for slot, rank in enumerate(owned):
            channel, given = Channel.pair(decode_rank_event)
            given_ends.append(given)
            name = log_name(start.id, rank)
            places.append(WorkerPlace(rank, self.local_ranks[slot], slot, str(logs / name), str(own_logs / name)))
            self._workers[rank] = Worker(rank, slot, channel, logs / name, own_logs / name)
            self._selector.register(channel, selectors.EVENT_READ)
        descriptors = (self._page.descriptor, *(end.fileno() for end in given_ends))
        zygote.channel.send(ForkWorkers(start, self.host, self.interface, tuple(places), descriptors))
        zygote.num_unforked += len(places)
        for end in given_ends:
            end.close()

    def _begin_case(self) -> None:
        """No rank has begun the case yet: one that stopped behind the last one must not seem to be ahead of the others.

        All of them wait for the order, so nothing else writes.
        """
        for worker in self._workers.values():
            if self._page:
                self._page.write(worker.slot, PHASES.index("device"), -1)
        self._at_work = {*self._workers}
        if self._at_work and 0 in self.local_ranks:
            self.counters.begin()

    def _count(self) -> None:
        """Tells what grew since the case began, once."""
        if self.counters.is_open:
            self._events.append(CountersGrown(self.host, self.counters.end()))

    def _inspect(self, with_stacks: bool) -> None:
        """Says how far each local rank got, in what state its process is, and where in the code it stands."""
        for worker in self._workers.values():  # a zygote that is stopped, or hangs, tells of no end
            if worker.exit_code is None and (code := _unreaped(worker.pid)) is not None:
                self._note_exit(ChildExited(self._start_id, worker.rank, code))
        stacks = self._stacks() if with_stacks else {}
        can_begin = self._in_use is None or self._in_use.is_ready
        ranks = []
        for rank, worker in self._workers.items():
            phase, iteration = self._page.read(worker.slot) if self._page else (0, -1)
            stack, state = tuple(stacks.get(rank, ())), _state(worker.pid or self._starting)
            ranks.append(RankPlace(rank, self.host, PHASES[phase], iteration, state, stack, str(worker.log), can_begin))
        self._events.append(Inspected(tuple(ranks)))

    def _stacks(self) -> Mapping[int, list[str]]:
        """Of each local rank, as far as the disk with their logs answers at once."""
        logs = {rank: worker.log for rank, worker in self._workers.items()}
        sizes: dict[int, int] = {}
        _aside(lambda: sizes.update({rank: _size(log) for rank, log in logs.items()}))
        known = dict(sizes)
        for rank in known:
            _signal(self._workers[rank].pid, signal.SIGUSR1)
        time.sleep(SECONDS_FOR_A_STACK)
        stacks: dict[int, list[str]] = {}
        _aside(lambda: stacks.update({rank: _stack(logs[rank], size) for rank, size in known.items()}))
        return dict(stacks)

    def _end(self, order: End) -> None:
        deadline = time.monotonic() + (0.0 if order.kill else 5.0)
        for worker in self._workers.values():
            if order.kill:
                _kill(worker)  # a stopped process does not act on SIGTERM
            else:
                worker.channel.send(Leave())
        while any(worker.exit_code is None for worker in self._workers.values()):
            self._collect(0.05)
            if time.monotonic() > deadline:
                for worker in self._workers.values():
                    _kill(worker)
                if time.monotonic() > deadline + 5:
                    break  # in an uninterruptible wait; the kernel ends it when the wait does
        self._end_what_starts_nothing()
        logs = {}
        self._count()  # of a case that did not end well
        for worker in self._workers.values():
            self._forget(worker.channel)
            if worker.own_log.exists():
                _redact(worker.own_log)
                logs[worker.own_log.name] = _end_of(worker.own_log)
        shared = [worker.shared_log for worker in self._workers.values() if not worker.own_log.exists()]
        _aside(partial(_redact, *shared))
        self._workers.clear()
        if self._page:
            self._page.close()
            self._page = None
        self._close_store()
        self._in_use = None
        self._start_id = -1
        self._events.append(Ended(order.start, logs))

    @property
    def _starting(self) -> int:
        """The process that a worker which is not there yet waits for: the zygote, or the spawner that starts that.

        One that was stopped before it could say its number is known to the kernel alone.
        """
        spawner = self._spawner_process.pid
        if self._in_use and self._in_use.pid:
            return self._in_use.pid
        others = {zygote.pid for zygote in self._zygotes.values()}
        return next((pid for pid in _children(spawner) if pid not in others and _state(pid) in STOPPED), spawner)

    def _end_what_starts_nothing(self) -> None:
        """Kills a zygote or a spawner that is stopped, or hangs: it would cost every later case its time.

        The spawner's loss is noticed before the next start. A zygote says what it forked, and how that ended.
        """
        zygote = self._in_use
        if zygote is None:
            return
        if not zygote.pid and _state(starting := self._starting) in STOPPED:
            _signal(starting, signal.SIGKILL)
            return
        unreaped = any(_state(worker.pid) == "Z" for worker in self._workers.values())
        hangs = zygote.is_ready and (zygote.num_unforked or unreaped)
        if hangs or _state(zygote.pid) in STOPPED:
            self._zygotes = {key: other for key, other in self._zygotes.items() if other is not zygote}
            self._forget(zygote.channel)
            _signal(zygote.pid, signal.SIGKILL)

    def _sample_gpus(self, order: SampleGpus) -> None:
        self._sampling = order
        self._has_gpus = True
        if self._num_readers == MOST_READERS or not self._can_begin():
            return
        self._num_readers += 1
        self._telemetry, given = Channel.pair(decode_samples)
        arguments = ("--interval", str(order.interval_s))
        self._spawn("clusterbench.engine.telemetry", arguments, given, {}, self.scratch / "telemetry.log")
        self._selector.register(self._telemetry, selectors.EVENT_READ)

    # Events.

    def events(self, timeout_s: float) -> list[MemberEvent]:
        """What happened here since the last call; waits up to ``timeout_s`` for the first."""
        if not self._events:
            self._collect(timeout_s)
        while not self._told.empty():
            self._events.append(self._told.get())
        events, self._events = self._events, []
        return events

    def _collect(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            channel = key.fileobj
            assert isinstance(channel, Channel)
            if not self._hears(channel):
                continue  # it went with the spawner, a moment ago
            for message in channel.receive():
                self._hear(channel, message)
            if channel.closed:
                self._lose(channel)

    def _hear(self, channel: Channel[Any], message: StoreOpen | GpuSamples | ZygoteEvent | RankEvent | Spawn) -> None:
        match message:
            case RankDone():
                self._at_work.discard(message.rank)
                if not self._at_work:
                    self._count()  # told before the head has every record, and so never waited for
                self._events.append(message)
            case StoreOpen() | RankReady() | RankReached() | RankFailed():
                self._events.append(message)
            case GpuSamples():
                self._has_gpus = bool(message.gpus)
                assert self._sampling is not None
                first = self._sampling.first_gpu
                gpus = tuple(replace(gpu, index=first + gpu.index) for gpu in message.gpus)
                self._events.append(GpusSampled(self.host, replace(message, gpus=gpus)))
            case Forked():
                for zygote in self._zygotes.values():
                    zygote.num_unforked -= zygote.channel is channel
                self._note_pid(message)
            case ChildExited():
                self._note_exit(message)
            case ZygoteBegun():
                for zygote in self._zygotes.values():
                    if zygote.channel is channel:
                        zygote.pid = message.pid
            case ZygoteReady():
                self._note_ready(channel, message)
            case ImportFailed():
                for zygote in self._zygotes.values():
                    if zygote.channel is channel:
                        zygote.import_error = message.error
            case Spawn():  # a spawner says nothing
                pass
            case _:
                assert_never(message)

    def _note_ready(self, channel: Channel[Any], ready: ZygoteReady) -> None:
        for environment, zygote in list(self._zygotes.items()):
            if zygote.channel is not channel:
                continue
            zygote.is_ready = True
            if ready.copy.digest != self.copy.digest:
                del self._zygotes[environment]
                self._forget(channel)
                why = self._another_copy(ready.copy)
                self._can_start = False  # each further zygote would be of that copy, too
                self._events.append(Disabled(f"can start no worker any more: {why}"))
                self._lose_zygote(zygote, why)

    def _note_pid(self, forked: Forked) -> None:
        if (worker := self._worker(forked)) is not None:
            worker.pid = forked.pid
        elif forked.rank is not None:
            _signal(forked.pid, signal.SIGKILL)  # its start is over already

    def _note_exit(self, exited: ChildExited) -> None:
        if exited.rank is None and exited.code and self._store:
            how = death(exited.code)
            self._events.append(LostStore(self.host, f"the store on host {self.host}, at which ranks meet, {how}"))
        if (worker := self._worker(exited)) is None or worker.exit_code is not None:
            return
        for message in worker.channel.receive():  # what it said before it went comes first
            self._hear(worker.channel, message)
        worker.exit_code = exited.code
        is_out_of_memory = exited.code == -signal.SIGKILL and oom_kills() > self._oom_kills
        limit = memory_limit_bytes() if is_out_of_memory else None
        self._events.append(RankExited(worker.rank, self.host, exited.code, str(worker.log), limit))

    def _worker(self, child: Forked | ChildExited) -> Worker | None:
        """The worker of the start under way that is meant; None for a store's process, or of another start."""
        if child.rank is None or child.start != self._start_id:
            return None
        return self._workers.get(child.rank)

    def _lose(self, channel: Channel[Any]) -> None:
        if not self._spawner.closed:
            self._spawner.receive()
        if self._spawner.closed:  # a child that is gone may have gone with it, and its end was visible first
            self._lose_spawner()
        if not self._hears(channel):
            return
        self._selector.unregister(channel)
        for worker in self._workers.values():
            if worker.channel is channel and channel.error:
                self._end_nonsense(worker)
        for environment, zygote in list(self._zygotes.items()):
            if zygote.channel is channel:
                del self._zygotes[environment]
                channel.close()
                self._lose_zygote(zygote, self._why_lost(zygote))
        if channel is self._telemetry:
            channel.close()
            self._telemetry = None
            if self._sampling and self._has_gpus:  # without a GPU it ends by itself
                self._sample_gpus(self._sampling)

    def _lose_spawner(self) -> None:
        """Every zygote and every worker of this host ends with it. Another is started where that is allowed."""
        self._forget(self._spawner)
        how = death(_exit_code(self._spawner_process))
        reason = f"the spawner on host {self.host}, from which all other processes there are started, {how}"
        zygotes, self._zygotes = self._zygotes, {}
        if self._telemetry:
            self._forget(self._telemetry)
            self._telemetry = None
        if self.restarts_spawner:
            self._start_spawner()
        else:
            self._can_start = False
            why = f"can start no worker any more: {reason}"
            self._events.append(Disabled(why))
        for zygote in zygotes.values():
            self._forget(zygote.channel)
            self._lose_zygote(zygote, reason)
        if self._sampling:
            self._sample_gpus(self._sampling)

    def _lose_zygote(self, zygote: Zygote, reason: str) -> None:
        """The zygote is gone and the kernel has killed its workers; the next start gets a new one."""
        if zygote is not self._in_use:
            return
        for worker in self._workers.values():
            if worker.exit_code is None:
                _kill(worker)  # what it started itself, the kernel does not
                worker.exit_code = -signal.SIGKILL
        self._events.append(LostZygote(self.host, reason))

    def _end_nonsense(self, worker: Worker) -> None:
        """A worker whose words cannot be read any more is of no use, and must not be waited for."""
        _kill(worker)
        reason = f"what it sent is no message ({worker.channel.error})"
        phase, _ = self._page.read(worker.slot) if self._page else (0, -1)
        self._events.append(RankFailed(worker.rank, self.host, "failed", reason, PHASES[phase]))

    def _why_lost(self, zygote: Zygote) -> str:
        if zygote.import_error:
            return f"torch could not be imported on host {self.host}: {zygote.import_error}"
        if zygote.channel.error:
            return (
                f"what the process that forks workers on host {self.host} sent is no message ({zygote.channel.error})"
            )
        errors = zygote.errors
        said = errors.read_text(encoding="utf-8", errors="replace").strip()[-2000:] if errors.exists() else ""
        last = f"; the last it wrote: {said.splitlines()[-1]}" if said else ""
        when = "" if zygote.is_ready else " while it imported torch"
        return f"the process that forks workers on host {self.host} ended{when}{last}"

    def _another_copy(self, other: PackageCopy) -> str:
        return (
            f"workers on host {self.host} would run another copy of clusterbench than its agent: {other.place} with "
            f"sources {other.digest}, not {self.copy.place} with sources {self.copy.digest} (leave the sources alone "
            "while a run is under way)"
        )

    # Helpers.

    def _can_begin(self) -> bool:
        """Whether processes can be started; notices first what died meanwhile, and what became of the folder for logs.

        Temporary files are cleared away from many hosts while a run goes on, so the folder is made again.
        """
        self._collect(0.0)
        if not self._can_start:
            return False
        new = self.scratch / "new"
        try:
            self.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.scratch / "logs").mkdir(exist_ok=True)
            new.touch()
            new.unlink()
        except OSError as error:
            self._can_start = False
            why = f"{self.scratch} cannot be written: {error.strerror or error} ({remedy(error, self.scratch)})"
            self._events.append(Disabled(f"can start no worker any more: its temporary folder {why}"))
        return self._can_start

    def _zygote(self, environment: Mapping[str, str]) -> Zygote:
        key = tuple(sorted(environment.items()))
        if key not in self._zygotes:
            channel, given = Channel.pair(decode_zygote_event)
            errors = self.scratch / f"zygote-{len(list(self.scratch.glob('zygote-*'))):04d}.log"
            # One thread: a forked child of a process that has run a multi-threaded kernel hangs.
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            variables = threads | set_by_suite(environment)
            arguments = (str(self._spawner_process.pid), *self._things)
            self._spawn("clusterbench.launch.zygote", arguments, given, variables, errors)
            self._selector.register(channel, selectors.EVENT_READ)
            self._zygotes[key] = Zygote(channel, errors)
        return self._zygotes[key]

    def _spawn(
        self,
        module: str,
        arguments: tuple[str, ...],
        channel: socket.socket,
        environment: Mapping[str, str],
        errors: Path,
    ) -> None:
        with open(errors, "ab") as log, channel:
            self._spawner.send(Spawn(module, arguments, environment, (channel.fileno(), log.fileno())))

    def _close_store(self) -> None:
        if self._store:
            self._forget(self._store)
            self._store = None

    def _forget(self, channel: Channel[Any]) -> None:
        if self._hears(channel):
            self._selector.unregister(channel)
        channel.close()

    def _hears(self, channel: Channel[Any]) -> bool:
        return channel.fileno() >= 0 and channel in self._selector.get_map()

    def close(self) -> None:
        """Ends every process this agent ever started. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        for worker in self._workers.values():
            _kill(worker)
        for channel in [key.fileobj for key in self._selector.get_map().values()]:
            assert isinstance(channel, Channel)
            channel.close()  # zygotes end with theirs, and with the spawner's the spawner, after them
        _exit_code(self._spawner_process)
        self._selector.close()


def _aside(work: Callable[[], object]) -> None:
    """Has a disk read or written that may stall, and goes on after some seconds; the work ends when the disk allows."""
    thread = Thread(target=work, name="disk")
    thread.start()
    thread.join(SECONDS_OF_A_DISK)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Of a process that is about to end, or is ended after 5 s."""
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _signal(pid: int, number: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(worker: Worker) -> None:
    if worker.pid and worker.exit_code is None:
        end_group(worker.pid)


def _state(pid: int) -> str:
    """The kernel's letter for what the process does: R runs, S and D wait, T is stopped, Z is dead; empty when gone."""
    return (_stat(pid) or [""])[0]


def _unreaped(pid: int) -> int | None:
    """How a process ended, as its parent was not told or has not asked yet: its exit code, or a signal below 0.

    Source: proc(5), /proc/PID/stat, field 52.
    """
    stat = _stat(pid)
    return os.waitstatus_to_exitcode(int(stat[-1])) if stat[:1] == ["Z"] else None


def _stat(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on; nothing of one that is gone, or where ``pid`` is 0."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    """Of a process of one thread; none where the kernel does not tell.

    Source: proc(5), /proc/PID/task/TID/children.
    """
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _redact(*logs: Path) -> None:
    """Takes out of logs what looks like a secret: a program may print its environment, or how it was called."""
    secrets = [os.fsencode(secret).decode("latin-1") for secret in secrets_of(os.environ)]
    for log in logs:
        with suppress(OSError):  # a disk that is full or gone is noticed where it matters
            text = log.read_bytes().decode("latin-1")  # each byte is one character, so that all others stay
            if (clean := redacted(text, secrets)) != text:
                log.write_bytes(clean.encode("latin-1"))


def _end_of(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, _size(log) - BYTES_OF_A_LOG))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _stack(log: Path, start: int) -> list[str]:
    """The main thread's Python frames, innermost first, from what faulthandler has just added to a worker's log."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            file.seek(start)
            text = file.read(200_000)
    except OSError:
        return []
    main = text.split("Current thread" if "Current thread" in text else "Thread", 1)[-1].split("\n\n")[0]
    return [line.strip() for line in main.splitlines() if line.strip().startswith("File ")]
