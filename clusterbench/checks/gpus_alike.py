from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from clusterbench.checks import Check, Fault, Judged, Unknown
from clusterbench.checks._training_node import gpu_cards
from clusterbench.facts import Host
from clusterbench.facts.gpus import BUS
from clusterbench.words import plural


class GpusAlike(Check):
    """GPUs, NVIDIA's or AMD's, that the PCIe bus of a host does not show, and those of most hosts do.

    ``gpu_count`` finds what the bus shows and the driver does not; one that has left the bus is missed by other hosts
    alone. It is named by its address where those of the others say which it is: a bus may be numbered anew without it.
    """

    number = 135
    compares_hosts = True
    question = "Has every host as many GPUs on its PCIe bus as most have?"
    severity = "error"
    source = BUS
    confirm = "lspci -nn | grep -E '10de|1002' | grep -E '3D|VGA|Display|accelerators'"
    fix = "a full power cycle; if it stays away, reseat the GPU or its board and look at its power; else RMA"

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        read = {host.name: _addresses(host) for host in hosts if host.environment.get("pcie") is not None}
        counts = Counter(map(len, read.values()))
        usual, most = counts.most_common(1)[0] if counts else (0, 0)
        has_majority = most * 2 > len(read)
        common = Counter(address for addresses in read.values() for address in addresses)
        expected = {address for address, number in common.items() if number * 2 > len(read)}
        judged = {}
        for host in hosts:
            if host.name not in read:
                why = "the tree of PCIe devices was not recorded"
                judged[host.name] = Judged(unknown=(Unknown(why, "a run of this version of clusterbench"),))
            elif len(read) == 1:
                judged[host.name] = Judged(unknown=(Unknown("nothing to hold it against", "a second host"),))
            elif counts.keys() == {0}:
                judged[host.name] = Judged(not_applicable="no GPUs here")
            elif has_majority and len(read[host.name]) < usual:
                judged[host.name] = Judged(_missing(read[host.name], usual, expected, f"{most} of {len(read)} hosts"))
            elif has_majority:
                judged[host.name] = Judged(healthy=f"{plural(len(read[host.name]), 'GPU')} on the PCIe bus")
            else:
                split = " and ".join(f"{number} on {plural(held, 'host')}" for number, held in counts.most_common(3))
                what = f"the number of GPUs on the PCIe bus differs between hosts: {split}"
                judged[host.name] = Judged((Fault("", what, f"{BUS}: {plural(len(read[host.name]), 'GPU')}"),))
        return judged


def _addresses(host: Host) -> set[str]:
    return {str(card.get("address")) for card in gpu_cards(host)}


def _missing(own: set[str], usual: int, expected: set[str], hosts: str) -> tuple[Fault, ...]:
    """Each by its address, or where those of the other hosts do not fit all of them at once."""
    evidence = f"{BUS}: {plural(len(own), 'GPU')}; on {hosts} {usual}"
    gone = sorted(expected - own)
    if len(gone) == usual - len(own):
        return tuple(Fault(f"GPU at {address}", "is not on the PCIe bus", evidence) for address in gone)
    return (Fault("", f"has {plural(len(own), 'GPU')} on the PCIe bus, and most hosts have {usual}", evidence),)
