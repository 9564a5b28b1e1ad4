"""A run as one file, to send to a colleague or a vendor: checksummed, without secrets, and opened by ``report``.

A bundle is a compressed tar archive of one folder: the run's files and ``MANIFEST.json``, which holds the SHA-256 of
each. What looks like a secret in a text (a token of a known form, the value of a variable of this process whose name
says so) is replaced before it is summed, and the manifest says in which files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from clusterbench.errors import RunFolderError
from clusterbench.run_folder import RunFolder

MANIFEST = "MANIFEST.json"
SUFFIX = ".clusterbench.tar.gz"
REPLACEMENT = "[removed]"
LARGEST_BYTES = 8 * 2**30
_TEXTS = (".jsonl", ".json", ".yaml", ".csv", ".html", ".log", ".txt")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY|JWT", re.IGNORECASE)
_SHORTEST_SECRET = 8
_TOKENS = re.compile(
    rb"hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9_-]{20,}"
    rb"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Forms in which Hugging Face, GitHub, Amazon, OpenAI, Slack and JWT issue tokens, and the head of a private key."""


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
        If ``run`` is not a run's folder, ``out`` exists, or the disk cannot take it.
    """
    directory = RunFolder.open(run)
    archive = out or run.resolve().with_name(directory.name + SUFFIX)
    secrets = _secrets(environment)
    sums: dict[str, str] = {}
    replaced: list[str] = []
    try:
        with tarfile.open(archive, "x:gz") as tar:
            for path in _files(run):
                name = path.relative_to(run).as_posix()
                data = path.read_bytes()
                clean = _without_secrets(data, secrets) if path.suffix in _TEXTS else data
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

    Raises
    ------
    RunFolderError
        If it is no bundle, was damaged or changed on the way, wants to write elsewhere, or its folder exists already.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            files = dict(_contents(archive, tar))
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise RunFolderError(f"{archive} is not a bundle that can be read: {error}") from None
    folders = {PurePosixPath(name).parts[0] for name in files}
    if len(folders) != 1:
        raise RunFolderError(f"{archive} is not a bundle: it holds {len(folders)} folders and not one")
    (folder,) = folders
    _expect_whole(archive, {name.removeprefix(f"{folder}/"): data for name, data in files.items()})
    target = into / folder
    if target.exists():
        raise RunFolderError(f"{target} exists, and the bundle would be unpacked there.\nhint: move it, or name it")
    try:
        for name, data in files.items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    return target


def _files(run: Path) -> Iterator[Path]:
    """Regular files of the run, in the order of their names; no links, which may lead out of it."""
    for path in sorted(run.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != "alive":
            yield path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))


def _secrets(environment: Mapping[str, str]) -> list[bytes]:
    values = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    return sorted({os.fsencode(value) for value in values if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)


def _without_secrets(data: bytes, secrets: list[bytes]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, REPLACEMENT.encode())
    return _TOKENS.sub(REPLACEMENT.encode(), data)


def _contents(archive: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    total = 0
    for info in tar:
        parts = PurePosixPath(info.name).parts
        if not info.isfile() or info.name.startswith("/") or ".." in parts or len(parts) < 2 or "\0" in info.name:
            raise RunFolderError(f"{archive} is not a bundle: it holds {info.name!r}, which is no file of a run")
        total += info.size
        if total > LARGEST_BYTES:
            raise RunFolderError(f"{archive} unpacks to more than {LARGEST_BYTES // 2**30} GiB; no run does")
        file = tar.extractfile(info)
        assert file is not None
        yield info.name, file.read()


def _expect_whole(archive: Path, files: dict[str, bytes]) -> None:
    try:
        sums = json.loads(files.pop(MANIFEST, b""))["sha256"]
        stated = {str(name): str(value) for name, value in sums.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunFolderError(f"{archive} is not a bundle: its {MANIFEST} is missing or damaged") from None
    actual = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    if wrong := sorted(name for name in {*stated, *actual} if stated.get(name) != actual.get(name)):
        raise RunFolderError(
            f"{archive} was damaged or changed: {len(wrong)} of {len(stated)} files are not what its {MANIFEST} says, "
            f"the first is {wrong[0]!r}"
        )
