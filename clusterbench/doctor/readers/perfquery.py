"""``perfquery`` and ``perfquery -x``: error counters of a port."""

from __future__ import annotations

from clusterbench.checks.link_errors import THRESHOLDS
from clusterbench.doctor import Healthy, NotJudged
from clusterbench.doctor.readers import _port_counters
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import port_counters
from clusterbench.words import plural

_NAME = "link_errors"


class Perfquery(HostText):
    """Counters above rdma-core's limits, since the port was reset: when that was is not said.

    Older versions print no error counter with ``-x``; then only those without it tell of errors.
    """

    kind = "perfquery"

    def holds(self, text: str) -> bool:
        return port_counters.is_perfquery(text)

    def read(self, text: str, name: str) -> Said:
        try:
            ports = port_counters.parse_perfquery(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged(_NAME, (name,), str(error), "the whole output"),), hosts=(name,))
        told = [port for port in ports if THRESHOLDS.keys() <= {*port.counters}]
        partly = [port.where for port in ports if port not in told]
        found = tuple(_port_counters.found(ports, name))
        bad = {each.where for each in found}
        well = [port for port in told if port.where not in bad]
        healthy = (Healthy(_NAME, (name,), f"{plural(len(well), 'port')} without link errors"),) if well else ()
        why = f"not all error counters of {', '.join(partly)} are in the text"
        unknown = (NotJudged(_NAME, (name,), why, "perfquery without -x, whole"),) if partly else ()
        return Said(
            found=found, healthy=healthy, not_judged=(*unknown, *_port_counters.waits(ports, name)), hosts=(name,)
        )
