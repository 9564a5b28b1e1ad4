from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training import VARIABLE, Training, is_named, training
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Port
from clusterbench.words import few, plural


class TrainingNics(HostCheck):
    """Which RDMA devices NCCL may use, against those that training has: storage and management devices left in.

    Without ``NCCL_IB_HCA`` NCCL takes every active port, so a storage or management port among them (another model,
    board, link layer, or a bond) is found; so is a setting that names no port, names such a port, or leaves out one of
    the training kind. Source: stas00/ml-engineering, ``network/debug/README.md``; NCCL user guide, NCCL_IB_HCA.
    """

    number = 44
    question = "Are the RDMA devices that NCCL may use those of training, all of them and no others?"
    severity = "warning"
    source = "/sys/class/infiniband, NCCL_IB_HCA in the environment and nccl.conf"
    confirm = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET shows 'NET/IB : Using ...'"
    fix = "set NCCL_IB_HCA to the training devices on all hosts, with = for whole names: NCCL_IB_HCA==mlx5_0,mlx5_1"

    def judge(self, host: Host) -> Judged:
        ours = training(host)
        active = [port for port in (*ours.ports, *ours.others) if port.is_active]
        if not active:
            return Judged(not_applicable="no active RDMA ports here")
        if not ours.setting and len(ours.alike) == len(ours.ports) + len(ours.others):
            return Judged(healthy=f"{plural(len(ours.alike), 'RDMA port')}, all of one kind")
        if host.environment.get("variables") is None:
            raise NotKnown(f"{VARIABLE} was not recorded", "a run of this version of clusterbench")
        faults = tuple(_faults(ours, active))
        kinds = f"{plural(len(ours.ports), 'training port')}, {plural(len(ours.others), 'other')} not used"
        return Judged(faults, "" if faults else kinds)


def _faults(ours: Training, active: Sequence[Port]) -> Iterator[Fault]:
    if not ours.setting:
        others = [port for port in active if port not in ours.alike]
        if others:
            what = f"{_named(others)} is active, and NCCL takes it too: {VARIABLE} is not set"
            yield Fault(_places(others), what, "; ".join(map(_evidence, others[:4])))
        return
    said = f"{VARIABLE}={ours.setting}"
    named = [port for port in active if is_named(port, ours.setting)]
    if not named:
        yield Fault("", f"{said} names no active RDMA port: NCCL falls back to sockets", said, severity="error")
        return
    others = [port for port in named if port not in ours.alike]
    if others and len(others) < len(named):
        yield Fault(_places(others), f"{said} lets NCCL use {_named(others)}", _evidence(others[0]))
    left = [port for port in ours.alike if port.is_active and port not in named]
    if left and len(left) < len(ours.alike):
        what = f"{said} leaves out {_places(left)}, of the same kind as those it names"
        yield Fault(_places(left), what, _evidence(left[0]))


def _places(ports: Sequence[Port]) -> str:
    return few([port.device for port in ports])


def _named(ports: Sequence[Port]) -> str:
    """``mlx5_bond_0 (200 Gb/sec (2X NDR) Ethernet)``"""
    return few([f"{port.device} ({port.rate} {port.link_layer})" for port in ports])


def _evidence(port: Port) -> str:
    return f"{port.path}/rate: {port.rate}; link_layer: {port.link_layer}"
