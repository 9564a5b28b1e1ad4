from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.engine.environment import PREFIXES
from clusterbench.facts import Facts, Files, Host, NotKnown
from clusterbench.host_facts import mapping
from clusterbench.run_folder.redaction import redacted_value

SYSTEM = "/etc/nccl.conf"
USER = "~/.nccl.conf"
_MOST_SETTINGS = 100


@dataclass(frozen=True)
class Setting:
    """A line of a file; ``file`` is :data:`SYSTEM` or :data:`USER`."""

    name: str
    value: str
    file: str


@dataclass(frozen=True, kw_only=True)
class NcclConf(Facts):
    """What NCCL reads of files where a variable is not set: that of the user before that of the system.

    ``NCCL_CONF_FILE`` puts another in the place of the user's: that one is not read here.
    """

    settings: tuple[Setting, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        found = [*_settings(files, os.path.expanduser(USER), USER), *_settings(files, SYSTEM, SYSTEM)]
        return cls(settings=tuple(found[:_MOST_SETTINGS]), unread=files.unread)


@dataclass(frozen=True)
class Effective:
    """A setting that counts: ``said_by`` is ``environment`` or a file."""

    value: str
    said_by: str


def effective(host: Host) -> Mapping[str, Effective]:
    """The variables of a host that NCCL and CUDA read, and what files add to them.

    Raises
    ------
    NotKnown
        If they were not recorded.
    """
    conf = host.of(NcclConf)
    variables = host.environment.get("variables")
    if not isinstance(variables, Mapping):
        raise NotKnown("nothing was recorded of variables", "a run of this version of clusterbench")
    settings = {str(name): Effective(str(value), "environment") for name, value in variables.items()}
    for setting in conf.settings:
        settings.setdefault(setting.name, Effective(setting.value, setting.file))
    return settings


def setting_of(host: Host, name: str) -> str:
    """The value that counts of one variable; empty where it is not set, or where nothing was recorded of it."""
    try:
        found = effective(host).get(name)
    except NotKnown:
        return str(mapping(host.environment.get("variables")).get(name) or "")
    return found.value if found else ""


def _settings(files: Files, path: str, name: str) -> Iterator[Setting]:
    for line in (files.text(path, optional=True) or "").splitlines():
        match = re.fullmatch(r"\s*([A-Z][A-Z0-9_]{1,60})\s*=\s*(.*?)\s*", line)
        if match and match[1].startswith(PREFIXES):
            yield Setting(match[1], redacted_value(match[1], match[2])[:200], name)
