"""IOR as JSON (``-O summaryFormat=JSON``): the tests of :mod:`clusterbench.tools.ior`, of what it prints for programs.

Source: hpc/ior, ``src/ior-output.c`` (3.2 to 4.1): seconds have four decimals, and warnings may stand among the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clusterbench.errors import ToolError
from clusterbench.tools._json import document, figure
from clusterbench.tools._text import whole_lines
from clusterbench.tools.ior import ERROR, LESS, WRONG, Phase, Test, expect_its_bytes, ranks_of, size_of

_TEST, _PHASE = re.compile(r'[{\s]*"TestID": '), re.compile(r'[\[{\s]*"access": "(?:write|read)"')
_SAID = re.compile(r"(?:ior )?(?:WARNING|ERROR): ")
_ROUNDED_S = 1e-4


def is_ior_json(text: str) -> bool:
    return '"Command line": "' in text and '"tests": [' in text and '"clients per node": ' in text


def parse(text: str) -> tuple[Test, ...]:
    """Every test of the text; lines are counted as in the file.

    Raises
    ------
    ToolError
        If it is cut, a test does not say on how many ranks it ran or has neither a phase nor an error, or a rate is not
        the bytes over the time.
    """
    lines = whole_lines(text)
    kept = ["" if _SAID.match(line.strip()) else line for line in lines]
    tests = document("IOR", "\n".join([*kept, ""])).get("tests")
    begins = [number for number, line in enumerate(lines, 1) if _TEST.match(line)]
    if not isinstance(tests, list) or not tests or len(begins) < len(tests):
        raise ToolError("IOR's JSON has no 'tests'")
    begins = begins[: len(tests)]  # the summary names them again
    places = list(zip(begins, [*begins[1:], len(lines) + 1], tests, strict=True))
    return tuple(_test(begin, lines[begin - 1 : end - 1], test) for begin, end, test in places)


def _test(begin: int, lines: list[str], test: Any) -> Test:
    told = test.get("Options") if isinstance(test, dict) else None
    if not isinstance(told, dict):
        raise ToolError(f"IOR's test of line {begin} has no 'Options', which say on how many ranks it ran")
    options = {name: str(value) for name, value in told.items() if isinstance(value, str | int)}
    ranks, num_nodes = ranks_of(options, begin)
    said = [(number, line.strip()) for number, line in enumerate(lines, begin)]
    is_whole = "stonewallingTime" not in options and not any(word in line for _, line in said for word in LESS)
    expected = size_of(options) if is_whole else None
    phases = tuple(_phases(begin, lines, test, expected))
    errors = [(number, line) for number, line in said if ERROR.fullmatch(line)]
    if not phases and not errors:
        raise ToolError(f"IOR's test of line {begin} has no result: it did not end")
    wrong = frozenset(found["phase"] for _, line in said if (found := WRONG.fullmatch(line)))
    return Test(begin, options, ranks, num_nodes, phases, wrong, errors[0] if errors else None)


def _phases(begin: int, lines: list[str], test: Mapping[str, Any], expected: float | None) -> Iterator[Phase]:
    results = [each for repetition in _list(begin, test.get("Results", [])) for each in _list(begin, repetition)]
    places = [number for number, line in enumerate(lines, begin) if _PHASE.match(line)]
    results = [each for each in results if isinstance(each, dict) and each.get("access") in ("write", "read")]
    if len(places) != len(results):
        raise ToolError(f"IOR's test of line {begin} has phases that its 'Results' do not have")
    for line, result in zip(places, results, strict=True):
        rate, seconds = figure("IOR", result, "bwMiB"), figure("IOR", result, "totalTime")
        operations = figure("IOR", result, "iops") if "iops" in result else None
        if not rate or not seconds:
            raise ToolError(f"IOR printed a rate or a time of zero: the phase of line {line}")
        phase = Phase(line, result["access"], rate * 2.0**20, operations, seconds)
        expect_its_bytes(phase, expected, _ROUNDED_S, f"the phase of line {line}")
        yield phase


def _list(begin: int, value: Any) -> list[Any]:
    """A repetition, or all of them; 3.2 writes a repetition's phases into a list of their own."""
    if not isinstance(value, list):
        raise ToolError(f"IOR's test of line {begin} has 'Results' that are no list")
    return value
