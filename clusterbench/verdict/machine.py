"""How the machine is, by what the diagnoses answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Finding, NotJudged, diagnoses, in_words
from clusterbench.hosts import lost_hosts
from clusterbench.verdict.statement import MOST_NAMED, Statement
from clusterbench.words import few


def machine_statement(reading: Reading, answers: Mapping[str, Answer]) -> Statement:
    own = {name: answer for name, answer in answers.items() if diagnoses()[name].subject == "machine"}
    lost = [f"{said.kind.capitalize()}: {host}, {said.sentence}" for host, said in lost_hosts(reading).items()]
    suspects = lost + [title for name, answer in own.items() for title in _titles(name, answer.findings)]
    healthy = [sentence for answer in own.values() for sentence in answer.healthy]
    unjudged = [part for answer in own.values() for part in answer.not_judged]
    not_judged, brief = [part.sentence for part in unjudged], _by_what_it_takes(unjudged)
    if not (suspects or healthy or not_judged):
        brief = not_judged = [_nothing_to_judge(reading)]
    parts = {"suspects": suspects, "healthy": healthy, "not_judged": not_judged}
    conditions = (*(["suspect"] if suspects else []), *(["not-judged"] if not_judged else []))
    in_order, unknown = f"healthy: {_first(healthy)}", f"not judged: {_first(brief)}"
    if suspects:
        sentence = "; ".join([_first(suspects), *([unknown] if not_judged else [])])
        return Statement("machine", "SUSPECT", sentence, "suspect", conditions, None, parts)
    if not_judged:
        sentence = "; ".join([_first(brief), *([in_order] if healthy else [])])
        return Statement("machine", "NOT JUDGED", sentence, "open", conditions, None, parts)
    return Statement("machine", "HEALTHY", _first(healthy), "good", (), None, parts)


def _titles(name: str, findings: Iterable[Finding]) -> list[str]:
    """What a diagnosis suspects, each place once, with what was found of it first; a note suspects nothing."""
    first: dict[str, str] = {}
    for finding in findings:
        if finding.severity != "note":
            first.setdefault(finding.where, f"{in_words(name)}: {finding.title}")
    return list(first.values())


def _by_what_it_takes(not_judged: Iterable[NotJudged]) -> list[str]:
    """What could not be judged, together where the same would do; why stands in the parts."""
    by_takes: dict[str, list[str]] = {}
    for part in not_judged:
        by_takes.setdefault(part.takes, []).append(part.what)
    return [f"{few(whats, MOST_NAMED)} (it takes {takes})" for takes, whats in by_takes.items()]


def _first(sentences: Sequence[str]) -> str:
    more = f"; and {len(sentences) - MOST_NAMED:,} more" if len(sentences) > MOST_NAMED else ""
    return "; ".join(sentences[:MOST_NAMED]) + more


def _nothing_to_judge(reading: Reading) -> str:
    if reading.is_imported:
        return "an import holds no samples of ranks; it takes a run on the machine"
    if reading.is_dry:
        return "a dry run uses none; it takes a run on the machine"
    if reading.shares_gpus:
        return "ranks share a GPU, so no time is that of a machine; it takes a run with one rank a GPU"
    if not any(history.pooled is not None for history in reading.histories):
        return "nothing was measured; it takes a case that ends well"
    return "one rank has no peer; it takes more ranks, and matmul or link_matrix in the suite"
