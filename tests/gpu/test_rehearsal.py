"""The half hour of a GPU, rehearsed on the CPU, so that it meets no mistake that could have been seen here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterbench.derive import read
from clusterbench.run_folder import RunFolder
from tests.gpu import AS_PREDICTED, ROOT, SHOWN
from tests.share import some_of

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU"),
]

CASES = {"smoke": 28, "ladder": 15, "ranks": 18, "fake": 4}
DRAWN = some_of([*CASES], str)
ONLY_ON_GPUS = {"device_copy", "host_copy", "peer_copy", "nccl_transport"}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a rehearsal from a folder that is not the checkout, and its results."""
    out = tmp_path_factory.mktemp("rehearsal")
    command = [sys.executable, "-m", "tests.gpu", "--device", "cpu", "--budget", "840", "--out", str(out / "gpu")]
    ended = subprocess.run(
        [*command, *DRAWN],
        cwd=out,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    results = json.loads((out / "gpu" / "results.json").read_text())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (out / "gpu" / "table.txt").read_text() in ended.stdout
    return out / "gpu", results


def statuses(folder: Path) -> dict[str, str]:
    return {history.case.id: history.status for history in read(RunFolder.open(folder)).histories}


def suspected(folder: Path) -> bool:
    """Whether a run failed for a slow rank alone."""
    verdict = json.loads((folder / "verdict.json").read_text())
    named: list[str] = verdict["machine"]["suspects"]
    return verdict["failing"] == ["suspect"] and all(name.startswith("Straggler: ") for name in named)


def test_everything_ended_and_nothing_differs_from_what_was_predicted(rehearsal: tuple[Path, dict[str, Any]]) -> None:
    folder, parts = rehearsal[0], rehearsal[1]["parts"]
    probed = ["ranks_probe"] if "ranks" in DRAWN else []
    assert {name: part["how"] for name, part in parts.items()} == dict.fromkeys([*DRAWN, *probed], "ended")
    failed = {name: part["code"] for name, part in parts.items() if part["code"] != 0}
    # A neighbour that slows one core for seconds makes a straggler of its rank: docs/measurements.md.
    assert all(code == 1 and suspected(folder / name) for name, code in failed.items()), failed
    rows = [row for part in parts.values() for row in part["rows"]]
    assert {row["verdict"] for row in rows} <= {AS_PREDICTED, SHOWN}
    assert AS_PREDICTED in {row["verdict"] for row in rows}
    shown = {row["name"].split()[-1] for row in rows if row["verdict"] == SHOWN}
    of_all = {"tokens_per_s", "executed", "rank_time", "computing", "compiled/eager"}
    assert shown == of_all if len(DRAWN) == len(CASES) else shown <= of_all


@pytest.mark.parametrize("part", DRAWN)
def test_every_case_ended_as_it_should(rehearsal: tuple[Path, dict[str, Any]], part: str) -> None:
    found = statuses(rehearsal[0] / part)
    assert len(found) == CASES[part]
    skipped = {case for case in found if case.split("/")[0] in ONLY_ON_GPUS}
    assert found == {case: "skipped" if case in skipped else "ok" for case in found}
    if part == "ladder":
        expect_compiled({row["name"]: row for row in rehearsal[1]["parts"][part]["rows"]})


def expect_compiled(rows: dict[str, dict[str, Any]]) -> None:
    """The ladder compiles, and holds the losses of its rungs together."""
    (compiled,) = (row for name, row in rows.items() if name.endswith("compiled_frames"))
    assert (compiled["predicted"], compiled["verdict"]) == ("at least 1", AS_PREDICTED)
    assert rows["ladder, losses and norms apart"]["verdict"] == AS_PREDICTED
