"""Memory modules, each held against the others of the host, and parts that the firmware calls broken."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import dmidecode
from clusterbench.tools.dmidecode import Dmidecode, MemorySlot
from clusterbench.types import Severity
from clusterbench.words import plural

_BROKEN = re.compile(r"(?:Present, )?(?:Critical|Non-recoverable)|Populated, Disabled By BIOS.*")
_CONFIRM = "dmidecode -t memory; ipmitool sel list"
_FIX = "look for a module that is broken, badly seated, or switched off by the BIOS after errors; replace it"


class DmidecodeTables(HostText):
    """Modules that are missing on one socket and not on another, smaller or slower than their siblings.

    Slots are compared where their names say the socket. A module that is slower than it could be, as all are, is a
    note: the processor may not run it faster. What a virtual machine says of modules is invented.
    """

    kind = "dmidecode"

    def holds(self, text: str) -> bool:
        return dmidecode.is_dmidecode(text)

    def read(self, text: str, name: str) -> Said:
        said = dmidecode.parse(text)
        modules = [slot for slot in said.slots if slot.size_bytes is not None]
        if said.is_virtual or not modules:
            why = "a virtual machine's memory modules are invented" if said.is_virtual else "no memory module is listed"
            part = NotJudged("memory_modules", (name,), why, "dmidecode as root on the host itself")
            return Said(not_judged=(part,), hosts=(name,))
        found = [*_broken(said, name), *_missing(said.slots, name), *_slower(modules, name), *_smaller(modules, name)]
        unclear: tuple[NotJudged, ...] = ()
        if len(modules) < len(said.slots) and len({slot.socket for slot in modules} - {None}) < 2:
            why = (
                f"{plural(len(said.slots) - len(modules), 'slot')} of {len(said.slots)} are empty, and no other socket "
            )
            why += "says whether they should be"
            unclear = (NotJudged("memory_slots", (name,), why, "the host's specification"),)
        healthy: tuple[Healthy, ...] = ()
        if not any(each.severity != "note" for each in found):
            sizes = sorted({slot.size_bytes / 2**30 for slot in modules if slot.size_bytes})
            what = f"{plural(len(modules), 'memory module')} of {' and '.join(f'{size:g}' for size in sizes)} GiB, "
            healthy = (Healthy("memory_modules", (name,), f"{what}as fast and as many on every socket"),)
        return Said(found=tuple(found), healthy=healthy, not_judged=unclear, hosts=(name,))


def _broken(said: Dmidecode, name: str) -> Iterator[Found]:
    for part, state, line in said.states:
        if _BROKEN.fullmatch(state):
            what, fix = f"the firmware says of it: {state}", "ipmitool sel list says since when; replace the part"
            severity: Severity = "error" if "Disabled" in state else "warning"
            confirm = "dmidecode -t processor -t chassis -t 39; ipmitool sdr"
            yield Found("firmware_state", severity, (name,), part, what, f"{name}: {line}", confirm, fix)


def _missing(slots: Sequence[MemorySlot], name: str) -> Iterator[Found]:
    """Slots that are empty on a socket with fewer modules, where the fullest socket has one."""
    sockets: dict[str, dict[str, MemorySlot]] = defaultdict(dict)
    for slot in slots:
        if slot.socket is not None and slot.place is not None:
            sockets[slot.socket][slot.place] = slot
    filled = {socket: {place for place, slot in of.items() if slot.size_bytes} for socket, of in sockets.items()}
    filled = {socket: places for socket, places in filled.items() if places}  # a socket may have no processor
    most = max(filled.values(), key=len, default=set())
    for socket, places in filled.items():
        if len(places) < len(most):
            for place in sorted(most - places):
                if (empty := sockets[socket].get(place)) is not None:
                    what = f"is empty: socket {socket} has {len(places)} memory modules, and another {len(most)}"
                    evidence = f"{name}: {empty.line}"
                    yield Found("memory_modules", "warning", (name,), empty.locator, what, evidence, _CONFIRM, _FIX)


def _slower(modules: Sequence[MemorySlot], name: str) -> Iterator[Found]:
    speeds = [slot.transfers_per_s for slot in modules if slot.transfers_per_s]
    fastest = max(speeds, default=0.0)
    for slot in modules:
        if slot.transfers_per_s and slot.transfers_per_s < fastest:
            what = f"runs at {slot.transfers_per_s / 1e6:.0f} MT/s, and others at {fastest / 1e6:.0f}"
            evidence = f"{name}: {slot.speed_line}"
            yield Found("memory_speed", "warning", (name,), slot.locator, what, evidence, _CONFIRM, _FIX)
    rated = min((slot.rated_transfers_per_s for slot in modules if slot.rated_transfers_per_s), default=0.0)
    if speeds and len({*speeds}) == 1 and fastest < rated:
        what = f"all modules run at {fastest / 1e6:.0f} MT/s, and could at {rated / 1e6:.0f}"
        fix = "two modules on a channel, or the processor, may ask for it; else the BIOS's memory speed"
        yield Found("memory_speed", "note", (name,), "", what, f"{name}: {modules[0].speed_line}", _CONFIRM, fix)


def _smaller(modules: Sequence[MemorySlot], name: str) -> Iterator[Found]:
    """Modules smaller than those at the same place on another socket."""
    places: dict[str, list[MemorySlot]] = defaultdict(list)
    for slot in modules:
        if slot.place is not None:
            places[slot.place].append(slot)
    for alike in places.values():
        most = max(slot.size_bytes or 0 for slot in alike)
        for slot in alike:
            if (own := slot.size_bytes or 0) < most:
                what = f"holds {own / 2**30:g} GiB, and the module at its place on another socket {most / 2**30:g} GiB"
                yield Found(
                    "memory_modules", "warning", (name,), slot.locator, what, f"{name}: {slot.line}", _CONFIRM, _FIX
                )
