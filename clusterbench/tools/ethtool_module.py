"""``ethtool -m``: the optical module of a network interface, what it measures lane by lane, and its alarms.

Source: the source of ethtool, ``sfpdiag.c``, ``qsfp.c`` (SFF-8636), ``cmis.c`` and ``sff-common.c``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_COMMAND = re.compile(r"ethtool\s+(?:-m|--dump-module-eeprom|--module-info)\s+(?P<name>[\w.@-]+)")
_FIELD = re.compile(r"(?P<key>[A-Z][^:]*?)\s*: (?P<value>.*)")
_LANE = re.compile(r"(?P<key>.*?)\s*\((?:Channel|Chan) (?P<lane>\d+)\)")
_DBM = re.compile(r"[\d.]+ mW / (?P<dbm>-?[\d.]+|-inf) dBm.*")
_MILLIAMPERE = re.compile(r"(?P<current>[\d.]+) mA.*")
_FLAG = re.compile(r"(?P<what>.*\S)\s+(?P<kind>high|low) (?P<level>alarm|warning)")
_STATES = re.compile(r"\[\s*(?P<lanes>(?:Yes|No)(?:,\s*(?:Yes|No))*)\s*\]")
_RECEIVED = ("Receiver signal average optical power", "Receiver signal OMA", "Rcvr signal avg optical power")
_SENT = ("Laser output power", "Transmit avg optical power")
_BIAS = ("Laser bias current", "Laser tx bias current")
_THRESHOLD = "Laser rx power low alarm threshold"


@dataclass(frozen=True)
class Flag:
    """An alarm or a warning that is on: ``Laser rx power``, ``low``, ``alarm``, of which lane, and its line."""

    what: str
    kind: str
    level: str
    lane: int | None
    line: str


@dataclass(frozen=True)
class Module:
    """A module; powers in dBm by lane, from 1 on or, as older versions count, from 0.

    Attributes
    ----------
    name
        The interface; empty where no command line says it.
    received, sent
        A lane in the dark has minus infinity.
    bias
        Current of the laser in mA; zero where it is off.
    least_received
        What the module raises its alarm below; None where it does not say it.
    flags
        Those that are on; None where the module has none.
    faults
        Lanes whose transmitter failed; ``fault_line`` says so.
    lines
        Of each lane's received power.
    """

    name: str
    received: Mapping[int, float]
    sent: Mapping[int, float]
    bias: Mapping[int, float]
    least_received: float | None
    flags: Sequence[Flag] | None
    faults: Sequence[int]
    fault_line: str
    lines: Mapping[int, str]


@dataclass
class _Parts:
    name: str
    received: dict[int, float] = field(default_factory=dict)
    sent: dict[int, float] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)
    least_received: float | None = None
    num_flags: int = 0
    flags: list[Flag] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    fault_line: str = ""
    lines: dict[int, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def module(self) -> Module:
        return Module(
            self.name,
            self.received,
            self.sent,
            self.bias,
            self.least_received,
            tuple(self.flags) if self.num_flags else None,
            tuple(self.faults),
            self.fault_line,
            self.lines,
        )


def is_module(text: str) -> bool:
    """Whether a text is one, whole or its part with measurements."""
    keys = {said["key"].strip() for line in text.splitlines() if (said := _FIELD.fullmatch(line.strip()))}
    return {"Identifier", "Vendor name"} <= keys or any(_key(key)[0] in _RECEIVED for key in keys)


def parse(text: str) -> tuple[Module, ...]:
    """Each module, in the order of the text."""
    return tuple(each.module() for each in _modules(text))


def _modules(text: str) -> Iterator[_Parts]:
    following = ""
    parts: _Parts | None = None
    for line in map(str.strip, text.splitlines()):
        if command := _COMMAND.search(line):
            if parts is not None:
                yield parts
            following, parts = command["name"], None
        elif said := _FIELD.fullmatch(line):
            if parts is not None and said["key"] == "Identifier" and parts.values:
                yield parts
                following, parts = "", None
            parts = parts or _Parts(following)
            _take(parts, said["key"], said["value"].strip(), line)
    if parts is not None:
        yield parts


def _key(key: str) -> tuple[str, int | None]:
    lane = _LANE.fullmatch(key)
    return (" ".join(lane["key"].split()), int(lane["lane"])) if lane else (" ".join(key.split()), None)


def _take(parts: _Parts, said: str, value: str, line: str) -> None:
    key, number = _key(said)
    lane = 1 if number is None else number
    power, current, lanes = _DBM.fullmatch(value), _MILLIAMPERE.fullmatch(value), _STATES.fullmatch(value)
    if key == _THRESHOLD:
        parts.least_received = None if power is None or "-inf" in value else float(power["dbm"])
    elif (flag := _FLAG.fullmatch(key)) and value in ("On", "Off"):
        parts.num_flags += 1
        if value == "On":
            parts.flags.append(Flag(flag["what"], flag["kind"], flag["level"], number, line))
    elif key in _RECEIVED and power:
        parts.received[lane] = float(power["dbm"])
        parts.lines[lane] = line
    elif key in _SENT and power:
        parts.sent[lane] = float(power["dbm"])
    elif key in _BIAS and current:
        parts.bias[lane] = float(current["current"])
    elif key == "Tx fault" and lanes:
        parts.faults += [index for index, state in enumerate(lanes["lanes"].split(","), 1) if "Yes" in state]
        parts.fault_line = line
    else:
        parts.values.setdefault(key, value)


def is_dark(power: float) -> bool:
    """Whether so many dBm are no light: below what a photodiode of any such module can tell from none."""
    return power <= -30 or math.isinf(power)
