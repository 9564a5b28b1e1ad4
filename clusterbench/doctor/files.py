"""Files that people have at hand: their text, and the host that a folder is named after."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from clusterbench.errors import SuiteError

_MOST_BYTES = 512 * 2**20
_MOST_UNPACKED, _MOST_RATIO = 16 * 2**20, 200
"""A packed file may unpack to so many bytes, or to so many times its size where that is more: a log packs to a
twentieth, and one line again and again to a thousandth."""
_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def text_of(path: Path) -> str:
    """What a file says: also one packed by gzip, in UTF-16 as PowerShell writes it, or of Docker, line by line in JSON.

    Raises
    ------
    SuiteError
        If it cannot be read, or is too large when it is unpacked.
    """
    try:
        with open(path, "rb") as file:
            held = file.read(_MOST_BYTES)
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None
    if held.startswith(_GZIP):
        held = _unpacked(held, path)
    text = held.decode("utf-16" if held.startswith(_UTF_16) else "utf-8", errors="replace")
    return _of_docker(text) if text.startswith('{"log":') else text


def _unpacked(packed: bytes, path: Path) -> bytes:
    """As much as is there: a file that is cut, or goes on with what is not packed, says what stands before."""
    most = min(_MOST_BYTES, max(_MOST_UNPACKED, _MOST_RATIO * len(packed)))
    unpacked = bytearray()
    with gzip.open(io.BytesIO(packed)) as file:
        try:
            while (part := file.read1(2**20)) and len(unpacked) <= most:
                unpacked += part
        except (OSError, EOFError, zlib.error) as error:
            if not unpacked:
                raise SuiteError(f"{path} cannot be unpacked: {error}.") from None
    if len(unpacked) > most:
        raise SuiteError(
            f"{path} unpacks to more than {most / 2**20:,.0f} MiB.\nhint: unpack it, and give a part of it"
        )
    return bytes(unpacked)


def _of_docker(text: str) -> str:
    """What a container wrote, by the files of Docker's driver json-file, each of its lines where it stood.

    A line of over 16 KiB is in several: it stands in the last of them.
    """
    lines: list[str] = []
    begun = ""
    for line in text.split("\n"):
        said = _logged(line)
        if said is None:
            lines.append(line)
        elif said.endswith("\n"):
            lines.append(f"{begun}{said[:-1]}".replace("\n", " "))
            begun = ""
        else:
            lines.append("")
            begun += said
    return "\n".join(lines)


def _logged(line: str) -> str | None:
    try:
        said = json.loads(line) if line.startswith('{"log":') else None
    except ValueError:
        return None
    log = said.get("log") if isinstance(said, dict) else None
    return log if isinstance(log, str) else None


def hosts_by_folder(paths: Sequence[Path]) -> list[str]:
    """Of each file the host that its folder is named after, or nothing: hosts have folders where names of files recur.

    >>> hosts_by_folder([Path("cb01/ibstat.txt"), Path("cb02/ibstat.txt"), Path("cb02/dmesg.txt"), Path("nccl.log")])
    ['cb01', 'cb02', 'cb02', '']
    >>> hosts_by_folder([Path("cb01/logs/dmesg.txt"), Path("cb02/logs/dmesg.txt")])
    ['cb01', 'cb02']
    """
    folders = [Path(os.path.abspath(path)).parent for path in paths]
    by_name: dict[str, set[Path]] = defaultdict(set)
    for path, folder in zip(paths, folders, strict=True):
        by_name[path.name].add(folder)
    hosts = _apart({folder for alike in by_name.values() if len(alike) > 1 for folder in alike})
    return [hosts.get(folder, "") for folder in folders]


def _apart(folders: Collection[Path]) -> Mapping[Path, str]:
    """Names that tell folders apart: without the end that all share, and of as few parts as do."""
    parts = {folder: folder.parts for folder in folders}
    while parts and len({each[-1] for each in parts.values()}) == 1 and min(map(len, parts.values())) > 1:
        parts = {folder: each[:-1] for folder, each in parts.items()}
    depth = 1
    while len({each[-depth:] for each in parts.values()}) < len(parts):
        depth += 1
    return {folder: "/".join(each[-depth:]) for folder, each in parts.items()}
