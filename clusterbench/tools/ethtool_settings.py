"""``ethtool NIC``: link, speed and duplex of a network interface, and what both ends could.

Source: the source of ethtool, ``ethtool.c`` and ``netlink/settings.c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = re.compile(r"Settings for (?P<name>[\w.@-]+):")
_KEY = re.compile(r"(?P<key>[A-Z][\w -]*?): *(?P<value>.*)")
_MODE = re.compile(r"(?P<speed>\d+)base[\w/-]*")
_SPEED = re.compile(r"(?P<speed>\d+)Mb/s.*")


@dataclass(frozen=True)
class Settings:
    """Speeds in Mb/s.

    Attributes
    ----------
    speed
        None where there is no link, or the driver does not say it.
    supported, partner
        The fastest mode of each end; None where it is not reported.
    """

    name: str
    speed: int | None
    duplex: str
    has_link: bool | None
    supported: int | None
    partner: int | None
    speed_line: str
    duplex_line: str


def is_settings(text: str) -> bool:
    return any(map(_HEADER.fullmatch, map(str.strip, text.splitlines())))


def parse(text: str) -> tuple[Settings, ...]:
    """Each interface, in the order of the text."""
    return tuple(_interfaces(text))


def _interfaces(text: str) -> Iterator[Settings]:
    name = ""
    values: dict[str, str] = {}
    key = ""
    for line in map(str.strip, text.splitlines()):
        if header := _HEADER.fullmatch(line):
            if name:
                yield _settings(name, values)
            name, values, key = header["name"], {}, ""
        elif name and (said := _KEY.fullmatch(line)):
            key = said["key"]
            values[key] = said["value"]
        elif name and key.endswith("link modes") and _MODE.match(line):
            values[key] += f" {line}"
    if name:
        yield _settings(name, values)


def _settings(name: str, values: dict[str, str]) -> Settings:
    speed = _SPEED.fullmatch(values.get("Speed", ""))
    link = values.get("Link detected", "")
    return Settings(
        name,
        int(speed["speed"]) if speed else None,
        values.get("Duplex", ""),
        {"yes": True, "no": False}.get(link.partition(" ")[0]),
        _fastest(values.get("Supported link modes", "")),
        _fastest(values.get("Link partner advertised link modes", "")),
        f"Speed: {values.get('Speed', '')}",
        f"Duplex: {values.get('Duplex', '')}",
    )


def _fastest(modes: str) -> int | None:
    return max((int(said["speed"]) for said in _MODE.finditer(modes)), default=None)
