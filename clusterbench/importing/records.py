"""The cases read from files of any kind, and the run's folder that is written from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

from clusterbench.benchmarks.imported import MODEL, Imported, ImportedModel
from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import LONGEST_S, SHORTEST_S
from clusterbench.run_folder.passes import as_json
from clusterbench.run_folder.records import line_of
from clusterbench.types import SAMPLES, Case, Observation, Outcome, Plan, Point, Status
from clusterbench.units import format_bytes

UNKNOWN_HOST = "unknown"
TEST = "test"
"""The option that says what a figure is of: a size says nothing without it."""


@dataclass(frozen=True)
class ImportedCase:
    """One case as a file has it.

    Attributes
    ----------
    where
        File and line, or for JSON the place in it.
    figures
        By metric key, in base units; several values are of several steps, and become their median with low and high.
    time_s
        The imported time, or what follows from a rate; None where the case has no figure.
    model
        What MFU is computed again from; None where the mapping does not ask for it.
    """

    where: str
    point: Point
    world_size: int
    num_nodes: int
    status: Status = "ok"
    reason: str = ""
    figures: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    time_s: float | None = None
    model: ImportedModel | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contents:
    """All cases of the files of one import, and what is known about where they come from."""

    name: str
    question: str
    source: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    ranks_per_node: int
    cases: Sequence[ImportedCase]
    text: bytes
    notes: tuple[str, ...] = ()


def write_import(path: Path, contents: Contents, files: Mapping[str, str]) -> RunFolder:
    """The folder of an ordinary run that holds ``made``; ``files`` are names and checksums, for environment.json.

    Raises
    ------
    SuiteError
        If two cases have the same configuration.
    RunFolderError
        If the folder is not empty or cannot be written.
    """
    cases = _cases(contents)
    hosts = tuple(dict.fromkeys(host for imported in contents.cases for host in imported.hosts))
    num_nodes = max(imported.num_nodes for imported in contents.cases)
    cluster = Cluster(num_nodes, contents.ranks_per_node, contents.device, contents.gpu, None, hosts)
    plan = Plan(contents.name, contents.question, cluster, 1, tuple(cases), ())
    environment = {
        "imported": {"source": contents.source or "not said", "files": dict(files), "notes": list(contents.notes)}
    }
    records = list(_records(contents.cases, cases))  # before the folder is made: a mistake leaves nothing behind
    run = RunFolder.create(path, contents.text, plan, environment)
    # In one go: a file can be imported again, so nothing here needs a sync of the disk for every case.
    run.write(
        "observations.jsonl", "".join(line_of(observation) for observation, _ in records if observation is not None)
    )
    run.write("outcomes.jsonl", "".join(line_of(outcome) for _, outcome in records))
    return run


def _cases(contents: Contents) -> list[Case]:
    cases: list[Case] = []
    first: dict[str, str] = {}
    for imported, label in zip(contents.cases, _labels(contents.cases), strict=True):
        case = Case(
            id=f"imported/{imported.num_nodes}n{imported.world_size}/{label}",
            benchmark="imported",
            version=Imported.version,
            point=imported.point,
            device=contents.device,
            num_nodes=imported.num_nodes,
            world_size=imported.world_size,
            iterations=1,
            warmup=0,
            time_limit_s=60.0,
            layout=imported.point.get("layout"),
            # What failed in the source is no failure of the import.
            expected_outcomes=() if imported.status in ("ok", "skipped") else (imported.status,),
            source=imported.where,
        )
        if case.hash in first:
            raise SuiteError(
                f"{imported.where}: this is the same configuration as {first[case.hash]}: "
                f"{_point_in_words(imported.point)}.\n"
                "hint: 'attempts: true' in the mapping keeps both as attempts; or name under 'keep' the column in "
                "which they differ"
            )
        first[case.hash] = imported.where
        cases.append(case)
    return cases


def _labels(imports: Sequence[ImportedCase]) -> Iterator[str]:
    """What was tested and the values in which each case differs from the others, as one short text.

    Equal texts are numbered.
    """
    values: dict[str, set[object]] = {}
    for imported in imports:
        for name, value in imported.point.items():
            values.setdefault(name, set()).add(value)
    named = [name for name in values if name == TEST or len(values[name]) > 1] or list(values)[:1]
    counts: Counter[str] = Counter()
    for imported in imports:
        differing = {name: value for name, value in imported.point.items() if name in named and value not in (None, "")}
        if differing.get("attempt") == 1:
            del differing["attempt"]
        parts = [_word(name, value) for name, value in differing.items()]
        label = re.sub(r"[\s/]+", "_", "-".join(parts)) or "case"
        place = f"{imported.num_nodes}n{imported.world_size}/{label}"
        counts[place] += 1
        yield label if counts[place] == 1 else f"{label}-{counts[place]}"


_SHORT = {
    "micro_batch_size": "mbs",
    "gradient_accumulation_steps": "acc",
    "global_batch_size": "gbs",
    "seq_len": "seq",
}


def _word(name: str, value: object) -> str:
    if name == "size_bytes" and isinstance(value, int):
        text = format_bytes(value)
        return f"{value}B" if "." in text else text  # rounded, two sizes may look alike
    return str(value) if isinstance(value, str) else f"{_SHORT.get(name, name)}{value}"


def _point_in_words(point: Point) -> str:
    return ", ".join(f"{key} {value}" for key, value in point.items())


def _records(imports: Iterable[ImportedCase], cases: Iterable[Case]) -> Iterator[tuple[Observation | None, Outcome]]:
    for imported, case in zip(imports, cases, strict=True):
        outcome = Outcome(case.id, case.hash, 1, 1, imported.status, reason=imported.reason)
        yield (_observation(imported, case) if imported.status == "ok" else None), outcome


def _observation(imported: ImportedCase, case: Case) -> Observation:
    if imported.time_s is None or not SHORTEST_S <= imported.time_s <= LONGEST_S:
        raise SuiteError(
            f"{imported.where}: the time of the case is {imported.time_s} s; possible are {SHORTEST_S:g} to "
            f"{LONGEST_S:g} s.\n"
            "hint: look at the units in the mapping"
        )
    other_ranks: list[dict[str, Any]] = [{}] * (case.world_size - 1)
    passes: dict[str, Sequence[Any]] = {
        SAMPLES: [{key: _samples(value) for key, value in imported.figures.items()}, *other_ranks]
    }
    if imported.model:
        passes[MODEL.name] = [as_json(imported.model), *other_ranks]
    seconds = [[imported.time_s]] * case.world_size
    return Observation(case.id, case.hash, 1, 1, imported.hosts or (UNKNOWN_HOST,), seconds, passes=passes)


def _samples(value: float | Sequence[float]) -> list[float]:
    return [*value] if isinstance(value, Sequence) else [value]


def nodes(world_size: int, per_node: int) -> int:
    """Nodes that so many ranks fill, the last one perhaps in part.

    >>> nodes(8, 8), nodes(9, 8)
    (1, 2)
    """
    return ceil(world_size / per_node)
