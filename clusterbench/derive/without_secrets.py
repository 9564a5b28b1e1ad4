"""A run as its report may show it: what somebody else, or an earlier version, wrote down of secrets is taken out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from clusterbench.run_folder.redaction import redacted, redacted_value
from clusterbench.types import Case, Outcome, Plan, Point, Refusal

_redacted = lru_cache(maxsize=2**14)(redacted)


def plan_without_secrets(plan: Plan) -> Plan:
    """The plan with values as they may be shown. Each case keeps its hash, by which its records are found."""
    return replace(plan, cases=tuple(map(_case, plan.cases)), refusals=tuple(map(_refusal, plan.refusals)))


def outcomes_without_secrets(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Outcomes with reasons as they may be shown: a reason quotes what programs printed, and how they were called."""
    for outcome in outcomes:
        clean = _redacted(outcome.reason) if outcome.reason else ""
        yield outcome if clean == outcome.reason else replace(outcome, reason=clean)


def environment_without_secrets(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """environment.json with each host's variables as they may be shown."""
    if not isinstance(hosts := environment.get("hosts"), dict):
        return environment
    return {**environment, "hosts": {name: _host(host) for name, host in hosts.items()}}


def _host(host: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(variables := host.get("variables"), dict):
        return host
    return {**host, "variables": {name: redacted_value(name, str(value)) for name, value in variables.items()}}


def _case(case: Case) -> Case:
    environment = {name: redacted_value(name, value) for name, value in case.environment.items()}
    point = _point(case.point)
    if environment == case.environment and point is case.point:
        return case
    clean = replace(case, environment=environment, point=point)
    clean.__dict__["hash"] = case.hash
    return clean


def _refusal(refusal: Refusal) -> Refusal:
    point, reason = _point(refusal.point), _redacted(refusal.reason)
    if point is refusal.point and reason == refusal.reason:
        return refusal
    return replace(refusal, point=point, reason=reason)


def _point(point: Point) -> Point:
    """The same object where nothing is taken out, as rows share it."""
    clean = {name: _redacted(value) for name, value in point.items() if isinstance(value, str)}
    return point if clean.items() <= point.items() else {**point, **clean}
