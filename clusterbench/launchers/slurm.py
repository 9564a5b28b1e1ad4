from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from clusterbench.errors import SuiteError
from clusterbench.launchers import named_hosts
from clusterbench.launchers._hostlist import expand_hosts
from clusterbench.launchers._options import count, find, lines_of
from clusterbench.launchers._scheduler import Scheduler


class Slurm(Scheduler):
    """Slurm's srun: a process is a task of a step.

    Source: https://slurm.schedmd.com/srun.html; variables and messages as seen with Slurm 22.05.
    """

    program: ClassVar[str] = "srun"
    # A batch script has SLURM_PROCID=0 but no step: with that variable alone it would take itself for rank 0 of many
    # and wait for ever. A shell of salloc has neither.
    signs: ClassVar[tuple[str, ...]] = ("SLURM_PROCID", "SLURM_STEP_ID")
    rank: ClassVar[str] = "SLURM_PROCID"
    size: ClassVar[tuple[str, ...]] = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    local_rank: ClassVar[str | None] = "SLURM_LOCALID"
    variables: ClassVar[str] = r"SLURM\w*"
    job: ClassVar[tuple[str, ...]] = ("SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT", "WORLD_SIZE")
    commands: ClassVar[tuple[str, ...]] = ("srun",)
    naming_hosts: ClassVar[str] = "-w a,b, or start it inside salloc"
    ended_first: ClassVar[str | None] = r"^srun: error: ([^:\s]+): task"
    in_its_shell: ClassVar[str] = (
        "in a shell of 'srun --pty' start 'srun --overlap clusterbench ...', or on this host alone "
        "'env -u SLURM_PROCID -u PMI_RANK clusterbench ...'"
    )
    beside_others: ClassVar[Mapping[str, str]] = {"SLURM_OVERLAP": "1"}  # a step keeps its CPUs until it is cleaned up
    of_hosts: ClassVar[tuple[str, ...]] = ("-w", "--nodelist")
    of_tasks_per_node: ClassVar[tuple[str, ...]] = ("--ntasks-per-node",)

    def hosts(self, environment: Mapping[str, str]) -> list[str]:
        return list(expand_hosts(environment.get("SLURM_JOB_NODELIST", "")))

    def head(self, environment: Mapping[str, str]) -> str:
        """The first host of the step, which may have fewer hosts than its job, but for two cases.

        A heterogeneous job lists the hosts of all components in the order of their names, and rank 0 is of the first
        component. Where tasks are dealt out in the order of a host file, the list is in that of names as well.
        """
        is_dealt_out = environment.get("SLURM_DISTRIBUTION") == "arbitrary"
        if is_dealt_out and (named := self._first_of_host_file(environment) or environment.get("MASTER_ADDR")):
            return named
        hosts = list(expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))) or self.hosts(environment)
        component = 0
        while (of_component := environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{component}")) is not None:
            if own := next((host for host in expand_hosts(of_component) if host in hosts), None):
                return own
            component += 1
        return hosts[0] if hosts else super().head(environment)

    def _first_of_host_file(self, environment: Mapping[str, str]) -> str | None:
        try:
            lines = lines_of(environment["SLURM_HOSTFILE"])
        except (KeyError, SuiteError):
            return None
        return next((host.partition("*")[0] for line in lines for host in expand_hosts(line)), None)

    def listed(self, value: str) -> list[str]:
        return named_hosts(value)

    def allocated(self, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        excluded = find(words, ("-x", "--exclude"), self.may_be_glued)
        without = set(named_hosts(excluded.value)) if excluded else set()
        return [host for host in self.hosts(environment) if host not in without]

    def in_full(self, words: Sequence[str], hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        full = super().in_full(words, hosts, environment)
        # srun takes SLURM_NTASKS for -n, also where --ntasks-per-node says another number
        tasks = environment.get("SLURM_NTASKS")
        if tasks and not find(full, self.of_tasks, self.may_be_glued):
            if each := find(full, self.of_tasks_per_node, self.may_be_glued):
                num_tasks = count(full, each) * len(hosts)
            else:
                num_tasks = int(tasks) * len(hosts) // (len(self.hosts(environment)) or len(hosts))
            full.insert(1, f"--ntasks={num_tasks}")
        return full
