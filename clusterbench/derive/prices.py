"""The training cases of a plan priced by rates of the machine, where there is a file of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterbench.benchmarks.train_step import job_of
from clusterbench.cases.prices import PricedCase, Prices
from clusterbench.cluster import Cluster, accelerators, find_accelerator
from clusterbench.errors import SuiteError
from clusterbench.expected.fits import fit
from clusterbench.fingerprint import Fingerprint, fingerprint_of
from clusterbench.pricing import Price, price
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.profiles import PricedJob, Profile, named_profile
from clusterbench.pricing.rates import CPU, KnownRates
from clusterbench.pricing.rates_file import given_names, rates_of
from clusterbench.pricing.typical import typical_of
from clusterbench.run_folder import RATES
from clusterbench.types import Plan, Point
from clusterbench.units import format_value

BENCHMARK = "train_step"
PROFILE = "ours"
"""The framework, and the trainer whose step it is where a case does not say."""


def prices_of(plan: Plan, environment: Mapping[str, Any], path: Path, accepted: Collection[str] = ()) -> Prices:
    """Every training case of a plan, priced by a file of rates.

    Parameters
    ----------
    environment
        Of the run, which says on what machine it was.
    accepted
        Fields in which the machine of the file may be another.

    Raises
    ------
    SuiteError
        If the file is mistaken, or of another machine or framework, or the card of the plan cannot be priced.
    """
    wanted = [case for case in plan.cases if case.benchmark == BENCHMARK]
    if not wanted:
        return Prices()
    card = card_of(plan.cluster)
    here = fingerprint_of(environment, max(case.version for case in wanted))
    typical = typical_of(card, given=given_names(path), gpus_per_node=plan.cluster.ranks_per_node)
    known = rates_of(path, typical, PROFILE, here, accepted, RATES)
    elsewhere = list(_elsewhere(known.machine, here))
    found: dict[str, PricedCase] = {}
    reasons: dict[str, str] = {}
    profile = named_profile(PROFILE)
    for case in wanted:
        priced = priced_job(case.point, case.device, plan.cluster)
        why = priced if isinstance(priced, str) else profile.objection(priced)
        if why is not None:
            reasons[case.id] = why
        else:
            assert isinstance(priced, PricedJob)
            found[case.id] = _priced(priced, profile, known, card, elsewhere)
    return Prices(found, reasons)


def card_of(cluster: Cluster) -> str:
    """The name of a run's card in the tables, or that of CPU ranks.

    Raises
    ------
    SuiteError
        If it is in none.
    """
    if cluster.device == CPU:
        return CPU
    card = find_accelerator(cluster.gpu_name or "")
    if card is None:
        raise SuiteError(f"the GPU {cluster.gpu_name!r} is in no table, so no step on it can be priced.")
    return card.name


def priced_job(point: Point, device: str, cluster: Cluster) -> PricedJob | str:
    """A training case as pricing takes it, or why it cannot be priced."""
    if (trainer := str(point.get("trainer", PROFILE))) != PROFILE:
        return f"it is a step of {trainer}"
    if cluster.ranks_per_gpu > 1:
        return "ranks share a GPU, so its time says nothing"
    options: dict[str, Any] = dict(point)
    job = job_of(point, device)
    return PricedJob(job, cluster.ranks_per_node, options=options, rank_order=str(point["rank_order"]))


def _elsewhere(there: Fingerprint, here: Fingerprint) -> Iterator[str]:
    """Why rates may not be of this machine, in words."""
    for name in there.unlike(here):
        yield f"they are of {name} {getattr(there, name)}, accepted though this is {getattr(here, name)}"
    known = [name for name in ("gpu", "cpu") if getattr(there, name) and getattr(here, name)]
    if not known:
        yield "neither gpu nor cpu of their machine is known on both sides, so they may be of another"


def _priced(
    priced: PricedJob, profile: Profile, known: KnownRates, card: str, elsewhere: Collection[str]
) -> PricedCase:
    of_step = price(profile.work(priced), known)
    held = profile.held(priced)
    of_card = accelerators().get(card)
    memory = of_card.memory_bytes if of_card is not None else None
    fits = fit(held, memory) if memory else None
    doubts = (
        *elsewhere,
        *(f"no price with {what} was ever held against a measurement" for what in not_validated(priced)),
    )
    basis = _basis(of_step, known, elsewhere)
    return PricedCase(of_step, basis, priced.job.tokens_per_step, held, fits, doubts)


def _basis(of_step: Price, known: KnownRates, elsewhere: Iterable[str]) -> str:
    origins = "; ".join(f"{origin}: {', '.join(names)}" for origin, names in known.words_by_origin.items())
    within = f"80 % within {format_value(of_step.low_s, 's')} to {format_value(of_step.high_s, 's')}"
    return "; ".join([f"priced by {RATES}, {known.name} ({origins})", within, *elsewhere])
