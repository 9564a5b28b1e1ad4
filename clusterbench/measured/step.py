"""The metrics of a training step: of one case, from what its ranks saw, and of all cases of a run held together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from clusterbench.cluster import Cluster
from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.step import fastest_dtype, flops_key, peak_basis
from clusterbench.expected.tolerances import (
    BIAS,
    CLIPPING,
    COPIES,
    FACTORS,
    LARGEST,
    LAST_UPDATE,
    ONE_RANK,
    PARITY_METRICS,
    UNSENT,
)
from clusterbench.formulas.schedules import order as orders
from clusterbench.formulas.schedules.timeline import play
from clusterbench.formulas.statistics import Summary, median, summarise
from clusterbench.formulas.transformer import CONVENTIONS
from clusterbench.job import TrainingJob
from clusterbench.job.flops import executed_over_needed, step_flops
from clusterbench.job.passes import (
    ATTENTION,
    EXECUTED,
    EXPERTS,
    LATE_STEP,
    MEMORY,
    ON_ONE_RANK,
    TIMELINE,
    TOKEN_READ,
    TOKEN_WAIT,
    TRACE,
    TRAFFIC,
    Computed,
)
from clusterbench.layout import ParallelLayout
from clusterbench.measured.agreement import STATISTICS
from clusterbench.measured.flops import (
    RATE,
    Difference,
    attention_metrics,
    differences,
    executed_metrics,
    executed_rate,
    is_void,
)
from clusterbench.measured.memory import deviation_metrics, deviations, memory_metrics
from clusterbench.measured.scaling import scaling
from clusterbench.measured.step_parts import step_parts
from clusterbench.measured.traffic import differences as traffic_differences
from clusterbench.measured.traffic import traffic_metrics
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.rows import Row
from clusterbench.shape import shape_of
from clusterbench.types import PROOF_TIME, SAMPLES, VOID, Case, Metric, Observation, split_key
from clusterbench.units import format_value

MEASURED = "measured"
"""A peak that a matmul of the same run reached."""

SAW_NOTHING = "the profiler recorded nothing that computes: another tool may hold it, or its library (CUPTI) is missing"

EVIDENCE = (
    *PARITY_METRICS,
    ONE_RANK,
    UNSENT,
    FACTORS,
    LARGEST,
    "parity_parameters",
    "routing_margin",
    *(statistic.name for statistic in STATISTICS if statistic.is_one_number),
    "num_updates",
    "compiled_frames",
    "graph_breaks",
    LAST_UPDATE,
    BIAS,
    COPIES,
    CLIPPING,
)
"""What a proof or a timed step leaves that is a metric; ``parity_parameters`` in runs recorded before updates were."""


def step_metrics(case: Case, formulas: StepFormulas, observation: Observation, cluster: Cluster) -> Iterator[Metric]:
    """The metrics of one case: ``formulas`` are those of the step that its point asks for, ``cluster`` where it ran."""
    job = formulas.job
    time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
    yield Metric("step_time", "s", time.value, time.low, time.high, time.n)
    yield _rate("tokens_per_s", "tokens/s", job.tokens_per_step, time)
    yield _rate("tokens_per_s_per_rank", "tokens/s", job.tokens_per_step / case.world_size, time)
    executed = EXECUTED.of(observation)
    found = differences(case, formulas, executed)
    if is_void(case, found):
        yield from _void(found[0])
    else:
        yield from _utilization(case, formulas, time, cluster)
        yield from executed_rate(case, executed, time)
    yield from executed_metrics(case, executed, found)
    yield from attention_metrics(executed)
    memory = MEMORY.of(observation)
    deviating = deviations(case, formulas, memory)
    yield from memory_metrics(case, memory, deviating)
    yield from deviation_metrics(deviating)
    traffic = TRAFFIC.of(observation)
    yield from traffic_metrics(traffic, traffic_differences(case, formulas, traffic))
    traced = TRACE.of(observation)
    if blind := [rank for rank, step in enumerate(traced) if not step.compute_s]:
        why = f"on rank {blind[0]} {SAW_NOTHING}"
        yield Metric("exposed_communication", "s", None, basis=why)
        traced = []
    if traced:
        exposed = _over_ranks("exposed_communication", "s", [step.exposed_s for step in traced])
        step_s = max(step.step_s for step in traced)
        yield exposed._replace(basis=f"in one traced step of {format_value(step_s, 's')}; tracing makes it longer")
    yield from step_parts(case, job.layout, observation, traced, time)
    yield from _bubble_metrics(formulas, observation)
    yield from _attention_metrics(observation)
    if "longest_seq_len" in case.expected:
        why = "not measured: the suite's seq_len was"
        yield Metric("longest_seq_len", "tokens", None, basis=why)
    yield from _expert_metrics(case, job.layout, observation)
    yield from token_metrics(observation)
    yield from _energy(case, job, observation, time)
    yield from evidence_metrics(observation)
    yield from proof_metrics(observation)


def proof_metrics(observation: Observation) -> Iterator[Metric]:
    """What proving a case took."""
    proving_s = [seen[PROOF_TIME] for seen in observation.evidence if PROOF_TIME in seen]
    if proving_s:
        behind = (*ON_ONE_RANK.of(observation), *LATE_STEP.of(observation))
        alone_s = sum(of_rank.get("seconds", 0.0) for of_rank in behind)
        yield Metric(PROOF_TIME, "s", max(proving_s) + alone_s, basis="of all repeats together")


def token_metrics(observation: Observation) -> Iterator[Metric]:
    """Of a step whose tokens are read while it is timed, what the slowest rank took in each call."""
    samples = observation.passes.get(SAMPLES, ())
    resident = [seen.get("resident_fraction") for seen in observation.evidence]
    for name, what in _OF_TOKENS.items():
        if samples and all(name in of_rank for of_rank in samples):
            time = summarise([max(of_call) for of_call in zip(*(of_rank[name] for of_rank in samples), strict=True)])
            yield Metric(name, "s", time.value, time.low, time.high, time.n, basis=f"{what}; {_before(resident)}")


_OF_TOKENS = {
    TOKEN_WAIT: "until the tokens of a step are where it computes, by the clock of the step",
    TOKEN_READ: "by the thread that reads ahead",
}


def _before(resident: Sequence[float | None]) -> str:
    """What the page cache held of the file before it was read."""
    shares = [share for share in resident if share is not None]
    if not shares or len(shares) < len(resident):
        return "how much of the file was in the host's memory before is not known"
    return f"{100 * max(shares):.3g} % of the file was in the host's memory before"


def evidence_metrics(observation: Observation) -> Iterator[Metric]:
    """In the order of :data:`EVIDENCE`, of each first what the job's own dtype showed."""
    values: dict[str, list[float]] = defaultdict(list)
    for seen in observation.evidence:
        for key, value in seen.items():
            values[key].append(value)
    keys: dict[str, list[str]] = defaultdict(list)
    for key in sorted(values):
        keys[split_key(key)[0]].append(key)
    for name in EVIDENCE:
        for key in keys.get(name, ()):
            yield Metric(name, "1", max(values[key]), detail=split_key(key)[1])


BURST = "burst_flops_per_s_per_rank"
"""Of matmul, beside the sustained rate: before clocks come down. No utilization is held against it."""

_HELD = ("tokens_per_s_per_rank", "step_part", "model_flops_per_s_per_rank", "flops_per_s_per_rank", BURST)
"""Figures that are held against those of other cases; a burst only tells that what stands beside it is sustained."""


def across_cases(rows: Sequence[Row]) -> Iterable[Row]:
    """What needs more than one case: scaling, and utilization against the matrix product measured in the same run."""
    held = [row for row in rows if row.metric in _HELD and row.value is not None]
    step_rows = [row for row in held if row.benchmark == "train_step"]
    yield from scaling(step_rows)
    sustained = {row.case for row in held if row.metric == BURST}
    peaks = _measured_peaks(held, sustained)
    for row in step_rows:
        if row.metric == "model_flops_per_s_per_rank":
            yield from _held_against_matmul(row, peaks, sustained)


def _rate(name: str, unit: str, amount: float, time: Summary, **detail: str) -> Metric:
    # The slow end of the time is the low end of the rate.
    return Metric(name, unit, amount / time.value, amount / time.high, amount / time.low, time.n, detail)


def _over_ranks(name: str, unit: str, values: Sequence[float], **detail: str) -> Metric:
    """Median rank, and the extremes as low and high."""
    return Metric(name, unit, median(values), min(values), max(values), 1, detail)


def _utilization(case: Case, formulas: StepFormulas, time: Summary, cluster: Cluster) -> Iterator[Metric]:
    """Over the peak of the fastest dtype in which the step multiplies, and over that of its arithmetic beside it."""
    job, dtype = formulas.job, fastest_dtype(formulas.job, formulas.active)
    steps = {convention: step_flops(job, "none", convention) for convention in CONVENTIONS}
    for convention, flops in steps.items():
        rate = flops / case.world_size
        yield _rate("model_flops_per_s_per_rank", "FLOP/s", rate, time, flops_convention=convention)
    peak = _datasheet_peak(case, dtype, cluster)
    if peak is None:
        why = (
            "a CPU has no datasheet peak; see peak=measured"
            if case.device == "cpu"
            else f"no peak FLOP/s in {dtype} is on record for this device"
        )
        yield Metric("mfu", "fraction", None, detail={"flops_convention": "palm", "peak": "datasheet"}, basis=why)
        return
    peak_flops_per_s, basis = peak
    available = case.world_size * peak_flops_per_s
    for convention, flops in steps.items():
        detail = {"flops_convention": convention, "peak": "datasheet"}
        yield _rate("mfu", "fraction", flops / available, time, **detail)._replace(basis=basis)
        executed = step_flops(job, str(case.point["recompute"]), convention)
        yield _rate("hfu", "fraction", executed / available, time, **detail)._replace(basis=basis)
    if dtype != job.dtype and (beside := cluster.peak_flops_per_s(job.dtype)) is not None:
        for convention, flops in steps.items():
            detail = {"flops_convention": convention, "peak": f"datasheet {job.dtype}"}
            used = _rate("mfu", "fraction", flops / (case.world_size * beside[0]), time, **detail)
            yield used._replace(basis=f"dense peak in {job.dtype}, in which not all is multiplied: {beside[1]}")


def _void(difference: Difference) -> Iterator[Metric]:
    """In place of :func:`_utilization` where a step did not execute what it should have."""
    why = f"{VOID}{difference}"
    for convention in CONVENTIONS:
        detail = {"flops_convention": convention}
        yield Metric("model_flops_per_s_per_rank", "FLOP/s", None, detail=detail, basis=why)
        for name in ("mfu", "hfu"):
            yield Metric(name, "fraction", None, detail={**detail, "peak": "datasheet"}, basis=why)
    yield Metric(RATE, "FLOP/s", None, basis=why)


def _datasheet_peak(case: Case, dtype: str, cluster: Cluster) -> tuple[float, str] | None:
    """FLOP/s of a rank in ``dtype`` as the tables of hardware have them today, and what they rest on.

    What was expected when the case was planned counts only for a device that is not, or no longer, in the tables.
    """
    planned = case.expected.get(flops_key("palm"))
    today = cluster.peak_flops_per_s(dtype)
    if today is None:
        return None if planned is None else (planned.value, f"{planned.basis}; as planned: not on record today")
    value, source = today
    basis = peak_basis(source)
    if planned is not None and planned.value != value:
        basis += f"; it was planned with {format_value(planned.value, 'FLOP/s')}"
    return value, basis


def _bubble_metrics(formulas: StepFormulas, observation: Observation) -> Iterator[Metric]:
    """Idle share as it was seen, and as the schedule played with the median times that were seen would have it."""
    timelines = TIMELINE.of(observation)
    if not any(timelines):
        return
    end_s = max(action.end_s for timeline in timelines for action in timeline)
    idle = [1 - sum(action.end_s - action.start_s for action in timeline) / end_s for timeline in timelines]
    source = "one step, every rank's time since it left a barrier"
    yield Metric("bubble", "fraction", fmean(idle), min(idle), max(idle), detail={"source": "measured"}, basis=source)
    job = formulas.job
    pipeline = next(parallelism for parallelism in formulas.parallelisms if isinstance(parallelism, Pipeline))
    num_stages = job.layout.pp * pipeline.chunks
    costs = {
        kind: [_median_of(timelines, kind, stage) for stage in range(num_stages)]
        for kind in {action.kind for timeline in timelines for action in timeline}
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


def _median_of(timelines: Sequence[Sequence[Computed]], kind: str, stage: int) -> float:
    times = [
        action.end_s - action.start_s
        for timeline in timelines
        for action in timeline
        if (action.kind, action.stage) == (kind, stage)
    ]
    return median(times) if times else 0.0


def _attention_metrics(observation: Observation) -> Iterator[Metric]:
    spent = [seconds for seconds in ATTENTION.of(observation) if seconds is not None]
    if spent:
        basis = "attention operators of one step; on a CPU seconds of the thread"
        yield Metric("attention_time", "s", max(spent), min(spent), max(spent), basis=basis)
        yield Metric("attention_imbalance", "1", max(spent) / fmean(spent), basis=basis)


def _expert_metrics(case: Case, layout: ParallelLayout, observation: Observation) -> Iterator[Metric]:
    ranks = EXPERTS.of(observation)
    if not ranks:
        return
    for part in ranks[0].seconds:
        values = [load.seconds[part] for load in ranks]
        basis = "forward passes of one step with the device waited for around each part: no overlap"
        yield Metric("expert_time", "s", max(values), min(values), max(values), detail={"part": part}, basis=basis)
    imbalance = [load.imbalance for load in ranks]
    basis = "rows of a rank's fullest expert over the mean of that rank's; 1 is even; worst layer, last micro-batch"
    yield _imbalance("experts", imbalance, basis)
    # stages have layers of their own, and not always as many
    stages = zip(*layout.groups("pp", case.rank_order), strict=True)
    by_layer = [rows for stage in stages for rows in zip(*(ranks[rank].rows for rank in stage), strict=True)]
    if by_layer:
        over_mean = [max(rows) / (fmean(rows) or 1.0) for rows in by_layer]
        basis = "rows of the fullest rank over the mean rank, which waits for it; 1 is even; last micro-batch"
        yield _imbalance("ranks", over_mean, basis)


def _imbalance(part: str, values: Sequence[float], basis: str) -> Metric:
    """The worst of some, with the others as its spread."""
    worst, least = max(values), min(values)
    return Metric("expert_imbalance", "1", worst, least, worst, detail={"part": part}, expected=1.0, basis=basis)


def _energy(case: Case, job: TrainingJob, observation: Observation, time: Summary) -> Iterator[Metric]:
    """From the counters of the GPUs while they were timed, or their mean power where a GPU has no counter.

    Records of earlier versions have the mean power of the whole case, and say so.
    """
    if case.device != "cuda" or not observation.telemetry:
        return
    # Ranks have the first GPUs of the hosts that take part; others are sampled as well.
    on_each = case.world_size // case.num_nodes
    of_hosts = [gpu for host in observation.hosts for gpu in observation.telemetry.get(host, {}).values()]
    gpus = [gpu for gpu in of_hosts if gpu.get("index", 0) < on_each]
    if len(gpus) != case.world_size:
        why = f"{len(gpus)} of the {case.world_size} GPUs that took part were sampled"
        yield Metric("energy_per_token", "J", None, basis=why)
        return
    within = {gpu.get("within") for gpu in gpus}
    if "case" in within:
        yield Metric("energy_per_token", "J", None, basis="no sample of the GPUs fell into what was timed")
        return
    are_counted = within == {"timed"} and all(gpu.get("energy_over_s") for gpu in gpus)
    power = [gpu["energy_j"] / gpu["energy_over_s"] if are_counted else gpu["mean_power_w"] for gpu in gpus]
    if not all(power):
        return
    source = "counters of energy" if are_counted else "mean power"
    when = "while the step was timed" if within == {"timed"} else "over the whole case, with start, proof and passes"
    basis = f"{source} of {len(power)} GPUs {when}, {sum(power):.0f} W; without hosts and network"
    yield _rate_of_energy(sum(power), job.tokens_per_step, time)._replace(basis=basis)


def _rate_of_energy(power_w: float, tokens: int, time: Summary) -> Metric:
    per_second = power_w / tokens
    return Metric(
        "energy_per_token", "J", per_second * time.value, per_second * time.low, per_second * time.high, time.n
    )


def _measured_peaks(rows: Sequence[Row], sustained: Collection[str]) -> dict[tuple[object, ...], Row]:
    """Device, dtype and ranks -> the best matmul of this run: of the sustained ones, where there are any."""
    best: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.benchmark == "matmul" and row.metric == "flops_per_s_per_rank" and row.value is not None:
            key = (row.device, row.point["dtype"], row.world_size)
            before = best.get(key)
            if before is None or (row.case in sustained, row.value) > (before.case in sustained, before.value or 0.0):
                best[key] = row
    return best


def _held_against_matmul(
    row: Row, peaks: Mapping[tuple[object, ...], Row], sustained: Collection[str]
) -> Iterator[Row]:
    """Over a matmul in the fastest dtype in which the step multiplies, and in that of its arithmetic beside it.

    ``sustained`` are the cases that were timed once clocks had settled; on GPUs of earlier runs none was.
    """
    dtype = str(row.point["dtype"])
    if row.point.get("float8", "none") == "none":
        yield from _over_matmul(row, peaks, sustained, dtype, MEASURED)
    else:
        yield from _over_matmul(row, peaks, sustained, "float8", MEASURED)
        yield from _over_matmul(row, peaks, sustained, dtype, f"{MEASURED} {dtype}")


def _over_matmul(
    row: Row, peaks: Mapping[tuple[object, ...], Row], sustained: Collection[str], dtype: str, name_of_peak: str
) -> Iterator[Row]:
    peak = peaks.get((row.device, dtype, row.world_size))
    detail = _by_matmul(row.detail["flops_convention"], name_of_peak)
    if peak is None:
        if row.detail["flops_convention"] == "palm":
            why = f"no matmul in {dtype} on as many ranks was measured in this run"
            yield row.beside("mfu", "fraction", None, None, None, detail, why)
        return
    assert row.value is not None
    assert peak.value is not None
    values: Mapping[str, Any] = row.point
    shape, convention = shape_of(values), row.detail["flops_convention"]
    executed = executed_over_needed(shape, values["seq_len"], values["recompute"], convention)
    basis = f"peak is {peak.value / 1e9:,.1f} GFLOP/s per rank, measured by {peak.case}"
    if peak.device == "cuda":
        basis += ", sustained" if peak.case in sustained else ", a burst of few products, which is above what lasts"
    for name, factor in (("mfu", 1.0), ("hfu", executed)):
        scale = factor / peak.value
        low = None if row.low is None else row.low * scale
        high = None if row.high is None else row.high * scale
        yield row.beside(name, "fraction", row.value * scale, low, high, detail, basis)


@cache
def _by_matmul(convention: str, name_of_peak: str) -> Mapping[str, str]:
    """What tells a utilization apart that is held against a matmul: one object for all rows."""
    return {"flops_convention": convention, "peak": name_of_peak}
