"""What every kind of file is turned into, and how that becomes a run's folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

from clusterbench.benchmarks.imported import MODEL, Imported
from clusterbench.cluster import Cluster
from clusterbench.errors import SuiteError
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import LONGEST_S, SHORTEST_S
from clusterbench.types import SAMPLES, Case, Observation, Outcome, Plan, Point, Status
from clusterbench.units import format_bytes

UNKNOWN_HOST = "unknown"


@dataclass(frozen=True)
class Found:
    """One case as a file tells it.

    Attributes
    ----------
    where
        File and line, or for JSON the place in it.
    figures
        By metric key, in base units.
    time_s
        The imported time, or what follows from a rate; None where the case has no figure.
    model
        What MFU is computed again from; empty where the mapping does not ask for it.
    """

    where: str
    point: Point
    world_size: int
    num_nodes: int
    status: Status = "ok"
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    time_s: float | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Import:
    """All cases of the files of one import, and what is known about where they come from."""

    name: str
    question: str
    source: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    ranks_per_node: int
    found: Sequence[Found]
    text: bytes
    notes: tuple[str, ...] = ()


def write_import(path: Path, made: Import, files: Mapping[str, str]) -> RunFolder:
    """The folder of an ordinary run that holds ``made``; ``files`` are names and checksums, for environment.json.

    Raises
    ------
    SuiteError
        If two cases cannot be told apart.
    RunFolderError
        If the folder is not empty or cannot be written.
    """
    cases = _cases(made)
    hosts = tuple(dict.fromkeys(host for one in made.found for host in one.hosts))
    num_nodes = max(one.num_nodes for one in made.found)
    cluster = Cluster(num_nodes, made.ranks_per_node, made.device, made.gpu, None, hosts)
    plan = Plan(made.name, made.question, cluster, 1, tuple(cases), ())
    environment = {"imported": {"source": made.source or "not said", "files": dict(files), "notes": list(made.notes)}}
    records = list(_records(made.found, cases))  # before the folder is made: a mistake leaves nothing behind
    run = RunFolder.create(path, made.text, plan, environment)
    # In one go: a file can be imported again, so nothing here needs a sync of the disk for every case.
    run.write("observations.jsonl", "".join(_line(seen) for seen, _ in records if seen is not None))
    run.write("outcomes.jsonl", "".join(_line(ended) for _, ended in records))
    return run


def _cases(made: Import) -> list[Case]:
    cases: list[Case] = []
    first: dict[str, str] = {}
    for one, label in zip(made.found, _labels(made.found), strict=True):
        case = Case(
            id=f"imported/{one.num_nodes}n{one.world_size}/{label}",
            benchmark="imported",
            version=Imported.version,
            point=one.point,
            device=made.device,
            num_nodes=one.num_nodes,
            world_size=one.world_size,
            iterations=1,
            warmup=0,
            time_limit_s=60.0,
            layout=one.point.get("layout"),
            # What failed in the source is no failure of the import.
            expected_outcomes=() if one.status in ("ok", "skipped") else (one.status,),
            source=one.where,
        )
        if case.hash in first:
            raise SuiteError(
                f"{one.where}: this is the same configuration as {first[case.hash]}: {_told(one.point)}.\n"
                "hint: 'attempts: true' in the mapping keeps both as attempts; or name under 'keep' the column that "
                "tells them apart"
            )
        first[case.hash] = one.where
        cases.append(case)
    return cases


def _labels(found: Sequence[Found]) -> Iterator[str]:
    """What tells each case from the others, in few words; equal ones are numbered."""
    values: dict[str, set[object]] = {}
    for one in found:
        for name, value in one.point.items():
            values.setdefault(name, set()).add(value)
    named = [name for name in values if len(values[name]) > 1] or list(values)[:1]
    seen: Counter[str] = Counter()
    for one in found:
        said = {name: value for name, value in one.point.items() if name in named and value not in (None, "")}
        if said.get("attempt") == 1:
            del said["attempt"]
        parts = [_word(name, value) for name, value in said.items()]
        label = re.sub(r"[\s/]+", "_", "-".join(parts)) or "case"
        place = f"{one.num_nodes}n{one.world_size}/{label}"
        seen[place] += 1
        yield label if seen[place] == 1 else f"{label}-{seen[place]}"


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


def _told(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _records(found: Iterable[Found], cases: Iterable[Case]) -> Iterator[tuple[Observation | None, Outcome]]:
    for one, case in zip(found, cases, strict=True):
        outcome = Outcome(case.id, case.hash, 1, 1, one.status, reason=one.reason)
        yield (_observation(one, case) if one.status == "ok" else None), outcome


def _observation(one: Found, case: Case) -> Observation:
    if one.time_s is None or not SHORTEST_S <= one.time_s <= LONGEST_S:
        raise SuiteError(
            f"{one.where}: the time of the case is {one.time_s} s; possible are {SHORTEST_S:g} to {LONGEST_S:g} s.\n"
            "hint: look at the units in the mapping"
        )
    others: list[dict[str, Any]] = [{}] * (case.world_size - 1)
    passes: dict[str, Sequence[Any]] = {SAMPLES: [{key: [value] for key, value in one.figures.items()}, *others]}
    if one.model:
        passes[MODEL] = [dict(one.model), *others]
    seconds = [[one.time_s]] * case.world_size
    return Observation(case.id, case.hash, 1, 1, one.hosts or (UNKNOWN_HOST,), seconds, passes=passes)


def _line(record: object) -> str:
    return json.dumps(record, default=vars, separators=(",", ":")) + "\n"


def nodes(world_size: int, per_node: int) -> int:
    """Nodes that so many ranks fill, the last one perhaps in part.

    >>> nodes(8, 8), nodes(9, 8)
    (1, 2)
    """
    return ceil(world_size / per_node)
