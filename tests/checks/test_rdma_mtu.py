from __future__ import annotations

import pytest

from clusterbench.checks.rdma_mtu import RdmaMtu
from tests.facts.healthy.infiniband import devinfo
from tests.facts.machine import healthy, hung, others


@pytest.mark.parametrize(
    ("kind", "mtu", "what"),
    [
        ("roce", 1024, "carries packets of 1024 bytes, and could of 4096: its interface's MTU allows no more"),
        ("infiniband", 2048, "carries packets of 2048 bytes, and could of 4096: its partition allows no more"),
    ],
)
def test_small_packets_are_found(tmp_path, kind, mtu, what):
    machine = others()["roce"] if kind == "roce" else healthy()
    machine.programs["ibv_devinfo"] = devinfo(mtu=f"{mtu} (3)")
    faults = RdmaMtu().judge(machine.host(tmp_path)).faults
    assert {fault.what for fault in faults} == {what}
    assert faults[3].evidence == f"ibv_devinfo: mlx5_3 port 1: active_mtu {mtu}"


@pytest.mark.parametrize(("mtu", "packet"), [(1500, 1024), (4191, 2048), (4192, 4096), (9000, 4096)])
def test_of_roce_the_interfaces_mtu_tells_it_where_ibv_devinfo_is_absent(tmp_path, mtu, packet):
    machine = others()["roce"].without("ibv_devinfo")
    machine.files["/sys/class/net/eth3/mtu"] = f"{mtu}\n"
    said = RdmaMtu().judge(machine.host(tmp_path))
    found = [(fault.where, fault.evidence) for fault in said.faults]
    assert found == ([] if packet == 4096 else [("mlx5_3 port 1", f"/sys/class/net/eth3/mtu: {mtu}")])
    assert not said.unknown


def test_without_either_roce_is_not_judged(tmp_path):
    machine = others()["roce"].without("ibv_devinfo", "/sys/class/net/eth3")
    said = RdmaMtu().judge(machine.host(tmp_path))
    assert [unknown.why for unknown in said.unknown] == ["the interface behind mlx5_3 port 1 is not known"]


def test_a_program_that_hangs_leaves_it_not_judged(tmp_path):
    machine = healthy()
    machine.programs["ibv_devinfo"] = hung("ibv_devinfo")
    said = RdmaMtu().judge(machine.host(tmp_path))
    assert [unknown.why for unknown in said.unknown] == ["ibv_devinfo had not ended after 2 s"]
    assert not said.healthy


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    assert RdmaMtu().judge(healthy().without("/sys/class/infiniband").host(tmp_path)).not_applicable
