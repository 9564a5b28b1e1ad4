from __future__ import annotations

import pytest


def matrix(number=8, usual="NV18", **pairs):
    """A matrix without cards; ``pairs`` are named ``_25`` for GPU2 and GPU5."""
    names = [f"GPU{gpu}" for gpu in range(number)]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for a in range(number):
        cells = [" X " if a == b else pairs.get(f"_{min(a, b)}{max(a, b)}", usual) for b in range(number)]
        lines.append("\t".join([names[a], *cells, "0-51", "0"]))
    return "\n".join(lines) + "\n"


WORSE = matrix(_25="SYS")


def test_gpus_with_equally_many_links_are_in_order(examined):
    examination, kind = examined(matrix())
    assert (kind, examination.word) == ("nvidia-smi topo -m", "HEALTHY")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (WORSE, "GPU2 and GPU5", "are joined by SYS, and most pairs by NV18"),
        (matrix(_25="NV16"), "GPU2 and GPU5", "are joined by NV16, and most pairs by NV18"),
        (
            matrix(4, _01="NV17", _12="NV17", _13="NV17"),
            "GPU1 and all others",
            "are joined by NV17, and most pairs by NV18",
        ),
    ],
)
def test_a_pair_with_fewer_links_is_found(examined, text, where, what):
    (found,) = examined(text)[0].found
    assert (found.where, found.what) == (where, what)
    assert found.evidence.startswith("said.txt:")


@pytest.mark.parametrize(
    "text",
    [
        matrix(usual="PIX"),
        matrix(3, usual="NODE", _12="NV6"),
        matrix(2, usual="PHB"),
        matrix(4, usual="SYS", _01="NV12"),
    ],
)
def test_gpus_without_links_or_of_several_kinds_are_not_judged(examined, text):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


@pytest.mark.parametrize(
    ("distance", "why"),
    [
        ("SYS", "GPU4, GPU5, GPU6, GPU7 have every network card on another NUMA node (SYS)"),
        ("NODE", None),
    ],
)
def test_gpus_whose_cards_are_all_on_another_node_are_not_in_order(examined, distance, why):
    """A matrix with one card, which is near the first four GPUs."""
    lines = matrix().replace("\tCPU Aff", "\tmlx5_0\tCPU Aff").splitlines()
    near = ["PIX"] * 4 + [distance] * 4
    rows = [line.replace("\t0-51", f"\t{path}\t0-51") for line, path in zip(lines[1:], near, strict=True)]
    examination, _ = examined("\n".join([lines[0], *rows, "\t".join(["mlx5_0", *near, " X "])]) + "\n")
    assert [part.why for part in examination.not_judged] == ([why] if why else [])
    assert [healthy.name for healthy in examination.healthy] == ["nvlink_pairs"]


def test_bridges_that_join_every_gpu_with_one_other_are_in_order(examined):
    assert examined(matrix(4, usual="SYS", _01="NV12", _23="NV12"))[0].word == "HEALTHY"


@pytest.mark.parametrize(
    "name", ["a100_nv12_nonic", "a800_8gpu_4nic", "azure_ndmv4_a100", "azure_ndv4_a100", "h100_nv18_nonic"]
)
def test_a_lost_pair_in_a_real_matrix_is_found(examined, sample, name):
    text = sample(f"nvidia_smi_topo_m_{name}.txt")
    assert examined(text)[0].word == "HEALTHY"
    lines = text.split("\n")
    for row, column in ((1, 4), (4, 1)):
        cells = lines[row + 1].split()
        cells[column + 1] = "SYS"
        lines[row + 1] = "\t".join(cells)
    (found,) = examined("\n".join(lines))[0].found
    assert found.where == "GPU1 and GPU4"


def test_a_real_mesh_of_one_and_two_links_is_in_order(examined, sample):
    assert examined(sample("nvidia_smi_topo_m_dgx1_v100.txt"))[0].word == "HEALTHY"


def test_rows_of_network_cards_may_be_left_out(examined):
    """As with 'nvidia-smi topo -m | grep GPU'; NVIDIA/nccl, issue 1617, was pasted so."""
    head = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\n"
    cells = [["X" if one == other else "NV6" for other in range(4)] for one in range(4)]
    rows = "".join(f"GPU{gpu}\t" + "\t".join([*row, "PIX", "0-3"]) + "\n" for gpu, row in enumerate(cells))
    assert examined(head + rows)[0].word == "HEALTHY"
    examination, _ = examined((head + rows).rpartition("GPU3")[0])
    assert "lacks the row of GPU3" in examination.not_judged[0].why
