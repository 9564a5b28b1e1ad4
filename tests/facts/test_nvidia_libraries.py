from __future__ import annotations

from clusterbench.facts import Files
from clusterbench.facts.nvidia_libraries import Library, NvidiaLibraries
from tests.facts.healthy import nvidia_libraries
from tests.facts.machine import Machine

CUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"


def read(folder, **files):
    machine = Machine()
    nvidia_libraries.plant(machine)
    machine.files |= files
    machine.write(folder)
    return NvidiaLibraries.read(Files(folder))


def test_a_whole_library_has_version_size_and_machine(tmp_path):
    facts = read(tmp_path)
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert facts.libraries[0] == Library("libcuda.so.1", path, "570.86.15", 4096, 4096, "x86_64")
    assert (len(facts.libraries), facts.kernel_module) == (3, "570.86.15")


def test_an_empty_file_is_no_library(tmp_path):
    library = read(tmp_path, **{CUDA: b""}).libraries[0]
    assert (library.size_bytes, library.least_bytes) == (0, None)


def test_a_link_to_nothing_is_noted(tmp_path):
    machine = Machine(links={"/usr/lib64/libcuda.so.1": "libcuda.so.570.86.15"})
    machine.write(tmp_path)
    facts = NvidiaLibraries.read(Files(tmp_path))
    assert facts.libraries[0].size_bytes is None
    assert facts.unread == {"/usr/lib64/libcuda.so.1": "could not be read: No such file or directory"}


def test_the_open_module_is_read_as_well(tmp_path):
    said = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build  (dvs)\n"
    assert read(tmp_path, **{"/proc/driver/nvidia/version": said}).kernel_module == "580.65.06"


def test_a_library_of_an_arm(tmp_path):
    assert read(tmp_path, **{CUDA: nvidia_libraries.elf(machine=183)}).libraries[0].machine == "aarch64"
