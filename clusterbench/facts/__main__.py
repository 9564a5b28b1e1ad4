"""Prints what this host is, as JSON: a process of its own, since an agent must not load a driver's library."""

from __future__ import annotations

import json

from clusterbench.engine.environment import host_environment
from clusterbench.facts import gather

print(json.dumps({**host_environment(), "facts": gather()}))
