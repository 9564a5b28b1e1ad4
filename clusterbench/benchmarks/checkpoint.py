"""Sharded checkpoints: every rank saves and loads its part of a model, through PyTorch's own format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks._files import (
    Folder,
    cache_category,
    cache_evidence,
    disk_sentence,
    expect_room,
    free,
    leave_cache,
)
from clusterbench.benchmarks._transfer import WORD_BYTES, pattern, transfer_metrics, transferred
from clusterbench.errors import DiskError, NotHere
from clusterbench.formulas.checkpointing import (
    best_interval,
    spares_worth_most,
    time_between_failures,
    training_share,
    waiting_share,
)
from clusterbench.formulas.statistics import summarise
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.precision import MASTER, PRECISIONS, Precision
from clusterbench.shape import SHAPES, ModelShape, point_of_shape, shape_written
from clusterbench.types import SAMPLES, Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes
from clusterbench.words import plural

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.rig import Rig

_OPERATIONS = ("save", "load", "async_save")
_OF_FAILURES = ("node_failures", "job_nodes", "restart_s", "repair_h")
"""Options that say more of failures than how often they come."""

_LABELS = {"mtbf_h": "mtbf{:g}h", "restart_s": "restart{:g}s", "repair_h": "repair{:g}h", "job_nodes": "{}nodes"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Benchmark):
    """How long all ranks take to save a sharded model with torch.distributed.checkpoint, and to load it again.

    Each tensor is a DTensor with rows over all ranks, as FSDP shards them; ``size`` is what one rank holds. A save ends
    when every rank's file is on the disk (fsync) and rank 0 has written the table of contents. Each iteration saves to,
    or loads from, a folder of its own. Before a load every rank drops its files from its host's page cache and asks the
    kernel what is left: ``cold``, ``cached``, or ``unverified``. An asynchronous save first copies everything to host
    memory, and its blocking time is until the step could go on; its transfer time is the whole of it.

    Every element is compared after a load, before anything is timed and once behind it: what the last iteration saved
    is loaded again. The folder must be on a file system that all hosts share.

    With ``shape`` it is the checkpoint of a model: as many tensors and bytes as its weights and AdamW's two moments,
    each in its rows over all ranks. A layout that copies them saves no more of them, since of copies one is saved.

    With ``mtbf_h`` a save tells how often it should be made, and what share of the time is training then; what is
    trained is lost back to the last save that was through. With ``restart_s``, too, it tells what is left of that when
    restarts are counted, and with ``repair_h`` what spare nodes are worth, with which a job goes on before the failed
    node is back. Llama 3 405B was stopped 419 times unexpectedly in 54 days
    on 16,384 GPUs, once in 3.1 hours (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.4); where failures come
    from single GPUs, a job on 1,024 of such would be once in 49 hours.
    """

    modules: ClassVar[tuple[str, ...]] = ("torch.distributed.checkpoint", "torch._dynamo")  # a save imports both
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        *transfer_metrics("one checkpoint"),
        MetricKind("blocking_time", "s", "lower", "time until an asynchronous save lets the step go on"),
        MetricKind("best_interval", "s", "neither", "training between two saves that loses the least time"),
        MetricKind(
            "training_share",
            "fraction",
            "higher",
            "share of all time that is training which is kept, with saves at that interval; restarts take more of it",
        ),
        MetricKind(
            "goodput",
            "fraction",
            "higher",
            "share of all time that is training which is kept, restarts and waits for repairs counted; by spare nodes",
        ),
        MetricKind("spare_nodes", "1", "neither", "spare nodes of which one more would bring less than it costs"),
    )

    iterations: int = option(3, "timed repetitions, each with a checkpoint of its own", minimum=1, maximum=1000)
    warmup: int = option(0, "repetitions before them, not timed; each has a checkpoint", minimum=0, maximum=1000)
    time_limit_s: float | None = option(
        1800.0, "seconds after which a case is stopped, from when its ranks have met", minimum=0.1, maximum=604_800
    )
    path: str = option("/tmp", "folder whose disk is measured, shared by all hosts; by default the temporary one")
    operations: tuple[str, ...] = option(("save", "load"), "what is timed", choices=_OPERATIONS)
    size: int = option(2**28, "what one rank saves", unit="B", minimum=2**10, maximum=2**42)
    tensors: int = option(16, "among how many tensors of equal size that is divided", minimum=1, maximum=100_000)
    shape: str | None = option(
        None,
        "in place of size and tensors a model, of which the ranks save weights and the optimizer's moments: its name, "
        "numbers or file",
        choices=tuple(SHAPES),
        is_shape=True,
        is_later=True,
    )
    precision: str = option(
        MASTER, "in which dtypes that model's weights and moments are kept", choices=tuple(PRECISIONS), is_later=True
    )
    threads: int = option(1, "threads of each rank that write", minimum=1, maximum=256)
    mtbf_h: float | None = option(
        None,
        "hours between two failures that stop the whole job, for which a save tells its best interval",
        minimum=0.01,
        maximum=1e6,
        is_later=True,
    )
    node_failures: float | None = option(
        None,
        "failures of one node in 1,000 days that stop the job, in place of mtbf_h; 2.3 to 6.5 are published",
        minimum=1e-3,
        maximum=1e5,
        is_later=True,
    )
    job_nodes: int | None = option(
        None, "nodes of the job that fails, for node_failures and repair_h", minimum=1, maximum=10**6, is_later=True
    )
    restart_s: float | None = option(
        None,
        "seconds from a failure until training goes on, where there is a node in place of the failed one",
        minimum=0,
        maximum=1e6,
        is_later=True,
    )
    repair_h: float | None = option(
        None,
        "mean hours until a failed node is back, for which a save tells what spare nodes are worth",
        minimum=1e-3,
        maximum=1e5,
        is_later=True,
    )

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if self.shape is None and "precision" in keys:
            yield "precision", "without shape there is no model of which it would be"
        for key in {"size", "tensors"} & set(keys) if self.shape else ():
            yield key, "with shape it follows from the model"
        of_failures = [key for key in ("mtbf_h", *_OF_FAILURES) if key in keys]
        if {*self.operations} == {"load"}:
            yield from ((key, "a load is made once for a failure, at no interval") for key in of_failures)
        elif self.node_failures and self.job_nodes is None:
            yield "node_failures", "without job_nodes it is not known how often a job fails"
        elif self._mtbf_h is None:
            needed = "without mtbf_h, or node_failures and job_nodes, it is not known how often a job fails"
            yield from ((key, needed) for key in of_failures)
        elif self.node_failures and "mtbf_h" in keys:
            yield "mtbf_h", "node_failures and job_nodes say it"
        elif "job_nodes" in keys and not self.node_failures and not self.repair_h:
            yield "job_nodes", "it is for node_failures and repair_h"

    @property
    def _mtbf_h(self) -> float | None:
        if self.node_failures and self.job_nodes:
            return time_between_failures(self.job_nodes, self.node_failures) / 3600
        return self.mtbf_h

    def _of_failures(self) -> dict[str, float]:
        """What a save is told of them: how often, and how long each takes."""
        told = {name: getattr(self, name) for name in _OF_FAILURES}
        return {} if self._mtbf_h is None else {"mtbf_h": self._mtbf_h, **{name: of for name, of in told.items() if of}}

    def points(self, place: Place) -> Iterable[Point]:
        size_bytes, tensors, model = self.size, self.tensors, dict[str, str]()
        if self.shape:
            shape = shape_written(self.shape)
            size_bytes, tensors = _of_model(shape, PRECISIONS[self.precision], place.world_size)
            model = {**point_of_shape(shape), "precision": self.precision}
        for operation in self.operations:
            yield {
                "operation": operation,
                "size_bytes": size_bytes,
                "tensors": tensors,
                **model,
                "path": self.path,
                "threads": self.threads,
                "checkpoints": self.warmup + self.iterations,
                "timed": self.iterations,
                **(self._of_failures() if operation != "load" else {}),
            }

    def label(self, point: Point) -> str:
        failures = "".join(f"-{form.format(point[name])}" for name, form in _LABELS.items() if name in point)
        if "shape" in point:
            precision = "" if point["precision"] == MASTER else f"-{point['precision']}"
            return f"{point['operation']}-{point['shape']}{precision}{failures}"
        return f"{point['operation']}-{format_bytes(point['size_bytes'])}-{point['tensors']}tensors{failures}"

    def objection(self, point: Point, place: Place) -> str | None:
        if int(point["size_bytes"]) % (int(point["tensors"]) * WORD_BYTES):
            return (
                f"{point['size_bytes']} B in {point['tensors']} tensors are not whole words of {WORD_BYTES} B in each"
            )
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        model = _Model(rig, point)
        saved: list[_Saved] = []
        blocking: list[float] = []
        turn, places_saved = count(), list[Path]()

        def next_place() -> Path:
            places_saved.append(saved[0].path / str(next(turn)))
            return places_saved[-1]

        def run_save() -> None:
            with saved[0].removed_on_error():
                model.save(next_place())

        def run_async_save() -> None:
            with saved[0].removed_on_error():
                blocking.append(model.save_aside(next_place()))

        def run_load() -> None:
            with saved[0].removed_on_error():
                model.load(saved[0].path / str(next(turn) % int(point["checkpoints"])))

        def check() -> Mapping[str, float]:
            needed_bytes = int(point["size_bytes"]) * rig.world_size * (1 + int(point["checkpoints"]))
            saved.append(_Saved(rig, str(point["path"]), needed_bytes))
            with saved[0].removed_on_error():
                proof = saved[0].path / "proof"
                if point["operation"] == "async_save":
                    model.save_aside(proof)
                else:
                    model.save(proof)
                model.clear()
                model.load(proof)
                evidence = model.compare()
                if point["operation"] != "load":
                    return evidence
                places = [saved[0].path / str(number) for number in range(int(point["checkpoints"]))]
                for number, place in enumerate(places):  # other words in each: a load that is left out shows
                    model.fill(number)
                    model.save(place)
                model.clear()
                return {**evidence, **_dropped(rig.rank, places)}

        def confirm(is_first: bool) -> Mapping[str, float]:
            """What the last iteration saved, loaded once more, or what those that are timed loaded."""
            if not is_first:
                return {}
            with saved[0].removed_on_error():
                if places_saved:
                    model.clear()
                    model.load(places_saved[-1])
                is_load = point["operation"] == "load"
                return model.compare((rig.made_calls - 1) % int(point["checkpoints"]) if is_load else 0)

        if point["operation"] == "load":
            return Step(run=run_load, check=check, confirm=confirm)
        if point["operation"] == "save":
            return Step(run=run_save, check=check, confirm=confirm)

        def samples() -> Mapping[str, list[float]]:
            return {"blocking_time": blocking[-int(point["timed"]) :]}

        return Step(run=run_async_save, check=check, passes={SAMPLES: samples}, confirm=confirm)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        detail = cache_category(observation) if case.point["operation"] == "load" else None
        yield from transferred(case, observation, int(case.point["size_bytes"]), detail)
        yield from cls.sampled(observation)
        if "mtbf_h" in case.point:
            yield from _often(case.point, observation)


def _often(point: Point, observation: Observation) -> Iterator[Metric]:
    """How often to save, and what that keeps, by the rank on which a save takes longest."""
    mtbf_s = 3600 * float(point["mtbf_h"])
    whole = summarise(_slowest(observation.seconds))
    stops = whole
    if point["operation"] == "async_save":  # goes on beside training, and the next one waits for its end
        stops = summarise(_slowest([rank["blocking_time"] for rank in observation.passes[SAMPLES]]))
    behind_s = max(0.0, whole.value - stops.value)
    interval_s = max(best_interval(stops.value, mtbf_s), behind_s)
    basis = f"a failure in {float(point['mtbf_h']):g} h; a save stops training for {stops.value:.3g} s"
    yield Metric("best_interval", "s", interval_s, iterations=whole.n, basis=basis)
    kept, low, high = (
        training_share(interval_s, save_s, mtbf_s, behind_s) for save_s in (stops.value, stops.high, stops.low)
    )
    yield Metric("training_share", "fraction", kept, low, high, whole.n, basis=basis)
    restart_s = float(point.get("restart_s", 0))
    yield from _goodput(point, mtbf_s, training_share(interval_s, stops.value, mtbf_s, behind_s, restart_s))


def _goodput(point: Point, mtbf_s: float, kept: float) -> Iterator[Metric]:
    """What is kept where restarts are counted, with a spare node at hand or with so many of them.

    ``kept`` is of a job that waits for no node.
    """
    restart_s, repair_h = float(point.get("restart_s", 0)), point.get("repair_h")
    basis = f"restarts of {restart_s:g} s"
    if repair_h is None:
        if restart_s:
            yield Metric("goodput", "fraction", kept, basis=f"{basis}; a node for the failed one is always there")
        return
    repair_s, num_nodes = 3600 * float(repair_h), point.get("job_nodes")
    most = spares_worth_most(int(num_nodes), repair_s, mtbf_s) if num_nodes else _enough(repair_s, mtbf_s)
    for spares in sorted({0, *(2**power for power in range(most.bit_length())), most}):
        waits = waiting_share(spares, repair_s, mtbf_s)
        why = f"{basis}, and repairs of {float(repair_h):g} h, for which {100 * waits:.2g} % of the time is waited"
        yield Metric("goodput", "fraction", kept * (1 - waits), detail={"category": spares_in_words(spares)}, basis=why)
    if num_nodes:
        yield Metric("spare_nodes", "1", float(most), basis=f"beside {num_nodes:,} nodes; of all that there are")


_WAITS_ENOUGH = 1e-3


def _enough(repair_s: float, mtbf_s: float) -> int:
    """So many spares that more of them bring nothing that counts."""
    return next(spares for spares in count() if waiting_share(spares, repair_s, mtbf_s) < _WAITS_ENOUGH)


def spares_in_words(number: int) -> str:
    """``no spare nodes``, ``1 spare node``."""
    return plural(number, "spare node") if number else "no spare nodes"


def _slowest(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [max(of_all) for of_all in zip(*of_ranks, strict=True)]


def _of_model(shape: ModelShape, precision: Precision, world_size: int) -> tuple[int, int]:
    """Bytes that each rank saves of a model, and tensors: a weight and two moments of each, in whole words of each."""
    tensors = 3 * len(weight_shapes(TrainingJob(shape, ParallelLayout(), 1, 1, 1)))
    of_all = shape.num_parameters * (precision.weight + 2 * precision.moment)
    return -(-of_all // (world_size * tensors * WORD_BYTES)) * tensors * WORD_BYTES, tensors


class _Model:
    """The tensors of one rank: words of 64 bits, each a function of its place in the whole."""

    def __init__(self, rig: Rig, point: Point) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        self.rig, self.threads = rig, int(point["threads"])
        self.numel = int(point["size_bytes"]) // int(point["tensors"]) // WORD_BYTES
        mesh = DeviceMesh.from_group(rig.comm.group, rig.device.type)
        self.state = dict[str, DTensor]()
        for index in range(int(point["tensors"])):
            part = DTensor.from_local(self.words(index), mesh, [Shard(0)], run_check=False)
            self.state[f"layers.{index}.weight"] = part

    def words(self, index: int, checkpoint: int = 0) -> torch.Tensor:
        """This rank's rows of the tensor with this number."""
        of_tensor = (checkpoint * len(self.state) + index) * self.rig.world_size
        return pattern(self.numel, (of_tensor + self.rig.rank) * self.numel, self.rig.device)

    def fill(self, checkpoint: int) -> None:
        """Has the model hold what a checkpoint is to hold."""
        for index, tensor in enumerate(self.state.values()):
            tensor.to_local().copy_(self.words(index, checkpoint))

    def save(self, place: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        save(self.state, storage_writer=FileSystemWriter(place, thread_count=self.threads))

    def save_aside(self, place: Path) -> float:
        """Saves on another thread and waits for it; the seconds for which this one was kept."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        from clusterbench.engine.clock import WallClock

        clock = WallClock()
        start = clock.mark()
        future = async_save(self.state, storage_writer=FileSystemWriter(place, thread_count=self.threads))
        kept = clock.mark()
        assert isinstance(future, Future)
        future.result()
        return clock.seconds([start, kept])[0]

    def load(self, place: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        load(self.state, storage_reader=FileSystemReader(place))

    def clear(self) -> None:
        for tensor in self.state.values():
            tensor.to_local().zero_()

    def compare(self, checkpoint: int = 0) -> dict[str, float]:
        """Raises WrongResult at the first tensor that is not the checkpoint's."""
        evidence: dict[str, float] = {}
        for index, (name, tensor) in enumerate(self.state.items()):
            evidence = self.rig.expect_equal(name, tensor.to_local(), self.words(index, checkpoint))
        return evidence


class _Saved:
    """The folder of a case, with room for so many bytes, which rank 0 makes and every rank sees. A collective.

    Raises
    ------
    NotHere
        On all ranks where some do not see it.
    DiskError
        On rank 0, without room.
    """

    def __init__(self, rig: Rig, path: str, needed_bytes: int) -> None:
        import torch

        self.folder = Folder(path) if rig.rank == 0 else None
        if self.folder:
            with self.folder.removed_on_error():
                expect_room(path, needed_bytes)
        self.path = Path(rig.tell(str(self.folder.path) if self.folder else "", root=0))
        blind = torch.tensor([0 if self.path.is_dir() else 1], device=rig.device)
        rig.comm.all_reduce(blind)
        if int(blind):
            self._remove()
            raise NotHere(
                f"{int(blind)} of {rig.world_size} ranks do not see what rank 0 wrote to {path}: it is not the same "
                "folder on all hosts.\nhint: set 'path' to one on a file system that they share"
            )

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Within, an error removes the folder. An error of one rank in saving or loading is raised on every rank."""
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            yield
        except CheckpointException as error:  # no Exception, but a BaseException
            rank, (cause, _) = min(error.failures.items())
            path = self.path.parent
            failure: Exception
            if isinstance(cause, OSError):
                failure = DiskError(f"rank {rank}: {disk_sentence(path, cause)}")
            else:
                # PyTorch's own format hides the error of the disk, so every message says what is free.
                failure = RuntimeError(f"rank {rank}: {type(cause).__name__}: {cause}; {free(path)} at {path}")
            self._remove()
            raise failure from error
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        if self.folder:
            self.folder.remove()


def _dropped(rank: int, places: Iterable[Path]) -> dict[str, float]:
    """Drops this rank's files from the page cache; how much of them is left there."""
    descriptors: list[int] = []
    try:
        for place in places:
            for file in place.glob(f"__{rank}_*"):
                descriptors.append(os.open(file, os.O_RDWR))
                leave_cache(descriptors[-1])
        return cache_evidence(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
