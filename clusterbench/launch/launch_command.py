"""The command line of a launcher as the user wrote it, and the same for fewer hosts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from clusterbench.errors import SuiteError

_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_HOSTS = ("-H", "-host", "--host", "-hosts", "--hosts")
_HOSTFILE = ("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
_COUNT = ("-n", "-np", "--np", "-c")
_SLURM_HOSTS = ("-w", "--nodelist")
_SLURM_TASKS = ("-n", "--ntasks")
_SLURM_NODES = ("-N", "--nodes")


@dataclass(frozen=True)
class LaunchCommand:
    """A launcher with the hosts it starts processes on.

    Parameters
    ----------
    words
        The command, word by word.
    hosts
        Each as it is written, ``a`` or ``a:4``, by its name.
    """

    words: tuple[str, ...]
    hosts: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> LaunchCommand:
        """The command in ``text``.

        Raises
        ------
        SuiteError
            If it is no mpirun and no srun, or does not say on which hosts.
        """
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise SuiteError(f"--launch {text!r} cannot be read: {error}.") from None
        name = Path(words[0]).name if words else ""
        if name not in (*_MPI, "srun"):
            raise SuiteError(
                f"--launch {text!r}: only mpirun, mpiexec and srun can be started again on fewer hosts.\n"
                "hint: --launch 'mpirun -n 8 -H a:4,b:4'; under torchrun start clusterbench itself, without --launch"
            )
        written = _hosts_of(words, name == "srun", environment)
        if not written:
            how = "-w a,b, or start it inside salloc" if name == "srun" else "-H a:4,b:4 or --hostfile FILE"
            raise SuiteError(f"--launch {text!r} does not say on which hosts.\nhint: {how}")
        return cls(words, {re.split(r"[:\s]", host)[0]: host for host in written})

    def on(self, hosts: Sequence[str], scratch: Path) -> list[str]:
        """The command for these of its hosts, with as many processes as fall to them."""
        is_slurm = Path(self.words[0]).name == "srun"
        words = list(self.words)
        left = [self.hosts[host] for host in hosts]
        for names, value in (
            (_SLURM_HOSTS if is_slurm else _HOSTS, ",".join(left)),
            (() if is_slurm else _HOSTFILE, self._hostfile(left, scratch)),
            (_SLURM_NODES if is_slurm else (), str(len(hosts))),
        ):
            if found := _find(words, names):
                _replace(words, found[0], value)
        if found := _find(words, _SLURM_TASKS if is_slurm else _COUNT):
            _replace(words, found[0], str(int(found[1]) * len(hosts) // len(self.hosts)))
        if is_slurm and not _find(words, _SLURM_HOSTS):
            words[1:1] = [f"--nodelist={','.join(left)}", f"--nodes={len(hosts)}"]
        return words

    def alone_on(self, host: str, scratch: Path) -> list[str]:
        """The command for one process on one host."""
        words = self.on([host], scratch)
        if found := _find(words, _SLURM_TASKS if Path(words[0]).name == "srun" else _COUNT):
            _replace(words, found[0], "1")
        return words

    def _hostfile(self, left: Sequence[str], scratch: Path) -> str:
        file = scratch / f"hosts-{len(left)}-{abs(hash(tuple(left)))}"
        file.write_text("".join(f"{host}\n" for host in left))
        return str(file)


def _hosts_of(words: Sequence[str], is_slurm: bool, environment: Mapping[str, str]) -> list[str]:
    if is_slurm:
        found = _find(words, _SLURM_HOSTS)
        return list(expand_hosts(found[1] if found else environment.get("SLURM_JOB_NODELIST", "")))
    if found := _find(words, _HOSTS):
        return [host for host in found[1].split(",") if host]
    if found := _find(words, _HOSTFILE):
        try:
            lines = Path(found[1]).read_text().splitlines()
        except OSError as error:
            raise SuiteError(f"--launch: {found[1]} cannot be read: {error.strerror}.") from None
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return []


def _find(words: Sequence[str], names: Sequence[str]) -> tuple[int, str] | None:
    """Where an option stands, and its value: ``-n 8``, ``--np=8`` and srun's ``-N2``."""
    for index, word in enumerate(words):
        if word in names and index + 1 < len(words):
            return index, words[index + 1]
        for name in names:
            if word.startswith(f"{name}=") and name.startswith("-"):
                return index, word[len(name) + 1 :]
            if len(name) == 2 and re.fullmatch(rf"{name}\d+", word):
                return index, word[2:]
    return None


def _replace(words: list[str], index: int, value: str) -> None:
    word = words[index]
    if "=" in word:
        words[index] = f"{word.split('=')[0]}={value}"
    elif re.fullmatch(r"-\w\d+", word):
        words[index] = f"{word[:2]}{value}"
    else:
        words[index + 1] = value


def expand_hosts(text: str) -> Iterator[str]:
    """Every host of a list in Slurm's notation.

    >>> list(expand_hosts("cb[1-2,4],gpu-a[01-02]b,x"))
    ['cb1', 'cb2', 'cb4', 'gpu-a01b', 'gpu-a02b', 'x']
    """
    for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", piece)
        choices = [list(_numbers(part)) if index % 2 else [part] for index, part in enumerate(parts)]
        yield from ("".join(chosen) for chosen in product(*choices))


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not last:
            yield first
        else:
            yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
