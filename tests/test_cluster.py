"""Accelerators: exact names, dense figures, a source for each."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from clusterbench.cluster import (
    Cluster,
    Found,
    MachineOptions,
    accelerators,
    decide_cluster,
    find_accelerator,
    named_accelerator,
    nearest_accelerator,
)
from clusterbench.errors import SuiteError

SHARED = Path(__file__).resolve().parents[2] / "shared"

RECORDED_AS = {
    "V100-SXM2-32GB": "v100-sxm2-32gb",
    "A100-SXM-80GB": "a100-sxm4-80gb",
    "A100-PCIe-80GB": "a100-pcie-80gb",
    "A800-SXM-80GB": "a800-sxm4-80gb",
    "H100-SXM-80GB": "h100-sxm-80gb",
    "H100-PCIe-80GB": "h100-pcie-80gb",
    "H100-NVL": "h100-nvl",
    "H200-SXM-141GB": "h200-sxm-141gb",
    "GH200-SXM": "gh200-96gb",
    "H800-SXM-80GB": "h800-sxm-80gb",
    "H20-96GB": "h20-96gb",
    "B200-SXM": "b200-sxm",
    "B300-SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX 4090": "rtx-4090",
    "MI250X (2 GCDs)": "mi250x-gcd",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
}


@pytest.mark.parametrize("name", accelerators())
def test_every_entry_has_a_source_a_peak_and_a_name(name):
    found = accelerators()[name]
    assert found.source
    assert found.nvml_names
    assert found.peak_flops_per_s
    assert all(1e13 < peak < 2e16 for peak in found.peak_flops_per_s.values())
    assert set(found.peak_flops_per_s) <= {"bfloat16", "float16", "float8", "float4"}


@pytest.mark.parametrize("name", accelerators())
def test_a_usual_server_is_named_with_its_gpus(name):
    found = accelerators()[name]
    assert bool(found.server) == (found.gpus_per_node is not None)
    assert found.usual_gpus_per_node == (found.gpus_per_node or 8)


@pytest.mark.parametrize(("gpu", "of_a_node"), [("h100-sxm-80gb", 8), ("gb200", 4), ("gh200-96gb", 1), ("rtx-4090", 8)])
def test_a_machine_elsewhere_has_the_usual_server_of_its_card(gpu, of_a_node):
    assert decide_cluster(MachineOptions(gpu=gpu, num_nodes=2), Found(), None).ranks_per_node == of_a_node
    said = decide_cluster(MachineOptions(gpu=gpu, num_nodes=2, gpus_per_node=2), Found(), None)
    assert said.ranks_per_node == 2


def test_a_part_of_a_name_is_answered_with_the_cards_that_begin_so():
    with pytest.raises(SuiteError, match=r"'h200' is not in the tables\. Did you mean h200-sxm-141gb\?"):
        named_accelerator("h200")


def test_no_name_belongs_to_two_entries():
    names = [name for found in accelerators().values() for name in found.nvml_names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("nvml_name", "bfloat16"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
    ],
)
def test_peaks_are_dense(nvml_name, bfloat16):
    assert find_accelerator(nvml_name).peak_flops_per_s["bfloat16"] == bfloat16


@pytest.mark.parametrize(
    ("name", "sparse_float8", "memory", "memory_rate", "link_both_ways"),
    [
        ("a100-sxm4-80gb", None, 80e9, 2.039e12, 600e9),
        ("h100-sxm-80gb", 3958e12, 80e9, 3.35e12, 900e9),
        ("h200-sxm-141gb", 3958e12, 141e9, 4.8e12, 900e9),
        ("b200-sxm", 9000e12, 180e9, 8e12, 1.8e12),
        ("mi300x", 5229.8e12, 192e9, 5.3e12, 896e9),
    ],
)
def test_figures_are_those_of_the_data_sheets_without_sparsity_and_one_way(
    name, sparse_float8, memory, memory_rate, link_both_ways
):
    """As NVIDIA's and AMD's data sheets print them: FLOP/s with sparsity, links in both directions together."""
    card = accelerators()[name]
    assert card.peak_flops_per_s.get("float8") == (
        pytest.approx(sparse_float8 / 2, rel=0.002) if sparse_float8 else None
    )
    assert (card.memory_bytes, card.memory_bytes_per_s) == (memory, pytest.approx(memory_rate, rel=0.02))
    assert card.link_bytes_per_s == link_both_ways / 2


def test_v100_has_no_bfloat16():
    assert dict(find_accelerator("Tesla V100-SXM2-32GB").peak_flops_per_s) == {"float16": 125e12}


@pytest.mark.parametrize(
    "nvml_name",
    [
        "NVIDIA H200 NVL",
        "NVIDIA H100",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "nvidia h200",
        "H200",
        "",
    ],
)
def test_a_name_that_only_looks_alike_is_unknown(nvml_name):
    assert find_accelerator(nvml_name) is None


def test_nearest_goes_by_the_first_words():
    assert nearest_accelerator("NVIDIA H200 NVL") == "NVIDIA H200"
    assert nearest_accelerator("NVIDIA L40") == "NVIDIA L40S"
    assert nearest_accelerator("Intel Data Center GPU Max 1550") is None


@pytest.mark.skipif(not SHARED.exists(), reason="../shared absent")
def test_figures_agree_with_the_collected_table():
    with (SHARED / "data" / "hardware_peaks.csv").open(newline="") as file:
        rows = {row["gpu"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(RECORDED_AS)
    for gpu, row in rows.items():
        found = accelerators()[RECORDED_AS[gpu]]
        dies = 2 if "2 GCDs" in gpu else 1
        peaks = found.peak_flops_per_s
        pairs = [
            (peaks.get("bfloat16", peaks.get("float16")), row["bf16_dense_tflops"], 1e12),
            (peaks.get("float8"), row["fp8_dense_tflops"], 1e12),
            (found.memory_bytes, row["mem_gb"], 1e9),
        ]
        if gpu != "H800-SXM-80GB":  # the table has no memory and link of it, which were found later
            pairs.append((found.memory_bytes_per_s, row["mem_bw_TBps"], 1e12))
        if gpu != "GH200-SXM":  # the table has its PCIe, and its host is behind NVLink-C2C
            pairs.append((found.pcie_bytes_per_s, row["pcie_unidir_GBps"], 1e9))
        if dies == 1 and gpu[:4] not in (
            "A800",
            "H800",
        ):  # the table's link figure is the card's, and it has none of them
            pairs.append((found.link_bytes_per_s, row["scaleup_unidir_GBps"], 1e9))
        if gpu != "B300-SXM":  # its sources disagree about float4, so none is recorded
            pairs.append((peaks.get("float4"), row["fp4_dense_tflops"], 1e12))
        for recorded, collected, unit in pairs:
            assert recorded == (pytest.approx(float(collected) * unit / dies) if collected else None), gpu


def test_the_h800_is_an_h100_with_less_of_a_link():
    h800, h100 = (accelerators()[name] for name in ("h800-sxm-80gb", "h100-sxm-80gb"))
    assert h800.peak_flops_per_s["bfloat16"] == h100.peak_flops_per_s["bfloat16"]
    # FlashMLA, docs/20250422-new-kernel-deep-dive.md: 3.35 TB/s; arXiv:2505.09343: 400 GB/s in place of 900
    assert h800.memory_bytes_per_s == h100.memory_bytes_per_s == 3.35e12
    assert h800.link_bytes_per_s == 200e9


def test_a_cluster_looks_its_gpus_up():
    cluster = Cluster(8, 8, "cuda", "NVIDIA H100 80GB HBM3", None, tuple(f"gpu-{node:02}" for node in range(8)))
    assert cluster.world_size == 64
    assert cluster.accelerator.link_bytes_per_s == 450e9
    peak, source = cluster.peak_flops_per_s("bfloat16")
    assert peak == 989e12
    assert "H100 datasheet (its FLOP/s are with sparsity, and halved here)" in source
    assert cluster.peak_flops_per_s("float32") is None


def test_a_cpu_has_no_peak_even_where_a_gpu_is_named():
    cluster = Cluster(1, 4, "cpu", gpu_name="NVIDIA H200")
    assert cluster.accelerator is None
    assert cluster.peak_flops_per_s("bfloat16") is None


def test_an_unknown_gpu_is_a_sentence_and_a_hint():
    cluster = Cluster(1, 8, "cuda", "NVIDIA H200 NVL")
    assert cluster.missing_peak("bfloat16", num_rows=12) == (
        "No peak FLOP/s on record for 'NVIDIA H200 NVL' in bfloat16, so mfu is left empty in 12 rows.\n"
        "hint: add it with its source to clusterbench/hardware/nvidia.toml; the nearest entry is 'NVIDIA H200'"
    )


def test_a_known_gpu_without_the_dtype_names_no_neighbour():
    assert Cluster(1, 8, "cuda", "NVIDIA H200").missing_peak("float64", num_rows=1) == (
        "No peak FLOP/s on record for 'NVIDIA H200' in float64, so mfu is left empty in 1 row.\n"
        "hint: add it with its source to clusterbench/hardware/nvidia.toml"
    )


# What the machine is: decided once, for a plan and for a run

H200 = ("NVIDIA H200",) * 8


def decided(found: Found, of_suite: int | None = 3, **asked: Any) -> Cluster:
    return decide_cluster(MachineOptions(**asked), found, of_suite)


def a_run(*hosts: str, gpu_names: tuple[str, ...] = (), agents_per_node: int | None = None) -> Found:
    return Found(gpu_names, None if gpu_names else "no driver", "AMD EPYC", hosts, agents_per_node)


def test_cpu_ranks_are_the_command_lines_then_the_suites_then_two() -> None:
    for found in (Found(), a_run("a")):
        assert decided(found, of_suite=None).ranks_per_node == 2
        assert decided(found, of_suite=3).ranks_per_node == 3
        assert decided(found, of_suite=3, num_ranks=5).ranks_per_node == 5


def test_every_gpu_that_is_found_has_a_rank() -> None:
    for found in (Found(H200), a_run("a", gpu_names=H200)):
        cluster = decided(found)
        assert (cluster.device, cluster.ranks_per_node, cluster.gpu_name) == ("cuda", 8, "NVIDIA H200")
        assert decided(found, gpus_per_node=4).ranks_per_node == 4
        assert decided(found, device="cpu") == Cluster(1, 3, "cpu", None, found.cpu_name, found.hosts)


def test_ranks_may_share_a_gpu() -> None:
    for found in (Found(H200[:1]), a_run("a", gpu_names=H200[:1])):
        cluster = decided(found, ranks_per_gpu=4)
        assert (cluster.world_size, cluster.ranks_per_gpu, cluster.size) == (4, 4, "1 node x 1 GPU with 4 ranks each")
    assert decided(a_run("a", gpu_names=H200), ranks_per_gpu=1).size == "1 node x 8 GPUs"
    launched = a_run("a", "b", gpu_names=H200[:2], agents_per_node=4)
    assert decided(launched, ranks_per_gpu=2).world_size == 8


def test_a_plan_may_be_for_a_machine_elsewhere() -> None:
    assert decided(Found(), num_nodes=4, gpus_per_node=8) == Cluster(4, 8, "cuda")
    assert decided(Found(H200[:1]), num_nodes=4, gpus_per_node=8) == Cluster(4, 8, "cuda", "NVIDIA H200")


def test_under_a_launcher_each_process_owns_one_rank_unless_told_otherwise() -> None:
    two_hosts = a_run("a", "b", agents_per_node=2)
    assert decided(two_hosts).ranks_per_node == 2
    assert decided(two_hosts, ranks_per_agent=4).ranks_per_node == 8
    assert decided(two_hosts, ranks_per_agent=0).ranks_per_node == 6
    assert decided(a_run("a", "b", gpu_names=H200, agents_per_node=1), ranks_per_agent=0).world_size == 16
    assert decided(two_hosts, num_ranks=2).ranks_per_node == 2
    assert decided(a_run("a", "b", agents_per_node=1), num_ranks=4, ranks_per_agent=0).world_size == 8


def test_a_plain_run_owns_as_many_ranks_as_its_process_is_told() -> None:
    assert decided(a_run("a"), ranks_per_agent=4).ranks_per_node == 4
    assert decided(a_run("a"), ranks_per_agent=0).ranks_per_node == 3
    assert decided(a_run("a", gpu_names=H200), ranks_per_agent=2).ranks_per_node == 2


@pytest.mark.parametrize(
    ("found", "asked", "said"),
    [
        (Found(), {"device": "cpu", "gpus_per_node": 8}, "--gpus-per-node has no effect with --device cpu."),
        (a_run("a"), {"device": "cpu", "gpus_per_node": 8}, "--gpus-per-node has no effect with --device cpu."),
        (Found(H200), {"num_ranks": 8}, "--num-ranks counts CPU ranks and has no effect on GPUs."),
        (a_run("a", gpu_names=H200), {"num_ranks": 8}, "--num-ranks counts CPU ranks and has no effect on GPUs."),
        (Found(), {"device": "cuda"}, "no GPU was found on this host.\nhint: 'clusterbench plan SUITE --gpus-per-node"),
        (a_run("a"), {"device": "cuda"}, "no GPU was found on a: no driver\nhint: 'clusterbench plan SUITE"),
        (a_run("a"), {"gpus_per_node": 8}, "no GPU was found on a: no driver\nhint: 'clusterbench plan SUITE"),
        (
            a_run("a"),
            {"num_nodes": 2},
            "--num-nodes 2 needs a launcher that starts clusterbench on as many hosts; this is one process on one host."
            "\nhint: 'mpirun -n 2 -host a,b clusterbench run SUITE --ranks-per-agent all'",
        ),
        (
            a_run("a", gpu_names=H200),
            {"gpus_per_node": 9},
            "9 ranks on a node need as many GPUs, but a has 8.\nhint: start fewer processes per node",
        ),
        (
            a_run("a", gpu_names=H200, agents_per_node=9),
            {},
            "9 ranks on a node need as many GPUs, but a has 8.\nhint: start fewer processes per node",
        ),
        (
            a_run("a", gpu_names=H200[:2], agents_per_node=5),
            {"ranks_per_gpu": 2},
            "5 ranks on a node need as many GPUs, but a has 2, with 2 ranks each.\nhint: start fewer processes",
        ),
        (a_run("a"), {"ranks_per_gpu": 2}, "--ranks-per-gpu has no effect on CPU ranks. Say --num-ranks."),
        (
            a_run("a", "b", gpu_names=H200, agents_per_node=1),
            {"gpus_per_node": 8},
            "--gpus-per-node 8 asks for 8 ranks on a node, but there 1 process of clusterbench owns 1 rank.\n"
            "hint: start one process on each host with --ranks-per-agent all, or one process for each rank",
        ),
        (
            a_run("a", "b", agents_per_node=2),
            {"num_ranks": 4},
            "--num-ranks 4 asks for 4 ranks on a node, but there 2 processes of clusterbench own 1 rank each.\n",
        ),
        (
            a_run("a", gpu_names=H200),
            {"gpus_per_node": 2, "ranks_per_gpu": 2, "ranks_per_agent": 2},
            "--gpus-per-node 2 asks for 4 ranks on a node, but there 1 process of clusterbench owns 2 ranks.\n",
        ),
    ],
)
def test_what_cannot_be_is_said_in_the_same_words_for_a_plan_and_for_a_run(
    found: Found, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        decided(found, **asked)
    assert str(caught.value).startswith(said)
