from __future__ import annotations

import re

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.nccl_conf import effective
from clusterbench.host_facts import nccl

VARIABLE = "NCCL_IB_GID_INDEX"
CHOOSES_SINCE = (2, 21)


class GidIndexSet(HostCheck):
    """``NCCL_IB_GID_INDEX`` where NCCL chooses the address of a RoCE port itself, since 2.21.

    The index of an address differs between hosts and after a restart of the network, and a wrong one ends in a
    completion error 12 (NCCL's user guide: it should not be set with 2.21 or later).
    """

    number = 47
    question = "Is NCCL left to choose the GID of RoCE ports?"
    severity = "warning"
    source = f"{VARIABLE} in the environment and nccl.conf, version of NCCL"
    confirm = f"env | grep {VARIABLE}; show_gids"
    fix = f"unset {VARIABLE}; where the network has several: NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_RANGE"

    def judge(self, host: Host) -> Judged:
        if not host.of(Infiniband).devices:
            return Judged(not_applicable="no RDMA device here")
        setting = effective(host).get(VARIABLE)
        if setting is None or not setting.value.strip():
            return Judged(healthy=f"{VARIABLE} is not set")
        version = nccl(host.environment)
        found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
        if not found:
            why = f"{VARIABLE}={setting.value} is set, and the version of NCCL is not known"
            raise NotKnown(why, "a run with GPUs, or NCCL of a package")
        if (int(found[1]), int(found[2])) < CHOOSES_SINCE:
            return Judged(healthy=f"{VARIABLE}={setting.value}, which NCCL {version} needs")
        what = f"{VARIABLE}={setting.value} is set, and NCCL {version} chooses the GID itself"
        return Judged((Fault("", what, f"{setting.said_by}: {VARIABLE}={setting.value}"),))
