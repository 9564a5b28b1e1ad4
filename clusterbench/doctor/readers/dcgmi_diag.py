"""DCGM's diagnostic (``dcgmi diag``): every test that failed, with its GPU and DCGM's own words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import dcgmi
from clusterbench.tools.dcgmi import DiagResult
from clusterbench.types import Severity
from clusterbench.words import few, plural

_SETTINGS = re.compile(
    r"(?i)persistence mode|environment variables|graphics processes|permissions and os blocks|denylist|blacklist"
)
"""Tests of how a host is set up: no hardware is at fault."""
_CONFIGURATION, _MONITOR = 5, 1
_NAME = "dcgm_diag"
_ALL = "dcgmi diag -r 3"


class DcgmiDiag(HostText):
    """Tests that failed or warned; those that were skipped are not judged, and level 1 makes no GPU work.

    A test that passed with a warning is told with it: DCGM passes its memory test also where it could not allocate
    (NVIDIA/DCGM issue 284). Its other tests do not look for what was before they began, nor for NVLinks that are down
    (issue 198).
    """

    kind = "dcgmi diag"

    def holds(self, text: str) -> bool:
        return dcgmi.is_diag(text)

    def read(self, text: str, name: str) -> Said:
        try:
            said = dcgmi.parse(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged(_NAME, (name,), str(error), "the whole output"),), hosts=(name,))
        if said.failure or not said.results:
            why = f"the diagnostic did not run: {said.failure}" if said.failure else "no test is in the text"
            return Said(not_judged=(NotJudged(_NAME, (name,), why, _ALL),), hosts=(name,))
        found = tuple(_found(said.results, name))
        return Said(
            found=found,
            healthy=tuple(_healthy(said.results, name)),
            not_judged=tuple(_not_judged(said, name)),
            hosts=(name,),
        )


def _found(results: Sequence[DiagResult], name: str) -> Iterator[Found]:
    for result in results:
        if (result.status == "Pass" and not result.warnings) or result.status in ("Skip", "Not Run"):
            continue
        words = "; ".join(result.warnings)
        test = f"DCGM's test '{result.test}'" if result.test else "DCGM's diagnostic"
        verb = {"Fail": "failed", "Warn": "warned", "Pass": "passed, but warns"}.get(result.status, "stopped")
        what = f"{test} {verb}: {words}" if words else f"{test} {verb}, without a word why"
        named = re.search(r"\bGPU \d+\b", words)
        where = result.where or (named[0] if named else "")
        confirm, fix = f"dcgmi diag -r 3 -j{_of_gpu(where)}", _fix(result, words)
        yield Found(_NAME, _severity(result, words), (name,), where, what, f"{name}: {result.line}", confirm, fix)


def _of_gpu(where: str) -> str:
    kind, _, number = where.partition(" ")
    return f" -i {number}" if kind == "GPU" else ""


def _is_setting(result: DiagResult, words: str) -> bool:
    return result.severity == _CONFIGURATION or bool(_SETTINGS.match(result.test) or _SETTINGS.match(words))


def _severity(result: DiagResult, words: str) -> Severity:
    if result.status in ("Warn", "Pass") or result.severity == _MONITOR or _is_setting(result, words):
        return "warning"
    return "error"


def _fix(result: DiagResult, words: str) -> str:
    if _is_setting(result, words):
        return "set the host as the message says, and run the diagnostic again"
    return "drain the host; Xids in the kernel's log say more; reset the GPU and run it again; if it fails again, RMA"


def _healthy(results: Sequence[DiagResult], name: str) -> Iterator[Healthy]:
    bad = {result.test for result in results if result.status != "Pass" or result.warnings}
    passed = dict.fromkeys(result.test for result in results if result.test not in bad)
    if passed:
        yield Healthy(_NAME, (name,), f"{plural(len(passed), 'test')} of DCGM passed: {few([*passed], 20)}")


def _not_judged(said: dcgmi.Diag, name: str) -> Iterator[NotJudged]:
    without: dict[str, list[str]] = defaultdict(list)
    for result in said.results:
        if result.status in ("Skip", "Not Run") or (result.test and not result.status):
            without[result.test].append(result.where)
    if without:
        why = f"DCGM did not run {few([f'{test!r}' for test in without], 20)}"
        takes = "idle GPUs that DCGM's list of products allows these tests on (-p TEST.is_allowed=true)"
        yield NotJudged(_NAME, (name,), why, takes)
    if not said.is_whole:
        yield NotJudged(_NAME, (name,), "the text ends before the table does", "the whole output")
    elif {result.category for result in said.results} <= {"Deployment", "Software"}:
        yield NotJudged(_NAME, (name,), "only the software was looked at (level 1), and no GPU worked", _ALL)
