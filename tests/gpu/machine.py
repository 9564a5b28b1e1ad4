"""What this machine has and lacks, before a second of its GPU is spent.

``python -m tests.gpu.machine`` prints as JSON what only a process that loads torch and the driver can say.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata, util
from typing import Any

from tests.gpu import ROOT

IMPORTED_AS = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}
SECONDS_TO_LOOK = 90


def requirements() -> list[str]:
    """What the package needs when it runs, and pytest, as ``click>=8.2``."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    tests = [each for each in project["optional-dependencies"]["test"] if re.match(r"pytest[<>=]", each)]
    return [*project["dependencies"], *tests]


def missing_modules(asked: Iterable[str]) -> list[str]:
    """Those of the requirements that cannot be imported, or that are older than asked for, each a few words."""
    lacking = []
    for requirement in asked:
        name, _, least = requirement.partition(">=")
        module = IMPORTED_AS.get(name.lower(), name.lower())
        if util.find_spec(module) is None:
            lacking.append(f"module {module} ({requirement})")
        elif least and (found := _version(name)) and _numbers(found) < _numbers(least):
            lacking.append(f"{requirement}: {found} is older")
    return lacking


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""  # it can be imported, from wherever


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def seen_by_torch(environment: Mapping[str, str]) -> dict[str, Any]:
    """What :func:`look` says in a process of its own; ``error`` where that failed."""
    command = [sys.executable, "-m", "tests.gpu.machine"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_TO_LOOK, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not say within {SECONDS_TO_LOOK} s what it sees"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def look() -> dict[str, Any]:
    """Versions, the GPU, and the names of torch that the package uses and this torch lacks."""
    import torch

    from clusterbench.engine.compat import vanished

    seen: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "vanished": vanished(),
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        seen |= {
            "gpu": properties.name,
            "memory_bytes": properties.total_memory,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "cudnn": torch.backends.cudnn.version(),
        }
    return seen


if __name__ == "__main__":
    print(json.dumps(look()))
