"""A slow link between two hosts is what MPI measures: bus bandwidth under a cap is that of the cap, on both MPIs."""

import csv

import pytest

from clusterbench.run_folder import RunFolder
from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.alone, pytest.mark.timeout(240)]

HOSTS = ["cb1", "cb2"]
CAPS = {"1gbit": 1e9 / 8, "100mbit": 1e8 / 8}
SUITE = """
suite: caps
question: Does MPI see the slow link?
num_nodes: 2
benchmarks:
  - {{benchmark: mpi, op: {op}, min_size: 4MiB, max_size: {max_size}, factor: 4, iterations: 11, warmup: 2}}
"""


def shares(lab, folder, name, cap, **options):
    """Bus bandwidth of each case as a share of the cap."""
    if why := getattr(launchers, f"why_not_{name}")():
        pytest.skip(why)
    launcher = getattr(launchers, name)(lab, HOSTS, 1)
    (folder / "suite.yaml").write_text(SUITE.format(**options))
    command = launcher.command("-m", "clusterbench.cli", "run", f"{folder}/suite.yaml", "--out", f"{folder}/out")
    lab.shape("cb2", cap)
    try:
        done = lab.run(LOGIN, command, env=launcher.environment, timeout=200)
    finally:
        lab.unshape("cb2")
    assert done.returncode == 0, done.stderr
    assert {outcome.status for outcome in RunFolder.open(folder / "out").outcomes()} == {"ok"}
    with open(folder / "out" / "rows.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "busbw"]
    return {row["case"]: float(row["value"]) / CAPS[cap] for row in rows}


@pytest.mark.matrix
@pytest.mark.parametrize(("cap", "max_size"), [("1gbit", "16MiB"), ("100mbit", "4MiB")])
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_bus_bandwidth_under_a_cap_is_that_of_the_cap(lab, tmp_path, name, cap, max_size):
    # Other work on this machine's few cores makes a link look slower, never faster: each case has five tries.
    best: dict[str, float] = {}
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        found = shares(lab, folder, name, cap, op="[broadcast, scatter, gather]", max_size=max_size)
        assert len(found) == (6 if max_size == "16MiB" else 3)
        assert max(found.values()) <= 1.10, found
        best = {case: max(share, best.get(case, 0.0)) for case, share in found.items()}
        if min(best.values()) >= 0.80:
            return
    raise AssertionError(f"below 0.80 of the cap five times: {best}")


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_what_goes_both_ways_at_once_is_no_faster_than_the_cap(lab, tmp_path, name):
    # The link carries 0.95 each way at once; both libraries use 0.4 to 0.9 of it, and why is not known. So does MPICH
    # in a reduce of many megabytes, which it makes of a reduce-scatter and a gather. On busy cores 0.09 was seen.
    found = shares(lab, tmp_path, name, "1gbit", op="[all_reduce, all_gather, all_to_all]", max_size="4MiB")
    assert len(found) == 3
    assert all(0.05 <= share <= 1.10 for share in found.values()), found
