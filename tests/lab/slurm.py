"""A real Slurm in a lab: munged and slurmctld on the login host, a slurmd on every host::

with Lab(2) as lab, Slurm(lab):
    lab.run("cb0", ["srun", "--nodes=2", "hostname"])
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.lab.hosts import LOGIN, Lab, LabError

TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
START_TIMEOUT_S = 120.0

# No cgroups, no accounting, no more cores than claimed: what a namespace cannot give is switched off.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={login}({login_address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=pmi2
ReturnToService=2
SlurmdParameters=config_overrides
InactiveLimit=0
KillWait=5
"""
NODE = "NodeName={host} NodeHostname={host} NodeAddr={address} CPUs={cores} Boards=1 Sockets=1 CoresPerSocket={cores} \
ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN\n"
HEALTH_CHECK = "HealthCheckProgram={program}\nHealthCheckInterval={interval_s}\nHealthCheckNodeState=ANY\n"
HEALTH_CHECK_INTERVAL_S = 10
PARTITION = "PartitionName=debug Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=YES\n"
CORES_PER_HOST = 16  # claimed, so that no job waits for another


def why_not() -> str | None:
    """Why Slurm cannot be had on this machine; None where it can."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return f"Slurm needs the packages {' '.join(missing)}" if missing else None


class Slurm:
    """Slurm over all hosts of a lab, its nodes idle when the constructor returns. Dies with the lab at the latest.

    ``health_check`` is a program that it runs on every node at its start and now and then.
    """

    def __init__(self, lab: Lab, health_check: Path | None = None) -> None:
        self.lab = lab
        self._health_check = health_check
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=lab.folder))
        self._daemons: list[subprocess.Popen[Any]] = []
        self._configure()
        lab.setenv("SLURM_CONF", str(self.folder / "slurm.conf"))
        try:
            self._start()
            self._wait_until_idle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def states(self) -> dict[str, str]:
        """Host -> what Slurm says of it: idle, allocated, down, ..."""
        done = self.lab.run(LOGIN, ["sinfo", "--noheader", "--Node", "--format=%N %T"], timeout=60)
        return dict(line.split() for line in done.stdout.splitlines())

    def wait_for(self, host: str, state: str) -> None:
        """Until Slurm says so of a host, with or without a star, which says that its slurmd was slow to answer."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (said := self.states().get(host, "")).rstrip("*") != state:
            self._give_up_after(deadline, f"{host} is {said} and not {state}")
            time.sleep(0.5)

    def start_slurmd(self, host: str) -> None:
        """Starts the daemon of a host, also of one that was revived."""
        self._daemon(host, "slurmd", "-D", "-N", host)

    def close(self) -> None:
        """Ends the daemons, and the steps that run on hosts that are up."""
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        for process in psutil.process_iter(["name", "cmdline"]):
            if process.info["name"] == "slurmstepd" and self._is_ours(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def _configure(self) -> None:
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        text = CONFIGURATION.format(login=LOGIN, login_address=self.lab.address(LOGIN), folder=self.folder)
        for host in self.lab.hosts:
            (self.folder / f"spool.{host}").mkdir()
            text += NODE.format(host=host, address=self.lab.address(host), cores=CORES_PER_HOST)
        (self.folder / "slurm.conf").write_text(text + self._health_check_lines() + PARTITION)

    def _health_check_lines(self) -> str:
        """slurmd gives its program SLURMD_NODENAME and nothing else, and this configuration lies where none looks."""
        if self._health_check is None:
            return ""
        program = self.folder / "health_check.sh"
        program.write_text(f"#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {self._health_check}\n")
        program.chmod(0o755)
        return HEALTH_CHECK.format(program=program, interval_s=HEALTH_CHECK_INTERVAL_S)

    def _start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={self.folder}/munge.{ending}" for option, ending in files.items()]
        self._daemon(LOGIN, "munged", "--foreground", "--force", *paths)
        self._wait_for(self.folder / "munge.socket")
        self._daemon(LOGIN, "slurmctld", "-D")
        for host in self.lab.hosts:
            self.start_slurmd(host)

    def _daemon(self, host: str, *command: str) -> None:
        with open(self.folder / f"{command[0]}.{host}.out", "wb") as out:
            daemon = self.lab.start(host, command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
        self._daemons.append(daemon)

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            self._give_up_after(deadline, f"no {path.name}")
            time.sleep(0.02)

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while set((states := self.states()).values()) != {"idle"}:
            self._give_up_after(deadline, f"Slurm says {states or 'nothing'}")
            time.sleep(0.1)

    def _give_up_after(self, deadline: float, what: str) -> None:
        ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = [f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log")]
            raise LabError("\n".join([f"{what}; ended: {ended or 'none'}", *logs]))

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            return f"SLURM_CONF={self.folder}/".encode() in environment
        return False
