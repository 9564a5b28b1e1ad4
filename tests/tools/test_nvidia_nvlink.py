from __future__ import annotations

from pathlib import Path

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools.nvidia_nvlink import GpuLinks, parse

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

GPU = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0000)\n"


def test_rates_are_in_bytes_and_a_link_that_is_down_is_zero() -> None:
    (gpu,) = parse(f"{GPU}\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n")
    assert gpu == GpuLinks(0, "NVIDIA H100 80GB HBM3", "GPU-0000", {0: 26.562e9, 1: 0.0})
    assert (gpu.num_active, gpu.inactive) == (1, [1])


def test_a_gpu_whose_links_are_all_down_is_not_missing() -> None:
    (gpu,) = parse(f"{GPU}NVML: Unable to retrieve NVLink information as all links are inactive\n")
    assert (gpu.bytes_per_s, gpu.num_active) == ({}, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("No devices were found\n", "nvidia-smi nvlink -s names no GPU: 'No devices were found'"),
        (GPU, "nvidia-smi nvlink -s says nothing of the links of GPU 0"),
        (f"{GPU}\t Link 0: fast\n", "nvidia-smi nvlink -s printed a line that cannot be read: 'Link 0: fast'"),
        (f"{GPU}\t Link 0: 26.5", "nvidia-smi nvlink -s printed a line that cannot be read: 'Link 0: 26.5'"),
        (
            f"{GPU}\t Link 0: 25 GB/s\n\t Link 0: 25 GB/s\n",
            "nvidia-smi nvlink -s names a link of GPU 0 twice: 'Link 0: 25 GB/s'",
        ),
        (
            f"{GPU}\t Link 0: 25 GB/s\n####\n\t Link 1: 25 GB/s\n",
            "nvidia-smi nvlink -s printed a line that cannot be read: 'Link 1: 25 GB/s'",
        ),
        (
            f"{GPU}\t Link 0: 25 GB/s\n{GPU}\t Link 0: 25 GB/s\n",
            "nvidia-smi nvlink -s names GPU 0 twice: 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0000)'",
        ),
    ],
)
def test_what_cannot_be_read_is_quoted(text: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_what_other_commands_print_before_and_behind_it_is_passed_over() -> None:
    """A file of several commands, as support tickets have it.

    Source: utkuozdemir/nvidia_gpu_exporter, ``internal/captures``.
    """
    (gpu,) = parse(f"$ nvidia-smi -L\n{GPU}\n####\n{GPU}\t Link 0: 25 GB/s\n\n####\n# $ nvidia-smi topo -m\nLegend:\n")
    assert (gpu.bytes_per_s, gpu.is_cut) == ({0: 25e9}, False)


@pytest.mark.parametrize("dots", ["...", "         [...]", "\u2026", "...."])
def test_a_gpu_behind_which_somebody_left_lines_out_is_not_whole(dots: str) -> None:
    first, second = parse(f"{GPU}\t Link 0: 25 GB/s\n{dots}\n{GPU.replace('0:', '7:')}\t Link 0: 25 GB/s\n")
    assert (first.is_cut, second.is_cut) == (True, False)


@real
def test_eight_a100_have_twelve_links_each() -> None:
    gpus = parse((SAMPLES / "nvidia_smi_nvlink_status_a100.txt").read_text())
    assert [gpu.gpu for gpu in gpus] == list(range(8))
    assert {gpu.name for gpu in gpus} == {"NVIDIA A100-SXM4-80GB"}
    assert {(gpu.num_active, sum(gpu.bytes_per_s.values())) for gpu in gpus} == {(12, 300e9)}


@real
def test_a_good_and_a_bad_gpu() -> None:
    (good,) = parse((SAMPLES / "nvidia_smi_nvlink_status_azure_good.txt").read_text())
    (bad,) = parse((SAMPLES / "nvidia_smi_nvlink_status_azure_bad.txt").read_text())
    assert (good.gpu, good.num_active, bad.gpu, bad.num_active) == (7, 12, 6, 0)


@real
def test_a_list_from_which_somebody_left_gpus_out_is_not_whole() -> None:
    gpus = parse((SAMPLES / "nvidia_smi_nvlink_status_h800.txt").read_text())
    assert [(gpu.gpu, gpu.is_cut) for gpu in gpus] == [(0, False), (1, True), (7, False)]
    assert {rate for gpu in gpus for rate in gpu.bytes_per_s.values()} == {26.562e9}
