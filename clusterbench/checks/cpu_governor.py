from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.processor import FOLDER, Processor
from clusterbench.facts.virtualization import Virtualization

MOST_LATENCY_US = 50


class CpuGovernor(HostCheck):
    """Clocks of CPUs that are not held high, and deep idle states.

    A governor other than ``performance`` lets clocks fall between the short pieces of work that feed a GPU; NVIDIA's
    dgxc-benchmarking asks for it (``system_info``). With ``powersave`` of the drivers intel_pstate and amd-pstate-epp
    the preference decides: ``performance`` there is in order, too. Idle states that take more than 50 us to leave (our
    bound; C6 takes over 100) are a note: every message that waits for an interrupt may pay it.
    """

    number = 70
    question = "Are the clocks of CPUs held high, without deep idle states?"
    severity = "warning"
    source = f"{FOLDER}/cpufreq/policy*/scaling_governor, {FOLDER}/cpu0/cpuidle"
    confirm = "cpupower frequency-info; cpupower idle-info"
    fix = "cpupower frequency-set -g performance; cpupower idle-set -D 50, or tuned-adm profile latency-performance"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(Processor)
        faults = (*_slow(facts), *_deep(facts))
        if facts.governors:
            return Judged(faults, "" if faults else f"governor: {', '.join(facts.governors)}; no deep idle state")
        if host.of(Virtualization).is_virtual:
            return Judged(faults, not_applicable="" if faults else "a virtual machine, whose clock its host sets")
        if faults:
            return Judged(faults)
        raise NotKnown(f"{FOLDER}/cpufreq has no policy: firmware sets the clocks", "the power profile of the firmware")


def _slow(facts: Processor) -> Iterator[Fault]:
    prefers_speed = set(facts.preferences) == {"performance"}
    slow = {
        governor: number
        for governor, number in facts.governors.items()
        if governor != "performance" and not (governor == "powersave" and prefers_speed)
    }
    if slow:
        number, total = sum(slow.values()), sum(facts.governors.values())
        what = f"the governor {' or '.join(slow)} sets the clock of {number} of {total} CPUs"
        asked = f"; energy_performance_preference: {', '.join(facts.preferences)}" if facts.preferences else ""
        driver = f"; scaling_driver: {facts.clock_driver}" if facts.clock_driver else ""
        yield Fault("", what, f"{FOLDER}/cpufreq/policy*/scaling_governor: {', '.join(slow)}{asked}{driver}")


def _deep(facts: Processor) -> Iterator[Fault]:
    deep = [
        state
        for state in facts.idle_states
        if not state.is_disabled and state.latency_us is not None and state.latency_us > MOST_LATENCY_US
    ]
    if deep:
        said = ", ".join(f"{state.name} ({state.latency_us} us)" for state in deep)
        what = f"idle CPUs may go into states that take more than {MOST_LATENCY_US} us to leave: {said}"
        yield Fault("", what, f"{FOLDER}/cpu0/cpuidle/state*/latency: {said}", severity="note")
