import errno
import os
import re

import pytest

from clusterbench.benchmarks.small_files import SmallFiles
from clusterbench.errors import DiskError, WrongResult
from tests.benchmarks.alone import CPU, derived, rig

OPERATIONS = ["create", "stat", "read", "delete"]


def prepared(operation, path, **options):
    benchmark = SmallFiles(
        operations=(operation,), path=str(path), files=5, size=100, iterations=2, warmup=1, **options
    )
    (point,) = benchmark.points(CPU)
    return SmallFiles.prepare(rig(rank=3), point)


def test_rates_are_of_all_ranks_in_the_time_of_the_slowest():
    metrics = derived("small_files", {"files": 1000}, [[0.5], [2.0]])
    assert metrics["time_per_file"].value == 2e-3
    assert metrics["file_rate"].value == 1000


def test_what_creates_or_deletes_has_a_folder_for_each_iteration():
    points = SmallFiles(iterations=5, warmup=2).points(CPU)
    assert {point["operation"]: point["folders"] for point in points} == {
        "create": 8,
        "stat": 1,
        "read": 1,
        "delete": 8,
    }


def test_files_that_reach_the_disk_one_by_one_are_a_point_of_their_own():
    (point,) = SmallFiles(operations=("create",), sync=True).points(CPU)
    assert SmallFiles().label(point) == "create-1000x4KiB-sync"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_case_runs_as_often_as_it_said_and_leaves_nothing(tmp_path, operation):
    step = prepared(operation, tmp_path)
    assert step.check() == {"wrong_files": 0.0}
    for _ in range(3):
        step.run()
    (folder,) = tmp_path.iterdir()
    files = [name for place in folder.iterdir() if place.is_dir() for name in place.iterdir()]
    assert len(files) == {"create": 15, "stat": 5, "read": 5, "delete": 0}[operation]
    del step
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("operation", "call"), [("stat", "stat"), ("read", "read"), ("delete", "unlink")])
def test_a_timed_call_goes_through_every_file(tmp_path, monkeypatch, operation, call):
    step, real, calls = prepared(operation, tmp_path), getattr(os, call), []
    step.check()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, lambda file, *more, **options: calls.append(file) or real(file, *more, **options))
        step.run()
    if operation != "read":  # which has the numbers of open files
        assert [name.rpartition("/")[2] for name in calls] == ["0", "1", "2", "3", "4"]
    assert len(calls) == 5


def test_files_that_wait_for_the_disk_are_synced_each(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    prepared("create", tmp_path, sync=True).check()
    assert len(synced) == 5


def test_a_wrong_byte_is_found(tmp_path, monkeypatch):
    real = os.read
    monkeypatch.setattr(os, "read", lambda file, size: b"\x07" + real(file, size)[1:])
    with pytest.raises(WrongResult) as caught:
        prepared("read", tmp_path).check()
    assert re.fullmatch(
        r"\S+/0/0 gave wrong results on rank 3 \(host here\): byte 0 is 7, expected 0\.", str(caught.value)
    )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_is_found(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:60]) + len(data[60:]))
    with pytest.raises(WrongResult, match=r"/0/0 on here has another size than the 100 B written"):
        prepared("stat", tmp_path).check()


def test_a_delete_that_does_nothing_is_found(tmp_path, monkeypatch):
    step = prepared("delete", tmp_path)
    monkeypatch.setattr(os, "unlink", lambda name, **more: None)
    with pytest.raises(WrongResult, match=r"delete gave wrong results .*/0 holds 5 files, expected 0\."):
        step.check()


@pytest.mark.parametrize(("operation", "call"), [("create", "write"), ("delete", "unlink")])
def test_files_that_are_not_as_proven_while_they_are_timed_are_found(tmp_path, monkeypatch, operation, call):
    step = prepared(operation, tmp_path)
    step.check()
    step.run()
    assert step.confirm(True) == {"wrong_files": 0.0}
    nothing = {"write": lambda file, data: len(data), "unlink": lambda name, **more: None}
    with monkeypatch.context() as patched:
        patched.setattr(os, call, nothing[call])
        step.run()
    with pytest.raises(WrongResult, match=r"/2/0 on here has another size|/2 holds 5 files, expected 0"):
        step.confirm(True)


def test_a_full_disk_ends_the_case_with_its_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    step = prepared("create", tmp_path)

    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskError, match=r"No space left on device; \S+ of \S+ were free"):
        step.check()
    assert list(tmp_path.iterdir()) == []
