"""Several runs in one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterbench.cases import Reading
from clusterbench.compare import compare_readings
from clusterbench.compare.text import notes, rows, summary
from clusterbench.derive import OWN_RATES, AskedRates, SingleRun, read_single, reading_of, write_rows
from clusterbench.derive.several_runs import as_one, names_of
from clusterbench.diagnoses import examine
from clusterbench.errors import DiskError, SuiteError
from clusterbench.garbage import uncollected
from clusterbench.report import Compared, Report, caution, circumstances, figures_of, headline_of, markdown, page
from clusterbench.report.headline import Headline
from clusterbench.report.prices import prices_text
from clusterbench.run_folder import RunFolder
from clusterbench.verdict import verdict


@uncollected()
def render_together(
    runs: Sequence[RunFolder], out: Path, fail_on: Sequence[str] | None = None, rates: AskedRates = OWN_RATES
) -> Report:
    """Writes ``verdict.json``, ``index.html`` and ``rows.csv`` of all runs into the new folder ``out``.

    The runs stay as they are.

    Raises
    ------
    SuiteError
        If ``out`` exists and is not empty, or a run is named twice.
    DiskError
        If it cannot be made.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SuiteError(f"{out} exists and is not empty.\nhint: name a new folder with --out")
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise SuiteError("a run is named twice, and its samples would count twice.")
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot make the folder {out}: {error.strerror}.\nhint: name another with --out") from None
    parts = [read_single(run, rates) for run in runs]
    reading = as_one(parts)
    answers = examine(reading)
    judged = verdict(reading, answers, fail_on)
    folder = RunFolder(out)
    folder.write("verdict.json", judged.as_json())
    single = dict(zip(names_of(parts), map(reading_of, parts), strict=True))
    compared = list(_compared(single))
    figures = figures_of(reading)
    headline = replace(_headline(parts, headline_of(reading, figures)), caution=_cautions(single))
    about = [*map(_about, single.values())]
    written = folder.write("index.html", page(reading, answers, judged, headline, figures, about, compared))
    write_rows(folder, reading.rows)
    # the page has a place of its own for how runs differ; a terminal and Markdown begin with it, too
    told = replace(headline, answers=(*(f"{pair.title}: {pair.summary[0]}" for pair in compared), *headline.answers))
    said = markdown(reading, answers, judged, told, about)
    return Report(written, judged, told, prices=prices_text(reading), markdown=said)


def _headline(parts: Sequence[SingleRun], together: Headline) -> Headline:
    """Of runs of several suites what each suite's own say: charts of all together answer one question at most."""
    by_suite: dict[str, list[SingleRun]] = {}
    for part in parts:
        by_suite.setdefault(part.plan.suite, []).append(part)
    if len(by_suite) == 1:
        return together
    readings = {suite: reading_of(own[0]) if len(own) == 1 else as_one(own) for suite, own in by_suite.items()}
    said = {suite: headline_of(own, figures_of(own)) for suite, own in readings.items()}
    return replace(
        together,
        answers=tuple(f"{suite}: {answer}" for suite, own in said.items() for answer in own.answers),
        unsteady=" ".join(f"{suite}: {own.unsteady}" for suite, own in said.items() if own.unsteady),
    )


def _cautions(readings: Mapping[str, Reading]) -> str:
    """Once where it is that of every run, else by run: the page is of the largest cluster, and a figure of any."""
    of_each = {name: caution(reading) for name, reading in readings.items()}
    if len({*of_each.values()}) == 1:
        return next(iter(of_each.values()))
    return " ".join(f"{name}: {said[0].lower()}{said[1:]}" for name, said in of_each.items() if said)


def _compared(readings: Mapping[str, Reading]) -> Iterator[Compared]:
    """Each run of the first one's suite against it, as ``clusterbench compare`` has it, where they share a case."""
    (base, before), *others = readings.items()
    hashes = {history.case.hash for history in before.histories}
    for name, after in others:
        shares = any(history.case.hash in hashes for history in after.histories)
        if shares and not before.is_imported and after.plan.suite == before.plan.suite:
            found = compare_readings(before, after, base, name)
            yield Compared(f"{name} against {base}", tuple(summary(found)[:-1]), rows(found), tuple(notes(found)))


def _about(reading: Reading) -> dict[str, str]:
    """What the table of runs says of one."""
    judged = verdict(reading, examine(reading))
    said = dict(circumstances(reading))
    return {
        "run": reading.run,
        "suite": reading.plan.suite,
        "measured": f"{judged.measured.word}: {judged.measured.sentence}",
        "proven": f"{judged.proven.word}: {judged.proven.sentence}",
        "health": f"{judged.machine.word}: {judged.machine.sentence}",
        **{name: said.get(name, "") for name in ("machine", "device", "hosts", "versions", "started")},
    }
