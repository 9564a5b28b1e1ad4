"""nccl-tests and rccl-tests: whether results were right, by their own check."""

from __future__ import annotations

import json
import re

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import nccl_tests, rccl_tests
from clusterbench.words import plural

_HEADER = re.compile(r"(?m)^#\s+size\s+count\s+type")
_VERDICT = re.compile(r"(?m)^# Out of bounds values : \d+ (OK|FAILED)\s*$")
_FAILED = re.compile(r"(?m)^.*Test (?:NCCL|CUDA|HIP|RCCL) failure \S+:\d+ .*$")
_FIX = "test each host alone, then halves of them; a GPU or link that changes bits also reports ECC or link errors"


class NcclTestsTables(HostText):
    """Wrong results are an error of a GPU, a link or the library. A rate has no peer: ``import`` takes it.

    The program's first failed call is shown as a warning: its own words say of what.
    """

    kind = "nccl-tests"

    def holds(self, text: str) -> bool:
        marked = nccl_tests.plain_table(text)
        is_json = text.lstrip().startswith("{") and '"nccl_version"' in text and '"out_of_bounds"' in text
        return (
            is_json
            or rccl_tests.is_rccl_tests(text)
            or bool(_HEADER.search(marked) or _VERDICT.search(marked) or _FAILED.search(text))
        )

    def read(self, text: str, name: str) -> Said:
        if failed := _FAILED.search(text):
            what, fix = "the test ended with a failed call", "NCCL_DEBUG=WARN says why; Xids in the kernel's log"
            evidence = f"{name}: {failed[0].strip()}"
            found = Found("failed_collective", "warning", (name,), "", what, evidence, "NCCL_DEBUG=INFO", fix)
            return Said(found=(found,), hosts=(name,))
        try:
            number, wrong, line = _of_records(text) if text.lstrip()[:1] in ("{", "[") else _of_tables(text)
        except ToolError as error:
            if line := _wrong_line(text):
                what = "results are wrong by the test's own check, in a text that is not whole"
                confirm = "run it again with -c 1"
                found = Found("wrong_result", "error", (name,), "", what, f"{name}: {line}", confirm, _FIX)
                return Said(found=(found,), hosts=(name,))
            part = NotJudged("wrong_result", (name,), str(error), "the whole output")
            return Said(not_judged=(part,), hosts=(name,))
        if wrong:
            what = (
                f"results are wrong by the test's own check: {plural(wrong, 'element or check', 'elements or checks')}"
            )
            found = Found("wrong_result", "error", (name,), "", what, f"{name}: {line}", "run it again with -c 1", _FIX)
            return Said(found=(found,), hosts=(name,))
        takes = "clusterbench import, and clusterbench compare with another run"
        rate = NotJudged("collective_rate", (name,), "a rate has no peer in the text to be held against", takes)
        if wrong is None:
            unchecked = NotJudged("wrong_result", (name,), "results were not checked (-c 0)", "a run with -c 1")
            return Said(not_judged=(unchecked, rate), hosts=(name,))
        healthy = Healthy("wrong_result", (name,), f"{plural(number, 'row')} of right results, by the test's own check")
        # With NCCL's log in the text the question is which ways it took, and that is judged there.
        return Said(healthy=(healthy,), not_judged=() if "NCCL INFO" in text else (rate,), hosts=(name,))


def _of_tables(text: str) -> tuple[int, int | None, str]:
    """Rows, what is wrong in them (None where nothing was checked), and the line that says so; of all tables."""
    original, text = text, nccl_tests.plain_table(text)
    number, wrong, first, is_checked = 0, 0, "", False
    ends = [match.end() for match in _VERDICT.finditer(text)]
    if not ends or _HEADER.search(text, ends[-1]):
        nccl_tests.parse(text[ends[-1] if ends else 0 :])  # says what is missing
    for start, end in zip([0, *ends], ends, strict=False):
        said = text[start:end].strip("\n")
        table = nccl_tests.parse(f"{said}\n")
        halves = [half for row in table.rows for half in (row.out_of_place, row.in_place)]
        own = sum(half.wrong or 0 for half in halves) or table.out_of_bounds
        is_checked = is_checked or any(half.wrong is not None for half in halves) or "error" in said
        number, wrong = number + len(table.rows), wrong + own
        if own and not first:
            first = _as_printed(said.rpartition("\n")[2], original)
    return number, wrong if wrong or is_checked else None, first


def _wrong_line(text: str) -> str:
    """A line of tables that says that results are wrong; empty where none does."""
    marked = nccl_tests.plain_table(text)
    failed = next((match[0] for match in _VERDICT.finditer(marked) if match[1] == "FAILED"), "")
    return _as_printed(failed or next(iter(nccl_tests.wrong_rows(marked)), ""), text)


def _as_printed(line: str, text: str) -> str:
    line = line.strip()
    return line if line in text else line.removeprefix("# ")


def _of_records(text: str) -> tuple[int, int | None, str]:
    """The same of JSON; records of rccl-tests, or the report of nccl-tests' ``-J``."""
    if rccl_tests.is_rccl_tests(text):
        records = rccl_tests.parse(text)
        checked = [record.wrong for record in records if record.wrong is not None]
        first = next((record for record in records if record.wrong), None)
        said = "" if first is None else f'"size":{first.size_bytes}'
        return len(records), sum(checked) if checked else None, said
    try:
        report = json.loads(text)
    except ValueError as error:
        raise ToolError(f"nccl-tests wrote JSON that cannot be read: {error}") from None
    bounds, results = report.get("out_of_bounds"), report.get("results")
    count = bounds.get("count") if isinstance(bounds, dict) else None
    if not isinstance(count, int) or not isinstance(results, list):
        raise ToolError("nccl-tests wrote JSON without results and their check")
    return len(results), count, '"out_of_bounds"'
