"""A run as one file, to send to a colleague or a vendor: checksummed, without secrets, and opened by ``report``.

A bundle is a compressed tar archive of one folder: the run's files and ``MANIFEST.json``, which holds the SHA-256 of
each. What looks like a secret (:mod:`~clusterbench.run_folder.redaction`; also the value of a variable of this process
whose name says so) is replaced before it is summed, and the manifest says in which files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from clusterbench.errors import RunFolderError
from clusterbench.run_folder import BUNDLE, RunFolder
from clusterbench.run_folder.lock import is_lock
from clusterbench.run_folder.records import parsed
from clusterbench.run_folder.redaction import redacted, secrets_of
from clusterbench.words import short

MANIFEST = "MANIFEST.json"
MOST_BYTES, MOST_FILES, MOST_LEVELS = 8 * 2**30, 200_000, 8
MOST_RATIO, SMALL_BYTES = 200, 2**26
"""A bundle unpacks to no more bytes, files and names above each other; and beyond the small to no more times its size.

Text of a run shrinks to a tenth, gzip's best is a thousandth.
"""
_LONGEST_NAME = 255
_MOST_HEADER_BYTES, _MOST_MANIFEST_BYTES = 2**20, 2**26


def write_bundle(run: Path, out: Path | None, environment: Mapping[str, str]) -> tuple[Path, tuple[str, ...]]:
    """The archive that was written, and the files in which something was replaced.

    Parameters
    ----------
    out
        The archive to write; by default beside the run's folder, under its name.
    environment
        Variables whose values are secret if their names say so.

    Raises
    ------
    RunFolderError
        If ``run`` is not a run's folder, ``out`` exists or is inside of it, or the disk cannot take it.
    """
    directory = RunFolder.open(run)
    archive = out or run.resolve().with_name(directory.name + BUNDLE)
    if archive.resolve().is_relative_to(run.resolve()) and not archive.exists():
        raise RunFolderError(
            f"--out {archive} is inside the run, and would be bundled with it.\n"
            "hint: name a file elsewhere; without --out it is written beside the run's folder"
        )
    secrets = [os.fsencode(secret).decode("latin-1") for secret in secrets_of(environment)]
    sums: dict[str, str] = {}
    replaced: list[str] = []
    try:
        with tarfile.open(archive, "x:gz") as tar:
            for path in _files(run):
                name = path.relative_to(run).as_posix()
                data = path.read_bytes()
                clean = _without_secrets(data, secrets)
                if clean != data:
                    replaced.append(name)
                sums[name] = hashlib.sha256(clean).hexdigest()
                _add(tar, f"{directory.name}/{name}", clean)
            manifest = {"run": directory.name, "replaced": replaced, "sha256": sums}
            _add(tar, f"{directory.name}/{MANIFEST}", (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    except FileExistsError:
        raise RunFolderError(f"{archive} exists.\nhint: name another file with --out") from None
    except OSError as error:
        archive.unlink(missing_ok=True)
        raise RunFolderError(f"{archive} cannot be written: {error.strerror or error}") from None
    return archive, tuple(replaced)


def open_bundle(archive: Path, into: Path) -> Path:
    """Unpacks a bundle into a new folder below ``into``, and returns that folder.

    The archive is read twice: at first nothing is written, until all of it is known to be what its manifest says. It is
    unpacked beside the new folder, which has its name only when it is whole.

    Raises
    ------
    RunFolderError
        If it is no bundle, was damaged or changed on the way, is larger than any run, wants to write elsewhere, or its
        folder exists already. Nothing is left then.
    """
    with _readable(archive):
        folder = _expect_whole(archive)
    target = into / folder
    if target.exists():
        raise RunFolderError(
            f"{target} exists, and the bundle would be unpacked there.\n"
            f"hint: 'clusterbench report {target}' if that is it, else move it away"
        )
    try:
        into.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder[:64]}-", dir=into))
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    try:
        _unpack(archive, beside)
        beside.rename(target)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _files(run: Path) -> Iterator[Path]:
    """Regular files of the run, in the order of their names; no links, which may lead out of it."""
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and not is_lock(path.name):
            yield path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))


def _without_secrets(data: bytes, secrets: list[str]) -> bytes:
    """``data`` of any encoding: each byte is one character, so that all others stay."""
    return redacted(data.decode("latin-1"), secrets).encode("latin-1")


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """What else can be wrong with an archive, in one sentence: its headers were written by anybody."""
    try:
        yield
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, ArithmeticError, RecursionError) as error:
        raise RunFolderError(f"{archive} is not a bundle that can be read: {error}") from None


class _Forward:
    """The bytes of a compressed archive, read forward only, and no more of them than is allowed.

    ``allowance`` is how many may be read before it is set again. tarfile takes what a header announces in one piece,
    however much that is; and a size below zero would lead it backwards, for ever.
    """

    def __init__(self, archive: Path, file: gzip.GzipFile) -> None:
        self.archive = archive
        self.allowance = 0
        self._file = file
        self._most = min(MOST_BYTES, max(SMALL_BYTES, MOST_RATIO * archive.stat().st_size))

    def expect_room(self, size: int) -> None:
        """An error if so many further bytes are more than a run has, or than its archive can hold."""
        if self._file.tell() + size > self._most:
            most = f"{self._most / 2**20:,.0f} MiB"
            raise RunFolderError(f"{self.archive} unpacks to more than {most}; no run in an archive of its size does")

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.allowance:
            raise tarfile.ReadError(f"a header of {size} bytes")
        self.expect_room(size)
        self.allowance -= size
        return self._file.read(size)

    def seek(self, position: int) -> None:
        if position < self._file.tell():
            raise tarfile.ReadError("a file of less than no bytes")
        self.expect_room(position - self._file.tell())
        self._file.seek(position)


def _contents(archive: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and pieces of each file, in their order; the pieces have to be taken before the next file is asked for."""
    with gzip.open(archive) as compressed:
        forward = _Forward(archive, compressed)
        forward.allowance = _MOST_HEADER_BYTES
        with tarfile.open(fileobj=cast("IO[bytes]", forward), mode="r:") as tar:
            names: set[str] = set()
            while (info := tar.next()) is not None:
                _expect_file(archive, tar, info)
                forward.expect_room(info.size)
                if info.name in names or len(names) == MOST_FILES:
                    what = "the same file twice" if info.name in names else f"more than {MOST_FILES:,} files"
                    raise RunFolderError(f"{archive} is not a bundle: it holds {what}")
                names.add(info.name)
                forward.allowance = info.size + _MOST_HEADER_BYTES
                yield info.name, _pieces(tar, info)
                forward.allowance = _MOST_HEADER_BYTES
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all


def _expect_file(archive: Path, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
    """Each is a plain file, two to ``MOST_LEVELS`` names deep, as a run's files are, and leads nowhere else."""
    parts = info.name.split("/")
    is_plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse() and not tar.pax_headers
    is_inside = 2 <= len(parts) <= MOST_LEVELS and not {"", ".", ".."} & {*parts} and "\0" not in info.name
    if not is_plain or not is_inside or info.size < 0 or max(map(len, map(os.fsencode, parts))) > _LONGEST_NAME:
        raise RunFolderError(
            f"{archive} is not a bundle: it holds {short(repr(info.name), 120)}, which is no file of a run"
        )


def _pieces(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    file = tar.extractfile(info)
    assert file is not None
    while piece := file.read(2**20):
        yield piece


def _expect_whole(archive: Path) -> str:
    """The name of the one folder in a bundle that is what its manifest says."""
    actual: dict[str, str] = {}
    folders: set[str] = set()
    manifest = b""
    for name, pieces in _contents(archive):
        folder, _, inner = name.partition("/")
        folders.add(folder)
        content = hashlib.sha256()
        for piece in pieces:
            content.update(piece)
            if inner == MANIFEST and len(manifest) <= _MOST_MANIFEST_BYTES:
                manifest += piece
        actual[inner] = content.hexdigest()
    if len(folders) != 1:
        raise RunFolderError(f"{archive} is not a bundle: it holds {len(folders)} folders and not one")
    actual.pop(MANIFEST, None)
    stated = _stated(archive, manifest)
    if wrong := sorted(name for name in {*stated, *actual} if stated.get(name) != actual.get(name)):
        raise RunFolderError(
            f"{archive} was damaged or changed: {len(wrong)} of {len(stated)} files are not what its {MANIFEST} says, "
            f"the first is {short(repr(wrong[0]), 120)}"
        )
    return folders.pop()


def _stated(archive: Path, manifest: bytes) -> dict[str, str]:
    try:
        # it is flat, and as a Python object each of millions of empty lists takes twenty times its text
        if len(manifest) > _MOST_MANIFEST_BYTES or sum(map(manifest.count, (b",", b"[", b"{"))) > 3 * MOST_FILES:
            raise ValueError
        return {str(name): str(value) for name, value in parsed(manifest)["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunFolderError(f"{archive} is not a bundle: its {MANIFEST} is missing or damaged") from None


def _unpack(archive: Path, beside: Path) -> None:
    for name, pieces in _contents(archive):
        path = beside / name.partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            file.writelines(pieces)
