from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from clusterbench.checks import Fault, Judged
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._training import training
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband, Port
from clusterbench.host_facts import mappings

_EXPECTED_BITS_PER_S = {"GB300": 8e11, "B300": 8e11, "GB200": 4e11, "B200": 4e11, "H200": 4e11, "H100": 4e11}
_EXPECTED_BITS_PER_S |= {"H800": 4e11, "A100": 2e11, "A800": 2e11}
"""What the reference machine has for each GPU, in one port or several; the first name that the product's holds.

Source: NVIDIA's DGX user guides (A100: 200 Gb/s; H100, H200, B200: 400 Gb/s; B300, GB300: ConnectX-8, 800 Gb/s), as in
leptonai/gpud, ``components/accelerator/nvidia/infiniband/threshold_default.go``.
"""


class PortRate(PortCheck):
    """Training ports that run slower than others of the host, or than the reference machine of its GPUs.

    Slower than its peers is an error: a cable or a lane of it is broken, or the switch's port is set so. Alike and
    slower than the reference machine is a note: clouds sell that. That ports are fewer than GPUs is no matter of their
    rate: ``rdma_driver``, ``rdma_device_count`` and ``gpu_nic_distance`` say what is missing.
    """

    number = 42
    question = "Does every training port run at the rate of its peers and of the GPUs' reference machine?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/rate"
    confirm = "ibstat"
    fix = "reseat or replace cable and transceiver; look at the speed and width that the switch's port is set to"
    parts = "active training ports"
    in_order = "at the rate of their peers"

    def judge(self, host: Host) -> Judged:
        said, ports = super().judge(host), self.parts_of(host)
        if not said.healthy or len(ports) > 1:
            return said
        card, expected = _reference(host)
        if not expected:
            return Judged(not_applicable=f"{ports[0].name} has no peer here, and nothing says what it should run at")
        return replace(said, healthy=f"{ports[0].name}, the only active training port, is as fast as {card} asks for")

    def parts_of(self, host: Host) -> Sequence[Port]:
        return [port for port in training(host).ports if port.is_active]

    def fault(self, host: Host, part: Port) -> Fault | None:
        rate = known(host.of(Infiniband), part.rate, f"{part.path}/rate")
        own = known(host.of(Infiniband), part.bits_per_s, f"{part.path}/rate")
        evidence = f"{part.path}/rate: {rate}"
        peers = Counter(port.bits_per_s for port in self.parts_of(host) if port.bits_per_s)
        fastest = max(peers)
        if own < fastest:
            return Fault(part.name, f"runs at {rate}, and {peers[fastest]} of its peers at {_words(fastest)}", evidence)
        card, expected = _reference(host)
        if own >= expected or own * len(training(host).ports) >= expected * num_gpus(host):
            return None
        what = f"runs at {rate}, as all training ports here; machines with {card} have {_words(expected)} for each GPU"
        return Fault(part.name, what, evidence, severity="note")


def _reference(host: Host) -> tuple[str, float]:
    """The GPU that tells what its port should run at, and that rate; no rate where no GPU is in the table."""
    for gpu in mappings(host.environment.get("gpus")):
        for name, bits_per_s in _EXPECTED_BITS_PER_S.items():
            if name in str(gpu.get("name")):
                return name, bits_per_s
    return "", 0.0


def _words(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:g} Gb/s"
