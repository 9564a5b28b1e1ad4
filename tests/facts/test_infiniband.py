from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench.facts.infiniband import Gid, Infiniband, active_mtus
from tests.facts.machine import healthy, others

SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")


def test_a_port_has_its_mtu_its_rate_and_only_the_telling_counters(tmp_path):
    machine = healthy()
    machine.files["/sys/class/infiniband/mlx5_3/ports/1/counters/multicast_rcv_packets"] = "7\n"
    port = machine.host(tmp_path).of(Infiniband).ports[3]
    assert (port.active_mtu_bytes, port.bits_per_s, port.is_active, port.is_roce) == (4096, 4e11, True, False)
    assert "multicast_rcv_packets" not in port.counters
    assert port.counters["port_xmit_packets"] == 315_487_941_081


def test_addresses_tell_what_they_are_good_for(tmp_path):
    gids = others()["roce"].host(tmp_path).of(Infiniband).ports[1].gids
    assert [(gid.kind, gid.is_link_local, gid.ipv4) for gid in gids] == [
        ("IB/RoCE v1", True, ""),
        ("RoCE v2", True, ""),
        ("IB/RoCE v1", False, "10.0.1.1"),
        ("RoCE v2", False, "10.0.1.1"),
    ]
    assert not Gid(0, "no address", None, None).is_link_local


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "verbs"),
        ({"node_type": "4: RNIC", "driver": "irdma"}, "iWARP"),
        ({"node_type": "4: RNIC", "driver": "erdma"}, "eRDMA"),
        ({"node_type": "7: <unknown>", "driver": "efa"}, "EFA"),
        ({"node_type": "6: usNIC UDP", "driver": "usnic_verbs"}, "usNIC"),
        ({"address": None, "driver": None, "hca_type": None}, "software"),
    ],
)
def test_kinds_of_devices_are_told_apart_by_driver_and_node_type(tmp_path, changes, kind):
    device = healthy().host(tmp_path).of(Infiniband).devices[0]
    assert replace(device, **changes).kind == kind


def test_without_ibv_devinfo_the_mtu_is_unknown_with_the_reason(tmp_path):
    facts = healthy().without("ibv_devinfo").host(tmp_path).of(Infiniband)
    assert facts.ports[0].active_mtu_bytes is None
    assert facts.unread["ibv_devinfo"] == "ibv_devinfo is not on PATH"


def test_a_host_without_devices_is_not_asked_for_them_by_a_program(tmp_path):
    machine = healthy().without("/sys/class/infiniband", "ibv_devinfo")
    assert machine.host(tmp_path).of(Infiniband).unread == {}


@real
def test_a_recorded_ibv_devinfo_gives_the_mtu_of_each_port():
    mtus = active_mtus((SAMPLES / "ibv_devinfo_connectx_ethernet.txt").read_text())
    assert (mtus["mlx5_0", 1], mtus["mlx5_2", 1]) == (1024, 4096)
