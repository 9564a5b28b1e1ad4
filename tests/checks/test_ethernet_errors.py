from __future__ import annotations

import pytest

from clusterbench.checks.ethernet_errors import EthernetErrors
from clusterbench.facts import NotKnown
from tests.facts.healthy.ethernet import statistics
from tests.facts.machine import healthy, others

DOWN = "/sys/class/net/eth3/carrier_down_count"


def roce(**counters):
    machine = others()["roce"]
    machine.programs["ethtool -S eth3"] = statistics(**counters)
    return machine


WELL = "8 Ethernet interfaces kept their link; 8 interfaces received no damaged packet"


def only(machine, folder, healthy=WELL):
    said = EthernetErrors().judge(machine.host(folder))
    (fault,) = said.faults
    assert said.healthy == healthy
    return fault


def test_damaged_packets_of_a_training_port_are_found(tmp_path):
    fault = only(roce(rx_crc_errors_phy=9_000_000), tmp_path)
    assert (fault.where, fault.severity) == ("eth3", None)
    assert fault.what == "9,000,000 damaged packets (rx_crc_errors_phy), 2.9e-02 of those that it received"
    assert fault.evidence == "ethtool -S eth3: rx_crc_errors_phy: 9000000"


def test_a_link_that_flaps_is_found_without_root_and_without_ethtool(tmp_path):
    machine = others()["roce"].without("ethtool")
    machine.files[DOWN] = "60\n"
    fault = only(machine, tmp_path, "8 Ethernet interfaces kept their link")
    assert (fault.what, fault.severity) == ("its link went down 60 times", None)
    assert fault.evidence == f"{DOWN}: 60"


@pytest.mark.parametrize("downs", [2, 10])
def test_few_losses_are_a_note(tmp_path, downs):
    machine = roce()
    machine.files[DOWN] = f"{downs}\n"
    assert only(machine, tmp_path).severity == "note"


def test_few_damaged_packets_are_a_note(tmp_path):
    assert only(roce(rx_crc_errors_phy=9), tmp_path).severity == "note"


def test_an_interface_of_management_is_a_note_beside_ports_of_training(tmp_path):
    machine = others()["roce"]
    machine.files["/sys/class/net/eno1/carrier_down_count"] = "60\n"
    assert only(machine, tmp_path).severity == "note"


def test_where_there_are_no_ports_of_training_every_interface_counts(tmp_path):
    machine = healthy().without("/sys/class/infiniband", "ibv_devinfo")
    machine.files["/sys/class/net/eno1/carrier_down_count"] = "60\n"
    (fault,) = EthernetErrors().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("eno1", None)


def test_an_interface_that_is_down_is_not_asked(tmp_path):
    machine = roce(rx_crc_errors_phy=9_000_000)
    machine.files["/sys/class/net/eth3/operstate"] = "down\n"
    assert EthernetErrors().judge(machine.host(tmp_path)).faults == ()


def test_what_nothing_tells_is_not_judged(tmp_path):
    machine = healthy().without("ethtool", "/sys/class/net/eno1/carrier_down_count")
    check, host = EthernetErrors(), machine.host(tmp_path)
    with pytest.raises(NotKnown, match="neither ethtool -S nor /sys/class/net/eno1"):
        check.fault(host, check.parts_of(host)[0])


def test_of_damaged_packets_nothing_is_said_where_the_driver_does_not_count_them(tmp_path):
    """As virtio's."""
    said = EthernetErrors().judge(healthy().without("ethtool").host(tmp_path))
    assert (said.healthy, said.unknown) == ("1 Ethernet interface kept its link", ())
