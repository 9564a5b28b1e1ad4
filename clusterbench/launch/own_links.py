"""The network interfaces of this host: which of those that were up when the run began are down now."""

from __future__ import annotations

import psutil


class OwnLinks:
    """Looks when it is made, and compares with that later."""

    def __init__(self) -> None:
        self._up = _up()

    def down(self) -> tuple[str, ...]:
        """Interfaces that have lost their carrier, or were switched off, since the run began."""
        return tuple(sorted(self._up - _up()))


def _up() -> set[str]:
    return {name for name, seen in psutil.net_if_stats().items() if seen.isup}
