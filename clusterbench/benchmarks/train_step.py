"""A training step for real: model, loss, backward, gradient reduction, clipping, AdamW, shared as a layout says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from clusterbench.benchmarks._sustained import SustainedBenchmark
from clusterbench.benchmarks._tokens import FILE_BYTES, PATH, READ, RESIDENT, is_fed, reading
from clusterbench.cluster import Cluster
from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.memory import held_memory
from clusterbench.expected.rank import chosen_rank, expected_of_rank
from clusterbench.expected.step import lacks_units
from clusterbench.expected.tolerances import FACTORS, LARGEST, ONE_RANK, PARITY_METRICS, UNSENT, comparisons_of
from clusterbench.expected.twin import twin_of
from clusterbench.job import DTYPE_BYTES, OURS, TrainingJob
from clusterbench.job.flops import step_flops
from clusterbench.job.passes import LATE_STEP, ON_ONE_RANK, TIMELINE, TOKEN_READ, TOKEN_WAIT
from clusterbench.layout import RANK_ORDERS, ParallelLayout, every_layout
from clusterbench.measured.agreement import agreements, is_routed_by_place_of_a_rank, one_rank_key
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.measured.step import EVIDENCE, across_cases, step_metrics
from clusterbench.options import Option, later_values, option, options_of
from clusterbench.parallel import (
    Parallelism,
    active_in,
    from_options,
    parallelisms,
)
from clusterbench.precision import GRADIENT_DTYPES, MASTER, PRECISIONS, WIDE
from clusterbench.rows import Row
from clusterbench.shape import SHAPES, ModelShape, point_of_shape, shape_of, shape_written
from clusterbench.trainers import trainer_of, trainers
from clusterbench.types import (
    PROOF_TIME,
    Agreement,
    Case,
    Expected,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    split_key,
)

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.run_folder.attempts import History

ALL = "all"  # a word among `layouts`
REAL, FAKE = "real", "fake"

_OF_THE_FILE = ("path", "file_size")
"""Options of tokens that are read."""

_REFUSED = {
    "dropout": "the models here have none, as none of the models they stand for was pretrained with it; "
    "it would also make every parity check a comparison of random numbers",
}


@dataclass(frozen=True, kw_only=True)
class TrainStep(SustainedBenchmark):
    """How fast a decoder trains in each of some layouts, with what memory and traffic, and that it trains right.

    Before it is timed, each layout is run on a small twin of the model and compared with one rank: losses, every
    gradient, what two steps changed of every weight. Memory, traffic and exposed communication are taken in steps of
    their own.
    """

    version: ClassVar[int] = 1
    own_start: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = (
        "torch.distributed.pipelining",
        "clusterbench.proof.parity",
        "clusterbench.proof.timed_step",
        "clusterbench.training.passes",
        *(f"clusterbench.parallel.{name}" for name in parallelisms()),  # each has options of this benchmark
    )
    refused_options: ClassVar[Mapping[str, str]] = _REFUSED
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "one optimizer step, from the slowest rank"),
        MetricKind("tokens_per_s", "tokens/s", "higher", "tokens of the global batch over the step time"),
        MetricKind("tokens_per_s_per_rank", "tokens/s", "higher", "the same over the number of ranks"),
        MetricKind("model_flops_per_s_per_rank", "FLOP/s", "higher", "what the mathematics needs, over time and ranks"),
        MetricKind("mfu", "fraction", "higher", "model FLOP/s over the peak; by each convention of what is counted"),
        MetricKind("hfu", "fraction", "higher", "the same with the forward passes that are computed twice"),
        MetricKind(
            "executed_flops_per_s_per_rank",
            "FLOP/s",
            "higher",
            "FLOPs of operators over time and ranks, counted; of attention under the causal mask half",
        ),
        MetricKind("executed_flops", "FLOP", "neither", "FLOPs of operators in a step of all ranks, by kind, counted"),
        MetricKind("attention_calls", "1", "neither", "of attention in the forwards of a step of all ranks, by kernel"),
        MetricKind(
            "peak_memory", "B", "lower", "most bytes in live tensors during a step, on the fullest rank", exact=True
        ),
        MetricKind(
            "memory_at_rest", "B", "lower", "bytes of the model's states between steps, on the fullest rank", exact=True
        ),
        MetricKind("memory_deviation", "1", "lower", "how far the fullest rank of a stage is from the formula"),
        MetricKind(
            "traffic_bytes",
            "B",
            "lower",
            "bytes x bus factor one rank moves along an axis in a step, counted",
            exact=True,
        ),
        MetricKind(
            "collectives",
            "1",
            "lower",
            "collectives one rank takes part in along an axis in a step, counted",
            exact=True,
        ),
        MetricKind("exposed_communication", "s", "lower", "communicating and not computing in a step; median rank"),
        MetricKind(
            "step_part",
            "s",
            "lower",
            "of the step time: computing, exposed communication by axis, bubble, imbalance, rest; mean rank",
        ),
        MetricKind(
            "bubble", "fraction", "lower", "share of a step in which a pipeline rank computes nothing; mean rank"
        ),
        MetricKind("longest_seq_len", "tokens", "higher", "longest sequence whose states and activations fit a rank"),
        MetricKind("attention_time", "s", "lower", "in the attention operators of a step under cp; busiest rank"),
        MetricKind("attention_imbalance", "1", "lower", "attention of the busiest rank over the mean of all"),
        MetricKind("expert_time", "s", "lower", "forward of all layers' experts in a step, by part; slowest rank"),
        MetricKind(
            "expert_imbalance", "1", "lower", "rows of the fullest rank or expert over the mean, by part", exact=True
        ),
        MetricKind(TOKEN_WAIT, "s", "lower", "for which a step waits for tokens that are read; slowest rank"),
        MetricKind(TOKEN_READ, "s", "lower", "in which the tokens of a step are read, beside others; slowest rank"),
        MetricKind("energy_per_token", "J", "lower", "of the ranks' GPUs while the step was timed, over its tokens"),
        MetricKind("routing_margin", "1", "higher", "least difference of probability that decided where a token went"),
        MetricKind("scaling_efficiency", "fraction", "higher", "tokens/s per rank over those of the smallest run"),
        MetricKind("scaling_loss_part", "s", "lower", "of a step, beyond the smallest run's at the same work per rank"),
        MetricKind("first_loss", "1", "neither", "mean over the global batch in the first step, before any update"),
        MetricKind("first_norm", "1", "neither", "of all gradients in the first step, before clipping"),
        MetricKind("loss", "1", "neither", "mean over the global batch in the last timed step"),
        MetricKind("norm", "1", "neither", "of all gradients in the last timed step, before clipping"),
        MetricKind("num_updates", "1", "neither", "optimizer steps up to the end of the last timed one"),
        MetricKind("compiled_frames", "1", "neither", "functions that torch.compile made of the timed step on a rank"),
        MetricKind("graph_breaks", "1", "lower", "how often a compiled function had to be left for Python", exact=True),
        MetricKind("agreement", "1", "lower", "how far is a loss or norm from that of cases that compute the same"),
        MetricKind(
            "last_update", "1", "lower", "roundings between the last update of a weight and the optimizer's formula"
        ),
        MetricKind(
            "update_bias", "1", "lower", "standard deviations between updates rounded by chance and the formula's sum"
        ),
        MetricKind("copies", "1", "lower", "how many updates the copies of a weight are apart behind the clock"),
        MetricKind("clipping", "1", "neither", "how far the norm that the optimizer took is from the clipped one"),
        MetricKind(
            "num_alloc_retries", "1", "lower", "times a full GPU made PyTorch's allocator empty its cache", exact=True
        ),
        MetricKind("parity_loss", "1", "lower", "how far the losses of two steps are from one rank's"),
        MetricKind("parity_gradients", "1", "lower", "how far the worst weight's gradient is from one rank's"),
        MetricKind("parity_gradient_scale", "1", "lower", "the worst factor between a gradient and one rank's, less 1"),
        MetricKind("parity_update", "1", "lower", "how far is what two steps changed of all weights"),
        MetricKind("parity_worst_update", "1", "lower", "how far is what two steps changed of the worst weight"),
        MetricKind("parity_second_norm", "1", "lower", "how far the second step's gradient norm is from one rank's"),
        MetricKind("parity_one_rank", "1", "lower", "how far one rank in bfloat16 is from float64, over healthy ones"),
        MetricKind("proof_time", "s", "neither", "in the comparison with one rank; 0 where an earlier case's holds"),
        MetricKind("parity_unsent", "1", "lower", "how much of compressed gradients was neither sent nor kept"),
        MetricKind("parity_factors", "1", "lower", "how far a compression is from one that goes on from the last"),
        MetricKind("parity_largest", "1", "lower", "how far what top-k sends is from the largest elements"),
        MetricKind(
            "parity_parameters", "1", "lower", "in earlier runs: how far the worst parameter is after two steps"
        ),
    )
    predicts: ClassVar[tuple[str, ...]] = (
        *("step_time", "tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "executed_flops"),
        *("peak_memory", "memory_at_rest", "traffic_bytes", "collectives", "bubble"),
        *("attention_imbalance", "longest_seq_len", *PARITY_METRICS, ONE_RANK, UNSENT, FACTORS, LARGEST),
    )

    shape: str = option(
        "llama-tiny",
        "model: its name; or its numbers, as a mapping or in the file of this path, which may be its config.json",
        choices=tuple(SHAPES),
        label="{}",
        is_shape=True,
    )
    seq_len: int = option(256, "tokens of a sequence", unit="tokens", minimum=2, maximum=2**24, label="seq")
    global_batch_size: int = option(8, "sequences of one step, of all ranks", minimum=1, maximum=2**24, label="gbs")
    micro_batch_size: int = option(
        1, "sequences of one forward, of one dp rank", minimum=1, maximum=2**20, label="mbs", alters="nothing"
    )
    layouts: tuple[str, ...] = option(
        ("tp1",),
        "how ranks share the step, as 'dp2-tp4+sp'; dp* takes all that are left; 'all' is every one there is",
        alters="nothing",
    )
    dtype: str = option(
        "float32",
        "of the arithmetic; what bfloat16 keeps in float32 is for precision to say",
        choices=tuple(DTYPE_BYTES),
        label="{}",
    )
    precision: str = option(
        MASTER,
        "of what is kept, in steps in bfloat16: "
        + "; ".join(f"{name} has {p.words}" for name, p in PRECISIONS.items()),
        choices=tuple(PRECISIONS),
        label="{}",
        alters="update",
        is_later=True,
    )
    gradient_dtype: str = option(
        WIDE,
        "in which gradients of float32 weights add up and are reduced, in steps in bfloat16; with zero2 and zero3 they "
        "are reduced in it, and shares add up in float32",
        choices=GRADIENT_DTYPES,
        label="{} gradients",
        alters="update",
        is_later=True,
    )
    rank_order: str = option(
        "megatron",
        "which ranks are neighbours, by the framework",
        choices=tuple(RANK_ORDERS),
        label="ranks as {}",
        alters="nothing",
    )
    seed: int = option(0, "of weights and tokens", minimum=0, maximum=2**31 - 1)
    max_grad_norm: float | None = option(
        1.0, "global norm gradients are clipped to; empty for none", minimum=1e-9, alters="update"
    )
    parity: bool = option(True, "check each layout against one rank before it is timed", alters="nothing")
    trainer: str = option(
        OURS, "whose step is run", choices=tuple(trainers()), label="{}", alters="nothing", is_later=True
    )
    communication: str = option(
        REAL,
        "fake runs one rank of a layout alone and sends nothing: what it computes and holds, no speed and no proof",
        choices=(REAL, FAKE),
        label="{} communication",
        is_later=True,
    )
    fake_rank: int | None = option(
        None,
        "rank that is run with fake communication; by default the first of the middle pipeline stage",
        minimum=0,
        label="rank {}",
        is_later=True,
    )
    each_node: bool = option(
        False,
        "whether layouts are of the ranks of one node, and each of several nodes runs its own, all at once",
        label="each node",
        alters="nothing",
        is_later=True,
    )
    tokens: str = option(
        RESIDENT,
        "where a step's tokens are when it begins: resident, always the same, in its memory; or read, other ones in "
        "every step, from a file by a thread that reads ahead",
        choices=(RESIDENT, READ),
        label="{} tokens",
        alters="update",  # of the first step nothing
        is_later=True,
    )
    path: str = option(
        PATH,
        "folder of the disk that tokens are read from; by default the system's temporary one",
        label="from {}",
        alters="nothing",
        is_later=True,
    )
    file_size: int = option(
        FILE_BYTES,
        "least size of the file of tokens of each dp rank; it has those of every step that is asked for",
        unit="B",
        minimum=1,
        maximum=2**44,
        alters="nothing",
        is_later=True,
    )
    # Every parallelism with its options; a suite's are set by `from_options`.
    shared_by: tuple[Parallelism, ...] = ()

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        return _all_options(cls)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        names = options_of(cls)
        return cls(**{name: value for name, value in values.items() if name in names}, shared_by=from_options(values))

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        layouts = list(self._layouts_on(place))
        shape = self._model
        if self.communication == FAKE and "parity" in keys:
            yield "parity", "where nothing is sent nothing is proven"
        if self.communication == REAL and "fake_rank" in keys:
            yield "fake_rank", "with communication: real every rank of a layout is run"
        if self.tokens == RESIDENT:
            for name in {*_OF_THE_FILE}.intersection(keys):
                yield name, f"with tokens: {RESIDENT} nothing is read"
        for parallelism in self._all_parallelisms():
            if not any(parallelism.concerned(layout, shape) for layout in layouts):
                for name in options_of(type(parallelism)).keys() & set(keys):
                    yield (
                        name,
                        f"it belongs to {type(parallelism).__name__}, which none of the layouts "
                        f"{', '.join(self.layouts)} uses",
                    )

    @property
    def _model(self) -> ModelShape:
        return shape_written(self.shape)

    def _all_parallelisms(self) -> tuple[Parallelism, ...]:
        return self.shared_by or from_options({})

    def points(self, place: Place) -> Iterable[Point]:
        shape = self._model
        options = [(parallelism, _told(parallelism)) for parallelism in self._all_parallelisms()]
        for layout in self._layouts_on(place):
            point: dict[str, Any] = {
                "layout": str(layout),
                **point_of_shape(shape),
                "seq_len": self.seq_len,
                "global_batch_size": self.global_batch_size,
                "micro_batch_size": self.micro_batch_size,
                **layout.columns,
                "dtype": self.dtype,
                "rank_order": self.rank_order,
                "seed": self.seed,
                "max_grad_norm": self.max_grad_norm,
                "parity": self.parity,
            }
            point |= later_values(self)
            if place.num_nodes == 1:
                point.pop("each_node", None)  # it is every node
            if self.tokens == RESIDENT:
                point = {name: value for name, value in point.items() if name not in _OF_THE_FILE}
            for parallelism, values in options:
                if parallelism.concerned(layout, shape):
                    point |= values
            yield {**point, "gradient_accumulation_steps": job_of(point).gradient_accumulation_steps}

    def _layouts_on(self, place: Place) -> Iterator[ParallelLayout]:
        ranks_per_node = place.cluster.ranks_per_node
        world_size = ranks_per_node if self.each_node else place.world_size
        for text in self.layouts:
            if text == ALL:
                yield from every_layout(world_size, self._model.num_experts, ranks_per_node, self.seq_len)
            else:
                yield ParallelLayout.fitting(text, world_size)

    def label(self, point: Point) -> str:
        return str(point["layout"])

    def layout(self, point: Point) -> str | None:
        return None if _is_fake(point) else str(point["layout"])

    def world_size(self, point: Point, place: Place) -> int:
        if _is_fake(point):
            return 1
        return place.world_size if _is_of_each_node(point) else ParallelLayout.parse(str(point["layout"])).world_size

    def kind_of_case(self, point: Point) -> str | None:
        if _is_fake(point):
            return LONE_RANK
        return NODE_STEP if _is_of_each_node(point) else None

    def objection(self, point: Point, place: Place) -> str | None:
        job = job_of(point, place.device)
        active = active_in(job.layout, from_options(point))
        reason = (
            trainer_of(point).objection(job, active)
            or lacks_units(place.cluster.accelerator, job, active)
            or _objection_of_each_node(point, job, place)
        )
        if reason is None and place.cluster.ranks_per_gpu > 1 and any(each.reaches_memory for each in active):
            return f"async_tp needs a GPU for each rank, and {place.cluster.ranks_per_gpu} share one"
        return reason or (_objection_to_fake(point, job, active) if _is_fake(point) else None)

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        job = job_of(point, place.device)
        if _is_fake(point):
            return dict(expected_of_rank(job, from_options(point), rank_of(point), str(point["rank_order"])))
        expected = trainer_of(point).predict(job, from_options(point), place.cluster, parity=bool(point["parity"]))
        if _is_of_each_node(point):  # of each alone only what it must prove is told
            return {key: of for key, of in expected.items() if split_key(key)[0] in EVIDENCE}
        return expected

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        from clusterbench.engine.own_work import OwnWork
        from clusterbench.proof.fed_step import FedStep
        from clusterbench.proof.late_step import late_step
        from clusterbench.proof.order import in_order
        from clusterbench.proof.own_size import on_one_rank
        from clusterbench.proof.parity import check_parity
        from clusterbench.proof.timed_step import TimedStep
        from clusterbench.training.passes import passes_of

        assert rig.grid is not None
        job, shared_by, grid, trainer = job_of(point, rig.device.type), from_options(point), rig.grid, trainer_of(point)
        step = trainer.build(job, shared_by, grid, rig.device)

        def check() -> Mapping[str, float]:
            if not point["parity"]:
                return {}
            started = time.monotonic()
            evidence = check_parity(trainer, job, shared_by, grid, rig.device)
            return {**evidence, PROOF_TIME: time.monotonic() - started}

        active = active_in(job.layout, shared_by)
        timed = TimedStep(step, rig.asked_calls, active, rig.asks_gradients)
        fed = FedStep(step, timed, active, rig.device) if is_fed(point) else None
        run = OwnWork(fed or timed, rig.device)
        sent_bytes = 2 if any(parallelism.sent_as for parallelism in active) else job.gradient_bytes
        passes = dict(passes_of(step, rig, run.spent_s, held_memory(active, step.job), sent_bytes))
        if (timeline := passes.get(TIMELINE.name)) is not None:  # the twin has fewer micro-batches
            passes[TIMELINE.name] = lambda: in_order(timeline(), step, rig.device)
        if rig.asks_one_rank:
            passes |= ON_ONE_RANK.taken(lambda: on_one_rank(step, shared_by, rig, is_fed(point)))
        if _has_late_step(point, job, active, rig.world_size):
            passes |= LATE_STEP.taken(lambda: late_step(step, shared_by, rig, run.spent_s))
        made = Step(
            run=run,
            check=check,
            passes=passes,
            confirm=lambda is_first: timed.confirm(rig, is_first),
        )
        return made if fed is None else reading(made, fed, rig, point)

    @classmethod
    def proof_key(cls, point: Point, device: str) -> str | None:
        job, every, trainer = job_of(point, device), from_options(point), trainer_of(point)
        if not point["parity"]:
            return None
        comparisons = comparisons_of(job, every, trainer.runs_in_float64)
        return repr((point.get("trainer", OURS), point["rank_order"], twin_of(job, every), comparisons))

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        # What a rank holds of the gradients, and of the parameters twice where they are shared out: float32.
        layout = ParallelLayout.parse(str(point["layout"]))
        return 3 * 4 * shape_of(point).num_parameters // (layout.pp * layout.tp)

    @classmethod
    def compiles(cls, point: Point) -> bool:
        return bool(point["compile"])

    @classmethod
    def cost(cls, point: Point) -> float:
        job = job_of(point)
        return step_flops(job, "full", "palm") / job.layout.world_size

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        return step_metrics(case, formulas_of(case), observation, place.cluster)

    @classmethod
    def one_rank_key(cls, case: Case) -> str:
        return one_rank_key(case, cls.options())

    @classmethod
    def agreements(cls, histories: Sequence[History]) -> Mapping[str, Agreement]:
        return agreements(histories, cls.options())

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        return across_cases(rows)


def _told(parallelism: Parallelism) -> dict[str, Any]:
    """What a point says of a parallelism's options."""
    first = [option for option in options_of(type(parallelism)).values() if not option.is_later]
    return {option.name: getattr(parallelism, option.name) for option in first} | later_values(parallelism)


@cache  # a plan asks for every point
def _all_options(kind: type[TrainStep]) -> Mapping[str, Option]:
    options = dict(options_of(kind))
    for parallelism in parallelisms().values():
        options |= options_of(parallelism)
    return options


def job_of(point: Point, device: str = "cpu") -> TrainingJob:
    """The step that a point describes."""
    values: Mapping[str, Any] = point
    return TrainingJob(
        shape=shape_of(point),
        layout=ParallelLayout.parse(values["layout"]),
        seq_len=values["seq_len"],
        global_batch_size=values["global_batch_size"],
        micro_batch_size=values["micro_batch_size"],
        dtype=values["dtype"],
        max_grad_norm=values["max_grad_norm"],
        seed=values["seed"],
        device=device,
        precision=values.get("precision", MASTER),
        gradient_dtype=values.get("gradient_dtype", WIDE),
    )


def _is_fake(point: Point) -> bool:
    return str(point.get("communication", REAL)) == FAKE


def _is_of_each_node(point: Point) -> bool:
    return bool(point.get("each_node", False))


def _has_late_step(point: Point, job: TrainingJob, active: Sequence[Parallelism], num_ranks: int) -> bool:
    """Whether a step behind the timed ones can be held against one rank: not of tokens that are read, nor of nodes."""
    return (
        bool(point["parity"])
        and 1 < num_ranks == job.layout.world_size
        and not is_fed(point)
        and not any(parallelism.approximates for parallelism in active)
        and not is_routed_by_place_of_a_rank(point)
    )


def _objection_of_each_node(point: Point, job: TrainingJob, place: Place) -> str | None:
    """Why a step cannot be run inside each node."""
    if not _is_of_each_node(point):
        return None
    if _is_fake(point):
        return f"each_node: true has every rank of a node take part, and communication: {FAKE} one alone"
    own, ranks = job.layout.world_size, place.cluster.ranks_per_node
    if own != ranks:
        return (
            f"each_node: true runs a layout inside each node: {job.layout} is of {own} ranks, and a node has {ranks}; "
            "'dp*' takes those that are left"
        )
    return None


def rank_of(point: Point) -> int:
    """The rank that a point with fake communication is about."""
    values: Mapping[str, Any] = point
    return chosen_rank(ParallelLayout.parse(values["layout"]), values["rank_order"], values.get("fake_rank"))


def _objection_to_fake(point: Point, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
    """Why one rank of a layout cannot be run alone."""
    layout, why = job.layout, f"communication {FAKE}"
    if (trainer := str(point.get("trainer", OURS))) != OURS:
        return f"{why} runs the step of {OURS}, and not that of {trainer}"
    if layout.world_size == 1:
        return f"{why} has no effect on {layout}, whose one rank sends nothing"
    if rank_of(point) >= layout.world_size:
        return f"{layout} has the ranks 0 to {layout.world_size - 1}, and fake_rank is {rank_of(point)}"
    if any(parallelism.reaches_memory for parallelism in active):
        return f"{why} has no other ranks, whose memory async_tp reaches"
    if is_fed(point):
        return f"{why} is of a step whose tokens are there, and tokens: {READ} has each step wait for its own"
    needed = next(filter(None, (parallelism.needs_data(job) for parallelism in active)), None)
    return needed and f"{why} brings no data from other ranks: {needed}"


def formulas_of(case: Case) -> StepFormulas:
    """What the formulas say of a case's step: one object for all cases that differ in their seed alone."""
    options = {name: value for name, value in case.point.items() if name != "seed"}
    return _formulas(case.device, tuple(options), *options.values())


@lru_cache(maxsize=4096, typed=True)  # typed, as 1 is not True
def _formulas(device: str, names: tuple[str, ...], *values: Any) -> StepFormulas:
    point = {**dict(zip(names, values, strict=True)), "seed": 0}
    rank_order = str(point.get("rank_order", "megatron"))
    trainer, job, every = trainer_of(point), job_of(point, device), from_options(point)
    formulas = trainer.formulas(job, every, rank_order)
    # what is asked of this, no card has a part in
    alone = Cluster(1, job.layout.world_size, "cpu")
    return replace(formulas, predict=lambda: trainer.predict(job, every, alone, parity=False))
