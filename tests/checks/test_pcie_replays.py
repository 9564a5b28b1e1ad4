from __future__ import annotations

from clusterbench.checks.pcie_replays import PcieReplays
from clusterbench.facts.pcie import Pcie
from tests.checks.gpus import host, only


def up(seconds):
    return Pcie(devices=(), uptime_s=seconds)


def test_more_than_eight_a_minute_are_found():
    fault = only(PcieReplays(), up(6000.0), pcie_replays=801)
    assert fault.what == "801 PCIe replays, at least 8 a minute"
    assert fault.evidence == "NVML PCIe replays: 801; /proc/uptime: 100 minutes"


def test_eight_a_minute_are_in_order():
    said = PcieReplays().judge(host(up(6000.0), pcie_replays=800))
    assert said.healthy == "8 NVIDIA GPUs replay few or no PCIe packets"


def test_without_the_time_since_boot_replays_are_not_judged():
    said = PcieReplays().judge(host(up(None), pcie_replays=1))
    assert said.unknown[0].why == "/proc/uptime says nothing"
    assert said.healthy.startswith("7 NVIDIA GPUs")
