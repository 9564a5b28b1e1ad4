"""JSON as programs print it, among warnings, and its numbers, looked up by their path."""

from __future__ import annotations

import json
import math
from typing import Any

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, whole_lines


def document(tool: str, text: str) -> dict[str, Any]:
    """The one object in ``text``; lines before and after it are warnings.

    Raises
    ------
    ToolError
        If there is none, or it is cut.
    """
    lines = whole_lines(text)
    first = next((index for index, line in enumerate(lines) if line.startswith("{")), None)
    last = next((index for index in range(len(lines) - 1, -1, -1) if lines[index].rstrip() == "}"), None)
    if first is None or last is None:
        raise ToolError(f"{tool} printed no JSON: {end_of(text)}")
    try:
        value = json.loads("\n".join(lines[first : last + 1]))
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{tool} printed JSON that cannot be read ({error}): {end_of(text)}") from None
    assert isinstance(value, dict)  # it starts with a brace
    return value


def figure(tool: str, document: object, path: str) -> float:
    """A number by its path: ``end.sum_sent.retransmits``; parts that are numbers index lists.

    Raises
    ------
    ToolError
        If it is not there, is no number, or is negative.
    """
    value = document
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise ToolError(f"{tool} printed no '{path}'")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ToolError(f"{tool} printed {value!r} as '{path}', which is no number that can be")
    return float(value)
