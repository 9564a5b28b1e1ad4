"""Whole runs of the acceptance suite, simulated: of healthy machines no part is suspect, of a slow one that part.

What a machine's parts differ by from each other, from iteration to iteration and from repeat to repeat is drawn; speeds
are those that are published. A diagnosis that is right in 99 of 100 cases is wrong in most runs, which have 150.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from clusterbench import derive
from clusterbench.benchmarks import benchmarks, link_matrix
from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.diagnoses import Finding, examine
from clusterbench.floors import is_meant
from clusterbench.formulas.slow_pairs import attribute, second_pass
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import SAMPLES, Case, Observation, Place, Plan
from tests.report.synthetic import outcome
from tests.test_shipped_floors import speed

ALONE = {"matmul", "device_copy", "host_copy", "kernel_launch", "cpu_memory"}
"""In which ranks do not wait for each other."""
TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "link_matrix"}
SUITES = Path(__file__).parents[1] / "suites"
HOSTS, GPUS, REPEATS, ITERATIONS = ("h0", "h1", "h2", "h3"), 8, 3, 20


@cache
def planned(name: str) -> Plan:
    suite = load_suite(SUITES / f"{name}.yaml")
    plan = make_plan(suite, Cluster(len(HOSTS), GPUS, "cuda", "NVIDIA H100 80GB HBM3", hosts=HOSTS))
    cases = tuple(replace(case, repeats=REPEATS) for case in plan.cases if case.benchmark in ALONE | TOGETHER)
    return replace(plan, repeats=REPEATS, for_s=0.0, cases=cases, refusals=())


@cache
def usual_s(name: str) -> Mapping[str, float]:
    """Seconds of an iteration of each case, by its hash."""
    return {case.hash: _usual_s(case, Place(planned(name).cluster, case.num_nodes)) for case in planned(name).cases}


def _usual_s(case: Case, place: Place) -> float:
    """At the published speed; where none is published, 20 ms."""
    value = speed(case, place) if case.floors else None
    if value is None:
        return 0.02
    record = Observation(case.id, case.hash, 0, 1, HOSTS[: case.num_nodes], [[1.0] * 20] * case.world_size)
    in_a_second = [
        figure.value
        for figure in benchmarks()[case.benchmark].derive(case, record, place)
        if is_meant(case.floors[0].metric, figure.key) and figure.value
    ]
    return in_a_second[0] / value if in_a_second else 0.02


@dataclass(frozen=True)
class Machine:
    """How far alike things are apart, as standard deviations of logarithms, and what is slow.

    ``parts`` by nature, iterations by ``noise``, repeats by ``drift``; ``tails`` of all iterations take up to twice as
    long. ``slow`` is how many times longer a GPU takes for arithmetic, by host and its number there, ``slow_link`` so
    of what passes between two hosts.
    """

    seed: int
    parts: float = 0.02
    noise: float = 0.01
    drift: float = 0.005
    tails: float = 0.002
    slow: Mapping[tuple[str, int], float] | None = None
    slow_link: Mapping[frozenset[int], float] | None = None
    suite: str = "acceptance"

    def run(self, folder: Path) -> Reading:
        draw, plan = random.Random(self.seed), planned(self.suite)
        RunFolder.create(folder, b"suite: s\n", plan, {})
        by_nature: dict[tuple[str, str, int], float] = {}
        seen = []
        for repeat in range(REPEATS):
            for case in plan.cases:
                of_repeat = usual_s(self.suite)[case.hash] * math.exp(draw.gauss(0, self.drift))
                if case.benchmark in ALONE:
                    seconds = []
                    for rank in range(case.world_size):
                        place = HOSTS[rank // GPUS], rank % GPUS
                        nature = by_nature.setdefault((case.benchmark, *place), math.exp(draw.gauss(0, self.parts)))
                        if self.slow and case.benchmark == "matmul":
                            nature *= self.slow.get(place, 1.0)
                        seconds.append([of_repeat * nature * self._iteration(draw) for _ in range(ITERATIONS)])
                else:
                    shared = [of_repeat * self._iteration(draw) for _ in range(ITERATIONS)]
                    seconds = [[second * (1 + abs(draw.gauss(0, 0.002))) for second in shared]] * case.world_size
                passes = {SAMPLES: self._links(draw, case)} if case.benchmark == "link_matrix" else {}
                hosts = HOSTS[: case.num_nodes]
                seen.append(Observation(case.id, case.hash, repeat, 1, hosts, seconds, passes=passes))
        cases = {case.hash: case for case in plan.cases}
        ended = [replace(outcome(cases[record.hash]), repeat=record.repeat) for record in seen]
        for name, records in (("outcomes.jsonl", ended), ("observations.jsonl", seen)):
            lines = (json.dumps(record, default=vars) + "\n" for record in records)  # type: ignore[attr-defined]
            (folder / name).write_text("".join(lines))
        return derive.read(RunFolder.open(folder))

    def _iteration(self, draw: random.Random) -> float:
        return math.exp(draw.gauss(0, self.noise)) * (1 + (draw.random() if draw.random() < self.tails else 0.0))

    def _links(self, draw: random.Random, case: Case) -> list[dict[str, list[float]]]:
        """What each rank has of the pass: all pairs at 40 GB/s, then the suspects again."""
        point = case.point
        usual = link_matrix._bytes_each_way(point) / 40e9
        ranks_per_unit = GPUS if point["between"] == "nodes" else 1

        def measured(rounds: list[link_matrix.Round]) -> dict[link_matrix.Pair, dict[str, list[float]]]:
            samples = {}
            for a, b in (pair for pairs in rounds for pair in pairs):
                between = frozenset((a * ranks_per_unit // GPUS, b * ranks_per_unit // GPUS))
                link = usual * math.exp(draw.gauss(0, self.parts)) * (self.slow_link or {}).get(between, 1.0)
                samples[a, b] = {
                    name: [link * times * self._iteration(draw) for _ in range(int(point["pair_iterations"]))]
                    for name, times in (("forth", 1.0), ("back", 1.0), ("latency", 1e-3), ("both", 1.2))
                }
            return samples

        first = measured(link_matrix._schedule(point))
        rates = {cell: sorted(of_cell)[len(of_cell) // 2] for cell, of_cell in link_matrix._rates(first, point).items()}
        rails = link_matrix._rails(point)
        suspected = attribute(rates, host_of=link_matrix._hosts(point), rail_of=rails)
        again = measured(second_pass(suspected, rates, rail_of=rails))
        ranks: list[dict[str, list[float]]] = [{} for _ in range(case.world_size)]
        for (source, _), figures in link_matrix._figures(first, again, point).items():
            ranks[source * ranks_per_unit].update(figures)
        return ranks


def findings(machine: Machine, folder: Path) -> dict[str, tuple[Finding, ...]]:
    """What is found, but that iterations differ, which says nothing of the machine's parts."""
    return {
        name: answer.findings
        for name, answer in examine(machine.run(folder)).items()
        if answer.findings and name != "unstable"
    }


@pytest.mark.parametrize("parts", [0.01, 0.03])
def test_in_runs_of_healthy_machines_nothing_is_found(tmp_path: Path, parts: float) -> None:
    """Of 20 in which parts differ by 3 %, 6 had a straggler when each kind of work was judged by itself."""
    found = [findings(Machine(seed, parts), tmp_path / str(seed)) for seed in range(10)]
    assert found == [{}] * len(found)


@pytest.mark.parametrize("suite", ["acceptance", "fabric", "links"])
def test_all_ranks_of_an_acceptance_suite_are_judged(tmp_path: Path, suite: str) -> None:
    """What is not judged is not accepted: a collective along an axis was taken for a step without a record of each
    rank's own work, and 'links' let no rank work by itself, so that no healthy cluster ended with 0."""
    answer = examine(Machine(0, suite=suite).run(tmp_path))["straggler"]
    assert [part.sentence for part in answer.not_judged] == []
    assert answer.healthy
    assert "nccl_transport" in {item.benchmark for item in load_suite(SUITES / f"{suite}.yaml").items}


def test_a_gpu_that_is_slower_by_a_fifth_is_the_one_thing_that_is_found(tmp_path: Path) -> None:
    for seed in range(3):
        found = findings(Machine(seed, slow={("h2", 3): 1.2}), tmp_path / str(seed))
        assert [*found] == ["straggler"]
        assert {finding.where for finding in found["straggler"]} == {"rank 19 on h2"}


def test_a_link_that_carries_two_thirds_is_the_one_thing_that_is_found(tmp_path: Path) -> None:
    for seed in range(3):
        found = findings(Machine(seed, slow_link={frozenset((1, 3)): 1.5}), tmp_path / str(seed))
        assert [*found] == ["slow_link"]
        assert {finding.where for finding in found["slow_link"]} == {"h1 <-> h3"}
