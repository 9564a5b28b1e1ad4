"""A run held against a baseline: samples of several runs of the same machine, whose own differences count as noise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from clusterbench.baseline import Baseline, MachineBaseline
from clusterbench.baseline.file import read_baseline
from clusterbench.cases import Reading
from clusterbench.cluster import have_other_peaks
from clusterbench.compare import (
    Comparing,
    comparable,
    differences_of,
    left_out_alone,
    left_out_repeats,
    left_out_shares,
)
from clusterbench.compare.figures import figures_against
from clusterbench.derive import read
from clusterbench.derive.baseline import left_out
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import Fingerprint, fingerprint_of
from clusterbench.measured.speed import LONE_RANK
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import FAULTS, History
from clusterbench.types import metric_key
from clusterbench.words import few, plural


def compare_with_baseline(
    file: Path, new: Path, accepted: Collection[str] = (), margin: float = 0.05, has_fewer_cases: bool = False
) -> Comparing:
    """Compares all cases that a run has and its machine's baseline has, too.

    Raises
    ------
    SuiteError
        If the file is damaged or of another machine, or has no case of the run.
    """
    return hold_against(read_baseline(file), read(RunFolder.open(new)), str(new), accepted, margin, has_fewer_cases)


def hold_against(
    baseline: Baseline,
    after: Reading,
    new: str,
    accepted: Collection[str] = (),
    margin: float = 0.05,
    has_fewer_cases: bool = False,
) -> Comparing:
    """The same of a baseline and a run that were read already."""
    here = fingerprint_of(after.environment)
    of = baseline.of(here, accepted)
    cases = comparable(after)
    common = [hash for hash in of.cases if hash in cases]
    if not common:
        raise SuiteError(
            f"{baseline.name} has no case of {new}, so there is nothing to compare.\nhint: a case is the same with the "
            "same options, ranks and nodes; 'clusterbench baseline' records those of this run"
        )
    has_other_peak = have_other_peaks(of.machine.gpu, here.gpu)
    compared = {
        hash: figures_against(of.figures[hash], len(of.runs), cases[hash], after.plan.cluster, has_other_peak)
        for hash in common
    }
    differences, whole = differences_of([found.figures for found in compared.values()])
    # those of several cases, such as scaling efficiency, no repeat has by itself
    in_rows = {(row.case, metric_key(row.metric, **row.detail)) for row in after.rows if row.value is not None}
    lacking = [
        f"{key} of {cases[hash].case.id}"
        for hash, found in compared.items()
        for key in found.lacking
        if (cases[hash].case.id, key) not in in_rows
    ]
    alone = {hash for hash, id in of.cases.items() if id.startswith(f"{LONE_RANK}/")}
    only_base = tuple(id for hash, id in of.cases.items() if hash not in cases and hash not in alone)
    unwell = [cases[hash] for hash in common if cases[hash].status != "ok"]
    return Comparing(
        base=baseline.name,
        new=new,
        margin=margin,
        differences=tuple(differences),
        whole=whole,
        ended_otherwise=tuple(f"{history.case.id}: ok in the baseline, then {history.status}" for history in unwell),
        broken=tuple(cases[hash].case.id for hash in common if cases[hash].status in FAULTS or cases[hash].faults),
        untold=tuple(history.case.id for history in unwell if history.status not in FAULTS),
        void=tuple(cases[hash].case.id for hash, found in compared.items() if found.is_void),
        only_base=only_base,
        only_new=tuple(history.case.id for hash, history in cases.items() if hash not in of.cases),
        gone=() if has_fewer_cases else only_base,
        unproven=tuple(_unproven_now(of, after, [cases[hash] for hash in common if cases[hash].observations])),
        environment=tuple(_machine_differences(of.machine, here)),
        cautions=(
            *_cautions(of, after, here, lacking),
            *left_out_shares(compared.values()),
            *left_out_repeats("new", [cases[hash] for hash in common]),
            *left_out_alone(max(len(alone), len(after.lone_ranks))),
        ),
    )


def _unproven_now(of: MachineBaseline, after: Reading, measured: Sequence[History]) -> Iterator[str]:
    """Training cases that were checked where the baseline is from, and are not proven in the run, each with why."""
    for case in (history.case for history in measured):
        if case.id in after.unproven and any(key.startswith("parity_") for key in of.figures[case.hash]):
            yield f"{case.id} ({after.unproven[case.id]})"


def _machine_differences(recorded: Fingerprint, here: Fingerprint) -> Iterator[str]:
    for name in recorded.unlike(here):
        yield f"{name} is {getattr(here, name)} in new and {getattr(recorded, name)} in base, which was accepted"


def _cautions(of: MachineBaseline, after: Reading, here: Fingerprint, lacking: Collection[str]) -> Iterator[str]:
    yield f"the baseline is of {plural(len(of.runs), 'run')} on {plural(len(of.hosts), 'host')}: {few(of.runs)}"
    if unknown := of.machine.not_compared(here):
        yield f"not compared of the machines, as one does not say it: {', '.join(unknown)}"
    if shaky := [f"{case} ({why})" for case, why in left_out(after).items() if why in ("unsteady", "not settled")]:
        yield f"figures of new that would enter no baseline: {few(shaky)}"
    if lacking:
        yield f"figures that one of them lacks: {few(lacking)}"
