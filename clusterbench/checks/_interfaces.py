"""The Ethernet interface behind a port of RoCE, and the packets that it lets through."""

from __future__ import annotations

from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.ethernet import FOLDER, Ethernet, Interface
from clusterbench.facts.infiniband import IBV_DEVINFO, Infiniband, Port

_HEADERS_BYTES = 96
_PACKETS_BYTES = (4096, 2048, 1024, 512, 256)


def interface_behind(host: Host, port: Port) -> Interface:
    """The first of the card's, or the one (a bond's part, say) that the port's addresses name.

    Raises
    ------
    NotKnown
        If there is none among the physical interfaces.
    """
    behind = {gid.interface for gid in port.gids}
    behind.update(*(device.interfaces for device in host.of(Infiniband).devices if device.name == port.device))
    for interface in host.of(Ethernet).interfaces:
        if interface.name in behind:
            return interface
    raise NotKnown(f"the interface behind {port.name} is not known", f"a host that shows {FOLDER}")


def packet_bytes(host: Host, port: Port) -> tuple[int, str]:
    """The largest packet of a port, and the file or command that tells it.

    Raises
    ------
    NotKnown
        If ``ibv_devinfo`` did not tell, and the port is no RoCE port whose interface has an MTU.
    """
    facts = host.of(Infiniband)
    if port.active_mtu_bytes is None and port.is_roce:
        interface = interface_behind(host, port)
        source = f"{FOLDER}/{interface.name}/mtu"
        mtu = known(host.of(Ethernet), interface.mtu_bytes, source)
        return roce_packet_bytes(mtu), f"{source}: {mtu}"
    mtu = known(facts, port.active_mtu_bytes, IBV_DEVINFO)
    return mtu, f"{IBV_DEVINFO}: {port.name}: active_mtu {mtu}"


def roce_packet_bytes(mtu_bytes: int) -> int:
    """The largest packet of RoCE that an interface's MTU has room for, with the longest headers.

    Source: Linux, ``include/rdma/ib_addr.h``, iboe_get_mtu.

    >>> roce_packet_bytes(1500), roce_packet_bytes(4200), roce_packet_bytes(9000)
    (1024, 4096, 4096)
    """
    return next((size for size in _PACKETS_BYTES if size <= mtu_bytes - _HEADERS_BYTES), _PACKETS_BYTES[-1])
