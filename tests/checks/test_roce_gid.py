from __future__ import annotations

import pytest

from clusterbench.checks.roce_gid import RoceGid
from tests.facts.machine import healthy, others

PORT = "/sys/class/infiniband/mlx5_3/ports/1"


def judged(folder, *without, **gids):
    machine = others()["roce"].without(*(f"{PORT}/{path}" for path in without))
    machine.files |= {f"{PORT}/gids/{index.removeprefix('at')}": f"{gid}\n" for index, gid in gids.items()}
    return RoceGid().judge(machine.host(folder))


def test_a_port_with_link_local_addresses_only_is_named(tmp_path):
    said = judged(tmp_path, "gids/2", "gids/3")
    (fault,) = said.faults
    assert fault.where == "mlx5_3 port 1"
    assert fault.what == "has link-local addresses of RoCE v2 only, and NCCL takes none of them"
    gid = "fe80:0000:0000:0000:a088:c2ff:fee1:0003"
    assert fault.evidence == f"{PORT}/gids: 0: {gid} (IB/RoCE v1); 1: {gid} (RoCE v2)"
    assert said.healthy == "7 active RoCE ports with an IPv4 address of RoCE v2"


@pytest.mark.parametrize(
    ("without", "gids", "what", "severity"),
    [
        (("gids/1", "gids/3"), {}, "has no address of RoCE v2", None),
        (("gids",), {}, "has no address at all", None),
        (
            ("gids/2",),
            {"at3": "fd00:0000:0000:0000:0000:0000:0000:0007"},
            "has no IPv4 address of RoCE v2, and NCCL asks for one unless NCCL_IB_ADDR_FAMILY is AF_INET6",
            "warning",
        ),
    ],
)
def test_other_addresses_that_do_not_serve_are_told_apart(tmp_path, without, gids, what, severity):
    (fault,) = judged(tmp_path, *without, **gids).faults
    assert (fault.what, fault.severity) == (what, severity)


def test_without_kinds_of_addresses_it_is_not_judged(tmp_path):
    said = judged(tmp_path, "gid_attrs/types")
    assert said.unknown[0].why == f"{PORT}/gid_attrs/types does not tell RoCE v1 from v2"


def test_infiniband_has_none_to_judge(tmp_path):
    assert RoceGid().judge(healthy().host(tmp_path)).not_applicable == "no active RoCE ports here"
