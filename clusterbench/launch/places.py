"""Which hosts a launcher is given, and which spare takes the place of one that is lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterbench.errors import SuiteError
from clusterbench.launch.allocation import not_excluded
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.words import listed


@dataclass(frozen=True)
class Places:
    """The hosts that take part, in the order of their nodes, and those that wait."""

    hosts: tuple[str, ...]
    spares: tuple[str, ...] = ()

    @classmethod
    def of(cls, launch: LaunchCommand, num_spares: int, excluded: Collection[str] = ()) -> Places:
        """The hosts of a command but for those that are excluded; the last ``num_spares`` of them wait.

        Raises
        ------
        SuiteError
            If none would take part, or its processes are not equally many on each host that it names.
        """
        named = tuple(not_excluded(launch.hosts, excluded))
        if not named:
            raise SuiteError(f"--exclude leaves out every host of --launch: {', '.join(launch.hosts)}.")
        if num_spares >= len(named):
            raise SuiteError(
                f"--spares {num_spares} leaves none of the {listed('host', named)} of --launch to take part.\n"
                f"hint: name {num_spares + 1} hosts or more there, the spares last"
            )
        num_taking_part = len(named) - num_spares
        if num_taking_part < len(launch.hosts):
            expect_equally_many(launch)
        return cls(named[:num_taking_part], named[num_taking_part:])

    def after(self, answering: Collection[str]) -> Loss:
        """What becomes of them where only these answer: spares that do take the places of hosts that do not."""
        lost = tuple(host for host in self.hosts if host not in answering)
        ready = [host for host in self.spares if host in answering]
        replaced = dict(zip(lost, ready, strict=False))
        silent = tuple(host for host in self.spares if lost and host not in answering)
        hosts = tuple(replaced.get(host, host) for host in self.hosts if host in answering or host in replaced)
        return Loss(lost, replaced, silent, Places(hosts, tuple(ready[len(replaced) :]) if lost else self.spares))


def expect_equally_many(launch: LaunchCommand) -> None:
    """Makes sure that fewer hosts have fewer processes.

    Raises
    ------
    SuiteError
        If the processes of a command are not equally many on each host that it names.
    """
    num_tasks = launch.launcher.num_tasks(launch.words)
    if num_tasks is not None and num_tasks % len(launch.hosts):
        raise SuiteError(
            f"--launch starts {num_tasks} processes, which are not equally many on each of its "
            f"{len(launch.hosts)} hosts: {', '.join(launch.hosts)}.\n"
            "hint: count those of spares and of excluded hosts, too; fewer are started without them"
        )


@dataclass(frozen=True)
class Loss:
    """Hosts that do not answer, by which spares they are replaced, spares that do not answer either, and the rest."""

    lost: tuple[str, ...]
    replaced: Mapping[str, str]
    silent: tuple[str, ...]
    left: Places

    @property
    def sentence(self) -> str:
        """What happened and who goes on."""
        hosts = ", ".join(self.left.hosts)
        if not self.lost:
            return f"all hosts answer ({hosts})"
        parts = [f"no answer from {', '.join(self.lost)}"]
        parts += [f"nor from {listed('spare', self.silent)}"] if self.silent else []
        parts += [f"spare {spare} takes the place of {host}" for host, spare in self.replaced.items()]
        if len(self.replaced) < len(self.lost):
            parts.append(f"left are {hosts}" if hosts else "none is left")
        return "; ".join(parts)

    @property
    def of_spares(self) -> dict[str, str]:
        """What is to be noted of each spare that was wanted."""
        wanted = {host: f"did not answer when {listed('host', self.lost)} had to be replaced" for host in self.silent}
        return {**wanted, **{spare: f"took the place of {host}" for host, spare in self.replaced.items()}}
