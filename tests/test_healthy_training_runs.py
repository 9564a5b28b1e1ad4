"""Whole runs of the shipped training suites, simulated on 4 hosts of 8 H100: of healthy ones nothing is found.

Steps take what they are priced at, ranks hold, send and execute what the formulas have, and differ by nature; of a run
with a slow GPU that one is found, in every suite, whichever stage of a pipeline or group of experts it is in.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from clusterbench import derive
from clusterbench.benchmarks.train_step import formulas_of
from clusterbench.cluster import Cluster, find_accelerator
from clusterbench.derive.prices import PROFILE, card_of, priced_job
from clusterbench.diagnoses import Finding, examine
from clusterbench.expected.formulas import StepFormulas
from clusterbench.job.passes import AT_REST, EXECUTED, MEMORY, TRACE, TRAFFIC, Executed, Moved, TracedStep
from clusterbench.planning import make_plan
from clusterbench.pricing import price
from clusterbench.pricing.profiles import named_profile
from clusterbench.pricing.typical import typical_of
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.passes import OWN_SECONDS, as_json
from clusterbench.suite import load_suite
from clusterbench.types import Case, Observation, Outcome, Plan, split_key
from tests.report.synthetic import outcome

SUITES = ("tp_scale", "cp_scale", "ep_scale", "pp_schedules", "layouts_5d", "rank_order")
HOSTS, GPUS, REPEATS, STEPS, OWN_STEPS = ("h0", "h1", "h2", "h3"), 8, 2, 20, 10
H100 = "NVIDIA H100 80GB HBM3"
OF_COMPUTE = 0.6
"""Of a step, what a rank computes by itself."""


@dataclass(frozen=True)
class Healthy:
    """What each rank of a case leaves, and seconds of a step; None where it does not fit or has no price."""

    step_s: float
    own_shares: Sequence[float]
    passes: Mapping[str, Sequence[Any]]


@cache
def planned(suite: str) -> Plan:
    cluster = Cluster(len(HOSTS), GPUS, "cuda", H100, hosts=HOSTS)
    plan = make_plan(load_suite(Path(__file__).parents[1] / "suites" / f"{suite}.yaml"), cluster)
    cases = tuple(replace(case, repeats=REPEATS) for case in plan.cases if case.benchmark == "train_step")
    return replace(plan, repeats=REPEATS, cases=cases, refusals=())


@cache
def healthy(suite: str) -> Mapping[str, Healthy | None]:
    return {case.hash: _healthy(case, planned(suite).cluster) for case in planned(suite).cases}


def _healthy(case: Case, cluster: Cluster) -> Healthy | None:
    formulas, asked, profile = formulas_of(case), priced_job(case.point, case.device, cluster), named_profile(PROFILE)
    memory, card = _memory(case, formulas), find_accelerator(H100)
    assert card is not None
    assert card.memory_bytes
    too_much = max(rank["total"] for rank in memory) > card.memory_bytes
    if too_much or isinstance(asked, str) or profile.objection(asked):
        return None
    step_s = price(profile.work(asked), typical_of(card_of(cluster), gpus_per_node=GPUS)).step_s
    executed = [[Executed("aten::mm", *work, 1, flops) for work, flops in rank.items()] for rank in formulas.executed]
    flops = [sum(each.flops for each in rank) for rank in executed]
    traced = TracedStep(0.3 * step_s, 0.7 * step_s, 0.1 * step_s, overlap_fraction=2 / 3, step_s=1.1 * step_s)
    passes: dict[str, Sequence[Any]] = {
        MEMORY.name: memory,
        TRAFFIC.name: [_sent(formulas, rank) for rank in range(case.world_size)],
        EXECUTED.name: executed,
        TRACE.name: [traced] * case.world_size,
    }
    return Healthy(step_s, [each / max(flops) for each in flops], passes)


def _memory(case: Case, formulas: StepFormulas) -> list[dict[str, int]]:
    """As planned, on the ranks of each stage what it holds."""
    named = [(*split_key(key), int(value.value)) for key, value in case.expected.items()]
    planned = {detail["category"]: size for metric, detail, size in named if metric == "peak_memory"}
    planned |= {detail["category"] + AT_REST: size for metric, detail, size in named if metric == "memory_at_rest"}
    planned.setdefault("total", sum(size for category, size in planned.items() if AT_REST not in category))
    if not formulas.job.layout.uses("pp"):
        return [planned] * case.world_size
    of_stages = [{category: int(size) for category, size in held.items()} for held in formulas.held]
    return [planned | of_stages[stage] for stage, _ in formulas.places]


def _sent(formulas: StepFormulas, rank: int) -> list[Moved]:
    """Each axis' bytes in its first kind of collective: what is compared is their sum, and how many there are."""
    stage, sent = formulas.places[rank][0], []
    left = {axis: size - formulas.less_sent[rank].get(axis, 0.0) for axis, size in formulas.sent[stage].items()}
    for (axis, op), count in formulas.calls[stage].items():
        size = left.pop(axis, 0.0)
        sent.append(Moved(axis, op, count, int(size), size))
    return sent


def findings(
    suite: str, folder: Path, seed: int, slow: Mapping[tuple[str, int], float] | None = None
) -> dict[str, tuple[Finding, ...]]:
    """Of a run in which GPUs differ by 2 %; ``slow`` is by how much one takes longer, by host and number there."""
    draw, plan = random.Random(seed), planned(suite)
    nature = {(host, gpu): math.exp(draw.gauss(0, 0.02)) for host in HOSTS for gpu in range(GPUS)}
    nature |= {place: nature[place] * times for place, times in (slow or {}).items()}
    records: list[tuple[Outcome, Observation | None]] = []
    for repeat in range(REPEATS):
        for case in plan.cases:
            known = healthy(suite)[case.hash]
            seen = None if known is None else _observed(draw, case, repeat, known, nature)
            records.append((replace(outcome(case, "ok" if seen else "out_of_memory"), repeat=repeat), seen))
    RunFolder.create(folder, b"suite: s\n", plan, {})
    for name, column in zip(("outcomes.jsonl", "observations.jsonl"), zip(*records, strict=True), strict=True):
        (folder / name).write_text("".join(json.dumps(as_json(each)) + "\n" for each in column if each))
    answers = examine(derive.read(RunFolder.open(folder)))
    return {name: answer.findings for name, answer in answers.items() if answer.findings and name != "unstable"}


def _observed(
    draw: random.Random, case: Case, repeat: int, known: Healthy, nature: Mapping[tuple[str, int], float]
) -> Observation:
    times = [nature[HOSTS[rank // GPUS], rank % GPUS] for rank in range(case.world_size)]
    compute_s = OF_COMPUTE * known.step_s
    step_s = (known.step_s - compute_s + compute_s * max(times)) * math.exp(draw.gauss(0, 0.005))
    steps_s = [step_s * math.exp(draw.gauss(0, 0.01)) for _ in range(STEPS)]
    seconds = [[each * (1 + abs(draw.gauss(0, 0.001))) for each in steps_s] for _ in times]
    own_s = [
        [compute_s * time * share * math.exp(draw.gauss(0, 0.005)) for _ in range(OWN_STEPS)]
        for time, share in zip(times, known.own_shares, strict=True)
    ]
    own = {OWN_SECONDS.name: own_s} if case.world_size > 1 else {}
    hosts = HOSTS[: case.num_nodes]
    return Observation(case.id, case.hash, repeat, 1, hosts, seconds, passes={**known.passes, **own})


@pytest.mark.parametrize("suite", SUITES)
def test_in_runs_of_healthy_machines_nothing_is_found(tmp_path: Path, suite: str) -> None:
    found = [findings(suite, tmp_path / str(seed), seed) for seed in range(3)]
    assert found == [{}] * len(found)
    assert sum(known is not None for known in healthy(suite).values()) >= 10  # of what cases there is something to say


@pytest.mark.parametrize("suite", SUITES)
def test_a_gpu_that_is_slower_by_a_fifth_is_the_one_thing_that_is_found(tmp_path: Path, suite: str) -> None:
    found = findings(suite, tmp_path / "run", 1, slow={("h0", 3): 1.2})
    assert [*found] == ["straggler"]
    assert {finding.where for finding in found["straggler"]} == {"rank 3 on h0"}
