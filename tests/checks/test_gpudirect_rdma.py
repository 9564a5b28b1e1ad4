from __future__ import annotations

import pytest

from clusterbench.checks.gpudirect_rdma import GpudirectRdma
from tests.facts.healthy.modules import CLOSED
from tests.facts.machine import healthy

PEERMEM, DRIVER = "/sys/module/nvidia_peermem", "/proc/driver/nvidia/version"


def judged(machine, folder):
    (said,) = GpudirectRdma().judge_all([machine.host(folder)]).values()
    return said


def test_a_closed_module_without_peermem_is_found(tmp_path):
    machine = healthy().without(PEERMEM)
    machine.files[DRIVER] = CLOSED
    (fault,) = judged(machine, tmp_path).faults
    assert fault.what == (
        "RDMA devices cannot reach GPU memory: nvidia_peermem is not loaded, and there is no DMA-BUF: NVIDIA's kernel "
        "module 535.183.01 is the closed one"
    )
    assert fault.evidence == (
        "/sys/module: none of nvidia_peermem, nv_peer_mem, efa_nv_peermem; /proc/driver/nvidia/version: 535.183.01 "
        "(closed); /proc/sys/kernel/osrelease: 6.8.0-60-generic"
    )


@pytest.mark.parametrize(
    ("file", "by"),
    [
        ("/sys/module/nv_peer_mem/version", "nv_peer_mem"),
        ("/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem"),
    ],
)
def test_forerunners_of_peermem_serve(tmp_path, file, by):
    machine = healthy().without(PEERMEM)
    machine.files |= {file: "1.3\n", DRIVER: CLOSED}
    assert judged(machine, tmp_path).healthy == f"GPU memory is given to RDMA by {by}"


def test_dma_buf_alone_is_in_order(tmp_path):
    said = judged(healthy().without(PEERMEM), tmp_path)
    assert said.healthy == "GPU memory can be given to RDMA by DMA-BUF"


@pytest.mark.parametrize(("source", "takes"), [("/sys/module", "/sys/module"), (DRIVER, DRIVER)])
def test_without_its_source_it_is_not_judged(tmp_path, source, takes):
    machine = healthy().without(PEERMEM, source)
    said = judged(machine, tmp_path)
    assert said.unknown[0].takes == f"a host that shows {takes}"
    assert not said.faults


def test_hosts_without_rdma_or_without_nvidia_need_none(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband"), tmp_path / "a").not_applicable == "no RDMA device here"
    machine = healthy()
    machine.environment |= {"gpus": [], "pcie": []}
    assert judged(machine, tmp_path / "b").not_applicable == "no GPU here"
    machine.environment["pcie"] = [{"kind": "accelerator", "id": "1002:74a1", "address": "0000:05:00.0"}]
    assert judged(machine, tmp_path / "c").not_applicable == "AMD's driver gives its memory itself"
