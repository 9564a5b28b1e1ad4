from __future__ import annotations

import re

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, NotKnown
from clusterbench.host_facts import at, mapping


class NcclLoaded(HostCheck):
    """Another NCCL in memory than the one that was installed with torch.

    ``LD_PRELOAD`` and ``LD_LIBRARY_PATH`` put another in its place, which the version of the package does not say
    (EleutherAI/bergson pull request 426): figures are then those of the other. That it differs may be wanted. Before a
    worker was started only LD_PRELOAD can be judged.
    """

    number = 80
    needs_workers = True
    question = "Is the NCCL in memory the one that is installed?"
    severity = "warning"
    source = "torch.cuda.nccl.version() and the library that workers mapped; installed packages; LD_PRELOAD"
    confirm = "python -c 'import torch; print(torch.cuda.nccl.version())'; pip list | grep nccl; echo $LD_PRELOAD"
    fix = "take the other libnccl.so out of LD_PRELOAD and LD_LIBRARY_PATH, or install its version as the package"

    def judge(self, host: Host) -> Judged:
        if not num_gpus(host):
            return Judged(not_applicable="no GPU here")
        if not (packaged := _packaged(host)):
            return Judged(not_applicable="no package of NCCL is installed that another could stand in for")
        loaded, path = at("loaded", "nccl")(host.environment), at("loaded", "nccl_path")(host.environment)
        if loaded is None:
            return _before_it_is_loaded(host, packaged)
        where = f" from {path}" if path else ""
        if _release(loaded) == _release(packaged):
            return Judged(healthy=f"NCCL {loaded} is loaded{where}, as installed")
        what = f"NCCL {loaded} is loaded{where}, and {packaged} is installed"
        variables = mapping(host.environment.get("variables"))
        ways = "; ".join(f"{name}={variables[name]}" for name in ("LD_PRELOAD", "LD_LIBRARY_PATH") if name in variables)
        return Judged((Fault("", what, f"workers: {loaded}{where}{f'; {ways}' if ways else ''}"),))


def _packaged(host: Host) -> str | None:
    packages = mapping(host.environment.get("packages"))
    versions = (str(version) for name, version in packages.items() if name.startswith("nvidia-nccl") and version)
    return next(versions, None)


def _before_it_is_loaded(host: Host, packaged: str) -> Judged:
    preloaded = str(mapping(host.environment.get("variables")).get("LD_PRELOAD", ""))
    for path in re.split(r"[:\s]+", preloaded):
        if path.rsplit("/", 1)[-1].startswith("libnccl.so"):
            what = f"LD_PRELOAD puts {path} in the place of the installed NCCL {packaged}"
            return Judged((Fault("", what, f"LD_PRELOAD={preloaded}"),))
    if "loaded" not in host.environment:
        return Judged(not_applicable="no worker was started: a run, or the doctor without --quick, judges it")
    raise NotKnown("no worker here said which NCCL it loaded", "a run whose workers start on this host")


def _release(version: str) -> str:
    """Without what a packager adds: ``2.27.3`` of ``2.27.3+cuda12.9`` and of ``2.27.3.post1``."""
    match = re.match(r"\d+(\.\d+){0,2}", version)
    return match[0] if match else version
