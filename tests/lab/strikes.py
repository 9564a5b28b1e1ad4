"""What a soak hits, and how: workers and what starts them, agents, hosts, links, the disk, clocks and the run itself.

The run's folder is on a disk of its own, so that it can be full or stand still, and all processes of the lab read a
clock that can jump.
"""

import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.hosts import Lab

HERE = Path(__file__).parent
DISK_BYTES = 256 << 20
ENDING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM")
DAY_S = 86400.0

A_CASE = "a case at most, which names it"
THE_HOST = "the host, which is named"
TIME = "nothing but time"
THE_RUN = "the run, which says why it ends"
NOT_ASKED = "what a person does, who knows, or a link that comes back, which is nobody's fault"


class Kind(NamedTuple):
    """How often something is hit, beside the other kinds, and what it may cost."""

    weight: int
    costs: str


KINDS = {
    "kill worker": Kind(24, A_CASE),
    "segfault worker": Kind(15, A_CASE),
    "stop worker": Kind(12, A_CASE),
    "kill zygote": Kind(6, A_CASE),
    "stop zygote": Kind(4, A_CASE),
    "kill spawner": Kind(4, THE_HOST),
    "stop spawner": Kind(4, A_CASE),
    "kill store": Kind(6, A_CASE),
    "kill agent": Kind(6, THE_HOST),
    "stop agent": Kind(4, THE_HOST),
    "pause agent": Kind(6, TIME),
    "crash host": Kind(5, THE_HOST),
    "power off": Kind(5, THE_HOST),
    "cut link": Kind(4, THE_HOST),
    "mute link": Kind(4, THE_HOST),
    "blink link": Kind(6, NOT_ASKED),
    "stall disk": Kind(5, TIME),
    "fill disk": Kind(5, THE_RUN),
    "jump clock": Kind(6, TIME),
    "kill launcher": Kind(6, NOT_ASKED),
    "kill run": Kind(5, NOT_ASKED),
    "terminate run": Kind(6, NOT_ASKED),
}


class Struck(NamedTuple):
    """What was hit, empty if there was nothing to hit just then, and its rank if it is a worker."""

    target: str = ""
    rank: int = -1
    run_ends: bool = False


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A folder on a disk of its own; what is mounted before a lab is built is seen by all of its hosts."""
    image, mounted = folder / "disk.img", folder / "disk"
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    mounted.mkdir()
    _succeed("mkfs.ext4", "-q", "-m", "0", str(image))
    _succeed("mount", "-o", "loop,noatime", str(image), str(mounted))
    try:
        yield mounted
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(mounted)], capture_output=True, check=False)
        _succeed("umount", "--lazy", str(mounted))


def clocks(folder: Path, hosts: list[str]) -> dict[str, str]:
    """The variables of a lab whose clocks can jump, and a file for each host that says by how much it has."""
    library, jumps = folder / "jumping_clock.so", folder / "clocks"
    compiler = shutil.which("cc") or "cc"
    source = str(HERE / "jumping_clock.c")
    _succeed(compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), source, "-ldl")
    jumps.mkdir()
    for host in hosts:
        (jumps / host).write_bytes(struct.pack("d", 0.0))
    return {"LD_PRELOAD": str(library), "JUMPING_CLOCKS": str(jumps)}


@dataclass
class Strikes:
    """One lab, the ``folder`` whose ``disk`` and ``clocks`` are its own, and chance."""

    lab: Lab
    folder: Path
    chance: random.Random

    def hit(self, kind: str, run: "subprocess.Popen[Any]") -> Struck:
        what, _, of = kind.partition(" ")
        if of == "worker":
            return self._hit_worker(what)
        if of == "launcher":
            pid = self.launcher_pid()
            return Struck("mpirun" if pid and _signal(pid, signal.SIGKILL) else "")
        if of == "run":
            name = "SIGKILL" if what == "kill" else self.chance.choice(ENDING_SIGNALS)
            run.send_signal(signal.Signals[name])
            return Struck(f"supervisor, {name}", run_ends=True)
        if of == "disk":
            return self._fill() if what == "fill" else self._stall()
        host = self.chance.choice([host for host in self.lab.hosts if self.agents(host)] or [""])
        if not host:
            return Struck()
        if of == "clock":
            return self._jump(host)
        if of in ("agent", "zygote", "spawner", "store"):
            return self._hit_process(host, what, of)
        self._hit_host(host, kind)
        return Struck(host)

    def repair(self) -> None:
        """All hosts up and joined, and room on the disk. A clock stays as wrong as it is."""
        (self.folder / "disk/filler").unlink(missing_ok=True)
        for host in self.lab.hosts:
            if not self.lab.is_up(host):
                self.lab.revive(host)
            self.lab.heal(host)
            self.lab.undrop(host)

    def _hit_worker(self, what: str) -> Struck:
        workers = self.workers()
        if not workers:
            return Struck()
        pid, rank = self.chance.choice(workers)
        number = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}[what]
        return Struck(f"rank {rank}", rank) if _signal(pid, number) else Struck()

    def _hit_process(self, host: str, what: str, of: str) -> Struck:
        if of == "store":  # there is one, on one of the hosts
            host, found = next(((host, stores) for host in self.lab.hosts if (stores := self.stores(host))), ("", []))
        else:
            found = self.agents(host) if of == "agent" else self.helpers(host, of)
        if not found:
            return Struck()
        self.lab.run(host, ["kill", "-KILL" if what == "kill" else "-STOP", found[0]])
        if what == "pause":
            time.sleep(self.chance.uniform(0.5, 12.0))
            self.lab.run(host, ["kill", "-CONT", found[0]])
        return Struck(host)

    def _hit_host(self, host: str, kind: str) -> None:
        if kind == "crash host":
            self.lab.crash(host)
        elif kind == "power off":
            self.lab.crash(host, power=True)
        elif kind == "mute link":
            self.lab.drop(host)
        else:
            self.lab.cut(host)
        if kind == "blink link":
            time.sleep(self.chance.uniform(0.5, 6.0))
            self.lab.heal(host)

    def _jump(self, host: str) -> Struck:
        by_s = self.chance.choice([0.0, 3600.0, -3600.0, DAY_S, -DAY_S, 400 * DAY_S, -400 * DAY_S])
        with open(self.folder / "clocks" / host, "r+b") as file:
            file.write(struct.pack("d", by_s))
        return Struck(f"{host}, {by_s:+.0f} s")

    def _fill(self) -> Struck:
        with open(self.folder / "disk/filler", "wb") as file:
            size = DISK_BYTES
            while size >= 512:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    size //= 2
        return Struck("disk", run_ends=True)

    def _stall(self) -> Struck:
        for_s = self.chance.uniform(2.0, 25.0)
        _succeed("fsfreeze", "--freeze", str(self.folder / "disk"))
        try:
            time.sleep(for_s)
        finally:
            _succeed("fsfreeze", "--unfreeze", str(self.folder / "disk"))
        return Struck(f"disk, {for_s:.0f} s")

    def workers(self) -> list[tuple[int, int]]:
        """Process and rank of every worker, by the log it writes to."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    log = os.readlink(entry / "fd/1")
                except OSError:
                    continue
                match = re.fullmatch(rf"{self.folder}/disk/run/logs/start-\d+-rank-(\d+)\.log", log)
                if match:
                    found.append((int(entry.name), int(match[1])))
        return sorted(found)

    def agents(self, host: str) -> list[str]:
        if not self.lab.is_up(host):
            return []
        return self.lab.run(host, ["pgrep", "-o", "-f", "clusterbench.cli run"]).stdout.split()

    def helpers(self, host: str, name: str) -> list[str]:
        """The zygote or the spawner of a host."""
        return self.lab.run(host, ["pgrep", "-o", "-f", f"clusterbench.launch.{name}"]).stdout.split()

    def stores(self, host: str) -> list[str]:
        """What a zygote forked that writes into no rank's log."""
        if not self.lab.is_up(host):
            return []
        forked = "for pid in $(pgrep -f clusterbench.launch.zygote); do echo $pid $(ps -o ppid= $pid) "
        lines = self.lab.run(host, ["sh", "-c", f"{forked} $(readlink /proc/$pid/fd/1); done"]).stdout.splitlines()
        words = [line.split() for line in lines]
        found = {word[0] for word in words}
        return [pid for pid, parent, *log in words if parent in found and not any("-rank-" in name for name in log)]

    def launcher_pid(self) -> int:
        """Of the run's mpirun; 0 where there is none."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words and Path(words[0].decode()).name == "mpirun" and str(self.folder).encode() in b" ".join(words):
                    return int(entry.name)
        return 0


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _succeed(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
