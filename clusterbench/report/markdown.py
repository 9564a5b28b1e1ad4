"""What a page says first, in Markdown: for a pull request, an issue or a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.diagnoses import Finding
from clusterbench.report.headline import Headline
from clusterbench.report.table import CaseColumn
from clusterbench.verdict import Verdict
from clusterbench.words import plural, short

MOST_FINDINGS, MOST_CASES = 5, 20
"""Who reads a comment wants the gist; the page has all."""

_MOST_LETTERS = 120  # of one cell


def as_markdown(
    headline: Headline,
    verdict: Verdict,
    findings: Sequence[Finding],
    columns: Sequence[CaseColumn],
    num_cases: int,
    source: Sequence[str],
) -> str:
    """The question and its answer, the verdict, what was found, the first cases, and of which run all that is.

    Parameters
    ----------
    findings
        The worst first.
    columns
        Of the table of cases, those that are shown of its first lines.
    num_cases
        In all.
    source
        Of which run it is, on what machine and when, and what it cannot say.
    """
    parts = [
        f"## {_inline(headline.question)}",
        "\n".join(f"- {_inline(answer)}" for answer in filter(None, (*headline.answers, headline.unsteady))),
        "\n".join(_table(("", "", ""), _statements(verdict))),
        "\n".join(_found(findings)),
        "\n".join(_cases(columns, num_cases)),
        "\n".join(f"> {_inline(line)}  " for line in source),
    ]
    return "\n\n".join(filter(None, parts))


def _statements(verdict: Verdict) -> Iterator[list[str]]:
    for statement in verdict.statements:
        yield [statement.about, f"**{statement.word}**", _inline(statement.sentence)]


def _found(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings[:MOST_FINDINGS]:
        yield f"- {finding.severity}: **{_inline(finding.where)}**: {_inline(finding.what)}."
    if len(findings) > MOST_FINDINGS:
        yield f"- and {len(findings) - MOST_FINDINGS:,} more, which the page has"


def _cases(columns: Sequence[CaseColumn], num_cases: int) -> Iterator[str]:
    """Their table, and how many more there are."""
    count = len(columns[0].values)
    if not count:
        return
    heading = [f"{column.name.replace('_', ' ')}{f' ({column.unit})' if column.unit else ''}" for column in columns]
    yield from _table(heading, ([_cut(column.text(line)) for column in columns] for line in range(count)))
    if num_cases > count:
        yield f"\nThe first {count} of {plural(num_cases, 'case')}."


def _table(heading: Sequence[str], lines: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield "|---" * len(heading) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _cut(text: str) -> str:
    return _inline(short(text, _MOST_LETTERS, "…"))


def _inline(text: str) -> str:
    """Words of a run as words: no line of its own, no column, no tag, no link."""
    escaped = " ".join(text.split())
    for character in "\\`*[]<>|":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped
