from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from clusterbench.checks import Fault, HostCheck, Judged, Unknown
from clusterbench.checks._training_node import trains
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.cgroup import PATH, Cgroup
from clusterbench.facts.held_cpus import LOAD, STAT, HeldCpus
from clusterbench.facts.processor import FOLDER, Processor
from clusterbench.facts.virtualization import Virtualization
from clusterbench.host_facts import cpus
from clusterbench.words import plural

MOST_STOLEN = 0.05
LEAST_BUSY_S = 10.0
MOST_OTHERS = 0.25
NEARLY = 0.98
"""Of the highest clock: a bound above it is how drivers round."""


class CpuHeldBack(HostCheck):
    """Processors that something keeps from their speed: a bound of the clock, a quota, a hypervisor, or other work.

    A clock whose bound (``scaling_max_freq``, or the firmware's ``bios_limit``) is below the highest is held back by
    as much under any load. A quota below the CPUs that a job sees is a note, and a warning once it was used up:
    programs start a thread for each CPU they see and are stopped together. Of the time in which CPUs had work since
    the start, 5 % taken by the hypervisor (our bound) is a warning. Where GPUs or RDMA devices are, as many tasks as a
    quarter of the CPUs (our bound), running in the last minute and at this moment, are another job's: data loaders,
    launches and NCCL's proxies wait for it. A clock that falls under load only shows while it is measured.
    """

    number = 152
    question = "May processors run at their full clock, all of the time?"
    severity = "warning"
    source = f"{FOLDER}/cpufreq/policy*/scaling_max_freq and bios_limit, quota of the control group, {STAT}, {LOAD}"
    confirm = (
        f"grep . {FOLDER}/cpufreq/policy*/*_max_freq; cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.stat; vmstat 1 5"
    )
    fix = (
        "cpupower frequency-set -u with the highest clock; a larger quota; CPUs of the hypervisor for this guest "
        "alone; end what an earlier job left behind (ps aux --sort -pcpu)"
    )

    def judge(self, host: Host) -> Judged:
        held, cgroup = host.of(HeldCpus), host.of(Cgroup)
        unknown = []
        try:
            stolen = _stolen(held)
        except NotKnown as error:
            stolen = None
            unknown.append(Unknown(error.why, error.takes, "time taken by a hypervisor"))
        is_guest = not held.clocks and host.of(Virtualization).is_virtual
        if not held.clocks and not is_guest:
            why = f"{FOLDER}/cpufreq has no policy: firmware sets the clocks"
            unknown.append(Unknown(why, "the power profile of the firmware", "clocks of CPUs"))
        faults = (*_slow(held), *_rationed(cgroup, host.of(Processor)), *_taken(held, stolen), *_shared(host))
        parts = [f"{plural(sum(held.clocks.values()), 'CPU')} may reach their highest clock"] if held.clocks else []
        parts += ["clocks are its host's, which are not seen here"] if is_guest else []
        if cgroup.version is None:
            unknown.append(
                Unknown(f"{PATH} is not there", f"a host that shows {PATH}", "the quota of the control group")
            )
        else:
            parts.append("no quota was used up" if cgroup.cpu_quota else "no quota")
        parts += [] if stolen is None else [f"{stolen:.1%} of their work was taken by a hypervisor"]
        return Judged(faults, "" if faults else "; ".join(parts), tuple(unknown))


def _stolen(held: HeldCpus) -> float:
    busy_s, stolen_s = known(held, held.busy_s, STAT), known(held, held.stolen_s, STAT)
    if busy_s < LEAST_BUSY_S:
        raise NotKnown(f"{STAT}: CPUs had work for {busy_s:.0f} s only since the start", "a minute of work")
    return stolen_s / busy_s


def _slow(held: HeldCpus) -> Iterator[Fault]:
    for bound, number in held.clocks.items():
        if bound:
            name, most_khz, _, highest_khz, _ = bound.split()
            most, highest = (int(khz) / 1e6 for khz in (most_khz, highest_khz))
            if most >= NEARLY * highest:
                continue
            what = (
                f"the clock of {number} of {plural(sum(held.clocks.values()), 'CPU')} may rise to {most:.2f} GHz only, "
                f"and could to {highest:.2f} GHz"
            )
            yield Fault("", what, f"{FOLDER}/cpufreq/policy*/{name}: {most_khz}; cpuinfo_max_freq: {highest_khz}")


def _rationed(cgroup: Cgroup, processor: Processor) -> Iterator[Fault]:
    seen = len(cpus(processor.usable or cgroup.cpus or processor.online))
    if cgroup.cpu_quota is None or not seen or cgroup.cpu_quota >= seen:
        return
    stopped = cgroup.num_throttled or 0
    times = f", and stopped {plural(stopped, 'time')} when it was used up" if stopped else ""
    what = f"the job sees {plural(seen, 'CPU')} and has the time of {cgroup.cpu_quota:g}{times}"
    evidence = f"{PATH}: {cgroup.path}, cpu quota {cgroup.cpu_quota:g}, nr_throttled {stopped}"
    yield Fault("", what, evidence, severity=None if stopped else "note")


def _taken(held: HeldCpus, stolen: float | None) -> Iterator[Fault]:
    if stolen is not None and stolen > MOST_STOLEN:
        what = f"a hypervisor took {stolen:.0%} of the time in which CPUs had work"
        yield Fault("", what, f"{STAT}: steal {held.stolen_s:.0f} s of {held.busy_s:.0f} s with work since the start")


def _shared(host: Host) -> Iterator[Fault]:
    """Other work, where a job is to train; elsewhere a CPU that is busy is what it is for."""
    held, online = host.of(HeldCpus), len(cpus(host.of(Processor).online))
    with suppress(NotKnown):
        if online and trains(host) and min(held.load or 0.0, held.num_running or 0) > MOST_OTHERS * online:
            what = (
                f"{held.load:.0f} tasks ran in the mean of the last minute, before this one, on {plural(online, 'CPU')}"
            )
            yield Fault("", what, f"{LOAD}: {held.load}; {STAT}: procs_running {held.num_running}")
