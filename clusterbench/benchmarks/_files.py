"""What benchmarks of file systems have in common: what is cached, who cleans up, and what a full disk says."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterbench.errors import DiskError, NotHere
from clusterbench.types import Observation
from clusterbench.units import format_bytes

COLD_BELOW = 0.01
"""A file of which less than this part is in the page cache counts as cold."""

_LESS = "hint: measure less ('size', 'iterations'), or set 'path' to a disk with more room"
_PREFIX = "clusterbench-files-"
_UNLOCKED = ".clusterbench-unlocked-"


class Folder:
    """A folder of this process's own below ``path``; it goes with this object.

    The folder of a killed process is removed by the next one that makes a folder below the same path: an owner holds a
    lock in its folder, which the kernel releases when the owner ends.

    Raises
    ------
    NotHere
        If ``path`` is no folder, or nothing can be written there.
    """

    def __init__(self, path: str) -> None:
        _expect_folder(path)
        _remove_leftovers(Path(path))
        try:
            unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=path))
            lock = os.open(unlocked / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _not_writable(path, error) from None
        with suppress(OSError):  # some parallel file systems have no locks; a leftover then stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Renamed only once it is locked: under this name another process would remove it without a lock.
        self.path = unlocked.rename(unlocked.with_name(unlocked.name.replace(_UNLOCKED, _PREFIX)))
        self.remove = weakref.finalize(self, _remove, self.path, lock)

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Within, an error removes the folder, because a process that fails lives on until its record is read."""
        try:
            with on_disk(self.path.parent):
                yield
        except BaseException:
            self.remove()
            raise


class OpenFile:
    """A file without a name below ``path``, for reading and writing: it ends with this object, or with its process.

    ``direct`` bypasses the page cache.

    Raises
    ------
    NotHere
        If ``path`` is no folder, nothing can be written there, or the file system has no direct access.
    """

    def __init__(self, path: str, direct: bool) -> None:
        _expect_folder(path)
        self.path = path
        name = f"{path}/{_PREFIX}{socket.gethostname()}-{os.getpid()}-{id(self)}"
        try:
            self.descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if direct else 0), 0o600)
        except OSError as error:
            with suppress(OSError):
                os.unlink(name)  # one without O_DIRECT is made all the same, before the flag is refused
            if direct and os.access(path, os.W_OK):
                raise NotHere(
                    f"the file system of {path} on {socket.gethostname()} has no direct access (O_DIRECT): "
                    f"{error.strerror}.\nhint: leave 'direct' out, or choose a path on a disk"
                ) from None
            raise _not_writable(path, error) from None
        os.unlink(name)
        weakref.finalize(self, os.close, self.descriptor)


class SharedFile:
    """A file below ``path`` that all processes of a host which give it one ``name`` have open, and nobody else.

    It has its name while it is empty, until each has opened it: however its processes end, nothing is left of it.
    ``is_first`` says of one of them that it is the one to write.

    Parameters
    ----------
    meet
        Waits until all of them are here.

    Raises
    ------
    NotHere
        If ``path`` is no folder, or nothing can be written there.
    """

    def __init__(self, path: str, name: str, meet: Callable[[], object]) -> None:
        _expect_folder(path)
        self.path, self.is_first = path, True
        place = f"{path}/{_PREFIX}{name}"
        try:
            self.descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            self.descriptor, self.is_first = os.open(place, os.O_RDWR), False
        except OSError as error:
            raise _not_writable(path, error) from None
        try:
            meet()
        finally:
            if self.is_first:
                os.unlink(place)
        self.close = weakref.finalize(self, os.close, self.descriptor)


def _expect_folder(path: str) -> None:
    if not Path(path).is_dir():
        raise NotHere(f"{path} is no folder on {socket.gethostname()}.\nhint: set 'path' to one that can be written to")


def _not_writable(path: str, error: OSError) -> NotHere:
    return NotHere(f"nothing can be written to {path} on {socket.gethostname()}: {error.strerror}")


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_leftovers(path: Path) -> None:
    for folder in path.glob(f"{_PREFIX}*/"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)  # its owner is running
        else:
            _remove(folder, lock)


@contextmanager
def on_disk(path: str | Path) -> Iterator[None]:
    """Says of an error of the file system below ``path`` how much is free there.

    Raises
    ------
    DiskError
        In place of any OSError within.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(disk_sentence(path, error)) from error


def disk_sentence(path: str | Path, error: OSError) -> str:
    """``no room``, and how much there is."""
    return f"{path} on {socket.gethostname()}: {error.strerror}; {free(path)}.\n{_LESS}"


def free(path: str | Path) -> str:
    """``3GiB of 4GiB were free``."""
    disk = os.statvfs(path)
    return f"{format_bytes(disk.f_bavail * disk.f_frsize)} of {format_bytes(disk.f_blocks * disk.f_frsize)} were free"


def expect_room(path: str | Path, needed_bytes: int) -> None:
    """Raises DiskError where so much cannot be written: a disk that others use, too, is not filled to its end."""
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < needed_bytes:
        raise DiskError(
            f"{path} on {socket.gethostname()} has no room for {format_bytes(needed_bytes)}, what this case writes "
            f"there; {free(path)}.\n{_LESS}"
        )


def leave_cache(descriptor: int) -> None:
    """Writes a file out and asks the kernel to keep none of it in memory, which some file systems do not heed."""
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_fraction(descriptor: int) -> float | None:
    """Which part of a file is in this host's page cache; None where the kernel cannot tell.

    The file must be open for reading and writing, and this user's own: of others' files Linux says that all is there.
    """
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return 0.0
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        memory = mmap.mmap(descriptor, size_bytes)
    except OSError:
        return None
    with memory:
        pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
        first = ctypes.c_ubyte.from_buffer(memory)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size_bytes), pages)
        del first  # else the memory cannot be unmapped
    return None if failed else sum(bytes(pages).translate(_LOWEST_BIT)) / len(pages)


_LOWEST_BIT = bytes(value & 1 for value in range(256))


def cache_evidence(descriptors: Iterator[int] | list[int]) -> dict[str, float]:
    """``resident_fraction`` of the fullest of some files; nothing where one of them is unknown."""
    fractions = [resident_fraction(descriptor) for descriptor in descriptors]
    shares = [fraction for fraction in fractions if fraction is not None]
    return {"resident_fraction": max(shares)} if shares and len(shares) == len(fractions) else {}


def cache_category(observation: Observation) -> Mapping[str, str]:
    """Whether the data was in the page cache before reading: ``cold``, ``cached``, or ``unverified``."""
    fractions = [rank.get("resident_fraction") for rank in observation.evidence]
    shares = [fraction for fraction in fractions if fraction is not None]
    if not shares or len(shares) < len(fractions):
        return {"category": "unverified"}
    return {"category": "cold" if max(shares) < COLD_BELOW else "cached"}
