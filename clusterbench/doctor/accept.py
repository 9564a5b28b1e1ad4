"""What is known of a cluster and accepted: a file of findings that no longer change the verdict, until a day."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from clusterbench.checks import checks
from clusterbench.diagnoses import diagnoses
from clusterbench.doctor import Examination, Found
from clusterbench.doctor.catalogue import entries
from clusterbench.errors import SuiteError, nearest
from clusterbench.words import plural, short
from clusterbench.yaml_lines import Items, Node, Scalar, Table, read_yaml

_KEYS = ("check", "host", "where", "reason", "until")
_NEEDED = ("check", "host", "reason", "until")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Accepted:
    """Findings of one check on hosts and at places of these names (``*`` and ``?`` stand for others), until a day.

    ``at`` is the file and line that say it.
    """

    check: str
    host: str
    where: str
    reason: str
    until: date
    at: str = ""

    def covers(self, found: Found, host: str) -> bool:
        """``where`` is a place as it is printed, or without its slot."""
        is_there = any(fnmatchcase(place, self.where) for place in (found.where, found.place))
        return found.name == self.check and fnmatchcase(host, self.host) and is_there


def read_accepted(path: Path) -> tuple[Accepted, ...]:
    """The entries of a file.

    Raises
    ------
    SuiteError
        For every mistake, with file and line, what was given and what is allowed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SuiteError(f"--accept {path} cannot be read: {error.strerror}.") from None
    root = read_yaml(data, str(path), "list of accepted findings", "'[]', which accepts nothing")
    if not isinstance(root, Items):
        raise SuiteError(f"{path}:{root.line}: a list of '- {{check: ..., host: ..., reason: ..., until: ...}}'.")
    return tuple(_entry(str(path), node) for node in root.items)


def _entry(path: str, node: Node) -> Accepted:
    if not isinstance(node, Table) or not all(isinstance(value, Scalar) for value in node.values.values()):
        raise SuiteError(f"{path}:{node.line}: an entry is keys and values: {', '.join(_KEYS)}.")
    for key, line in node.lines.items():
        if key not in _KEYS:
            allowed = ", ".join(_KEYS)
            raise SuiteError(f"{path}:{line}: unknown key '{short(key)}'.{nearest(key, _KEYS)} Allowed: {allowed}.")
    if missing := [key for key in _NEEDED if key not in node.values]:
        raise SuiteError(f"{path}:{node.line}: '{missing[0]}' is missing. Needed: {', '.join(_NEEDED)}.")
    text = {key: value.text for key, value in node.values.items() if isinstance(value, Scalar)}
    if empty := [key for key in _NEEDED if not text[key].strip()]:
        raise SuiteError(f"{path}:{node.lines[empty[0]]}: '{empty[0]}' is empty. Needed: {', '.join(_NEEDED)}.")
    names = {*checks(), *diagnoses(), *(name for entry in entries() for name in (entry.by, *entry.in_logs) if name)}
    if text["check"] not in names:
        hint = nearest(text["check"], names)
        raise SuiteError(
            f"{path}:{node.lines['check']}: no check '{short(text['check'])}'.{hint}\n"
            "hint: 'clusterbench doctor --list' names them"
        )
    until = _day(text["until"])
    if until is None:
        raise SuiteError(f"{path}:{node.lines['until']}: until: {short(text['until'])} must be a day as 2027-01-31.")
    return Accepted(text["check"], text["host"], text.get("where", "*"), text["reason"], until, f"{path}:{node.line}")


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None


def accepting(examination: Examination, accepted: Sequence[Accepted], today: date) -> Examination:
    """The examination with its findings parted into those that are accepted today and the others."""
    valid = [entry for entry in accepted if today <= entry.until]
    return replace(examination, found=tuple(part for found in examination.found for part in _parts(found, valid)))


def without_effect(examination: Examination, accepted: Sequence[Accepted], today: date) -> Iterator[str]:
    """Of entries that accept nothing of an examination, file and line and why."""
    for entry in accepted:
        number = sum(entry.covers(found, host) for found in examination.found for host in found.hosts or ("",))
        findings = plural(number, "finding") if number else "no finding"
        if today > entry.until:
            until = f"was accepted until {entry.until}"
            yield f"{entry.at}: '{entry.check}' on {entry.host} {until}: {findings} of it here."
        elif not number:
            place = "" if entry.where == "*" else f" at {entry.where}"
            yield f"{entry.at}: '{entry.check}' on {entry.host}{place} accepts nothing: no finding of it here."


def _parts(found: Found, accepted: Sequence[Accepted]) -> list[Found]:
    """A finding on several hosts may be accepted on some of them only."""
    reasons: dict[str, list[str]] = {}
    for host in found.hosts or ("",):
        reason = next((f"{each.reason} (until {each.until})" for each in accepted if each.covers(found, host)), "")
        reasons.setdefault(reason, []).append(host)
    if not found.hosts:
        (reason,) = reasons
        return [replace(found, accepted=reason)]
    return [replace(found, hosts=tuple(hosts), accepted=reason) for reason, hosts in reasons.items()]
