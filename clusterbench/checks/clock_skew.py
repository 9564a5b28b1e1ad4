from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from clusterbench.checks import Check, Fault, Judged, Unknown
from clusterbench.facts import Host
from clusterbench.words import few

MOST_SKEW_S = 0.05
_ENOUGH = 3
"""Hosts of which most can be a witness: of two nobody can say which is wrong."""


class ClockSkew(Check):
    """Clocks of hosts that differ, so that times in their logs cannot be laid side by side.

    The first host asks each of the others for its time, and the quickest of several answers counts: half its round trip
    bounds the error. With three hosts or more each is held against the clock of most, so that the first may be the odd
    one as well; where no clock is that of most, and of two hosts, all are named. Above 50 ms (our bound) it is a
    warning.
    """

    number = 75
    compares_hosts = True
    question = "Are the clocks of all hosts within 50 ms?"
    severity = "warning"
    source = "environment.json: clock_offset_s, as the first host measured it"
    confirm = "chronyc tracking, or timedatectl"
    fix = "one time server for all hosts (chrony, ntpd), and 'chronyc makestep' on the odd ones"

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        offsets = {host.name: offset for host in hosts if (offset := _offset(host)) is not None}
        if offsets:
            offsets.setdefault(hosts[0].name, 0.0)  # the one that measured
        if len(offsets) == 2:
            return {host.name: _of_two(host.name, offsets) for host in hosts}
        said = _of_many(offsets) if len(offsets) >= _ENOUGH else {}
        return {host.name: said.get(host.name, _UNKNOWN) for host in hosts}


_UNKNOWN = Judged(unknown=(Unknown("the clock was compared with that of no other host", "a second host"),))


def _usual(offsets: Sequence[float]) -> float | None:
    """The clock of most hosts; None where no more than half of them are within the bound of any."""
    groups = ([other for other in offsets if abs(other - each) <= MOST_SKEW_S] for each in offsets)
    largest = max(groups, key=len)
    return median(largest) if len(largest) * 2 > len(offsets) else None


def _apart(offsets: Mapping[str, float]) -> str:
    """``no clock is that of most hosts: n3, n4 80 ms ahead of n1, n2``"""
    groups: list[list[str]] = []
    for name in sorted(offsets, key=offsets.__getitem__):
        if groups and offsets[name] - offsets[groups[-1][0]] <= MOST_SKEW_S:
            groups[-1].append(name)
        else:
            groups.append([name])
    first, *others = groups
    ahead = [f"{few(group)} {_seconds(offsets[group[0]] - offsets[first[0]])}" for group in others]
    return f"no clock is that of most hosts: {few(ahead)} ahead of {few(first)}"


def _of_two(name: str, offsets: Mapping[str, float]) -> Judged:
    if name not in offsets:
        return _UNKNOWN
    (other,) = offsets.keys() - {name}
    skew = offsets[name] - offsets[other]
    if abs(skew) <= MOST_SKEW_S:
        return Judged(healthy=f"the clock is within {_seconds(MOST_SKEW_S)} of the other host's")
    which = "ahead of" if skew > 0 else "behind"
    return _found(f"the clock is {_seconds(abs(skew))} {which} that of {other}", offsets[name])


def _of_many(offsets: Mapping[str, float]) -> Mapping[str, Judged]:
    usual = _usual([*offsets.values()])
    if usual is None:
        apart = _apart(offsets)
        return {name: _found(apart, offset) for name, offset in offsets.items()}
    return {name: _against(usual, offset) for name, offset in offsets.items()}


def _against(usual: float, offset: float) -> Judged:
    skew = offset - usual
    if abs(skew) <= MOST_SKEW_S:
        return Judged(healthy=f"the clock is within {_seconds(MOST_SKEW_S)} of that of most hosts")
    which = "ahead of" if skew > 0 else "behind"
    return _found(f"the clock is {_seconds(abs(skew))} {which} that of most hosts", offset)


def _found(what: str, offset: float) -> Judged:
    return Judged((Fault("", what, f"clock_offset_s: {offset:g} against the first host"),))


def _offset(host: Host) -> float | None:
    offset = host.environment.get("clock_offset_s")
    return float(offset) if isinstance(offset, (int, float)) and abs(offset) < 1e12 else None


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
