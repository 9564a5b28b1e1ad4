from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.iommu import GROUPS, Iommu
from clusterbench.facts.kernel import COMMAND_LINE, Kernel
from clusterbench.facts.virtualization import Virtualization
from clusterbench.words import few, plural

_PASSES = ("iommu=pt", "iommu.passthrough=1", "iommu=off", "intel_iommu=off", "amd_iommu=off", "iommu.passthrough=on")


class IommuPassthrough(HostCheck):
    """An IOMMU that translates what GPUs and RDMA devices read and write.

    It sends traffic between them up to the root complex, which halves GPUDirect RDMA or stops it (NCCL's user guide,
    GPU Direct); AMD asks for ``iommu=pt``. The group's type decides. Where it may not be read the kernel's command line
    does. A virtual machine whose guest has an IOMMU of its own may need it: there it is a note.
    """

    number = 12
    question = "Does the IOMMU let GPUs and RDMA devices pass?"
    severity = "warning"
    source = f"{GROUPS}/*/type, {COMMAND_LINE}"
    confirm = f"cat {GROUPS}/*/type | sort | uniq -c; cat {COMMAND_LINE}"
    fix = "iommu=pt on the kernel's command line (arm: iommu.passthrough=1), or the IOMMU off in the firmware"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(Iommu)
        if known(facts, facts.num_groups, GROUPS) == 0:
            return Judged(healthy="the kernel uses no IOMMU")
        if not facts.devices:
            raise NotKnown(
                "no GPU and no RDMA device is in a group of the IOMMU", "a host that shows /sys/bus/pci/devices"
            )
        if not (kinds := {device.kind for device in facts.devices if device.kind is not None}):
            return self._by_command_line(host)
        translated = [device for device in facts.devices if device.kind not in ("identity", None)]
        if not translated:
            return Judged(healthy=f"the IOMMU lets {plural(len(facts.devices), 'GPU or RDMA device', _DEVICES)} pass")
        kinds.discard("identity")
        first = translated[0]
        what = (
            f"the IOMMU translates {len(translated)} of {plural(len(facts.devices), 'GPU or RDMA device', _DEVICES)}: "
            f"{few([device.address for device in translated])}"
        )
        said = f"{GROUPS}/{first.group}/type: {first.kind}"
        guest = host.of(Virtualization).is_virtual
        return Judged((Fault("", what, said, severity="note" if guest else None),))

    def _by_command_line(self, host: Host) -> Judged:
        kernel = host.of(Kernel)
        options = known(kernel, kernel.options, COMMAND_LINE)
        if passes := [word for word in options if word in _PASSES]:
            return Judged(healthy=f"the kernel was started with {passes[0]}")
        said = ", ".join(word for word in options if "iommu" in word) or "no option of the IOMMU"
        guest = host.of(Virtualization).is_virtual
        what = "the IOMMU is used, and the kernel was started without iommu=pt"
        return Judged((Fault("", what, f"{COMMAND_LINE}: {said}", severity="note" if guest else None),))


_DEVICES = "GPUs and RDMA devices"
