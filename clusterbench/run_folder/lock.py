"""One writer a folder: the file ``alive`` is there while a run is under way, says whose it is, and beats like a heart.

The first to make the file has the folder. It is free again when it is gone, when its process has ended, or when it has
stood still for long: whether it changes is looked at, and clocks of two hosts are never compared. To put another in its
place one first needs the file ``alive.TOKEN``, with the token of what is replaced, so that of several only one does.

Everything rests on a disk that makes a file only once (``link``, or ``O_EXCL`` where there are no hard links) and
renames in one step; nothing on locks of the system. A writer that stood still for so long that it was replaced finds
out before it writes the next line; what it had begun to write at that moment may still arrive.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from threading import Lock as Mutex
from typing import Any, Self

from clusterbench.errors import RunFolderError
from clusterbench.run_folder.disk import remedy
from clusterbench.run_folder.process import Process

NAME = "alive"

SECONDS_BETWEEN_BEATS = 5.0
SECONDS_OF_STANDSTILL = 60.0
"""Longer than a disk may stall under a run that is well."""
SECONDS_BETWEEN_LOOKS = 1.0

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
_BYTES = 1024
"""Of the file at least; what is shorter is filled up with spaces, so that it is always written over in one go."""


IsGone = Callable[[Process], bool | None]


class FolderHeld(RunFolderError):
    """Another run writes into the folder."""


class FolderLost(RunFolderError):
    """Another run has taken the folder over."""

    exit_code = 1


@dataclass(frozen=True)
class _Found:
    """What stands in a lock's file. ``token`` is of its own for each lock, ``run`` the fingerprint of the run."""

    raw: bytes
    token: str
    run: str = ""
    since: str = ""
    signs: int = 0
    process: Process | None = None
    note: Mapping[str, Any] = field(default_factory=dict)

    def who(self) -> str:
        if self.process is None:
            return "a process that its file 'alive' does not name"
        return f"process {self.process.pid} on host {self.process.host}, since {self.since}"


def is_lock(name: str) -> bool:
    """Whether a file of this name belongs to the lock of a folder."""
    return name == NAME or name.startswith(f"{NAME}.")


def sign_of_life(folder: Path) -> tuple[str, int]:
    """Changes whenever the run in ``folder`` gets further, and not with each beat."""
    with suppress(OSError):
        if found := _read(folder / NAME):
            return (found.token, found.signs) if found.signs else ("", 0)
    return "", 0


class Lock:
    """The right to write into a run's folder, which beats until it is released or lost.

    Parameters
    ----------
    run
        The run's fingerprint: whoever knows it is of the same run and takes over at once.
    is_gone
        Whether the process that has a lock has ended; None where that cannot be known.
    """

    def __init__(self, folder: Path, run: str, is_gone: IsGone = Process.is_gone) -> None:
        self.folder = folder
        self._path = folder / NAME
        self._run = run
        self._is_gone = is_gone
        self._token = secrets.token_hex(8)
        self._process = Process.this()
        self._since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self._note: Mapping[str, Any] = {}
        self._signs = self._beats = 0
        self._descriptor = -1
        self._made_folder = False
        self._writing = Mutex()
        self._ended = Event()

    @classmethod
    def take(
        cls,
        folder: Path,
        run: str,
        by_force: bool = False,
        say: Callable[[str], None] = lambda words: None,
        is_gone: IsGone = Process.is_gone,
    ) -> Self:
        """The lock of ``folder``, which is made where it is missing.

        Where the other process cannot be seen from here, its heartbeat is watched, and ``say`` is told so.

        Raises
        ------
        FolderHeld
            If another run has it. Nothing is changed then.
        RunFolderError
            If nothing can be written there.
        """
        lock = cls(folder, run, is_gone)
        try:
            lock._made_folder = not folder.exists()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not lock._put(lock._path, by_force, say):
                lock._note = {}
        except OSError as error:
            why = error.strerror or str(error)
            hint = remedy(error, folder)
            raise RunFolderError(f"{error.filename or folder} cannot be written: {why}.\nhint: {hint}") from None
        lock._write()  # with what was under way when the one before it ended
        Thread(target=lock._beat, name="heartbeat", daemon=True).start()
        return lock

    def note(self, what: Mapping[str, Any]) -> None:
        """Says what is under way, on disk when it returns.

        Raises
        ------
        FolderLost
            If another run has taken over.
        """
        self._note = dict(what)
        self.sign()
        self._write()
        self.expect()

    def sign(self) -> None:
        """The run got further; the next beat says so."""
        self._signs += 1

    def expect(self) -> None:
        """Makes sure that this is still the one writer.

        Raises
        ------
        FolderLost
            If another run has taken over.
        """
        try:
            if not self.folder.is_dir():
                return  # which is noticed where it matters, when something is written
            found = _read(self._path)
        except OSError:
            return
        if found is None or found.token != self._token:
            by = f"was taken over by {found.who()}" if found else f"has lost its file '{NAME}', by which others see"
            end = "" if found else " that a run is under way"
            raise FolderLost(f"{self.folder} {by}{end}; this run has ended.")

    def release(self) -> None:
        """Leaves the folder to others. May be called again, and when the lock was lost."""
        if self._descriptor < 0:
            return
        self._ended.set()
        with self._writing, suppress(OSError):
            os.close(self._descriptor)
            self._descriptor = -1
            found = _read(self._path)
            if found is not None and found.token == self._token:
                claim = self._path.with_name(f"{NAME}.{self._token}")
                # Nobody replaces it while this file is there; where there is no room for it, nobody else has any.
                with suppress(OSError):
                    if not self._make(claim):
                        return
                self._path.unlink()
                claim.unlink(missing_ok=True)
        if self._made_folder:
            with suppress(OSError):
                self.folder.rmdir()  # the run never began

    def taken_back(self) -> Lock:
        """The lock again, from a process of the same run to which it was left; this one where that never took it.

        Raises
        ------
        FolderHeld
            If another run has it by now.
        """
        with suppress(OSError):
            if (found := _read(self._path)) is not None and found.token == self._token:
                return self
        self.release()
        lock = Lock.take(self.folder, self._run, is_gone=self._is_gone)
        lock._made_folder = self._made_folder
        return lock

    # To get it.

    def _put(self, path: Path, by_force: bool, say: Callable[[str], None]) -> bool:
        """Puts this lock's file at ``path``; False if something changed meanwhile, and has to be looked at again."""
        found = _read(path)
        if found is None:
            return self._make(path) and self._is_at(path)
        if not by_force and found.run != self._run:
            self._expect_free(path, found, say)
        claim = self._path.with_name(f"{NAME}.{found.token}")
        if not self._put(claim, by_force, say):
            return False
        now = _read(path)
        if now is None or now.token != found.token:  # it was released or replaced before the claim was made
            claim.unlink(missing_ok=True)
            return False
        self._note = now.note
        with suppress(FileNotFoundError):  # one that took this process for dead has the claim, and its word counts
            os.rename(claim, path)
        return self._is_at(path)

    def _expect_free(self, path: Path, found: _Found, say: Callable[[str], None]) -> None:
        """Returns when the run that has the lock is gone, or may be: it has to be looked at again then."""
        is_gone = self._is_gone(found.process) if found.process else None
        if is_gone:
            return
        if is_gone is None:
            say(f"{self.folder}: seen in {SECONDS_OF_STANDSTILL:g} s at most: does {found.who()}, still write there?")
            if _stands_still(path, found):
                return
        raise FolderHeld(
            f"{self.folder} is being written by another run: {found.who()}.\n"
            "hint: wait until that run has ended, or end it; if it is certain that it has ended, add --take-over"
        )

    def _make(self, path: Path) -> bool:
        """Makes the file ``path`` with what stands in this lock; False if it is there already."""
        new = self._path.with_name(f"{NAME}.new-{self._token}")
        try:
            new.write_bytes(self._content())
            try:
                os.link(new, path)
            except FileExistsError:
                return os.stat(new).st_nlink == 2  # NFS may repeat what it has already done
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return self._make_without_links(path)
            return True
        finally:
            with suppress(OSError):
                new.unlink()

    def _make_without_links(self, path: Path) -> bool:
        """The same, where others may see the file empty for a moment: to them it is one that is about to change."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with open(descriptor, "wb") as file:
            file.write(self._content())
        return True

    def _is_at(self, path: Path) -> bool:
        """Whether the file at ``path`` is this lock's; that of the folder is kept open, to be written over."""
        found = _read(path)
        if found is None or found.token != self._token:
            return False
        if path == self._path:
            self._descriptor = os.open(path, os.O_RDWR)
        return True

    # To keep it.

    def _beat(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_BEATS):
            self._write()

    def _write(self) -> None:
        """Writes over the file that was made: never over that of another, whatever stands under its name by now."""
        with self._writing, suppress(OSError):  # a disk that fails is noticed where a case is recorded
            if self._descriptor < 0:
                return
            self._beats += 1
            size = os.fstat(self._descriptor).st_size
            os.pwrite(self._descriptor, self._content().ljust(size), 0)
            os.close(os.dup(self._descriptor))  # NFS sends what was written when a descriptor is closed

    def _content(self) -> bytes:
        lock = {
            **self._note,
            **vars(self._process),
            "run": self._run,
            "token": self._token,
            "since": self._since,
            "signs": self._signs,
            "beats": self._beats,
        }
        return f"{json.dumps(lock)}\n".encode().ljust(_BYTES)


def _stands_still(path: Path, found: _Found) -> bool:
    """Whether a lock does not beat; also where it is another's, or none, by then."""
    stood_s, looked = 0.0, time.monotonic()
    while stood_s < SECONDS_OF_STANDSTILL:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        # Not more than this for one look: this process may itself have been stopped, and the other's beats with it.
        now = time.monotonic()
        stood_s, looked = stood_s + min(now - looked, 2 * SECONDS_BETWEEN_LOOKS), now
        seen = _read(path)
        if seen is None or seen.token != found.token:
            return True
        if seen.raw != found.raw:
            return False
    return True


def _read(path: Path) -> _Found | None:
    """What stands in a lock's file; None where there is none. Nothing in it is believed that is not of its kind."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        raw = b""  # NFS: it was replaced while it was opened
    unnamed = hashlib.sha256(raw).hexdigest()[:16]
    try:
        lock = json.loads(raw)
        process = Process(**{each.name: lock.pop(each.name) for each in fields(Process)})
        run, token, since, signs = (lock.pop(name) for name in ("run", "token", "since", "signs"))
        is_named = all(isinstance(text, str) for text in (*(process.host, process.boot, process.namespace), run, since))
        is_counted = all(isinstance(number, int) for number in (process.pid, process.started, signs))
        if not (is_named and is_counted and 0 < process.pid < 2**31 and re.fullmatch("[0-9a-f]{16}", token)):
            return _Found(raw, unnamed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _Found(raw, unnamed)
    lock.pop("beats", None)
    return _Found(raw, token, run, since, signs, process, lock)
