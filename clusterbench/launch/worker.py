"""Runs one rank of one start: forked, expendable, and always able to say how far it got."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal

import torch
import torch.distributed as dist

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.engine.clock import Clock, clock_for
from clusterbench.engine.compat import pci_address
from clusterbench.engine.loop import measure_beside_host, settle, warm_up
from clusterbench.engine.near_cpus import PCI, stay_near
from clusterbench.engine.rig import Rig
from clusterbench.engine.settling import Order, Rule, Stretch, decided_by_rank_0, warm_up_of
from clusterbench.errors import ClusterbenchError, LaunchError, NotHere, WrongResult
from clusterbench.job.spans import most_spans
from clusterbench.launch import store
from clusterbench.launch.channel import Channel
from clusterbench.launch.lines import decode_worker_order
from clusterbench.launch.messages import (
    Failure,
    ForkWorkers,
    RankDone,
    RankFailed,
    RankReached,
    RankReady,
    RunCase,
    WorkerOrder,
    WorkerPlace,
)
from clusterbench.launch.progress_page import ProgressPage
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import parallelisms
from clusterbench.proof.groups import check_groups
from clusterbench.run_folder.passes import EVERY_REPEAT
from clusterbench.run_folder.redaction import redacted, secrets_of, set_by_suite
from clusterbench.types import PHASES, Point, Step, Timing

ALLOCATOR = "PYTORCH_ALLOC_CONF"
_NAME = hashlib.sha256().digest_size


def import_ahead(names: Iterable[str]) -> None:
    """Imports in the zygote what workers would otherwise each import again. Nothing here may compute.

    Parameters
    ----------
    names
        Of the benchmarks and parallelisms that will run: what only others need is left out.
    """
    for name in names:
        thing = benchmarks()[name] if name in benchmarks() else parallelisms()[name]  # imports no other
        for module in thing.modules:
            import_module(module)
    # Workers never look again at what was imported here: a collection in each costs 0.1 s less, and pages stay shared.
    gc.freeze()  # garbage too, about 8,000 small objects: to find them would take a tenth of the time of all imports


def work(order: ForkWorkers, place: WorkerPlace, descriptor: int, page: int) -> None:
    """The whole life of a worker; ends its process.

    Parameters
    ----------
    order
        With the start it belongs to and what its agent adds.
    place
        Which of its ranks it is.
    descriptor, page
        Of its channel, and of the memory in which it notes how far it got.
    """
    channel = Channel(socket.socket(fileno=descriptor), decode_worker_order)
    worker = _Worker(order, place, channel, page)
    try:
        worker.live()
    except BaseException as error:  # noqa: BLE001  whatever it was, it becomes a record; torch's CheckpointException too
        worker.report_failure(error)
        # Peers may be waiting inside a collective for what will never come: the agent ends them, and this one too.
        worker.channel.receive(wait=True)
    os._exit(0)


@dataclass
class _Worker:
    order: ForkWorkers
    place: WorkerPlace
    channel: Channel[WorkerOrder]
    page_descriptor: int

    def live(self) -> None:
        self.page = ProgressPage(self.page_descriptor, len(self.order.places))
        self.phase("spawned")
        self.start = self.order.start
        self.rank, self.host = self.place.rank, self.order.host
        self.world_size = self.start.world_size // self.start.num_worlds
        self.world, rank_in_world = divmod(self.rank, self.world_size)
        self.write_to_log()
        self.expect_variables()
        os.environ.update(set_by_suite(self.start.environment))
        for name, value in self.order.interface.items():
            os.environ.setdefault(name, value)  # the suite's and the user's own word comes first
        if self.start.ranks_per_gpu > 1:
            self.have_own_host()
        if self.start.device == "cuda":
            self.have_growing_segments()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.phase("imported")
        self.rig = Rig(
            rank=rank_in_world,
            world_size=self.world_size,
            local_rank=self.place.local_rank,
            host=self.host,
            device=self.open_device(),
        )
        self.phase("device")
        self.meet()
        self.phase("rendezvous")
        self.channel.send(RankReady(self.rank, self.host, self.loaded()))
        while isinstance(order := self.next_order(), RunCase):
            self.run_case(order)

    def write_to_log(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            log = os.open(self.place.log, flags, 0o600)
        except OSError:  # this host does not see the run's folder, or its disk is full: no fault of the case
            log = os.open(self.place.own_log, flags, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # the agent asks where a silent rank stands

    def expect_variables(self) -> None:
        """Those that the suite names and the environment has to give, and so no run folder holds."""
        wanted = self.start.environment.keys() - set_by_suite(self.start.environment).keys()
        if missing := sorted(wanted - os.environ.keys()):
            raise NotHere(
                f"the suite takes {', '.join(missing)} from the environment, where it is not set on host {self.host}.\n"
                "hint: export it before clusterbench is started; mpirun takes it along with -x (Open MPI) or -genvlist"
            )

    def have_own_host(self) -> None:
        """NCCL refuses two ranks on one GPU of one host; on hosts of their own it has them talk over sockets.

        Source: NVIDIA/nccl, ``src/misc/utils.cc`` (NCCL_HOSTID) and ``src/init.cc`` ("Duplicate GPU detected").
        """
        os.environ.setdefault("NCCL_HOSTID", f"{self.host}-{self.rank}")

    def have_growing_segments(self) -> None:
        """States that take most of a GPU would otherwise end in pieces, between which nothing large fits.

        Said before CUDA is touched. The suite's and the user's own settings come first, under either name: torch before
        2.10 knows the second one only.

        Source: pytorch.org/docs/stable/notes/cuda.html, "Optimizing memory usage with PYTORCH_ALLOC_CONF".
        """
        if not os.environ.keys() & {ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF"}:
            os.environ[ALLOCATOR] = "expandable_segments:True"

    def share_cores(self) -> None:
        """Gives this rank its share of the host's cores: optimizers of offloaded weights run on them.

        Ranks tell each other which cores they may use, as launchers bind them or do not, whatever GPUs they show them.
        What the suite says comes first.
        """
        if "OMP_NUM_THREADS" not in set_by_suite(self.start.environment):
            usable = os.sched_getaffinity(0)
            num_cores = torch.tensor(max(usable) + 1)
            dist.all_reduce(num_cores, dist.ReduceOp.MAX)
            mine = cores_of(self.host, usable, int(num_cores))
            told = [torch.empty_like(mine) for _ in range(self.world_size)]
            dist.all_gather(told, mine)
            torch.set_num_threads(num_threads(mine, torch.stack(told)))

    def open_device(self) -> torch.device:
        if self.start.device == "cpu":
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise NotHere(f"this torch ({torch.__version__}) sees no CUDA device; install a CUDA build of torch")
        # A launcher that binds shows each process its own GPU only.
        gpu = self.place.local_rank // self.start.ranks_per_gpu
        device = torch.device("cuda", gpu % torch.cuda.device_count())
        torch.cuda.set_device(device)
        with suppress(AttributeError, RuntimeError):  # it does not say where, or another GPU is lost: no fault here
            cards = [PCI / pci_address(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
            stay_near(cards[device.index], cards)
        return device

    def meet(self) -> None:
        """Joins the other ranks, and counts them: N jobs of one rank must not pass for one job of N."""
        timeout = timedelta(seconds=self.start.timeout_s)
        cuda = self.rig.device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store.join(self.start.store, self.start.world_size, self.world, timeout),
            rank=self.rig.rank,
            world_size=self.world_size,
            timeout=timeout,
            device_id=self.rig.device if cuda else None,
        )
        counted = torch.ones(1, dtype=torch.int64, device=self.rig.device)
        dist.all_reduce(counted)
        if int(counted) != self.world_size:
            raise LaunchError(f"{self.world_size} ranks were started, but {int(counted)} answered the first all-reduce")
        if self.start.num_worlds > 1 and (host := self.rig.tell(self.host, 0)) != self.host:
            raise LaunchError(f"rank {self.rank} is on host {self.host}, and others of its node are on {host}")
        if cuda:
            self.share_cores()

    def loaded(self) -> Mapping[str, Any]:
        """What this process really loaded; told once per host."""
        if self.place.local_rank != 0:
            return {}
        from clusterbench.engine.environment import torch_environment

        return torch_environment()

    def run_case(self, case: RunCase) -> None:
        benchmark = benchmarks()[case.benchmark]
        if case.layout is not None:
            self.phase("device")
            self.rig.build_grid(ParallelLayout.parse(case.layout), case.rank_order)
        self.phase("rendezvous")
        self.rig.own_steps, self.rig.asked_calls = case.own_steps, case.warmup + case.iterations
        self.rig.made_calls = self.rig.timed_calls = 0
        self.rig.asks_one_rank = case.on_one_rank
        self.rig.asks_gradients = case.passes and case.warmup > 0
        self.rig.most_spans = most_spans(self.rank, self.start.world_size)
        step = benchmark.prepare(self.rig, case.point)
        if case.layout is not None and self.rig.grid is not None:  # behind prepare, which may make more groups
            check_groups(self.rig.grid, ParallelLayout.parse(case.layout), case.rank_order)
        self.phase("prepared")
        self.agree("prepared")
        proof = step.check() if case.check else {}
        step.begin()
        self.phase("checked")
        self.agree("checked")
        seconds, timing = self.timed(step, case, self.settling(benchmark, case.point))
        self.phase("timed")
        evidence = step.confirm(case.passes)
        passes = {name: observe() for name, observe in step.passes.items() if case.passes or name in EVERY_REPEAT}
        self.phase("done")
        self.channel.send(RankDone(self.rank, self.host, seconds, evidence, passes, timing, proof))

    def settling(self, benchmark: type[Benchmark], point: Point) -> Rule | None:
        """When a case is warm; None where the suite's count says it."""
        is_gpu = self.rig.device.type == "cuda" and self.start.ranks_per_gpu == 1  # of others no time is told
        return Rule() if is_gpu and benchmark.settles(point) else None

    def timed(self, step: Step, case: RunCase, rule: Rule | None) -> tuple[list[float], Timing]:
        """Seconds of each sample, and when they were taken."""
        clock = clock_for(self.rig.device)
        warm_up(step.run, clock, case.warmup, self.at("checked"))
        self.meet_again(clock)
        made, samples, calls, warmed_up = case.warmup, case.iterations, 1, None
        if rule is not None:
            decide = decided_by_rank_0(self.rig, case.iterations, rule)

            def counted(stretch: Stretch) -> Order:
                nonlocal made
                made += stretch.iterations
                return decide(stretch)

            order, burst_s = settle(step.run, clock, self.at("checked"), counted)
            samples, calls, warmed_up = order.samples, order.calls, warm_up_of(order, burst_s)
            self.meet_again(clock)
        self.phase("warm")
        seconds, began_s, ended_s = measure_beside_host(step.run, clock, samples, self.at("warm"), calls)
        self.rig.timed_calls = samples * calls
        self.rig.made_calls = made + self.rig.timed_calls
        return seconds, Timing(began_s, ended_s, warmed_up)

    def meet_again(self, clock: Clock) -> None:
        """Ranks leave a warm-up at different moments; the first timed iteration must not pay for that."""
        self.rig.comm.barrier()
        clock.settle()

    def agree(self, stage: Literal["prepared", "checked"]) -> None:
        """Waits until the conductor has heard ``stage`` from every rank, so that all stop at one place or none does."""
        self.channel.send(RankReached(self.rank, self.host, stage))
        self.next_order()

    def next_order(self) -> WorkerOrder:
        for order in self.channel.receive(wait=True):
            return order
        os._exit(0)  # the agent is gone

    def phase(self, name: str) -> None:
        self._phase = name
        self.page.write(self.place.slot, PHASES.index(name), -1)

    def at(self, phase: str) -> Any:
        """The callback that notes which iteration is about to start."""
        index, slot, write = PHASES.index(phase), self.place.slot, self.page.write
        return lambda iteration: write(slot, index, iteration)

    def report_failure(self, error: BaseException) -> None:
        with suppress(OSError):  # no room for its log
            traceback.print_exc()
        evidence = dict(getattr(error, "evidence", {}))
        rank, host = self.place.rank, self.order.host
        reason = redacted(_reason(error), secrets_of(os.environ))  # the head knows its own variables only
        self.channel.send(RankFailed(rank, host, _status(error), reason, self._phase, evidence))


def cores_of(host: str, usable: Iterable[int], num_cores: int) -> torch.Tensor:
    """What a rank tells the others of the cores that it may use: numbers, as nothing that is unpickled is sent.

    Returns
    -------
    torch.Tensor
        uint8, ``[_NAME + num_cores]``: a digest of the host's name, then 1 for each core that is usable.
    """
    name = torch.frombuffer(bytearray(hashlib.sha256(host.encode()).digest()), dtype=torch.uint8)
    cores = torch.zeros(num_cores, dtype=torch.uint8)
    cores[list(usable)] = 1
    return torch.cat([name, cores])


def num_threads(mine: torch.Tensor, told: torch.Tensor) -> int:
    """Of a rank that told ``mine``, where all ranks with itself told ``told``, ``[ranks, _NAME + num_cores]``."""
    of_this_host = told[(told[:, :_NAME] == mine[:_NAME]).all(1)]
    usable = mine[_NAME:]
    sharing = int((of_this_host[:, _NAME:] & usable).any(1).sum())
    return max(1, int(usable.sum()) // sharing)


def _status(error: BaseException) -> Failure:
    if isinstance(error, WrongResult):
        return "wrong"
    if isinstance(error, NotHere):
        return "skipped"
    # CUDA has a class of its own; the CPU allocator raises a RuntimeError.
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
        return "out_of_memory"
    return "out_of_memory" if _is_shared_memory_full(error) else "failed"


def _is_shared_memory_full(error: BaseException) -> bool:
    """Whether what ranks of one host share (NCCL's buffers, a data loader's) had no room."""
    return "/dev/shm" in str(error) and "No space left" in str(error)


def _reason(error: BaseException) -> str:
    text = str(error).split("\nException raised from")[0].strip()  # the C++ stack is in the log
    if isinstance(error, ClusterbenchError):
        return text
    if _is_shared_memory_full(error):
        disk = os.statvfs("/dev/shm")
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        text += f" (/dev/shm holds {size / 2**20:.0f} MiB, of which {free / 2**20:.0f} MiB are free)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
