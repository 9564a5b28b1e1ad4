"""What NCCL's own log says is wrong, without anything else known of the machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import quoted
from clusterbench.tools.nccl_log import Edge, NcclLog, Warned, messages, parse
from clusterbench.tools.nccl_ways import (
    CHOSEN,
    by_socket,
    forbidden,
    network_receives,
    through_memory,
    through_network,
    without_gdr,
)
from clusterbench.types import Severity
from clusterbench.words import few, plural

_NOT_FOR_TRAINING = ("docker", "lo", "veth", "virbr", "cni", "flannel", "podman")
_SHOW = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV,NET,P2P"


@dataclass(frozen=True)
class Rule:
    """A message that tells of a fault: its number in the list of checks, and what it means; ``{}`` are its groups."""

    number: int
    name: str
    severity: Severity
    pattern: str
    what: str
    fix: str


RULES = (
    Rule(
        37,
        "p2p_disabled",
        "error",
        r"P2P is disabled between NVLINK connected GPUs (\d+) and (\d+)",
        "GPUs {} and {} are joined by NVLink and may not use it",
        "restart the fabric manager; nvidia-smi topo -p2p r; take NCCL_P2P_DISABLE out",
    ),
    Rule(
        46,
        "roce_address",
        "error",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(Invalid argument|No such device|Network is unreachable)",
        "a connection could not be set up: {} (a GID of the wrong kind or of another network)",
        "show_gids; NCCL_IB_GID_INDEX of a routable RoCE v2 address, or none with NCCL 2.21 and later",
    ),
    Rule(
        46,
        "transfer_given_up",
        "error",
        r"[Gg]ot completion .*(?:error 12|IBV_WC_RETRY_EXC_ERR|status=12)",
        "a transfer was sent again and again and then given up (completion error 12)",
        "the path between the two cards: switch, cable, PFC; a wrong GID; where only cards of different rails fail:"
        " NCCL_CROSS_NIC=0",
    ),
    Rule(
        46,
        "transfer_failed",
        "error",
        r"[Gg]ot completion .*(?:with error (?!12\b)\d+|status=(?!12\b|IBV_WC_RETRY_EXC_ERR)\w+)",
        "a transfer failed",
        "the error's number stands in the line: ibv_wc_status_str; look at the host that it names",
    ),
    Rule(
        46,
        "transfer_failed",
        "error",
        r"NET/IB : (?:\S+ )?(?:[Gg]ot )?async (?:fatal )?event.*: ([\w ]*work queue [\w ]*error)",
        "a card stopped a connection: {}",
        "dmesg and the first warning of the job; nvidia_peermem or DMA-BUF of this driver; versions alike on all hosts",
    ),
    Rule(
        46,
        "connection_timed_out",
        "error",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?Connection timed out",
        "a connection could not be set up in time",
        "is the other card's port ACTIVE? a GID and a path between the two: show_gids, ibv_rc_pingpong",
    ),
    Rule(
        41,
        "port_error",
        "error",
        r"NET/IB : (\S+) (?:[Gg]ot )?(?:non-fatal )?async (?:fatal )?event *:? *"
        r"(?:port error|device fatal|local catastrophic error)",
        "port or card {} failed during the job",
        "ibstat; the kernel's log for mlx5; cable, transceiver and the switch's port",
    ),
    Rule(
        41,
        "port_error",
        "error",
        r"NET/IB : [Gg]ot async (?:fatal )?event *:? *(?:port error|device fatal|local catastrophic error)",
        "a port or card, which this version does not name, failed during the job",
        "ibstat on each of these hosts; the kernel's log for mlx5; cable, transceiver and the switch's port",
    ),
    Rule(
        140,
        "uncorrectable_ecc",
        "error",
        r"Cuda failure .*uncorrectable ECC error encountered",
        "a GPU's memory had an error that ECC could not correct",
        "nvidia-smi -q -d ECC,ROW_REMAPPER says which GPU; reset it; if errors come back, RMA",
    ),
    Rule(
        31,
        "gpu_lost",
        "error",
        r"(?:GPU is lost|GPU has fallen off the bus)",
        "a GPU no longer answers its driver",
        "Xids in the kernel's log say which and when; power the host off and on; if it comes back, replace the GPU",
    ),
    Rule(
        149,
        "peer_gone",
        "warning",
        r"(?:Connection closed by remote peer|failed : Broken pipe|Connection reset by peer|Connection refused"
        r"|Socket recv failed while polling|Failed to execute operation \w+ from rank)",
        "a connection between ranks broke, most often because another rank failed first",
        "the first error in the log of the rank or host that the line names; Xids and killed processes on it",
    ),
    Rule(
        82,
        "plugin_failed",
        "warning",
        r"NET/OFI .*(?:[Ff]ailed|[Cc]ouldn't|[Uu]nable to|completed with error)",
        "the plugin of EFA (aws-ofi-nccl) could not start, or a transfer of it failed",
        "fi_info -p efa; the security group allows all traffic within itself; plugin, libfabric and driver of one"
        " installer",
    ),
    Rule(
        45,
        "host_not_reached",
        "error",
        r"[Cc]onnect to (\S+?)(?:<\d+>)? .*(No route to host|Network is unreachable)",
        "{} is not reached: {}",
        "NCCL_SOCKET_IFNAME with the network that all hosts share; firewall; ip route get",
    ),
    Rule(
        74,
        "address_in_use",
        "error",
        r"(?:[Bb]ind|[Ll]isten).* Address already in use",
        "a port that is taken was to be listened on",
        "end what an earlier job left; a wider net.ipv4.ip_local_port_range; another MASTER_PORT",
    ),
    Rule(
        49,
        "unlike_networks",
        "error",
        r"Attempted to connect incompatible devices",
        "InfiniBand was to be joined with RoCE",
        "NCCL_IB_HCA with the cards of one kind",
    ),
    Rule(
        62,
        "memory_not_registered",
        "error",
        r"(?:Call to )?ibv_(?:reg_mr\w*|create_qp|create_cq) failed",
        "memory could not be registered with a network card",
        "no limit of locked memory (ulimit -l unlimited); nvidia_peermem loaded, or DMA-BUF",
    ),
    Rule(
        64,
        "stack_size",
        "warning",
        r"Stack size limit \((.*?)\) is unsafe",
        "the limit of the stack's size ({}) is unsafe for NCCL's threads",
        "ulimit -s 8192",
    ),
    Rule(
        65,
        "shared_memory_full",
        "error",
        r"failed to extend (/dev/shm/\S+)|Error while creating shared memory segment (\S+)",
        "/dev/shm is too small for {}",
        "docker --shm-size=8g or --ipc=host; an emptyDir of medium Memory in Kubernetes",
    ),
    Rule(
        36,
        "fabric_not_permitted",
        "error",
        r"Cuda failure 800 'operation not permitted'",
        "memory may not be shared over NVLink between hosts",
        "/dev/nvidia-caps-imex-channels in the container; nvidia-imex running on all hosts",
    ),
    Rule(
        36,
        "fabric_not_permitted",
        "error",
        r"MNNVL \(cliqueSize (\d+)\) is available but not working",
        "NVLink joins {} GPUs of several hosts, and does not work between them",
        "nvidia-imex-ctl -N on each host; /dev/nvidia-caps-imex-channels in the container",
    ),
    Rule(
        34,
        "fabric_state",
        "error",
        r"Cuda failure (?:802 )?'?system not yet initialized",
        "CUDA does not start (error 802): the fabric manager does not run, or is not done with the NVSwitches",
        "start nvidia-fabricmanager, of the driver's version; then its log; in a virtual machine: the host's",
    ),
    Rule(
        78,
        "host_memory",
        "warning",
        r"cuMem host allocations do not appear to be working",
        "host memory cannot be allocated as NCCL wants it, as in a container without NUMA capabilities",
        "docker --cap-add SYS_NICE; NCCL_CUMEM_HOST_ENABLE=0",
    ),
    Rule(
        82,
        "network_plugin",
        "note",
        r"(?:NET/Plugin|NET/Plugin/\w+|TUNER/Plugin|PROFILER/Plugin): Could not find: ?(\S*net\S*\w)",
        "no network plugin ({}): right on InfiniBand and RoCE, wrong where EFA or SHARP is used",
        "the plugin's folder in LD_LIBRARY_PATH: aws-ofi-nccl, nccl-rdma-sharp-plugins",
    ),
    Rule(
        85,
        "unequal_cards",
        "warning",
        r"Rank (\d+) has (\d+) local Net devices \(max (\d+)\)",
        "rank {} has {} network cards beside it, others have {}",
        "look for a card that is down or hidden on that host: ibstat; NCCL_IB_HCA alike on all",
    ),
    Rule(
        85,
        "unequal_cards",
        "warning",
        r"Detected mixed local Net device counts across ranks \(min (\d+), max (\d+)\)",
        "some ranks have {} network cards beside them, others {}",
        "look for a card that is down or hidden on a host: ibstat; NCCL_IB_HCA alike on all",
    ),
    Rule(
        86,
        "no_path",
        "error",
        r"Could not find a path for pattern (\d+), falling back to simple order",
        "no good order of GPUs and cards was found (pattern {}): NCCL takes a simple one",
        "is /sys whole in the container? NCCL_TOPO_FILE in a virtual machine",
    ),
    Rule(
        150,
        "cuda_failure",
        "warning",
        r"(?:Cuda failure (?:\d+ )?|Failed to CUDA )'?([^']+)",
        "a call of CUDA failed: {}",
        "Xids in the kernel's log; out of memory: a smaller batch; 'invalid argument' in nvls.cc: restart the fabric"
        " manager with no program on a GPU, or reboot",
    ),
)
"""The first that matches counts. Wordings of NCCL 2.10 to 2.30: src/transport/{net_ib,p2p}.cc,
src/graph/{paths,search}.cc, src/misc, src/init.cc, src/proxy.cc; aws/aws-ofi-nccl; NVIDIA/nccl, issues."""


_COMPILED = tuple((rule, re.compile(rule.pattern)) for rule in RULES)


@dataclass(frozen=True)
class Said:
    """What is made of one log."""

    hosts: tuple[str, ...]
    found: tuple[Found, ...]
    healthy: tuple[Healthy, ...]
    not_judged: tuple[NotJudged, ...]


def judge(text: str, name: str) -> Said:
    """What a log of one or many processes says; ``name`` is its file's, for evidence.

    Raises
    ------
    ToolError
        If no line of it is NCCL's.
    """
    log = parse(text)
    hosts = tuple(dict.fromkeys([*(member.host for member in log.members), *(edge.host for edge in log.edges)]))
    found = (*_told(text), *_warned(log), *_ways(log, text, name), *_settings(log), *_cards(log, text, name))
    healthy, unknown = [], []
    ways = {"without_gpu_direct", "sockets", "network_within_host"}
    if log.edges and not ways & {each.name for each in found if each.severity != "note"}:
        healthy.append(Healthy("ways", hosts, _taken(log)))
    elif not log.edges:
        unknown.append(NotJudged("ways", hosts, "the log lists no connections", f"a log with {_SHOW}"))
    if log.edges and any(log.between_hosts(edge) is None for edge in log.edges):
        unknown.append(
            NotJudged("ways", hosts, "the host of some ranks is not in the log", "a log from its first line")
        )
    return Said(hosts, found, tuple(healthy), tuple(unknown))


def _taken(log: NcclLog) -> str:
    between = sum(log.between_hosts(edge) is True for edge in log.edges)
    gdr = sum(edge.gdr is True for edge in log.edges)
    with_gdr = f", {gdr:,} with GPUDirect RDMA" if gdr else ""
    return f"{plural(len(log.edges), 'connection')}, {between:,} of them between hosts{with_gdr}"


def _told(text: str) -> Iterator[Found]:
    """Messages that tell of a fault, each kind once with its hosts and its number."""
    groups: dict[tuple[Rule, str], list[tuple[str, str]]] = defaultdict(list)
    for host, message in messages(text):
        if told := _by_rule(message):
            groups[told].append((host, message))
    for (rule, what), same in groups.items():
        hosts = tuple(dict.fromkeys(host for host, _ in same))
        often = f", {len(same):,} times" if len(same) > 1 else ""
        yield Found(rule.name, rule.severity, hosts, "", f"{what}{often}", same[0][1][:300], _SHOW, rule.fix)


def _by_rule(message: str) -> tuple[Rule, str] | None:
    """The first rule that a message matches, with what it says."""
    for rule, pattern in _COMPILED:
        if match := pattern.search(message):
            return rule, rule.what.format(*(group for group in match.groups() if group))
    return None


def _warned(log: NcclLog) -> Iterator[Found]:
    """Warnings that no rule knows: each kind once, for a person to judge."""
    groups: dict[str, list[Warned]] = defaultdict(list)
    for warned in log.warnings:
        if _by_rule(warned.text) is None:
            groups[re.sub(r"0x[0-9a-f]+|\d+", "", warned.text)].append(warned)
    for same in groups.values():
        hosts = tuple(dict.fromkeys(warned.host for warned in same))
        often = f", {len(same):,} times" if len(same) > 1 else ""
        what = f"NCCL warns of something that is not known here{often}: {same[0].text[:100]}"
        fix = "look for the first warning of the job; the words of it in NCCL's issues"
        yield Found("nccl_warning", "note", hosts, "", what, same[0].text[:300], _SHOW, fix)


def _ways(log: NcclLog, text: str, name: str) -> Iterator[Found]:
    between = [edge for edge in log.edges if log.between_hosts(edge) is not False]
    within = [edge for edge in log.edges if log.between_hosts(edge) is False]
    cards = sorted({card for (_, network, _), card in log.nics.items() if network == "IB"})
    quote = partial(_quoted, text, name)
    if sockets := by_socket(between):
        there = f"although there is RDMA ({few(cards)})" if cards else "and the log names no RDMA device"
        what = f"hosts are joined by sockets, {there}"
        fix = "libibverbs and /dev/infiniband in the container; NCCL_IB_HCA without dead cards; no NCCL_IB_DISABLE"
        severity: Severity = "error" if cards else "warning"
        yield _way("sockets", severity, sockets, what, quote, "ibv_devinfo; env | grep NCCL", fix)
    elif log.without_rdma:
        what = "NCCL found no RDMA device (no device, or no libibverbs)"
        said, fix = quote(r"NET/IB : No device found|Failed to open libibverbs\.so"), "libibverbs in the container"
        yield Found("sockets", "warning", log.without_rdma, "", what, said, "ibv_devinfo", fix)
    if without := without_gdr(network_receives(between)):
        names = sorted({edge.nic or f"{edge.detail}/{edge.device}" for edge in without})
        refused = sorted({card for _, card in log.gdr_refused})
        why = f"; NCCL says it is disabled for {few(refused)}" if refused else ""
        what = (
            f"network cards do not write into GPU memory themselves (no GPUDirect RDMA over {few(names)}){why}; "
            "right only for GeForce and for boards with one memory"
        )
        fix = "load nvidia_peermem, or open kernel modules for DMA-BUF; turn off ACS on bridges"
        confirm = "lsmod | grep peermem; nvidia-smi topo -m"
        yield _way("without_gpu_direct", "warning", without, what, quote, confirm, fix)
    elif log.gdr_refused:
        cards = sorted({card for _, card in log.gdr_refused})
        hosts = tuple(dict.fromkeys(host for host, _ in log.gdr_refused))
        what = f"GPUDirect RDMA is disabled for {few(cards)}"
        fix = "load nvidia_peermem, or open kernel modules for DMA-BUF"
        said = quote(r"GPU Direct RDMA Disabled for HCA")
        yield Found("without_gpu_direct", "warning", hosts, "", what, said, "lsmod | grep peermem", fix)
    if slower := through_network(within):
        what = f"ranks of one host talk through the network ({slower[0].transport})"
        fix = "one container with all GPUs, or --ipc=host; take NCCL_P2P_DISABLE and NCCL_SHM_DISABLE out"
        yield _way("network_within_host", "warning", slower, what, quote, "nvidia-smi topo -m; env | grep NCCL", fix)
    if slower := through_memory(within):
        what = "ranks of one host talk through its memory: right only where no NVLink joins their GPUs"
        fix = "see NVLink and NCCL_P2P_DISABLE"
        yield _way("memory_within_host", "note", slower, what, quote, "nvidia-smi topo -m", fix)


def _quoted(text: str, name: str, pattern: str, more: str = "") -> str:
    """The first words of the log that match, with their line, and what is to be said of them."""
    match = re.search(pattern, text)
    return quoted(name, text, match.start(), f"{match[0]}{more}") if match else more.lstrip(", ")


def _way(
    check: str, severity: Severity, edges: list[Edge], what: str, quote: Callable[..., str], confirm: str, fix: str
) -> Found:
    first = edges[0]
    hosts = tuple(dict.fromkeys(edge.host for edge in edges))
    ends = rf"{first.source}(?:\[\w+\])? -> {first.destination}(?:\[\w+\])?(?: \[{first.direction}\])? via "
    pattern = rf"(?:Channel|Ring) 0*{first.channel}(?:/\d+)? : {ends}(?:direct shared|{re.escape(first.kind)}).*"
    evidence = quote(pattern, f", the first of {plural(len(edges), 'connection')}")
    return Found(check, severity, hosts, "", what, evidence, confirm, fix)


_CHOOSES = {
    **CHOSEN,
    "NCCL_IB_GID_INDEX": "since 2.21 NCCL finds a RoCE port's address itself, and an index differs between hosts",
}
"""A log does not say whether the machine needs them: a note."""


def _settings(log: NcclLog) -> Iterator[Found]:
    for setting in log.environment.items():
        if lost := forbidden(*setting):
            name, value = setting
            what = f"{name}={value} is set: {lost}"
            said = f"{name} set by environment to {value}"
            yield Found(
                "forbidden_way", "warning", (), "", what, said, "env | grep NCCL; cat /etc/nccl.conf", "unset it"
            )
        elif setting[0] in _CHOOSES:
            name, value = setting
            what = f"{name}={value} is set: {_CHOOSES[name]}"
            said = f"{name} set by environment to {value}"
            yield Found("pinned_setting", "note", (), "", what, said, "env | grep NCCL; cat /etc/nccl.conf", "unset it")


def _cards(log: NcclLog, text: str, file: str) -> Iterator[Found]:
    by_network: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (host, network, _), name in log.nics.items():
        by_network[network][name].add(host)
    verbs = by_network["IB"]
    bonds = sorted(name for name in verbs if "bond" in name)
    if bonds and len(bonds) < len(verbs):
        what = (
            f"{few(bonds)} is used beside {plural(len(verbs) - len(bonds), 'other card')}: often storage or management"
        )
        said, fix = _listed(text, file, bonds[0]), "NCCL_IB_HCA with the cards of the training network"
        yield _card("wrong_card", verbs[bonds[0]], what, said, fix)
    odd = sorted(name for name in by_network["Socket"] if name.startswith(_NOT_FOR_TRAINING))
    if odd:
        what = f"sockets use {few(odd)}, which other hosts cannot reach"
        said, fix = _listed(text, file, odd[0]), "NCCL_SOCKET_IFNAME with the network of the hosts"
        yield _card("wrong_card", by_network["Socket"][odd[0]], what, said, fix)
    hosts_without = tuple(sorted(host for host, has in log.nvls.items() if not has))
    if hosts_without:
        what = (
            "NVLink SHARP (multicast) is not available: right on A100 and on a job of one GPU, wrong on H100 and later"
        )
        said = "NVLS multicast support is not available"
        fix = "restart the fabric manager; all GPUs of the host in one container"
        yield Found("nvlink_sharp", "note", hosts_without, "", what, said, "nvidia-smi -q | grep -A3 Fabric", fix)


def _listed(text: str, file: str, card: str) -> str:
    return _quoted(text, file, rf"NET/\w+ : (?:Using|Made)\b.*{re.escape(card)}\b.*")


def _card(check: str, hosts: Iterable[str], what: str, said: str, fix: str) -> Found:
    return Found(check, "warning", tuple(sorted(hosts)), "", what, said, "ibdev2netdev; ip -br a", fix)
