"""RDMA devices and ports, of which a program said a part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusterbench.doctor import NotJudged
from clusterbench.facts.infiniband import Device, Infiniband, Port
from clusterbench.words import few

OF_LINKS = ("port_state", "port_rate", "subnet_manager")
_OF_SEVERAL = ("firmware", "link_layer", "rdma_device_count")
"""They hold files of hosts against each other."""
OF_PORTS = (*OF_LINKS, *_OF_SEVERAL)
OF_VERBS = ("port_state", *_OF_SEVERAL)
"""Checks that a text may answer: of links alone, of all, and where it does not say the rates of links."""
_NUMBERS_OF_GPUS = (4, 8, 16)


def port_of(device: str, number: int, state: str, physical: str | None, rate: str | None, layer: str | None) -> Port:
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


def device_of(name: str, firmware: str | None, model: str | None, board: str | None) -> Device:
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


def odd_layers(facts: Infiniband, name: str) -> Iterator[NotJudged]:
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
