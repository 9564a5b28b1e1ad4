"""Runs a command on several hosts at once through ssh, as pdsh does: ``on_each.py cb1,cb2 COMMAND...``.

The command has this folder and this PATH there. Ends with the first exit status that is not 0, when all have ended.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys


def main(hosts: list[str], command: list[str]) -> int:
    line = f"cd {shlex.quote(os.getcwd())} && PATH={shlex.quote(os.environ['PATH'])} exec {shlex.join(command)}"
    remote = [subprocess.Popen(["ssh", "-n", host, line]) for host in hosts]
    return next(filter(None, [child.wait() for child in remote]), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), sys.argv[2:]))
