from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.iommu import Guarded, Iommu
from clusterbench.facts.kernel import Kernel
from tests.facts.healthy.described import gpu_address
from tests.facts.healthy.infiniband import address
from tests.facts.machine import Machine, healthy


def test_of_the_command_line_only_what_bears_on_speed_is_kept(tmp_path):
    healthy().write(tmp_path)
    kernel = Kernel.read(Files(tmp_path))
    assert kernel.options == ("iommu=pt", "intel_iommu=on")
    assert (kernel.release, kernel.uptime_s, kernel.processes_limit) == ("6.8.0-60-generic", 86400.25, 4_194_304)


def test_without_the_command_line_no_option_is_known(tmp_path):
    kernel = Kernel.read(Files(tmp_path))
    assert kernel.options is None
    assert kernel.unread == {"/proc/cmdline": "is not there"}


def test_groups_are_those_of_gpus_and_rdma_devices(tmp_path):
    healthy().write(tmp_path)
    iommu = Iommu.read(Files(tmp_path))
    assert (iommu.num_groups, len(iommu.devices)) == (16, 16)
    assert iommu.devices[0] == Guarded(address(0), "8", "identity")
    assert iommu.devices[1] == Guarded(gpu_address(0), "0", "identity")


def test_a_kernel_without_iommu_has_no_groups(tmp_path):
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert Iommu.read(Files(tmp_path)).num_groups == 0


def test_a_type_that_may_not_be_read_is_none(tmp_path):
    machine = healthy().without("/sys/kernel/iommu_groups/0/type")
    machine.files["/sys/kernel/iommu_groups/0/name"] = "x"
    machine.write(tmp_path)
    assert [device.kind for device in Iommu.read(Files(tmp_path)).devices].count(None) == 1


def test_a_tree_without_the_kernels_files_is_not_one_without_iommu(tmp_path):
    iommu = Iommu.read(Files(tmp_path, Machine().run))
    assert (iommu.num_groups, iommu.unread) == (None, {"/sys/kernel/iommu_groups": "is not there"})
