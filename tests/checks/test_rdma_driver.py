from __future__ import annotations

import pytest

from clusterbench.checks.rdma_driver import RdmaDriver
from tests.facts.healthy.infiniband import address
from tests.facts.machine import Machine, healthy, planted

RDMA = "/sys/class/infiniband"
BUS = "/sys/bus/pci/devices"


def card(number):
    return f"/sys/devices/pci{number:04x}:00/{address(number)}"


def judged(machine, folder):
    (said,) = RdmaDriver().judge_all([machine.host(folder)]).values()
    return said


def ethernet(machine, *numbers):
    for number in numbers:
        machine.files |= planted(card(number), {"class": "0x020000"})
    return machine


def add_function(machine, place, driver=None, of=None, device="0x101d"):
    """One more Ethernet function of Mellanox, which has no RDMA device."""
    machine.files |= planted(f"{BUS}/{place}", {"class": "0x020000", "vendor": "0x15b3", "device": device})
    if driver:
        machine.links[f"{BUS}/{place}/driver"] = f"../../../../bus/pci/drivers/{driver}"
    if of:
        machine.links[f"{BUS}/{place}/physfn"] = f"../{of}"
    return machine


def test_cards_without_any_rdma_device_are_found_on_a_host_alone(tmp_path):
    said = judged(healthy().without(RDMA, "/sys/module/mlx5_ib"), tmp_path)
    assert len(said.faults) == 8
    assert said.faults[3].where == f"network card {address(3)}"
    assert said.faults[3].what == "is on the PCIe bus and has no RDMA device: mlx5_ib is not loaded"
    assert said.faults[3].evidence == f"{BUS}/{address(3)}: 15b3:1021, driver mlx5_core; {RDMA}: 0 devices"
    assert {fault.severity for fault in said.faults} == {None}


def test_a_card_that_no_driver_took_is_found(tmp_path):
    machine = healthy().without(f"{RDMA}/mlx5_3")
    del machine.links[f"{card(3)}/driver"]
    (fault,) = judged(machine, tmp_path).faults
    assert fault.what == "is on the PCIe bus and has no RDMA device: no driver is bound to it"


def test_a_device_that_is_missing_though_its_module_is_loaded_is_found(tmp_path):
    (fault,) = judged(healthy().without(f"{RDMA}/mlx5_3"), tmp_path).faults
    assert fault.what == "is on the PCIe bus and has no RDMA device: mlx5_ib made none"


def test_amazons_card_is_known(tmp_path):
    machine = Machine(environment={"gpus": [], "pcie": []})
    machine.files |= planted(f"{BUS}/0000:00:1e.0", {"class": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"})
    machine.files |= planted("/sys/module/nvidia", {"version": "570"})
    machine.links[f"{BUS}/0000:00:1e.0/driver"] = "../../../bus/pci/drivers/efa"
    machine.programs = {"systemd-detect-virt --container": "none\n"}
    (fault,) = judged(machine, tmp_path).faults
    assert (fault.what, fault.severity) == ("is on the PCIe bus and has no RDMA device: efa is not loaded", None)


@pytest.mark.parametrize(("number", "severity"), [(8, None), (4, None), (2, "note")])
def test_ethernet_cards_without_rdma_are_errors_where_there_is_one_for_two_gpus(tmp_path, number, severity):
    machine = ethernet(healthy().without(RDMA), *range(number))
    for each in range(number, 8):
        machine.without(f"{BUS}/{address(each)}", card(each))
    assert [fault.severity for fault in judged(machine, tmp_path).faults] == [severity] * number


def test_one_ethernet_card_of_eight_alike_is_an_error(tmp_path):
    (fault,) = judged(ethernet(healthy().without(f"{RDMA}/mlx5_3"), *range(8)), tmp_path).faults
    assert (fault.where, fault.severity) == (f"network card {address(3)}", None)


def test_an_ethernet_card_of_another_kind_is_a_note(tmp_path):
    (fault,) = judged(add_function(healthy(), "0000:e1:00.0", "mlx5_core"), tmp_path).faults
    assert fault.severity == "note"


@pytest.mark.parametrize(
    ("place", "driver", "of"),
    [
        (address(3).replace(":00.0", ":00.1"), "mlx5_core", None),
        ("0000:e1:00.0", "vfio-pci", None),
        ("0000:e1:00.2", None, "0000:e1:00.0"),
    ],
    ids=["second port of a bond", "given to a virtual machine", "virtual function that nothing uses"],
)
def test_a_function_that_has_none_by_its_nature_is_silent(tmp_path, place, driver, of):
    said = judged(add_function(healthy(), place, driver, of), tmp_path)
    assert (said.faults, said.unknown) == ((), ())


def test_a_container_may_show_none(tmp_path):
    machine = healthy().without(RDMA)
    machine.programs["systemd-detect-virt --container"] = "docker\n"
    said = judged(machine, tmp_path)
    assert said.unknown[0].why == "a container may be shown no RDMA devices"
    assert said.faults == ()


def test_a_host_without_cards_or_without_a_bus(tmp_path):
    machine = healthy().without(RDMA)
    for number in range(8):
        machine.without(f"{BUS}/{address(number)}", card(number))
    assert judged(machine, tmp_path).not_applicable == "no network cards for RDMA here"
    assert judged(Machine(), tmp_path / "empty").unknown[0].why == f"{BUS} is not there"
