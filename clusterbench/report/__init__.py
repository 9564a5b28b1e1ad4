"""One self-contained page a run: its answer, its verdict, what is wrong, and every figure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import TOO_FEW
from clusterbench.charts import CAPTION, Chart, charts
from clusterbench.cluster import Cluster
from clusterbench.compare.text import HEADER
from clusterbench.derive import OWN_RATES, AskedRates, read, write_rows
from clusterbench.diagnoses import HEADINGS, Answer, Diagnosis, Finding, diagnoses, examine, in_words
from clusterbench.discover import summary
from clusterbench.garbage import uncollected
from clusterbench.host_facts import mapping, mappings, network
from clusterbench.hosts import Hosts, judge_hosts
from clusterbench.hosts.lists import accepted_in_words, hosts_in_words, write_lists
from clusterbench.own_copy import version
from clusterbench.report.glossary import explainer, figures_in, glossary, words_in
from clusterbench.report.headline import Headline
from clusterbench.report.markdown import MOST_CASES, as_markdown
from clusterbench.report.prices import prices_text
from clusterbench.report.statements import can_say, cannot_say
from clusterbench.report.suspects import between_hosts, suspects
from clusterbench.report.table import FIRST_PAGE, MOST_SAMPLED, CaseColumn, case_link, columns, details, facts
from clusterbench.report.template import css, template
from clusterbench.run_folder import RunFolder
from clusterbench.types import SEVERITIES
from clusterbench.verdict import Verdict, verdict
from clusterbench.verdict.measured import ENDS
from clusterbench.words import few, plural, sections

__all__ = ["Report", "Verdict", "render_report"]

_HERE = Path(__file__).parent
_SHOWN, _MOST = 5, 100  # findings of one diagnosis on the page at once, and at all
_MOST_SET_ASIDE = 200
_MOST_SUSPECTS = 20  # hosts that stand on the page at once; the others unfold
_MOST_ANSWERS = 6  # sentences of charts above the first of them
_FEW_BENCHMARKS = 3  # that one chart may speak for
_MOST_NAMED = 6
_MOST_LEFT_OUT = 3
_MOST_FILES = 2  # of an import, beside its source
_MOST_SOURCES = 4  # runs below a figure that leaves its page
_HALF = 456  # points: a wider figure has letters too small to read in half the page; page.css: .figures
_MOST_COLUMNS = 8  # of a table in Markdown
_MOST_PANELS, _OPEN = 6, 4  # of a figure; where it has more, as for many workloads, the first stand open
_MOST_PRINTED = 12  # lines of a table behind a figure, on paper; page.css hides the others
_CAUTION = (
    "Measured on CPU ranks that talk over Gloo: this shows method, memory and traffic, not the speed of a cluster."
)
_ALONE = "One rank of a layout computed alone, and nothing was sent: its time is no speed of that layout."


@dataclass(frozen=True)
class Report:
    """The page on disk, the verdict it begins with, what a run says of each of its hosts, and steps beside prices.

    ``markdown`` is what it says first, for a pull request or a chat.
    """

    path: Path
    verdict: Verdict
    headline: Headline
    hosts: Hosts | None = None
    prices: str = ""
    markdown: str = ""

    @property
    def text(self) -> str:
        """The last words of a run, for a terminal; where what is not judged counts, with a line for each host."""
        each = accepted_in_words(self.hosts) if "not-judged" in self.verdict.fail_on else ""
        hosts = hosts_in_words(self.hosts, self.path.parent)
        parts = (self.prices, f"{self.headline.text}\n", self.verdict.text(), each, hosts)
        return "\n".join(filter(None, parts)).rstrip("\n")

    @property
    def link(self) -> str:
        """The page as an address, which terminals open on a click."""
        return self.path.resolve().as_uri()


@dataclass(frozen=True)
class Compared:
    """One run against another: ``lines`` stand under :data:`clusterbench.compare.text.HEADER`, the worst first."""

    title: str
    summary: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]


@uncollected()  # of the whole function: once it is back on, the records are gone
def render_report(
    run: RunFolder,
    fail_on: Sequence[str] | None = None,
    with_not_judged: bool = False,
    rates: AskedRates = OWN_RATES,
) -> Report:
    """Writes ``verdict.json``, ``hosts.json`` and its lists, ``index.html`` and ``rows.csv`` into the run's folder.

    What a reader waits for comes first.

    Parameters
    ----------
    fail_on
        What makes the exit code 1, see :func:`clusterbench.verdict.verdict`.
    with_not_judged
        Whether hosts that are not judged stand among the good ones of the lists.
    rates
        By which training steps are priced, see :func:`clusterbench.derive.read`.
    """
    reading = read(run, rates)
    answers = examine(reading)
    judged = verdict(reading, answers, fail_on)
    run.write("verdict.json", judged.as_json())
    hosts = judge_hosts(reading, answers)
    write_lists(run, hosts, with_not_judged)
    figures = figures_of(reading)
    headline = headline_of(reading, figures)
    path = run.write("index.html", page(reading, answers, judged, headline, figures, hosts=hosts))
    write_rows(run, reading.rows)
    return Report(path, judged, headline, hosts, prices_text(reading), markdown(reading, answers, judged, headline))


def markdown(
    reading: Reading,
    answers: Mapping[str, Answer],
    judged: Verdict,
    headline: Headline,
    runs: Sequence[Mapping[str, str]] = (),
) -> str:
    """What a page says first, for a pull request or a chat."""
    findings = [finding for _, found in _worst_first(answers) for finding in found if finding.severity != "note"]
    told = {"case", "outcome", *reading.by_metric}  # what else a case is, its name says
    table = [column for column in columns(reading, MOST_CASES) if column.name in told][:_MOST_COLUMNS]
    source = list(_source(reading, judged, headline, runs))
    return as_markdown(headline, judged, findings, table, len(reading.histories), source)


def page(
    reading: Reading,
    answers: Mapping[str, Answer],
    judged: Verdict,
    headline: Headline,
    figures: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, str]] = (),
    compared: Sequence[Compared] = (),
    hosts: Hosts | None = None,
) -> str:
    """The page as text. Pure, but for the files of this package.

    ``figures`` are those of :func:`figures_of`. ``runs`` are what there is to say of each, by heading, where
    ``reading`` is made of several; ``compared`` is how those that share cases differ. ``hosts`` is what the run says of
    each of its hosts.
    """
    places = _places_of(reading)
    table = columns(reading)
    unfolded = details(reading)
    set_aside = _set_aside(reading)
    words = glossary(case.benchmark for case in reading.plan.cases)
    js = _script()
    return template(_HERE / "page.html").render(
        suite=reading.plan.suite,
        run=reading.run,
        runs=runs,
        compared=compared,
        compared_columns=HEADER,
        most_compared=_MOST,
        headline=headline,
        verdict=judged,
        summary=[(name, value) for name, value in circumstances(reading) if not runs or name not in runs[0]],
        suspects=suspects(answers, hosts) if _num_hosts(reading) > 1 else [],
        between_hosts=few(between_hosts(answers), _MOST_NAMED),
        num_hosts=_num_hosts(reading),
        most_suspects=_MOST_SUSPECTS,
        findings=[_group(name, found, places) for name, found in _worst_first(answers)],
        diagnoses=[*_said(answers)],
        problems=[f"{problem}." for problem in reading.problems[:_MOST]],
        problems_left_out=_more(len(reading.problems), _MOST, "lines that could not be read"),
        figures=figures,
        columns=table,
        num_cases=len(reading.histories),
        first_lines=range(min(FIRST_PAGE, len(reading.histories))),
        has_details=unfolded is not None,
        is_imported=reading.is_imported,
        has_samples=unfolded is not None and len(reading.histories) <= MOST_SAMPLED,
        explained=explainer(words),
        words_in=lambda markup: words_in(markup, words, _words(table)),
        metrics=dict(figures_in(reading.by_metric)),
        most_printed=_MOST_PRINTED,
        set_aside=set_aside[:_MOST_SET_ASIDE],
        set_aside_left_out=_more(len(set_aside), _MOST_SET_ASIDE, "reasons"),
        can=can_say(reading),
        cannot=cannot_say(reading),
        environment=list(_environment(reading.environment)),
        version=version(),
        css=css(),
        js=Markup(js),
        js_hash=base64.b64encode(hashlib.sha256(js.encode()).digest()).decode(),
        data=_json(
            {
                "run": reading.run,
                "source": list(_source(reading, judged, headline, runs)),
                "columns": [column.packed() for column in table],
                "details": unfolded,
                "panels": [panel.data for figure in figures for panel in figure["panels"]],
            }
        ),
    )


def _script() -> str:
    """Both as one: the page lets run what has this hash, and nothing else."""
    return "".join((_HERE / name).read_text(encoding="utf-8") for name in ("page.js", "figures.js"))


def _words(table: Sequence[CaseColumn]) -> set[str]:
    """What columns are called and what comes again and again in them, such as layouts."""
    repeated = {str(word) for column in table if column.kind == "text" for word in column.packed().get("words", ())}
    return repeated | {f"{column.name} {column.unit}" for column in table}


def _json(value: object) -> Markup:
    """JSON inside a script element: no text in it may end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _places_of(reading: Reading) -> dict[str, int]:
    """Which line of the table of cases each has."""
    return {history.case.id: line for line, history in enumerate(reading.histories)}


def figures_of(reading: Reading) -> list[dict[str, Any]]:
    """Every chart that has something to show, drawn, in the order of the page."""
    return list(_figures(reading, _places_of(reading)))


def headline_of(reading: Reading, figures: Sequence[Mapping[str, Any]]) -> Headline:
    """What a page and a terminal say first; ``figures`` are those of :func:`figures_of`."""
    answers, rests_on = _answers(reading, figures)
    question = reading.plan.question or reading.plan.suite
    failed = [str(figure["title"]) for figure in figures if figure.get("failed")]
    undrawn = f"Not drawn, as it failed: {few(failed)}." if failed else ""
    return Headline(question, answers, _unsteady(reading, rests_on), caution(reading), undrawn)


def _figures(reading: Reading, places: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for name, kind in charts().items():
        try:
            figure = _figure(name, kind, reading, places)
        except Exception as error:  # noqa: BLE001 - a record of a kind never seen must not cost the others, or a page
            figure = failed(name, kind, error)
        if figure is not None:
            yield figure


def _figure(name: str, kind: type[Chart[object]], reading: Reading, places: Mapping[str, int]) -> dict[str, Any] | None:
    from clusterbench.report.panels import shown  # matplotlib, only now

    chart = kind()
    data = chart.select(reading)
    if data is None:
        return None
    panels = list(shown(name, chart, data, places))
    if not panels:
        raise ValueError("it has no panel")
    return {
        "name": name,
        "is_wide": len(panels) > 1 or any(panel.data["stories"] or panel.width > _HALF for panel in panels),
        "title": chart.title,
        "answer": chart.answer(data),
        "is_aside": chart.is_aside,
        "rests_on_times": chart.rests_on_times,
        "left_out": chart.left_out(data),
        "caption": sections(kind)[CAPTION],
        "panels": panels,
        "open": len(panels) if len(panels) <= _MOST_PANELS else _OPEN,
        "cases": {case for panel in panels for case in panel.cases},
    }


def failed(name: str, kind: type[Chart[object]], error: Exception) -> dict[str, Any]:
    """What stands in the place of a chart that fails."""
    why = f"This chart failed ({type(error).__name__}: {error!s:.300}); please report that as a bug."
    said = {"answer": "", "left_out": why, "caption": sections(kind)[CAPTION]}
    flags = {"failed": True, "is_wide": False, "is_aside": True, "rests_on_times": False, "open": 0}
    return {"name": name, "title": kind.title, "panels": [], "cases": set[str](), **said, **flags}


def caution(reading: Reading) -> str:
    """Why figures of a run are no speeds of a cluster; empty where they are."""
    on_cpu = reading.plan.cluster.device == "cpu" and not reading.is_dry and not reading.is_imported
    return " ".join([*([_CAUTION] if on_cpu else []), *([_ALONE] if reading.lone_ranks else [])])


def _answers(reading: Reading, figures: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], set[str]]:
    """What charts say of the question, and the cases whose times that rests on; plainly that none does where so.

    The first chart that says something answers; others join it that draw a benchmark which is in none before, and then
    a sentence on all benchmarks stands above them: no chart speaks for a tour of many.
    """
    benchmark_of = {history.case.id: history.case.benchmark for history in reading.histories}
    measured = {history.case.id for history in reading.histories if history.pooled is not None}
    said: list[str] = []
    rests_on: set[str] = set()
    answered: set[str] = set()
    for figure in figures:
        drawn = {benchmark_of[case] for case in figure["cases"] if case in benchmark_of}
        if figure["answer"] and not figure["is_aside"] and (not said or drawn - answered) and len(said) < _MOST_ANSWERS:
            said.append(str(figure["answer"]))
            rests_on |= figure["cases"] & measured if figure["rests_on_times"] else set()
            answered |= drawn
    if said:
        lines = (line for answer in said for line in answer.splitlines())
        tally = tuple(_tally(reading, len(said)))
        return (*tally, *lines, *_without_figure(reading, bool(tally))), rests_on
    planned = len(reading.histories)
    if not measured:
        return (f"Nothing was measured that could answer this: none of {plural(planned, 'case')} has a figure.",), set()
    have = f"{len(measured)} of {plural(planned, 'case')} {'has' if planned == 1 else 'have'} a figure"
    words = f"{have}; no chart draws a conclusion from them, so see the table."
    refused = len(reading.plan.refusals)
    more = f" {plural(refused, 'more case')} {'was' if refused == 1 else 'were'} refused." if refused else ""
    return (f"{words}{more}",), set()


def _tally(reading: Reading, num_answers: int) -> Iterator[str]:
    """Of a run of several benchmarks that were measured here: how many were, and how each of the others ended.

    One answer speaks for a run of few: a step and the ceilings that it is held against.
    """
    ends: dict[str, set[str]] = {}
    for history in reading.histories:
        end = history.status if history.status != "ok" else "no whole record"
        ends.setdefault(history.case.benchmark, set()).add("" if history.pooled is not None else end)
    others = {name: status for name, status in ends.items() if "" not in status}
    one_speaks = num_answers == 1 and len(ends) <= _FEW_BENCHMARKS
    each_speaks = not others and len(ends) <= num_answers
    if one_speaks or each_speaks or not reading.ran_here:
        return
    by_end: dict[str, list[str]] = {}
    for name, status in others.items():
        by_end.setdefault(" or ".join(sorted(status)).replace("_", " "), []).append(name)
    words = [f"{len(ends) - len(others)} of {plural(len(ends), 'benchmark')} have figures"]
    words += [f"{end}: {few(names, _MOST_NAMED)}" for end, names in by_end.items()]
    yield f"{'; '.join(words)}."


def _without_figure(reading: Reading, is_tallied: bool) -> Iterator[str]:
    """What an answer leaves out though it was asked: a layout that is not named looks as if it were no better.

    Where it is tallied how benchmarks ended, those without any figure are named already.
    """
    by_end: dict[str, list[str]] = {}
    have_figures = {history.case.benchmark for history in reading.histories if history.pooled is not None}
    for history in reading.histories if reading.ran_here else ():
        is_named = is_tallied and history.case.benchmark not in have_figures
        if history.pooled is None and history.faults and not is_named:
            by_end.setdefault(ENDS.get(history.status, history.status), []).append(history.case.id)
    if by_end:
        ends = "; ".join(f"{few(ids, _MOST_LEFT_OUT)} ({end})" for end, ids in by_end.items())
        yield f"Left out, without a figure: {ends}."


def _unsteady(reading: Reading, rests_on: set[str]) -> str:
    """What is to be said beside figures that rest on cases whose iterations differ too much, or that did not settle."""
    unsteady, unsettled, short = (of & rests_on for of in (reading.unsteady, reading.unsettled, reading.too_short))
    words = []
    if unsteady:
        words.append(f"Unsteady: {_behind(unsteady, rests_on, 'has', 'have')} iterations that differ too much.")
    if unsettled:
        words.append(f"Not settled: {_behind(unsettled, rests_on, 'was', 'were')} timed before clocks had settled.")
    if short:
        words.append(f"Too few to tell: {_behind(short, rests_on, 'has', 'have')} {TOO_FEW} iterations or fewer.")
    return " ".join(words)


def _behind(cases: Set[str], rests_on: Set[str], verb: str, of_several: str) -> str:
    """``2 of the 5 cases behind this have``, ``the case behind this has``."""
    if len(rests_on) == 1:
        return f"the case behind this {verb}"
    number = "all" if cases == rests_on else f"{len(cases):,} of the"
    return f"{number} {len(rests_on):,} cases behind this {verb if len(cases) == 1 else of_several}"


def _worst_first(answers: Mapping[str, Answer]) -> list[tuple[str, Sequence[Finding]]]:
    found = [(name, answer.findings) for name, answer in answers.items() if answer.findings]
    return sorted(found, key=lambda item: _severity(item[1]))


def _said(answers: Mapping[str, Answer]) -> Iterator[dict[str, Any]]:
    """What diagnoses say that found nothing; last and in one line those of which the run holds nothing."""
    for name, answer in answers.items():
        if answer.state in ("healthy", "not judged"):
            sentences = [*answer.healthy, *(part.sentence for part in answer.not_judged)]
            yield {"name": f"{in_words(name)}: {answer.state}", "sentences": sentences}
    if nothing := [in_words(name) for name, answer in answers.items() if answer.state == "nothing to judge"]:
        yield {"name": "Nothing to judge", "sentences": [", ".join(nothing)]}


def _severity(findings: Sequence[Finding]) -> int:
    return min(SEVERITIES.index(finding.severity) for finding in findings)


def _group(name: str, findings: Sequence[Finding], places: Mapping[str, int]) -> dict[str, Any]:
    """What a diagnosis found. Notes stand behind what counts, and are not counted with it.

    Notes alone are no fault: they are not called what the diagnosis looks for, and its advice is of no use where each
    note is of a check of its own.
    """
    kind: type[Diagnosis] = diagnoses()[name]
    advice = sections(kind)
    counted = [finding for finding in findings if finding.severity != "note"]
    notes = [finding for finding in findings if finding.severity == "note"]
    are_notes = not counted
    if are_notes:
        counted, notes = notes, []
    title = counted[0].title if len(counted) == 1 else _places(counted)
    behind = [*counted[_SHOWN:], *notes]
    numbers = [f"{len(counted) - _SHOWN:,} more"] if len(counted) > _SHOWN else []
    return {
        "title": title if are_notes else f"{in_words(name)}: {title}",
        "about": "Worth knowing; no fault" if are_notes else summary(kind).rstrip("."),
        "severity": SEVERITIES[_severity(findings)],
        "total": len(counted),
        "is_said": len(counted) == 1 and counted[0].brief in ("", counted[0].what) and not _home(counted[0], places),
        "shown": [(finding, _home(finding, places)) for finding in counted[:_SHOWN]],
        "more": [(finding, _home(finding, places)) for finding in behind[: _MOST - _SHOWN]],
        "folded": " and ".join([*numbers, *([plural(len(notes), "note")] if notes else [])]),
        "left_out": _more(len(findings), _MOST, "findings"),
        "advice": {}
        if are_notes and all(note.confirm for note in counted)
        else {each: advice[each] for each in HEADINGS},
    }


def _num_hosts(reading: Reading) -> int:
    return len(reading.plan.cluster.hosts) or reading.plan.cluster.num_nodes


def _places(findings: Sequence[Finding]) -> str:
    """The first by its title, where it has a short one, and how many more there are."""
    more = f", and {len(findings) - 1:,} more"
    return (
        findings[0].title + more
        if findings[0].brief
        else few([*dict.fromkeys(finding.where for finding in findings)], 2)
    )


def _home(finding: Finding, places: Mapping[str, int]) -> str:
    """The link to the case that a finding is about; it may name a rank and a host behind it."""
    return case_link(finding.where, places) or case_link(finding.where.partition(", ")[0], places)


def _more(found: int, shown: int, what: str) -> str:
    return f"The first {shown} of {found:,} {what} are listed." if found > shown else ""


def _set_aside(reading: Reading) -> list[dict[str, str]]:
    """Refusals and skipped cases, those with one reason together."""
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for refusal in reading.plan.refusals:
        found.setdefault(("refused", refusal.reason, refusal.hint), []).append((refusal.id, refusal.source))
    for history in reading.histories:
        if history.outcome is not None and history.outcome.status == "skipped":
            found.setdefault(("skipped", history.outcome.reason, ""), []).append((history.case.id, history.case.source))
    return [
        {
            "status": status,
            "reason": reason,
            "hint": hint,
            "names": few([name for name, _ in items], 8),
            "source": ", ".join(dict.fromkeys(source for _, source in items[:8] if source)),
        }
        for (status, reason, hint), items in found.items()
    ]


def circumstances(reading: Reading) -> Iterator[tuple[str, str]]:
    """What was run on what: machine, device, hosts, network and versions, when, for how long, and how many cases."""
    cluster = reading.plan.cluster
    device = cluster.gpu_name or cluster.cpu_name or cluster.device
    of = mapping(reading.environment.get("imported"))
    if files := mapping(of.get("files")):
        yield "source", f"{of.get('source')} ({few(files, _MOST_FILES)})"
    if reading.is_imported and cluster.device == "cpu":  # few texts say on what their ranks computed
        yield "machine", machine(cluster).replace("CPU rank", "rank")
    else:
        yield "machine", machine(cluster)
        yield "device", device if cluster.device == "cuda" else f"{device} (Gloo)".replace("cpu (Gloo)", "CPU (Gloo)")
    if cluster.hosts:
        yield "hosts", few(cluster.hosts)
    if networks := _networks(reading.environment):
        yield "network", networks
    versions = [
        f"{name} {text}"
        for name in ("torch", "cuda", "nccl", "driver", "python")
        if (text := _find(reading.environment, name))
    ]
    if versions:
        yield "versions", ", ".join(versions)
    outcomes = [outcome for history in reading.histories for outcome in history.outcomes]
    started = min((outcome.started for outcome in outcomes if outcome.started), default="")
    if started:
        yield "started", when(started)
    elapsed_s = sum(outcome.elapsed_s for outcome in outcomes)
    if elapsed_s:
        yield "time in cases", f"{elapsed_s:.0f} s" if elapsed_s < 120 else f"{elapsed_s / 60:.0f} min"
    repeats = sorted({history.num_repeats for history in reading.histories})
    times = plural(repeats[-1], "repeat") if repeats else "no repeats"
    yield "cases", f"{len(reading.histories):,} × {f'{repeats[0]} to ' if len(repeats) > 1 else ''}{times}"


def _networks(environment: Mapping[str, Any]) -> str:
    """Ports of hosts, of most hosts first; nothing where a host on its own has none for RDMA: it sends nothing.

    >>> port, hosts = {"state": "4: ACTIVE", "bits_per_s": 4e11, "link_layer": "InfiniBand"}, ("a", "b", "c")
    >>> _networks({"hosts": {name: {"infiniband": [port] * (7 if name == "b" else 8)} for name in hosts}})
    '8 x 400 Gb/s InfiniBand (2 hosts), 7 x 400 Gb/s InfiniBand (b)'
    """
    hosts = {name: mapping(host) for name, host in mapping(environment.get("hosts")).items()}
    if len(hosts) == 1 and not any(mappings(host.get("infiniband")) for host in hosts.values()):
        return ""
    having: dict[str, list[str]] = {}
    for name, host in hosts.items():
        if (words := network(host)) not in (None, "none"):
            having.setdefault(str(words), []).append(name)
    if having and len(next(iter(having.values()))) == len(hosts):
        return next(iter(having))
    most_first = sorted(having.items(), key=lambda of_words: -len(of_words[1]))
    return few(
        [f"{words} ({names[0] if len(names) == 1 else plural(len(names), 'host')})" for words, names in most_first]
    )


def _source(reading: Reading, judged: Verdict, headline: Headline, runs: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """What stands below a figure that leaves its page: of which run it is, on what and when, and what it cannot say."""
    said = dict(circumstances(reading))
    started = said.pop("started", "") if not runs else ""
    yield " · ".join(filter(None, ("clusterbench", reading.plan.suite, reading.run, started, judged.words)))
    for run in runs[:_MOST_SOURCES] or [said]:
        yield " · ".join(filter(None, map(run.get, ("run", "machine", "device", "versions", "started"))))
    if headline.caution:
        yield headline.caution


def machine(cluster: Cluster) -> str:
    """``2 nodes × 8 GPUs``."""
    return cluster.size.replace(" x ", " × ")


def when(started: str) -> str:
    """The time of a record as people write it; as it is where it is none."""
    try:
        return f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:
        return started


def _find(environment: Mapping[str, Any], wanted: str) -> str:
    """The first plain value under ``wanted`` or ``wanted_version``, at any depth."""
    for key, value in environment.items():
        if isinstance(value, Mapping):
            if found := _find(value, wanted):
                return found
        elif key in (wanted, f"{wanted}_version") and isinstance(value, (str, int, float)):
            return str(value)
    return ""


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Groups as they stand in environment.json; single values come first, as one group."""
    single = {key: value for key, value in environment.items() if not isinstance(value, Mapping)}
    if pairs := list(facts(single)):
        yield "run", pairs
    for key, value in environment.items():
        if isinstance(value, Mapping) and (pairs := list(facts(value))):
            yield key, pairs
