from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from clusterbench.checks import AlikeCheck, Fault, Judged, Trait, Unknown
from clusterbench.checks._training import training
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import FOLDER, Infiniband

_LEAST_ALIKE = 3


class LinkLayer(AlikeCheck):
    """InfiniBand on some hosts and RoCE on others, or one card of a host set to the other.

    NCCL refuses to connect the two: *Attempted to connect incompatible devices*. On a host a port is held against the
    training ports of its own model and board, of which there must be three, and more than twice as many as odd ones,
    but fewer than GPUs: storage ports on Ethernet are another board, or nearly as many, or one more than GPUs need.
    """

    number = 49
    question = "Are all training ports InfiniBand, or all of them RoCE, on all hosts?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/link_layer"
    confirm = "cat /sys/class/infiniband/*/ports/*/link_layer; mlxconfig query | grep LINK_TYPE"
    fix = "mlxconfig -d DEVICE set LINK_TYPE_P1=1 for InfiniBand or 2 for Ethernet, then a power cycle"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        layers = sorted({port.link_layer for port in training(host).ports if port.link_layer})
        path = f"{FOLDER}/*/ports/*/link_layer"
        return {"the link layer of training": Trait(" and ".join(layers), path)} if layers else {}

    def judge_alone(self, host: Host) -> Judged:
        try:
            ports, odd = training(host).ports, tuple(_odd(host))
        except NotKnown as error:
            return Judged(unknown=(Unknown(error.why, error.takes),))
        if odd or len(ports) < _LEAST_ALIKE:
            return Judged(odd) if odd else super().judge_alone(host)
        return Judged(
            healthy=f"{len(ports)} training ports are {ports[0].link_layer}, and no card of their kind another"
        )

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        judged = dict(super().judge_all(hosts))
        for host in hosts:
            with suppress(NotKnown):  # said already
                said = judged[host.name]
                judged[host.name] = replace(said, faults=(*said.faults, *_odd(host)))
        return judged


def _odd(host: Host) -> Iterator[Fault]:
    """Ports of the training ports' own model and board that are of the other link layer."""
    board = {device.name: (device.hca_type, device.board) for device in host.of(Infiniband).devices}
    ours = training(host)
    layers = {port.link_layer for port in ours.alike}
    boards = {kind for port in ours.alike if all(kind := board[port.device])}
    odd = [
        port
        for port in (*ours.ports, *ours.others)
        if board[port.device] in boards and port.link_layer and port.link_layer not in layers
    ]
    if len(ours.alike) < _LEAST_ALIKE or len(odd) * 2 >= len(ours.alike):
        return
    if (gpus := num_gpus(host)) and len(ours.alike) >= gpus:
        return
    for port in odd:
        what = f"is {port.link_layer}, and {len(ours.alike)} cards of its kind here are {ours.alike[0].link_layer}"
        yield Fault(port.name, what, f"{port.path}/link_layer: {port.link_layer}")
