"""``mlxlink`` (``mstlink``): a port's link, what its firmware says is wrong with it, its bit errors and its module.

Source: Mellanox/mstflint, ``mlxlink/modules``; the meaning of status opcodes: NVIDIA, MLNX-OS user manual, link
diagnostic per port. A bit error rate of ``15E-255`` means none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COMMAND = re.compile(
    r"(?:mlxlink|mstlink)\s.*?(?:-d|--device)[ =](?P<device>\S+)(?:.*?\s(?:-p|--port)[ =](?P<port>\S+))?"
)
_FIELD = re.compile(r"(?P<key>[A-Z][^:]*?)\s*: ?(?P<value>.*)")
_BEGIN = "Operational Info"
_RANGE = re.compile(r"(?P<values>-?[\d.]+(?:,-?[\d.]+)*) \[(?P<least>-?[\d.]+)\.\.(?P<most>-?[\d.]+)\]")
_RATE = re.compile(r"\d+(?:\.\d+)?[eE]-\d+|0")
_WIDTH = re.compile(r"(\d+)x")
MEASURED = ("Temperature [C]", "Voltage [mV]", "Bias Current [mA]", "Rx Power Current [dBm]", "Tx Power Current [dBm]")
"""Of a module, with its limits behind."""


@dataclass(frozen=True)
class MlxPort:
    """One port: its fields by mlxlink's names, and the line of each."""

    name: str
    values: Mapping[str, str]
    lines: Mapping[str, str]

    @property
    def is_active(self) -> bool:
        return self.values["State"].startswith("Active")

    @property
    def opcode(self) -> int | None:
        said = self.values.get("Status Opcode", "")
        return int(said) if said.isdigit() else None

    @property
    def recommendation(self) -> str:
        return self.values.get("Recommendation", "").rstrip(" .")

    @property
    def width(self) -> int | None:
        """Lanes of the link."""
        match = _WIDTH.fullmatch(self.values.get("Width", ""))
        return int(match[1]) if match else None

    @property
    def cable_width(self) -> int | None:
        """The most lanes of the cable, as InfiniBand counts them."""
        return max((int(lanes) for lanes in _WIDTH.findall(self.values.get("IB Cable Width", ""))), default=None)

    def rate(self, name: str) -> float | None:
        """A bit error rate; None where the text has none."""
        said = self.values.get(name, "")
        return float(said) if _RATE.fullmatch(said) else None

    def count(self, name: str) -> int | None:
        """A counter; None where the text has none."""
        said = self.values.get(name, "")
        return int(said) if said.isdigit() else None

    def beyond(self, name: str) -> tuple[Sequence[float], float, float] | None:
        """A module's values that are beyond its limits, and these; None where none is, or it names no limits."""
        match = _RANGE.fullmatch(self.values.get(name, ""))
        if match is None or float(match["least"]) == float(match["most"]):
            return None
        least, most = float(match["least"]), float(match["most"])
        beyond = [value for value in map(float, match["values"].split(",")) if not least <= value <= most]
        return (beyond, least, most) if beyond else None


def is_mlxlink(text: str) -> bool:
    return _BEGIN in text and ("Physical state" in text or "Troubleshooting Info" in text)


def parse(text: str) -> tuple[MlxPort, ...]:
    """Each port in the order of the text; what ends before its state is left out."""
    if text.lstrip().startswith("{"):
        return tuple(_of_json(text))
    return tuple(port for port in _of_text(text) if "State" in port.values)


def _of_text(text: str) -> Iterator[MlxPort]:
    name = following = ""
    values: dict[str, str] = {}
    lines: dict[str, str] = {}
    is_begun = False
    for line in map(str.strip, text.split("\n")[:-1]):  # the end of a number may be cut off: 15E-2 of 15E-255
        if command := _COMMAND.search(line):
            following = command["device"] + (f" port {command['port']}" if command["port"] else "")
        elif line == _BEGIN:
            if is_begun:
                yield MlxPort(name, values, lines)
            name, following, values, lines, is_begun = following, "", {}, {}, True
        elif is_begun and (said := _FIELD.fullmatch(line)):
            values.setdefault(said["key"], said["value"].strip())
            lines.setdefault(said["key"], line)
    if is_begun:
        yield MlxPort(name, values, lines)


def _of_json(text: str) -> Iterator[MlxPort]:
    decoder, rest = json.JSONDecoder(), text.lstrip()
    while rest.startswith("{"):
        try:
            said, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return
        rest = rest[end:].lstrip()
        output = said.get("result", {}).get("output", said) if isinstance(said.get("result", {}), dict) else said
        values = {key: _words(value) for part in _sections(output) for key, value in part.items()}
        if "State" in values:
            yield MlxPort("", values, {key: f'"{key}"' for key in values})


def _sections(output: Any) -> Iterator[Mapping[str, Any]]:
    for part in output.values() if isinstance(output, dict) else ():
        if isinstance(part, dict):
            yield part


def _words(value: Any) -> str:
    """A list stands under ``values``, and a mask beside them."""
    if isinstance(value, dict):
        value = value.get("values", "")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
