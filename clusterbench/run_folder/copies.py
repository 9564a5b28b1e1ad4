"""Copies of the package that made the records of a run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterbench.run_folder import COPIES, noted


def sources_of(environment: Mapping[str, Any]) -> str:
    """What tells the sources of clusterbench that ran there from others; empty where that was not recorded.

    >>> sources_of({COPIES: {"b07c": "0.1.0", "9f2c": "0.1.0"}})
    '9f2c and b07c'
    """
    return " and ".join(sorted(noted(environment, COPIES)))


def copies_in_words(copies: Iterable[str], versions: Mapping[str, object]) -> str:
    """``clusterbench 0.1.0 with sources 9f2c41d0a7b3e586``, or several.

    Parameters
    ----------
    versions
        Of each copy, as environment.json has them.

    >>> copies_in_words(["9f2c", ""], {"9f2c": "0.1.0"})
    'clusterbench 0.1.0 with sources 9f2c and a clusterbench of before sources were recorded'
    """
    words = [
        f"clusterbench {versions.get(copy, 'of unknown version')} with sources {copy}"
        if copy
        else "a clusterbench of before sources were recorded"
        for copy in copies
    ]
    return " and ".join(words)
