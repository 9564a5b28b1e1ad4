"""The matrices of ``nvidia-smi topo``: real ones where they are at hand, and the shapes that mislead a parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools.nvidia_topo import Topology, parse, parse_peers

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

TWO = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tPIX\t0-7,16-23\t0\t\tN/A
GPU1\tNV4\t X \tSYS\t8-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_7
"""

PEERS = """\
 \tGPU0\tGPU1\t
 GPU0\tX\tOK\t
 GPU1\tCNS\tX\t

Legend:

  X    = Self
  CNS  = Chipset not supported
"""


def test_a_matrix_with_escapes_empty_cells_and_a_legend() -> None:
    topology = parse(TWO)
    assert (topology.devices, topology.gpus, topology.nics) == (("GPU0", "GPU1", "NIC0"), ("GPU0", "GPU1"), ("NIC0",))
    assert topology.paths["GPU1"] == {"GPU0": "NV4", "GPU1": "X", "NIC0": "SYS"}
    assert (topology.links("GPU0", "GPU1"), topology.links("GPU0", "NIC0"), topology.links("GPU0", "GPU0")) == (4, 0, 0)
    assert topology.cpus == {"GPU0": "0-7,16-23", "GPU1": "8-15"}
    assert topology.numa_nodes == {"GPU0": "0", "GPU1": "1"}
    assert topology.nic_names == {"NIC0": "mlx5_7"}
    assert topology.legend["PIX"] == "Connection traversing at most a single PCIe bridge"


def test_tabs_that_became_blanks_and_rows_that_end_early() -> None:
    pasted = "\n".join(" ".join(line.split()) for line in TWO.splitlines())
    assert parse(pasted).paths == parse(TWO).paths
    assert parse(pasted).cpus == parse(TWO).cpus


def test_names_that_the_driver_cut_are_told_apart() -> None:
    topology = parse("\tGPU0\tmlx5_ib\tmlx5_ib\nGPU0\t X \tPIX\tSYS\nmlx5_ib\tPIX\t X \tSYS\nmlx5_ib\tSYS\tSYS\t X \n")
    assert topology.devices == ("GPU0", "mlx5_ib#0", "mlx5_ib#1")
    assert topology.paths["mlx5_ib#1"]["GPU0"] == "SYS"


def test_a_gpu_without_affinity_has_none() -> None:
    assert parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\tN/A\n").cpus == {}
    assert parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-3\tN/A\n").numa_nodes == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvidia-smi: command not found", "nvidia-smi topo -m printed no header: 'nvidia-smi: command not found'"),
        ("", "nvidia-smi topo -m printed no header: ''"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "nvidia-smi topo -m lacks the row of GPU1; instead there is ''"),
        (
            "\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNV4\n",
            "nvidia-smi topo -m has a row that cannot be read for 2 devices: 'GPU0\\t X'",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tFAR\nGPU1\tFAR\t X \n",
            "nvidia-smi topo -m has a row that cannot be read for 2 devices: 'GPU0\\t X \\tFAR'",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV2\t X \n",
            "nvidia-smi topo -m contradicts itself: GPU0 reaches GPU1 by NV4, and back by NV2",
        ),
        (
            "\tGPU0\tCPU Affinity\nGPU0\t X \tall\n",
            "nvidia-smi topo -m has a 'CPU Affinity' that cannot be read, 'all': 'GPU0\\t X \\tall'",
        ),
        (
            "\tGPU0\tSpeed Limit\nGPU0\t X \t4\n",
            "nvidia-smi topo -m has a header that cannot be read: 'GPU0\\tSpeed Limit'",
        ),
    ],
)
def test_what_cannot_be_read_is_quoted(text: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("at", range(TWO.index("Legend:")))
def test_a_matrix_that_is_cut_is_refused_or_whole(at: int) -> None:
    try:
        assert parse(TWO[:at]).paths == parse(TWO).paths
    except ToolError as error:
        assert str(error).startswith("nvidia-smi topo -m")  # noqa: PT017  either way is right


def test_who_may_read_whom() -> None:
    access = parse_peers(PEERS)
    assert access.status == {"GPU0": {"GPU0": "X", "GPU1": "OK"}, "GPU1": {"GPU0": "CNS", "GPU1": "X"}}
    assert access.legend["CNS"] == "Chipset not supported"


def test_a_cut_matrix_of_peers_is_refused() -> None:
    with pytest.raises(ToolError) as caught:
        parse_peers(" \tGPU0\tGPU1\n GPU0\tX\n GPU1\tOK\n")
    assert str(caught.value) == "nvidia-smi topo -p2p has a row that cannot be read for 2 GPUs: ' GPU0\\tX'"


# Real ones


def sample(name: str) -> Topology:
    return parse((SAMPLES / f"nvidia_smi_topo_m_{name}.txt").read_text())


@real
@pytest.mark.parametrize(
    ("name", "links", "second"), [("a100_nv12_nonic", 12, "24-47"), ("h100_nv18_nonic", 18, "52-103")]
)
def test_eight_gpus_on_switches(name: str, links: int, second: str) -> None:
    topology = sample(name)
    assert (len(topology.gpus), topology.nics, topology.legend) == (8, (), {})
    assert {topology.links(a, b) for a in topology.gpus for b in topology.gpus if a != b} == {links}
    assert (topology.cpus["GPU7"], topology.numa_nodes["GPU7"]) == (second, "1")


@real
def test_eight_a800_with_four_cards() -> None:
    topology = sample("a800_8gpu_4nic")
    assert (len(topology.gpus), topology.nics) == (8, ("NIC0", "NIC1", "NIC2", "NIC3"))
    assert topology.nic_names == {f"NIC{number}": f"mlx5_{number}" for number in range(4)}
    assert [topology.paths[f"GPU{gpu}"]["NIC1"] for gpu in range(5)] == ["NODE", "NODE", "NODE", "PIX", "SYS"]
    assert (topology.cpus["GPU4"], topology.numa_nodes["GPU4"]) == ("32-63,96-127", "1")
    assert len(topology.legend) == 7


@real
def test_a_header_with_escapes_and_a_bonded_pair() -> None:
    topology = sample("ansi_3090_2xv100_nv6")
    assert topology.devices == ("GPU0", "GPU1", "GPU2")
    assert (topology.links("GPU1", "GPU2"), topology.paths["GPU0"]["GPU1"]) == (6, "NODE")
    assert set(topology.cpus.values()) == {"0-63"}


@real
@pytest.mark.parametrize(("name", "cards"), [("azure_ndmv4_a100", 8), ("azure_ndv4_a100", 9)])
def test_cards_of_one_name(name: str, cards: int) -> None:
    topology = sample(name)
    assert (len(topology.gpus), len(topology.nics), len(topology.devices)) == (8, cards, len(set(topology.devices)))
    assert (topology.nics[-1], topology.paths["GPU0"]["mlx5_ib#0"], topology.paths["GPU7"]["mlx5_ib#7"]) == (
        "mlx5_ib#7",
        "NODE",
        "NODE",
    )
    assert (topology.cpus["GPU0"], topology.numa_nodes["GPU4"]) == ("24-47", "3")


@real
def test_a_dgx_1_has_one_or_two_links_or_none() -> None:
    topology = sample("dgx1_v100")
    assert topology.nics == ("mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3")
    assert [topology.links("GPU0", f"GPU{gpu}") for gpu in range(8)] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert topology.paths["GPU4"]["mlx5_2"] == "PIX"
    assert topology.numa_nodes == {}


@real
def test_small_machines_without_nvlink() -> None:
    two = sample("pcie_2gpu_2nic")
    assert (two.paths["GPU0"]["GPU1"], two.paths["NIC0"]["NIC1"], two.nic_names["NIC1"]) == ("PHB", "PIX", "mlx5_1")
    assert two.numa_nodes == {"GPU0": "0", "GPU1": "0"}
    old = sample("v100")
    assert (old.paths["GPU0"]["GPU1"], old.paths["GPU1"]["mlx5_0"], old.cpus["GPU1"]) == ("PIX", "SYS", "0-11,24-35")


@real
def test_all_of_eight_h100_may_read_each_other() -> None:
    access = parse_peers((SAMPLES / "nvidia_smi_topo_p2p_r_h100.txt").read_text())
    assert len(access.devices) == 8
    assert {access.status[a][b] for a in access.devices for b in access.devices if a != b} == {"OK"}
    assert access.legend["TNS"] == "Topology not supported"
