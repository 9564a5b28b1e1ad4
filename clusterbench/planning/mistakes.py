"""Suites that are refused as a whole: what is in them cannot have been meant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from clusterbench.errors import SuiteError
from clusterbench.planning.requests import MOST_CASES, Request, combinations, requests_of, sentence
from clusterbench.suite import Item, Suite, Written
from clusterbench.types import Case, Place, Refusal

ROOMY_NODES, ROOMY_RANKS = 8, 16
"""A cluster with room for every case that is possible at all."""


def too_many(suite: Suite, item: Item, number: str) -> SuiteError:
    return suite.mistake(
        item.line, f"with benchmark '{item.benchmark}' the suite asks for {number} cases; {MOST_CASES} are the most."
    )


def expect_reasonable(suite: Suite, item: Item, num_places: int, room: int) -> None:
    """Counts combinations before any is made: a few lines of YAML can ask for more than there is memory."""
    axes = [setting for setting in (*item.settings.values(), *item.environment.values()) if not setting.is_list]
    number = num_places * prod(len(setting.values) for setting in axes)
    if number > room:
        raise too_many(suite, item, f"{MOST_CASES - room + number} or more")


def expect_sound_values(suite: Suite, item: Item, requests: Sequence[Request]) -> None:
    """A value that is objected to in every combination, here and elsewhere for one reason, was a mistake to write.

    One that is objected to here only, because nodes or ranks are few or the card lacks something, is refused. So is one
    that a cluster with more room objects to for a reason of its own, such as a batch that is too small for its ranks.
    """
    hopeless = _hopeless_values(requests)
    if hopeless:
        here = requests[0].place.cluster
        cluster = replace(here, num_nodes=ROOMY_NODES, ranks_per_node=ROOMY_RANKS, hosts=(), gpu_name=None)
        elsewhere = _hopeless_values(list(requests_of(suite, item, [Place(cluster, ROOMY_NODES)])))
        for written, reasons in hopeless.items():
            for reason in reasons:
                if reason in elsewhere.get(written, ()):
                    raise suite.mistake(written.line, reason)


def _hopeless_values(requests: Sequence[Request]) -> dict[Written, tuple[str, ...]]:
    """Values of which nothing can be at these places, each with every objection once."""
    objections: dict[Written, list[str]] = defaultdict(list)
    for request in requests:
        for written in request.by:
            objections[written].append(request.objection)
    return {written: tuple(dict.fromkeys(reasons)) for written, reasons in objections.items() if all(reasons)}


def expect_effect(suite: Suite, item: Item, places: Sequence[Place]) -> None:
    """An option that changes nothing, whatever is combined with it, was a mistake to write."""
    without_effect = [
        dict(item.kind.from_options(values).ineffective(item.own_settings, place))
        for place in places
        for values, _ in combinations(item.settings)
    ]
    for name in without_effect[0]:
        if name in item.settings and all(name in reasons for reasons in without_effect):
            why = sentence(without_effect[0][name])
            what = f"benchmark '{item.benchmark}': option '{name}' has no effect: {why}"
            raise suite.mistake(item.settings[name].line, what)


def expect_something(planned: Sequence[Case | Refusal]) -> None:
    """A suite of which nothing runs here is a mistake; where something does, the rest is refused and listed."""
    first = planned[0] if planned else None
    if isinstance(first, Refusal) and not any(isinstance(answer, Case) for answer in planned):
        layout = str(first.point.get("layout", ""))
        subject = "" if layout in first.reason else f"layout '{layout}': "
        raise SuiteError(f"{first.source}: {subject}{first.reason}" + (f"\nhint: {first.hint}" if first.hint else ""))


def expect_unique(cases: Iterable[Case]) -> None:
    first: dict[str, Case] = {}
    for case in cases:
        before = first.setdefault(case.hash, case)
        if before is not case:
            raise SuiteError(f"{case.source}: {case.id} is asked for twice, first at {before.source}.")
