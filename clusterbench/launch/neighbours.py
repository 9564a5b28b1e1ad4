"""Hosts beside those of a run with which the head's host has connections, as to its login node or its file server.

Of two hosts that no longer hear each other neither can say whose link it is. Where nobody else answers either, it is
one's own.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress

import psutil

MOST = 4
PORT = 22  # whether somebody listens there or not: a host that refuses is there
SECONDS_TO_ANSWER = 2.0


class Neighbours:
    """Looks when it is made, beside what goes on, who is there and answers.

    Parameters
    ----------
    address
        Of this host, over which the run talks: who is reached over another says nothing of this link.
    of_run
        Addresses of the hosts of the run.
    """

    def __init__(self, address: str, of_run: Collection[str] = ()) -> None:
        self._answered: tuple[str, ...] = ()
        self._looking = threading.Thread(target=self._look, args=(address, of_run), daemon=True)
        self._looking.start()

    def _look(self, address: str, of_run: Collection[str]) -> None:
        found = dict.fromkeys(other for own, other in _connections() if own == address and other not in of_run)
        self._answered = _answering(tuple(found)[:MOST])

    def gone(self) -> tuple[str, ...]:
        """Addresses that answered, where none of them does any more; empty where one does, or there were none.

        Takes twice :data:`SECONDS_TO_ANSWER` at most.
        """
        self._looking.join(SECONDS_TO_ANSWER)
        return () if _answering(self._answered) else self._answered


def _connections() -> Iterator[tuple[str, str]]:
    """The two addresses of each TCP connection with another host; none where the system does not tell (macOS)."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return
    for connection in connections:
        if connection.status == psutil.CONN_ESTABLISHED and connection.laddr and connection.raddr:
            own, other = _plain(connection.laddr.ip), _plain(connection.raddr.ip)
            if own != other and not ipaddress.ip_address(other).is_loopback:
                yield own, other


def _plain(address: str) -> str:
    """An IPv4 address as such, also where a socket of both versions has it.

    >>> _plain("::ffff:10.1.0.7"), _plain("fe80::1%eth0")
    ('10.1.0.7', 'fe80::1')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _answering(addresses: Collection[str]) -> tuple[str, ...]:
    if not addresses:
        return ()
    with ThreadPoolExecutor(len(addresses)) as pool:
        return tuple(compress(addresses, pool.map(_answers, addresses)))


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), SECONDS_TO_ANSWER).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
