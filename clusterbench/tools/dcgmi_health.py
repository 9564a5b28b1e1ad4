"""``dcgmi health -c``: what DCGM's background watches found, as a tree in a table and as JSON (``-j``).

Source: NVIDIA/DCGM, ``dcgmi/Health.cpp`` and ``dcgmi/DcgmiOutput.cpp``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterbench.errors import ToolError

_TITLE = "Health Monitor Report"
_TABLE = re.compile(r"(?m)^\s*\| *Overall Health +\| *(?P<word>\w[\w ]*?) *\|")
_JSON = re.compile(r'"Overall Health"\s*:')
_ROW = re.compile(r"\|(?P<name>[^|]*)\|(?P<value>.*?)\|?\s*")
_WORDS = ("Healthy", "Warning", "Failure", "Internal error")


@dataclass(frozen=True)
class Incident:
    """``where`` is ``GPU 0``, ``system`` ``PCIe system``, ``health`` ``Warning`` or ``Failure``."""

    where: str
    system: str
    health: str
    words: str
    line: str


@dataclass(frozen=True)
class Health:
    overall: str
    incidents: tuple[Incident, ...]
    is_whole: bool


def is_health(text: str) -> bool:
    """Whether a text is its report."""
    return _TITLE in text and (_TABLE.search(text) is not None or _JSON.search(text) is not None)


def parse(text: str) -> Health:
    """The report.

    Raises
    ------
    ToolError
        If its JSON cannot be read, or the overall health is none that DCGM has.
    """
    if table := _TABLE.search(text):
        overall, incidents = table["word"], tuple(_of_table(text[table.end() :]))
        is_whole = re.search(r"(?m)^\s*\+-{10,}\+-{10,}\+\s*$", text[table.end() :]) is not None
    else:
        overall, incidents = _of_json(text)
        is_whole = True
    if overall not in _WORDS:
        raise ToolError(f"dcgmi health says {overall!r}, which is none of {', '.join(_WORDS)}")
    return Health(overall, incidents, is_whole)


def _of_table(text: str) -> Iterator[Incident]:
    """Groups of entities stand at the margin, their numbers behind one arrow, systems behind the third."""
    group = entity = ""
    incident: Incident | None = None
    for line in text.splitlines():
        if not (row := _ROW.fullmatch(line.strip())):
            continue
        name, value = row["name"], row["value"].strip()
        bare = name.strip().removeprefix("->").strip()
        depth = (len(name) - len(name.lstrip())) // 3 if "->" in name else -1
        if not bare and incident:
            incident = Incident(
                incident.where, incident.system, incident.health, f"{incident.words} {value}".strip(), incident.line
            )
            continue
        if incident:
            yield incident
            incident = None
        if depth < 0:
            group = bare
        elif bare.isdigit():
            entity = f"{group} {bare}"
        elif value in _WORDS:
            incident = Incident(entity, bare, value, "", line.strip())
    if incident:
        yield incident


def _of_json(text: str) -> tuple[str, tuple[Incident, ...]]:
    try:
        whole, _ = json.JSONDecoder().raw_decode(text[text.find("{") :])
    except (ValueError, RecursionError) as error:
        raise ToolError(f"dcgmi health printed JSON that cannot be read: {error}") from None
    body = whole.get("body")
    if not isinstance(body, dict) or not isinstance(body.get("Overall Health"), dict):
        raise ToolError("dcgmi health printed JSON without 'Overall Health'")
    return str(body["Overall Health"].get("value")), tuple(_of_body(body))


def _children(node: object) -> Mapping[str, Any]:
    children = node.get("children") if isinstance(node, dict) else None
    return children if isinstance(children, dict) else {}


def _of_body(body: Mapping[str, Any]) -> Iterator[Incident]:
    for group, of_group in body.items():
        for number, entity in _children(of_group).items():
            for system, said in _children(_children(entity).get("Errors")).items():
                overflow = said.get("overflow", []) if isinstance(said, dict) else []
                words = " ".join(str(each.get("value", each) if isinstance(each, dict) else each) for each in overflow)
                health = str(said.get("value", "")) if isinstance(said, dict) else ""
                yield Incident(f"{group} {number}", system, health, words, system)
