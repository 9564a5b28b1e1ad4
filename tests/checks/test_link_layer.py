from __future__ import annotations

import pytest

from clusterbench.checks import judge
from clusterbench.checks.link_layer import LinkLayer
from tests.checks.cards import add_card
from tests.facts.machine import healthy, others

LAYER = "/sys/class/infiniband/mlx5_3/ports/1/link_layer"


def test_a_host_of_roce_among_infiniband_is_found(tmp_path):
    machines = {"n0": healthy(), "n1": healthy(), "n2": others()["roce"]}
    said = LinkLayer().judge_all([machine.host(tmp_path, name) for name, machine in machines.items()])
    (fault,) = said["n2"].faults
    assert fault.what == "the link layer of training is Ethernet, and InfiniBand on most hosts"
    assert said["n0"].healthy


def test_one_card_that_is_set_to_the_other_is_found_on_a_single_host(tmp_path):
    machine = healthy()
    machine.files[LAYER] = "Ethernet\n"
    (said,) = LinkLayer().judge_all([machine.host(tmp_path)]).values()
    (fault,) = said.faults
    assert (fault.where, fault.what) == ("mlx5_3 port 1", "is Ethernet, and 7 cards of its kind here are InfiniBand")
    assert fault.evidence == f"{LAYER}: Ethernet"


@pytest.mark.parametrize(
    ("kind", "layer", "other"), [("usual", "InfiniBand", "Ethernet"), ("roce", "Ethernet", "InfiniBand")]
)
def test_the_doctor_finds_it_on_a_host_alone(tmp_path, kind, layer, other):
    machine = {"usual": healthy(), **others()}[kind]
    assert judge([machine.host(tmp_path, "well")])["link_layer"]["well"].healthy == (
        f"8 training ports are {layer}, and no card of their kind another"
    )
    machine.files[LAYER] = f"{other}\n"
    (fault,) = judge([machine.host(tmp_path, "ill")])["link_layer"]["ill"].faults
    assert (fault.where, fault.what) == ("mlx5_3 port 1", f"is {other}, and 7 cards of its kind here are {layer}")


def test_of_a_host_alone_without_ports_nothing_is_asked(tmp_path):
    said = judge([healthy().without("/sys/class/infiniband").host(tmp_path)])["link_layer"]["n1"]
    assert said.not_applicable == "one host alone has no other to be held against"


def test_storage_cards_on_ethernet_are_no_mixture(tmp_path):
    machine = healthy()
    for number in (8, 9):
        add_card(machine, f"mlx5_{number}", link_layer="Ethernet")
    (said,) = LinkLayer().judge_all([machine.host(tmp_path)]).values()
    assert not said.faults


def test_nearly_as_many_of_the_other_kind_are_storage(tmp_path):
    machine = healthy()
    for number in (5, 6, 7):
        machine = machine.without(f"/sys/class/infiniband/mlx5_{number}")
    machine.files[LAYER] = "Ethernet\n"
    (said,) = LinkLayer().judge_all([machine.host(tmp_path / "one of five")]).values()
    assert said.faults
    machine.files[LAYER.replace("mlx5_3", "mlx5_4")] = "Ethernet\n"
    (said,) = LinkLayer().judge_all([machine.host(tmp_path / "two of five")]).values()
    assert not said.faults


def test_two_cards_of_which_each_is_something_else_say_nothing(tmp_path):
    machine = healthy().without("/sys/class/infiniband")
    add_card(machine, "mlx5_0", rate="40 Gb/sec (4X QDR)", link_layer="Ethernet", hca_type="MT4119")
    add_card(machine, "mlx5_1", rate="100 Gb/sec (4X EDR)", hca_type="MT4119")
    (said,) = LinkLayer().judge_all([machine.host(tmp_path)]).values()
    assert not said.faults


def test_a_host_without_ports_is_not_compared(tmp_path):
    (said,) = LinkLayer().judge_all([healthy().without("/sys/class/infiniband").host(tmp_path)]).values()
    assert said.not_applicable
