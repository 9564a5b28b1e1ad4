"""``mlxlink``: ports whose firmware says what is wrong with them, bit errors, and modules beyond their limits."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks.link_errors import THRESHOLDS
from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import mlxlink
from clusterbench.tools.mlxlink import MEASURED, MlxPort
from clusterbench.types import Severity

_NAME = "link_signal"
_NO_ISSUE, _CLOSED, _OTHER_VENDOR, _UNPLUGGED = 0, 1, 20, 1024
MOST_LEFT, MOST_RAW = 1e-12, 2.4e-4
"""Bit error rates after and before correction: IEEE 802.3, and what its RS(544,514) code can still correct."""
_NONE = 1e-200
_COUNTED = {"Link Down Counter": "link_downed", "Link Error Recovery Counter": "link_error_recovery"}
_LANES = 4
_FAULTS = ("Module FW Fault", "DataPath FW Fault", "Tx Fault [per lane]")
_CABLE = "clean and reseat the cable or module at both ends, then replace it; see the other end's mlxlink"


class MlxlinkPorts(HostText):
    """The firmware's own word on each port, and its counters since they were cleared.

    A port without a cable, or one that was closed by command, is not judged. Loss of a signal's lock is told of copper
    that works, and says nothing.
    """

    kind = "mlxlink"

    def holds(self, text: str) -> bool:
        return mlxlink.is_mlxlink(text)

    def read(self, text: str, name: str) -> Said:
        found, healthy, unknown = [], [], []
        ports = mlxlink.parse(text)
        for port in ports:
            of_this = [*_found(port, name)]
            found += of_this
            place = port.name or "the port"
            if of_this:
                continue
            if not port.is_active:
                why = f"{place} has no link: {port.recommendation or port.values['State']}"
                unknown.append(NotJudged(_NAME, (name,), why, "which ports are meant to be used"))
            elif port.opcode is None and port.rate("Effective Physical BER") is None:
                why = f"{place} says neither what is wrong with it nor its bit errors"
                unknown.append(NotJudged(_NAME, (name,), why, "mlxlink -d DEVICE -m -c, whole"))
            else:
                healthy.append(Healthy(_NAME, (name,), f"{place}: {_well(port)}"))
        if not ports:
            unknown.append(NotJudged(_NAME, (name,), "the text ends before a port's state", "the whole output"))
        return Said(found=tuple(found), healthy=tuple(healthy), not_judged=tuple(unknown), hosts=(name,))


def _well(port: MlxPort) -> str:
    words = [f"{port.values['Speed']} {port.values.get('Width', '')}".strip()] if port.values.get("Speed") else []
    words += ["no issue"] if port.opcode == _NO_ISSUE else []
    rate = port.rate("Effective Physical BER")
    if rate is None:
        return ", ".join([*words, "bit errors are not in the text"])
    return ", ".join([*words, f"bit error rate {rate:.0e}" if rate > _NONE else "no bit error"])


def _found(port: MlxPort, name: str) -> Iterator[Found]:
    device = port.name.partition(" ")[0] or "DEVICE"

    def make(severity: Severity, what: str, key: str, fix: str = _CABLE) -> Found:
        evidence, confirm = f"{name}: {port.lines[key]}", f"mlxlink -d {device} -m -c"
        return Found(_NAME, severity, (name,), port.name, what, evidence, confirm, fix)

    if port.opcode not in (None, _NO_ISSUE, _CLOSED, _UNPLUGGED):
        severity: Severity = "warning" if port.is_active else "error"
        what = f"its firmware says: {port.recommendation or f'opcode {port.opcode}'}"
        key = "Recommendation" if port.recommendation else "Status Opcode"
        yield make("note" if port.opcode == _OTHER_VENDOR else severity, what, key)
    if (
        port.is_active
        and port.width == 1
        and (port.cable_width or 0) >= _LANES
        and "IB-" in port.values.get("Speed", "")
    ):
        yield make("error", f"its link has 1 lane, and the cable {port.cable_width}", "Width")
    left, raw = port.rate("Effective Physical BER"), port.rate("Raw Physical BER")
    if left is not None and left > MOST_LEFT:
        what = f"has a bit error rate of {left:.1e} after correction, and may have {MOST_LEFT:.0e}"
        yield make("error", what, "Effective Physical BER")
    elif raw is not None and raw > MOST_RAW:
        what = f"has a bit error rate of {raw:.1e} before correction, which can correct {MOST_RAW:.1e}"
        yield make("warning", what, "Raw Physical BER")
    for key, counter in _COUNTED.items():
        if (count := port.count(key) or 0) > THRESHOLDS[counter]:
            what = f"has counted {count:,} {counter}, and rdma-core reports more than {THRESHOLDS[counter]}"
            yield make("warning", what, key)
    for key in _FAULTS:
        if any(state not in ("0", "N/A", "") for state in port.values.get(key, "").split(",")):
            yield make("error", f"its module says {key.partition(' [')[0]}: {port.values[key]}", key)
    for key in MEASURED if port.is_active else ():
        if beyond := port.beyond(key):
            values, least, most = beyond
            said, unit = key[:-1].split(" [")
            words = ", ".join(f"{value:g}" for value in values)
            said = said.lower().removesuffix(" current")
            what = f"its module's {said} is {words} {unit}, and may be {least:g} to {most:g}"
            yield make("warning", what, key)
