from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._pcie_devices import devices, not_of_a_virtual_function
from clusterbench.checks._training_node import AMD, gpu_cards, has_nvidia_gpu
from clusterbench.checks.gpu_count import GIVEN_AWAY
from clusterbench.facts import Host, known
from clusterbench.facts.pcie import Device, Pcie

_DRIVER = "amdgpu"


class AmdGpus(PartsCheck[Device]):
    """AMD's GPUs that the driver amdgpu does not hold, or whose PCIe link runs on fewer lanes than it could.

    An idle GPU lowers the speed of its link, but not its width. Beside NVIDIA's GPUs AMD's are left out: they are the
    display of the processor. GPUs that were given to a virtual machine (``vfio-pci``) are not missed.
    """

    number = 136
    question = "Has every GPU of AMD its driver, and all lanes of its PCIe link?"
    severity = "error"
    source = "/sys/bus/pci/devices/*/driver, current_link_width, max_link_width"
    confirm = "lspci -k -d 1002:; lspci -vv -d 1002: | grep -E 'LnkCap:|LnkSta:'; dmesg | grep amdgpu"
    fix = "no driver: install or load amdgpu, and read the kernel's log; lanes: reseat the GPU, its riser or its cable"
    parts = "GPUs of AMD"
    in_order = "with their driver and all lanes of their PCIe link"

    def parts_of(self, host: Host) -> Sequence[Device]:
        if has_nvidia_gpu(host):
            return ()
        own = {card.get("address") for card in gpu_cards(host, AMD)}
        return [device for device in devices(host, "gpu") if device.address in own]

    def fault(self, host: Host, part: Device) -> Fault | None:
        facts = host.of(Pcie)
        driver = known(facts, part.driver, f"{part.path}/driver")
        if driver in GIVEN_AWAY:
            return None
        if driver != _DRIVER:
            what = f"is held by the driver {driver}" if driver else "has no driver"
            return Fault(part.place, what, f"{part.path}/driver: {driver or 'is not there'}")
        if part.is_virtual:
            raise not_of_a_virtual_function("its card's PCIe link")
        width = known(facts, part.width, f"{part.path}/current_link_width")
        most = known(facts, part.most_width, f"{part.path}/max_link_width")
        if width < most:
            what = f"its PCIe link is x{width}, and could be x{most}"
            return Fault(part.place, what, f"{part.path}/current_link_width: {width}; max_link_width: {most}")
        return None
