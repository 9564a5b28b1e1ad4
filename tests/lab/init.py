"""The first process of a host: ``init.py NAME FOLDER``, started in new namespaces.

It makes the namespaces a host of that name, says on stdout that it is ready, and reaps what is orphaned in it until it
is killed. With it dies everything that runs on the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from namespaces import MS_BIND, MS_REC, mount


def become_host(name: str, folder: str) -> None:
    socket.sethostname(name)
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")
    mount("tmpfs", f"{folder}/tmp", "tmpfs", options="mode=1777")  # one path, another disk on every host
    mount(f"{folder}/hosts", "/etc/hosts", "none", MS_BIND)
    with contextlib.suppress(OSError):  # some containers forbid it; then /sys/class/net shows the machine's interfaces
        control_groups = os.open("/sys/fs/cgroup", os.O_PATH)
        mount("sysfs", "/sys", "sysfs")
        mount(f"/proc/self/fd/{control_groups}", "/sys/fs/cgroup", "none", MS_BIND | MS_REC)
        os.close(control_groups)


def reap_for_ever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    pid_outside = os.readlink("/proc/self")  # this is still the /proc of whoever builds the lab
    become_host(*sys.argv[1:])
    print(pid_outside, flush=True)
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    reap_for_ever()
