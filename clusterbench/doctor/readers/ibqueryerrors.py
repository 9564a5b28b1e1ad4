"""``ibqueryerrors``: the ports of a fabric whose error counters are high."""

from __future__ import annotations

from clusterbench.doctor import Healthy, NotJudged
from clusterbench.doctor.readers import _port_counters
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import port_counters

_NAME = "link_errors"


class Ibqueryerrors(HostText):
    """Ports that it names, by their node; those that it does not name are below the limits it was given.

    Which of both ends of a link is ill it cannot tell: errors are counted where packets arrive.
    """

    kind = "ibqueryerrors"

    def holds(self, text: str) -> bool:
        return port_counters.is_ibqueryerrors(text)

    def read(self, text: str, name: str) -> Said:
        said = port_counters.parse_ibqueryerrors(text)
        found = tuple(_port_counters.found(said.ports, name))
        healthy: tuple[Healthy, ...] = ()
        unknown = _port_counters.waits(said.ports, name)
        if said.num_checked is None:
            unknown += (NotJudged(_NAME, (name,), "the text ends before the summary", "the whole output"),)
        elif not said.num_checked:
            unknown += (NotJudged(_NAME, (name,), "no port was checked", "a host with an active port, as root"),)
        else:
            well = said.num_checked - len({each.where for each in found})
            healthy = (Healthy(_NAME, (name,), f"{well} of {said.num_checked} ports without link errors"),)
        return Said(found=found, healthy=healthy if not found else (), not_judged=unknown, hosts=(name,))
