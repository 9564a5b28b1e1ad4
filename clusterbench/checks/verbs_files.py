from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.facts import Host
from clusterbench.facts.devices import RDMA, VERBS, Devices
from clusterbench.facts.infiniband import Device, Infiniband
from clusterbench.types import Severity


class VerbsFiles(PartsCheck[Device]):
    """RDMA devices that the kernel has and programs cannot open, as in a container started without them.

    NCCL finds no device then and falls back to sockets, silently. Where other devices can be opened it is a note: a
    container that was given some of its host's devices sees all of them in ``/sys``.
    """

    number = 121
    question = "Can programs here open every RDMA device?"
    severity = "error"
    source = f"{RDMA}/uverbs*"
    confirm = "ls -l /dev/infiniband; ibv_devinfo -l"
    fix = "docker: --device=/dev/infiniband; Kubernetes: an RDMA device plugin; bare metal: modprobe ib_uverbs"
    parts = "RDMA devices"
    in_order = "that programs can open"

    def parts_of(self, host: Host) -> Sequence[Device]:
        return [device for device in host.of(Infiniband).devices if device.kind != "software"]

    def fault(self, host: Host, part: Device) -> Fault | None:
        devices = host.of(Devices)
        path = next((f"{RDMA}/{name}" for name, device in devices.verbs.items() if device == part.name), "")
        if devices.files.get(path):
            return None
        severity: Severity | None = (
            "note" if any(devices.files.get(f"{RDMA}/{name}") for name in devices.verbs) else None
        )
        if not path:
            what = "has no file for programs: the kernel module ib_uverbs made none"
            return Fault(part.name, what, f"{VERBS}: none of {part.name}", severity=severity)
        if path in devices.files:
            return Fault(part.name, f"may not be opened by this user: {path}", f"{path}: no right", severity=severity)
        return Fault(part.name, f"cannot be opened: {path} is not here", f"{path}: is not there", severity=severity)
