"""The command line of a launcher as the user wrote it, and the same for fewer hosts."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterbench.errors import SuiteError
from clusterbench.launch.launcher import expand_hosts

_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_HOSTS = ("-H", "-host", "--host", "-hosts", "--hosts")
_HOSTFILE = ("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
_COUNT = ("-n", "-np", "--n", "--np", "-c")
_SLURM_HOSTS = ("-w", "--nodelist")
_SLURM_WITHOUT = ("-x", "--exclude")
_SLURM_TASKS = ("-n", "--ntasks")
_SLURM_TASKS_PER_NODE = ("--ntasks-per-node",)
_SLURM_NODES = ("-N", "--nodes")


@dataclass(frozen=True)
class LaunchCommand:
    """A launcher with the hosts it starts processes on.

    Parameters
    ----------
    words
        The command, word by word.
    hosts
        By name, each as it is written: ``a``, ``a:4``, ``a slots=4``; one that is written twice has two entries.
    """

    words: tuple[str, ...]
    hosts: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> LaunchCommand:
        """The command in ``text``.

        Raises
        ------
        SuiteError
            If it is no mpirun and no srun, does not say on which hosts, or gives no number where one belongs.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SuiteError(f"--launch {text!r} cannot be read: {error}.") from None
        name = Path(words[0]).name if words else ""
        if name not in (*_MPI, "srun"):
            raise SuiteError(
                f"--launch {text!r}: only mpirun, mpiexec and srun can be started again on fewer hosts.\n"
                "hint: --launch 'mpirun -n 8 -host a:4,b:4'; under torchrun start clusterbench itself, without --launch"
            )
        written = _hosts_of_srun(words, environment) if name == "srun" else _hosts_of_mpirun(words)
        if not written:
            how = "-w a,b, or start it inside salloc" if name == "srun" else "-host a:4,b:4 or --hostfile FILE"
            raise SuiteError(f"--launch {text!r} does not say on which hosts.\nhint: {how}")
        if name == "srun":
            words = _said_in_full(words, written, environment)
        if (count := _find(words, _count_of(words))) and not count.value.isdecimal():
            raise SuiteError(f"--launch {text!r}: {words[count.index]} must be a whole number, not {count.value!r}.")
        hosts: dict[str, tuple[str, ...]] = {}
        for host in written:
            name = re.split(r"[:\s]", host)[0]
            hosts[name] = (*hosts.get(name, ()), host)
        return cls(tuple(words), hosts)

    def on(self, hosts: Sequence[str], scratch: Path) -> list[str]:
        """The command for these of its hosts, with as many processes as fall to them."""
        words = list(self.words)
        left = [entry for host in hosts for entry in self.hosts[host]]
        if _is_srun(words):
            _replace(words, _SLURM_HOSTS, ",".join(left))
            _replace(words, _SLURM_NODES, str(len(hosts)))
        elif _find(words, _HOSTS):
            _replace(words, _HOSTS, ",".join(left))  # a file beside it says more than these names, and stays
        else:
            _replace(words, _HOSTFILE, self._hostfile(left, scratch))
        if count := _find(words, _count_of(words)):
            _replace(words, _count_of(words), str(int(count.value) * len(hosts) // len(self.hosts)))
        return words

    def alone_on(self, host: str, scratch: Path) -> list[str]:
        """The command for one process on one host."""
        words = self.on([host], scratch)
        _replace(words, _count_of(words), "1")
        if _is_srun(words):
            _replace(words, _SLURM_TASKS_PER_NODE, "1")
        return words

    def as_every_mpirun_takes_it(self) -> list[str]:
        """An mpirun's command in the options that MPICH's and Open MPI's have in common; another launcher's as it is.

        Measured with MPICH 5.0 and Open MPI 5.0: both know ``-n``, ``-host`` and ``--hostfile``; ``-H`` only Open MPI,
        ``-hosts`` and ``-f`` only MPICH, whose mpirun prints its usage and ends with 0 where it sees ``-H``.
        """
        words = list(self.words)
        if not _is_srun(words):
            for names, common in ((_COUNT, "-n"), (_HOSTS, "-host"), (_HOSTFILE, "--hostfile")):
                if found := _find(words, names):
                    words[found.index : found.index + (2 if found.before is None else 1)] = [common, found.value]
        return words

    def _hostfile(self, left: Sequence[str], scratch: Path) -> str:
        text = "".join(f"{entry}\n" for entry in left)
        file = scratch / f"hosts-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        file.write_text(text)
        return str(file)


def _is_srun(words: Sequence[str]) -> bool:
    return Path(words[0]).name == "srun"


def _count_of(words: Sequence[str]) -> tuple[str, ...]:
    """The names of the option that says how many processes are started."""
    return _SLURM_TASKS if _is_srun(words) else _COUNT


def _hosts_of_mpirun(words: Sequence[str]) -> list[str]:
    if found := _find(words, _HOSTS):
        return [host for host in found.value.split(",") if host]
    if found := _find(words, _HOSTFILE):
        lines = [line.partition("#")[0].strip() for line in _read(found.value).splitlines()]
        return [line for line in lines if line]
    return []


def _hosts_of_srun(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Those that are named, otherwise as many of the allocation's as are wanted, the first ones."""
    if found := _find(words, _SLURM_HOSTS):
        listed = ",".join(_read(found.value).split()) if "/" in found.value else found.value
        return list(dict.fromkeys(expand_hosts(listed)))
    hosts = list(expand_hosts(environment.get("SLURM_JOB_NODELIST", "")))
    if found := _find(words, _SLURM_WITHOUT):
        without = set(expand_hosts(found.value))
        hosts = [host for host in hosts if host not in without]
    if (found := _find(words, _SLURM_NODES)) and found.value.isdecimal():
        hosts = hosts[: int(found.value)]
    return hosts


def _said_in_full(words: Sequence[str], hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command of srun with what it would take from its allocation, so that less can be asked of it."""
    full = list(words)
    if not _replace(full, _SLURM_HOSTS, ",".join(hosts)):
        full.insert(1, f"--nodelist={','.join(hosts)}")
    if not _replace(full, _SLURM_NODES, str(len(hosts))):
        full.insert(1, f"--nodes={len(hosts)}")
    tasks = environment.get("SLURM_NTASKS")
    if tasks and not _find(full, _SLURM_TASKS) and not _find(full, _SLURM_TASKS_PER_NODE):
        allocated = len(list(expand_hosts(environment.get("SLURM_JOB_NODELIST", "")))) or len(hosts)
        full.insert(1, f"--ntasks={int(tasks) * len(hosts) // allocated}")
    return full


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise SuiteError(f"--launch: {path} cannot be read: {error.strerror}.") from None


@dataclass(frozen=True)
class _Option:
    """Where an option stands, what stands before its value in the same word, and the value."""

    index: int
    before: str | None
    value: str


def _find(words: Sequence[str], names: Sequence[str]) -> _Option | None:
    """An option in one of its spellings: ``-n 8``, ``--np=8``, and glued to its letter, ``-n8`` and ``-wcb[1-2]``."""
    for index, word in enumerate(words[1:], 1):
        if word in names and index + 1 < len(words):
            return _Option(index, None, words[index + 1])
        for name in names:
            rest = word.removeprefix(name)
            if rest == word or not rest:
                continue
            if rest.startswith("="):
                return _Option(index, f"{name}=", rest[1:])
            if len(name) == 2 and (_is_srun(words) or rest.isdecimal()):
                return _Option(index, name, rest)
    return None


def _replace(words: list[str], names: Sequence[str], value: str) -> bool:
    """Gives an option another value, in the spelling it has; False where it is not there."""
    if (found := _find(words, names)) is None:
        return False
    if found.before is None:
        words[found.index + 1] = value
    else:
        words[found.index] = found.before + value
    return True
