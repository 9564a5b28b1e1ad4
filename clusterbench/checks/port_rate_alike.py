from __future__ import annotations

from collections.abc import Mapping

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.checks._training import training
from clusterbench.facts import Host


class PortRateAlike(AlikeCheck):
    """The rate of the fastest active training port of a host, where hosts differ in it.

    ``port_rate`` finds a port that is slower than others of its host; here all of them are slower than those of other
    hosts: a switch that is set so, the wrong cables, or other cards. Every collective between hosts waits for them.
    """

    number = 134
    question = "Do training ports run at one rate on all hosts?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/rate"
    confirm = "ibstat"
    fix = "look at the speed that the switch's ports are set to, at cables and transceivers, and at the cards' model"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        ports = [port for port in training(host).ports if port.is_active and port.bits_per_s]
        if not ports:
            return {}
        fastest = max(ports, key=lambda port: port.bits_per_s or 0.0)
        value = f"{(fastest.bits_per_s or 0.0) / 1e9:g} Gb/s"
        return {"the rate of training ports": Trait(value, f"{fastest.path}/rate")}
