from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._training import active_verbs_ports
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Port

VERSION = "RoCE v2"


class RoceGid(PortCheck):
    """RoCE ports without an address that routes: no RoCE v2, only link-local ones, or none of IPv4.

    NCCL asks for RoCE v2 and IPv4 (``NCCL_IB_ROCE_VERSION_NUM``, ``NCCL_IB_ADDR_FAMILY``) and takes no link-local
    address for a valid one: with those alone ``ibv_modify_qp`` fails, or a connection times out with error 12. A
    routable address of IPv6 alone is a warning, as NCCL has to be told of it.

    Source: NVIDIA/nccl, ``src/transport/net_ib/connect.cc``; nccl issues 426 and 769.
    """

    number = 46
    question = "Has every RoCE port an address of RoCE v2 that stands for an IPv4 one?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/gids, gid_attrs/types"
    confirm = "show_gids, or ibv_devinfo -v | grep GID"
    fix = "give the interface behind the port an IPv4 address and bring it up; load the kernel module rdma_cm"
    parts = "active RoCE ports"
    in_order = "with an IPv4 address of RoCE v2"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return [port for port in active_verbs_ports(host) if port.is_roce]

    def fault(self, host: Host, part: Port) -> Fault | None:
        if not part.gids:
            return Fault(part.name, "has no address at all", f"{part.path}/gids: all zero")
        if any(gid.kind == VERSION and gid.ipv4 for gid in part.gids):
            return None
        if any(gid.kind is None for gid in part.gids):
            raise NotKnown(f"{part.path}/gid_attrs/types does not tell RoCE v1 from v2", "a host that shows /sys whole")
        evidence = f"{part.path}/gids: " + "; ".join(
            f"{gid.index}: {gid.address} ({gid.kind})" for gid in part.gids[:4]
        )
        if not any(gid.kind == VERSION for gid in part.gids):
            return Fault(part.name, "has no address of RoCE v2", evidence)
        if all(gid.is_link_local for gid in part.gids if gid.kind == VERSION):
            return Fault(part.name, "has link-local addresses of RoCE v2 only, and NCCL takes none of them", evidence)
        what = "has no IPv4 address of RoCE v2, and NCCL asks for one unless NCCL_IB_ADDR_FAMILY is AF_INET6"
        return Fault(part.name, what, evidence, severity="warning")
