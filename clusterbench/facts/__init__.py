"""What a host is and how it stands, before anything runs on it: one file, one collector. Nothing is changed.

A collector reads files and programs of its host through :class:`Files` and gives a record that goes into
``environment.json`` as JSON. What cannot be known is None, and ``unread`` says which file or program it would have come
from and why it did not: what no file said must not be judged. ``python -m clusterbench.facts`` prints all of them.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Self, TypeVar

from clusterbench.discover import things
from clusterbench.run_folder.records import record_of

Kind = TypeVar("Kind", bound="Facts")
Value = TypeVar("Value")
Run = Callable[[Sequence[str]], str]
"""Runs a program and gives what it printed.

Raises ``OSError`` if it cannot be started, ``subprocess.SubprocessError`` if it fails or takes too long.
"""

GPUS_ONLY = "--gpus"
OF_DRIVER = ("gpus", "nvlinks")
"""Collectors that ask NVIDIA's driver, which may show each process other GPUs."""

SECONDS_OF_A_PROGRAM = 2.0
NOT_THERE = "is not there"
NOT_ALLOWED = "may be read by root only"
_MOST_PIECES, _PIECE_BYTES = 64, 2**16
_MOST_UNREAD = 40
_MOST_SAID = 200


def run_here(words: Sequence[str]) -> str:
    """Runs a program on this host, for at most :data:`SECONDS_OF_A_PROGRAM`; in English, whatever the user speaks."""
    done = subprocess.run(
        [*words],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=SECONDS_OF_A_PROGRAM,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.stdout


class Files:
    """The files and programs of one host, and which of them could not be read.

    Parameters
    ----------
    root
        Where ``/proc``, ``/sys``, ``/dev``, ``/etc`` and ``/var`` are looked for: a planted tree in tests.
    run
        Runs the programs.
    """

    def __init__(self, root: Path = Path("/"), run: Run = run_here) -> None:
        self.root, self._run = root, run
        self.unread: dict[str, str] = {}

    def text(self, path: str, optional: bool = False) -> str | None:
        """What a file holds, without blanks around it; None, and noted, where it cannot be read.

        ``optional`` files are those that many healthy hosts do not have: that they are absent is not noted.
        """
        try:
            with open(self.root / path.lstrip("/"), "rb") as file:
                # In pieces: /proc/sys refuses to fill 4 MiB at once ("Cannot allocate memory").
                pieces = takewhile(bool, (file.read(_PIECE_BYTES) for _ in range(_MOST_PIECES)))
                return b"".join(pieces).decode(errors="replace").strip()
        except FileNotFoundError:
            if not optional:
                self._note(path, NOT_THERE)
        except PermissionError:
            self._note(path, NOT_ALLOWED)
        except OSError as error:  # files of /sys exist and still refuse: a port that is down, a container
            self._note(path, f"could not be read: {error.strerror}")
        return None

    def data(self, path: str, most: int) -> bytes | None:
        """The first ``most`` bytes of a file; None, and noted, where it cannot be read, or where it is absent."""
        try:
            with open(self.root / path.lstrip("/"), "rb") as file:
                return file.read(most)
        except FileNotFoundError:
            pass
        except PermissionError:
            self._note(path, NOT_ALLOWED)
        except OSError as error:
            self._note(path, f"could not be read: {error.strerror}")
        return None

    def number(self, path: str, optional: bool = False) -> int | None:
        """The whole number a file holds, such as ``42`` or ``0x10``."""
        text = self.text(path, optional)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            self._note(path, f"holds no number: {text!r:.60}")
            return None

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none where there is no such folder, or, noted, where it may not be listed."""
        try:
            return sorted(entry.name for entry in (self.root / folder.lstrip("/")).iterdir())
        except FileNotFoundError:
            return []
        except PermissionError:
            self._note(folder, NOT_ALLOWED)
        except OSError as error:
            self._note(folder, f"could not be listed: {error.strerror}")
        return []

    def exists(self, path: str) -> bool:
        """Whether there is such a file, folder or device, of which nothing is read."""
        return os.path.lexists(self.root / path.lstrip("/"))

    def link(self, path: str) -> str | None:
        """The last part of what a link points to: ``0000:1b:00.0`` of a device, ``mlx5_core`` of its driver."""
        try:
            return os.path.basename(os.readlink(self.root / path.lstrip("/")))
        except OSError:
            return None

    def output(self, *words: str) -> str | None:
        """What a program prints; None, and noted under its command, where it is absent, fails or hangs."""
        command = " ".join(words)
        try:
            return self._run(words)
        except FileNotFoundError:
            self._note(command, f"{words[0]} is not on PATH")
        except subprocess.TimeoutExpired:
            self._note(command, f"had not ended after {SECONDS_OF_A_PROGRAM:g} s")
        except subprocess.CalledProcessError as error:
            lines = str(error.stderr or error.stdout or "").splitlines()
            said = "; ".join(line.strip() for line in lines if line.strip())[:_MOST_SAID]
            self._note(command, f"ended with exit code {error.returncode}{said and f': {said}'}")
        except OSError as error:
            self._note(command, f"could not be started: {error.strerror}")
        return None

    def _note(self, source: str, why: str) -> None:
        if len(self.unread) < _MOST_UNREAD:
            self.unread[source] = why


@dataclass(frozen=True, kw_only=True)
class Facts(ABC):
    """What one collector read; None is what it could not. ``unread`` says why, by file or command."""

    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    @abstractmethod
    def read(cls, files: Files) -> Self:
        """Reads a host. Whatever its files hold, nothing is raised for what they should not."""


def collectors() -> Mapping[str, type[Facts]]:
    """All collectors by name."""
    return things("clusterbench.facts", Facts)


def name_of(kind: type[Facts]) -> str:
    """``limits``: the name of a collector's file."""
    return kind.__module__.rsplit(".", 1)[-1]


def gather(root: Path = Path("/"), run: Run = run_here, only: Collection[str] = ()) -> dict[str, Any]:
    """What all collectors say of a host, or ``only`` these, by name, as JSON.

    One that fails says ``{"failed": why}`` in its place.
    """

    def of(kind: type[Facts]) -> dict[str, Any]:
        try:
            return asdict(kind.read(Files(root, run)))
        except Exception as error:  # noqa: BLE001 - a file of a kind never seen must not cost the others' facts
            return {"failed": f"{type(error).__name__}: {error}"[:_MOST_SAID]}

    kinds = {name: kind for name, kind in collectors().items() if not only or name in only}
    with ThreadPoolExecutor() as threads:  # programs are waited for side by side
        return dict(zip(kinds, threads.map(of, kinds.values()), strict=True))


class NotKnown(Exception):
    """Facts that a judgement needs and that are not there: ``why``, and what it ``takes`` to have them."""

    def __init__(self, why: str, takes: str) -> None:
        super().__init__(why)
        self.why, self.takes = why, takes


def known(facts: Facts, value: Value | None, source: str) -> Value:
    """A value that was read; ``source`` is the file or command it comes from.

    Raises
    ------
    NotKnown
        If it was not read, with the reason that the collector noted.
    """
    if value is not None:
        return value
    why = facts.unread.get(source, "says nothing")
    raise NotKnown(f"{source} {why}", what_it_takes(source, why))


def what_it_takes(source: str, why: str) -> str:
    """What would make a source readable, in a few words.

    >>> what_it_takes("lspci -vvv", "lspci is not on PATH")
    'the program lspci'
    """
    if why == NOT_ALLOWED:
        return "root"
    if why.endswith("is not on PATH"):
        return f"the program {source.split()[0]}"
    return f"a host that shows {source}" if source.startswith("/") else f"an answer of '{source}'"


@dataclass(frozen=True)
class Host:
    """A host as its collectors saw it.

    Attributes
    ----------
    environment
        Its part of ``environment.json``.
    """

    name: str
    environment: Mapping[str, Any]

    def of(self, kind: type[Kind]) -> Kind:
        """What a collector said; read once, however many checks ask.

        Raises
        ------
        NotKnown
            If it said nothing, or what this version cannot read.
        """
        name = name_of(kind)
        if name not in self._read:
            self._read[name] = self._facts(name, kind)
        found: Kind = self._read[name]
        return found

    @cached_property
    def _read(self) -> dict[str, Any]:
        return {}

    def _facts(self, name: str, kind: type[Kind]) -> Kind:
        said = (self.environment.get("facts") or {}).get(name)
        if not isinstance(said, Mapping):
            raise NotKnown(f"nothing was recorded of {name.replace('_', ' ')}", "a run of this version of clusterbench")
        if "failed" in said:
            raise NotKnown(f"reading {name.replace('_', ' ')} failed: {said['failed']}", "a report of this as a bug")
        try:
            return record_of(kind, said)
        except ValueError as error:
            raise NotKnown(f"the facts of {name.replace('_', ' ')} are of another form: {error}", "a new run") from None
