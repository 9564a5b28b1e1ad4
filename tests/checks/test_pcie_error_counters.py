from __future__ import annotations

from clusterbench.checks.pcie_error_counters import PcieErrorCounters
from tests.checks.pcie import BRIDGE, BUS, GPU, judged, no_devices, with_functions
from tests.facts.healthy.pcie import UPTIME_S, errors
from tests.facts.machine import healthy, planted

MOST = round(8 * UPTIME_S / 60)
IN_ORDER = "24 PCIe devices that count errors have few or no PCIe errors"


def test_corrected_errors_are_found_above_eight_a_minute(tmp_path):
    (fault,) = judged(PcieErrorCounters(), tmp_path / "a", planted(BRIDGE, errors(correctable=MOST + 1))).faults
    assert fault.where == "PCIe bridge 0000:43:01.0"
    assert fault.what == "11,521 corrected PCIe errors since boot, 8 a minute"
    evidence = "correctable 11521, nonfatal 0, fatal 0"
    assert fault.evidence == f"{BUS}/0000:43:01.0/aer_dev_*: {evidence}"
    assert judged(PcieErrorCounters(), tmp_path / "b", planted(BRIDGE, errors(correctable=MOST))).healthy == IN_ORDER


def test_one_error_that_was_not_corrected_is_found(tmp_path):
    for kind, what in (("nonfatal", "0 fatal and 1 non-fatal"), ("fatal", "1 fatal and 0 non-fatal")):
        (fault,) = judged(PcieErrorCounters(), tmp_path / kind, planted(GPU, errors(**{kind: 1}))).faults
        assert fault.what == f"{what} PCIe errors since boot"


def test_where_the_kernel_does_not_count_it_is_not_judged(tmp_path):
    machine = healthy()
    machine.files = {path: text for path, text in machine.files.items() if "/aer_dev_" not in path}
    (said,) = PcieErrorCounters().judge_all([machine.host(tmp_path)]).values()
    assert said.unknown[0].why.startswith(f"{BUS}/*/aer_dev_correctable is not there")
    assert said.healthy == ""


def test_without_the_time_since_boot_errors_are_not_judged(tmp_path):
    changed = planted(BRIDGE, errors(correctable=5))
    said = judged(PcieErrorCounters(), tmp_path, changed, ["/proc/uptime"])
    assert said.unknown[0].why == "/proc/uptime is not there"


def test_a_host_without_such_devices_has_none(tmp_path):
    said = judged(PcieErrorCounters(), tmp_path, without=no_devices())
    assert said.not_applicable == "no PCIe devices that count errors here"


def test_a_card_behind_virtual_functions_is_found_and_what_was_not_looked_at_is_said(tmp_path):
    said = PcieErrorCounters().judge(with_functions(300, is_virtual=True).host(tmp_path / "a"))
    assert ([fault.where for fault in said.faults], said.unknown) == (["network card 0000:dd:00.0"], ())
    assert PcieErrorCounters().judge(with_functions(300, is_virtual=False).host(tmp_path / "b")).unknown
