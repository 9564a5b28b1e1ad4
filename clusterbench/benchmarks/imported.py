"""Figures of other tools, as their files print them: what ``clusterbench import`` makes cases of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import SuiteError
from clusterbench.formulas.transformer import CONVENTIONS, flops_per_token
from clusterbench.run_folder.passes import Pass
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True)
class ImportedModel:
    """What MFU is computed again from: parameters, layers, and the FLOP/s of one rank by a convention's peak."""

    num_parameters: float = 0.0
    embedding_parameters: float = 0.0
    num_layers: float = 0.0
    attention_width: float = 0.0
    convention: str = ""
    peak_flops_per_s: float = 0.0
    peak_source: str = ""


MODEL: Pass[ImportedModel] = Pass("model", ImportedModel)
"""Empty on all ranks but the first."""


@dataclass(frozen=True, kw_only=True)
class Imported(Benchmark):
    """Nothing here: the figures of another tool, which ``clusterbench import`` brings into a run's folder.

    A figure stays what its file printed, and its basis says file and line. What is added follows from those figures by
    an identity, and its basis says which. The seconds of a case are the imported time, alike on all ranks, since files
    hold one figure for all of them.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("step_time", "s", "lower", "time of one optimizer step"),
        MetricKind("tokens_per_s", "tokens/s", "higher", "tokens of a step over its time, all ranks"),
        MetricKind("tokens_per_s_per_rank", "tokens/s", "higher", "the same over the number of ranks"),
        MetricKind("model_flops_per_s_per_rank", "FLOP/s", "higher", "operations the mathematics needs, over time"),
        MetricKind("hardware_flops_per_s_per_rank", "FLOP/s", "higher", "operations executed, over time"),
        MetricKind("mfu", "fraction", "higher", "share of the peak, imported or recomputed (source)"),
        MetricKind("hfu", "fraction", "higher", "share of the peak with recomputed passes, imported (source)"),
        MetricKind("mfu_over_recomputed", "1", "neither", "mfu as imported over mfu from throughput and model"),
        MetricKind("peak_memory", "B", "lower", "most memory of one rank", exact=True),
        MetricKind("latency", "s", "lower", "time of one call (part: placement)"),
        MetricKind("algbw", "B/s", "higher", "size over time (part: placement)"),
        MetricKind("busbw", "B/s", "higher", "algbw times the factor of the collective (part: placement)"),
        MetricKind("bandwidth", "B/s", "higher", "bytes over time, as the tool counts them"),
        MetricKind("message_rate", "1/s", "higher", "messages or requests over time"),
        MetricKind("retransmits", "1", "lower", "packets that were sent again"),
        MetricKind("flops_per_s", "FLOP/s", "higher", "operations over time, of all ranks, as the tool counts them"),
        MetricKind("loss", "1", "neither", "loss of the last step that was printed"),
    )

    def points(self, place: Place) -> Iterable[Point]:
        return [{"source": "no file"}]

    def label(self, point: Point) -> str:
        return "no-file"

    def objection(self, point: Point, place: Place) -> str | None:
        return (
            "'imported' runs nothing: its cases come from files of other tools, by 'clusterbench import FILE', and "
            "not from a suite"
        )

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        raise SuiteError("imported figures cannot be measured again here.")

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        origin = f"imported from {case.source}"
        metrics = {metric.key: metric for metric in cls.sampled(observation)}
        for metric in metrics.values():
            yield metric._replace(basis=origin)
        values = {key: metric.value for key, metric in metrics.items() if metric.value is not None}
        yield from _throughput(values, case, origin)
        yield from _time(values, observation, origin)
        for model in MODEL.of(observation)[:1]:
            yield from _mfu(values, model, int(case.point["seq_len"]), case.world_size, origin)


def _throughput(values: Mapping[str, float], case: Case, origin: str) -> Iterator[Metric]:
    """The rates that the file does not print: from the other one, or from the time of a step."""
    world_size, step_time = case.world_size, values.get("step_time")
    whole, per_rank = values.get("tokens_per_s"), values.get("tokens_per_s_per_rank")
    if whole is None and per_rank is not None:
        basis = f"tokens_per_s_per_rank, {origin}, times {world_size} ranks"
        yield Metric("tokens_per_s", "tokens/s", per_rank * world_size, basis=basis)
    if per_rank is None and whole is not None:
        basis = f"tokens_per_s, {origin}, over {world_size} ranks"
        yield Metric("tokens_per_s_per_rank", "tokens/s", whole / world_size, basis=basis)
    tokens = int(case.point.get("global_batch_size") or 0) * int(case.point.get("seq_len") or 0)
    if whole is None and per_rank is None and step_time and tokens:
        basis = f"{tokens} tokens of a step over step_time, {origin}: it prints no rate"
        yield Metric("tokens_per_s", "tokens/s", tokens / step_time, basis=basis)
        yield Metric("tokens_per_s_per_rank", "tokens/s", tokens / step_time / world_size, basis=basis)


def _time(values: Mapping[str, float], observation: Observation, origin: str) -> Iterator[Metric]:
    """The time of a step or call where the file prints a rate only."""
    time_s = observation.seconds[0][0]
    if any(key.startswith("algbw") for key in values):
        if not any(key.startswith("latency") for key in values):
            yield Metric("latency", "s", time_s, basis=f"size_bytes over algbw, {origin}: it prints no time")
    elif any(key.startswith("tokens_per_s") for key in values) and "step_time" not in values:
        yield Metric("step_time", "s", time_s, basis=f"tokens of a step over tokens/s, {origin}: it prints no time")


def _mfu(
    values: Mapping[str, float], model: ImportedModel, seq_len: int, world_size: int, origin: str
) -> Iterator[Metric]:
    """MFU from the imported throughput, and what the imported MFU is of it."""
    per_rank = values.get("tokens_per_s_per_rank", values.get("tokens_per_s", 0.0) / world_size)
    per_token = flops_per_token(
        model.num_parameters,
        model.embedding_parameters,
        int(model.num_layers),
        int(model.attention_width),
        seq_len,
        model.convention,
    )
    mfu = per_rank * per_token / model.peak_flops_per_s
    detail = {"flops_convention": model.convention, "peak": "datasheet", "source": "recomputed"}
    basis = f"throughput, {origin}, times {CONVENTIONS[model.convention]}; peak: {model.peak_source}"
    yield Metric("mfu", "fraction", mfu, detail=detail, basis=basis)
    if imported := values.get("mfu[source=imported]"):
        yield Metric("mfu_over_recomputed", "1", imported / mfu, basis=f"mfu as {origin}, over mfu recomputed")
