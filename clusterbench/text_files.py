"""Files of text that people have at hand: whole ones that are read strictly, and logs of which every line counts.

Both may be packed by gzip, in UTF-16 as PowerShell writes it, or of Docker, line by line in JSON.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from pathlib import Path

from clusterbench.errors import SuiteError

_MOST_BYTES, _MOST_OF_A_LOG = 2**28, 2**29
_MOST_UNPACKED, _MOST_RATIO = 16 * 2**20, 200
"""A packed file may unpack to so many bytes, or to so many times its size where that is more: a log packs to a
twentieth, and one line again and again to a thousandth."""
_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_DOCKER = '{"log":'
_BEYOND_REASON = re.compile(r"\d{300,}")
"""No number: a float ends at 309 digits, and Python makes none of more than 4,300. A file that was damaged has it."""


def read_text(path: Path) -> str:
    """A file that is whole, text, and not beyond any reason in size.

    Raises
    ------
    SuiteError
        With the line where it is none.
    """
    data = _bytes_of(path, _MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise SuiteError(f"{path} is larger than {_MOST_BYTES // 2**20} MiB; give a part of it.")
    if data.startswith(_GZIP):
        data, whole = _unpacked(data, path)
        if not whole:
            raise SuiteError(
                f"{path} is cut, or goes on with what is not packed.\nhint: unpack it, and look at its end"
            )
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = encoding.upper().removesuffix("-SIG")
        raise SuiteError(f"{path.name}:{line}: byte 0x{data[error.start]:02x} is not {kind}.") from None
    if not text.strip():
        raise SuiteError(f"{path} is empty, so there is nothing to read.")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SuiteError(f"{path.name}:{line}: a NUL character; a file that was cut off by a crash ends like this.")
    if found := _BEYOND_REASON.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise SuiteError(f"{path.name}:{line}: {len(found[0]):,} digits in a row are no number; the file is damaged.")
    return _of_docker(text) if text.startswith(_DOCKER) else text


def log_text(path: Path) -> str:
    """What a log says, as much as is there: cut, packed and cut, or with bytes that are no text.

    Hundreds of digits in a row are crosses, which no reader takes for a number.

    Raises
    ------
    SuiteError
        If it cannot be read, or is too large when it is unpacked.
    """
    held = _bytes_of(path, _MOST_OF_A_LOG)
    if held.startswith(_GZIP):
        held, _ = _unpacked(held, path)
    text = held.decode("utf-16" if held.startswith(_UTF_16) else "utf-8", errors="replace")
    text = _BEYOND_REASON.sub(lambda found: "x" * len(found[0]), text)
    return _of_docker(text) if text.startswith(_DOCKER) else text


def _bytes_of(path: Path, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None


def _unpacked(packed: bytes, path: Path) -> tuple[bytes, bool]:
    """As much as is there, and whether that is all: it may be cut, or go on with what is not packed."""
    most = min(_MOST_OF_A_LOG, max(_MOST_UNPACKED, _MOST_RATIO * len(packed)))
    unpacked = bytearray()
    is_whole = True
    with gzip.open(io.BytesIO(packed)) as file:
        try:
            while (part := file.read1(2**20)) and len(unpacked) <= most:
                unpacked += part
        except (OSError, EOFError, zlib.error) as error:
            if not unpacked:
                raise SuiteError(f"{path} cannot be unpacked: {error}.") from None
            is_whole = False
    if len(unpacked) > most:
        raise SuiteError(
            f"{path} unpacks to more than {most / 2**20:,.0f} MiB.\nhint: unpack it, and give a part of it"
        )
    return bytes(unpacked), is_whole


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
        said = json.loads(line) if line.startswith(_DOCKER) else None
    except ValueError:
        return None
    log = said.get("log") if isinstance(said, dict) else None
    return log if isinstance(log, str) else None
