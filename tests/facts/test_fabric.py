import json

import pytest

from clusterbench.facts import Files
from clusterbench.facts.fabric import BUS, FABRIC_MANAGER, IMEX, Fabric, Imex, ImexNode, imex
from tests.facts.machine import Machine, healthy, planted


def read(machine, folder):
    machine.write(folder)
    return Fabric.read(Files(folder, machine.run))


def test_switches_are_counted_and_the_service_has_one_word(tmp_path):
    facts = read(healthy(), tmp_path)
    assert (facts.num_switches, facts.manager, facts.imex) == (4, "active", None)
    assert facts.unread[IMEX] == "nvidia-imex-ctl is not on PATH"


@pytest.mark.parametrize(
    ("printed", "word"),
    [
        ("LoadState=not-found\nActiveState=inactive\nSubState=dead\n", "not-found"),
        ("LoadState=loaded\nActiveState=failed\nSubState=failed\n", "failed"),
        ("Failed to connect to bus", None),
    ],
)
def test_a_service_that_is_absent_is_told_from_one_that_failed(tmp_path, printed, word):
    machine = healthy()
    machine.programs[FABRIC_MANAGER] = printed
    assert read(machine, tmp_path).manager == word


def test_no_program_is_asked_where_no_gpu_is(tmp_path):
    card = planted(f"{BUS}/0000:01:00.0", {"class": "0x020000", "vendor": "0x15b3"})
    facts = read(Machine(files=card), tmp_path)
    assert (facts.num_switches, facts.manager, facts.unread) == (0, None, {})


def test_without_a_bus_nothing_is_known(tmp_path):
    facts = read(Machine(), tmp_path)
    assert facts.num_switches is None
    assert facts.unread == {BUS: "is not there"}


def test_a_domain_names_nodes_by_host_name_and_connections_that_are_broken():
    connections = {"0": {"host": "10.0.0.1", "status": "CONNECTED"}, "1": {"host": "10.0.0.2", "status": "INVALID"}}
    node = {"status": "READY", "host": "10.0.0.1", "hostName": "tray1", "connections": connections}
    gone = {"status": "UNAVAILABLE", "host": "10.0.0.2", "hostName": "N/A", "connections": {}}
    assert imex(json.dumps({"status": "DEGRADED", "nodes": {"0": node, "1": gone}})) == Imex(
        "DEGRADED",
        (ImexNode("tray1", "READY", ("10.0.0.2: INVALID",)), ImexNode("10.0.0.2", "UNAVAILABLE", ())),
    )


@pytest.mark.parametrize("printed", ["", "[]", "null", '{"nodes": {}}', '{"status": 7}', "[" * 100_000])
def test_anything_else_is_no_domain(printed):
    assert imex(printed) is None


@pytest.mark.parametrize("nodes", ['"oops"', "[]", '{"0": 1}', '{"0": {"connections": []}}'])
def test_nodes_of_another_form_are_left_out_or_blank(nodes):
    domain = imex(f'{{"status": "UP", "nodes": {nodes}}}')
    assert domain is not None
    assert domain.status == "UP"
