"""What a parallelism says of itself in plain words: of its groups, of a step, of what it is beside others."""

from __future__ import annotations

from dataclasses import dataclass

AFTER_BACKWARD = "once a step, after the last backward"


def in_layers(each: str) -> str:
    """When something is done in the layers, for ``each`` micro-batch."""
    return f"in every layer, for {each}"


@dataclass(frozen=True)
class Meaning:
    """An axis or a view in plain words: who is in one group, what passes between its members, and where it is from.

    Attributes
    ----------
    gives, costs
        What one wins by it and what one pays, for ``{n}`` ranks along it. Empty where the axes it is made of say it.
    """

    title: str
    members: str
    passes: str
    source: str
    gives: str = ""
    costs: str = ""


@dataclass(frozen=True)
class Remark:
    """A sentence on a layout, and where it is from."""

    text: str
    source: str


@dataclass(frozen=True)
class PhaseWords:
    """A phase of a step in plain words.

    Attributes
    ----------
    name
        A name of :data:`clusterbench.parallel.STEP`.
    when
        How often in a step, and next to what.
    flow
        How messages run through a group: to the next member (``forward``), to the one before (``backward``), to ``all``
        others, or around a ``ring``.
    """

    name: str
    title: str
    when: str
    what: str
    flow: str = "ring"
