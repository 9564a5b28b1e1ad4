import errno
import os
import re
import resource

import pytest
import torch

from clusterbench.benchmarks import file_io
from clusterbench.benchmarks.file_io import FileIo
from clusterbench.errors import DiskError, NotHere, WrongResult
from tests.benchmarks.alone import CPU, H100, derived, rig

KIB = 2**10


def point(operation, path, **changes):
    (made,) = FileIo(operations=(operation,), path=str(path), size=64 * KIB, block=16 * KIB, iterations=2).points(CPU)
    return {**made, **changes}


def prepared(operation, path, **changes):
    return FileIo.prepare(rig(rank=2), point(operation, path, **changes))


@pytest.mark.parametrize("cold", [True, False])
def test_what_is_to_be_cold_leaves_the_cache_once_it_was_compared(monkeypatch, tmp_path, cold):
    done = []
    monkeypatch.setattr(file_io, "leave_cache", lambda descriptor: done.append(("leaves", descriptor)))
    monkeypatch.setattr(
        file_io._Blocks, "compare", lambda self, descriptor: done.append(("compared", descriptor)) or {}
    )
    prepared("read", tmp_path, cold=cold, files=2).check()
    of_files = [[what for what, of in done if of == descriptor] for descriptor in dict.fromkeys(of for _, of in done)]
    assert of_files == [["leaves", "compared", *["leaves"] * cold]] * 2


@pytest.mark.parametrize("operation", ["write", "read"])
def test_each_rank_moves_its_file(operation):
    metrics = derived("file_io", {"operation": operation, "size_bytes": 10**9}, [[1.0], [2.0]])
    assert metrics["transfer_time"].value == 2.0
    assert metrics["bandwidth_per_rank"].value == 0.5e9
    assert metrics["bandwidth"].value == 1e9


def test_reads_say_whether_the_cache_had_any_of_it():
    evidence = [{"wrong_elements": 0.0, "resident_fraction": 0.0}]
    read = derived("file_io", {"operation": "read", "size_bytes": 1}, [[1.0]], evidence)
    assert read["bandwidth"].detail == {"category": "cold"}
    assert derived("file_io", {"operation": "write", "size_bytes": 1}, [[1.0]], evidence)["bandwidth"].detail == {}


def test_every_cold_read_has_a_file_of_its_own():
    def files(**options):
        return [point["files"] for point in FileIo(operations=("read",), iterations=3, warmup=1, **options).points(CPU)]

    assert files() == [4]
    assert files(cold=False) == [1]
    assert files(cold=False, direct=True) == [4]


def test_one_rank_alone_and_all_at_once_are_different_points():
    (alone,) = FileIo(operations=("write",), ranks="one").points(H100)
    (all_at_once,) = FileIo(operations=("write",)).points(H100)
    assert (FileIo().world_size(alone, H100), FileIo().world_size(all_at_once, H100)) == (1, 8)
    assert (alone["ranks_per_host"], all_at_once["ranks_per_host"]) == (1, 8)


def test_what_is_not_whole_is_refused():
    def objection(**sizes):
        (made,) = FileIo(operations=("write",), **sizes).points(CPU)
        return FileIo().objection(made, CPU)

    assert objection(block=5000) == "a block of 5000 B is not a whole number of pages of 4096 B"
    assert objection(size=20480, block=8192) == "a file of 20480 B is not a whole number of blocks of 8192 B"
    assert objection() is None


def test_options_of_reading_are_a_mistake_where_nothing_is_read():
    assert list(FileIo(operations=("write",)).ineffective(("to", "size"), CPU)) == [
        ("to", "it concerns reading, and operations is write")
    ]
    assert list(FileIo(direct=True).ineffective(("cold",), CPU)) == [("cold", "direct reads bypass the cache")]


@pytest.mark.parametrize("operation", ["write", "read"])
def test_content_is_proven_and_no_file_is_ever_to_be_seen(tmp_path, operation):
    step = prepared(operation, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert step.check()["wrong_elements"] == 0.0
    for _ in range(3):
        step.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("direct", [False, True])
def test_each_timed_read_is_of_every_block_of_a_file_of_its_own(tmp_path, monkeypatch, direct):
    monkeypatch.setattr(os, "O_DIRECT", 0)  # not every file system has it
    step, real, read = prepared("read", tmp_path, direct=direct), os.preadv, []
    step.check()
    monkeypatch.setattr(
        os, "preadv", lambda file, parts, at: read.append((file, at, len(parts[0]))) or real(file, parts, at)
    )
    step.run()
    step.run()
    first, second = (file for file, at, _ in read if at == 0)
    assert first != second
    assert read == [(file, block * 16 * KIB, 16 * KIB) for file in (first, second) for block in range(4)]


def test_a_timed_write_is_of_every_block_and_ends_on_the_disk(tmp_path, monkeypatch):
    step, real, calls = prepared("write", tmp_path), os.pwrite, []
    step.check()
    monkeypatch.setattr(os, "ftruncate", lambda file, size: calls.append(("cut to", size)))
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: calls.append(("write", at)) or real(file, part, at))
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync"))
    step.run()
    assert calls == [("cut to", 0), *(("write", block * 16 * KIB) for block in range(4)), "sync"]


def test_direct_access_is_asked_for_where_it_is_wanted(tmp_path, monkeypatch):
    real, asked = os.open, []

    def noted(name, flags, *more, **options):
        asked.append(bool(flags & os.O_DIRECT))
        return real(name, flags & ~os.O_DIRECT, *more, **options)

    monkeypatch.setattr(os, "open", noted)
    prepared("write", tmp_path, direct=True)
    prepared("write", tmp_path)
    assert asked == [True, False]


def test_files_end_with_the_step(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    step = prepared("read", tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del step
    assert len(os.listdir("/proc/self/fd")) == before


def test_calls_that_do_a_part_only_are_repeated(tmp_path, monkeypatch):
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:5000], at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read(file, [parts[0][:7000]], at))
    assert prepared("read", tmp_path).check()["wrong_elements"] == 0.0


def test_reading_that_ends_early_is_found_behind_the_clock(tmp_path, monkeypatch):
    step, real = prepared("read", tmp_path), os.preadv
    step.check()
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}
    monkeypatch.setattr(
        os, "preadv", lambda file, parts, at: real(file, parts, at % (32 * KIB))
    )  # the first two blocks
    step.run()
    with pytest.raises(WrongResult, match=r"block 3 of a file, the last that was read, gave wrong results on rank 2"):
        step.confirm(True)


def test_writing_that_ends_early_is_found_behind_the_clock(tmp_path, monkeypatch):
    step, real = prepared("write", tmp_path), os.pwrite
    step.check()
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: real(file, part, at) if at < 32 * KIB else len(part))
    step.run()
    with pytest.raises(
        WrongResult, match=r"a file gave wrong results on rank 2 .*: it ends in block 2, 4 were written"
    ):
        step.confirm(True)


def test_a_block_in_anothers_place_is_found(tmp_path, monkeypatch):
    real, block = os.pwrite, 16 * KIB
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data, {block: 2 * block}.get(at, at)))
    with pytest.raises(WrongResult, match=r"block 1 of a file gave wrong results on rank 2 .* 2048 of 2048 elements"):
        prepared("write", tmp_path).check()


def test_a_page_in_anothers_place_is_found(tmp_path, monkeypatch):
    real = os.preadv

    def swapped(file, parts, at):
        done = real(file, parts, at)
        page = bytes(parts[0][:4096])
        parts[0][:4096] = parts[0][4096:8192]
        parts[0][4096:8192] = page
        return done

    monkeypatch.setattr(os, "preadv", swapped)
    with pytest.raises(WrongResult, match=r"block 0 of a file gave wrong results .* 1024 of 2048 elements differ"):
        prepared("read", tmp_path).check()


def test_a_file_that_cannot_grow_is_a_disks_error(tmp_path):
    step = prepared("write", tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 * KIB, hard))
    try:
        with pytest.raises(DiskError) as caught:
            step.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.match(rf"{tmp_path} on \S+: File too large; \S+ of \S+ were free\.\n", str(caught.value))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_it_is_timed_says_so(tmp_path, monkeypatch):
    step = prepared("write", tmp_path)
    step.check()

    def full(file, data, at):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskError, match=r"No space left on device; \S+ of \S+ were free"):
        step.run()


def test_a_disk_without_room_is_not_filled(tmp_path, monkeypatch):
    class Disk:
        f_bavail, f_blocks, f_frsize = 100, 1024, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    with pytest.raises(DiskError) as caught:
        prepared("read", tmp_path)
    assert re.fullmatch(
        rf"{tmp_path} on \S+ has no room for 512KiB, what this case writes there; 400KiB of 4MiB were free\.\n"
        r"hint: measure less \('size', 'iterations'\), or set 'path' to a disk with more room",
        str(caught.value),
    )


def test_a_file_system_without_direct_access_is_said_so(tmp_path, monkeypatch):
    real = os.open

    def without_direct(name, flags, *more, **options):
        if flags & os.O_DIRECT:
            os.close(real(name, flags & ~os.O_DIRECT, *more, **options))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(name, flags, *more, **options)

    monkeypatch.setattr(os, "open", without_direct)
    with pytest.raises(NotHere) as caught:
        prepared("write", tmp_path, direct=True)
    assert re.fullmatch(
        rf"the file system of {tmp_path} on \S+ has no direct access \(O_DIRECT\): Invalid argument\.\n"
        "hint: leave 'direct' out, or choose a path on a disk",
        str(caught.value),
    )
    assert list(tmp_path.iterdir()) == []


def test_cpu_ranks_cannot_read_on_to_a_gpu(tmp_path):
    with pytest.raises(NotHere) as caught:
        prepared("read", tmp_path, to="device")
    assert str(caught.value) == (
        "a file cannot be read on to a GPU: these are CPU ranks.\nhint: leave out 'to: device'"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_file_arrives_whole_on_a_gpu(tmp_path):
    step = FileIo.prepare(rig("cuda"), point("read", tmp_path, to="device"))
    assert step.check()["wrong_elements"] == 0.0
    step.run()
