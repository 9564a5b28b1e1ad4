from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.topology import Topology
from clusterbench.run_folder.passes import as_json
from clusterbench.tools.host_links import TOPOLOGY
from clusterbench.tools.nvidia_topo import Topology as Matrix
from tests.report.synthetic import case, observation, of_rows, outcome, reading

DEVICES = ("GPU0", "GPU1", "NIC0")


def matrix(between_gpus: str = "NV18") -> Any:
    ways = {("GPU0", "GPU1"): between_gpus, ("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "SYS"}
    paths = {
        device: {
            other: "X" if device == other else ways.get((device, other)) or ways[other, device] for other in DEVICES
        }
        for device in DEVICES
    }
    nodes = {"GPU0": "0", "GPU1": "1"}
    return as_json(Matrix(DEVICES, paths, cpus={}, numa_nodes=nodes, nic_names={}, legend={}))


def run(*records: dict[str, Any]) -> Reading:
    """A case with two ranks on each host, of which the first recorded how devices are joined."""
    hosts = tuple(f"n{number}" for number in range(1, len(records) + 1))
    links = case("links", world_size=2 * len(records))
    of_ranks = [of_rank for record in records for of_rank in (record, {})]
    observed = replace(observation(links, hosts=hosts), passes={TOPOLOGY.name: of_ranks})
    return reading((outcome(links), observed), cases=[links])


def test_hosts_that_are_alike_share_a_panel_and_the_odd_one_is_named() -> None:
    alike, odd = {"matrix": matrix()}, {"matrix": matrix("SYS")}
    kinds = Topology().select(run(alike, odd, alike))
    assert kinds is not None
    assert [kind.hosts for kind in kinds] == [("n1", "n3"), ("n2",)]
    assert Topology().answer(kinds) == "n2 joins devices in another way than the others."
    (same,) = Topology().select(run(alike, alike)) or []
    assert Topology().answer([same]) == "All hosts join their devices alike."


def test_cells_are_nvidia_smis_words_and_devices_have_their_numa_node() -> None:
    kinds = Topology().select(run({"matrix": matrix()}))
    (figure,) = Topology().draw(kinds or [])
    (axes,) = figure.figure.axes
    assert sorted(text.get_text() for text in axes.texts) == ["NV18", "NV18", "PIX", "PIX", "SYS", "SYS"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["GPU0, 0", "GPU1, 1", "NIC0"]
    assert len(axes.patches) == 9


def test_where_no_host_could_be_asked_there_is_no_chart() -> None:
    assert Topology().select(run({"no_matrix": "nvidia-smi is not on PATH"})) is None
    assert Topology().select(of_rows([])) is None


@pytest.mark.parametrize("damage", [{"devices": 3}, {"paths": {}}, {"paths": {"GPU0": 1}}, {"numa_nodes": 7}])
def test_a_damaged_record_is_no_chart(damage: dict[str, Any]) -> None:
    assert Topology().select(run({"matrix": {**matrix(), **damage}})) is None
