"""Over which network interface the hosts of a run talk."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterbench.errors import SuiteError
from clusterbench.words import few

_NOT_FOR_TRAFFIC = re.compile(
    r"lo\d*$|docker|br-[0-9a-f]{12}$|veth|virbr|podman|nerdctl|lxcbr|lxdbr|tun|tap|usb|idrac|bmc"
    r"|cni|flannel|cali|vxlan\.calico|cilium|antrea-gw|ovn-k8s|weave|kube-|nodelocaldns"
)
"""Beginnings of names of interfaces that exist on every host under the same address, or lead nowhere or to containers.
Bridges that Docker names have twelve digits; others, as OpenShift's ``br-ex``, have the host's own address."""


@dataclass(frozen=True)
class Interface:
    """A network interface of one host and an address of it."""

    name: str
    address: str
    network: str


def interfaces_of(environment: Mapping[str, Any]) -> tuple[Interface, ...]:
    """Those of a host that are up and have an address, in the order in which it lists them, by IPv4 before IPv6."""
    interfaces = []
    for described in environment.get("network") or ():
        for written in described.get("addresses") or ():
            address = ipaddress.ip_interface(written)
            interfaces.append((address.version, Interface(described["name"], str(address.ip), str(address.network))))
    return tuple(interface for _, interface in sorted(interfaces, key=lambda each: each[0]))


def choose_interfaces(
    hosts: Mapping[str, Sequence[Interface]], wanted: str | None, without: Collection[str] = ()
) -> dict[str, Interface]:
    """One interface for each host.

    Parameters
    ----------
    hosts
        By host, in the order of their ranks.
    wanted
        Name of the interface to take on all of them; None takes the first of the first host's on whose network all
        others have an address too, and where there is none (each host on a network of its own) the first of a name
        that all have. An address that two hosts have is a bridge inside each, or both are one machine: the last resort.
    without
        Addresses of the first host over which others did not reach it.

    Raises
    ------
    SuiteError
        Naming each host that has no such interface, and what it has.
    """
    if wanted is not None:
        return _named(hosts, wanted)
    own = next(iter(hosts.values()))
    first = [interface for interface in own if _is_for_traffic(interface) and interface.address not in without]
    for same, apart in (("network", True), ("name", True), ("network", False)):
        for candidate in first:
            chosen = {host: alike for host, own in hosts.items() if (alike := _alike(candidate, own, same))}
            addresses = {interface.address for interface in chosen.values()}
            if len(chosen) == len(hosts) and (not apart or len(addresses) == len(hosts)):
                return chosen
    raise SuiteError(
        f"the hosts have no network in common: {_listed(hosts)}.\n"
        "hint: name the interface that joins them, '--interface eth0'"
    )


def _named(hosts: Mapping[str, Sequence[Interface]], wanted: str) -> dict[str, Interface]:
    chosen = {host: _of_name(wanted, own) for host, own in hosts.items()}
    if without := {host: hosts[host] for host, interface in chosen.items() if interface is None}:
        raise SuiteError(
            f"--interface {wanted}: there is none of this name with an address on {_listed(without)}.\n"
            "hint: 'ip -brief address' on a host lists its own"
        )
    return {host: interface for host, interface in chosen.items() if interface}


def _is_for_traffic(interface: Interface) -> bool:
    """Not what leads to containers or, as link-local addresses do, to the board's own controller."""
    return not _NOT_FOR_TRAFFIC.match(interface.name) and not ipaddress.ip_address(interface.address).is_link_local


def _of_name(name: str, interfaces: Sequence[Interface]) -> Interface | None:
    return next((interface for interface in interfaces if interface.name == name), None)


def _alike(candidate: Interface, interfaces: Sequence[Interface], same: str) -> Interface | None:
    return next((other for other in interfaces if getattr(other, same) == getattr(candidate, same)), None)


def _listed(hosts: Mapping[str, Sequence[Interface]]) -> str:
    """``cb1 (lo 127.0.0.1, eth0 10.77.0.1), cb2 (...)``, the first few of many; of an interface its first address."""
    each = []
    for host, interfaces in hosts.items():
        first = {interface.name: interface.address for interface in reversed(interfaces)}
        own = ", ".join(f"{name} {address}" for name, address in reversed(first.items())) or "none"
        each.append(f"{host} ({own})")
    return few(each)
