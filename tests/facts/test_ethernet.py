from __future__ import annotations

from clusterbench.facts.ethernet import Ethernet
from tests.facts.healthy.ethernet import statistics
from tests.facts.machine import healthy, others


def test_an_interface_has_its_speed_its_driver_and_its_answers(tmp_path):
    machine = healthy()
    machine.programs["ethtool -S eno1"] = statistics(tx_prio3_pause=9, rx_cache_reuse=77)
    (interface,) = machine.host(tmp_path).of(Ethernet).interfaces
    assert (interface.name, interface.address, interface.driver) == ("eno1", "0000:01:00.0", "mlx5_core")
    assert (interface.bits_per_s, interface.mtu_bytes, interface.carrier_downs) == (25e9, 1500, 1)
    assert (interface.firmware, interface.pauses) == ("28.39.2048 (MT_0000000838)", "rx off, tx off")
    assert interface.counters["tx_prio3_pause"] == 9
    assert interface.counters["rx_discards_phy"] == 0
    assert interface.counters.keys().isdisjoint({"rx_packets", "rx_cache_reuse", "rx_prio3_pause"})
    assert (interface.num_received, interface.damaged) == (315_487_941, {"rx_crc_errors_phy": 0})


def test_without_ethtool_one_reason_is_noted_and_the_files_are_read(tmp_path):
    facts = others()["roce"].without("ethtool").host(tmp_path).of(Ethernet)
    assert facts.unread == {"ethtool --version": "ethtool is not on PATH"}
    assert {interface.counters for interface in facts.interfaces} == {None}
    assert {interface.mtu_bytes for interface in facts.interfaces} == {1500, 9000}


def test_what_has_no_device_or_is_no_ethernet_is_left_out(tmp_path):
    machine = healthy()
    machine.files["/sys/class/net/docker0/type"] = "1\n"
    machine.files |= {"/sys/class/net/ibs0/type": "32\n", "/sys/class/net/ibs0/device/vendor": "0x15b3\n"}
    assert [interface.name for interface in machine.host(tmp_path).of(Ethernet).interfaces] == ["eno1"]
