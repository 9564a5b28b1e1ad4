from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterbench.checks import Fault, Judged, PartsCheck
from clusterbench.checks._training import training
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.ethernet import FOLDER, Ethernet, Interface
from clusterbench.facts.infiniband import Infiniband
from clusterbench.tools.ethtool_stats import FEWEST_DAMAGED, MOST_DAMAGED, MOST_DOWN
from clusterbench.words import plural


class EthernetErrors(PartsCheck[Interface]):
    """Ethernet interfaces at which packets arrived damaged, or whose link went down again and again.

    More damaged packets than a sound wire has (IEEE 802.3: a bit in 1e12, 7e-8 of large packets) are a warning, and so
    is a link that was lost more than ten times since its interface was made; fewer losses are a note. Where training
    has RDMA ports, what was found at an interface of none of them is a note. When it was counted is not known: whether
    it grows, a run shows. Nothing of this needs root, as link losses in the kernel's log do.
    """

    number = 161
    question = "Do packets arrive whole at every Ethernet port, and does its link stay up?"
    severity = "warning"
    source = f"ethtool -S; {FOLDER}/*/carrier_down_count"
    programs = "ethtool"
    confirm = f"ethtool -S DEVICE | grep -E 'crc|symbol|fcs|link_down'; cat {FOLDER}/DEVICE/carrier_down_count"
    fix = "clean, reseat or replace cable and transceiver, at both ends; look at the counters of the switch's port"
    parts = "Ethernet interfaces that are up"
    in_order = "kept their link"

    def judge(self, host: Host) -> Judged:
        """With how many of those that are in order count damaged packets: a driver may not, or ethtool be absent."""
        said = super().judge(host)
        faulty = {fault.where for fault in said.faults}
        well = [part for part in self.parts_of(host) if part.name not in faulty]
        kept = sum(part.carrier_downs is not None for part in well)
        whole = sum(part.damaged is not None for part in well)
        parts = [f"{plural(kept, 'Ethernet interface')} kept {'its' if kept == 1 else 'their'} link"] if kept else []
        parts += [f"{plural(whole, 'interface')} received no damaged packet"] if whole else []
        return replace(said, healthy="; ".join(parts))

    def parts_of(self, host: Host) -> Sequence[Interface]:
        return [interface for interface in host.of(Ethernet).interfaces if interface.state == "up"]

    def fault(self, host: Host, part: Interface) -> Fault | None:
        if part.damaged is None and part.carrier_downs is None:
            why = f"neither ethtool -S nor {FOLDER}/{part.name} says how its link did"
            raise NotKnown(why, "ethtool, and a driver that counts damaged packets")
        found, many = self._damaged(part)
        downs = part.carrier_downs or 0
        if downs > 1:  # the first is how it came up
            found[f"{FOLDER}/{part.name}/carrier_down_count: {downs}"] = f"its link went down {downs:,} times"
        if not found:
            return None
        counts = (many or downs > MOST_DOWN) and self._trains(host, part)
        return Fault(part.name, "; ".join(found.values()), "; ".join(found), severity=None if counts else "note")

    def _damaged(self, part: Interface) -> tuple[dict[str, str], bool]:
        """What is said of each counter by its evidence, and whether any is beyond what a sound wire has."""
        received = part.num_received or 0
        found, many = {}, False
        for counter, count in (part.damaged or {}).items():
            if count:
                share = f", {count / received:.1e} of those that it received" if received else ""
                found[f"ethtool -S {part.name}: {counter}: {count}"] = f"{count:,} damaged packets ({counter}){share}"
                many |= count > FEWEST_DAMAGED and count > MOST_DAMAGED * received > 0
        return found, many

    def _trains(self, host: Host, part: Interface) -> bool:
        """Whether training may send over it: it is one of its ports, or there are none."""
        ports = training(host).ports
        cards = {port.device for port in ports}
        behind = {gid.interface for port in ports for gid in port.gids}
        behind |= {name for card in host.of(Infiniband).devices if card.name in cards for name in card.interfaces}
        return not ports or part.name in behind or part.bond in behind
