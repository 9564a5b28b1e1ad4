"""Prints what this host is, as JSON: a process of its own, since an agent must not load a driver's library.

With ``--gpus`` only what the driver says, for one more process of a host to which a launcher shows other GPUs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from clusterbench.engine.environment import host_environment
from clusterbench.engine.telemetry import list_gpus
from clusterbench.facts import GPUS_ONLY, OF_DRIVER, gather

if sys.argv[1:] == [GPUS_ONLY]:
    print(json.dumps({"gpus": [asdict(gpu) for gpu in list_gpus()], "facts": gather(only=OF_DRIVER)}))
else:
    print(json.dumps({**host_environment(), "facts": gather()}))
