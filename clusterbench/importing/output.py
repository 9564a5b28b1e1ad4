"""Texts of benchmarks that need no mapping: what a kind of them says, case by case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterbench.importing.nccl import Facts
from clusterbench.importing.records import ImportedCase


@dataclass(frozen=True)
class Read:
    """Cases of one file, and what of it was left out."""

    cases: Sequence[ImportedCase]
    notes: tuple[str, ...] = ()


class Output(ABC):
    """A kind of text.

    Attributes
    ----------
    tool
        What a person calls the program.
    question
        What its figures answer.
    takes
        Options of ``clusterbench import`` that say what its text leaves out.
    """

    tool: ClassVar[str]
    question: ClassVar[str]
    device: ClassVar[Literal["cpu", "cuda"]] = "cpu"
    takes: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Whether a text is of this kind."""

    @abstractmethod
    def read(self, name: str, text: str, facts: Facts) -> Read:
        """All cases of the file ``name``.

        Raises
        ------
        ToolError
            If it cannot be read whole, or contradicts itself.
        SuiteError
            If it does not say what ran on how many ranks.
        """
