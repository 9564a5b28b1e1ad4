"""The command line of a launcher as the user wrote it, and the same for fewer hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterbench.errors import LaunchError, SuiteError
from clusterbench.launchers import Launcher, detect, of_command


@dataclass(frozen=True)
class LaunchCommand:
    """A launcher with the hosts it starts processes on.

    Parameters
    ----------
    words
        The command, word by word.
    hosts
        By name, each as it is written: ``a``, ``a:4``, ``a slots=4``; a host that is written twice has two entries.
    """

    launcher: Launcher
    words: tuple[str, ...]
    hosts: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> LaunchCommand:
        """The command in ``text``.

        Raises
        ------
        SuiteError
            If no launcher that can be started again starts with it, it does not say on which hosts, or gives no number
            where one belongs.
        LaunchError
            If a launcher started this process.
        """
        if (started := detect(environment)) is not None:
            by = started.launcher.program
            raise LaunchError(f"--launch starts a launcher, but this process was itself started by {by}")
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SuiteError(f"--launch {text!r} cannot be read: {error}.") from None
        try:
            launcher = of_command(words)
            entries = launcher.hosts_in(words, environment)
            if not entries:
                raise SuiteError(f"it does not say on which hosts.\nhint: {launcher.naming_hosts}")
            words = launcher.in_full(words, entries, environment)
            launcher.num_tasks(words)
        except SuiteError as error:
            raise SuiteError(f"--launch {text!r}: {error}") from None
        hosts: dict[str, tuple[str, ...]] = {}
        for entry in entries:
            name = re.split(r"[:\s]", entry)[0]
            hosts[name] = (*hosts.get(name, ()), entry)
        return cls(launcher, tuple(words), hosts)

    def on(self, hosts: Sequence[str], scratch: Path) -> list[str]:
        """The command for these of its hosts, with as many processes as fall to them."""
        entries = [entry for host in hosts for entry in self.hosts[host]]
        words = self.launcher.on(self.words, entries, scratch)
        if (num_tasks := self.launcher.num_tasks(words)) is None:
            return words
        return self.launcher.with_tasks(words, num_tasks * len(hosts) // len(self.hosts))

    def alone_on(self, host: str, scratch: Path) -> list[str]:
        """The command for one process on one host."""
        return self.launcher.alone(self.on([host], scratch))

    def in_common_options(self) -> list[str]:
        """The command in options that every launcher of this name takes."""
        return self.launcher.in_common_options(self.words)
