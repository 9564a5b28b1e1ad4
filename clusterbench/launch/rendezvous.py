"""How agents find each other where no MPI joins them: under torchrun, srun, or variables set by hand.

The head listens on the first free of a few ports that follow from the job's name; the others try them in turn. No
shared disk is needed, and no free port that was agreed on. Agents of a run know each other by a secret:
``CLUSTERBENCH_SECRET`` where it is set, otherwise a file in the user's home that only the user can read, made by the
first agent that looks for it, as ssh and MUNGE do. Each port has a proof of its own: a program that takes an earlier
port of the head's host cannot pass on to the head what is said there, and so stay between.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterbench.errors import LaunchError
from clusterbench.launch.control import EVERY_ADDRESS, HEAD, Alone, TcpHead, TcpMember
from clusterbench.launch.handshake import SECONDS_TO_AUTHENTICATE
from clusterbench.launch.ranks import name_ranks
from clusterbench.launchers import SECRET_VARIABLE, Started
from clusterbench.terminal import tell

FIRST_PORT, NUM_PORTS, TRIES = 20_000, 10_000, 16
FOUND_NO_HEAD = "did not find the head"
"""What an agent says that waited in vain: who started it reads it."""

_SECONDS_BETWEEN_TRIES = 0.1
_FIRST_PATIENCE_S = 0.5
"""With each port in the first round, and twice as much in each further one: programs that answer slowly on all ports
before the head's cost 8 s, and a head that is slow is found in a later round."""
_SECONDS_OF_AN_ANSWER = 10.0
"""For which what a name service said is used."""
_SHORTEST_SECRET = 16


def meet(started: Started, environment: Mapping[str, str], timeout_s: float) -> Alone | TcpHead | TcpMember:
    """The plane of this agent, once all have come.

    Raises
    ------
    LaunchError
        If the head cannot be found or reached, or some agents do not come in ``timeout_s`` seconds.
    """
    if started.size == 1:
        return Alone()
    job = started.launcher.job_of(environment)
    secret = hmac.new(shared_secret(environment), job.encode(), "sha256").digest()
    ports = ports_of(job)
    if started.rank == HEAD:
        head = _listen(started.size, ports, secret)
        try:
            head.gather(timeout_s, partial(_say_late, started, timeout_s))
        except LaunchError:
            head.close()
            raise
        return head
    name = _Name(started.launcher.head(environment), instead=environment.get("MASTER_ADDR"))
    return _join(started, name, ports, secret, timeout_s)


def _say_late(started: Started, timeout_s: float, missing: Sequence[int]) -> None:
    """Tells a person who started one process in a shell of a launcher's that it waits, and for what."""
    launcher = started.launcher
    hint = f"\nhint: {launcher.in_its_shell}" if launcher.in_its_shell else ""
    tell(
        f"waiting up to {timeout_s:g} s for {name_ranks(missing)} of the {started.size} processes that "
        f"{launcher.program} started{hint}"
    )


def waited_in_vain(said: str) -> str:
    """Which processes of a run did not find each other, as a sentence; empty where not both sides say so in ``said``.

    That the head waited shows that it was there, and that the others looked for it that they were.
    """
    head = re.search(r"agents did not come to (\S+):\d+ within", said)
    others = re.findall(rf"\(host (\S+)\) {FOUND_NO_HEAD} at", said)
    if head is None or not others:
        return ""
    process = "process" if len(others) == 1 else "processes"
    return (
        f"the {process} on {' and '.join(sorted(set(others)))} did not find the head of the run on {head[1]}, and each "
        "waited for the other"
    )


def _listen(size: int, ports: tuple[int, ...], secret: bytes) -> TcpHead:
    for port in ports:
        with suppress(LaunchError):  # taken by another program
            return TcpHead(size, _of_port(secret, port), EVERY_ADDRESS, port)
    raise LaunchError(
        f"the head cannot listen on any of the ports {ports[0]} to {ports[-1]} of {socket.gethostname()}.\n"
        "hint: 'ss -ltnp' shows who does; another run of this job that has not ended, perhaps"
    )


def _of_port(secret: bytes, port: int) -> bytes:
    return hmac.new(secret, str(port).encode(), "sha256").digest()


def _join(started: Started, name: _Name, ports: tuple[int, ...], secret: bytes, timeout_s: float) -> TcpMember:
    deadline = time.monotonic() + timeout_s
    patience_s = _FIRST_PATIENCE_S
    while True:
        addresses = name.addresses()
        said = name.error
        for port in ports:
            for address in addresses:
                try:
                    return TcpMember((address, port), started.size, started.rank, _of_port(secret, port), patience_s)
                except LaunchError as error:  # the head is not there yet, or another program has this port
                    said = str(error)
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"agent {started.rank} of {started.size} (host {socket.gethostname()}) {FOUND_NO_HEAD} at "
                    f"{name.in_words()}, ports {ports[0]} to {ports[-1]}, within {timeout_s:g} s; the last try said: "
                    f"{said}\n{name.hint()}is {name.host} the host of rank 0, has no other process rank "
                    f"{started.rank}, are those ports open between hosts, and is {SECRET_VARIABLE} (or the file "
                    f"{_secret_file()}) the same on all?"
                )
        time.sleep(_SECONDS_BETWEEN_TRIES)
        patience_s = min(2 * patience_s, SECONDS_TO_AUTHENTICATE)


class _Name:
    """The name of the head's host, asked for once for many tries: a name service may take seconds for each answer.

    A scheduler may have a name for a host that no name service knows: ``instead`` is what stands for it then.
    """

    def __init__(self, host: str, instead: str | None) -> None:
        self.host = host
        self.error = ""
        self._instead = instead
        self._addresses: tuple[str, ...] = ()
        self._asked_at = -math.inf

    def addresses(self) -> tuple[str, ...]:
        """None where it has none so far. An answer may be wrong, or the host's address change: it is asked again."""
        if time.monotonic() - self._asked_at > _SECONDS_OF_AN_ANSWER:
            self._addresses = self._ask(self.host)
            if not self._addresses and self._instead and self._instead != self.host:
                self._addresses = self._ask(self._instead)
            self._asked_at = time.monotonic()
        return self._addresses

    def _ask(self, host: str) -> tuple[str, ...]:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            self.error = f"{host}: {error.strerror}"
            return ()
        return tuple(dict.fromkeys(str(each[4][0]) for each in found))

    def in_words(self) -> str:
        """The name with what it stands for on this host."""
        others = [address for address in self._addresses if address != self.host]
        return f"{self.host} ({', '.join(others)})" if others else self.host

    def hint(self) -> str:
        """The beginning of a hint, where the name itself may be the trouble."""
        if not self._addresses:
            return f"hint: 'getent hosts {self.host}' should give an address here, and MASTER_ADDR may be one; "
        named = [address.partition("%")[0] for address in self._addresses if address != self.host]
        if any(ipaddress.ip_address(address).is_loopback for address in named):
            return f"hint: the name {self.host} leads back to this host here: is it right in /etc/hosts; "
        return "hint: "


def ports_of(job: str) -> tuple[int, ...]:
    """The ports at which the head of a job may be, below those that systems give away.

    >>> ports_of("SLURM_JOB_ID=7,SLURM_STEP_ID=0")[:2]
    (29391, 29392)
    """
    first = FIRST_PORT + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4]) % (NUM_PORTS - TRIES)
    return tuple(range(first, first + TRIES))


def shared_secret(environment: Mapping[str, str]) -> bytes:
    """What agents of one user know and others do not.

    Raises
    ------
    LaunchError
        If it is too short to be one, or the file that holds it can be read by others or not at all.
    """
    if given := environment.get(SECRET_VARIABLE):
        if len(given) < _SHORTEST_SECRET:
            raise LaunchError(
                f"{SECRET_VARIABLE} has {len(given)} characters; {_SHORTEST_SECRET} are the least.\n"
                "hint: 'openssl rand -hex 32' makes a good one; give all agents the same"
            )
        return given.encode()
    path = _secret_file()
    try:
        _make_once(path)
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LaunchError(f"{path} can be read by others than you.\nhint: chmod 600 {path}, or delete it")
        secret = path.read_bytes().strip()
        if len(secret) < _SHORTEST_SECRET:
            raise LaunchError(
                f"{path} has {len(secret)} characters; {_SHORTEST_SECRET} are the least.\n"
                "hint: delete it; the next run makes a good one"
            )
        return secret
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be read or made: {error.strerror}.\nhint: set {SECRET_VARIABLE} to the same text, 16 "
            "characters or more, for all agents"
        ) from None


def _make_once(path: Path) -> None:
    """Many agents come at the same moment, on a shared disk: a link is made by exactly one of them, with all in it."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()


def _secret_file() -> Path:
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:  # a container with a user that has no home
        raise LaunchError(
            f"this user has no home, where the secret of its runs would be.\nhint: set {SECRET_VARIABLE} to the same "
            f"text, {_SHORTEST_SECRET} characters or more, for all agents"
        ) from None
    return Path(base) / "clusterbench" / "secret"
