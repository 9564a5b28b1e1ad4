from __future__ import annotations

from pathlib import Path

import pytest

from clusterbench.tools.nvidia_smi_table import TableGpu, failure, is_table, parse, processes

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

TABLE = """\
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    3 |
| N/A   27C    P0             72W /  700W |       1MiB /  81559MiB |      0%   E. Process |
|                                         |                        |             Enabled* |
+-----------------------------------------+------------------------+----------------------+
|   1  ERR!                          ERR! |   00000000:3B:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             ERR! /  ERR! |       1MiB /  81559MiB |     ERR!        ERR! |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
"""


def test_each_gpu_is_read_with_what_it_does_not_answer() -> None:
    ill, lost = parse(TABLE)
    assert ill == TableGpu(
        0, "NVIDIA H100 80GB HBM3", "0000:19:00.0", True, True, 3, "exclusive process", True, (), 2**20, 0.0
    )
    assert (lost.memory_used_bytes, lost.busy) == (2**20, None)
    assert (lost.number, lost.persistence, lost.ecc, lost.mig, lost.compute_mode) == (1, None, None, None, None)
    assert {"name", "ecc", "fan", "temperature", "power", "utilization"} <= {*lost.unanswered}


def test_processes_below_a_table_are_read_of_drivers_with_parts_of_gpus_and_before() -> None:
    now = "|    0   N/A  N/A           12345      C   python                                41500MiB |"
    before = "|    1      4711      C   /usr/bin/python3                             512MiB |"
    none = "|  No running processes found                                                             |"
    assert processes(f"{now}\n{before}\n{none}\n") == [(0, "python (pid 12345)"), (1, "/usr/bin/python3 (pid 4711)")]


def test_of_a_table_that_is_cut_the_last_gpu_is_left_out() -> None:
    cut = TABLE[: TABLE.index("|ERR!")]
    assert is_table(cut)
    assert [gpu.number for gpu in parse(cut)] == [0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure ...", "no driver"),
        ("No devices were found", "no device"),
    ],
)
def test_a_sentence_in_place_of_a_table_is_known(line: str, kind: str) -> None:
    assert failure(f"{line}\n") == (kind, line)
    assert not is_table(f"it printed: {line}\n")


def test_windows_prints_its_driver_model_in_place_of_persistence() -> None:
    (gpu,) = parse(
        "|   0  NVIDIA GeForce RTX 2080 ...  WDDM  |   00000000:0A:00.0  On |                  N/A |\n"
        "| 41%   39C    P8              25W /  265W |     909MiB /   8192MiB |      3%      Default |\n"
    )
    assert (gpu.address, gpu.persistence, gpu.compute_mode) == ("0000:0a:00.0", None, "default")


def test_addresses_of_older_drivers_have_four_digits_less() -> None:
    """Drivers up to 375 write the domain so."""
    assert [gpu.address for gpu in parse(TABLE.replace("|   0000", "|   "))] == ["0000:19:00.0", "0000:3b:00.0"]


@real
@pytest.mark.parametrize(("name", "count"), [("550_90", 8), ("4xrtx6000ada", 4)])
def test_real_tables_are_read(name: str, count: int) -> None:
    gpus = parse((SAMPLES / f"nvidia_smi_table_{name}.txt").read_text())
    assert [gpu.number for gpu in gpus] == [*range(count)]
    assert {gpu.compute_mode for gpu in gpus} == {"default"}
    assert not any(gpu.unanswered for gpu in gpus)
