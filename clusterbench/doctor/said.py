"""A file that people have at hand, a kind of it, and what is made of it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, Self

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.facts import Facts
from clusterbench.launchers._hostlist import expand_hosts
from clusterbench.tools._prefix import PlainLine, unwrapped

_MOST_ALIKE = 1024
"""Hosts of which one output is said to be that of all."""


@dataclass(frozen=True)
class Said:
    """What is made of one file: facts of a host for some ``checks``, or what was found at once.

    Facts that come from a file are not whole: only the checks named are asked, which judge by nothing else.
    """

    facts: tuple[Facts, ...] = ()
    checks: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    healthy: tuple[Healthy, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class File:
    """A file with its lines, in whole and by whose they are: a host, or ``host`` where nothing says it.

    ``host`` is the name of the file, or of its folder where each host has one.
    """

    name: str
    host: str
    text: str
    lines: Sequence[PlainLine]

    @classmethod
    def of(cls, name: str, text: str, host: str = "") -> Self:
        return cls(name, host or name, text, unwrapped(text))

    @cached_property
    def by_host(self) -> Mapping[str, Sequence[PlainLine]]:
        """The lines of each host, or of each rank where no more is said."""
        origins = {line.origin for line in self.lines}
        names = {origin: self.named(origin, origins) for origin in origins}
        lines: dict[str, list[PlainLine]] = defaultdict(list)
        for line in self.lines:
            for name in names[line.origin]:
                lines[name].append(line)
        return lines

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The text of each host; one for all readers, of which there are many."""
        return {host: self.text_of(lines) for host, lines in self.by_host.items()}

    @cached_property
    def plain(self) -> str:
        """The text without prefixes, with the end of its last line."""
        return "\n".join(line.text for line in self.lines)

    def text_of(self, lines: Sequence[PlainLine]) -> str:
        """Some of its lines; only the last one of the file may lack its end."""
        return "\n".join(line.text for line in lines) + ("\n" if lines[-1] is not self.lines[-1] else "")

    def named(self, origin: str, others: Collection[str]) -> tuple[str, ...]:
        """Names of the hosts: ``rank 3`` alone is none, and says nothing where there is no other; several of a list.

        What looks like a list and is none, or has more names than any cluster has hosts, is one name.
        """
        if " " in origin:
            return (f"{self.host} {origin}" if len({*others} - {""}) > 1 else self.host,)
        if re.search(r"[\[,]", origin):
            with suppress(ValueError):
                return tuple(islice(expand_hosts(origin), _MOST_ALIKE))
        return (origin or self.host,)


@dataclass(frozen=True)
class Reader:
    """A kind of file: its name, and what it says of each host; nothing where a file is not of this kind."""

    kind: str
    read: Callable[[File], Sequence[tuple[str, Said]]]


def apart(kind: str, holds: Callable[[str], bool], read: Callable[[str, str], Said]) -> Reader:
    """One whose lines are of one host, so that those of several are read apart.

    Evidence that names a line of a host's text, ``cb01:3: the words``, names that of the file instead.
    """

    def of(file: File) -> list[tuple[str, Said]]:
        return [(host, _cited(read(text, host), host, file)) for host, text in file.texts.items() if holds(text)]

    return Reader(kind, of)


def quoted(name: str, text: str, start: int, words: str = "") -> str:
    r"""Evidence that names the line of a host's text in which something begins, and quotes it unless ``words`` do.

    >>> quoted("cb01", "a\nb  c\n", 4)
    'cb01:2: b  c'
    """
    begin = text.rfind("\n", 0, start) + 1
    return f"{name}:{text.count(chr(10), 0, start) + 1}: {words or text[begin:].partition(chr(10))[0].strip()}"


def _cited(said: Said, host: str, file: File) -> Said:
    return replace(said, found=tuple(_with_line(found, host, file) for found in said.found))


def _with_line(found: Found, host: str, file: File) -> Found:
    line = re.match(rf"{re.escape(host)}:(\d+)(?=: )", found.evidence)
    if line is None:
        return found
    number = file.by_host[host][int(line[1]) - 1].number
    return replace(found, evidence=f"{file.name}:{number}{found.evidence[line.end() :]}")


class HostText(ABC):
    """A kind of text of which each host has its own, so that the lines of several hosts are read apart.

    ``kind`` is what a person calls it: the command that prints it.
    """

    kind: ClassVar[str]

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Whether a text is of this kind, whole or in part."""

    @abstractmethod
    def read(self, text: str, name: str) -> Said:
        """What it says of the host ``name``.

        Raises
        ------
        ToolError
            If it cannot be read.
        """
