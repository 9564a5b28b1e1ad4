"""The command line of a scheduler that starts tasks on the nodes of an allocation: srun, flux run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from clusterbench.launchers import Kind, Launcher
from clusterbench.launchers._options import find, replace


class Scheduler(Launcher):
    """Base of schedulers. They take from their allocation what the command leaves open.

    Attributes
    ----------
    of_hosts, of_nodes
        Names of the options that name and count hosts, the long one last.
    """

    kind: ClassVar[Kind] = "scheduler"
    of_hosts: ClassVar[tuple[str, ...]]
    of_nodes: ClassVar[tuple[str, ...]] = ("-N", "--nodes")
    of_tasks: ClassVar[tuple[str, ...]] = ("-n", "--ntasks")
    may_be_glued: ClassVar[bool] = True

    def allocated(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Those of the allocation's hosts that the command does not leave out."""
        return self.hosts(environment)

    def listed(self, value: str) -> list[str]:
        """The hosts that the value of the option for hosts names."""
        raise NotImplementedError

    def as_value(self, hosts: Sequence[str]) -> str:
        """The value of the option for hosts that names these."""
        return ",".join(hosts)

    def hosts_in(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Those that are named, otherwise as many of the allocation's as are wanted, the first ones."""
        if option := find(words, self.of_hosts, self.may_be_glued):
            return list(dict.fromkeys(self.listed(option.value)))
        hosts = self.allocated(words, environment)
        if (option := find(words, self.of_nodes, self.may_be_glued)) and option.value.isdecimal():
            hosts = hosts[: int(option.value)]
        return hosts

    def in_full(self, words: Sequence[str], hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        return self._with_hosts(words, hosts)

    def on(self, words: Sequence[str], entries: Sequence[str], scratch: Path) -> list[str]:
        return self._with_hosts(words, entries)

    def _with_hosts(self, words: Sequence[str], hosts: Sequence[str]) -> list[str]:
        full = list(words)
        for names, value in ((self.of_hosts, self.as_value(hosts)), (self.of_nodes, str(len(hosts)))):
            if not replace(full, names, value, self.may_be_glued):
                full.insert(self.program.count(" ") + 1, f"{names[-1]}={value}")
        return full
