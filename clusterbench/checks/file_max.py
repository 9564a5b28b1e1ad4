from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class FileMax(KernelLogCheck):
    """A kernel that had as many files open as it may: whatever opens one then fails with ENFILE.

    Source: Linux, ``fs/file_table.c``; leptonai/gpud, ``components/os``.
    """

    number = 153
    question = "Had the kernel always a file left to open?"
    severity = "warning"
    confirm = "cat /proc/sys/fs/file-nr; dmesg -T | grep file-max"
    fix = "sysctl -w fs.file-max with a larger number, and look with lsof at who holds so many"
    kinds = ("file_max",)
    absent = "lack of files to open"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "had no file left to open")
