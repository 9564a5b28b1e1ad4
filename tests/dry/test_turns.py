"""What a step sends in order: short, and all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from clusterbench.job.dry import Sent
from clusterbench.job.turns import Line, lines_in_order


def sent(op: str, axis: str = "tp") -> Sent:
    return Sent(axis, op, 8, "bfloat16", 2, 1)


GATHER, SUM, MESSAGE = sent("all_gather"), sent("reduce_scatter"), sent("send", "pp")


def in_full(lines: Sequence[Line]) -> Iterator[Sent]:
    """What the lines stand for, one call after the other."""
    at = 0
    while at < len(lines):
        head, at = lines[at], at + 1
        if head.sent is not None:
            yield head.sent
            continue
        end = next((number for number in range(at, len(lines)) if lines[number].depth <= head.depth), len(lines))
        for _ in range(head.count):
            yield from in_full(lines[at:end])
        at = end


def test_layers_and_micro_batches_are_written_once() -> None:
    of_a_stage = [MESSAGE, *[GATHER, SUM] * 3, GATHER] * 4
    assert [line.words(". ") for line in lines_in_order([*of_a_stage, MESSAGE])] == [
        "4 times:",
        ". 1 send on pp",
        ". 3 times:",
        ". . 1 all_gather on tp",
        ". . 1 reduce_scatter on tp",
        ". 1 all_gather on tp",
        "1 send on pp",
    ]


@given(st.lists(st.sampled_from([GATHER, SUM, MESSAGE]), max_size=12), st.integers(1, 4), st.integers(1, 4))
def test_nothing_of_it_is_lost(turns: list[Sent], inner: int, outer: int) -> None:
    whole = [*turns, *(turns[:5] * inner), MESSAGE] * outer
    assert list(in_full(lines_in_order(whole))) == whole


def test_nothing_sent_has_no_lines() -> None:
    assert lines_in_order([]) == []
