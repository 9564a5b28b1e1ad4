"""What is made without collection, and what that leaves to the collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from clusterbench.garbage import MANY, uncollected


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Other tests end as a process does, with all of it frozen."""
    gc.unfreeze()
    yield
    gc.unfreeze()


def made(count: int) -> list[list[int]]:
    with uncollected():
        assert not gc.isenabled()
        return [[number] for number in range(count)]


def is_young(thing: object) -> bool:
    return any(thing is other for other in gc.get_objects(generation=0))


def test_many_records_are_not_walked_as_young_ones() -> None:
    records = made(2 * MANY)
    assert gc.isenabled()
    assert not is_young(records[0])
    assert gc.get_freeze_count() == 0


def test_what_others_froze_stays_frozen() -> None:
    gc.freeze()
    made(2 * MANY)
    assert gc.get_freeze_count() > 0


def test_for_a_few_records_a_frozen_heap_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for its size is to walk it."""
    asked: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append(0) or 0)
    made(100)
    assert asked == []
    made(2 * MANY)
    assert asked == [0]


def test_what_lasts_to_the_end_is_frozen() -> None:
    with uncollected(to_the_end=True):
        records = [[number] for number in range(100)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(records)
