"""Pauses of a priority (PFC) that an Ethernet port was told, or told the other end, beside what they stop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.types import Severity

MANY_PAUSES, MOST_PAUSES = 0.01, 0.1
"""Frames of pauses for each packet of the direction that they stop. A pause and the word to go on count one each, with
at least a round trip over the cable between them, 1 us: twelve packets of 4,096 bytes at 400 Gb/s. One frame for ten
packets is then 0.6 of the time that sending takes, and one for a hundred 0.06. Both limits are ours."""
_COUNTER = re.compile(r"(?P<way>[rt]x)_prio(?P<priority>\d)_pause")


@dataclass(frozen=True)
class Pauses:
    """What a counter of pauses says: ``rx`` are those that stop what the port sends, ``tx`` what it receives."""

    counter: str
    way: str
    priority: str
    count: int

    def judged(self, num_packets: int) -> tuple[Severity, str] | None:
        """How bad they are among so many packets of the direction that they stop, and in which words."""
        share = self.count / num_packets if num_packets else 0.0
        if share < MANY_PAUSES:
            return None
        words = {
            "rx": f"was told to pause {self.count:,} times, {share:.1%} of the packets that it sent",
            "tx": f"told the other end to pause {self.count:,} times, {share:.1%} of the packets that it received",
        }
        return (
            "warning" if share >= MOST_PAUSES else "note",
            f"{words[self.way]}: priority {self.priority} is congested",
        )


def pauses(counters: Mapping[str, int]) -> Iterator[Pauses]:
    """Those of ``ethtool -S`` that are not zero."""
    for name, count in counters.items():
        if count and (said := _COUNTER.fullmatch(name)):
            yield Pauses(name, said["way"], said["priority"], count)
