"""What runs come to as a baseline: a sample of every figure from each repeat, machine by machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterbench.baseline import Baseline, MachineBaseline
from clusterbench.baseline.file import baseline_text, read_baseline
from clusterbench.cases import Reading
from clusterbench.cases.steadiness import DRIFT, MEASURES
from clusterbench.derive import read
from clusterbench.derive.figures import repeat_metrics
from clusterbench.diagnoses import wrong_figures
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import UNKNOWN, Fingerprint, fingerprint_of
from clusterbench.recorded import ENOUGH, FEWEST, Recorded
from clusterbench.rows import Row
from clusterbench.run_folder import RunFolder, is_run
from clusterbench.run_folder.attempts import History
from clusterbench.types import metric_key
from clusterbench.words import few, plural

WRONG, UNSTEADY, UNSETTLED = "wrong", "unsteady", "not settled"
_REMEDIES = {
    UNSTEADY: "iterations of a case differ too much; more of them in the suite, or no other work on these hosts",
    UNSETTLED: "cases were timed before the clocks of their GPUs had settled; a longer warm-up in the suite",
}


@dataclass(frozen=True)
class _Sampled:
    """The figures of one run that enter, by hash of the case and by key."""

    reading: Reading
    machine: Fingerprint
    samples: dict[str, dict[str, Recorded]]


def unfit(reading: Reading) -> dict[str, str]:
    """Cases no figure of which is one of a healthy machine, by id, each with the reason.

    One repeat that failed or was wrong is enough: what the others came to may be of the same fault.
    """
    wrong = wrong_figures(reading)
    reasons = {history.case.id: _why_not(history, reading, wrong) for history in reading.histories}
    return {case: why for case, why in reasons.items() if why}


def _why_not(history: History, reading: Reading, wrong: Collection[str]) -> str:
    """Empty where nothing speaks against it."""
    if history.faults:
        return str(history.faults[0].status)
    if history.status != "ok":
        return history.status
    if history.case.id in wrong:
        return WRONG
    if history.case.id in reading.unsteady:
        return UNSTEADY
    return UNSETTLED if history.case.id in reading.unsettled else ""


def left_out(reading: Reading) -> dict[str, str]:
    """The cases of a run that were measured or failed, and enter no baseline, each with the reason."""
    ran = {history.case.id for history in reading.histories if history.observations or history.faults}
    return {case: why for case, why in unfit(reading).items() if case in ran}


def no_baseline(reading: Reading) -> str:
    """Why nothing of a run may enter a baseline, in words; empty where it may."""
    if reading.is_imported:
        return "its figures were imported, and do not say of which machine they are; it takes runs of a suite"
    if reading.is_dry:
        return "it is a dry run, which measures nothing; it takes runs on the machine"
    if reading.shares_gpus:
        return "several ranks shared each GPU, so that no time is that of a machine; it takes a rank a GPU"
    if not reading.ran_here:
        return "nothing of it ran on a machine"
    if fingerprint_of(reading.environment) == UNKNOWN:
        return "its environment.json describes no host, so that nothing says of which machine it is"
    return ""


def baseline_of(readings: Sequence[Reading], name: str) -> Baseline:
    """Runs as a baseline, those of one machine together, in the order in which they are given.

    ``train_step``'s version is no field of the machine here: it belongs to the identity of a case.

    Raises
    ------
    SuiteError
        If no figure enters, with what was left out.
    """
    sampled = [_sampled(reading) for reading in readings]
    by_machine: dict[Fingerprint, list[_Sampled]] = defaultdict(list)
    for each in sampled:
        if each.samples:
            by_machine[each.machine].append(each)
    if not by_machine:
        reasons = Counter(why for reading in readings for why in left_out(reading).values())
        words = ", ".join(f"{number} {why}" for why, number in reasons.items()) or "no case has a figure"
        hint = f"\nhint: {_REMEDIES[most]}" if reasons and (most := reasons.most_common(1)[0][0]) in _REMEDIES else ""
        raise SuiteError(f"{name}: no figure enters a baseline: {words}.{hint}")
    return Baseline(name, tuple(_of_machine(machine, runs) for machine, runs in by_machine.items()))


def baseline_at(path: Path) -> Baseline:
    """The baseline in a file, or what the run in a folder comes to.

    Raises
    ------
    ClusterbenchError
        If it is neither, is damaged, or has no figure that may enter.
    """
    if not is_run(path):
        return read_baseline(path)
    run = RunFolder.open(path)
    return baseline_of([read(run)], f"run {run.name}")


def _of_machine(machine: Fingerprint, runs: Sequence[_Sampled]) -> MachineBaseline:
    of_cases: dict[str, dict[str, list[Recorded]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for case, of_case in run.samples.items():
            for key, recorded in of_case.items():
                of_cases[case][key].append(recorded)
    figures = {case: {key: _joined(each) for key, each in of_case.items()} for case, of_case in of_cases.items()}
    histories = [history for run in runs for history in run.reading.histories]
    cases = {history.case.hash: history.case.id for history in histories if history.case.hash in figures}
    hosts = {host for history in histories for seen in history.observations for host in seen.hosts}
    names = dict.fromkeys(run.reading.run for run in runs)
    return MachineBaseline(machine, tuple(names), tuple(sorted(hosts)), cases, figures)


def _joined(of_runs: Sequence[Recorded]) -> Recorded:
    samples = tuple(sample for recorded in of_runs for sample in recorded.samples)
    ends = [end for recorded in of_runs for end in recorded.within or ()]
    within = (min(ends), max(ends)) if len(samples) < FEWEST else None
    by_run = tuple(len(recorded.samples) for recorded in of_runs)
    return Recorded(of_runs[0].unit, samples, within, few([recorded.source for recorded in of_runs]), by_run)


def _sampled(reading: Reading) -> _Sampled:
    samples: dict[str, dict[str, Recorded]] = {}
    without = unfit(reading)
    for history in reading.histories:
        if history.case.id not in without:
            figures = dict(_figures(reading, history))
            if figures:
                samples[history.case.hash] = figures
    return _Sampled(reading, fingerprint_of(reading.environment), samples)


def _figures(reading: Reading, history: History) -> Iterator[tuple[str, Recorded]]:
    """A sample from each repeat that has the figure; one from the run where it is made of several cases."""
    of_repeats: dict[str, list[float]] = defaultdict(list)
    for metrics in repeat_metrics(history, reading.plan.cluster):
        for metric in metrics:
            if metric.value is not None:
                of_repeats[metric.key].append(float(metric.value))
    for row in reading.by_case.get(history.case.id, ()):
        if row.value is not None and row.metric not in (*MEASURES, DRIFT):
            key = metric_key(row.metric, **row.detail)
            samples = tuple(of_repeats.get(key) or [float(row.value)])
            yield key, Recorded(row.unit, samples, _within(row, samples), reading.run)


def _within(row: Row, samples: Sequence[float]) -> tuple[float, float] | None:
    return None if len(samples) >= FEWEST else row.interval


# The verb


def write_baseline(folders: Sequence[Path], out: Path) -> list[str]:
    """Writes what runs come to into a new file; what was recorded and what was left out, in words.

    Raises
    ------
    SuiteError
        If a run cannot be part of a baseline, or the file is there or cannot be written.
    RunFolderError
        If a folder is not that of a run.
    """
    readings = [read(RunFolder.open(folder)) for folder in folders]
    for folder, reading in zip(folders, readings, strict=True):
        if why := no_baseline(reading):
            raise SuiteError(f"{folder} cannot be part of a baseline: {why}.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SuiteError("a run is named twice, and its samples would count twice.")
    made = baseline_of(readings, str(out))
    text = baseline_text(made)
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SuiteError(f"--out {out} is there already, and what it holds would be lost.") from None
    except OSError as error:
        raise SuiteError(f"--out {out} cannot be written: {error.strerror}.") from None
    return [*map(_about, made.machines), *_about_left_out(readings)]


def _about(machine: MachineBaseline) -> str:
    figures = [recorded for of_case in machine.figures.values() for recorded in of_case.values()]
    counts = sorted(len(recorded.samples) for recorded in figures)
    of = f"of {plural(len(machine.runs), 'run')} on {plural(len(machine.hosts), 'host')}: {machine.machine.words}"
    what = f"{plural(len(figures), 'figure')} of {plural(len(machine.cases), 'case')}"
    each = plural(counts[0], "sample") if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]} samples"
    words = f"{what}, {each} each, {of}"
    few_samples = sum(count < FEWEST for count in counts)
    if few_samples:
        words += (
            f"; {few_samples:,} with one or two samples, whose interval is that of their iterations: {FEWEST} show how "
            f"repeats differ, {ENOUGH} need no law of noise"
        )
    return words


def _about_left_out(readings: Sequence[Reading]) -> Iterator[str]:
    for reading in readings:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for case, why in left_out(reading).items():
            by_reason[why].append(case)
        for why, cases in by_reason.items():
            yield f"{reading.run}: left out as {why}: {few(cases)}"
