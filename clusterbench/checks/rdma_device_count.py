from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from clusterbench.checks import Check, Fault, Judged, Unknown
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import FOLDER, Infiniband
from clusterbench.words import few, plural


class RdmaDeviceCount(Check):
    """Hosts with fewer or more RDMA devices than most, with the names of those that are missing.

    A ring over hosts has as many lanes as the host with the fewest devices. Names are compared, so that two devices
    which changed places are no fault, and a missing one is named as others call it. AMD's Primus asks for the number
    (``--expected-rdma-nics``); here it is that of most hosts.
    """

    number = 43
    compares_hosts = True
    question = "Has every host as many RDMA devices as most?"
    severity = "error"
    source = FOLDER
    confirm = "ls /sys/class/infiniband; lspci | grep -iE 'infiniband|mellanox|ethernet'"
    fix = "look for the card in lspci: there, load its driver; gone, reseat it, power cycle, replace it"

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        judged: dict[str, Judged] = {}
        names: dict[str, frozenset[str]] = {}
        for host in hosts:
            try:
                names[host.name] = frozenset(device.name for device in host.of(Infiniband).devices)
            except NotKnown as error:
                judged[host.name] = Judged(unknown=(Unknown(error.why, error.takes),))
        if not any(names.values()):
            judged |= {name: Judged(not_applicable="no RDMA devices on any host") for name in names}
        else:
            judged |= {name: _judged(own, names) for name, own in names.items()}
        return {host.name: judged[host.name] for host in hosts}


def _judged(own: frozenset[str], every: Mapping[str, frozenset[str]]) -> Judged:
    if len(every) == 1:
        return Judged(unknown=(Unknown("nothing to hold it against", "a second host"),))
    counts = Counter(map(len, every.values()))
    usual, hosts = max(counts.items(), key=lambda item: (item[1], item[0]))
    if len(own) == usual:
        return Judged(healthy=f"{plural(usual, 'RDMA device')}, as on {hosts} of {len(every)} hosts")
    common = Counter(name for names in every.values() for name in names)
    most = {name for name, count in common.items() if count * 2 > len(every)}
    missing, more = sorted(most - own), sorted(own - most)
    evidence = (
        f"{FOLDER}: {few(sorted(own), 12) or 'empty'}; {plural(usual, 'device')} on {hosts} of {len(every)} hosts"
    )
    others = "most hosts have" if hosts * 2 > len(every) else "others have"
    what = f"has {plural(len(own), 'RDMA device')}, and {others} {usual}"
    if missing and len(own) < usual:
        what += f": {few(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if more and len(own) > usual:
        what += f": {few(more)} {'is' if len(more) == 1 else 'are'} here alone"
    return Judged((Fault(few(missing if len(own) < usual else more), what, evidence),))
