"""Which RDMA ports of a host training uses; storage and management often have ports of their own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from clusterbench.checks._training_node import gpu_cards
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Device, Infiniband, Port
from clusterbench.facts.nccl_conf import setting_of
from clusterbench.host_facts import mappings

VARIABLE = "NCCL_IB_HCA"


@dataclass(frozen=True)
class Training:
    """The ports that training uses, the others, and ``setting``: ``NCCL_IB_HCA``, or None where it is not set.

    ``alike`` are those that the rule of :func:`training` takes, whatever the setting says.
    """

    ports: tuple[Port, ...]
    others: tuple[Port, ...]
    alike: tuple[Port, ...]
    setting: str | None


def training(host: Host) -> Training:
    """The ports that ``NCCL_IB_HCA`` names; where it is not set or names none, the kind with the most bandwidth.

    A kind is ports of one model and link layer, bonds apart: a port that lost half its rate or its link stays
    with its kind, and four storage ports of 100 Gb/s do not outweigh eight of 400 Gb/s, nor eight that are all down
    beside GPUs, at whatever rate a port that is down shows. Boards of one model are kinds of their own, as storage
    cards may be of the model that trains, unless its ports share out evenly among the GPUs: then a card was replaced
    by another maker's. Devices made of software (``rdma_rxe``, ``siw``) are left out, and of virtual functions the rule
    takes none beside the card that they belong to.

    Raises
    ------
    NotKnown
        If RDMA devices were not read.
    """
    facts = host.of(Infiniband)
    devices = {device.name: device for device in facts.devices}
    ports = [port for port in facts.ports if port.device in devices and devices[port.device].kind != "software"]
    gpus, own = _gpus(host), [port for port in ports if port in facts.own_ports]
    models = Counter(_model(devices[port.device], port) for port in own)
    kinds: dict[Hashable, list[Port]] = defaultdict(list)
    for port in own:
        device = devices[port.device]
        model = _model(device, port)
        is_even = gpus and gpus % models[model] == 0
        kinds[model, None if is_even else device.board].append(port)
    fastest = max((port.bits_per_s or 0.0 for port in own if port.is_active), default=0.0)
    least_down = gpus / 2 or len(ports) + 1
    by_weight = sorted(kinds.values(), key=lambda kind: _weight(kind, fastest, least_down))
    alike = tuple(by_weight[-1]) if by_weight else ()
    setting = setting_of(host, VARIABLE) or None
    named = tuple(port for port in ports if setting and is_named(port, setting))
    used = named or alike
    return Training(used, tuple(port for port in ports if port not in used), alike, setting)


def active_verbs_ports(host: Host) -> list[Port]:
    """Training ports that are up and speak InfiniBand or RoCE."""
    verbs = {device.name for device in host.of(Infiniband).devices if device.kind == "verbs"}
    return [port for port in training(host).ports if port.is_active and port.device in verbs]


def _gpus(host: Host) -> int:
    """0 where nothing was recorded of them."""
    return len(mappings(host.environment.get("gpus"))) or len(gpu_cards(host))


def _model(device: Device, port: Port) -> Hashable:
    return (device.kind, device.hca_type, port.link_layer, "bond" in device.name)


def _weight(ports: Sequence[Port], fastest: float, least_down: float) -> tuple[float, int]:
    """What ports of one kind could carry, if each ran as fast as the fastest of them that is up, and how many are up.

    The rate of a port that is down is no measure of its use. A kind that is down as a whole and has at least
    ``least_down`` ports, one for every two GPUs, counts as fast as ``fastest``, the fastest port of the host.
    """
    up = [port for port in ports if port.is_active]
    own = max(port.bits_per_s or 0.0 for port in up or ports)
    rate = own if up or len(ports) < least_down else max(own, fastest)
    return len(ports) * rate, len(up)


def is_named(port: Port, setting: str) -> bool:
    """Whether ``NCCL_IB_HCA`` picks a port: ``mlx5_0,mlx5_1:1``, ``=`` for whole names, ``^`` for all but those.

    Source: NVIDIA's NCCL user guide, environment variables, NCCL_IB_HCA.
    """
    names = setting.removeprefix("^")
    is_exact = names.startswith("=")
    words = [word.partition(":") for word in names.removeprefix("=").split(",") if word]
    found = any(
        (port.device == name if is_exact else port.device.startswith(name)) and number in ("", str(port.number))
        for name, _, number in words
    )
    return found != setting.startswith("^")
