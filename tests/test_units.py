"""Sizes in, values out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.units import UNITS, format_bytes, format_value, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8B", 8),
        ("8", 8),
        (8, 8),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        ("1MiB", 2**20),
        ("4GiB", 2**32),
        ("0.5GiB", 2**29),
        ("0", 0),
    ],
)
def test_sizes_are_binary(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1M", "'1M' is not a size: 'M' is read both ways; write '1MiB' for 1 x 1048576 bytes."),
        ("1MB", "'1MB' is not a size: sizes are binary here; write '1MiB', or the number of bytes."),
        ("1mib", "'1mib' is not a size: write '1MiB'."),
        ("1 furlong", "'1 furlong' is not a size: unknown unit 'furlong'. Write a whole number of bytes"),
        ("-1", "'-1' is not a size. Write a whole number of bytes"),
        ("0.3B", "'0.3B' is not a whole number of bytes."),
        ("", "'' is not a size."),
        (-4, "-4 is not a size: it is negative."),
        (True, "True is not a size."),
    ],
)
def test_what_is_no_size_is_answered_with_how_to_write_one(text, message):
    with pytest.raises(ValueError, match="not a") as error:
        parse_bytes(text)
    assert str(error.value).startswith(message)


@given(st.integers(0, 50), st.integers(1, 1023))
def test_exact_sizes_survive_the_round_trip(power, factor):
    size_bytes = factor * 2 ** (power // 10 * 10)
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12.3e-6, "s", "12.30 us"),
        (0.0617, "s", "61.700 ms"),
        (1.5, "s", "1.500 s"),
        (3600, "s", "3,600.0 s"),
        (0, "s", "0 s"),
        (485.1191e9, "B/s", "485.1 GB/s"),
        (8e12, "B/s", "8,000.0 GB/s"),
        (80 * 2**30, "B", "80GiB"),
        (57.913e9, "FLOP", "57.9 GFLOP"),
        (2.5e15, "FLOP/s", "2,500.0 TFLOP/s"),
        (7000, "tokens/s", "7,000 tokens/s"),
        (3.25, "tokens/s", "3.25 tokens/s"),
        (0.051, "fraction", "5.1 %"),
        (16, "1", "16"),
        (1.98e9, "Hz", "1.98 GHz"),
        (1.62e9, "Hz", "1.62 GHz"),
        (0.0531, "J", "0.0531 J"),
        (1032.63, "J", "1,032.6 J"),
        (45, "C", "45.0 °C"),
        (700, "W", "700.0 W"),
        (float("nan"), "1", "nan"),
    ],
)
def test_values_read_as_the_field_writes_them(value, unit, text):
    assert format_value(value, unit) == text


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_formats_zero_one_and_less_than_zero(unit):
    assert all(format_value(value, unit) for value in (0, 1, -1, 0.5, 1e20))


def test_an_unknown_unit_is_named():
    with pytest.raises(ValueError, match=r"unknown unit 'GB'\. Known: s, B, B/s"):
        format_value(1, "GB")
