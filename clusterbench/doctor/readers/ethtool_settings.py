"""``ethtool NIC``: interfaces that run below what both ends could, or in half duplex."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import ethtool_settings
from clusterbench.tools.ethtool_settings import Settings

_NAME = "ethernet_link"
_FIX = "speed and auto-negotiation at the switch's port; cable and transceiver of that speed; ethtool -s NIC autoneg on"


class EthtoolSettings(HostText):
    """Speed held against the fastest mode of both ends; where the other end says none, a slower one is a note.

    Whether an interface without a link should have one the text does not say.
    """

    kind = "ethtool NIC"

    def holds(self, text: str) -> bool:
        return ethtool_settings.is_settings(text)

    def read(self, text: str, name: str) -> Said:
        found, healthy, unknown = [], [], []
        for each in ethtool_settings.parse(text):
            of_this = [*_found(each, name)]
            found += of_this
            if each.has_link is not True or each.speed is None:
                why = f"{each.name} has no link" if each.has_link is False else f"{each.name} says no speed or no link"
                unknown.append(NotJudged(_NAME, (name,), why, "which interfaces are meant to be used; ip link"))
            elif each.supported is None:
                why = f"the driver of {each.name} does not say which speeds it supports: often a virtual one"
                unknown.append(NotJudged(_NAME, (name,), why, "the product's data sheet"))
            elif not of_this:
                who = "both ends" if each.partner else "it"
                what = f"{each.name} runs at {each.speed / 1e3:g} Gb/s, the fastest that {who} can"
                healthy.append(Healthy(_NAME, (name,), what))
        return Said(found=tuple(found), healthy=tuple(healthy), not_judged=tuple(unknown), hosts=(name,))


def _found(said: Settings, name: str) -> Iterator[Found]:
    if said.has_link is not True or said.speed is None:
        return
    confirm = f"ethtool {said.name}; ethtool -m {said.name}"
    if said.duplex == "Half":
        what = "its link is in half duplex"
        yield Found(_NAME, "warning", (name,), said.name, what, f"{name}: {said.duplex_line}", confirm, _FIX)
    if said.supported is None:
        return
    both = min(said.supported, said.partner) if said.partner else None
    if said.speed < (both or said.supported):
        could = f"both ends could at {both / 1e3:g} Gb/s" if both else f"it could at {said.supported / 1e3:g} Gb/s"
        what = f"runs at {said.speed / 1e3:g} Gb/s, and {could}"
        evidence = f"{name}: {said.speed_line}"
        yield Found(_NAME, "warning" if both else "note", (name,), said.name, what, evidence, confirm, _FIX)
