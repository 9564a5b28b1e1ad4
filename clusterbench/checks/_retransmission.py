"""What a lost packet costs a sender that goes back to it and sends all that follows again."""

from __future__ import annotations

IN_FLIGHT_PACKETS = 400e9 / 8 * 10e-6 / 4096
"""400 Gb/s over 10 us there and back, in packets of 4096 bytes: 122 that are sent again for each that is lost."""


def share_lost(num_lost: int, num_packets: int) -> float:
    """Share of a port's bandwidth that sending again has cost, since its counters began.

    >>> round(share_lost(1_000, 10_000_000), 4)
    0.0122
    """
    return min(1.0, num_lost * IN_FLIGHT_PACKETS / num_packets) if num_packets else 0.0
