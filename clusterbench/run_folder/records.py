"""Records read from a file that may be damaged: each field is there and of its type, or an error names it.

The dataclass says what a field may hold. Whether the values fit each other is left to the caller.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from clusterbench.errors import nearest
from clusterbench.words import short

Kind = TypeVar("Kind")
Reader = Callable[[Any], Any]
"""Turns what JSON has into what the field holds; raises ``ValueError`` with what it should have been."""

MOST_WHOLE, MOST, MOST_DIGITS = 2**63, 1e30, 20
"""No number of a record is larger, and no whole one longer: sizes, counts, rates and seconds are far below."""


def line_of(record: object) -> str:
    """A record as a line that :func:`parsed` reads."""
    return _text_of(record, separators=(",", ":"))


def document_of(values: Mapping[str, Any]) -> str:
    """A file that is one object, such as ``environment.json``, in a form that a person reads, too."""
    return _text_of(values, indent=1, sort_keys=True)


def _text_of(values: object, **form: Any) -> str:
    """As JSON; what is no text in it, as in some names of files, is ``?``.

    NaN stays: a sample that is not a number must not cost the other samples of its case.
    """
    text = json.dumps(values, default=vars, **form)
    if "\\ud" in text:  # half of a character, or both halves of one
        text = json.dumps(values, default=vars, ensure_ascii=False, **form).encode(errors="replace").decode()
    return f"{text}\n"


def parsed(text: bytes) -> Any:
    """What one JSON text holds.

    Raises
    ------
    ValueError
        If it is not whole, not UTF-8, nested too deeply, or holds text that no file can hold or a whole number of too
        many digits.
    """
    try:
        value = _DECODER.decode(text.decode())
        if b"\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half of a character, escaped
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _short_integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")  # one of 400 fails wherever it meets a fraction
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_short_integer)


def record_of(kind: type[Kind], json_fields: Mapping[str, Any]) -> Kind:
    """A dataclass with these fields.

    Raises
    ------
    ValueError
        Naming the field that is missing, unknown, or of another type, and its value.

    Examples
    --------
    >>> from clusterbench.types import Expected
    >>> record_of(Expected, {"value": 2, "unit": "s", "basis": "a guess"})
    Expected(value=2, unit='s', basis='a guess', is_upper_bound=False)
    >>> record_of(Expected, {"value": "2", "unit": "s", "basis": "a guess"})
    Traceback (most recent call last):
    ValueError: 'value' is "2", not a number
    """
    readers, required = _fields(cast("Hashable", kind))
    values = {}
    try:
        for name, value in json_fields.items():
            values[name] = readers[name](value)
    except KeyError:
        raise ValueError(f"'{short(name, 60)}' is not known here.{nearest(name, readers)}") from None
    except _Inner as error:
        raise ValueError(f"in '{name}' {error}") from None
    except ValueError as error:
        raise ValueError(f"'{name}' is {short(json.dumps(value), 60)}, not {error}") from None
    if missing := required - values.keys():
        raise ValueError(f"'{min(missing)}' is missing")
    return kind(**values)


@cache
def _fields(kind: Any) -> tuple[dict[str, Reader], frozenset[str]]:
    """Readers of all fields by name, and the names of those that have no default."""
    hints = get_type_hints(kind)
    required = (field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING)
    return {field.name: reader_of(hints[field.name]) for field in fields(kind)}, frozenset(required)


def reader_of(hint: Any) -> Reader:
    """The reader of a type as it stands in a dataclass."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_dataclass(hint):
        return partial(_nested, hint)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        return partial(_listed, hint, [reader_of(kind) for kind in get_type_hints(hint).values()])
    if origin is Literal:
        return partial(_one_of, inner)
    if origin in (Union, types.UnionType):
        (read_value,) = (reader_of(item) for item in inner if item is not types.NoneType)
        return lambda value: None if value is None else read_value(value)
    if hint == Sequence[Sequence[float]]:
        return _samples
    if hint == Mapping[str, float]:
        return _evidence
    if origin is tuple:
        read_item = reader_of(inner[0])
        return lambda value: tuple(read_item(item) for item in _of(list, "a list", value))
    if origin is Sequence:
        read_item = reader_of(inner[0])
        return lambda value: [read_item(item) for item in _of(list, "a list", value)]
    if origin is Mapping:
        read_item = reader_of(inner[1])
        return lambda value: {key: read_item(item) for key, item in _of(dict, "names and values", value).items()}
    raise TypeError(f"no record can hold {hint}")


def _of(kind: type[Kind], words: str, value: Any) -> Kind:
    if not isinstance(value, kind):
        raise ValueError(words)
    return value


class _Inner(ValueError):
    """A mistake in a record that is part of another: it says itself where."""


def _nested(kind: Any, value: Any) -> Any:
    json_fields = _of(dict, "a record", value)
    try:
        return record_of(kind, json_fields)
    except ValueError as error:
        raise _Inner(error) from None


def _listed(kind: Any, readers: Sequence[Reader], value: Any) -> Any:
    values = _of(list, f"a list of {', '.join(kind._fields)}", value)
    if len(values) != len(readers):
        raise ValueError(f"a list of {', '.join(kind._fields)}")
    return kind(*(reader(value) for reader, value in zip(readers, values, strict=True)))


def _text(value: Any) -> str:
    if type(value) is not str:  # by far the most frequent: no further call
        raise ValueError("text")
    return value


def _flag(value: Any) -> bool:
    return _of(bool, "true or false", value)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_WHOLE:
        raise ValueError("a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= MOST:
        raise ValueError("a number")
    return value  # type: ignore[no-any-return]


def _one_of(allowed: Sequence[str], value: Any) -> str:
    if value not in allowed:
        raise ValueError(f"one of {', '.join(allowed)}")
    return str(value)


# What was measured may be infinite or no number: the caller judges it.


def _samples(value: Any) -> list[list[float]]:
    ranks = _of(list, "a list of samples for each rank", value)
    if not all(type(samples) is list and {*map(type, samples)} <= _NUMBERS for samples in ranks):
        raise ValueError("a list of samples for each rank")
    return ranks


def _evidence(value: Any) -> dict[str, float]:
    evidence: dict[str, float] = _of(dict, "numbers by name", value)
    if not {*map(type, evidence.values())} <= _NUMBERS:
        raise ValueError("numbers by name")
    return evidence


_NUMBERS = frozenset((int, float))
_PLAIN: Mapping[Any, Reader] = {str: _text, bool: _flag, int: _whole, float: _number}
