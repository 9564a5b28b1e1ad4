"""256 hosts from what they recorded of themselves to the doctor's last line: seconds of CPU, and memory."""

from __future__ import annotations

import copy
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from clusterbench.checks import hosts_of, judge
from clusterbench.doctor import examine
from clusterbench.doctor.text import text
from tests.bench import Result, at_most
from tests.facts.machine import healthy

HOSTS = 256
TARGET_S, TARGET_GB = 60.0, 1.0


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        said = json.dumps(healthy().host(Path(folder)).environment)
    environment = {"hosts": {f"cb{number}": json.loads(said) for number in range(HOSTS)}}
    sick = copy.deepcopy(environment["hosts"]["cb7"])
    sick["facts"]["infiniband"]["ports"][3]["state"] = "1: DOWN"
    environment["hosts"]["cb7"] = sick
    start_s = time.process_time()
    hosts = hosts_of(environment)
    words = text(examine([host.name for host in hosts], judge(hosts)))
    seconds = time.process_time() - start_s
    assert "\ncb7\n" in words
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    note = f"{HOSTS} hosts, {len(said) / 1e3:.0f} kB each, {len(words.splitlines())} lines"
    print(words.splitlines()[0], file=sys.stderr)
    return [
        at_most("doctor_hosts", seconds, "CPU s", TARGET_S, note),
        at_most("doctor_hosts_memory", memory_gb, "GB", TARGET_GB, note),
    ]
