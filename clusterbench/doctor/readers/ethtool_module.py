"""``ethtool -m``: optical modules that raise an alarm, fail to send, or get too little light."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import ethtool_module
from clusterbench.tools.ethtool_module import Flag, Module, is_dark
from clusterbench.types import Severity
from clusterbench.words import few, plural

_NAME = "optical_module"
_WEAK_LANE_DB = 5.5
"""Between two lanes: what IEEE 802.3 allows a receiver of 100GBASE-LR4 (table 88-8), the most of all its kinds."""
_CLEAN = "clean and reseat the fibre at both ends; replace fibre, then module; look at the other end's transmitter"
_TOO_MUCH = "a fibre of the module's reach, or an attenuator"
_SELF = "reseat the module; let more air through; replace it"


class EthtoolModule(HostText):
    """Alarms of the module itself, lanes in the dark beside lit ones, and lanes far below their siblings.

    A lane whose laser is off is not used, as where a port is split or down. Copper measures no light.
    """

    kind = "ethtool -m"

    def holds(self, text: str) -> bool:
        return ethtool_module.is_module(text)

    def read(self, text: str, name: str) -> Said:
        found, healthy, unknown = [], [], []
        for module in ethtool_module.parse(text):
            place = module.name or "the interface"
            of_this = [*_found(module, name)]
            found += of_this
            used = [*_used(module)]
            if of_this:
                continue
            if not module.received:
                why = f"the module of {place} measures no light: copper, or one without diagnostics"
                unknown.append(NotJudged(_NAME, (name,), why, "ethtool -S; the counters of the switch's port"))
            elif not used:
                why = f"no laser of {place} is on: the port is down, or meant to be"
                unknown.append(NotJudged(_NAME, (name,), why, "which interfaces are meant to be used; ip link"))
            elif module.flags is None and module.least_received is None:
                why = f"the module of {place} has no alarms, and says no limits"
                unknown.append(NotJudged(_NAME, (name,), why, "its data sheet"))
            else:
                least = min(module.received[lane] for lane in used)
                what = f"{place}: {plural(len(used), 'lane')} in the light, {least:g} dBm at least, and no alarm"
                healthy.append(Healthy(_NAME, (name,), what))
        return Said(found=tuple(found), healthy=tuple(healthy), not_judged=tuple(unknown), hosts=(name,))


def _used(module: Module) -> Iterator[int]:
    """Lanes whose laser is on; all where the text says nothing of lasers."""
    for lane in module.received:
        sent, bias = module.sent.get(lane, 0.0), module.bias.get(lane, 1.0)
        if bias > 0 and not is_dark(sent):
            yield lane


def _found(module: Module, name: str) -> Iterator[Found]:
    device = module.name or "NIC"
    used = [*_used(module)]

    def make(severity: Severity, what: str, line: str, fix: str) -> Found:
        confirm = f"ethtool -m {device}; ethtool {device}"
        return Found(_NAME, severity, (name,), module.name, what, f"{name}: {line}", confirm, fix)

    if module.faults:
        what = f"its transmitter failed on lane {few(module.faults)}"
        yield make("error", what, module.fault_line, "reseat the module; if it comes back, replace it")
    dark = [lane for lane in used if is_dark(module.received[lane])]
    lit = [lane for lane in used if lane not in dark]
    if dark:
        beside = f", beside {plural(len(lit), 'lane')} in the light" if lit else ", though it sends"
        lanes = f" on lane {few(dark)}" if lit else ""
        what = f"receives no light{lanes}{beside}"
        yield make("error" if lit else "warning", what, module.lines[dark[0]], _CLEAN)
    weak = [*_weak(module, lit)]
    for lane, what in weak:
        yield make("warning", what, module.lines[lane], _CLEAN)
    told = {*dark, *(lane for lane, _ in weak)}
    for flag in _worst(module):
        of_light = flag.what == "Laser rx power" and flag.kind == "low"
        if used and not (of_light and (flag.lane or 1) in told) and (flag.lane is None or flag.lane in used):
            where = "" if flag.lane is None else f" of lane {flag.lane}"
            what = f"raises the {flag.level} that its {_words(flag)}{where} is too {flag.kind}"
            yield make("warning" if flag.level == "alarm" else "note", what, flag.line, _fix(flag))


def _weak(module: Module, lit: list[int]) -> Iterator[tuple[int, str]]:
    """Lanes below the module's own limit, or far below their siblings."""
    usual = median(module.received[lane] for lane in lit) if lit else 0.0
    for lane in lit:
        power, where = module.received[lane], f" on lane {lane}" if len(module.received) > 1 else ""
        if module.least_received is not None and power < module.least_received:
            yield lane, f"receives {power:g} dBm{where}, less than its limit of {module.least_received:g} dBm"
        elif math.isfinite(power) and power < usual - _WEAK_LANE_DB:
            yield lane, f"receives {power:g} dBm{where}, and most of its lanes {usual:g} dBm"


def _worst(module: Module) -> Iterator[Flag]:
    """Of an alarm and a warning of one thing the alarm."""
    flags = module.flags or ()
    alarms = {(flag.what, flag.kind, flag.lane) for flag in flags if flag.level == "alarm"}
    for flag in flags:
        if flag.level == "alarm" or (flag.what, flag.kind, flag.lane) not in alarms:
            yield flag


def _words(flag: Flag) -> str:
    said = flag.what.removeprefix("Laser ").removeprefix("Module ")
    return {"rx power": "received power", "tx power": "sent power", "output power": "sent power"}.get(said, said)


def _fix(flag: Flag) -> str:
    if flag.what != "Laser rx power":
        return _SELF
    return _CLEAN if flag.kind == "low" else _TOO_MUCH
