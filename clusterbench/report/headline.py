"""What a report says first: above its page, in a terminal and in Markdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """The suite's question, its answer, and what limits that: unsteady figures, a machine that is no cluster.

    ``undrawn`` says which charts failed; a page has that in their places.
    """

    question: str
    answers: tuple[str, ...]
    unsteady: str = ""
    caution: str = ""
    undrawn: str = ""

    @property
    def text(self) -> str:
        """For a terminal, a line each."""
        return "\n".join(filter(None, (self.question, *self.answers, self.unsteady, self.caution, self.undrawn)))
