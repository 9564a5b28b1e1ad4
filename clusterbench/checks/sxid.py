from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event
from clusterbench.tools.xid import sxid

_MISSING = (
    ", of which the log has the data alone: the line that says whether it is fatal, and on which link, is missing"
)


class Sxid(KernelLogCheck):
    """SXids: what the driver of NVSwitches logs when a switch or one of its links fails.

    Severity by the appendix of NVIDIA's Fabric Manager User Guide (``tools/xid.py``) and the line's own word, fatal or
    non-fatal. Corrected single-bit errors are notes.
    """

    number = 19
    question = "Is the kernel's log free of SXids?"
    severity = "error"
    confirm = "dmesg -T | grep -i sxid"
    fix = "reset GPUs and NVSwitches or reboot; if it comes back on one link, look at that GPU and its board"
    kinds = ("sxid", "sxid_data")
    absent = "SXid"

    def fault(self, host: Host, event: Event) -> Fault | None:
        assert event.code is not None
        meaning = sxid(event.code, "Fatal" in event.text)
        missing = _MISSING if event.kind == "sxid_data" else ""
        fault = told(host, event, f"reported SXid {event.code} ({meaning.name}){missing}")
        return replace(fault, severity=meaning.severity)
