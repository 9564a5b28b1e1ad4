from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.nvidia_libraries import NvidiaLibrariesCheck
from clusterbench.facts import Files
from clusterbench.facts.nvidia_libraries import NvidiaLibraries
from tests.facts.healthy import nvidia_libraries
from tests.facts.machine import Machine, laptop, training

PATH = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
FILE = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"


def read(folder, **files):
    machine = Machine()
    nvidia_libraries.plant(machine)
    machine.files |= files
    machine.write(folder)
    return NvidiaLibraries.read(Files(folder))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty: no CUDA program can load it"),
        (b"<html>not found</html>", "is no shared library of 64 bit"),
        (nvidia_libraries.elf(size_bytes=4095), "is cut off: it has 4,095 B, and its header speaks of 4,096 B"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_found(tmp_path, content, what):
    said = NvidiaLibrariesCheck().judge(training(read(tmp_path, **{FILE: content})))
    (fault,) = said.faults
    assert (fault.where, fault.what) == (PATH, what)
    assert fault.evidence == f"{PATH}: {len(content):,} B"
    assert said.healthy == "2 libraries of NVIDIA's driver whole"


def test_a_module_of_another_version_is_found(tmp_path):
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\n"
    faults = NvidiaLibrariesCheck().judge(training(read(tmp_path, **{"/proc/driver/nvidia/version": version}))).faults
    assert [fault.what for fault in faults] == ["is of driver 570.86.15, and the kernel's module of 570.124.06"] * 3


def test_a_link_to_nothing_is_found(tmp_path):
    Machine(links={"/usr/lib64/libcuda.so.1": "libcuda.so.570.86.15"}).write(tmp_path)
    (fault,) = NvidiaLibrariesCheck().judge(training(NvidiaLibraries.read(Files(tmp_path)))).faults
    assert fault.what == "is a link to a file that is not there"


def test_a_file_that_may_not_be_read_is_not_judged(tmp_path):
    found = read(tmp_path)
    first, *rest = found.libraries
    hidden = replace(
        found, libraries=(replace(first, size_bytes=None), *rest), unread={first.path: "Permission denied"}
    )
    said = NvidiaLibrariesCheck().judge(training(hidden))
    assert not said.faults
    assert "Permission denied" in said.unknown[0].why


def test_whole_ones_are_in_order(tmp_path):
    said = NvidiaLibrariesCheck().judge(training(read(tmp_path)))
    assert said.healthy == "3 libraries of NVIDIA's driver whole"


def test_libraries_elsewhere_are_not_judged_and_a_laptop_not_asked(tmp_path):
    nothing = NvidiaLibraries.read(Files(tmp_path))
    (said,) = NvidiaLibrariesCheck().judge_all([training(nothing)]).values()
    assert said.unknown[0].why == "libcuda.so.1 is in none of the usual folders"
    assert NvidiaLibrariesCheck().judge(laptop(nothing)).not_applicable
