"""What the benchmarks of file systems share: folders that go, caches that are asked, disks that are full."""

import errno
import os
import re
import subprocess
import sys

import pytest

from clusterbench.benchmarks import _files
from clusterbench.benchmarks._files import Folder, cache_category, cache_evidence, leave_cache, on_disk
from clusterbench.errors import DiskError, NotHere
from clusterbench.types import Observation


def category(*fractions):
    evidence = [{} if fraction is None else {"resident_fraction": fraction} for fraction in fractions]
    return cache_category(Observation("x", "", 0, 1, ("a",), [[1.0]], evidence=evidence))["category"]


def test_a_folder_goes_with_its_owner(tmp_path):
    folder = Folder(str(tmp_path))
    (folder.path / "inside").mkdir()
    (folder.path / "inside" / "file").write_text("x")
    del folder
    assert list(tmp_path.iterdir()) == []


def test_an_error_removes_the_folder_at_once(tmp_path):
    folder = Folder(str(tmp_path))
    with pytest.raises(ZeroDivisionError), folder.removed_on_error():
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from clusterbench.benchmarks._files import Folder\n"
        "folder = Folder(sys.argv[1])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    folder = Folder(str(tmp_path))
    assert list(tmp_path.iterdir()) == [folder.path]
    assert folder.path != left


def test_the_folder_of_a_living_process_stays(tmp_path):
    first = Folder(str(tmp_path))
    second = Folder(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "clusterbench-files-of-a-person").mkdir()
    del Folder(str(tmp_path)).path
    assert [path.name for path in tmp_path.iterdir()] == ["clusterbench-files-of-a-person"]


def test_a_path_that_is_no_folder_is_said_so(tmp_path):
    with pytest.raises(NotHere) as caught:
        Folder(f"{tmp_path}/missing")
    assert re.fullmatch(
        rf"{tmp_path}/missing is no folder on \S+\.\nhint: set 'path' to one that can be written to", str(caught.value)
    )


def test_a_full_disk_says_what_was_free(tmp_path):
    with pytest.raises(DiskError) as caught, on_disk(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert re.fullmatch(
        rf"{tmp_path} on \S+: No space left on device; \S+ of \S+ were free\.\n"
        r"hint: measure less \('size', 'iterations'\), or set 'path' to a disk with more room",
        str(caught.value),
    )


def test_a_file_that_was_just_written_is_in_the_cache(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(descriptor, bytes(2**20))
        assert cache_evidence([descriptor]) == {"resident_fraction": 1.0}
        leave_cache(descriptor)  # which a file system in memory cannot heed
        assert cache_evidence([descriptor])["resident_fraction"] in (0.0, 1.0)
    finally:
        os.close(descriptor)


def test_an_empty_file_is_nowhere(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert cache_evidence([descriptor]) == {"resident_fraction": 0.0}
    finally:
        os.close(descriptor)


def test_a_file_is_on_the_disk_before_the_kernel_is_asked_to_drop_all_of_it(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(("fsync", descriptor)))
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: asked.append(arguments))
    leave_cache(7)
    assert asked == [("fsync", 7), (7, 0, 0, os.POSIX_FADV_DONTNEED)]


def test_of_files_the_one_that_is_cached_most_counts_and_one_that_is_unknown_leaves_all_unknown(monkeypatch):
    fractions = {1: 0.0, 2: 0.75, 3: 0.25, 4: None}
    monkeypatch.setattr(_files, "resident_fraction", fractions.get)
    assert cache_evidence([1, 2, 3]) == {"resident_fraction": 0.75}
    assert cache_evidence([1, 2, 4]) == {}


def test_cold_is_what_every_rank_found_cold():
    assert category(0.0, 0.005) == "cold"
    assert category(0.0, 0.5) == "cached"
    assert category(0.02, 0.0) == "cached"  # 1 % and more


def test_what_nobody_could_look_into_is_unverified():
    assert category() == "unverified"
    assert category(0.0, None) == "unverified"
