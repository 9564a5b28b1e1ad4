"""The search for the longest sequence that fits, against counting up, and how few lengths it looks at."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from clusterbench.expected.step import most_that_fit

LINES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**4)), min_size=1, max_size=3)


def seven_digits(units: int) -> int:
    return int(bin(units)[2:9].ljust(len(bin(units)) - 2, "0"), 2)


@given(LINES, st.integers(0, 10**6), st.integers(0, 4 * 10**6), st.integers(0, 10**5))
@example([(0, 1)], 0, 10**6, 0)
@example([(0, 10**4), (10**6, 1)], 0, 10**6 + 700, 1)  # bends after the first few
def test_it_finds_what_counting_up_finds(
    lines: list[tuple[int, int]], states: int, memory_bytes: int, start: int
) -> None:
    looked_at = []

    def held(units: int) -> float:
        looked_at.append(units)
        return states + max(fixed + each * units for fixed, each in lines) if units else float(states)

    most = min((memory_bytes - states - fixed) // each for fixed, each in lines)
    assert most_that_fit(held, memory_bytes, start) == seven_digits(max(0, most))
    assert len(looked_at) <= 30
    if len(lines) == 1 and not lines[0][0]:
        assert len(looked_at) <= 5


def test_seven_binary_digits_are_to_two_percent() -> None:
    assert [seven_digits(units) for units in (0, 5, 127, 128, 129, 255, 1023)] == [0, 5, 127, 128, 128, 254, 1016]
    assert all(units / seven_digits(units) < 1.02 for units in range(1, 5000))
