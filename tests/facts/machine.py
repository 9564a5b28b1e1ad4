"""A host as files: eight H100 and eight ConnectX-7, healthy, until a test plants something."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clusterbench.facts import Facts, Host, gather, name_of
from clusterbench.facts.infiniband import Infiniband

LOCKED = "may be read by root only"
"""Stands for a file that this user may not read."""


@dataclass
class Machine:
    """Files by path, links by path, programs by their command, and facts that come from no file (NVML)."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str | Exception] = field(default_factory=dict)
    given: dict[str, Facts] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def without(self, *starts: str) -> Machine:
        """Takes away every file and link below these paths, programs that begin so, and facts of that name."""
        for table in (self.files, self.links, self.programs, self.given):
            for key in [key for key in table if key.startswith(starts)]:
                del table[key]
        return self

    def give(self, facts: Facts) -> Machine:
        self.given[name_of(type(facts))] = facts
        return self

    def host(self, root: Path, name: str = "n1") -> Host:
        """What the collectors read of it, through JSON as in ``environment.json``."""
        root = root / name
        self.write(root)
        facts = gather(root, self.run) | {key: asdict(given) for key, given in self.given.items()}
        return Host(name, json.loads(json.dumps({**self.environment, "facts": facts})))

    def write(self, root: Path) -> None:
        for path, text in self.files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text if isinstance(text, bytes) else text.encode())
        for path, target in self.links.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)

    def run(self, words: Sequence[str]) -> str:
        said = self.programs.get(" ".join(words))
        if said is None:
            raise FileNotFoundError(2, "No such file or directory", words[0])
        if isinstance(said, Exception):
            raise said
        return said


def hung(command: str) -> subprocess.TimeoutExpired:
    """A program that does not end."""
    return subprocess.TimeoutExpired(command.split(), 2.0)


def failed(command: str, said: str, exit_code: int = 1) -> subprocess.CalledProcessError:
    """A program that ends with an error."""
    return subprocess.CalledProcessError(exit_code, command.split(), stderr=said)


def healthy() -> Machine:
    """The whole of it: what each module of ``tests/facts/healthy`` plants."""
    import tests.facts.healthy as parts

    machine = Machine()
    for info in pkgutil.iter_modules(parts.__path__):
        plant: Callable[[Machine], None] = importlib.import_module(f"{parts.__name__}.{info.name}").plant
        plant(machine)
    return machine


def others() -> dict[str, Machine]:
    """Other healthy hosts by name: what each module of ``tests/facts/others`` makes of the usual one."""
    import tests.facts.others as kinds

    machines = {info.name: healthy() for info in pkgutil.iter_modules(kinds.__path__)}
    for name, machine in machines.items():
        change: Callable[[Machine], None] = importlib.import_module(f"{kinds.__name__}.{name}").change
        change(machine)
    return machines


def training(*facts: Facts, **environment: object) -> Host:
    """A host with eight GPUs of which only these facts are known, through JSON; nothing is written or read."""
    import tests.facts.healthy.described as described

    machine = Machine()
    described.plant(machine)
    return _with(machine.environment | environment, facts)


def laptop(*facts: Facts, **environment: object) -> Host:
    """A host that has neither GPUs nor RDMA devices, of which only these facts are known."""
    return _with({"gpus": [], "pcie": [], **environment}, facts)


def _with(environment: Mapping[str, object], facts: Sequence[Facts]) -> Host:
    known = (Infiniband(devices=(), ports=()), *facts)
    said = {"facts": {name_of(type(each)): asdict(each) for each in known}}
    return Host("n1", json.loads(json.dumps({**environment, **said})))


def planted(folder: str, files: Mapping[str, object]) -> dict[str, str | bytes]:
    """Files of one folder by their full paths, with the line's end that the kernel writes."""
    return {f"{folder}/{name}": f"{text}\n" for name, text in files.items()}
