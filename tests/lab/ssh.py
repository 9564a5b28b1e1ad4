"""The ssh of a lab's login host, ``ssh.py LAB_FOLDER [OPTIONS] HOST COMMAND...``; mpirun finds it on its PATH.

Like ssh it gives the command a fresh environment and the home folder, passes stdin, stdout, stderr and the exit status
on, answers 255 for a host it does not reach, and leaves the command running when it is killed itself. That the command
has ended it does not hear over a cut cable. Unlike ssh its pipes need no network: a connection that is up survives it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import start_in

CONNECT_TIMEOUT_S = 10.0
OPTIONS_WITH_A_VALUE = "bcDEeFIiJLlmOopQRSWw"
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(folder: Path, arguments: list[str]) -> int:
    options, host, command = split(arguments)
    state = json.loads((folder / "state.json").read_text())
    names = dict(line.split() for line in (folder / "hosts").read_text().splitlines())
    host = names.get(host, host)
    if host not in state["hosts"]:
        return refuse(f"Could not resolve hostname {host}: Name or service not known")
    if reason := unreachable(host):
        return refuse(f"connect to host {host} port 22: {reason}")
    environment = {"HOME": os.path.expanduser("~"), "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh"}
    environment |= {"PATH": PLAIN_PATH, **state["environment"]}
    init = state["inits_seen_from_login"][host]
    child = start_in(
        init,
        ["sh", "-c", " ".join(command)],
        cwd=environment["HOME"],
        env=environment,
        stdin=subprocess.DEVNULL if "-n" in options else None,
    )
    status = child.wait()
    parent = os.getppid()
    while Path(f"/proc/{init}").exists() and unreachable(host) and os.getppid() == parent:
        time.sleep(0.2)
    if status < 0:
        return refuse(f"Connection to {host} closed by remote host.")
    return status


def split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Options, host without user, and the command with its arguments."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        option = arguments[position]
        position += 2 if len(option) == 2 and option[1] in OPTIONS_WITH_A_VALUE else 1
    host = arguments[position].rpartition("@")[2]
    return arguments[:position], host, arguments[position + 1 :]


def unreachable(host: str) -> str | None:
    """Why the network does not lead to a host. A host that refuses is there: nobody listens on its port 22."""
    try:
        socket.create_connection((host, 22), timeout=CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return None
    except TimeoutError:
        return "Connection timed out"
    except OSError as error:
        return str(error.strerror)
    return None


def refuse(message: str) -> int:
    print(f"ssh: {message}", file=sys.stderr)
    return 255


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
