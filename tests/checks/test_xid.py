from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.checks.xid import Xid
from tests.facts.healthy import gpus
from tests.facts.healthy.described import gpu_address
from tests.facts.healthy.kernel_log import logging, unreadable
from tests.facts.machine import healthy

LINE = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_it_is_found_with_its_place_and_time(tmp_path):
    (fault,) = Xid().judge(logging(LINE).host(tmp_path)).faults
    assert fault.where == "GPU 0000:9b:00"
    assert fault.what == (
        "reported Xid 79 (GPU has fallen off the bus), once, 2026-03-02 14:01:39 UTC: power the host off and"
        " on; if it comes back, reseat or replace the GPU"
    )
    assert fault.evidence == f"/dev/kmsg: {LINE[:200]}"


def test_a_log_without_it_is_in_order_and_one_that_cannot_be_read_is_not_judged(tmp_path):
    said = Xid().judge(healthy().host(tmp_path))
    assert said.healthy.endswith("in 10 lines of the kernel's log since 2026-03-02 14:00:00 UTC")
    (unknown,) = Xid().judge_all([unreadable(tmp_path)])["n1"].unknown
    assert (unknown.why, unknown.takes) == ("/dev/kmsg may be read by root only", "root")


@pytest.mark.parametrize(("code", "severity"), [(31, "note"), (94, "warning"), (119, "error"), (999, "warning")])
def test_what_a_program_may_have_done_itself_is_a_note(tmp_path, code, severity):
    machine = logging(f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1, name=python, Ch 00000008")
    (fault,) = Xid().judge(machine.host(tmp_path)).faults
    assert fault.severity == severity


def test_one_that_comes_back_is_one_finding_with_its_number(tmp_path):
    line = "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=python, Timeout after 6s of waiting for RPC response"
    (fault,) = Xid().judge(logging(*[line] * 3).host(tmp_path)).faults
    assert fault.what.startswith(
        "reported Xid 119 (GSP RPC timeout: the GPU's own processor does not answer), 3 times, last 2026"
    )


def test_a_gpu_that_nvml_knows_is_named_with_index_and_serial(tmp_path):
    line = LINE.replace("9b:00", gpu_address(3)[5:].partition(".")[0])
    (fault,) = Xid().judge(logging(line).host(tmp_path)).faults
    assert fault.where == "GPU 3 (0000:4b:01.0, serial 1650000000003)"
    (fault,) = Xid().judge(logging(line).without("gpus").host(tmp_path / "unknown")).faults
    assert fault.where == "GPU 0000:4b:01"


def test_a_row_that_was_replaced_since_is_a_note(tmp_path):
    """The line stays in the log until the next boot, and the GPU was reset long ago."""
    line = f"NVRM: Xid (PCI:{gpu_address(3).removesuffix('.0')}): 63, Row Remapper: New row marked for remapping"

    def fault(name, **changed):
        machine = logging(line)
        every = list(gpus.facts().gpus)
        every[3] = replace(every[3], **changed)
        (said,) = Xid().judge(machine.give(gpus.facts(gpus=tuple(every))).host(tmp_path / name)).faults
        return said

    replaced = fault("replaced", remap_pending=False, remapped_uncorrectable=1)
    assert (replaced.severity, replaced.what.rpartition(": ")[2]) == ("note", "NVML says that no row waits any more")
    for name, changed in (("waits", {"remap_pending": True}), ("unknown", {"remap_pending": None})):
        assert fault(name, **changed).severity == "warning"
        assert fault(name + "again", **changed).what.endswith("so that the spare row is used")
    assert Xid().judge(logging(line).without("gpus").host(tmp_path / "alone")).faults[0].severity == "warning"


def test_a_reboot_that_is_asked_for_is_not_hidden_behind_an_earlier_recovery(tmp_path):
    said = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from {} to {}"
    actions = ("0x1 (GPU Reset Required)", "0x0 (None)", "0x2 (Node Reboot Required)")
    machine = logging(said.format(*actions[:2]), said.format(*actions[1:]))
    assert [fault.severity for fault in Xid().judge(machine.host(tmp_path)).faults] == ["note", "error"]
    recovered = logging(said.format(*actions[:2]))
    assert [fault.severity for fault in Xid().judge(recovered.host(tmp_path / "recovered")).faults] == ["note"]


def test_a_channel_that_was_stopped_names_the_xid_behind_it(tmp_path):
    """NVIDIA/open-gpu-kernel-modules, issue 1150: of the log there was left what came after."""
    line = "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"
    (fault,) = Xid().judge(logging(line).host(tmp_path)).faults
    assert fault.what.startswith("reported Xid 149 (NVLink error), once")
    assert fault.severity == "error"


def test_a_part_of_a_gpu_is_named_behind_its_address(tmp_path):
    line = "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"
    (fault,) = Xid().judge(logging(line).host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("GPU 0000:01:00", "warning")
