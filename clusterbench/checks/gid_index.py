from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterbench.checks import AlikeCheck, Judged, Trait
from clusterbench.checks._training import training
from clusterbench.checks.roce_gid import VERSION
from clusterbench.facts import Host
from clusterbench.facts.nccl_conf import setting_of

VARIABLE = "NCCL_IB_GID_INDEX"


class GidIndex(AlikeCheck):
    """The index at which a RoCE port has its IPv4 address of RoCE v2, where hosts differ in it.

    NCCL since 2.21 looks for the index on each host; whoever names one for all (``NCCL_IB_GID_INDEX``, ``ib_write_bw
    -x``, older NCCL) then gets another address on some hosts. It is an error where that variable is set.

    Source: ROCm/cvs, ``preflight/gid_consistency.py``; nccl issue 890; NCCL user guide, NCCL_IB_GID_INDEX.
    """

    number = 48
    question = "Is the RoCE v2 address of a device at one index on all hosts?"
    severity = "warning"
    source = "/sys/class/infiniband/*/ports/*/gids, gid_attrs/types"
    confirm = "show_gids"
    fix = "leave NCCL_IB_GID_INDEX unset with NCCL 2.21 or later; remove stale addresses and VLANs from the interface"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        traits = {}
        for port in training(host).ports:
            index = next((gid.index for gid in port.gids if gid.kind == VERSION and gid.ipv4), None)
            if port.is_roce and index is not None:
                source = f"{port.path}/gid_attrs/types/{index}"
                traits[f"the index of the RoCE v2 address of {port.name}"] = Trait(str(index), source, port.name)
        return traits

    def judge_all(self, hosts: Sequence[Host]) -> Mapping[str, Judged]:
        fixed = {host.name for host in hosts if setting_of(host, VARIABLE)}
        return {name: _raised(said) if name in fixed else said for name, said in super().judge_all(hosts).items()}


def _raised(said: Judged) -> Judged:
    """The same as errors, where one index was named for all hosts."""
    return replace(
        said,
        faults=tuple(
            replace(fault, what=f"{fault.what}; {VARIABLE} is set", severity="error") for fault in said.faults
        ),
    )
