"""Benchmarks that exist in tests only: whatever a test wants said, said by a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterbench.benchmarks import Benchmark
from clusterbench.cluster import Cluster
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.planning import make_plan
from clusterbench.suite import Suite, load_suite
from clusterbench.types import Case, Expected, Metric, Observation, Place, Plan, Point, Step


@dataclass(frozen=True, kw_only=True)
class Ping(Benchmark):
    """One message of each size, between all ranks."""

    min_size: int = option(8, "smallest message", unit="B", minimum=1, maximum=2**40)
    max_size: int = option(64, "largest message", unit="B", minimum=1, maximum=2**40)
    dtype: str = option("float32", "element type", choices=("float32", "bfloat16"))

    def points(self, place: Place) -> Iterable[Point]:
        size_bytes = self.min_size
        while size_bytes <= self.max_size:
            yield {"size_bytes": size_bytes, "dtype": self.dtype}
            size_bytes *= 8

    def label(self, point: Point) -> str:
        return f"{point['size_bytes']}B"

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        return {"latency": Expected(1e-6 * place.world_size, "s", "one microsecond a rank")}

    @classmethod
    def prepare(cls, rig: Any, point: Point) -> Step:
        raise NotImplementedError

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Train(Ping):
    """A step on layouts; needs 32 heads to divide evenly."""

    layouts: tuple[str, ...] = option(help="parallel layouts")
    seq_len: int = option(512, "tokens of a sequence", minimum=1, maximum=2**20)
    schedule: str = option("1f1b", "order of the pipeline", choices=("1f1b", "gpipe"))

    refused_options = {"dropout": "results could not be compared with those of one rank."}  # noqa: RUF012

    def ineffective(self, given: Iterable[str], place: Place) -> Iterable[tuple[str, str]]:
        if "schedule" in given and not any("pp" in layout for layout in self.layouts):
            yield "schedule", "no layout has pp"

    def points(self, place: Place) -> Iterable[Point]:
        for layout in self.layouts:
            yield {"layout": str(ParallelLayout.fitting(layout, place.world_size)), "seq_len": self.seq_len}

    def label(self, point: Point) -> str:
        return str(point["layout"])

    def layout(self, point: Point) -> str:
        return str(point["layout"])

    def world_size(self, point: Point, place: Place) -> int:
        return ParallelLayout.parse(self.layout(point)).world_size

    def objection(self, point: Point, place: Place) -> str | None:
        layout = ParallelLayout.parse(self.layout(point))
        if 32 % layout.tp:
            return f"layout '{layout}': 32 heads are not divisible by tp {layout.tp}."
        if layout.sp and self.seq_len % layout.tp:
            return f"layout '{layout}': seq_len {self.seq_len} is not divisible by tp {layout.tp}."
        return None


KNOWN: Mapping[str, type[Benchmark]] = {"ping": Ping, "train": Train}

HEAD = "suite: s\nbenchmarks:\n"


def suite_of(folder: Path, text: str, known: Mapping[str, type[Benchmark]] = KNOWN) -> Suite:
    """The suite ``s.yaml`` with this text; paths in messages are those of ``folder``."""
    path = folder / "s.yaml"
    path.write_text(text)
    return load_suite(path, known)


def plan_of(folder: Path, text: str, num_nodes: int = 1, ranks_per_node: int = 8, device: Any = "cuda") -> Plan:
    return make_plan(suite_of(folder, text), Cluster(num_nodes, ranks_per_node, device))
