"""``lscpu``: which CPUs of a host are on-line, and on which NUMA nodes they are.

Source: util-linux, ``sys-utils/lscpu.c``; also as JSON (``-J``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FIELD = re.compile(r"(?P<key>[A-Z][^:]*?): +(?P<value>\S.*)")
_NODE = re.compile(r"NUMA node(?P<node>\d+) CPU\(s\)")
_ONLINE, _OFFLINE = "On-line CPU(s) list", "Off-line CPU(s) list"
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?(?:,|$)")


@dataclass(frozen=True)
class Lscpu:
    """``lines`` are those of the fields; of a number that is not said None.

    Attributes
    ----------
    offline
        How many CPUs are there and not used.
    nodes
        CPUs of each NUMA node that has some.
    boost
        Whether clocks may rise above their base.
    """

    num_cpus: int | None
    threads_per_core: int | None
    num_nodes: int | None
    offline: int
    nodes: Mapping[int, int]
    boost: bool | None
    is_virtual: bool
    lines: Mapping[str, str]


def is_lscpu(text: str) -> bool:
    return "Thread(s) per core" in text and _ONLINE in text


def parse(text: str) -> Lscpu:
    values: dict[str, str] = {}
    lines: dict[str, str] = {}
    for key, value, line in _fields(text):
        values.setdefault(key, value)
        lines.setdefault(key, line)
    nodes = {int(match[1]): _count(values[key]) for key in values if (match := _NODE.fullmatch(key))}
    return Lscpu(
        _number(values.get("CPU(s)")),
        _number(values.get("Thread(s) per core")),
        _number(values.get("NUMA node(s)")),
        _count(values.get(_OFFLINE, "")),
        {node: number for node, number in nodes.items() if number},
        {"enabled": True, "disabled": False}.get(values.get("Frequency boost", "")),
        "Hypervisor vendor" in values,
        lines,
    )


def _fields(text: str) -> Iterator[tuple[str, str, str]]:
    if text.lstrip().startswith("{"):
        try:
            yield from _of_json(json.loads(text).get("lscpu", []))
        except (ValueError, AttributeError, RecursionError):
            return
        return
    for line in map(str.strip, text.split("\n")[:-1]):  # the end of a list may be cut off
        if said := _FIELD.fullmatch(line):
            yield said["key"], said["value"], line


def _of_json(fields: object) -> Iterator[tuple[str, str, str]]:
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict) and isinstance(key := field.get("field"), str):
            yield key.rstrip(":"), str(field.get("data", "")), f'"{key}"'
            yield from _of_json(field.get("children", []))


def _number(said: str | None) -> int | None:
    return int(said) if said is not None and said.isdigit() else None


def _count(spans: str) -> int:
    """How many CPUs a list such as ``0-3,8`` has, or ``0-62:2`` of every second one.

    >>> _count("0-3,8"), _count("0-62:2"), _count("")
    (5, 32, 0)
    """
    return sum((int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in _SPAN.findall(spans))
