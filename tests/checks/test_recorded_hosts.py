"""Checks of ports over what ``ibstat`` recorded of real hosts, storage and management cards among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterbench.checks import judge
from clusterbench.checks._training import training
from clusterbench.checks.link_layer import LinkLayer
from clusterbench.checks.port_rate import PortRate
from clusterbench.checks.port_state import PortState
from clusterbench.checks.subnet_manager import SubnetManager
from clusterbench.checks.training_nics import TrainingNics
from tests.checks.cards import add_card
from tests.facts.machine import Machine, healthy, planted

SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")


def recorded(name: str) -> Machine:
    """The healthy host with the cards that a sample of ``ibstat`` describes in place of its own."""
    machine = healthy().without("/sys/class/infiniband")
    for block in re.split(r"^CA (?=')", (SAMPLES / name).read_text(), flags=re.MULTILINE)[1:]:
        said = dict(re.findall(r"^\s*([\w ]+): (.+)$", block, re.MULTILINE))
        card = block.split("'")[1]
        is_active = said["State"] == "Active"
        add_card(
            machine,
            card,
            rate=f"{said['Rate']} Gb/sec (4X)",
            link_layer=said["Link layer"],
            state="4: ACTIVE" if is_active else "1: DOWN",
            hca_type=said["CA type"],
        )
        lids = {"lid": said["Base lid"], "sm_lid": said["SM lid"]}
        machine.files |= planted(f"/sys/class/infiniband/{card}/ports/1", lids)
    return machine


def test_eight_cards_of_infiniband_train_and_four_of_ethernet_do_not(tmp_path):
    host = recorded("ibstat_some_down_0.txt").host(tmp_path)
    ours = training(host)
    assert (len(ours.ports), len(ours.others)) == (8, 4)
    assert {port.link_layer for port in ours.ports} == {"InfiniBand"}
    said = PortState().judge(host)
    assert [(fault.where, fault.severity) for fault in said.faults] == [
        ("mlx5_2 port 1", "note"),
        ("mlx5_7 port 1", "note"),
        ("mlx5_8 port 1", "note"),
    ]
    assert said.healthy == "9 RDMA ports ACTIVE"
    assert not PortRate().judge(host).faults
    assert SubnetManager().judge(host).healthy.startswith("8 InfiniBand ports")
    (fault,) = TrainingNics().judge(host).faults
    assert fault.where == "mlx5_1"


def test_one_ethernet_card_of_the_model_of_eight_for_infiniband_is_no_mixture(tmp_path):
    hosts = [recorded("ibstat_a100_all_active.txt").host(tmp_path / name, name) for name in ("n1", "n2")]
    for said in (LinkLayer().judge_alone(hosts[0]), judge(hosts)["link_layer"]["n2"]):
        assert not said.faults
        assert said.healthy


def test_of_twelve_cards_of_ethernet_the_eight_faster_ones_train(tmp_path):
    host = recorded("ibstat_h100_all_active_1.txt").host(tmp_path)
    assert {port.rate for port in training(host).ports} == {"400 Gb/sec (4X)"}
    assert len(training(host).ports) == 8
    assert not PortState().judge(host).faults
    assert not PortRate().judge(host).faults


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("ibstat_a100_all_active.txt", "NVIDIA A100-SXM4-80GB"),
        ("ibstat_h100_all_active_2.txt", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_hosts_that_were_recorded_as_well_have_no_fault_of_state_rate_or_subnet_manager(tmp_path, name, product):
    machine = recorded(name)
    machine.environment["gpus"] = [{"name": product}] * 8
    host = machine.host(tmp_path)
    for check in (PortState, PortRate, SubnetManager):
        assert not check().judge(host).faults
