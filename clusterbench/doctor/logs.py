"""What files say that people have at hand: recognised by their content, and judged by the checks that hosts are.

Only what a file tells of is judged: a list of ports says nothing of memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from clusterbench.checks import checks
from clusterbench.checks._kernel_log import KernelLogCheck
from clusterbench.checks.nvlink_state import LINKS
from clusterbench.doctor import SEVERITIES, Examination, Found, Healthy, NotJudged, examine, nccl_log, torch_log
from clusterbench.doctor.files import hosts_by_folder
from clusterbench.doctor.peers import WeakPairs, weak_pairs
from clusterbench.doctor.readers import readers
from clusterbench.doctor.said import File, Reader, Said, apart, quoted
from clusterbench.errors import SuiteError, ToolError
from clusterbench.facts import Facts, Host, name_of
from clusterbench.facts.gpus import (
    COMPUTE_MODE,
    DEFAULT_POWER_LIMIT,
    ECC,
    GENERATION,
    GPU_GENERATION,
    MIG,
    MOST_GENERATION,
    MOST_WIDTH,
    PERSISTENCE,
    POWER_LIMIT,
    REMAPPED,
    SRAM,
    SRAM_OLD,
    VBIOS,
    WIDTH,
    Gpu,
    Gpus,
)
from clusterbench.facts.infiniband import Device, Infiniband, Port
from clusterbench.facts.kernel_log import KernelLog
from clusterbench.facts.virtualization import Virtualization
from clusterbench.text_files import log_text
from clusterbench.tools import (
    fabric_manager_log,
    ibstat,
    ibstatus,
    ibv_devinfo,
    kernel_log,
    lspci,
    nvidia_nvlink,
    nvidia_smi_q,
    nvidia_smi_table,
    p2p_bandwidth,
)
from clusterbench.tools._prefix import PlainLine, num_left_out
from clusterbench.tools.xid import sxid
from clusterbench.types import Severity
from clusterbench.words import few, plural

_MOST_QUOTED = 120
_MOST_OF_A_PLACE = 400


def examine_logs(paths: Sequence[Path]) -> tuple[Examination, list[str]]:
    """What the files say, and of each file what it was taken for.

    Raises
    ------
    SuiteError
        If one cannot be read, or holds nothing that is known.
    """
    said: list[tuple[File, str, Said]] = []
    taken: list[str] = []
    kind_of: dict[str, str] = {}
    hosts = hosts_by_folder(paths)
    files = [
        File.of(str(path) if host else path.name, log_text(path), host) for path, host in zip(paths, hosts, strict=True)
    ]
    for path, file in zip(paths, files, strict=True):
        kinds: list[str] = []
        refused: dict[str, str] = {}
        for reader in READERS:
            try:
                of_hosts = reader.read(file)
            except ToolError as error:
                refused[reader.kind] = str(error)
                continue
            said += [(file, *each) for each in of_hosts]
            kind_of |= {host: reader.kind for host, _ in of_hosts}
            kinds += [reader.kind] if of_hosts else []
        if refused and not kinds:
            raise SuiteError(f"{path}: " + "; ".join(f"read as {kind}: {why}" for kind, why in refused.items()))
        takes = "the whole output, in a file of its own"
        parts = tuple(NotJudged(kind, (file.host,), why, takes) for kind, why in refused.items())
        said += [(file, file.host, Said(not_judged=parts))] if parts else []
        if not kinds and not any(line.text.strip() for line in file.lines):
            raise SuiteError(f"{path} is empty, so there is nothing to judge.")
        if not kinds:
            known = ", ".join(reader.kind for reader in READERS)
            first = next(line.text.strip() for line in file.lines if line.text.strip())
            raise SuiteError(
                f"{path}: nothing in it is known; it begins {first[:80]!r}.\n"
                f"hint: what can be read: {known}; for a table of a benchmark: clusterbench import"
            )
        taken.append(f"{path}: {' and '.join(kinds)}")
    examination = _together(said)
    return replace(examination, not_judged=(*examination.not_judged, *_silent(examination, kind_of))), taken


def _silent(examination: Examination, kind_of: Mapping[str, str]) -> Iterator[NotJudged]:
    """Hosts of whose text no check says a word, and what it was read as."""
    parts: tuple[Found | Healthy | NotJudged, ...] = (*examination.found, *examination.healthy, *examination.not_judged)
    if not all(part.hosts for part in parts):
        return  # what is said of no host in particular is said of all
    told = {host for part in parts for host in part.hosts}
    for host in examination.hosts:
        if host not in told and host in kind_of:
            why = f"{kind_of[host]} says nothing here that a check judges"
            yield NotJudged(kind_of[host], (host,), why, "the whole output")


def _together(said: Sequence[tuple[File, str, Said]]) -> Examination:
    """What files say of hosts, each finding with the line of its own file that says it.

    Where the same is said of a host again, each is judged, under the host's one name.
    """
    hosts: dict[str, dict[str, Any]] = {}
    asked: dict[str, dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    called: dict[str, str] = {}
    for file, host, each in said:
        name = _free(host, [name_of(type(fact)) for fact in each.facts], hosts)
        called[name] = host
        for fact in each.facts:
            hosts.setdefault(name, {})[name_of(type(fact))] = json.loads(json.dumps(asdict(fact)))
        for check in each.checks:
            asked[check][name].append(file)
    judged = {}
    for check, files in asked.items():
        kind = checks()[check]
        names = [*files]
        if check in _OF_SEVERAL:  # the first word on each host: programs name one thing differently
            names = [*{called[name]: name for name in reversed(names)}.values()][::-1]
        if len(names) > 1 or check not in _OF_SEVERAL:
            judged[check] = kind().judge_all([Host(name, {"facts": hosts[name]}) for name in names])
    examination = examine([*hosts], judged)
    by_checks = zip(examination.found, _of(examination.found, called), strict=True)
    found = (
        *(_with_line(named, asked[each.name][each.hosts[0]]) for each, named in by_checks),
        *(_with_line(found, [file]) for file, _, each in said for found in each.found),
    )
    named = [*map(called.__getitem__, hosts), *(host for *_, each in said for host in each.hosts)]
    return replace(
        examination,
        hosts=tuple(dict.fromkeys(named)),
        found=tuple(sorted(dict.fromkeys(found), key=lambda each: SEVERITIES.index(each.severity))),
        healthy=(*_of(examination.healthy, called), *(healthy for *_, each in said for healthy in each.healthy)),
        not_judged=(*_of(examination.not_judged, called), *(part for *_, each in said for part in each.not_judged)),
    )


_Part = TypeVar("_Part", Found, Healthy, NotJudged)


def _of(parts: Sequence[_Part], called: Mapping[str, str]) -> list[_Part]:
    """Parts of an examination under the names that hosts have for people."""
    return [replace(part, hosts=tuple(dict.fromkeys(called.get(host, host) for host in part.hosts))) for part in parts]


def _free(host: str, facts: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """A name under which nothing of the same kind is told yet."""
    names = chain([host], (f"{host} ({number})" for number in count(2)))
    return next(name for name in names if not {*facts} & {*hosts.get(name, ())})


def _with_line(found: Found, files: Sequence[File]) -> Found:
    """With the file and the line that say it: one of those it was read from, and of the host's lines there.

    Checks quote the host's file; here a program's output stands for it.
    """
    if any(re.match(rf"{re.escape(file.name)}:\d+: ", found.evidence) for file in files):
        return found
    names = [*found.hosts, *(file.name for file in files)]
    quote = next((found.evidence[len(name) + 2 :] for name in names if found.evidence.startswith(f"{name}: ")), None)
    of_host = quote is None and found.evidence.startswith(("/", "NVML "))
    words = found.evidence if quote is None else quote
    between = ", in the words of " if of_host else ": "
    for file in files:
        own = [line for host in found.hosts for line in file.by_host.get(host, ())]
        for lines in (own,) if own and file.host not in found.hosts else (own, file.lines):
            behind = _behind(found.where, lines)
            number = None if of_host else _line_with(words[:_MOST_QUOTED], behind, lines)
            if number is None and (quote is not None or of_host):
                number = _line_of("" if of_host else words.partition(":")[0], behind or _behind(_first(words), lines))
            if number is not None:
                return replace(found, evidence=f"{file.name}:{number}{between}{words}")
    return replace(found, evidence=f"{found.hosts[0]}{between}{words}") if of_host else found


def _line_with(words: str, *places: Sequence[PlainLine]) -> int | None:
    return next((line.number for line in chain(*places) if words in line.text), None) if words else None


def _behind(where: str, lines: Sequence[PlainLine]) -> Sequence[PlainLine]:
    """The line that names a place and those behind it; none where no line does."""
    address = re.search(r"(?:(?!0000:)[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", where)
    name = re.escape(address[0] if address else where.partition(" port ")[0])
    # JSON writes a tab as two letters, and nvidia-smi four more zeros before a domain.
    named = re.compile(rf"(?:(?<!\w)|(?<=\\t)|(?<!\w)0000){name}(?!\w)", re.IGNORECASE)
    first = next((index for index, line in enumerate(lines) if named.search(line.text)), None) if name else None
    return lines[first : first + _MOST_OF_A_PLACE] if first is not None else ()


def _first(words: str) -> str:
    """Of a list of names, as a check of RDMA devices quotes a folder, the first."""
    names = re.match(r"/\S+: (\w+)(?:, |; )", words)
    return names[1] if names else ""


def _line_of(key: str, behind: Sequence[PlainLine]) -> int | None:
    """The first line that begins with a key, or the one that names the place."""
    first = behind[0].number if behind else None
    return next((line.number for line in behind if key and line.text.strip().startswith(key)), first)


def _of_kernel_logs() -> tuple[str, ...]:
    return tuple(name for name, kind in checks().items() if issubclass(kind, KernelLogCheck))


def _kernel(file: File) -> list[tuple[str, Said]]:
    if not kernel_log.is_kernel_log(file.text):
        return []
    hosts: dict[str, list[kernel_log.Line]] = defaultdict(list)
    for line in kernel_log.read(file.text):
        hosts[line.host].append(line)
    if len(hosts) > 1 and not any(kernel_log.is_kernel_log(line.text) for line in hosts.get("", ())):
        hosts.pop("", None)  # what stands around the lines of hosts
    kernels = _with_kernel_lines(file) if len(hosts) > 1 else {*hosts}
    return [
        _kernel_of(host, file.name, lines) if origin in kernels else (host, _no_kernel_of(host))
        for origin, lines in hosts.items()
        for host in file.named(origin, hosts)
    ]


def _with_kernel_lines(file: File) -> set[str]:
    """Whose lines are the kernel's, at least one: those of sshd alone, in syslog, tell nothing of a GPU's health."""
    whole = file.text.split("\n")
    of_origin: dict[str, list[str]] = defaultdict(list)
    for line in file.lines:
        of_origin[line.origin].append(whole[line.number - 1])
    return {origin for origin, lines in of_origin.items() if kernel_log.is_kernel_log("\n".join(lines))}


def _no_kernel_of(host: str) -> Said:
    why = "none of its lines in the text is the kernel's"
    return Said(not_judged=(NotJudged("a kernel's log", (host,), why, "dmesg -T, journalctl -k"),), hosts=(host,))


_MISMATCH = re.compile(r"NVRM: API mismatch: the client.*? has the version (\d[\d.]*\d).*")


def _kernel_of(host: str, source: str, lines: list[kernel_log.Line]) -> tuple[str, Said]:
    mismatches = [match for line in lines if (match := _MISMATCH.search(line.text))]
    facts = KernelLog.of(lines, source)
    if not mismatches:
        return host, Said((facts,), _of_kernel_logs())
    first = mismatches[0]
    what = f"programs have NVIDIA's libraries {first[1]}, and the kernel's module is of another version: no GPU answers"
    fix = "reboot, or load the module of the libraries' version; in a container: those of the host's driver"
    confirm = "cat /proc/driver/nvidia/version; nvidia-smi"
    found = Found("driver_mismatch", "error", (host,), "", what, f"{source}: {first[0]}", confirm, fix)
    return host, Said((facts,), _of_kernel_logs(), (found,))


def _nccl(file: File) -> list[tuple[str, Said]]:
    """Its lines name their host themselves, and it takes those of all ranks to tell who is joined with whom."""
    text = file.text_of(file.lines)
    if "NCCL INFO" not in text and "NCCL WARN" not in text:
        return []
    said = nccl_log.judge(text if text.endswith("\n") else f"{text}\n", file.name)
    hosts = said.hosts or (file.host,)
    found = tuple(replace(each, hosts=each.hosts or hosts) for each in said.found)
    unknown = (*said.not_judged, *_left_out(file.text, hosts))
    return [(file.host, Said(found=found, healthy=said.healthy, not_judged=unknown, hosts=hosts))]


def _left_out(text: str, hosts: tuple[str, ...]) -> Iterator[NotJudged]:
    if number := num_left_out(text):
        why = f"Ray left out {plural(number, 'line')} that other workers wrote, as like others"
        yield NotJudged("ways", hosts, why, "a log of a job with RAY_DEDUP_LOGS=0")


def _fabric(text: str, name: str) -> Said:
    log = fabric_manager_log.parse(text)
    return Said(found=tuple(_fabric_found(log, name)), healthy=tuple(_fabric_healthy(log, name)), hosts=(name,))


def _fabric_found(log: fabric_manager_log.FabricManagerLog, name: str) -> Iterator[Found]:
    for error in log.errors:
        meaning = None if error.sxid is None else sxid(error.sxid, error.is_fatal)
        often = f"{error.count:,} times" if error.count > 1 else "once"
        if error.last:
            often += f", last {error.last}" if error.count > 1 else f", {error.last}"
        what = f"the fabric manager reports an error, {often}"
        if error.is_stopped:
            what = "the fabric manager did not start, or stopped: right on a host without NVSwitches only"
        if meaning is not None:
            what = f"reported SXid {error.sxid} ({meaning.name}), {often}"
        yield Found(
            "fabric_manager_log",
            meaning.severity if meaning else "warning",
            (name,),
            error.where,
            what,
            f"{name}: {error.text}",
            "grep ERROR /var/log/fabricmanager.log; nvidia-smi -q | grep -A3 Fabric",
            meaning.action if meaning else "restart the fabric manager; see the lines around it",
        )


def _fabric_healthy(log: fabric_manager_log.FabricManagerLog, name: str) -> Iterator[Healthy]:
    if not log.errors:
        since = f", {log.begins} to {log.ends}" if log.begins else ""
        what = f"no error in {plural(log.num_lines, 'line')} of the fabric manager's log{since}"
        yield Healthy("fabric_manager_log", (name,), what)


_OF_LINKS = ("port_state", "port_rate", "subnet_manager")
_OF_SEVERAL = ("firmware", "link_layer", "rdma_device_count")
"""They hold files of hosts against each other."""
_OF_PORTS = (*_OF_LINKS, *_OF_SEVERAL)
_OF_VERBS = ("port_state", *_OF_SEVERAL)
_STATES = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT", "Armed": "3: ARMED"}
_PHYSICAL = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled", "Sleep": "1: Sleep"}


def _port(device: str, number: int, state: str, physical: str | None, rate: str | None, layer: str | None) -> Port:
    """A port of which a program said so much; the rest is not known."""
    return Port(
        device=device,
        number=number,
        state=state,
        physical_state=physical,
        rate=rate,
        link_layer=layer,
        lid=None,
        subnet_manager_lid=None,
        active_mtu_bytes=None,
        gids=(),
        counters={},
        hw_counters={},
    )


def _device(name: str, firmware: str | None, model: str | None, board: str | None) -> Device:
    return Device(
        name=name,
        address=None,
        node_type="1: CA",
        firmware=firmware,
        hca_type=model,
        board=board,
        numa_node=None,
        driver=None,
        interfaces=(),
    )


def _ibstat(text: str, name: str) -> Said:
    listed = ibstat.parse(text)
    devices = tuple(_device(each.name, each.firmware, each.model, None) for each in listed.devices)
    ports = tuple(
        replace(
            _port(
                device.name,
                port.number,
                _STATES.get(port.state, f"0: {port.state}"),
                _PHYSICAL.get(port.physical_state, f"0: {port.physical_state}"),
                None if port.rate_gb is None else f"{port.rate_gb:g} Gb/sec",
                port.link_layer,
            ),
            lid=port.lid,
            subnet_manager_lid=port.subnet_manager_lid,
        )
        for device in listed.devices
        for port in device.ports
    )
    found: tuple[Found, ...] = ()
    if listed.failure:
        behind = f"behind {listed.devices[-1].name}" if devices else "at the first device"
        what = f"ibstat failed {behind}: a device is there that cannot be read"
        confirm, fix = "ls /sys/class/infiniband; dmesg -T | grep mlx5", "reload the driver; reset or replace the card"
        found = (Found("rdma_device_failed", "error", (name,), "", what, f"{name}: {listed.failure}", confirm, fix),)
    if not devices:
        return Said(found=found, hosts=(name,))
    facts = Infiniband(devices=devices, ports=ports)
    not_judged = tuple(_odd_layers(facts, name))
    if not listed.cut:
        return Said((facts,), _OF_PORTS, found, not_judged=not_judged)
    unknown = NotJudged("ibstat", (name,), f"the text ends within {listed.cut}", "the whole output")
    checks_of_all = tuple(check for check in _OF_PORTS if check != "rdma_device_count")
    return Said((facts,), checks_of_all, found, not_judged=(*not_judged, unknown))


_NUMBERS_OF_GPUS = (4, 8, 16)


def _odd_layers(facts: Infiniband, name: str) -> Iterator[NotJudged]:
    """Of one model the few active ports whose link layer is not that of the others, where all are as many as GPUs.

    Seven of eight cards on InfiniBand may be eight of which one is set wrong. Eight of nine have one for storage.
    """
    model = {device.name: device.hca_type for device in facts.devices}
    for hca_type in dict.fromkeys(model.values()):
        ports = [port for port in facts.ports if model[port.device] == hca_type and port.is_active]
        layers = Counter(port.link_layer for port in ports)
        usual, many = layers.most_common(1)[0] if ports else (None, 0)
        odd = [port for port in ports if port.link_layer != usual]
        if odd and len(ports) in _NUMBERS_OF_GPUS and many > len(ports) / 2 and many not in _NUMBERS_OF_GPUS:
            what = f"{few([port.name for port in odd])}: {odd[0].link_layer}"
            why = f"{what}, and the {many} others of its model are {usual}: set wrong, or meant for storage"
            yield NotJudged(
                "link_layer", (name,), why, "clusterbench doctor --quick on the host, which knows its boards"
            )


def _ibstatus(text: str, name: str) -> Said:
    listed = ibstatus.parse(text)
    # A device without a model is taken for one of software; ibstatus names none.
    devices = tuple(_device(device, None, "", None) for device in dict.fromkeys(port.device for port in listed))
    ports = tuple(
        replace(
            _port(port.device, port.number, port.state, port.physical_state, port.rate, port.link_layer),
            lid=port.lid,
            subnet_manager_lid=port.subnet_manager_lid,
        )
        for port in listed
    )
    return Said((Infiniband(devices=devices, ports=ports),), _OF_LINKS)


def _devinfo(text: str, name: str) -> Said:
    """Without ``-v`` it says nothing of the link, so that an active port is taken for one whose link is up."""
    listed = ibv_devinfo.parse(text)
    devices = tuple(_device(each.name, each.firmware, each.model, each.board) for each in listed)
    ports = tuple(
        replace(
            _port(
                device.name,
                port.number,
                f"0: {port.state.split()[0].removeprefix('PORT_')}",
                _link(port),
                None if port.rate_gb is None else f"{port.rate_gb:g} Gb/sec",
                port.link_layer,
            ),
            lid=port.lid,
            subnet_manager_lid=port.subnet_manager_lid,
            active_mtu_bytes=port.active_mtu_bytes,
        )
        for device in listed
        for port in device.ports
    )
    tells_rates = bool(ports) and all(port.rate is not None for port in ports)
    facts, asked = Infiniband(devices=devices, ports=ports), _OF_PORTS if tells_rates else _OF_VERBS
    return Said((facts,), asked, not_judged=tuple(_odd_layers(facts, name)))


def _link(port: ibv_devinfo.DevinfoPort) -> str:
    if port.physical_state is None:
        return "5: LinkUp" if "ACTIVE" in port.state else "0: state is not said"
    return "5: LinkUp" if port.physical_state.startswith("LINK_UP") else f"0: {port.physical_state}"


_OF_GPUS = (
    *("row_remapping", "sram_ecc", "power_limit", "pcie_width", "pcie_generation", "persistence_mode", "mig_mode"),
    *("compute_mode", "ecc_mode", "vbios"),
)


def _smi_query(text: str, name: str) -> Said:
    query = nvidia_smi_q.parse(text)
    gpus = tuple(_gpu(number, gpu) for number, gpu in enumerate(query.gpus))
    facts: tuple[Facts, ...] = (Gpus(gpus=gpus, driver_version=query.driver_version, on_bus=()),) if gpus else ()
    virtual = {gpu.is_virtual for gpu in query.gpus}
    if gpus and None not in virtual:
        machine = "a hypervisor" if True in virtual else "none"
        facts = (*facts, Virtualization(machine=machine, container=None, maker=None, product=None))
    places = {gpu.address: f"GPU {number} ({gpu.address})" for number, gpu in enumerate(query.gpus)}
    found = (*_smi_lost(query, name), *_smi_found(query, name), *_inforoms(text, name, places))
    unknown: tuple[NotJudged, ...] = ()
    if query.is_cut:
        why = f"the text ends within the part of {gpus[-1].place}"
        unknown = (NotJudged("nvidia_smi_query", (name,), why, "the whole output"),)
    return Said(facts, _OF_GPUS if gpus else (), found, not_judged=unknown, hosts=(name,))


def _smi_lost(query: nvidia_smi_q.SmiQuery, name: str) -> Iterator[Found]:
    """GPUs that are not in the list, or are in it and say nothing."""
    fix = "Xids in the kernel's log say why; nvidia-smi --gpu-reset or reboot; if it stays away, reseat or replace it"
    for address, line in query.lost:
        yield _smi("gpu_lost", "error", name, f"GPU {address}", "does not answer the driver", line, fix)
    for number, gpu in enumerate(query.gpus):
        if gpu.num_unknown >= _MANY_UNKNOWN:
            place = f"GPU {number} ({gpu.address})"
            what = f"answers {gpu.num_unknown} of its values with an error"
            yield _smi("gpu_lost", "error", name, place, what, "Unknown Error", fix)
    listed, attached = len(query.gpus), query.num_attached or 0
    if not (query.lost or query.is_cut) and attached / 2 < listed < attached:
        what = f"{listed} of {attached} attached GPUs are listed: the others do not answer, or the text was cut"
        yield _smi("gpu_lost", "error", name, "", what, "Attached GPUs", fix)


def _gpu(number: int, gpu: nvidia_smi_q.SmiGpu) -> Gpu:
    """A GPU as NVML would say it; what ``nvidia-smi`` answers with N/A the board does not have."""
    lacks = {
        (REMAPPED,): gpu.remap_failed is None or gpu.remap_pending is None or gpu.remapped_uncorrectable is None,
        (SRAM, SRAM_OLD): gpu.sram_uncorrectable is None,
        (POWER_LIMIT, DEFAULT_POWER_LIMIT): gpu.power_limit_w is None or gpu.default_power_limit_w is None,
        (WIDTH, MOST_WIDTH): gpu.pcie_width is None or gpu.most_pcie_width is None,
        (PERSISTENCE,): gpu.persistence is None,
        (MIG,): gpu.mig is None,
        (VBIOS,): gpu.vbios is None,
        (COMPUTE_MODE,): gpu.compute_mode is None,
        (ECC,): gpu.ecc is None,
        (GENERATION, MOST_GENERATION, GPU_GENERATION): None
        in (gpu.pcie_generation, gpu.most_pcie_generation, gpu.gpu_pcie_generation),
    }
    return Gpu(
        index=number,
        lacks=tuple(function for functions, absent in lacks.items() if absent for function in functions),
        name=gpu.name,
        uuid=gpu.uuid,
        address=gpu.address,
        pcie_generation=gpu.pcie_generation,
        most_pcie_generation=gpu.most_pcie_generation,
        gpu_pcie_generation=gpu.gpu_pcie_generation,
        pcie_width=gpu.pcie_width,
        most_pcie_width=gpu.most_pcie_width,
        ecc=gpu.ecc,
        persistence=gpu.persistence,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
        vbios=gpu.vbios,
        power_limit_w=gpu.power_limit_w,
        default_power_limit_w=gpu.default_power_limit_w,
        sram_uncorrectable=gpu.sram_uncorrectable,
        sram_threshold_exceeded=gpu.sram_threshold_exceeded,
        remapped_correctable=gpu.remapped_correctable,
        remapped_uncorrectable=gpu.remapped_uncorrectable,
        remap_pending=gpu.remap_pending,
        remap_failed=gpu.remap_failed,
    )


_MOST_PAGES = 64
"""NVIDIA, GPU memory error management, "Row Remapping", which compares it with page retirement."""
_MANY_PAGES = 60


def _smi_found(query: nvidia_smi_q.SmiQuery, name: str) -> Iterator[Found]:
    """What the doctor measures on hosts, or asks elsewhere: reasons of low clocks, the fabric, a reset that is due."""
    for number, gpu in enumerate(query.gpus):
        place = f"GPU {number} ({gpu.address})"
        if gpu.slowdowns:
            said = ", ".join(gpu.slowdowns)
            what = f"its clocks are lowered: {said}"
            fix = "look at power supplies, fans, air flow and inlet temperature of the host"
            yield _smi("gpu_slowdown", "warning", name, place, what, f"{said}: Active", fix)
        if (gpu.fabric_state or "completed") != "completed" or (gpu.fabric_status or "Success") != "Success":
            answers = {"State": gpu.fabric_state, "Status": gpu.fabric_status}
            known = {name: answer for name, answer in answers.items() if answer}
            said = f"Fabric {'; '.join(f'{name}: {answer}' for name, answer in known.items())}"
            what = f"NVLink's fabric has not taken it in: {', '.join(known.values())}"
            fix = "restart the fabric manager, then its log; is its version the driver's?"
            yield _smi("fabric_state", "error", name, place, what, said, fix)
        elif gpu.fabric_ills:
            said = ", ".join(gpu.fabric_ills)
            fix = "the fabric manager's log (NMX-C on GB200) and the switches' ports; reset the GPU, then its tray"
            yield _smi("fabric_state", "error", name, place, f"NVLink's fabric is ill: {said}", gpu.fabric_ills[0], fix)
        if gpu.dram_uncorrectable:
            what = (
                f"{plural(gpu.dram_uncorrectable, 'memory error')} could not be corrected since the driver was loaded"
            )
            fix = "reset the GPU, so that the rows are replaced; if rows are used up, RMA"
            said = f"{'DRAM Uncorrectable' if gpu.double_bit is None else 'Double Bit'}: {gpu.dram_uncorrectable}"
            yield _smi("dram_ecc", "warning", name, place, what, said, fix)
        if (others := (gpu.double_bit or 0) - (gpu.dram_uncorrectable or 0)) > 0:
            errors = plural(others, "error of caches or registers", "errors of caches or registers")
            what = f"{errors} could not be corrected since the driver was loaded"
            fix = "reset the GPU; if they come back, RMA"
            yield _smi("uncorrectable_ecc", "warning", name, place, what, f"Double Bit: {gpu.double_bit}", fix)
        if gpu.pages_pending:
            fix = "reboot, or reset the GPU; if more pages follow, RMA"
            said, what = "Pending Page Blacklist: Yes", "pages of its memory wait to be retired"
            yield _smi("page_retirement", "error", name, place, what, said, fix)
        elif (gpu.pages_retired or 0) >= _MANY_PAGES:
            what = f"{gpu.pages_retired} pages of its memory are retired, and at most {_MOST_PAGES} can be"
            fix = "the vendor's field diagnostics; RMA"
            yield _smi("page_retirement", "warning", name, place, what, f"Retired Pages: {gpu.pages_retired}", fix)
        if could := _slower_root_port(gpu, query):
            has = gpu.host_pcie_generation
            what = f"the root port above it allows PCIe generation {has}, those of other GPUs {could}"
            fix = "look at the slot's speed in the BIOS; at riser and cable between the CPU and the switch"
            yield _smi("pcie_generation", "error", name, place, what, f"Host Max: {has}", fix)
        if (gpu.recovery_action or "None") != "None":
            said, what = f"GPU Recovery Action: {gpu.recovery_action}", f"asks for recovery: {gpu.recovery_action}"
        elif gpu.reset_required:
            said, what = "Reset Required: Yes", "asks for a reset"
        elif gpu.repairs:
            said = f"{gpu.repairs[0]} Repair Pending: Yes"
            parts = " and ".join(gpu.repairs).replace("Channel", "memory channel")
            what = f"waits for a reset to repair its {parts}"
        else:
            continue
        fix = "end its programs, then nvidia-smi --gpu-reset, or reboot; look for Xids in the kernel's log"
        yield _smi("gpu_reset_due", "error", name, place, f"the driver {what}", said, fix)


def _slower_root_port(gpu: nvidia_smi_q.SmiGpu, query: nvidia_smi_q.SmiQuery) -> int:
    """What root ports above other GPUs of its kind allow, where its own allows less than they and it could; else 0.

    Where all are alike the host may be built so, with switches of a newer generation than its CPU.
    """
    others = [other.host_pcie_generation or 0 for other in query.gpus if other.name == gpu.name]
    could = min(max(others), gpu.gpu_pcie_generation or 0)
    is_slower = gpu.host_pcie_generation is not None and gpu.host_pcie_generation < could
    return could if is_slower and not gpu.is_virtual else 0


def _smi(check: str, severity: Severity, host: str, where: str, what: str, said: str, fix: str) -> Found:
    return Found(check, severity, (host,), where, what, f"{host}: {said}", "nvidia-smi -q", fix)


_OF_TABLES = ("persistence_mode", "compute_mode", "mig_mode", "ecc_mode")
_MANY_UNANSWERED = 3
"""Columns of the table; a fan alone may not answer."""
_RELOAD = "reboot, or load the module of the libraries' version; see NVRM in the kernel's log"
_NO_TABLE = {
    "mismatch": (
        "driver_mismatch",
        "programs have NVIDIA's libraries of another version than the kernel's module",
        _RELOAD,
    ),
    "no driver": ("driver_not_loaded", "the kernel's module of NVIDIA's driver does not answer", _RELOAD),
    "no device": ("gpu_lost", "the driver shows no GPU", _RELOAD),
    "no permission": (
        "gpu_lost",
        "no GPU can be opened: often a container that lost its devices when systemd was reloaded on the host",
        "start the container again; if nvidia-smi on the host says it too, see NVRM in the kernel's log",
    ),
}


def _smi_table(text: str, name: str) -> Said:
    if (failure := nvidia_smi_table.failure(text)) is not None:
        kind, line = failure
        check, what, fix = _NO_TABLE[kind]
        return Said(found=(_smi(check, "error", name, "", what, line, fix),), hosts=(name,))
    if number := nvidia_smi_table.listed(text):
        why = f"a list of {plural(number, 'GPU')} says nothing of their health, nor how many there should be"
        return Said(not_judged=(NotJudged("gpu_count", (name,), why, "nvidia-smi -q"),), hosts=(name,))
    gpus = nvidia_smi_table.parse(text)
    if not gpus:
        why = "the text ends before the first GPU"
        return Said(not_judged=(NotJudged("nvidia_smi_table", (name,), why, "the whole table"),), hosts=(name,))
    facts = Gpus(gpus=tuple(map(_gpu_of_table, gpus)), driver_version=None, on_bus=())
    places = {gpu.address: f"GPU {gpu.number} ({gpu.address})" for gpu in gpus}
    found = (*_table_found(gpus, name), *_inforoms(text, name, places))
    return Said((facts,), _OF_TABLES, found, hosts=(name,))


def _inforoms(text: str, name: str, places: Mapping[str, str]) -> Iterator[Found]:
    """GPUs whose records of themselves, of retired pages and remapped rows among them, are damaged."""
    for address, line in nvidia_smi_table.corrupt_inforoms(text).items():
        what, fix = "its infoROM is corrupted", "reset the GPU or reboot; if it stays so, the vendor's diagnostics; RMA"
        yield _smi("gpu_inforom", "error", name, places.get(address, f"GPU {address}"), what, line, fix)


def _gpu_of_table(gpu: nvidia_smi_table.TableGpu) -> Gpu:
    absent = {PERSISTENCE: gpu.persistence, COMPUTE_MODE: gpu.compute_mode, MIG: gpu.mig, ECC: gpu.ecc}
    return Gpu(
        index=gpu.number,
        lacks=tuple(function for function, said in absent.items() if said is None),
        name=gpu.name,
        address=gpu.address,
        persistence=gpu.persistence,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
        ecc=gpu.ecc,
    )


def _table_found(gpus: Sequence[nvidia_smi_table.TableGpu], name: str) -> Iterator[Found]:
    for gpu in gpus:
        place = f"GPU {gpu.number} ({gpu.address})"
        if gpu.unanswered:
            what = f"answers ERR! for {few(gpu.unanswered)}"
            is_lost = len(gpu.unanswered) >= _MANY_UNANSWERED
            severity: Severity = "error" if is_lost else "warning"
            fix = "Xids in the kernel's log say why; nvidia-smi --gpu-reset or reboot; if it stays so, replace it"
            yield _smi("gpu_lost" if is_lost else "gpu_sensor", severity, name, place, what, "ERR!", fix)
        if gpu.uncorrectable:
            said = f"Volatile Uncorr. ECC: {gpu.uncorrectable}"
            what = f"{plural(gpu.uncorrectable, 'ECC error')} could not be corrected since the driver was loaded"
            fix = "nvidia-smi -q -d ECC,ROW_REMAPPER says of which memory; reset the GPU; if they come back, RMA"
            yield _smi("uncorrectable_ecc", "warning", name, place, what, said, fix)


_MANY_UNKNOWN = 5
"""Single values that a driver cannot say are common."""
_SLOWED = 0.9
"""Copies that are slower with peer access than this share of those without: something on the way works against it."""


def _p2p(text: str, name: str) -> Said:
    said = p2p_bandwidth.parse(text)
    pairs = weak_pairs(said.one_way)
    found = (*_p2p_weak(said, pairs, name, text), *_p2p_slowed(said, pairs, name, text))
    unknown = (NotJudged("weak_pair", (name,), pairs.unclear, "nvidia-smi topo -m"),) if pairs.unclear else ()
    number = len(said.names) * (len(said.names) - 1)
    what = f"{plural(number, 'pair')} of GPUs at rates alike for every GPU"
    what += ", none slowed by peer access" if said.one_way_off else ""
    healthy = () if found or unknown or not number else (Healthy("weak_pair", (name,), what),)
    return Said(found=found, healthy=healthy, not_judged=unknown, hosts=(name,))


_P2P_CONFIRM = "nvidia-smi topo -m; nvidia-smi topo -p2p r"
_P2P_FIX = "NVLink's state; ACS and IOMMU off for bare metal"


def _p2p_figures(said: p2p_bandwidth.P2pBandwidth, pair: tuple[int, int], name: str, text: str) -> str:
    without = f", without {said.one_way_off[pair] / 1e9:.1f} GB/s" if said.one_way_off else ""
    figures = f"with peer access {said.one_way[pair] / 1e9:.1f} GB/s{without}"
    return quoted(name, text, p2p_bandwidth.row_of(text, pair[0]), figures)


def _p2p_weak(said: p2p_bandwidth.P2pBandwidth, weak: WeakPairs, name: str, text: str) -> Iterator[Found]:
    worst = sorted(weak.pairs, key=lambda pair: said.one_way[pair])
    for pair in worst[:1] if weak.gpu is not None else weak.pairs:
        place = f"GPU {pair[0]} -> GPU {pair[1]}" if weak.gpu is None else f"GPU {weak.gpu} and all others"
        what = f"copies {said.one_way[pair] / 1e9:.1f} GB/s, the median pair {weak.usual / 1e9:.1f} GB/s"
        figures = _p2p_figures(said, pair, name, text)
        yield Found("weak_pair", "error", (name,), place, what, figures, _P2P_CONFIRM, _P2P_FIX)


def _p2p_slowed(said: p2p_bandwidth.P2pBandwidth, weak: WeakPairs, name: str, text: str) -> Iterator[Found]:
    for pair, rate in said.one_way.items():
        off = said.one_way_off.get(pair, 0.0)
        if pair[0] != pair[1] and pair not in weak.pairs and said.peers.get(pair) and rate < _SLOWED * off:
            place, figures = f"GPU {pair[0]} -> GPU {pair[1]}", _p2p_figures(said, pair, name, text)
            what = f"copies {rate / 1e9:.1f} GB/s with peer access and {off / 1e9:.1f} GB/s without"
            yield Found("slowed_by_peer_access", "error", (name,), place, what, figures, _P2P_CONFIRM, _P2P_FIX)


_LINK_RATE, _BLACKWELL_LINK_RATE = 25e9, 50e9
"""Of one NVLink in one direction, by the data sheets of products since V100 and since B200 (18 links, 900 GB/s)."""
_SLOW_LINK = 0.9


def _nvlinks(text: str, name: str) -> Said:
    gpus = nvidia_nvlink.parse(text)
    found = tuple(_nvlinks_found(gpus, name))
    if cut := next((gpu for gpu in gpus if gpu.is_cut or (gpu is gpus[-1] and _is_cut(gpu))), None):
        ends = "lines are left out behind" if cut.is_cut else "the text ends at"
        where = f"{ends} link {max(cut.bytes_per_s, default='...')} of GPU {cut.gpu}"
        unknown = NotJudged("nvlink_inactive", (name,), where, "the whole output")
        return Said(found=found, not_judged=(unknown,), hosts=(name,))
    if found:
        return Said(found=found, hosts=(name,))
    if any(gpu.name not in LINKS and (gpu.inactive or not gpu.num_active) for gpu in gpus):
        why = NotJudged("nvlink_inactive", (name,), "links are inactive on a board that may be so", "the board's model")
        return Said(not_judged=(why,), hosts=(name,))
    what = f"{plural(len(gpus), 'GPU')} with {gpus[0].num_active} NVLinks active"
    return Said(healthy=(Healthy("nvlink_inactive", (name,), what),), hosts=(name,))


def _is_cut(last: nvidia_nvlink.GpuLinks) -> bool:
    """Whether the last GPU lists fewer links than it has, and none as inactive."""
    return 0 < len(last.bytes_per_s) < LINKS.get(last.name, 0) and not last.inactive


def _nvlinks_found(gpus: Sequence[nvidia_nvlink.GpuLinks], name: str) -> Iterator[Found]:
    """Links that are missing or slow by what the product has, else by what the others of its kind have."""
    confirm = "nvidia-smi nvlink -s; nvidia-smi topo -m"
    fix = "reset the GPU; restart the fabric manager; look for Xid 74 in the kernel's log"
    for gpu in gpus:
        alike = [other for other in gpus if other.name == gpu.name]
        most = LINKS.get(gpu.name, max(other.num_active for other in alike))
        if gpu.is_cut:
            is_missing = bool(gpu.inactive)
            what = f"has inactive NVLinks: {', '.join(map(str, gpu.inactive))}"
        else:
            is_whole = not (gpu is gpus[-1] and _is_cut(gpu))
            is_missing = (gpu.num_active < most and is_whole) or (most == 0 and "SXM" in gpu.name)
            what = f"has {gpu.num_active} of {most or 'its'} NVLinks active"
        if is_missing:
            unlisted = sorted({*range(most)} - {*gpu.bytes_per_s, *gpu.inactive}) if gpu.num_active else []
            parts = {"inactive": gpu.inactive, "not listed": unlisted}
            links = "; ".join(f"{word}: {', '.join(map(str, of))}" for word, of in parts.items() if of)
            said = f"{name}: {gpu.name}, {links or 'inactive: all'}"
            yield Found("nvlink_inactive", "error", (name,), f"GPU {gpu.gpu}", what, said, confirm, fix)
        usual = _usual_rate(gpu.name, [rate for other in alike for rate in other.bytes_per_s.values() if rate])
        slow = {link: rate for link, rate in gpu.bytes_per_s.items() if 0 < rate < _SLOW_LINK * usual}
        if slow:
            rates = ", ".join(f"{rate / 1e9:g}" for rate in dict.fromkeys(slow.values()))
            what = (
                f"{plural(len(slow), 'NVLink')} ({few([*slow])}) at {rates} GB/s, and should be at {usual / 1e9:g} GB/s"
            )
            said = f"{name}: Link {next(iter(slow))}: {next(iter(slow.values())) / 1e9:g} GB/s"
            yield Found("nvlink_slow", "error", (name,), f"GPU {gpu.gpu}", what, said, confirm, fix)


def _usual_rate(product: str, rates: Sequence[float]) -> float:
    """What a link of a product carries at least, and where its data sheet is not on record what most links do."""
    if product in LINKS:
        return _BLACKWELL_LINK_RATE if re.search(r"G?B[23]00", product) else _LINK_RATE
    return median(rates) if rates else 0.0


_REDIRECTS = {"SrcValid", "ReqRedir", "CmpltRedir"}


def _lspci(text: str, name: str) -> Said:
    devices = lspci.parse(text)
    ends = [device for device in devices if device.is_gpu or device.is_rdma]
    bridges = [device for device in devices if any(device.is_above(end) for end in ends)]
    found, healthy, unknown = [], [], []
    for bridge in bridges:
        if on := sorted(_REDIRECTS & {*(bridge.acs or ())}):
            what = (
                "sends traffic between devices up to the CPU: access control services (ACS) are on; right in a VM only"
            )
            said = f"{name}: ACSCtl: {' '.join(f'{each}+' for each in on)}"
            confirm, fix = "lspci -vvv | grep ACSCtl", "turn ACS off in the BIOS, or with setpci after every boot"
            found.append(Found("acs", "warning", (name,), f"bridge {bridge.address}", what, said, confirm, fix))
    for device in devices:
        if "(rev ff)" in device.name:
            what = "answers nothing but ones (revision ff): it fell off the bus"
            said = f"{name}: {device.address} {device.kind}: {device.name}"
            fix = "Xids in the kernel's log say when; power the host off and on; if it comes back, replace the card"
            check = "gpu_lost" if device.is_gpu else "device_lost"
            found.append(Found(check, "error", (name,), device.address, what, said, "lspci -vv; nvidia-smi", fix))
    for end in ends:
        if end.is_narrow:
            could = "could have more lanes" if end.most_width is None else f"could be x{end.most_width}"
            what, said = f"its PCIe link is x{end.width}, and {could}", f"{name}: LnkSta: Width x{end.width}"
            fix = "reseat the card; look at riser, cable and the slot's bifurcation"
            found.append(Found("pcie_width", "error", (name,), end.address, what, said, "lspci -vv | grep LnkSta", fix))
    if any(bridge.acs is not None for bridge in bridges):
        if not any(each.name == "acs" for each in found):
            what = f"{plural(len(bridges), 'bridge')} above GPUs and network cards redirect nothing (ACS off)"
            healthy.append(Healthy("acs", (name,), what))
    else:
        why = "no bridge above GPUs and network cards shows ACSCtl"
        unknown.append(NotJudged("acs", (name,), why, "lspci -vvv as root, of the whole host"))
    if ends and all(end.is_narrow is False for end in ends):
        healthy.append(
            Healthy("pcie_width", (name,), f"{plural(len(ends), 'GPU or card', 'GPUs and cards')} at full width")
        )
    speeds = _card_speeds(devices, name)
    return Said(
        found=(*found, *speeds.found),
        healthy=(*healthy, *speeds.healthy),
        not_judged=(*unknown, *speeds.not_judged),
        hosts=(name,),
    )


def _card_speeds(devices: Sequence[lspci.PciDevice], name: str) -> Said:
    """Network cards keep their PCIe link's speed while idle, as GPUs do not; a slot may be slower than the card."""
    found, unknown, well = [], [], 0
    for card in devices:
        speed, most = card.gigatransfers_per_s, card.most_gigatransfers_per_s
        if not card.is_rdma or speed is None or most is None:
            continue
        slot = next((each.most_gigatransfers_per_s for each in devices if each.is_slot_of(card)), None)
        could = min(most, slot or most)
        if speed >= could:
            well += 1
        elif slot is None:
            why = f"{card.address} runs at {speed:g} GT/s of its {most:g} GT/s, and its slot is not in the text"
            unknown.append(NotJudged("nic_pcie", (name,), why, "lspci -vvv of the whole host"))
        else:
            what = f"its PCIe link runs at {speed:g} GT/s, and card and slot could at {could:g} GT/s"
            said, confirm = f"{name}: LnkSta: Speed {speed:g}GT/s", "lspci -vv | grep LnkSta"
            fix = "reseat the card, its riser or cable; set the slot's speed in the BIOS"
            found.append(Found("nic_pcie", "error", (name,), card.address, what, said, confirm, fix))
    cards = plural(well, "network card")
    healthy = (Healthy("nic_pcie", (name,), f"{cards} at the PCIe speed of card and slot"),) if well else ()
    return Said(found=tuple(found), healthy=healthy, not_judged=tuple(unknown))


READERS = (
    Reader("a kernel's log", _kernel),
    Reader("NCCL's log", _nccl),
    Reader("PyTorch's log", torch_log.read),
    apart("the fabric manager's log", fabric_manager_log.is_fabric_manager_log, _fabric),
    apart("ibstat", ibstat.is_ibstat, _ibstat),
    apart("ibstatus", lambda text: "Infiniband device '" in text and "phys state" in text, _ibstatus),
    apart("nvidia-smi -q", nvidia_smi_q.is_query, _smi_query),
    apart("nvidia-smi", lambda text: nvidia_smi_table.is_table(text) or nvidia_smi_table.listed(text) > 0, _smi_table),
    apart("lspci -vvv", lspci.is_lspci, _lspci),
    apart("p2pBandwidthLatencyTest", p2p_bandwidth.is_p2p_bandwidth, _p2p),
    apart("nvidia-smi nvlink -s", nvidia_nvlink.is_status, _nvlinks),
    apart("ibv_devinfo", ibv_devinfo.is_devinfo, _devinfo),
    *(apart(reader.kind, reader.holds, reader.read) for reader in readers()),
)
"""What can be read, in the order in which a file is tried; one may hold several."""
