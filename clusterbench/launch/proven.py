"""What was proven in this run on the same ranks, so that repeats and sweeps need not prove it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterbench.benchmarks import benchmarks
from clusterbench.types import PROOF_TIME, Case, Observation

Evidence = Sequence[Mapping[str, float]]


class Proven:
    """Evidence by key: what the benchmark says the check depends on, the ranks, and their variables.

    It lives as long as the processes of a run: after them neither hosts nor versions need be the same.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Evidence]] = {}

    def is_known(self, case: Case) -> bool:
        return key_of(case) in self._known

    def complete(self, case: Case, observation: Observation, proof: Evidence) -> Observation:
        """The same with its key, and with what an earlier case's check proved where it was not checked itself.

        ``proof`` is what its own check proved. What was seen of timed steps holds for those steps alone.
        """
        key = key_of(case)
        if not key:
            return observation
        if key not in self._known:
            self._known[key] = f"{case.id}, repeat {observation.repeat}", proof
            return replace(observation, proof=key)
        proven_by, evidence = self._known[key]
        both = [
            {**before, **({PROOF_TIME: 0.0} if PROOF_TIME in before else {}), **own}
            for before, own in zip(evidence, observation.evidence, strict=True)
        ]
        return replace(observation, evidence=both, proof=key, proven_by=proven_by)


class OnOneRank:
    """What was computed on one rank in this run, so that other cases which show the same need not be."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def is_missing(self, case: Case) -> bool:
        """Whether a case should be computed on one rank, too, as none that shows the same was."""
        return _one_rank_key(case) not in ("", *self._known)

    def saw(self, case: Case) -> None:
        """Of a case that is over."""
        self._known.add(_one_rank_key(case))


def _one_rank_key(case: Case) -> str:
    kind = benchmarks().get(case.benchmark)
    return kind.one_rank_key(case) if kind else ""


def key_of(case: Case) -> str:
    """What the evidence of a case holds for, in 16 characters; empty where each case is checked itself."""
    kind = benchmarks().get(case.benchmark)
    key = kind.proof_key(case.point, case.device) if kind else None
    if kind is None or key is None:
        return ""
    ranks = case.device, case.num_nodes, case.world_size, dict(case.environment)
    text = json.dumps([case.benchmark, kind.version, key, ranks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
