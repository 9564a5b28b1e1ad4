"""Options in the words of a launcher's command line: found, and given another value, in the spelling they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterbench.errors import SuiteError


@dataclass(frozen=True)
class Option:
    """Where an option stands, what stands before its value in the same word, and the value."""

    index: int
    before: str | None
    value: str


def find(words: Sequence[str], names: Sequence[str], may_be_glued: bool = False) -> Option | None:
    """An option in one of its spellings: ``-n 8``, ``--np=8``, and, where it may be, glued to its letter: ``-n8``."""
    for index, word in enumerate(words[1:], 1):
        if word in names and index + 1 < len(words):
            return Option(index, None, words[index + 1])
        for name in names:
            rest = word.removeprefix(name)
            if rest == word or not rest:
                continue
            if rest.startswith("="):
                return Option(index, f"{name}=", rest[1:])
            if len(name) == 2 and may_be_glued:
                return Option(index, name, rest)
    return None


def replace(words: list[str], names: Sequence[str], value: str, may_be_glued: bool = False) -> bool:
    """Gives an option another value; False where it is not there."""
    if (option := find(words, names, may_be_glued)) is None:
        return False
    if option.before is None:
        words[option.index + 1] = value
    else:
        words[option.index] = option.before + value
    return True


def count(words: Sequence[str], option: Option) -> int:
    """The value of an option that says how many.

    Raises
    ------
    SuiteError
        If it is no number.
    """
    if not option.value.isdecimal():
        name = (option.before or words[option.index]).rstrip("=")
        raise SuiteError(f"{name} must be a whole number, not {option.value!r}.")
    return int(option.value)


def lines_of(path: str) -> list[str]:
    """The lines of a file that an option names, without comments and empty ones.

    Raises
    ------
    SuiteError
        If it cannot be read, or is no text.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SuiteError(f"{path} is no text file, and should name a host a line.") from None
    if any("\0" in line for line in lines):
        raise SuiteError(f"{path} is no text file, and should name a host a line.")
    return [line for line in lines if line]
