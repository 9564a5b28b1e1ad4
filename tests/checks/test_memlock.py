from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.memlock import Memlock
from clusterbench.facts.limits import Limits
from tests.facts.machine import healthy


def judged(machine, folder):
    return Memlock().judge(machine.host(folder))


@pytest.mark.parametrize(("limit", "words"), [("8388608", "8 MiB"), ("65536", "64 KiB"), ("0", "0 KiB")])
def test_little_is_found(tmp_path, limit, words):
    machine = healthy()
    machine.files["/proc/self/limits"] = machine.files["/proc/self/limits"].replace(
        "Max locked memory         unlimited", f"Max locked memory         {limit:<9}"
    )
    (fault,) = judged(machine, tmp_path).faults
    assert fault.what == f"a process may lock {words} of memory, and RDMA needs it without limit"
    assert fault.evidence == f"/proc/self/limits: {words}"


def test_no_limit_and_thirty_two_gibibytes_are_in_order(tmp_path):
    assert judged(healthy(), tmp_path).healthy == "locked memory: no limit"
    limits = healthy().host(tmp_path, "n2").of(Limits)
    large = healthy().give(replace(limits, memlock_bytes=32 * 2**30))
    assert Memlock().judge(large.host(tmp_path, "n3")).healthy == "locked memory: 32 GiB"


def test_a_host_without_rdma_needs_none(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband"), tmp_path).not_applicable == "no RDMA device here"


def test_without_the_file_it_is_not_judged(tmp_path):
    (judged_,) = Memlock().judge_all([healthy().without("/proc/self/limits").host(tmp_path)]).values()
    assert judged_.unknown[0].why == "/proc/self/limits is not there"
    assert not judged_.healthy


@pytest.mark.parametrize("row", ["Max locked memory         soon      \n", "Max locked memory\n"])
def test_a_limit_that_is_no_number_leaves_the_others_judged(tmp_path, row):
    machine = healthy()
    kept = [line for line in machine.files["/proc/self/limits"].splitlines(True) if not line.startswith("Max locked")]
    machine.files["/proc/self/limits"] = "".join([*kept, row])
    host = machine.host(tmp_path)
    assert host.of(Limits).memlock_bytes is None
    assert host.of(Limits).open_files is not None
