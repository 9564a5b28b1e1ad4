"""One of the three statements of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["good", "suspect", "bad", "open", "imported"]
"""``open``: nothing is wrong, and something is not known."""

ALWAYS_FAILS = "wrong"
WRONG: tuple[str, Tone] = ("WRONG", "bad")
NOT_PROVEN: tuple[str, Tone] = ("NOT PROVEN", "open")
MOST_NAMED = 3  # culprits, mistakes or parts in a sentence


@dataclass(frozen=True)
class Statement:
    """One of the three: a word and the sentence behind it.

    ``conditions`` are those of :data:`clusterbench.types.FAIL_ON` that hold, and ``wrong``. ``counts`` are its numbers,
    ``parts`` its lists of sentences, by name: what a program reads.
    """

    about: Literal["measured", "proven", "machine"]
    word: str
    sentence: str
    tone: Tone
    conditions: tuple[str, ...] = ()
    counts: Mapping[str, int] | None = None
    parts: Mapping[str, Sequence[str]] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "word": self.word.lower(),
            "sentence": self.sentence,
            **(self.counts or {}),
            **{name: list(sentences) for name, sentences in (self.parts or {}).items()},
        }
