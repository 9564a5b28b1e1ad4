"""Figures of cases during which something broke, by the records of a real run into which it is planted."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.derive import read
from clusterbench.measured.disturbed import disturbances
from clusterbench.run_folder import RunFolder
from clusterbench.types import HostCounters, Observation

EXAMPLE = Path(__file__).parents[2] / "reports/examples/tp_scale-cpu"
FLAP = {"over_s": 9.0, "read": {"port": 1}, "grown": {"mlx5_3 port 1": {"link_downed": 1, "packets": 10**6}}}


def planted(folder, case, **fields):
    """The run of the example with these fields in the records of the cases whose names begin so."""
    shutil.copytree(EXAMPLE, folder)
    records = [json.loads(line) for line in (folder / "observations.jsonl").read_text().splitlines()]
    changed = [{**record, **fields} if record["case"].startswith(case) else record for record in records]
    (folder / "observations.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in changed))
    return RunFolder.open(folder)


def test_times_of_a_case_are_void_and_its_bytes_are_not(tmp_path):
    hit = "train_step/1n4/tp4+sp"
    run = planted(tmp_path / "run", hit, counters={"n1": FLAP})
    rows = read(run).rows
    basis = "void: while it ran mlx5_3 port 1 on n1: the link went down"
    (time,) = [row for row in rows if row.case == hit and row.metric == "step_time"]
    assert (time.value, time.basis) == (None, basis)
    assert time.low is not None
    assert all(row.value is not None for row in rows if row.metric == "step_time" and row.case != hit)
    assert any(row.value is not None for row in rows if row.case == hit and row.unit == "B")
    assert run.problems == []


@pytest.mark.parametrize("case", ["matmul", ""])
def test_a_report_is_made_of_void_figures(tmp_path, case):
    planted(tmp_path / "run", case, counters={"n1": FLAP})
    done = CliRunner().invoke(main, ["report", str(tmp_path / "run")])
    assert done.exit_code == 1, done.exception
    assert "the link went down" in (tmp_path / "run/index.html").read_text()


def seen(**gpu):
    return Observation("c", "", 1, 1, ("n1",), [[1.0]], telemetry={"n1": {"GPU-a": {"index": 2, **gpu}}})


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"throttle_reasons": {"hw_slowdown": 0.1, "hw_thermal": 0.1}}, "slowed down by its hardware for heat"),
        ({"throttle_reasons": {"hw_slowdown": 0.1}}, "slowed down by its hardware"),
        ({"throttle_reasons": {"hw_power_brake": 0.1}, "busy_share": 0.5}, "slowed down by its power supply"),
        ({"throttle_reasons": {"sw_thermal": 0.1}}, "slowed down by its driver for heat"),
        ({"grown": {"ecc_uncorrected": 1}}, "memory errors that were not corrected"),
    ],
)
def test_what_holds_a_gpu_back_is_named(gpu, words):
    assert list(disturbances(seen(**gpu))) == [f"GPU 2 on n1: {words}"]


@pytest.mark.parametrize(
    "gpu",
    [
        {"throttle_reasons": None},
        {"throttle_reasons": {"sw_power_cap": 1.0, "sync_boost": 1.0, "hw_thermal": 0.0}},
        {"throttle_reasons": {"hw_slowdown": 1.0}, "busy_share": 0.0},  # idle all the time
        {"grown": {"ecc_corrected": 5, "pcie_replays": 90}},
    ],
)
def test_what_does_not_void_is_silent(gpu):
    assert list(disturbances(seen(**gpu))) == []


def test_counters_of_a_port_that_carried_nothing_are_silent():
    grown = {"mlx5_0 port 1": {"packets": 10**6}, "mlx5_9 port 1": {"packets": 9999, "link_downed": 1}}
    record = Observation("c", "", 1, 1, ("n1",), [[1.0]], counters={"n1": HostCounters(1.0, {"port": 2}, grown)})
    assert list(disturbances(record)) == []
