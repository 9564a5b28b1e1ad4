"""A cluster in a box: hosts made from Linux namespaces, joined by a switch, on one machine.

>>> from tests.lab.hosts import Lab, why_not
>>> if why_not() is None:
...     with Lab(2) as lab:
...         assert lab.run("cb1", ["hostname"]).stdout == "cb1\\n"
...         assert lab.reaches("cb1", "cb2")
...         lab.cut("cb2")
...         assert not lab.reaches("cb1", "cb2")

Every host has its own name, address, processes, shared memory, System V IPC, /sys/class/net and $TMPDIR; otherwise all
see the same files, as on a cluster with a shared file system. ``cb0`` is the login host, where mpirun and sbatch start.
Its pid namespace holds those of the others::

    owner (pytest, or nobody)
      └── init of cb0                     dies with its owner
            ├── what runs on the login host
            ├── init of the switch        a bridge, and the slow cables
            ├── init of cb1 ── what runs on cb1
            └── init of cb2 ── what runs on cb2

The kernel kills what is in a pid namespace when its init dies, and takes the interfaces and mounts of namespaces nobody
is in. So a host crashes by one ``kill -9``, and a lab is gone when the init of its login host is. Nothing has a name
outside the lab except its scratch folder, so labs live side by side with the same names and addresses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.lab.namespaces import born_in, start_in

LOGIN, SWITCH = "cb0", "switch"
NET = "10.77.0"
MOST_HOSTS = 200
LABS = Path(tempfile.gettempdir()) / "clusterbench-labs"
HERE = Path(__file__).parent
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
MOST_SECONDS_TO_BOOT = 300.0
PATIENCE_S = 60.0  # for what takes milliseconds on an idle machine

# A host that is there refuses a connection to a port nobody listens on; one that is not says nothing.
KNOCK = """
import socket, sys, time
knock = socket.socket()
knock.settimeout(float(sys.argv[2]))
start = time.monotonic()
try:
    knock.connect((sys.argv[1], 22))
except ConnectionRefusedError:
    print(time.monotonic() - start)
except OSError:
    sys.exit(1)
"""


class LabError(Exception):
    """What was asked of a lab cannot be."""


def why_not() -> str | None:
    """Why no lab can be built on this machine; None where one can."""
    if not sys.platform.startswith("linux"):
        return "a lab is made of Linux namespaces"
    if os.geteuid() != 0:
        return "a lab needs root"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"a lab needs {tool} (package {package})"
    trial = subprocess.run([*UNSHARE, "--mount-proc", "true"], capture_output=True, text=True)
    return f"no new namespaces here: {trial.stderr.strip()}" if trial.returncode else None


def why_no_delay() -> str | None:
    """Why ``delay`` and ``loss`` cannot be had where a lab can; None where they can."""
    return None if os.path.exists("/dev/net/tun") else "a slow cable needs /dev/net/tun"


class Lab:
    """``num_hosts`` hosts ``cb1``, ``cb2``, ... and the login host ``cb0``, up when the constructor returns.

    A lab dies with the thread that built it, even by ``kill -9``; one that is ``lasting`` stays until ``close``.
    ``Lab.reopen(folder)`` gives the lab of a folder to another process. ``environment`` has variables that all of its
    processes see, ``names`` the hosts' own names.
    """

    def __init__(
        self,
        num_hosts: int,
        folder: Path | None = None,
        lasting: bool = False,
        environment: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        if not 1 <= num_hosts <= MOST_HOSTS:
            raise LabError(f"a lab has 1 to {MOST_HOSTS} hosts, not {num_hosts}")
        sweep()
        LABS.mkdir(exist_ok=True)
        self.folder = folder or Path(tempfile.mkdtemp(dir=LABS))
        self.hosts = [*names] or [f"cb{index}" for index in range(1, num_hosts + 1)]
        self._lasting = lasting
        self._inits: dict[str, int] = {}  # name -> pid, as seen from outside
        self._links: dict[str, dict[str, float]] = {}  # host -> pid, delay_ms, loss
        self._first_environment = {"TMPDIR": f"{self.folder}/tmp", **(environment or {})}
        self._environment: dict[str, str] = dict(self._first_environment)
        self._first_mounts: dict[str, str] = {}  # host -> its mounts when it had booted
        self._disturbed: set[str] = set()  # hosts whose network was changed
        self._children: list[subprocess.Popen[Any]] = []
        try:
            self._furnish()
            for name in [LOGIN, SWITCH, *self.hosts]:
                self._boot(name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def reopen(cls, folder: Path) -> Lab:
        """The lab that lives in a folder, with what was set and started in it."""
        lab = cls.__new__(cls)
        state = json.loads((folder / "state.json").read_text())
        lab.folder, lab._lasting, lab._children = folder, True, []
        lab.hosts, lab._inits, lab._links = state["hosts"], state["inits"], state["links"]
        lab._environment = lab._first_environment = state["environment"]
        lab._first_mounts, lab._disturbed = {}, set()  # renew would boot every host
        return lab

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is there

    def address(self, host: str) -> str:
        return f"{NET}.{254 if host == LOGIN else self._index(host)}"

    def is_up(self, host: str) -> bool:
        return host in self._inits and _is_alive(self._inits[host])

    def processes(self, host: str) -> list[str]:
        """The command lines of what runs on a host, without its init and without zombies."""
        self._reap()
        if not self.is_up(host):
            return []
        holders, namespace = self._holders(), _pid_namespace(self._inits[host])
        running = []
        for pid in psutil.pids():
            if pid in holders or _pid_namespace(pid) != namespace:
                continue
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                command, name = process.cmdline(), process.name()
                if process.status() != psutil.STATUS_ZOMBIE:
                    running.append(" ".join(command) or f"[{name}]")
        return running

    def left_running(self, within_s: float = 0.0) -> dict[str, list[str]]:
        """Every host, the login host among them, on which something runs, and what; for the end of a test.

        Looks again for ``within_s`` seconds: what is about to end, as a launcher's daemons are, was not left behind.
        """
        deadline = time.monotonic() + within_s
        while True:
            running = {host: self.processes(host) for host in [LOGIN, *self.hosts]}
            left = {host: commands for host, commands in running.items() if commands}
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(0.05)

    def reaches(self, host: str, other: str, timeout_s: float = 5.0) -> bool:
        """Whether a TCP packet from one host comes back from the other in time."""
        return self._knock(host, other, timeout_s) is not None

    def round_trip_s(self, host: str, other: str, tries: int = 5) -> float:
        """The least time of a connection being refused, which is one round trip; other work only adds to it."""
        times_s = [self._knock(host, other, timeout_s=5.0) for _ in range(tries)]
        if None in times_s:
            raise LabError(f"{host} does not reach {other}")
        return min(time_s for time_s in times_s if time_s is not None)

    # Running things

    def start(self, host: str, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Starts a command on a host. Its Popen is that of the command itself: to kill or stop it reaches the command.

        Without ``env`` and ``cwd`` it has those of this process. What it starts in turn lives on if it is killed.
        """
        environment = self._with_lab(host, popen.pop("env", None) or os.environ)
        cwd = str(popen.pop("cwd", None) or os.getcwd())
        child = start_in(self._init(host), command, cwd, env=environment, **popen)
        self._children.append(child)
        return child

    def login(self, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Starts a command on the login host. ``ssh`` there reaches the hosts, as mpirun and people expect."""
        return self.start(LOGIN, command, **popen)

    def run(
        self, host: str, command: Sequence[str], *, timeout: float = 60, check: bool = False, **popen: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; its output as text. Killed after ``timeout`` seconds, with an exception."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.start(host, command, **{**streams, **popen}) as child:
            try:
                out, err = child.communicate(timeout=timeout)
            except BaseException:
                child.kill()
                raise
        self._children.remove(child)
        done = subprocess.CompletedProcess(list(command), child.returncode, out, err)
        if check and done.returncode:
            raise LabError(f"{host}: {' '.join(command)}: exit {done.returncode}: {err}")
        return done

    def setenv(self, name: str, value: str) -> None:
        """Sets a variable for everything that starts in the lab from now on, as /etc/environment would."""
        self._environment[name] = value
        self._save()

    # The network

    def shape(self, host: str, rate: str, burst: str = "256kb", latency: str = "50ms") -> None:
        """Limits what a host sends and what it receives to a rate as tc writes it: ``100mbit``, ``1gbit``.

        Under about 4 Gbit/s; above, two cores are what is measured.
        """
        self._disturbed.add(host)
        limit = ["root", "tbf", "rate", rate, "burst", burst, "latency", latency]
        self._in(host, "tc", "qdisc", "replace", "dev", "eth0", *limit)
        self._in(SWITCH, "tc", "qdisc", "replace", "dev", self._port(host), *limit)

    def unshape(self, host: str) -> None:
        self._in(host, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        self._in(SWITCH, "tc", "qdisc", "del", "dev", self._port(host), "root", check=False)

    def slow_between(self, host: str, other: str, rate: str, burst: str = "256kb", latency: str = "50ms") -> None:
        """Lays a cable of its own between two hosts, limited to a rate both ways; their other links stay as they are.

        Their addresses stay, too: only the route from one to the other leads over it.
        """
        self.unslow_between(host, other)
        self._disturbed |= {host, other}
        ends = {host: (self._cable_to(other), other), other: (self._cable_to(host), host)}
        peer = ["peer", "name", ends[other][0], "netns", str(self._init(other))]
        self._in(host, "ip", "link", "add", ends[host][0], "type", "veth", *peer)
        for end, (interface, beyond) in ends.items():
            self._in(end, "ip", "link", "set", interface, "up")
            self._in(end, "tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", burst,
                     "latency", latency)  # fmt: skip
            route = [f"{self.address(beyond)}/32", "dev", interface, "src", self.address(end)]
            self._in(end, "ip", "route", "replace", *route)

    def unslow_between(self, host: str, other: str) -> None:
        self._in(host, "ip", "link", "del", self._cable_to(other), check=False)

    def delay(self, host: str, delay_ms: float, loss: float = 0.0) -> None:
        """Puts a cable before a host that takes ``delay_ms`` each way and loses a share of the segments."""
        self.undelay(host)
        self._disturbed.add(host)
        index = self._index(host)
        near, far, cable = f"near{index}", f"far{index}", f"cable{index}"
        link = self.start(
            SWITCH,
            [sys.executable, "-S", str(HERE / "link.py"), near, far, str(delay_ms), str(loss)],
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert link.stdout is not None
        if link.stdout.readline() != b"up\n":
            raise LabError(f"no cable for {host}: {why_no_delay() or 'see stderr'}")
        link.stdout.close()
        self._links[host] = {"pid": link.pid, "delay_ms": delay_ms, "loss": loss}
        self._in(SWITCH, "ip", "link", "add", cable, "type", "bridge", "mcast_snooping", "0")
        for interface, bridge in ((near, cable), (far, "br0"), (self._port(host), cable)):
            self._in(SWITCH, "ip", "link", "set", interface, "master", bridge)
        for interface in (near, far, cable):
            self._in(SWITCH, "ip", "link", "set", interface, "up")
        self._save()

    def undelay(self, host: str) -> None:
        """Takes the slow and lossy cable away."""
        link = self._links.pop(host, None)
        if link is None:
            return
        with suppress(ProcessLookupError):
            os.kill(int(link["pid"]), 9)
        self._wait_for_end([int(link["pid"])])
        self._in(SWITCH, "ip", "link", "set", self._port(host), "master", "br0", check=False)  # no port: host is down
        self._in(SWITCH, "ip", "link", "del", f"cable{self._index(host)}")
        self._save()

    def loss(self, host: str, probability: float) -> None:
        """Loses a share of the segments to and from a host. With BBR a percent does not show in the bandwidth."""
        self.delay(host, self._links.get(host, {}).get("delay_ms", 0.0), probability)

    def cut(self, host: str) -> None:
        """Unplugs a host: its interface has no carrier."""
        self._disturbed.add(host)
        self._in(SWITCH, "ip", "link", "set", self._port(host), "down")

    def heal(self, host: str) -> None:
        self._in(SWITCH, "ip", "link", "set", self._port(host), "up")

    def drop(self, host: str) -> None:
        """Loses every packet to and from a host without a word: its interface says that all is well."""
        self._disturbed.add(host)
        self._in(SWITCH, "ip", "link", "set", self._port(host), "nomaster")

    def undrop(self, host: str) -> None:
        bridge = f"cable{self._index(host)}" if host in self._links else "br0"
        self._in(SWITCH, "ip", "link", "set", self._port(host), "master", bridge)

    # The hosts

    def crash(self, host: str, power: bool = False) -> None:
        """Kills a host and all that runs on it.

        Its kernel is ours, which closes the connections, so peers hear of it at once. With ``power`` the cable goes
        first, as when the power fails: peers hear nothing.
        """
        init = self._init(host)
        if power:
            self.cut(host)
        os.kill(init, 9)
        self._wait_for_end([init])
        self.undelay(host)
        self._unplug(host)

    def revive(self, host: str) -> None:
        """Boots a crashed host: same name and address, nothing runs, $TMPDIR and /dev/shm are empty."""
        if self.is_up(host):
            raise LabError(f"{host} is up")
        self._boot(host)

    def renew(self) -> None:
        """Makes the lab as new for the next test: ends what runs, and boots hosts anew that are not as they were.

        A host that is up, empty, with its first mounts and an undisturbed network is left as it is: to look takes
        milliseconds, to boot a tenth of a second and more.
        """
        keepers = self._holders()
        for child in [child for child in self._children if child.pid not in keepers]:
            child.kill()
            self._let_go(child)
            self._children.remove(child)
        self._end_all_on(LOGIN)
        for host in self.hosts:
            if not self._is_new(host):
                if self.is_up(host):
                    self.crash(host)
                self.revive(host)
        for host in [LOGIN, *self.hosts]:
            self._in(host, "ip", "neigh", "flush", "all")  # who knows a neighbour waits for one that is down
        (self.folder / "clock_skews.json").unlink(missing_ok=True)
        self._environment = dict(self._first_environment)
        self._save()

    def skew(self, host: str, seconds: float) -> None:
        """Shifts the wall clock of Python processes that start on a host from now on; 0 sets it right.

        See ``skewed_clock/sitecustomize.py`` for what is shifted. Interpreters with -I, -E or -S keep the true time.
        """
        self._init(host)
        skews_path = self.folder / "clock_skews.json"
        skews = json.loads(skews_path.read_text()) if skews_path.exists() else {}
        skews_path.write_text(json.dumps({**skews, host: seconds}))
        self._environment["PYTHONPATH"] = str(HERE / "skewed_clock")
        self.setenv("LAB_CLOCK_SKEWS", str(skews_path))

    def close(self) -> None:
        """Ends everything in the lab and removes its folder. Closing twice does no harm."""
        init = self._inits.get(LOGIN)
        if init is not None and _is_alive(init):
            os.kill(init, 9)
            self._wait_for_end([*self._inits.values()])
        for child in self._children:
            self._let_go(child)
        self._children.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # How it is done

    def _is_new(self, host: str) -> bool:
        if host in self._disturbed or not self.is_up(host) or self.processes(host):
            return False
        inside = Path(f"/proc/{self._inits[host]}")
        folders = [inside / "root/dev/shm", Path(f"{inside}/root{self.folder}/tmp")]
        return (inside / "mounts").read_text() == self._first_mounts.get(host) and not any(map(os.listdir, folders))

    def _end_all_on(self, host: str) -> None:
        """Kills what runs on a host, and what that started meanwhile."""
        keepers, namespace = self._holders(), _pid_namespace(self._inits[host])
        deadline = time.monotonic() + PATIENCE_S
        while self.processes(host):
            if time.monotonic() > deadline:
                raise LabError(f"still running on {host}: {self.processes(host)}")
            for pid in psutil.pids():
                if pid not in keepers and _pid_namespace(pid) == namespace:
                    with suppress(ProcessLookupError):
                        os.kill(pid, 9)
            time.sleep(0.005)

    @staticmethod
    def _let_go(child: subprocess.Popen[Any]) -> None:
        """Waits for the end of a process, and closes its streams."""
        child.wait(PATIENCE_S)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _furnish(self) -> None:
        """Fills the scratch folder: what every host reads, and the login host's ssh."""
        (self.folder / "tmp").mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{self.address(host)} {host}" for host in [LOGIN, *self.hosts])]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "bin").mkdir()
        ssh = self.folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "ssh.py"} {self.folder} "$@"\n')
        ssh.chmod(0o755)

    def _boot(self, name: str) -> None:
        """Starts the init of a host, and plugs the host in."""
        command = [*UNSHARE, sys.executable, "-I", "-S", str(HERE / "init.py"), name, str(self.folder)]
        with open(self.folder / f"init.{name}.log", "wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log, "cwd": "/"}
            if name != LOGIN:
                holder = born_in(self._inits[LOGIN], command, **streams)
            elif self._lasting:
                holder = subprocess.Popen(command, start_new_session=True, **streams)
            else:
                holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], **streams)
        self._children.append(holder)
        assert holder.stdout is not None
        answer = holder.stdout.readline()
        holder.stdout.close()
        if not answer:
            raise LabError(f"{name} does not boot: {Path(log.name).read_text().strip()}")
        self._inits[name] = int(answer)
        self._in(name, "ip", "link", "set", "lo", "up")
        if name == SWITCH:
            self._in(SWITCH, "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            self._in(SWITCH, "ip", "link", "set", "br0", "up")
            self._plug_in(LOGIN)
        elif name != LOGIN:
            self._plug_in(name)
        self._disturbed.discard(name)
        self._first_mounts[name] = Path(f"/proc/{self._inits[name]}/mounts").read_text()
        self._save()

    def _plug_in(self, host: str) -> None:
        port, address = self._port(host), self.address(host)
        self._unplug(host)
        peer = ["peer", "name", "eth0", "netns", str(self._inits[host])]
        self._in(SWITCH, "ip", "link", "add", port, "type", "veth", *peer)
        self._in(SWITCH, "ip", "link", "set", port, "master", "br0", "up")
        # A revived host keeps its hardware address, so that no neighbour has to forget the old one.
        hardware_address = f"02:00:0a:4d:00:{int(address.rpartition('.')[2]):02x}"
        self._in(host, "ip", "link", "set", "eth0", "address", hardware_address)
        self._in(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        self._in(host, "ip", "link", "set", "eth0", "up")

    def _unplug(self, host: str) -> None:
        """Takes away both ends of a host's cable. A dead host's network would answer until the kernel clears it."""
        self._in(SWITCH, "ip", "link", "del", self._port(host), check=False)

    def _in(self, name: str, *command: str, check: bool = True) -> None:
        """Runs a command of this machine in the network of a host or the switch."""
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self._init(name)}/ns/net", "--", *command], capture_output=True, text=True
        )
        if check and done.returncode:
            raise LabError(f"{name}: {' '.join(command)}: {done.stderr.strip()}")

    def _knock(self, host: str, other: str, timeout_s: float) -> float | None:
        command = [sys.executable, "-I", "-S", "-c", KNOCK, self.address(other), str(timeout_s)]
        done = self.run(host, command, timeout=timeout_s + PATIENCE_S)
        return float(done.stdout) if done.returncode == 0 else None

    def _index(self, host: str) -> int:
        if host not in self.hosts:
            raise LabError(f"no host {host!r}; there are {', '.join(self.hosts)}")
        return 1 + self.hosts.index(host)

    def _port(self, host: str) -> str:
        return f"p{0 if host == LOGIN else self._index(host)}"

    def _cable_to(self, host: str) -> str:
        return f"to{self._index(host)}"

    def _init(self, name: str) -> int:
        if name not in self._inits:
            raise LabError(f"no host {name!r}; there are {', '.join([LOGIN, *self.hosts])}")
        if not _is_alive(self._inits[name]):
            raise LabError(f"{name} is down")
        return self._inits[name]

    def _with_lab(self, host: str, environment: Any) -> dict[str, str]:
        """An environment with what the lab sets; PATH and PYTHONPATH keep what they had, behind the lab's."""
        added = dict(self._environment)
        if host == LOGIN:
            added["PATH"] = f"{self.folder}/bin"
        for name in ("PATH", "PYTHONPATH"):
            if name in added and environment.get(name):
                added[name] += os.pathsep + environment[name]
        return {**environment, **added}

    def _holders(self) -> set[int]:
        """The processes that are the lab: inits, who keeps them, and cables."""
        inits = [pid for pid in self._inits.values() if _is_alive(pid)]
        return {
            *inits,
            *(psutil.Process(pid).ppid() for pid in inits),
            *(int(link["pid"]) for link in self._links.values()),
        }

    def _reap(self) -> None:
        for child in self._children:
            child.poll()

    def _wait_for_end(self, pids: Iterable[int]) -> None:
        """Waits until processes are gone, and reaps: an init stays until all of its processes are reaped."""
        deadline = time.monotonic() + PATIENCE_S
        while left := [pid for pid in pids if _is_alive(pid)]:
            if time.monotonic() > deadline:
                raise LabError(f"still there {PATIENCE_S:.0f} s after kill -9: {left}")
            self._reap()
            time.sleep(0.005)

    def _save(self) -> None:
        """Writes what ``reopen`` and the hosts' ssh read."""
        state = {
            "hosts": self.hosts,
            "inits": self._inits,
            "inits_seen_from_login": {
                name: _pid_seen_inside(pid) for name, pid in self._inits.items() if _is_alive(pid) and name != LOGIN
            },
            "links": self._links,
            "environment": self._environment,
        }
        written = self.folder / "state.json.new"
        written.write_text(json.dumps(state, indent=1))
        written.rename(self.folder / "state.json")


def sweep() -> None:
    """Removes the folders of labs that died with their owner. All else of theirs went with them."""
    for folder in LABS.glob("*/"):
        with suppress(OSError, psutil.Error):
            if (folder / "state.json").exists():
                init = json.loads((folder / "state.json").read_text())["inits"][LOGIN]
                is_dead = (
                    not _is_alive(init) or str(folder) not in psutil.Process(init).cmdline()
                )  # its pid is another's
            else:
                is_dead = time.time() - folder.stat().st_mtime > MOST_SECONDS_TO_BOOT
            if is_dead:
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    """Whether a process is there and not only waits for its parent to ask how it ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it ended, or is a zombie
        return ""


def _pid_seen_inside(pid: int) -> int:
    """The pid of a process one pid namespace further in, the login host's."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("NSpid:"))
    return int(line.split()[2])
