"""What a report draws: one file a chart, found by its name.

A chart picks its own rows and shows itself only when they say something. Its docstring has a section *How to read it*,
which becomes the caption. It draws panels, each a figure of its own with the table of what it shows, so that a page can
set them side by side or, on a phone, below each other, name what stands under the pointer, and link to its case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Literal, TypeVar, get_args

from clusterbench.cases import Reading
from clusterbench.discover import things
from clusterbench.drawing.panel import Panel
from clusterbench.words import Word

Data = TypeVar("Data")

CAPTION = "How to read it"

IN_OBSERVATIONS = "the others are in observations.jsonl"
"""Where what no row holds is to be found."""


Section = Literal["comparison", "step", "scaling", "pipeline", "links", "host", "steadiness"]
"""Parts of a report, in its order: choices held against each other, what a step needs, what more ranks bring, when the
ranks of a pipeline compute, what links carry, what a host does alone, how far figures can be trusted."""


class Chart(ABC, Generic[Data]):
    """A question to what was read of a run, and its picture.

    Attributes
    ----------
    title
        What is drawn against what.
    section
        Where in the report it stands. The first chart that has an answer gives the report's own.
    after
        The chart of the same section that it follows; without one it begins the section.
    is_aside
        Whether its answer is about something beside the suite's question, and so never the report's own.
    rests_on_times
        Whether its answer speaks of how long iterations took, so that unsteady ones are a limit of it.
    glossary
        Words of the field that it brings.
    """

    title: ClassVar[str]
    section: ClassVar[Section]
    after: ClassVar[str] = ""
    is_aside: ClassVar[bool] = False
    rests_on_times: ClassVar[bool] = True
    glossary: ClassVar[tuple[Word, ...]] = ()

    @abstractmethod
    def select(self, reading: Reading) -> Data | None:
        """What is to be drawn; None where nothing that was read is to be shown so."""

    @abstractmethod
    def draw(self, data: Data) -> list[Panel]:
        """The panels, made with the tools of ``drawing/`` so that all look alike."""

    def answer(self, data: Data) -> str:
        """What the chart says in one sentence with measured figures, or nothing; of several things a line each."""
        return ""

    def left_out(self, data: Data) -> str:
        """A sentence about what was too much to draw, or nothing."""
        return ""


def charts() -> dict[str, type[Chart[object]]]:
    """All charts by name, in the order of the report."""
    kinds: Mapping[str, type[Chart[object]]] = things("clusterbench.charts", Chart)
    return {name: kinds[name] for name in in_order(kinds)}


def in_order(kinds: Mapping[str, type[Chart[object]]]) -> list[str]:
    """Names by section, each behind the one that it follows; of several that follow one, or none, by the alphabet.

    Raises
    ------
    TypeError
        If a chart follows one that its section does not have, or, in a circle, itself.
    """
    followers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, kind in sorted(kinds.items()):
        followers[kind.section, kind.after].append(name)

    def behind(section: str, name: str) -> Iterator[str]:
        for follower in followers[section, name]:
            yield follower
            yield from behind(section, follower)

    order = [name for section in get_args(Section) for name in behind(section, "")]
    if lost := sorted(kinds.keys() - set(order)):
        first = kinds[lost[0]]
        raise TypeError(
            f"chart '{lost[0]}' follows '{first.after}', which is not in its section, '{first.section}', or follows it"
        )
    return order


def said_of(name: str, sentence: str) -> str:
    """A sentence about one workload, or one run, of several: its name before it, as it stands above its panels."""
    name = " ".join(name.split())
    return f"{name}: {sentence[0].lower()}{sentence[1:]}" if name and sentence else sentence


def said_of_each(names: Iterable[str], sentences: Iterable[str]) -> str:
    """A line for each workload of which there is something to say; ``names`` are those above their panels.

    >>> said_of_each(["", ""], ["It fell.", ""]), said_of_each(["seq 8", "seq 16"], ["It fell.", "It rose."])
    ('It fell.', 'seq 8: it fell.\\nseq 16: it rose.')
    """
    return "\n".join(filter(None, map(said_of, names, sentences)))


def curves_note(count: int, drawn: int, what: str, others: str = "all are in the table of cases") -> str:
    """Says what was too much to draw, and where the ``others`` are."""
    return f"Drawn are the first {drawn} of {count:,} {what}; {others}." if count > drawn else ""


def bars_note(counts: Sequence[int], drawn: int, which: str, of_each: str) -> str:
    """Says which bars stand for many, and where the others are; ``counts`` are those of the panels.

    >>> bars_note([17], 12, "best", "a workload")
    'Drawn are 12 of 17, the best first; 5 more are in the table behind the bars.'
    """
    more = sum(count - drawn for count in counts if count > drawn)
    if not more:
        return ""
    of = of_each if len(counts) > 1 else f"{counts[0]:,}"
    others = f"{more:,} more {'is' if more == 1 else 'are'} in the table behind the bars"
    return f"Drawn are {drawn} of {of}, the {which} first; {others}."
