"""The kernel's log: which of its lines tell of a fault, what of, where and when. One table for all who read it.

Times are of many forms; each line's is kept as it stands, and in seconds where it can be reckoned, for which the form
must not matter: only differences are used.

Source of wordings: Linux 6.8, ``drivers/net/ethernet/mellanox/mlx5/core/{events,health,main,en_main}.c``,
``drivers/pci/{pci,pcie/aer,hotplug/pciehp_ctrl}.c`` (5.4 to 6.12), ``kernel/{watchdog,hung_task,panic}.c``,
``drivers/iommu/{intel/dmar,amd/iommu}.c``,
``net/sched/sch_generic.c``, ``drivers/infiniband/core/cache.c`` (6.13), ``mm/{oom_kill,memory-failure}.c``,
``drivers/{nvme/host,ata,scsi}``, ``arch/x86/kernel/cpu/mce``, ``drivers/edac/mce_amd.c``,
``drivers/firmware/efi/cper.c``; NVIDIA's open kernel modules 560 (``NVRM``, ``nvidia-nvswitch``); leptonai/gpud,
kernel message matchers of ``components/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from clusterbench.errors import ToolError
from clusterbench.tools._prefix import PlainLine, plain_text, unwrapped

MOST_EVENTS = 100
_MOST_TEXT = 200
DAY_S = 86400.0


@dataclass(frozen=True)
class Line:
    """One line: its time as it stands, in seconds from a beginning that all lines share, and its host if it says so."""

    time: str
    seconds: float | None
    host: str
    text: str


@dataclass(frozen=True)
class Event:
    """What happened at one place within a day, once or often.

    Attributes
    ----------
    kind
        Of :data:`KINDS`.
    where
        ``GPU 0000:9b:00``, ``mlx5_core 0000:5c:00.0``, ``ens1f0np0``; empty where the line names nothing.
    code
        The number of an Xid or SXid, the watts of a slot, the seconds a task was stuck.
    first, last
        Times of the first and the last of ``count`` lines, as they stand in the log.
    text
        The first line, without its time.
    """

    kind: str
    where: str
    code: int | None
    count: int
    first: str
    last: str
    text: str


HARMLESS: tuple[tuple[str, str], ...] = (
    (r"ACCESS_REG\(0x\w+\).* failed", "firmware keeps registers of a port it manages itself (gpud issue 1164)"),
    (r"AER: enabled with IRQ", "error reporting is switched on"),
    (r"Port module event: module \d+, Cable (?:un)?plugged", "a cable was plugged in or out"),
    (r"mce: (?:CPU\d+: Thermal monitoring|using \d+ MCE banks)|In-kernel MCE decoding enabled", "switched on"),
    (r"Machine check events logged", "stands before or after the line that says which"),
    (r"EDAC (?:MC: Ver|MC\d+: Giving out device)|Correctable Errors collector initialized", "switched on"),
    (r"taints kernel|module verification failed", "NVIDIA's modules are not of the kernel"),
    (r"hung_task_timeout_secs", "says how to silence the line before it"),
    (r"NVRM: Rate limiting GSP RPC", "says that the line before it is shown less often"),
    (r"soft lockup.*\bwatchdog_thresh\b", "a setting"),
    (r"detected expedited stalls on .* \d{1,3} jiffies", "less than a second, on a kernel built with a limit of 20 ms"),
    (r"error,? (?:on )?dev (?:fd|sr|loop)\d+\b", "a floppy or CD drive without a medium, or a file that is mounted"),
    (r"Link speed: .* available PCIe bandwidth \(\d", "a card whose slot gives all that it can take"),
)
"""Lines that look like faults and are none, and why."""

_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_MIG = r"(?: GPU-I:\d+)?"
"""The part of a GPU that MIG cut, behind its address: NVIDIA's open kernel modules, error containment."""
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("xid", rf"NVRM: Xid \((?:PCI:)?(?P<gpu>{_BDF}){_MIG}\): 45, .*caused by previous Xid (?P<code>\d+)"),
    ("xid", rf"NVRM: Xid \((?:PCI:)?(?P<gpu>{_BDF}){_MIG}\): (?P<code>\d+)\b"),
    (
        "xid",
        rf"NVRM: (?:(?:The NVIDIA )?GPU (?:at PCI:)?)?(?P<gpu>{_BDF})?.*"
        r"(?:has fallen off the bus|GPU lost from the bus)(?P<code_79>)",
    ),
    ("sxid", rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<switch>{_BDF})\): (?P<code>\d+), (?:Non-fatal|Fatal)\b"),
    ("sxid_data", rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<switch>{_BDF})\): (?P<code>\d+), (?:Data \{{|Severity )"),
    ("gpu_start", rf"NVRM: (?:GPU (?P<gpu>{_BDF}): )?.*(?:RmInitAdapter failed|rm_init_adapter failed)"),
    ("gpu_start", rf"NVRM: The NVIDIA GPU (?P<gpu>{_BDF}) .*installed in this system (?:is not|requires)"),
    ("gpu_start", rf"nvidia(?:: probe of)? (?P<gpu>{_BDF}):? (?:probe with driver nvidia )?failed with error"),
    ("gpu_start", r"NVRM: (?:The NVIDIA probe routine failed|None of the NVIDIA devices were initialized)"),
    (
        "amd_gpu",
        rf"amdgpu (?P<gpu>{_BDF}): .*(?:\b[1-9]\d* (?:new )?(?:uncorrectable|deferred) hardware errors detected"
        r"|GPU reset(?:\(\d+\))? failed|[Pp]oison is consumed|Saved bad pages \d+ reaches|Fatal error during GPU init)",
    ),
    ("amd_gpu", r"\[amdgpu\]\] \*ERROR\* [hs]w_init of IP block .* failed"),
    ("amd_gpu_reset", rf"amdgpu (?P<gpu>{_BDF}): (?:amdgpu: )?(?:GPU reset begin|ring \S+ timeout)"),
    ("amd_gpu_reset", r"\[amdgpu\]\] \*ERROR\* ring \S+ timeout"),
    ("driver_stuck", r"NVRM: knvlink(?:DiscoverPostRxDetLinks|UpdatePostRxDetectLinkMask)_\w+: .*[Ll]ink ?[Mm]ask"),
    ("peermem", r"nvidia[-_]peermem.*ERROR detected invalid context"),
    (
        "slot_power",
        rf"(?:(?P<device>mlx5_core {_BDF}).*)?Detected insufficient power on the PCIe slot \((?P<code>\d+)W\)",
    ),
    ("heat", rf"(?:(?P<device>mlx5_core {_BDF}).*)?Port module event.*module (?P<module>\d+).*High Temperature"),
    ("heat", rf"(?:(?P<device>mlx5_core {_BDF}).*)?High temperature on sensors"),
    ("cable", rf"(?:(?P<device>mlx5_core {_BDF}).*)?Port module event\[error\]: module (?P<module>\d+), "),
    ("nic_failed", rf"(?P<device>mlx5_core {_BDF}).*(?:health compromised|handling bad device|Fatal error|assert_var)"),
    ("nic_failed", rf"(?P<device>mlx5_core {_BDF}).*wait_func.* timeout"),
    ("nic_failed", rf"(?P<device>mlx5_core {_BDF}).*Health issue observed, .*(?:ERROR|CRITICAL|ALERT|EMERGENCY)"),
    ("nic_failed", rf"(?P<device>mlx5_core {_BDF}).*mlx5_(?:pci_err_detected|error_sw_reset)\b"),
    (
        "nic_failed",
        rf"(?P<device>mlx5_core {_BDF}).*"
        r"(?:mlx5_(?:init|load)_one failed|initializing state, aborting|recovery flow aborted)",
    ),
    ("nic_failed", rf"(?P<device>mlx5_core {_BDF}): probe with driver mlx5_core failed with error"),
    ("nic_failed", rf"mlx5_core: probe of (?P<mlx5>{_BDF}) failed with error"),
    ("nic_queue", r"NETDEV WATCHDOG: (?P<device>\S+) \(.*transmit queue \d+ timed out"),
    ("nic_queue", r"(?P<device>\S+): (?:NETDEV WATCHDOG: .*transmit queue \d+ timed out|TX timeout detected)"),
    ("nic_queue", r"(?P<device>[\w.-]+): transmit timeout: latency \d+ msecs"),
    ("pcie_limited", rf"(?P<device>[\w-]+ {_BDF}): [\d.]+ Gb/s available PCIe bandwidth, limited by "),
    ("aer", rf"(?P<device>[\w-]+ {_BDF}): (?:AER: )?PCIe Bus Error: severity=Uncorrect\w+"),
    ("aer", rf"AER: (?:Multiple )?Uncorrect\w+ .*error (?:message )?received(?: from|:) (?P<device>{_BDF})"),
    ("aer", rf"(?P<device>[\w-]+ {_BDF}): (?:DPC: containment event|.*device inaccessible)"),
    ("slot_link", rf"(?P<device>pcieport {_BDF}): pciehp: Slot\([^)]*\): (?:Link Down|Card not present)"),
    ("iommu", rf"DMAR: \[DMA[^\]]*\] Request device \[(?P<device>{_BDF})\]"),
    ("iommu", rf"AMD-Vi: Event logged \[IO_PAGE_FAULT device=(?P<device>{_BDF})"),
    ("iommu", rf"(?P<device>[\w-]+ {_BDF}): AMD-Vi: Event logged \[IO_PAGE_FAULT"),
    ("aer_corrected", rf"(?P<device>[\w-]+ {_BDF}): (?:AER: )?PCIe Bus Error: severity=Correct\w+"),
    ("stuck", r"soft lockup - (?P<device>CPU#\d+) stuck for (?P<code>\d+)s"),
    ("stuck", r"hard LOCKUP on (?P<device>cpu \d+)"),
    ("stuck", r"rcu\w*: .*detected (?:expedited )?stalls? on CPU|rcu_\w+ (?:self-)?detected stalls?"),
    ("stuck", r"task (?P<device>\S.*?:\d+) blocked (?:in I/O wait )?for more than (?P<code>\d+) sec"),
    ("oom", r"(?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process \d+ \((?P<device>[^)]*)\)"),
    ("oom_cgroup", r"Memory cgroup out of memory: Kill(?:ed)? process \d+ \((?P<device>[^)]*)\)"),
    ("machine_check", r"mce: (?:Uncorrected hardware memory error|.*Fatal machine check|.*Machine Check Exception)"),
    # The last word is the bank's status: bits 63 (valid) and 61 (uncorrected) are set.
    ("machine_check", r"\[Hardware Error\]: (?P<device>CPU \d+): Machine Check: \w+ Bank \d+: [abef]\w{15}\b"),
    ("machine_check", r"\[Hardware Error\]: (?:System Fatal|(?:Uncorrected(?:, software \w+)?|Deferred) error)"),
    ("machine_check", r"Memory failure: 0x\w+: "),
    ("machine_check", r"EDAC (?P<device>MC\d+): \d+ UE "),
    ("memory_corrected", r"EDAC (?P<device>MC\d+): \d+ CE "),
    ("memory_corrected", r"\[Hardware Error\]: Corrected error"),
    ("cpu_heat", r"(?P<device>CPU\d+): (?:Core|Package) temperature(?:/speed)? (?:is )?above threshold"),
    (
        "panic",
        r"Kernel panic - not syncing|BUG: (?:unable to handle|kernel NULL pointer)|Unable to handle kernel |Oops: "
        r"|general protection fault.*\[#1\]|kernel BUG at",
    ),
    ("nccl_crash", r"(?P<device>[\w.:-]+)\[\d+\]:? (?:segfault|general protection fault) .* in libnccl\.so"),
    ("storage", r"Remounting filesystem read-only|I/O error while writing superblock|failing I/O|Disk failure on"),
    ("storage", r"XFS \((?P<device>[\w-]+)\): .*(?:I/O [Ee]rror|[Cc]orruption|Internal error|[Ss]hut(?:ting)? down)"),
    ("storage", r"(?:EXT4-fs|BTRFS):? (?:error|critical|error \w+) \(device (?P<device>[\w-]+)(?: [^)]*)?\)"),
    ("storage", r"critical (?:medium|target|nexus) error, dev (?P<device>[\w-]+)"),
    ("storage", r"(?P<device>nvme\d+): (?:controller is down; will reset|Removing after probe failure)"),
    ("storage", r"(?:Buffer )?I/O error,? (?:on )?dev (?P<device>[\w-]+)"),
    ("storage", r"(?P<device>nvme\d+): I/O .*timeout, (?:reset controller|aborting)|Disabling device after reset"),
    ("storage", r"(?P<device>nvme\d+): Device not ready; aborting|(?P<namespace>nvme\d+n\d+): .* @ LBA .*\(sct 0x"),
    ("storage", r"(?P<device>ata\d+(?:\.\d+)?): failed command|\[(?P<disk>sd[a-z]+)\] (?:tag#\d+ )?FAILED Result"),
    ("storage", r"nfs: server (?P<device>\S+) not responding"),
    ("storage", r"NFS: state manager.* failed on NFSv4 server (?P<device>\S+) with error"),
    ("storage", r"CIFS: VFS: (?P<device>\S+) has not responded|ceph: mds\d+ hung|libceph: osd\d+ down"),
    (
        "storage",
        r"Lustre.*(?:was lost|evicted by|Request sent has (?:timed out|failed)|operation \w+ to node .* failed)",
    ),
    ("storage", r"LNet(?:Error)?: .*Timed out tx|attempt to access beyond end of device"),
    ("clock_unstable", r"Marking clocksource 'tsc(?:-early)?' as unstable|\bTSC found unstable after boot"),
    ("file_max", r"VFS: file-max limit \d+ reached"),
)
_NUMBERED = ("xid", "sxid", "sxid_data")
_RECOVERY = 154
"""The Xid that says "changed from 0x0 (None) to 0x2 (Node Reboot Required)": each action is an event of its own."""
_WORDS = (
    *(
        "NVRM",
        "nvidia",
        "mlx5",
        "PCIe",
        "AER",
        "lockup",
        "LOCKUP",
        "stall",
        "blocked",
        "memory",
        "mce",
        "EDAC",
        "Error",
    ),
    *("temperature", "panic", "BUG", "Oops", "fault", "I/O", "read-only", "Disk", "Disabling", "nfs", "Lustre", "XFS"),
    *("EXT4-fs", "BTRFS", "critical", "controller", "WATCHDOG", "TX timeout", "Removing", "nvme", "failed command"),
    *(
        "FAILED Result",
        "NFS",
        "CIFS",
        "ceph",
        "LNet",
        "DPC",
        "inaccessible",
        "Memory failure",
        "Unable to handle",
        "amdgpu",
        "beyond end",
        "file-max",
        "pciehp",
        "DMAR",
        "AMD-Vi",
        "transmit timeout",
        "unstable",
    ),
)
"""One of these stands in every line that :data:`_PATTERNS` match: most lines hold none, and are passed over quickly."""
_COUNTED = re.compile(r"EDAC MC\d+: (\d+) [CU]E ")
"""EDAC says of how many errors a line tells."""
_SENTENCE = "NVRM: The NVIDIA GPU "
_GOES_ON = re.compile(r"NVRM: (?=[a-z(])")
_MOST_OF_A_SENTENCE = 3
"""NVIDIA's driver says in so many lines which GPU "fallen off the bus" is of."""
_NAMELESS = ("xid", "gpu_start", "amd_gpu", "amd_gpu_reset")
"""Of these some lines name no GPU, and stand beside others that do."""
_FAULTS = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)
_SILENT = re.compile("|".join(pattern for pattern, _ in HARMLESS))
_WAY = r"(?:NIC )?[Ll]ink (?:is )?(?P<way>[Uu]p|[Dd]own)\b"
_LINKS = (
    re.compile(rf"(?P<card>{_BDF}) (?P<name>[\w.-]+): (?:\w+: \S+ )?{_WAY}"),
    re.compile(rf"(?P<card>{_BDF}) (?P<name>[\w.-]+): Port: (?P<port>\d+) Link (?P<way>ACTIVE|DOWN)\b"),
    re.compile(rf"(?<![\w.-])(?P<name>(?:en|eth|ib|bond|rdma|roce)[\w.-]*):? {_WAY}"),
    re.compile(r"\(slave (?P<name>[\w.-]+)\): link status definitely (?P<way>up|down)\b"),
    re.compile(r"link status definitely (?P<way>up|down) for interface (?P<name>[\w.-]+)"),
    re.compile(r"(?:^|\s)(?P<name>[\w.-]+): (?P<way>Lost|Gained) carrier"),
)
"""An interface and its link. Behind the address of its card it may have any name, elsewhere only a usual one.

The second is an RDMA device's: ``INIT`` and ``ARMED`` are not of its link, but of the subnet manager.
"""
_REPORTED = re.compile(
    r"\[Hardware Error\]:\s+(?:(?:(?P<event>event severity)|Error \d+, type): (?P<severity>\w+)"
    rf"|section[_ ]type: (?P<section>\w+)|device_id: (?P<device>{_BDF})$)"
)
_REPORTED_KINDS = {
    **dict.fromkeys(("fatal", "recoverable"), ("machine_check", "aer")),
    "corrected": ("memory_corrected", "aer_corrected"),
}
"""Of processor or memory, and of PCIe, by what firmware says of its severity; what is "info" is no fault."""
KINDS = (*dict.fromkeys(kind for kind, _ in _PATTERNS), "link_down")
"""What events are of. ``link_down``: the link of an interface that had been up went down."""

_SINCE_BOOT = r"\[\s*\d{1,9}\.\d{6}\]"  # ten digits are seconds since 1970, which other programs print
_CTIME = r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\]"
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d"
_FACILITY = r"(?:kern|user|daemon|syslog|auth\w*|local\d) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
_HUMAN = r"\[(?:[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d|\s*\+\d+\.\d{6})\]"
"""How util-linux's dmesg begins lines: plain, -T, --time-format iso, -x and -H. Apache's has a bracket behind -T's."""

_KERNEL_BEGINS = re.compile(
    rf"^(?:(?:<\d+>)?{_SINCE_BOOT}(?:\[\s*[TC]\d+\])? |{_CTIME} (?!\[)|{_ISO} |{_HUMAN} |"
    rf"{_FACILITY}(?:\[|{_ISO} )|\d+,\d+,\d+,[^;\n]*;)",
    re.MULTILINE,
)
_KERNEL_SAYS = re.compile(
    r"NVRM: |nvidia-nvswitch\d+: |mlx5_core [0-9a-f]{4}:[0-9a-f]{2}:|pcieport [0-9a-f]{4}:[0-9a-f]{2}:|EDAC MC\d|"
    r"\] (?:Linux version|ACPI:) |Out of memory: Kill|soft lockup - CPU|blocked for more than \d+ seconds| kernel: |"
    r"nvidia-peermem nv_"
)
_OF_KERNEL = (
    *("NVRM: ", "nvidia-nvswitch", "mlx5_core ", "pcieport ", "EDAC MC", "] Linux version ", "] ACPI: "),
    *("Out of memory: Kill", "soft lockup - CPU", "blocked for more than ", " kernel: ", "nvidia-peermem nv_"),
)
"""One of these stands in whatever :data:`_KERNEL_SAYS` matches: long texts of other programs hold none."""

_LEVEL = r"(?:\w+\s*:\w+\s*: |<\d+>)?"
_FORMS = (
    re.compile(_LEVEL + r"\[\s*(?P<up>\d+\.\d+)\](?:\[\s*[TC]\d+\])? ?(?P<text>.*)"),
    re.compile(_LEVEL + r"\[(?P<c>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?(?P<text>.*)"),
    re.compile(_LEVEL + r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d),\d{6}[+-]\d\d:\d\d (?P<text>.*)"),
    re.compile(_LEVEL + r"\[(?:(?P<day>[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)|\s*\+\d+\.\d+)\] ?(?P<text>.*)"),
    re.compile(r"\d+,\d+,(?P<us>\d+),[^;]*;(?P<text>.*)"),
)
"""Times of the kernel itself."""
_LOGGED = (("%Y-%m-%dT%H:%M", ""), ("%Y-%m-%d %H:%M", ""), ("%Y %b %d %H:%M", "2000 "), ("%b %d %H:%M %Y", ""))
"""Minutes of who collected the log, and what they lack."""

_SECONDS = re.compile(r"(?P<before>.*\d\d:\d\d):(?P<seconds>\d\d)(?P<behind>| \d{4})")


def is_kernel_log(text: str, plain: str | None = None) -> bool:
    """Whether any line of a text is one that a kernel prints; ``plain`` is the text without prefixes, if at hand."""
    return _is_kernels(text) or _is_kernels(plain_text(text) if plain is None else plain)


def _is_kernels(text: str) -> bool:
    says = any(word in text for word in _OF_KERNEL) and _KERNEL_SAYS.search(text) is not None
    return says or _KERNEL_BEGINS.search(text) is not None


def read(text: str) -> tuple[Line, ...]:
    """The lines of a log as dmesg, journalctl, syslog or /dev/kmsg print it.

    Raises
    ------
    ToolError
        If no line of it is a kernel's.
    """
    if not is_kernel_log(text):
        raise ToolError(f"no line of this is from a kernel's log: {text.strip()[-200:]!r}")
    return tuple(lines(text))


def lines(text: str) -> Iterator[Line]:
    """The lines as they are, whatever they hold; those without a time have that of the line before them.

    The time is that of who collected the log, who knows the day, and otherwise the kernel's own.
    """
    return lines_of(unwrapped(text))


def lines_of(plain: Iterable[PlainLine]) -> Iterator[Line]:
    """The same of lines whose prefixes are already apart."""
    time, seconds, host = "", None, ""
    for line in plain:
        match = next((match for form in _FORMS if (match := form.fullmatch(line.text))), None)
        if line.time:
            time, seconds = line.time, _logged(line.time)
        elif match:
            time, seconds = _when(match) or (time, seconds)
        if match or line.time or line.origin:
            host = line.origin
        yield Line(time, seconds, host, (match["text"] if match else line.text).strip())


def _logged(time: str) -> float | None:
    if (said := _SECONDS.fullmatch(time)) is None:
        return None
    began = _began(f"{said['before']}{said['behind']}")
    return None if began is None else began + int(said["seconds"])


@lru_cache(maxsize=1024)
def _began(minute: str) -> float | None:
    """When a minute began: strptime is slow, and a log has many lines of one minute."""
    for form, before in _LOGGED:
        try:
            return datetime.strptime(f"{before}{minute}", form).timestamp()
        except ValueError:
            continue
    return None


def _when(match: re.Match[str]) -> tuple[str, float | None] | None:
    """A time of the kernel's as it stands, and in seconds; None where it only says how long after the line before."""
    said = match.groupdict()
    if iso := said.get("iso"):
        return iso, _logged(iso)
    if up := said.get("up"):
        return f"{up} s after boot", float(up)
    if us := said.get("us"):
        return f"{int(us) / 1e6:.6f} s after boot", int(us) / 1e6
    if (time := said.get("c") or said.get("day")) is None:
        return None
    try:
        return time, datetime.strptime(time, "%a %b %d %H:%M:%S %Y").timestamp()
    except ValueError:
        return time, None


def events(log: Iterable[Line]) -> list[Event]:
    """What the lines tell of, in the order in which it began; alike lines at one place within a day are one event."""
    groups: dict[tuple[str, str, int | None, str], list[tuple[float | None, Event]]] = {}
    order: list[tuple[tuple[str, str, int | None, str], int]] = []
    for line, kind, where, code in _found(log):
        action = line.text.rpartition(" to ")[2] if (kind, code) == ("xid", _RECOVERY) else ""
        key = kind, where, code if kind in _NUMBERED else None, action
        same = groups.setdefault(key, [])
        count = int(counted[1]) if (counted := _COUNTED.search(line.text)) else 1
        if same and _within_a_day(same[-1][0], line.seconds):
            began, event = same[-1]
            same[-1] = began, replace(event, count=event.count + count, last=line.time)
        else:
            order.append((key, len(same)))
            event = Event(kind, where, code, count, line.time, line.time, line.text[:_MOST_TEXT])
            same.append((line.seconds, event))
    return _named([groups[key][number][1] for key, number in order])


def _named(every: list[Event]) -> list[Event]:
    """Without those whose place another of their kind and number names better: ``0000:97:01.0``, or not at all.

    Data of an SXid is an event only where the SXid's own line is missing.
    """
    places = {(event.kind, event.code, event.where) for event in every}
    better = {(kind, code, where.rpartition(" ")[2]) for kind, code, where in places if " " in where}
    own = {("sxid_data", code, where) for kind, code, where in places if kind == "sxid"}
    better |= {(kind, code, "") for kind, code, where in places if where and kind in _NAMELESS}
    return [event for event in every if (event.kind, event.code, event.where) not in better | own]


def _within_a_day(began: float | None, seconds: float | None) -> bool:
    return began is None or seconds is None or abs(seconds - began) <= DAY_S


class _Reported:
    """What firmware reports of an event, a line each for its severity, for that of each section, and for what it is of.

    The line of a severity is held until the section says what it is of: of PCIe until it names the device.
    """

    def __init__(self) -> None:
        self._held: Line | None = None
        self._severity = ""
        self._is_pcie = False

    def take(self, line: Line, said: re.Match[str]) -> Iterator[tuple[Line, str, str, int | None]]:
        """What is known with this line."""
        if said["severity"]:
            if said["event"] or self._is_pcie:
                yield from self.rest()
            self._held, self._severity, self._is_pcie = line, said["severity"], False
        elif said["section"] == "PCIe":
            self._is_pcie = True
        elif said["section"] or self._is_pcie:
            yield from self.rest(said["device"] or "")

    def rest(self, where: str = "") -> Iterator[tuple[Line, str, str, int | None]]:
        """What is held, of which nothing more is said."""
        if self._held and self._severity in _REPORTED_KINDS:
            yield self._held, _REPORTED_KINDS[self._severity][self._is_pcie], where.lower(), None
        self._held, self._is_pcie = None, False


class _Links:
    """Which links are up. Where an interface tells of the link of a card, the card's RDMA device says it again."""

    def __init__(self) -> None:
        self._is_up: dict[str, bool] = {}
        self._cards: set[str] = set()

    def lost(self, link: re.Match[str]) -> str:
        """What is down now and was up; empty where nothing is."""
        said = {"card": "", "port": "", **link.groupdict()}
        name, up = said["name"], said["way"].lower() in ("up", "gained", "active")
        if said["port"]:
            if said["card"] in self._cards:
                return ""
            name = f"{name} port {said['port']}"
        elif said["card"]:
            self._cards.add(said["card"])
        was_up, self._is_up[name] = self._is_up.get(name, False), up
        return name if was_up and not up else ""


def _found(log: Iterable[Line]) -> Iterator[tuple[Line, str, str, int | None]]:
    links = _Links()
    reported = _Reported()
    every = [*_whole_sentences(log)]
    whole = "\n".join(line.text for line in every)
    words = [word for word in _WORDS if word in whole]  # of many thousand lines most hold none
    for line in every:
        if "[Hardware Error]" in line.text and (said := _REPORTED.search(line.text)):
            yield from reported.take(line, said)
            continue
        if ("ink" in line.text or "carrier" in line.text) and (link := _link(line.text)):
            if lost := links.lost(link):
                yield line, "link_down", lost, None
            continue
        if not any(word in line.text for word in words) or _SILENT.search(line.text):
            continue
        for kind, pattern in _FAULTS:
            if match := pattern.search(line.text):
                yield line, kind, *_place(match)
                break
    yield from reported.rest()


def _whole_sentences(log: Iterable[Line]) -> Iterator[Line]:
    """The lines, with what NVIDIA's driver says of one GPU in several of them in the first."""
    held: Line | None = None
    left = 0
    for line in log:
        if held is not None and left and _GOES_ON.match(line.text):
            held, left = replace(held, text=f"{held.text} {_GOES_ON.sub('', line.text)}"), left - 1
            continue
        if held is not None:
            yield held
            held = None
        if _SENTENCE in line.text:
            held, left = replace(line, text=line.text.replace("#012NVRM:", "")), _MOST_OF_A_SENTENCE - 1
        else:
            yield line
    if held is not None:
        yield held


def _link(text: str) -> re.Match[str] | None:
    return next((match for pattern in _LINKS if (match := pattern.search(text))), None)


def _place(match: re.Match[str]) -> tuple[str, int | None]:
    said = match.groupdict()
    code = said.get("code")
    number = int(code) if code else 79 if said.get("code_79") is not None else None
    if said.get("gpu"):
        return f"GPU {said['gpu'].lower().removesuffix('.0')}", number
    if said.get("switch"):
        return f"NVSwitch {said['switch'].lower()}", number
    if said.get("mlx5"):
        return f"mlx5_core {said['mlx5'].lower()}", number
    module = f" module {said['module']}" if said.get("module") else ""
    device = next((said[name] for name in ("device", "namespace", "disk") if said.get(name)), "")
    return f"{device}{module}".strip(), number
