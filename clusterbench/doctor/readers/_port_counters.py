"""What is made of error counters of InfiniBand ports, whoever printed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.checks.link_errors import THRESHOLDS, LinkErrors
from clusterbench.doctor import Found, NotJudged
from clusterbench.tools.port_counters import PortErrors
from clusterbench.types import Severity
from clusterbench.words import few, plural

_FULL = {"link_downed": 255, "link_error_recovery": 255, "symbol_error": 65_535, "port_rcv_errors": 65_535}
"""Where counters of 8 and 16 bits stop, as ports without the extended ones have them."""


def found(ports: Sequence[PortErrors], name: str) -> Iterator[Found]:
    """Ports above rdma-core's limits as a warning, those with fewer errors as a note, as ``link_errors`` does."""
    for port in ports:
        counted = {counter: count for counter, count in port.counters.items() if count and counter in THRESHOLDS}
        high = [counter for counter, count in counted.items() if count > THRESHOLDS[counter]]
        told = high or [counter for counter in counted if THRESHOLDS[counter] <= min(THRESHOLDS.values())]
        if not told:
            continue
        said = ", ".join(f"{counted[counter]:,} {counter}{_full(counter, counted[counter])}" for counter in told)
        severity: Severity = "warning" if high else "note"
        limits = ", ".join(str(THRESHOLDS[counter]) for counter in told)
        what = f"has counted {said}, and rdma-core reports more than {limits}" if high else f"has counted {said}: few"
        evidence = f"{name}: {port.lines[told[0]]}"
        yield Found("link_errors", severity, (name,), port.where, what, evidence, "ibqueryerrors", LinkErrors.fix)


def _full(counter: str, count: int) -> str:
    return " (the counter is full)" if count == _FULL.get(counter) else ""


def waits(ports: Sequence[PortErrors], name: str) -> tuple[NotJudged, ...]:
    """Ports that waited for room to send: how long a time they were counted is not said."""
    waited = [port.where for port in ports if port.counters.get("port_xmit_wait")]
    if not waited:
        return ()
    why = f"{plural(len(waited), 'port')} waited for room to send ({few(waited)}), since when is not said"
    return (NotJudged("congestion", (name,), why, "PortXmitWait twice, some seconds apart, while a job runs"),)
