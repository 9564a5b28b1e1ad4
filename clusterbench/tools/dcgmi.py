"""``dcgmi diag``: what DCGM's diagnostic says of each of its tests, as a table and as JSON (``-j``).

Source: NVIDIA/DCGM, ``dcgmi/Diag.cpp``: to 3.x a test has one result for all GPUs or one for each, from 4.0 on one for
each entity, and a summary. The table cuts messages into pieces of 45 letters, also within words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterbench.errors import ToolError

TITLES = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
"""The object of the JSON: of 2.x and 3.x, and of 4.x."""

_HEADER = re.compile(r"(?m)^\s*\| Diagnostic +\| Result +\|")
_ROW = re.compile(r"\|(?P<name>.{27})\|(?P<value>.*?)\|?\s*")
_SECTION = re.compile(r"[|+]-----  (?P<name>[\w ]+?)  -+[|+].*")
_STATUS = re.compile(r"(?P<status>Pass|Fail|Warn|Skip|Not Run)(?: - (?P<where>.+))?")
_ENTITY = re.compile(r"(?P<kind>[A-Za-z]+)(?P<number>\d+): (?P<status>Pass|Fail|Skip|Not Run)?")
_MESSAGE = re.compile(r"(?:Warning|Error)(?:: (?P<kind>[A-Za-z]+)(?P<number>\d+))?")
_OF_GPU = re.compile(r"\bGPU (\d+)\b")
_END = re.compile(r"(?m)^\s*\+-{10,}\+-{10,}\+\s*$")
_PIECE = slice(1, 46)
_ABOUT = ("Metadata", "")


@dataclass(frozen=True)
class DiagResult:
    """One test on one place.

    Attributes
    ----------
    where
        ``GPU 3``, ``CPU 0``; empty where the result is of all that was tested, or names none.
    status
        ``Pass``, ``Fail``, ``Warn``, ``Skip``, ``Not Run``; empty for a message that belongs to no test.
    warnings
        What DCGM says of it; also of a test that passed.
    line
        The row of the table that says the status; of JSON the message, else the name.
    severity
        DCGM's number of what is to be done, of its 4.x: 1 monitor, 2 isolate, 4 triage, 5 configuration, 6 reset.
    """

    category: str
    test: str
    where: str
    status: str
    line: str
    warnings: tuple[str, ...] = ()
    severity: int | None = None


@dataclass(frozen=True)
class Diag:
    """``failure`` says why the diagnostic did not run."""

    results: tuple[DiagResult, ...]
    is_whole: bool
    failure: str = ""


def is_diag(text: str) -> bool:
    """Whether a text holds a table or a JSON of the diagnostic."""
    return _HEADER.search(text) is not None or any(f'"{title}"' in text for title in TITLES)


def parse(text: str) -> Diag:
    """All results of one run.

    Raises
    ------
    ToolError
        If its JSON is cut or of another form, or if the text holds several runs.
    """
    number = len(_HEADER.findall(text)) or sum(text.count(f'"{title}"') for title in TITLES)
    if number > 1:
        raise ToolError(f"the text holds {number} runs of dcgmi diag: a file each tells which result is whose")
    if _HEADER.search(text):
        return Diag(tuple(_of_table(text)), _END.search(text, _HEADER.search(text).end()) is not None)  # type: ignore[union-attr]
    return _of_json(text)


def _of_table(text: str) -> Iterator[DiagResult]:
    category, test = "", ""
    results: list[DiagResult] = []
    messages: list[tuple[str, str, list[str]]] = []
    message: list[str] | None = None
    for line in text[_HEADER.search(text).start() :].splitlines()[1:]:  # type: ignore[union-attr]
        line = line.strip()
        if section := _SECTION.fullmatch(line):
            category, message = section["name"], None
            continue
        if not (row := _ROW.fullmatch(line)) or category in _ABOUT:
            continue
        name, value = row["name"].strip(), row["value"]
        status = _STATUS.fullmatch(value.strip())
        entity = _ENTITY.fullmatch(value.strip())
        if said := _MESSAGE.fullmatch(name):
            message = [value[_PIECE]]
            place = f"{said['kind']} {said['number']}" if said["kind"] else ""
            messages.append((test, place, message))
            if not test:
                results.append(DiagResult(category, "", "", "", line))
        elif name.partition(":")[0] == "Info":
            message = []
        elif name and status:
            test, message = name, None
            results += _rows(category, test, status, line)
        elif not name and message is not None and not entity:
            message.append(value[_PIECE])
        elif not name and test and status:
            results += _rows(category, test, status, line)
        elif not name and test and entity and entity["status"]:
            message = None
            place = f"{entity['kind']} {entity['number']}"
            results.append(DiagResult(category, test, place, entity["status"], line))
    results = [result for result in results if not _is_summary(result, results)]
    yield from _with_messages(results, [(of, where, "".join(parts).strip()) for of, where, parts in messages])


def _is_summary(result: DiagResult, results: Sequence[DiagResult]) -> bool:
    """Whether a row says no more than those of its entities: 4.x calls a summary Warn of which one failed."""
    statuses = {other.status for other in results if other.test == result.test and other.where}
    return bool(result.test) and not result.where and result.status.replace("Warn", "Fail") in statuses


def _rows(category: str, test: str, status: re.Match[str], line: str) -> Iterator[DiagResult]:
    where = status["where"] or ""
    numbers = re.findall(r"\d+", where) if where.startswith("GPU") else [""]
    for number in numbers:
        yield DiagResult(category, test, f"GPU {number}" if number else "", status["status"], line)


def _with_messages(results: Sequence[DiagResult], messages: Sequence[tuple[str, str, str]]) -> Iterator[DiagResult]:
    """Each message with the result of the place that it names, else with the first that is no pass, else the first."""
    said: dict[int, list[str]] = {}
    for test, where, words in messages:
        named = _OF_GPU.search(words)
        place = where or (f"GPU {named[1]}" if named else "")
        of_test = [number for number, result in enumerate(results) if result.test == test]
        there = [number for number in of_test if results[number].where == place]
        bad = [number for number in of_test if results[number].status in ("Fail", "Warn", "")]
        if chosen := there or bad or of_test:
            said.setdefault(chosen[0], []).append(words)
    for number, result in enumerate(results):
        yield replace(result, warnings=tuple(said.get(number, ())))


def _of_json(text: str) -> Diag:
    first = text.find("{")
    try:
        whole, _ = json.JSONDecoder().raw_decode(text[first:])
    except (ValueError, RecursionError) as error:
        raise ToolError(f"dcgmi diag printed JSON that cannot be read: {error}") from None
    diagnostic = next((whole[title] for title in TITLES if title in whole), None)
    if not isinstance(diagnostic, dict):
        raise ToolError("dcgmi diag printed JSON without its diagnostic")
    if failure := diagnostic.get("runtime_error"):
        return Diag((), True, str(failure).strip())
    return Diag(tuple(_of_categories(diagnostic)), True)


def _of_categories(diagnostic: Mapping[str, Any]) -> Iterator[DiagResult]:
    for category in _objects(diagnostic.get("test_categories")):
        for test in _objects(category.get("tests")):
            results = [*_objects(test.get("results"))] or [*_objects([test.get("test_summary")])]
            for result in results:
                yield from _of_result(str(category.get("category", "")), str(test.get("name", "")), result)


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list):
        return
    for each in value:
        if each is None:
            continue
        if not isinstance(each, dict):
            raise ToolError(f"dcgmi diag printed {each!r} where an object belongs")
        yield each


def _of_result(category: str, test: str, result: Mapping[str, Any]) -> Iterator[DiagResult]:
    said = result.get("warnings") or []
    warnings = [said] if isinstance(said, str) else [each for each in said if isinstance(each, (str, dict))]
    words = [each if isinstance(each, str) else str(each.get("warning", "")) for each in warnings]
    severities = [each["error_severity"] for each in warnings if isinstance(each, dict) and "error_severity" in each]
    severity = severities[0] if severities and isinstance(severities[0], int) else None
    status = str(result.get("status", ""))
    if "entity_group" in result:
        places = [f"{result['entity_group']} {result.get('entity_id', '')}".strip()]
    else:
        numbers = re.findall(r"\d+", str(result.get("gpu_ids", result.get("gpu_id", ""))))
        places = [f"GPU {number}" for number in numbers] or [""]
    for place in places:
        line = words[0] if words else test
        yield DiagResult(category, test, place, status, line, tuple(filter(None, words)), severity)
