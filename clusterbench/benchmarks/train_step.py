"""A training step for real: model, loss, backward, gradient reduction, clipping, AdamW, shared as a layout says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import lcm
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from clusterbench.benchmarks import Benchmark
from clusterbench.cluster import Accelerator
from clusterbench.formulas.memory import megatron_activation_bytes
from clusterbench.formulas.schedules import bubble_formula, play
from clusterbench.formulas.schedules import order as orders
from clusterbench.formulas.statistics import Summary, median, summarise
from clusterbench.formulas.transformer import CONVENTIONS, hardware_flops
from clusterbench.layout import RANK_ORDERS, ParallelLayout, every_layout
from clusterbench.options import Option, option, options_of
from clusterbench.parallel import (
    Parallelism,
    active_in,
    expected_at_rest,
    expected_memory,
    expected_traffic,
    from_options,
    objection_to,
    parallelisms,
    part_of,
)
from clusterbench.parallel.context import ContextParallel, attention_imbalance
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.rows import Row
from clusterbench.shape import SHAPES, named_shape
from clusterbench.training.job import DTYPE_BYTES, TrainingJob
from clusterbench.training.scaling import scaling
from clusterbench.training.step_parts import record, step_parts
from clusterbench.training.tolerances import PARITY_METRICS, allowed_of
from clusterbench.types import Case, Expected, Metric, MetricKind, Observation, Place, Point, Step, metric_key
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.training.step import TrainingStep

STATES = ("parameters", "gradients", "optimizer_state")
AT_REST = " at rest"
ALL = "all"  # a word among `layouts`

_REFUSED = {
    "dropout": "the models here have none, as none of the models they stand for was pretrained with it; "
    "it would also make every parity check a comparison of random numbers",
}


@dataclass(frozen=True, kw_only=True)
class TrainStep(Benchmark):
    """How fast a decoder trains in each of some layouts, with what memory and traffic, and that it trains right.

    Before it is timed, each layout is run on a small twin of the model and compared with one rank: loss, every
    gradient, parameters after two steps. Memory, traffic and exposed communication are taken in steps of their own.
    """

    version: ClassVar[int] = 1
    own_start: ClassVar[bool] = True
    refused_options: ClassVar[Mapping[str, str]] = _REFUSED
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "one optimizer step, from the slowest rank"),
        MetricKind("tokens_per_s", "tokens/s", "higher", "tokens of the global batch over the step time"),
        MetricKind("tokens_per_s_per_rank", "tokens/s", "higher", "the same over the number of ranks"),
        MetricKind("model_flops_per_s_per_rank", "FLOP/s", "higher", "what the mathematics needs, over time and ranks"),
        MetricKind("mfu", "fraction", "higher", "model FLOP/s over the peak; both conventions stand beside it"),
        MetricKind("hfu", "fraction", "higher", "the same with the forward passes that are computed twice"),
        MetricKind("peak_memory", "B", "lower", "most bytes in live tensors during a step, on the fullest rank"),
        MetricKind("memory_at_rest", "B", "lower", "bytes of the model's states between steps, on the fullest rank"),
        MetricKind(
            "traffic_bytes", "B", "neither", "bytes x bus factor one rank moves along an axis in a step, counted"
        ),
        MetricKind(
            "collectives", "1", "neither", "collectives one rank takes part in along an axis in a step, counted"
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
        MetricKind("expert_imbalance", "1", "lower", "rows of the fullest rank or expert over the mean, by part"),
        MetricKind("energy_per_token", "J", "lower", "mean power of the ranks' GPUs while the case ran, over tokens/s"),
        MetricKind("routing_margin", "1", "higher", "least difference of probability that decided where a token went"),
        MetricKind("scaling_efficiency", "fraction", "higher", "tokens/s per rank over those of the smallest run"),
        MetricKind("scaling_loss_part", "s", "lower", "of a step, beyond the smallest run's at the same work per rank"),
        MetricKind("parity_loss", "1", "lower", "how far the loss is from one rank's"),
        MetricKind("parity_gradients", "1", "lower", "how far the worst gradient is from one rank's"),
        MetricKind("parity_parameters", "1", "lower", "how far the worst parameter is from one rank's after two steps"),
    )

    shape: str = option("llama-tiny", "model, by name", choices=tuple(SHAPES))
    seq_len: int = option(256, "tokens of a sequence", unit="tokens", minimum=2, maximum=2**24)
    global_batch_size: int = option(8, "sequences of one step, of all ranks", minimum=1, maximum=2**24)
    micro_batch_size: int = option(1, "sequences of one forward, of one dp rank", minimum=1, maximum=2**20)
    layouts: tuple[str, ...] = option(
        ("tp1",), "how ranks share the step, as 'dp2-tp4+sp'; dp* takes all that are left; 'all' is every one there is"
    )
    dtype: str = option(
        "float32", "of the arithmetic; bfloat16 keeps float32 parameters and optimizer", choices=tuple(DTYPE_BYTES)
    )
    rank_order: str = option("megatron", "which ranks are neighbours, by the framework", choices=tuple(RANK_ORDERS))
    seed: int = option(0, "of weights and tokens", minimum=0, maximum=2**31 - 1)
    max_grad_norm: float | None = option(1.0, "global norm gradients are clipped to; empty for none", minimum=1e-9)
    parity: bool = option(True, "check each layout against one rank before it is timed")
    # Every parallelism with its options; a suite's are set by `from_options`.
    shared_by: tuple[Parallelism, ...] = ()

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        own = dict(options_of(cls))
        for kind in parallelisms().values():
            own |= options_of(kind)
        return own

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        own = options_of(cls)
        return cls(**{name: value for name, value in values.items() if name in own}, shared_by=from_options(values))

    def ineffective(self, given: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        layouts = [ParallelLayout.parse(str(point["layout"])) for point in self.points(place)]
        shape = named_shape(self.shape)
        for one in self._all_parallelisms():
            if not any(one.concerned(layout, shape) for layout in layouts):
                for name in options_of(type(one)).keys() & set(given):
                    yield (
                        name,
                        f"it belongs to {type(one).__name__}, which none of the layouts {', '.join(self.layouts)} uses",
                    )

    def _all_parallelisms(self) -> tuple[Parallelism, ...]:
        return self.shared_by or from_options({})

    def points(self, place: Place) -> Iterable[Point]:
        for layout in self._layouts_on(place.world_size):
            point: dict[str, Any] = {
                "layout": str(layout),
                "shape": self.shape,
                "seq_len": self.seq_len,
                "global_batch_size": self.global_batch_size,
                "micro_batch_size": self.micro_batch_size,
                **{axis: layout.degree(axis) for axis in ("pp", "dp", "cp", "tp")},
                "sp": layout.sp,
                "ep": layout.ep,
                "zero": layout.zero,
                "dtype": self.dtype,
                "rank_order": self.rank_order,
                "seed": self.seed,
                "max_grad_norm": self.max_grad_norm,
                "parity": self.parity,
            }
            for one in self._all_parallelisms():
                if one.concerned(layout, named_shape(self.shape)):
                    point |= {name: getattr(one, name) for name in options_of(type(one))}
            yield {**point, "gradient_accumulation_steps": job_of(point).gradient_accumulation_steps}

    def _layouts_on(self, world_size: int) -> Iterator[ParallelLayout]:
        num_experts = named_shape(self.shape).num_experts
        for text in self.layouts:
            yield from (
                every_layout(world_size, num_experts) if text == ALL else [ParallelLayout.fitting(text, world_size)]
            )

    def label(self, point: Point) -> str:
        return str(point["layout"])

    def layout(self, point: Point) -> str | None:
        return str(point["layout"])

    def world_size(self, point: Point, place: Place) -> int:
        return ParallelLayout.parse(str(point["layout"])).world_size

    def objection(self, point: Point, place: Place) -> str | None:
        job = job_of(point, place.device)
        return objection_to(job, active_in(job.layout, from_options(point)))

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        job, every = job_of(point, place.device), from_options(point)
        active = active_in(job.layout, every)
        # the ranks of a pipeline have different parts; of each figure the largest is expected
        parts = [part_of(job, active, pp_rank) for pp_rank in range(job.layout.pp)]
        expected = dict(_expected_traffic(parts, active)) | dict(_expected_memory(parts, active))
        expected |= dict(_expected_bubble(job, every))
        expected |= {
            name: what for one in every if isinstance(one, ContextParallel) for name, what in _balance(one, job)
        }
        if (card := place.cluster.accelerator) is not None and card.memory_bytes and job.layout.uses("cp"):
            expected["longest_seq_len"] = _longest_sequence(job, active, card)
        if (peak := place.cluster.peak_flops_per_s(job.dtype)) is not None:
            bound = Expected(peak[0], "FLOP/s", f"dense peak, an upper bound: {peak[1]}")
            expected |= {_flops_key(convention): bound for convention in CONVENTIONS}
            expected |= _bounds(job, *peak)
        if point["parity"]:
            expected |= allowed_of(job, active)
        return expected

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        from clusterbench.engine.traffic import TrafficCounter
        from clusterbench.training.parity import check_parity
        from clusterbench.training.step import TrainingStep

        job, shared_by = job_of(point, rig.device.type), from_options(point)
        assert rig.grid is not None
        step, grid = TrainingStep(job, shared_by, rig.grid, rig.device), rig.grid
        counter = TrafficCounter(grid.names())

        def check() -> Mapping[str, float]:
            return check_parity(job, shared_by, grid, rig.device) if point["parity"] else {}

        return Step(
            run=step,
            check=check,
            passes={
                "memory": lambda: _memory_of(step, rig),
                "traffic": lambda: _traffic_of(step, counter),
                "exposed": lambda: _exposure_of(step, rig, counter),
                **({"timeline": lambda: _timeline_of(step, rig)} if step.assembly.stages else {}),
                **({"attention": lambda: _attention_of(step, rig)} if job.layout.uses("cp") else {}),
                **({"experts": lambda: _experts_of(step, rig)} if job.shape.has_experts else {}),
            },
        )

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        # What a rank holds of the gradients, and of the parameters twice where they are shared out: float32.
        layout = ParallelLayout.parse(str(point["layout"]))
        return 3 * 4 * named_shape(str(point["shape"])).num_parameters // (layout.pp * layout.tp)

    @classmethod
    def cost(cls, point: Point) -> float:
        job = job_of(point)
        return _flops(job, "full", "palm") / job.layout.world_size

    @classmethod
    def derive(cls, case: Case, observation: Observation) -> Iterable[Metric]:
        job = job_of(case.point, case.device)
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("step_time", "s", time.value, time.low, time.high, time.n)
        yield _rate("tokens_per_s", "tokens/s", job.tokens_per_step, time)
        yield _rate("tokens_per_s_per_rank", "tokens/s", job.tokens_per_step / case.world_size, time)
        yield from _utilization(case, job, time)
        yield from _memory_metrics(observation)
        yield from _traffic_metrics(observation)
        if traced := observation.passes.get("exposed", ()):
            exposed = _over_ranks("exposed_communication", "s", [seen["exposed_s"] for seen in traced])
            step_s = max(seen["step_s"] for seen in traced)
            yield replace(exposed, basis=f"in one traced step of {format_value(step_s, 's')}; tracing makes it longer")
        yield from step_parts(case, job.layout, observation, time)
        yield from _bubble_metrics(case, job, observation)
        yield from _attention_metrics(observation)
        if "longest_seq_len" in case.expected:
            why = "not measured: the suite's seq_len was"
            yield Metric("longest_seq_len", "tokens", None, basis=why)
        yield from _expert_metrics(observation)
        yield from _energy(case, job, observation, time)
        for name in (*PARITY_METRICS, "routing_margin"):
            values = [evidence[name] for evidence in observation.evidence if name in evidence]
            if values:
                yield Metric(name, "1", max(values))

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        own = [row for row in rows if row.benchmark == "train_step" and row.value is not None]
        yield from scaling(own)
        peaks = _measured_peaks(rows)
        for row in own:
            if row.metric == "model_flops_per_s_per_rank":
                yield from _held_against_matmul(row, peaks)


def job_of(point: Point, device: str = "cpu") -> TrainingJob:
    """What a point asks one step to do."""
    values: Mapping[str, Any] = point
    return TrainingJob(
        shape=named_shape(values["shape"]),
        layout=_layout(values["layout"]),
        seq_len=values["seq_len"],
        global_batch_size=values["global_batch_size"],
        micro_batch_size=values["micro_batch_size"],
        dtype=values["dtype"],
        max_grad_norm=values["max_grad_norm"],
        seed=values["seed"],
        device=device,
    )


_layout = cache(ParallelLayout.parse)  # a report asks again for every case


# What is expected


def _bounds(job: TrainingJob, peak_flops_per_s: float, source: str) -> dict[str, Expected]:
    """What no step can be faster than: the fewest FLOPs by any convention, at the dense peak of every rank."""
    step_s = _flops(job, "none", "causal") / (job.layout.world_size * peak_flops_per_s)
    tokens_per_s = job.tokens_per_step / step_s
    basis = f"model FLOPs, attention counted causal, at the dense peak: {source}"
    return {
        "step_time": Expected(step_s, "s", f"at least; {basis}"),
        "tokens_per_s": Expected(tokens_per_s, "tokens/s", f"at most; {basis}"),
        "tokens_per_s_per_rank": Expected(tokens_per_s / job.layout.world_size, "tokens/s", f"at most; {basis}"),
    }


def _expected_traffic(parts: Sequence[TrainingJob], active: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    sent_by = [expected_traffic(active, part) for part in parts]
    job = parts[0]
    unsure = {axis: why for one in active for axis, why in one.traffic_basis(job).items()}
    for axis in dict.fromkeys(sent.axis for along in sent_by for sent in along):
        of_rank = [[sent for sent in along if sent.axis == axis] for along in sent_by]
        most = max(of_rank, key=lambda along: sum(sent.bytes_on_link(job.layout) for sent in along))
        words = " + ".join(f"{sent.count} {sent.op} of {format_bytes(sent.size_bytes)} in all" for sent in most)
        basis = f"{words}; {job.equation}"
        link = sum(sent.bytes_on_link(job.layout) for sent in most)
        count = max(sum(sent.count for sent in along) for along in of_rank)
        about = f"about; {unsure[axis]}; " if axis in unsure else ""
        yield metric_key("traffic_bytes", axis=axis), Expected(link, "B", f"{about}{basis}; x bus factor")
        yield metric_key("collectives", axis=axis), Expected(count, "1", basis)


def _expected_memory(parts: Sequence[TrainingJob], active: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    job = parts[0]
    bases = {
        "parameters": f"{job.shape.num_parameters:,} of {job.master_bytes} B at rest, {_sharing(job)}",
        "gradients": "as parameters",
        "optimizer_state": "two moments as large as the parameters, and a step count per tensor",
        "activations": _activations_basis(job),
    }
    if any("ep" in one.traffic_basis(job) for one in active):
        bases["activations"] = f"about; of an even load, which the router decides; {bases['activations']}"
    if paper := _zero_in_the_paper(job):
        bases |= {name: f"{bases[name]}; {words}" for name, words in paper.items()}
    if any(one.hides_activations(job) for one in active):
        del bases["activations"]
    is_rounded_fsdp = job.layout.zero > 1 and job.compute_bytes != job.master_bytes
    if is_rounded_fsdp and job.layout.uses("pp") and not all(part.actions for part in parts):
        del bases["gradients"]  # naive reduces after each micro-batch: measured is 5 to 8 % less than the formula
    for category in bases:
        size_bytes = max(expected_memory(active, part)[category] for part in parts)
        yield metric_key("peak_memory", category=category), Expected(size_bytes, "B", bases[category])
    for category in ("parameters", "optimizer_state"):
        size_bytes = max(expected_at_rest(active, part)[category] for part in parts)
        yield metric_key("memory_at_rest", category=category), Expected(size_bytes, "B", bases[category])


def _sharing(job: TrainingJob) -> str:
    """Where the weights are, in words."""
    layout = job.layout
    words = [f"layers over pp{layout.pp}"] if layout.pp > 1 else []
    words += [f"matrices over tp{layout.tp}, norms on every rank"] if layout.tp > 1 else []
    words += [f"experts over ep{layout.ep}"] if layout.ep > 1 else []
    if layout.zero >= 2:
        words.append("all of it sharded by FSDP, and at its peak what is gathered beside it")
    return ", ".join(words) or "whole on every rank"


def _zero_in_the_paper(job: TrainingJob) -> dict[str, str]:
    """What the ZeRO paper's stages would hold, which is not everywhere what PyTorch holds."""
    ranks, stage, own = job.layout.degree("dp_cp"), job.layout.zero, "ZeRO's paper (arXiv:1910.02054, section 5)"
    if not stage or ranks == 1:
        return {}
    share = f"1/{ranks} of it"
    return {
        "parameters": f"{own}, stage {stage}: {share if stage == 3 else 'whole on every rank'}",
        "gradients": f"{own}, stage {stage}: {share if stage >= 2 else 'whole on every rank'}",
        "optimizer_state": f"{own}, stage {stage}: {share}",
    }


def _balance(context: ContextParallel, job: TrainingJob) -> Iterator[tuple[str, Expected]]:
    if job.layout.uses("cp") and context.context != "ulysses":
        value = attention_imbalance(context.context, job.layout.cp)
        yield (
            "attention_imbalance",
            Expected(value, "1", f"squares of the causal mask, {context.context} on cp{job.layout.cp}"),
        )


def _longest_sequence(job: TrainingJob, active: Sequence[Parallelism], card: Accelerator) -> Expected:
    """The longest sequence, in steps of what the layout cuts it into, with which the fullest rank's memory suffices."""
    assert card.memory_bytes is not None
    unit = lcm(*(one.twin(job)[2] for one in active))

    def fits(units: int) -> bool:
        longer = replace(job, seq_len=units * unit)
        parts = (part_of(longer, active, pp_rank) for pp_rank in range(job.layout.pp))
        return all(sum(expected_memory(active, part).values()) <= (card.memory_bytes or 0.0) for part in parts)

    most = 1
    while fits(2 * most):
        most *= 2
    low, high = most, 2 * most
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    basis = (
        f"parameters, gradients, optimizer state and activations within the {card.memory_bytes / 1e9:g} GB of "
        f"{card.name}, with micro_batch_size {job.micro_batch_size}; to 2 %, without NCCL's and the allocator's share"
    )
    return Expected(float(low * unit) if fits(low) else 0.0, "tokens", basis)


def _expected_bubble(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[tuple[str, Expected]]:
    pipeline = next(one for one in every if isinstance(one, Pipeline))
    if pipeline.active(job.layout):
        formula = bubble_formula(pipeline.schedule, job.layout.pp, job.gradient_accumulation_steps, pipeline.chunks)
        if formula is not None:
            expected = Expected(formula.value, "fraction", formula.basis)
            yield metric_key("bubble", source="measured"), expected
            yield metric_key("bubble", source="simulated"), expected


def _activations_basis(job: TrainingJob) -> str:
    shape, layout = job.shape, job.layout
    megatron = shape.num_layers * megatron_activation_bytes(
        job.seq_len, job.micro_batch_size, shape.hidden_size, shape.num_heads, layout.tp, layout.sp, "selective"
    )
    kept = (
        f"norm and residual activations 1/{layout.tp}, gathered inputs of column-parallel layers whole"
        if layout.sp
        else "norm and residual activations and inputs of column-parallel layers whole on every rank"
    )
    return (
        f"what PyTorch's operators keep for backward, and the logits; {kept}. Megatron's form, for a GPT in 16 bit "
        f"without logits: {format_bytes(megatron)} (Korthikanti et al. 2022, equation 6 with sp, 2 without)"
    )


def _flops_key(convention: str) -> str:
    return metric_key("model_flops_per_s_per_rank", flops_convention=convention)


# What is seen in steps that are not timed


def _memory_of(step: TrainingStep, rig: Rig) -> dict[str, int]:
    from clusterbench.engine.memory import MemoryTracker, cuda_memory_stats, reset_cuda_memory

    if step.num_steps < 2:
        step()  # DDP builds its buckets anew in its second step, which a case without warm-up has not had yet
    with MemoryTracker(step.assembly.decoders, step.optimizers, rig.device) as tracker:
        step()
    peak = tracker.peak()
    seen = {"total": peak.total_bytes, **peak.peak_by_category}
    seen |= {f"{category}{AT_REST}": size for category, size in peak.at_rest.items() if category in STATES}
    if rig.device.type == "cuda":
        reset_cuda_memory(rig.device)
        step()
        stats = cuda_memory_stats(rig.device)
        seen |= {"allocated": stats.peak_allocated_bytes, "reserved": stats.peak_reserved_bytes}
    return seen


def _traffic_of(step: TrainingStep, counter: TrafficCounter) -> list[dict[str, Any]]:
    counter.records.clear()
    with counter:
        step()
    return [{"axis": axis, "op": op, **vars(total)} for (axis, op), total in sorted(counter.totals().items())]


def _exposure_of(step: TrainingStep, rig: Rig, counter: TrafficCounter) -> dict[str, Any]:
    """``counter`` has seen a step before: passes run in their order."""
    from clusterbench.engine.trace import exposure, trace_step
    from clusterbench.engine.transfers import listed

    assert rig.grid is not None
    trace = trace_step(step, rig.device, counter.axes, listed(counter))
    return {**vars(exposure(trace)), "transfers": record(trace, rig.grid)}


def _timeline_of(step: TrainingStep, rig: Rig) -> list[list[Any]]:
    assert step.assembly.stages is not None
    rig.comm.barrier()
    return [list(action) for action in step.assembly.stages.timeline(step)]


def _attention_of(step: TrainingStep, rig: Rig) -> float | None:
    from clusterbench.training.context_attention import watch_attention

    return watch_attention(step, rig.device)


def _experts_of(step: TrainingStep, rig: Rig) -> dict[str, Any]:
    from clusterbench.training.experts import watch_experts

    rig.comm.barrier()
    return watch_experts(step, step.assembly.layers(), rig.device)


# What is made of it


def _rate(name: str, unit: str, amount: float, time: Summary, **detail: str) -> Metric:
    # The slow end of the time is the low end of the rate.
    return Metric(name, unit, amount / time.value, amount / time.high, amount / time.low, time.n, detail)


def _over_ranks(name: str, unit: str, values: Sequence[float], **detail: str) -> Metric:
    """Median rank, and the extremes as low and high."""
    return Metric(name, unit, median(values), min(values), max(values), 1, detail)


def _utilization(case: Case, job: TrainingJob, time: Summary) -> Iterator[Metric]:
    steps = {convention: _flops(job, "none", convention) for convention in CONVENTIONS}
    for convention, flops in steps.items():
        rate = flops / case.world_size
        yield _rate("model_flops_per_s_per_rank", "FLOP/s", rate, time, flops_convention=convention)
    peak = case.expected.get(_flops_key("palm"))
    if peak is None:
        why = (
            "a CPU has no datasheet peak; see peak=measured"
            if case.device == "cpu"
            else f"no peak FLOP/s in {job.dtype} is on record for this device"
        )
        yield Metric("mfu", "fraction", None, detail={"flops_convention": "palm", "peak": "datasheet"}, basis=why)
        return
    available = case.world_size * peak.value
    for convention, flops in steps.items():
        detail = {"flops_convention": convention, "peak": "datasheet"}
        yield replace(_rate("mfu", "fraction", flops / available, time, **detail), basis=peak.basis)
        executed = _flops(job, str(case.point["recompute"]), convention)
        yield replace(_rate("hfu", "fraction", executed / available, time, **detail), basis=peak.basis)


def _flops(job: TrainingJob, recompute: str, convention: str) -> float:
    """Of one step of all ranks: the model's for ``none``, else what is executed."""
    return _step_flops(job.shape, job.seq_len, job.global_batch_size, recompute, convention)


_step_flops = cache(hardware_flops)


def _memory_metrics(observation: Observation) -> Iterator[Metric]:
    ranks = observation.passes.get("memory", ())
    for category in dict.fromkeys(category for seen in ranks for category in seen):
        values = [seen.get(category, 0) for seen in ranks]
        name = "memory_at_rest" if category.endswith(AT_REST) else "peak_memory"
        detail = {"category": category.removesuffix(AT_REST)}
        yield Metric(name, "B", max(values), min(values), max(values), detail=detail)


def _traffic_metrics(observation: Observation) -> Iterator[Metric]:
    ranks = observation.passes.get("traffic", ())
    for axis in sorted({one["axis"] for seen in ranks for one in seen}):
        along = [[one for one in seen if one["axis"] == axis] for seen in ranks]
        counts = [sum(one["count"] for one in seen) for seen in along]
        yield Metric("collectives", "1", max(counts), min(counts), max(counts), detail={"axis": axis})
        unknown = sorted({one["op"] for seen in along for one in seen if one["traffic_bytes"] is None})
        if unknown:
            why = f"no bus factor is known for {', '.join(unknown)}"
            yield Metric("traffic_bytes", "B", None, detail={"axis": axis}, basis=why)
            continue
        sizes = [sum(one["traffic_bytes"] for one in seen) for seen in along]
        yield Metric("traffic_bytes", "B", max(sizes), min(sizes), max(sizes), detail={"axis": axis})


def _bubble_metrics(case: Case, job: TrainingJob, observation: Observation) -> Iterator[Metric]:
    """Idle share as it was seen, and as the schedule played with the median times that were seen would have it."""
    timelines: Sequence[Sequence[Sequence[Any]]] = observation.passes.get("timeline", ())
    if not any(timelines):
        return
    end_s = max(action[4] for timeline in timelines for action in timeline)
    idle = [1 - sum(end - start for *_, start, end in timeline) / end_s for timeline in timelines]
    seen = "one step, every rank's time since it left a barrier"
    yield Metric("bubble", "fraction", fmean(idle), min(idle), max(idle), detail={"source": "measured"}, basis=seen)
    pipeline = next(one for one in from_options(case.point) if isinstance(one, Pipeline))
    num_stages = job.layout.pp * pipeline.chunks
    costs = {
        kind: [_median_of(timelines, kind, stage) for stage in range(num_stages)]
        for kind in {action[0] for timeline in timelines for action in timeline}
    }
    order = orders(pipeline.schedule, job.layout.pp, job.gradient_accumulation_steps, pipeline.chunks)
    played = play(order, costs).bubbles
    yield Metric(
        "bubble",
        "fraction",
        fmean(played),
        min(played),
        max(played),
        detail={"source": "simulated"},
        basis="the schedule played with the median time of each kind of action on each stage, messages free",
    )


def _median_of(timelines: Sequence[Sequence[Sequence[Any]]], kind: str, stage: int) -> float:
    times = [
        end - start for timeline in timelines for what, at, _, start, end in timeline if (what, at) == (kind, stage)
    ]
    return median(times) if times else 0.0


def _attention_metrics(observation: Observation) -> Iterator[Metric]:
    seconds: Sequence[float | None] = observation.passes.get("attention", ())
    spent = [one for one in seconds if one is not None]
    if spent:
        basis = "attention operators of one step; on a CPU seconds of the thread"
        yield Metric("attention_time", "s", max(spent), min(spent), max(spent), basis=basis)
        yield Metric("attention_imbalance", "1", max(spent) / fmean(spent), basis=basis)


def _expert_metrics(observation: Observation) -> Iterator[Metric]:
    ranks = observation.passes.get("experts", ())
    if not ranks:
        return
    for part in ranks[0]["seconds"]:
        values = [seen["seconds"][part] for seen in ranks]
        basis = "forward passes of one step with the device waited for around each part: no overlap"
        yield Metric("expert_time", "s", max(values), min(values), max(values), detail={"part": part}, basis=basis)
    imbalance = [seen["imbalance"] for seen in ranks]
    basis = "rows of a rank's fullest expert over the mean of that rank's; 1 is even; worst layer, last micro-batch"
    yield _imbalance("experts", imbalance, basis)
    by_layer = list(zip(*(seen.get("rows", ()) for seen in ranks), strict=True))
    if by_layer:
        over_mean = [max(rows) / (fmean(rows) or 1.0) for rows in by_layer]
        basis = "rows of the fullest rank over the mean rank, which waits for it; 1 is even; last micro-batch"
        yield _imbalance("ranks", over_mean, basis)


def _imbalance(part: str, values: Sequence[float], basis: str) -> Metric:
    """The worst of some, with the others as its spread."""
    worst, least = max(values), min(values)
    return Metric("expert_imbalance", "1", worst, least, worst, detail={"part": part}, expected=1.0, basis=basis)


def _energy(case: Case, job: TrainingJob, observation: Observation, time: Summary) -> Iterator[Metric]:
    power = [gpu["mean_power_w"] for gpus in observation.telemetry.values() for gpu in gpus.values()]
    if case.device == "cuda" and len(power) == case.world_size and all(power):
        basis = f"mean power of {len(power)} GPUs while the case ran, {sum(power):.0f} W; without hosts and network"
        yield replace(_rate_of_energy(sum(power), job.tokens_per_step, time), basis=basis)


def _rate_of_energy(power_w: float, tokens: int, time: Summary) -> Metric:
    per_second = power_w / tokens
    return Metric(
        "energy_per_token", "J", per_second * time.value, per_second * time.low, per_second * time.high, time.n
    )


# What needs more than one case


def _measured_peaks(rows: Sequence[Row]) -> dict[tuple[object, ...], Row]:
    """Device, dtype and ranks -> the best matmul of this run."""
    best: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.benchmark == "matmul" and row.metric == "flops_per_s_per_rank" and row.value is not None:
            key = (row.device, row.point["dtype"], row.world_size)
            if key not in best or row.value > (best[key].value or 0.0):
                best[key] = row
    return best


def _held_against_matmul(row: Row, peaks: Mapping[tuple[object, ...], Row]) -> Iterator[Row]:
    peak = peaks.get((row.device, row.point["dtype"], row.world_size))
    detail = {**row.detail, "peak": "measured"}
    if peak is None:
        if row.detail["flops_convention"] == "palm":
            why = f"no matmul in {row.point['dtype']} on {row.world_size} ranks was measured in this run"
            nothing: dict[str, Any] = dict.fromkeys(("value", "low", "high", "expected"))
            yield row._replace(metric="mfu", unit="fraction", detail=detail, **nothing, basis=why)
        return
    assert row.value is not None
    assert peak.value is not None
    executed = _executed_over_needed(row.point, row.detail["flops_convention"])
    basis = f"peak is {peak.value / 1e9:,.1f} GFLOP/s per rank, measured by {peak.case}"
    for name, factor in (("mfu", 1.0), ("hfu", executed)):
        scale = factor / peak.value
        yield row._replace(
            metric=name,
            unit="fraction",
            detail=detail,
            value=row.value * scale,
            low=None if row.low is None else row.low * scale,
            high=None if row.high is None else row.high * scale,
            expected=None,
            basis=basis,
        )


def _executed_over_needed(point: Point, convention: str) -> float:
    values: Mapping[str, Any] = point
    shape, seq_len = named_shape(values["shape"]), values["seq_len"]
    executed, needed = (_step_flops(shape, seq_len, 1, which, convention) for which in (values["recompute"], "none"))
    return executed / needed
