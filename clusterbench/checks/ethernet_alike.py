from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.facts import Host
from clusterbench.facts.ethernet import FOLDER, Ethernet


class EthernetAlike(AlikeCheck):
    """Speed, MTU, driver, firmware, pauses and ECN of Ethernet interfaces of one name, where hosts differ in them.

    A link that came up at a lower speed, frames of 1500 bytes among those of 9000 (large transfers stall, small ones
    pass), or a host that does not answer pauses slows every collective that crosses it.
    """

    number = 122
    question = (
        "Have Ethernet interfaces of one name one speed, MTU, driver, firmware, pause and ECN setting on all hosts?"
    )
    severity = "warning"
    source = f"{FOLDER}/*/speed, mtu, ecn; ethtool -i, -a"
    programs = "ethtool"
    confirm = (
        "ip -d link; ethtool DEVICE; ethtool -i DEVICE; ethtool -a DEVICE; grep . /sys/class/net/DEVICE/ecn/*/enable/*"
    )
    fix = "give the odd hosts the setting of the others; for a lower speed look at cable, transceiver and switch port"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        traits = {}
        for interface in host.of(Ethernet).interfaces:
            folder, name = f"{FOLDER}/{interface.name}", interface.name
            speed, mtu = interface.bits_per_s, interface.mtu_bytes
            for what, value, source in (
                ("speed", f"{speed / 1e9:g} Gb/s" if speed else None, f"{folder}/speed"),
                ("MTU", f"{mtu} bytes" if mtu else None, f"{folder}/mtu"),
                ("driver", interface.driver, f"{folder}/device/driver"),
                ("firmware", interface.firmware, f"ethtool -i {name}"),
                ("pause setting", interface.pauses, f"ethtool -a {name}"),
                ("ECN setting", _ecn(interface.ecn), f"{folder}/ecn"),
            ):
                if value:
                    traits[f"the {what} of {name}"] = Trait(value, source, name)
        return traits


def _ecn(on: Mapping[str, Sequence[int]]) -> str:
    """``np 0 3, rp none``; empty where nothing is known."""
    return ", ".join(f"{role} {' '.join(map(str, priorities)) or 'none'}" for role, priorities in on.items())
