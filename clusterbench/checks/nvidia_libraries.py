from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._training_node import has_nvidia_gpu
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.nvidia_libraries import NAMES, Library, NvidiaLibraries


class NvidiaLibrariesCheck(PartsCheck[Library]):
    """Libraries of NVIDIA's driver that are empty, cut off, or of another driver than the kernel's module.

    A container runtime that mounts the driver's files can leave empty ones behind (nebius/soperator pull request 2684):
    every CUDA program then fails to start. A library of another version is what an update without a restart leaves
    ("Driver/library version mismatch"). Nothing is loaded: size, header and name of the file say it.
    """

    number = 79
    question = "Are the libraries of NVIDIA's driver whole, and of its version?"
    severity = "error"
    source = f"{', '.join(NAMES)}, /proc/driver/nvidia/version"
    confirm = "ldconfig -p | grep libcuda; ls -lL /usr/lib/*/libcuda.so.1; cat /proc/driver/nvidia/version"
    fix = "install the driver again, or restart the container; after an update of the driver restart the host"
    parts = "libraries of NVIDIA's driver"
    in_order = "whole"

    def parts_of(self, host: Host) -> Sequence[Library]:
        if not has_nvidia_gpu(host):
            return ()
        if not (libraries := host.of(NvidiaLibraries).libraries):
            raise NotKnown(f"{NAMES[0]} is in none of the usual folders", "ldconfig -p | grep libcuda")
        return libraries

    def fault(self, host: Host, part: Library) -> Fault | None:
        facts = host.of(NvidiaLibraries)
        if part.size_bytes is None and "No such file" in facts.unread.get(part.path, ""):
            return Fault(part.path, "is a link to a file that is not there", f"{part.path}: {facts.unread[part.path]}")
        size = known(facts, part.size_bytes, part.path)
        evidence = f"{part.path}: {size:,} B"
        if size == 0:
            return Fault(part.path, "is empty: no CUDA program can load it", evidence)
        if part.least_bytes is None:
            return Fault(part.path, "is no shared library of 64 bit", evidence)
        if size < part.least_bytes:
            what = f"is cut off: it has {size:,} B, and its header speaks of {part.least_bytes:,} B"
            return Fault(part.path, what, evidence)
        if part.version and facts.kernel_module and part.version != facts.kernel_module:
            what = f"is of driver {part.version}, and the kernel's module of {facts.kernel_module}"
            return Fault(part.path, what, f"/proc/driver/nvidia/version: {facts.kernel_module}")
        return None
