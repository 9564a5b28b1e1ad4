from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar

from clusterbench.launchers._hostlist import expand_hosts
from clusterbench.launchers._scheduler import Scheduler

_SECONDS_TO_ANSWER = 20.0


class Flux(Scheduler):
    """Flux's ``flux run``. *Not run*: written from its documentation.

    Source: https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html, and there
    flux-run(1) and flux-hostlist(1).
    """

    program: ClassVar[str] = "flux run"
    # The shell of 'flux alloc' and a batch script have neither: Flux removes them there.
    signs: ClassVar[tuple[str, ...]] = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE")
    rank: ClassVar[str] = "FLUX_TASK_RANK"
    size: ClassVar[tuple[str, ...]] = ("FLUX_JOB_SIZE",)
    local_rank: ClassVar[str | None] = "FLUX_TASK_LOCAL_ID"
    variables: ClassVar[str] = r"(FLUX|PMI)\w*"
    job: ClassVar[tuple[str, ...]] = ("FLUX_JOB_ID",)
    commands: ClassVar[tuple[str, ...]] = ("flux run",)
    naming_hosts: ClassVar[str] = "--requires=host:a,b, or start it inside flux alloc"
    of_hosts: ClassVar[tuple[str, ...]] = ("--requires",)
    of_tasks_per_node: ClassVar[tuple[str, ...]] = ("--tasks-per-node",)

    def hosts(self, environment: Mapping[str, str]) -> list[str]:
        """No variable has them, so Flux is asked: for those of this job, or else of the instance around it."""
        if "FLUX_URI" not in environment:
            return []
        ask = ["flux", "hostlist", "local"]
        try:
            answer = subprocess.run(
                ask, env=dict(environment), capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return []
        return list(dict.fromkeys(expand_hosts(answer.stdout.strip())))

    def listed(self, value: str) -> list[str]:
        only_hosts = re.fullmatch(r"(?:host|hosts|hostlist):([^\s&|()]+)", value)  # other constraints are not read
        return list(expand_hosts(only_hosts[1])) if only_hosts else []

    def as_value(self, hosts: Sequence[str]) -> str:
        return f"host:{','.join(hosts)}"
