from __future__ import annotations

import pytest

from clusterbench.checks.gpus_alike import GpusAlike
from clusterbench.facts import Host
from tests.facts.healthy.described import gpu_address, gpu_card, network_card


def host(name, *gone, bus=""):
    """One with eight GPUs but for those that are gone; with ``bus`` their addresses are others."""
    cards = [gpu_card(number) for number in range(8) if number not in gone]
    for card in cards if bus else ():
        card["address"] = f"{bus}{card['address'][4:]}"
    return Host(name, {"pcie": [*cards, network_card(0)]})


def test_a_gpu_that_left_the_bus_is_named_by_its_address():
    said = GpusAlike().judge_all([host("n0"), host("n1", 3), host("n2")])
    (fault,) = said["n1"].faults
    assert (fault.where, fault.what) == (f"GPU at {gpu_address(3)}", "is not on the PCIe bus")
    assert fault.evidence == "/sys/bus/pci/devices: 7 GPUs; on 2 of 3 hosts 8"
    assert said["n0"].healthy == "8 GPUs on the PCIe bus"


def test_where_the_bus_was_numbered_anew_the_number_is_the_finding():
    (fault,) = GpusAlike().judge_all([host("n0"), host("n1", 3, bus="0001"), host("n2")])["n1"].faults
    assert (fault.where, fault.what) == ("", "has 7 GPUs on the PCIe bus, and most hosts have 8")


def test_other_addresses_alone_are_in_order():
    said = GpusAlike().judge_all([host("n0"), host("n1", bus="0001"), host("n2")])
    assert not any(of_host.faults for of_host in said.values())


def test_of_two_hosts_both_are_named():
    said = GpusAlike().judge_all([host("n0"), host("n1", 3)])
    what = "the number of GPUs on the PCIe bus differs between hosts: 8 on 1 host and 7 on 1 host"
    assert [fault.what for of_host in said.values() for fault in of_host.faults] == [what, what]


@pytest.mark.parametrize("hosts", [[host("n0")], [host("n0"), Host("n1", {})]])
def test_one_host_is_like_no_other(hosts):
    assert GpusAlike().judge_all(hosts)["n0"].unknown


def test_hosts_without_gpus_have_none():
    assert GpusAlike().judge_all([host("n0", *range(8)), host("n1", *range(8))])["n0"].not_applicable == "no GPUs here"
