"""What ranks leave of a case beside the clock: each pass has a name, and one type for its writer and its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from clusterbench.run_folder.fast import list_reader
from clusterbench.run_folder.records import Reader, reader_of
from clusterbench.types import SAMPLES, Observation

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Pass(Generic[Kind]):
    """One kind of record of a rank.

    Attributes
    ----------
    name
        In ``observations.jsonl``.
    kind
        A dataclass, a NamedTuple (a list in the file), or what may be a field of one.

    Examples
    --------
    >>> own_seconds: Pass[Sequence[float]] = Pass("own_seconds", Sequence[float])
    >>> seen = Observation("case", "", 1, 1, ("a",), [[1.0]], passes={"own_seconds": [[0.5, 0.25]]})
    >>> own_seconds.of(seen)
    [[0.5, 0.25]]
    """

    name: str
    kind: Any

    def taken(self, observe: Callable[[], Kind]) -> dict[str, Callable[[], Any]]:
        """An entry of :attr:`clusterbench.types.Step.passes`: takes the record and gives it as JSON holds it."""
        return {self.name: lambda: as_json(observe())}

    def of(self, observation: Observation) -> list[Kind]:
        """What each rank left, in rank order; empty where the pass was not taken.

        Raises
        ------
        ValueError
            If a record is not of this kind, naming pass, rank and field.
        """
        values = observation.passes.get(self.name, ())
        if not values:
            return []
        if (fast := self._read_all(values)) is not None:
            return fast
        records = []
        for rank, value in enumerate(values):
            try:
                records.append(self._read(value))
            except ValueError as error:
                raise ValueError(
                    f"the record '{self.name}' of rank {rank} is not what a rank leaves: {error}"
                ) from None
        return records

    def readable(self, observation: Observation) -> list[Kind]:
        """The same, but empty where a record cannot be read: for pictures, which the table of cases says it of."""
        try:
            return self.of(observation)
        except ValueError:
            return []

    @cached_property
    def _read_all(self) -> Callable[[Sequence[Any]], list[Kind] | None]:
        return list_reader(self.kind)

    @cached_property
    def _read(self) -> Reader:
        return reader_of(self.kind)


OWN_SECONDS: Pass[Sequence[float]] = Pass("own_seconds", Sequence[float])
"""Seconds of each iteration that a rank spends on its own work, without waiting for others. Taken in every repeat."""

SPANS_NAME = "spans"
"""The pass that has a file of its own: no report reads it, and it is larger than all others together."""

EVERY_REPEAT = frozenset({SAMPLES, OWN_SECONDS.name})
"""Passes that vary from repeat to repeat; the others are taken once a case."""


def as_json(value: Any) -> Any:
    """A record with its dataclasses as names and values; NamedTuples become lists by themselves."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return value
