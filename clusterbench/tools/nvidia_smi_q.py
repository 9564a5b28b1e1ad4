"""``nvidia-smi -q``, as text or XML (``-x``): what each GPU says of itself.

Names of lines are those of drivers 525 to 610; a line that a driver or board does not have, or answers with ``N/A``, is
None.

Source: NVIDIA, nvidia-smi's manual page; ``nvsmi_device_v12.dtd``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from clusterbench.errors import ToolError

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_FIELD = re.compile(r"( +)([^:]+?) *:(?: (.*))?")
_HEADING = re.compile(r"( +)(\S.*)")
_TITLE = "NVSMI LOG"
_END = "</nvidia_smi_log>"
_LOST = re.compile(
    r"Unable to determine the device handle for (?i:GPU)"
    r"(?: ?(?:\d+: )?(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])|(?P<index>\d+)):[^\n]*"
)
_NO_ANSWER = ("Unknown Error", "GPU is lost")

Values = dict[str, str]


@dataclass(frozen=True)
class SmiGpu:
    """One GPU.

    Attributes
    ----------
    address
        ``0000:1b:00.0``.
    slowdowns
        Reasons that lower the clocks now: ``HW Thermal Slowdown``; idle and a power cap are not among them.
    fabric_state, fabric_status
        ``Completed`` and ``Success`` where NVLink's fabric took the GPU in.
    fabric_ills
        What the fabric's health, which GB200 has, says besides that all is well: ``Route Unhealthy: True``.
    reset_required
        Whether the driver asks for a reset.
    recovery_action
        What the driver asks for, since 565: ``None``, ``Reset``, ``Reboot``, ``Drain P2P``, ``Drain and Reset``.
    dram_uncorrectable
        Errors of its memory since the driver was loaded.
    double_bit
        Errors since then of memory, caches and registers: boards before Turing, which count bits.
    pages_retired
        Pages of its memory that are not used any more: boards before A100.
    host_pcie_generation
        What the root port above it can do, whatever bridges are between them.
    is_virtual
        Whether it was passed through to a virtual machine; None where it is not said.
    unrepairable
        Whether errors of its memory are left that no row or channel can replace.
    repairs
        What waits for a reset to be repaired: ``Channel``, ``TPC``.
    pages_pending
        Whether pages of its memory wait to be retired: boards before A100.
    num_unknown
        Values that it did not answer (``Unknown Error``, ``GPU is lost``).
    """

    address: str
    name: str | None
    uuid: str | None
    serial: str | None
    vbios: str | None
    persistence: bool | None
    compute_mode: str | None
    mig: bool | None
    ecc: bool | None
    pcie_generation: int | None
    most_pcie_generation: int | None
    gpu_pcie_generation: int | None
    host_pcie_generation: int | None
    pcie_width: int | None
    most_pcie_width: int | None
    pcie_replays: int | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    sram_uncorrectable: int | None
    sram_threshold_exceeded: bool | None
    remapped_correctable: int | None
    remapped_uncorrectable: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    fabric_state: str | None
    fabric_status: str | None
    fabric_ills: tuple[str, ...]
    reset_required: bool | None
    recovery_action: str | None
    slowdowns: tuple[str, ...] | None
    dram_uncorrectable: int | None
    double_bit: int | None
    pages_retired: int | None
    pages_pending: bool | None
    unrepairable: bool | None
    repairs: tuple[str, ...]
    is_virtual: bool | None
    num_unknown: int


@dataclass(frozen=True)
class SmiQuery:
    """All GPUs in the order of the text; one that it lists again counts as it was last, and slow if it ever was.

    Attributes
    ----------
    num_attached
        How many it says there are; ``-i`` shows fewer.
    lost
        (address, line) of each GPU that nvidia-smi could not ask; its index where the line names no address.
    is_cut
        Whether the last GPU's part ends before that of the first does.
    """

    driver_version: str | None
    cuda_version: str | None
    num_attached: int | None
    gpus: tuple[SmiGpu, ...]
    lost: tuple[tuple[str, str], ...]
    is_cut: bool


def is_query(text: str) -> bool:
    """Whether a text is one, in either form."""
    return _TITLE in text or "<nvidia_smi_log>" in text or _LOST.search(text) is not None


def parse(text: str) -> SmiQuery:
    """What it says.

    Raises
    ------
    ToolError
        If no GPU is named, or the XML is not whole.
    """
    lost = tuple((_address(match["address"] or match["index"]), match[0].strip()) for match in _LOST.finditer(text))
    own, gpus = _of_xml(text) if "<nvidia_smi_log" in text else _of_text(text)
    gpus = [(address, values) for address, values in gpus if values or not lost]
    if not gpus and not lost:
        raise ToolError(f"nvidia-smi -q names no GPU: {text.strip()[-200:]!r}")
    return SmiQuery(
        _said(own, "driver version"),
        _said(own, "cuda version"),
        _number(own, "attached gpus"),
        _once([_gpu(address, values) for address, values in gpus]),
        lost,
        len(gpus) > 1 and _section(gpus[-1][1]) != _section(gpus[0][1]),
    )


def _once(gpus: Sequence[SmiGpu]) -> tuple[SmiGpu, ...]:
    by_gpu: dict[tuple[str, object], SmiGpu] = {}
    for number, gpu in enumerate(gpus):
        key = gpu.address, gpu.uuid or number  # several hosts have one address
        before = by_gpu.get(key, gpu)
        slowdowns = {*(before.slowdowns or ()), *(gpu.slowdowns or ())}
        known = None if gpu.slowdowns is None and before.slowdowns is None else tuple(sorted(slowdowns))
        by_gpu[key] = replace(gpu, slowdowns=known)
    return tuple(by_gpu.values())


def _section(values: Values) -> str:
    """The last heading of a GPU's part."""
    return next(reversed(values), "").partition("/")[0]


def _address(said: str) -> str:
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", said.lower())


def _of_text(text: str) -> tuple[Values, list[tuple[str, Values]]]:
    """Values by their path: ``ecc errors/aggregate/sram uncorrectable``."""
    own: Values = {}
    gpus: list[tuple[str, Values]] = []
    path: list[tuple[int, str]] = []
    is_open = False
    lines = [*map(str.rstrip, text.splitlines())]
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if gpu := _GPU.fullmatch(line.strip()):
            gpus.append((gpu[1], {}))
            path = []
            is_open = True
        elif gpus and line and not line[0].isspace():
            # Right between two of its lines it is of stderr; another command begins after an empty line.
            is_open = is_open and before[:1].isspace() and after[:1].isspace()
        elif not gpus and (field := _FIELD.fullmatch(f" {line}")):
            own[field[2].lower()] = (field[3] or "").strip()
        elif is_open and (match := _FIELD.fullmatch(line) or _HEADING.fullmatch(line)):
            indent, name = len(match[1]), match[2].strip().lower()
            path = [part for part in path if part[0] < indent] + [(indent, name)]
            if match.re is _FIELD:
                gpus[-1][1].setdefault("/".join(part for _, part in path), (match[3] or "").strip())
    return own, gpus


def _of_xml(text: str) -> tuple[Values, list[tuple[str, Values]]]:
    try:
        whole = text[text.index("<nvidia_smi_log") :]
        if _END in whole:  # a shell's prompt may stand behind it
            whole = whole[: whole.rindex(_END) + len(_END)]
        root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", whole))
    except ElementTree.ParseError as error:
        raise ToolError(f"nvidia-smi -q -x: the XML is not whole: {error}") from None
    own = {_spaced(child.tag): (child.text or "").strip() for child in root if child.tag != "gpu"}
    return own, [(gpu.get("id", ""), dict(_leaves(gpu))) for gpu in root.iter("gpu")]


def _leaves(element: ElementTree.Element, path: str = "") -> Iterator[tuple[str, str]]:
    for child in element:
        name = f"{path}/{_spaced(child.tag)}".lstrip("/")
        if len(child):
            yield from _leaves(child, name)
        else:
            yield name, (child.text or "").strip()


def _spaced(tag: str) -> str:
    return tag.replace("_", " ")


_FABRIC_HEALTH = (
    *("Summary", "Bandwidth", "Route Recovery in progress", "Route Unhealthy"),
    *("Access Timeout Recovery", "Incorrect Configuration"),
)
_FABRIC_WELL = ("Healthy", "Full", "False", "None", "Not Supported", "Unknown")
_REPAIRED = ("Channel", "TPC")
_CEILING = "gpu power readings/gpu ceiling power limit"
"""Since driver 610 limits stand below this heading."""
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


def _gpu(address: str, values: Values) -> SmiGpu:
    return SmiGpu(
        address=_address(address),
        name=_said(values, "product name"),
        uuid=_said(values, "gpu uuid", "uuid"),
        serial=_said(values, "serial number", "serial"),
        vbios=_said(values, "vbios version"),
        persistence=_flag(values, "persistence mode"),
        compute_mode=_lower(values, "compute mode"),
        mig=_flag(values, "mig mode/current", "mig mode/current mig"),
        ecc=_flag(values, "ecc mode/current", "ecc mode/current ecc"),
        pcie_generation=_pcie(values, "pcie generation/current", "pcie gen/current link gen"),
        most_pcie_generation=_pcie(values, "pcie generation/max", "pcie gen/max link gen"),
        gpu_pcie_generation=_pcie(values, "pcie generation/device max", "pcie gen/max device link gen"),
        host_pcie_generation=_pcie(values, "pcie generation/host max", "pcie gen/max host link gen"),
        pcie_width=_pcie(values, "link width/current", "link widths/current link width"),
        most_pcie_width=_pcie(values, "link width/max", "link widths/max link width"),
        pcie_replays=_number(values, "pci/replays since reset", "pci/replay counter"),
        power_limit_w=_real(
            values,
            *(f"{_CEILING}/current power limit", "gpu power readings/current power limit"),
            "power readings/enforced power limit",
            *("power readings/power limit", "gpu power readings/power limit"),
        ),
        default_power_limit_w=_real(
            values,
            *(f"{_CEILING}/default power limit", "gpu power readings/default power limit"),
            "power readings/default power limit",
        ),
        sram_uncorrectable=_sram(values),
        sram_threshold_exceeded=_flag(
            values, "ecc errors/aggregate/sram threshold exceeded", "ecc errors/aggregate/sram threshold exceeded"
        ),
        remapped_correctable=_number(values, "remapped rows/correctable error", "remapped rows/remapped row corr"),
        remapped_uncorrectable=_number(values, "remapped rows/uncorrectable error", "remapped rows/remapped row unc"),
        remap_pending=_flag(values, "remapped rows/pending", "remapped rows/remapped row pending"),
        remap_failed=_flag(values, "remapped rows/remapping failure occurred", "remapped rows/remapped row failure"),
        fabric_state=_lower(values, "fabric/state"),
        fabric_status=_said(values, "fabric/status"),
        fabric_ills=tuple(_fabric_ills(values)),
        reset_required=any("requires reset" in value for value in values.values())
        or _flag(values, "gpu reset status/reset required"),
        recovery_action=_said(values, "gpu recovery action"),
        slowdowns=_slowdowns(values),
        dram_uncorrectable=_number(
            values, "ecc errors/volatile/dram uncorrectable", "ecc errors/volatile/double bit/device memory"
        ),
        double_bit=_number(values, "ecc errors/volatile/double bit/total"),
        pages_retired=_pages_retired(values),
        pages_pending=_flag(
            values,
            *("retired pages/pending page blacklist", "retired pages/pending blacklist"),
            "retired pages/pending retirement",
        ),
        unrepairable=_flag(values, "ecc errors/unrepairable memory"),
        repairs=tuple(part for part in _REPAIRED if _flag(values, f"ecc errors/{part.lower()} repair pending")),
        is_virtual=_is_virtual(values),
        num_unknown=sum(value.strip("[]") in _NO_ANSWER for value in values.values()),
    )


def _is_virtual(values: Mapping[str, str]) -> bool | None:
    mode = _said(values, "gpu virtualization mode/virtualization mode")
    return None if mode is None else mode not in ("None", "Host VGPU", "Host VSGA")


def _said(values: Mapping[str, str], *names: str) -> str | None:
    for name in names:
        value = values.get(name)
        if value and value not in ("N/A", "[N/A]", "Unknown Error", "[Not Supported]"):
            return value
    return None


def _lower(values: Mapping[str, str], *names: str) -> str | None:
    said = _said(values, *names)
    return None if said is None else said.lower()


def _flag(values: Mapping[str, str], *names: str) -> bool | None:
    said = (_said(values, *names) or "").lower()
    return True if said in ("yes", "enabled", "active") else False if said in ("no", "disabled", "not active") else None


def _real(values: Mapping[str, str], *names: str) -> float | None:
    """``700.0`` of ``700.00 W``."""
    match = re.match(r"\d+(?:\.\d+)?", _said(values, *names) or "")
    return float(match[0]) if match else None


def _number(values: Mapping[str, str], *names: str) -> int | None:
    value = _real(values, *names)
    return None if value is None else int(value)


def _pcie(values: Mapping[str, str], *names: str) -> int | None:
    return _number(values, *(f"pci/{info}/{name}" for name in names for info in ("gpu link info", "pci gpu link info")))


def _sram(values: Mapping[str, str]) -> int | None:
    """In the life of the GPU; drivers since 535.129 say it by kind of code."""
    whole = _number(values, "ecc errors/aggregate/sram uncorrectable")
    kinds = ("sram uncorrectable parity", "sram uncorrectable sec-ded", "sram uncorrectable secded")
    parts = [count for kind in kinds if (count := _number(values, f"ecc errors/aggregate/{kind}")) is not None]
    return whole if whole is not None else sum(parts) if parts else None


def _pages_retired(values: Mapping[str, str]) -> int | None:
    """After errors of one bit, twice in a page, and of two bits."""
    xml = "retired pages/{} bit retirement/retired count"
    single = _number(values, "retired pages/single bit ecc", xml.format("multiple single"))
    double = _number(values, "retired pages/double bit ecc", xml.format("double"))
    return None if single is None or double is None else single + double


def _fabric_ills(values: Mapping[str, str]) -> Iterator[str]:
    for name in _FABRIC_HEALTH:
        said = _said(values, f"fabric/health/{name.lower()}")
        if said is not None and said not in (*_FABRIC_WELL, *_NO_ANSWER):
            yield f"{name}: {said}"


def _slowdowns(values: Mapping[str, str]) -> tuple[str, ...] | None:
    found: list[str] = []
    known = False
    for reason in _SLOWDOWNS:
        word = reason.lower()
        for path, value in values.items():
            section, _, leaf = path.partition("/")
            is_reason = section in (
                *("clocks throttle reasons", "clocks event reasons", "clocks throttle reason", "clocks event reason"),
            )
            name = leaf.rpartition("/")[2].removeprefix("clocks event reason ").removeprefix("clocks throttle reason ")
            if is_reason and name == word:
                known = True
                found += [reason] if value == "Active" else []
    return tuple(found) if known else None
