from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.time_sync import TIMEDATECTL, TimeSync


class TimeService(HostCheck):
    """A clock that no time service keeps right: it drifts by seconds a day, and logs of hosts stop fitting together.

    The kernel says it (``timedatectl``: NTPSynchronized), whichever service runs; chrony and ntpd are asked where it
    does not.
    """

    number = 130
    question = "Does a time service keep the clock?"
    severity = "warning"
    source = "timedatectl, chronyc, ntpq"
    programs = "timedatectl, chronyc, ntpq"
    confirm = "timedatectl; chronyc tracking"
    fix = "systemctl enable --now chronyd (or systemd-timesyncd), with a server that the host can reach"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(TimeSync)
        if known(facts, facts.is_synchronised, TIMEDATECTL):
            server = f" to {facts.server}" if facts.server else ""
            return Judged(healthy=f"the clock is synchronised{server}")
        what = "no time service keeps the clock right: it is not synchronised"
        return Judged((Fault("", what, f"{facts.said_by}: not synchronised"),))
