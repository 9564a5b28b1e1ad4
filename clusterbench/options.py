"""A YAML key as a dataclass field: its type, its default, what it accepts and the sentence that explains it."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from clusterbench.errors import nearest
from clusterbench.units import format_bytes, parse_bytes
from clusterbench.words import short

OptionValue = str | int | float | bool
"""One value of an option."""

Alters = Literal["nothing", "update", "result"]
"""``nothing``: the same to rounding. ``update``: the gradients or what is made of them. ``result``: the loss, too."""


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    unit: str = "",
    choices: typing.Iterable[OptionValue] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    label: str = "",
    alters: Alters = "result",
    is_later: bool = False,
    is_shape: bool = False,
) -> Any:
    """A dataclass field that a suite may set.

    Parameters
    ----------
    help
        One line for ``clusterbench list``; says what the option changes, not its name again.
    unit
        ``"B"`` accepts ``"64MiB"``; any other unit is documentation.
    choices, minimum, maximum
        What is accepted. Bounds are inclusive, and stand for every element of a list.
    label
        How figures name a value, which stands for ``{}`` or follows the words; without it by the option's name. Of an
        option that is true or false the word for true.
    alters
        What of a training step's mathematics another value changes. Cases that differ in nothing of it are held against
        each other.
    is_later
        Whether runs were recorded before there was such an option. It then stays out of a case's point at its default,
        so that those cases keep their identity.
    is_shape
        Whether a value may also be a model that is described, in place or in a file: ``shape_file.py`` reads it.
    """
    metadata = {
        "help": help,
        "unit": unit,
        "choices": None if choices is None else tuple(choices),
        "minimum": minimum,
        "maximum": maximum,
        "label": label,
        "alters": alters,
        "is_later": is_later,
        "is_shape": is_shape,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """What a suite may write under one key. ``is_list`` means that a list is one value, not a sweep."""

    name: str
    kind: type
    is_list: bool
    optional: bool
    default: Any
    help: str
    unit: str
    choices: tuple[OptionValue, ...] | None
    minimum: float | None
    maximum: float | None
    label: str = ""
    alters: Alters = "result"
    is_later: bool = False
    is_shape: bool = False

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    def allowed(self) -> str:
        """What is accepted, in words.

        >>> Option("n", int, False, False, 1, "", "", None, 1, 64).allowed()
        'a whole number from 1 to 64'
        """
        if self.choices is not None:
            return "one of " + ", ".join(as_yaml(choice) for choice in self.choices)
        noun = "a size such as 64MiB" if self.unit == "B" else _NOUNS[self.kind]
        if self.minimum is None and self.maximum is None:
            return noun
        comma = "," if self.unit == "B" else ""
        if self.maximum is None:
            return f"{noun}{comma} of at least {self._bound(self.minimum)}"
        if self.minimum is None:
            return f"{noun}{comma} of at most {self._bound(self.maximum)}"
        return f"{noun}{comma} from {self._bound(self.minimum)} to {self._bound(self.maximum)}"

    def _bound(self, bound: float | None) -> str:
        return format_bytes(bound or 0) if self.unit == "B" else f"{bound:.15g}"

    @property
    def is_choice_of_kinds(self) -> bool:
        """Whether every value is a kind of something; otherwise the default means that nothing was asked for."""
        return self.choices is not None and self.default != "none"

    def words(self, value: Any) -> str:
        """A value as figures name it.

        >>> Option("chunks_per_rank", int, False, False, 0, "", "", None, 0, 64, label="{} chunks").words(2)
        '2 chunks'
        >>> Option("loss_parallel", bool, False, False, True, "", "", None, None, None).words(False)
        'no loss parallel'
        """
        return say(self.label or self.name.replace("_", " "), value)

    def parse(self, value: Any) -> OptionValue | None:
        """One value in the option's own type.

        Raises
        ------
        ValueError
            With the words that follow "option 'x' ": what was given, what is accepted, the nearest match.
        """
        if value is None and self.optional:
            return None
        parsed = self._converted(value)
        if self.choices is not None and parsed not in self.choices:
            raise ValueError(f"{self._not(value)}{nearest(str(value), [str(choice) for choice in self.choices])}")
        if isinstance(parsed, (int, float)) and not isinstance(parsed, bool):
            too_small = self.minimum is not None and parsed < self.minimum
            too_large = self.maximum is not None and parsed > self.maximum
            if too_small or too_large or not math.isfinite(parsed):
                raise ValueError(self._not(value))
        return parsed

    def _converted(self, value: Any) -> OptionValue:
        if self.unit == "B" and isinstance(value, (str, int)) and not isinstance(value, bool):
            try:
                return parse_bytes(value)
            except ValueError as error:
                raise ValueError(f"{self._not(value)}{_unit_advice(value, error)}") from None
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value) if abs(value) < 2**53 else math.inf
        if type(value) is not self.kind:
            raise ValueError(self._not(value))
        return typing.cast(OptionValue, value)

    def _not(self, value: Any) -> str:
        return f"must be {self.allowed()}, not {as_yaml(value)}."


def say(words: str, value: Any) -> str:
    """``words`` about a value, in the place of ``{}`` or behind them.

    >>> say("seq", 128), say("{} recompute", "full"), say("offload", True), say("clip", None)
    ('seq 128', 'full recompute', 'offload', 'no clip')
    """
    if value is True:
        return words
    if value is False or value is None:
        return f"no {words}"
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return words.replace("{}", text) if "{}" in words else f"{words} {text}"


def _unit_advice(value: Any, error: ValueError) -> str:
    """What :func:`parse_bytes` knows of a unit it does not take: ``'M' is read both ways; write '64MiB'.``"""
    head = f"'{value}' is not a size: "
    return f" {str(error).removeprefix(head)}" if str(error).startswith(head) and len(str(value)) <= 80 else ""


_NOUNS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def as_yaml(value: Any) -> str:
    """A value as a message shows it: text in quotes, at most a line of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(short(value))
    return short(str(value))


def later_values(thing: object) -> dict[str, Any]:
    """The options of a dataclass that runs recorded earlier did not have, by name, where they are not the default."""
    kind: type = type(thing)
    declared = options_of(kind).values()
    values = ((option, getattr(thing, option.name)) for option in declared if option.is_later)
    return {option.name: value for option, value in values if value != option.default}


@cache
def options_of(thing: type) -> dict[str, Option]:
    """The options of a dataclass, by name, in the order of its fields; fields without :func:`option` are none."""
    hints = typing.get_type_hints(thing)
    options = {}
    for field in dataclasses.fields(thing):
        if "help" not in field.metadata:
            continue
        kind, is_list, optional = _kind_of(hints[field.name])
        options[field.name] = Option(
            name=field.name,
            kind=kind,
            is_list=is_list,
            optional=optional,
            default=field.default,
            **field.metadata,
        )
    return options


def _kind_of(hint: Any) -> tuple[type, bool, bool]:
    """``int``, ``int | None`` and ``tuple[int, ...]`` as (element type, is a list, may be absent)."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _kind_of(inner)[0], _kind_of(inner)[1], True
    if typing.get_origin(hint) is tuple:
        return arguments[0], True, False
    return hint, False, False
