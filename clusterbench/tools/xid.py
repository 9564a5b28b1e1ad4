"""NVIDIA's error numbers: Xid of a GPU, SXid of an NVSwitch; what each means and what to do.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors, 2025), column
"Resolution Bucket (Immediate Action)"; NVIDIA, Fabric Manager User Guide, appendix D, "NVSwitch SXid errors".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterbench.types import Severity


class Meaning(NamedTuple):
    """Name of an error, how bad it is for a measurement, and what to do."""

    name: str
    severity: Severity
    action: str


_APPLICATION = "usually the application's own error: look at its log; if several programs show it, treat it as hardware"
_RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot; if it comes back, contact the vendor"
_REBOOT = "power the host off and on; if it comes back, reseat or replace the GPU"
_NVLINK = "reset the GPUs and the NVSwitches; if it comes back on one link, look at that GPU, board or cable"
_FIRMWARE = "note it; if it comes back, update the driver"
_NONE = "nothing"
_APPLICATION_ERRORS = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "GPU stopped processing",
    44: "graphics engine fault during context switch",
    45: "cleanup after an earlier error, or a program that was killed",
    60: "video processor exception",
    66: "illegal access by driver",
    67: "illegal access by driver",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data sent to GPU",
}
_ENGINES = (*range(70, 72), *range(75, 78), *range(82, 90), *range(96, 106), *range(126, 136), 139)
"""Copy, video, JPEG and optical-flow engines: the program is started again."""

_XIDS: dict[int, Meaning] = {
    **{code: Meaning(name, "note", _APPLICATION) for code, name in _APPLICATION_ERRORS.items()},
    **dict.fromkeys(_ENGINES, Meaning("error of a copy or video engine", "note", _APPLICATION)),
    37: Meaning("driver firmware error", "note", _FIRMWARE),
    38: Meaning("driver firmware error", "warning", _FIRMWARE),
    46: Meaning("GPU stopped processing", "error", _RESET),
    48: Meaning(
        "double-bit ECC error", "error", f"{_RESET}; look at the remapped rows (nvidia-smi -q -d ROW_REMAPPER)"
    ),
    54: Meaning("auxiliary power is not connected", "error", "look at the board's power cables"),
    62: Meaning("internal micro-controller halted", "error", _RESET),
    63: Meaning("memory row remapped", "warning", "reset the GPU at the next break, so that the spare row is used"),
    64: Meaning("memory row could not be remapped", "error", "reset the GPU; if it comes back, replace it"),
    74: Meaning("NVLink error", "error", _NVLINK),
    78: Meaning("vGPU start error", "error", "update driver and vGPU software"),
    79: Meaning("GPU has fallen off the bus", "error", _REBOOT),
    92: Meaning("high rate of single-bit ECC errors", "warning", "watch it; run the vendor's field diagnostics"),
    93: Meaning("InfoROM wear limit", "note", _NONE),
    94: Meaning("contained memory error", "warning", "restart the program; reset the GPU at the next break"),
    95: Meaning("uncontained memory error", "error", _RESET),
    106: Meaning("SMBPBI test message", "note", _NONE),
    107: Meaning("SMBPBI test message", "note", _NONE),
    109: Meaning("context switch timeout", "error", _RESET),
    110: Meaning("security fault", "error", _RESET),
    119: Meaning("GSP RPC timeout: the GPU's own processor does not answer", "error", _RESET),
    120: Meaning("GSP error: the GPU's own processor failed", "error", _RESET),
    121: Meaning("C2C link error, corrected", "warning", "reset the GPU at the next break"),
    136: Meaning("link training failed", "error", _NVLINK),
    137: Meaning("NVLink privilege error", "warning", "a program or a peer wrote where it may not: look at its log"),
    140: Meaning("ECC error, not recovered", "error", _RESET),
    141: Meaning("CUDA fast path error", "note", _APPLICATION),
    142: Meaning("video encoder error", "error", "contact the vendor"),
    143: Meaning("GPU initialization error", "error", _RESET),
    **dict.fromkeys(range(144, 151), Meaning("NVLink error", "error", _NVLINK)),
    151: Meaning("key rotation error", "error", "restart the virtual machine"),
    152: Meaning("DLA SMMU error", "note", _NONE),
    153: Meaning("DLA timeout", "note", _NONE),
    154: Meaning("GPU recovery action changed", "error", "do what the line says after 'to'"),
    155: Meaning("NVLink error defined by software", "error", _NVLINK),
    156: Meaning("resource retired", "warning", "reset the GPU at the next break"),
    157: Meaning("resource could not be retired", "warning", "contact the vendor if it comes back"),
    158: Meaning("GPU fatal timeout", "error", _RESET),
    159: Meaning("CHI non-data error", "warning", "look for errors of unified memory in the lines around it"),
    160: Meaning("channel of HBM retired", "warning", "reset the GPU at the next break"),
    161: Meaning("channel of HBM could not be retired", "warning", "contact the vendor if it comes back"),
    162: Meaning("power smoothing engaged again", "note", _NONE),
    163: Meaning("power smoothing disengaged", "note", _NONE),
    164: Meaning("power smoothing: low lifetime", "warning", "contact the vendor"),
    165: Meaning("power smoothing: lifetime used up", "warning", "contact the vendor"),
    166: Meaning("traffic before its link was encrypted", "error", _RESET),
    167: Meaning("PCIe fatal timeout", "error", _REBOOT),
    168: Meaning("error in a write-protected region", "error", _RESET),
    169: Meaning("internal micro-controller halted", "error", _RESET),
    170: Meaning("interrupt in confidential-computing mode", "warning", _FIRMWARE),
    171: Meaning("details of a double-bit ECC error", "error", _RESET),
    172: Meaning("details of a double-bit ECC error", "error", _RESET),
}
UNKNOWN = Meaning("not in NVIDIA's catalogue as of 2025", "warning", "look it up in NVIDIA's Xid catalogue")
_TO_NONE = re.compile(r"\bto 0x0\b|\bto \w+ \(None\)|\(None\)\s*$")


def xid(code: int, text: str = "") -> Meaning:
    """What an Xid means; its line is needed for 154, which is also logged when nothing needs recovery any more.

    >>> xid(79).name, xid(31).severity, xid(154, "... changed from 0x1 (GPU Reset Required) to 0x0 (None)").severity
    ('GPU has fallen off the bus', 'note', 'note')
    """
    meaning = _XIDS.get(code, UNKNOWN)
    return meaning._replace(severity="note") if code == 154 and _TO_NONE.search(text) else meaning


_SINGLE_BIT = (11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, *(19049, 19055, 19057, 19059, 19062, 19065))
_SXIDS: dict[int, Meaning] = {
    **dict.fromkeys(
        (*_SINGLE_BIT, 19068, 19071, 24001, 24002, 24003), Meaning("single-bit ECC error, corrected", "note", _NONE)
    ),
    10003: Meaning("unhandled interrupt of the switch", "error", "reboot the host: it resets the whole fabric"),
    10004: Meaning("the switch is too hot", "error", "look at fans, air flow and inlet temperature"),
    10005: Meaning("the switch is no longer too hot", "note", _NONE),
    11004: Meaning("ingress invalid ACL", "error", "look at the fabric manager's partitions; restart it"),
    12028: Meaning("egress non-posted PRIV error: traffic of its GPU stalls", "error", _NVLINK),
    19084: Meaning("heartbeat timeout", "error", _NVLINK),
    20001: Meaning("packets sent again", "warning", "watch it: a link that does so often costs bandwidth"),
    20009: Meaning("short-term error rate of a link", "warning", "watch it: a link that does so often costs bandwidth"),
    20012: Meaning("broken or inconsistent connection", "warning", "unless a host was shut down: look at the link"),
    20034: Meaning("link fault (LTSSM)", "error", _NVLINK),
    22003: Meaning("link controller halted", "error", _NVLINK),
    22013: Meaning("link request interrupt, harmless by NVIDIA's guide", "note", _NONE),
}


def sxid(code: int, is_fatal: bool) -> Meaning:
    """What an SXid means; ``is_fatal`` is the line's own word, which rules where the table has no number.

    >>> [sxid(code, is_fatal).severity for code, is_fatal in ((12028, False), (24001, False), (9, True), (9, False))]
    ['error', 'note', 'error', 'warning']
    """
    meaning = _SXIDS.get(code, Meaning("error of an NVSwitch", "error" if is_fatal else "warning", _NVLINK))
    return meaning._replace(severity="error") if is_fatal else meaning
