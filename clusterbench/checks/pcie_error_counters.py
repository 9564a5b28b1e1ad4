from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._pcie_devices import PcieCheck, devices
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.pcie import UPTIME, Device, Pcie

MOST_PER_MINUTE = 8


class PcieErrorCounters(PcieCheck):
    """GPUs, RDMA cards and bridges above them on whose PCIe links errors were counted (AER).

    Corrected errors are repeats, and cost bandwidth where there are many: above 8 a minute, on average since the kernel
    started, which is the most that DCGM lets replays be (DCGM_LIMIT_MAX_PCIREPLAY_RATE). A single fatal or non-fatal
    error is a warning. Errors often show on the bridge above the device that makes them.
    """

    number = 16
    question = "Are PCIe links of GPUs and network cards free of errors?"
    severity = "warning"
    source = "/sys/bus/pci/devices/*/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal"
    confirm = "grep -H TOTAL /sys/bus/pci/devices/*/aer_dev_* | grep -v ' 0$'"
    fix = "reseat the card, its riser or cable; if it stays, exchange them, then the board"
    parts = "PCIe devices that count errors"
    in_order = "have few or no PCIe errors"

    def parts_of(self, host: Host) -> Sequence[Device]:
        found = devices(host, "gpu", "nic", "bridge")
        counting = [device for device in found if device.correctable is not None]
        if found and not counting:
            path = "/sys/bus/pci/devices/*/aer_dev_correctable"
            raise NotKnown(
                f"{path} is not there: the firmware keeps errors to itself, or this is a virtual machine", path
            )
        return counting

    def fault(self, host: Host, part: Device) -> Fault | None:
        facts = host.of(Pcie)
        fatal, nonfatal, corrected = part.fatal or 0, part.nonfatal or 0, part.correctable or 0
        evidence = f"{part.path}/aer_dev_*: correctable {corrected}, nonfatal {nonfatal}, fatal {fatal}"
        if fatal or nonfatal:
            return Fault(part.place, f"{fatal} fatal and {nonfatal} non-fatal PCIe errors since boot", evidence)
        minutes = max(known(facts, facts.uptime_s, UPTIME) / 60, 1.0)
        if corrected / minutes > MOST_PER_MINUTE:
            what = f"{corrected:,} corrected PCIe errors since boot, {corrected / minutes:.0f} a minute"
            return Fault(part.place, what, evidence)
        return None
