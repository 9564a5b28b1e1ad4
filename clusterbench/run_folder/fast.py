"""Records read by msgspec, where it is installed: the same as :mod:`clusterbench.run_folder.records`, faster.

msgspec refuses more than that module (NaN and 1e999 among samples, say) and explains less. So a line that it refuses is
read again there, which takes it or says what is wrong with it; what msgspec would take more loosely it is not given.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clusterbench.run_folder.records import MOST, MOST_DIGITS, MOST_WHOLE

Kind = TypeVar("Kind")

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * MOST_DIGITS
_LONG_WHOLE = re.compile(rb"(?<![0-9.])[0-9]{%d}" % MOST_DIGITS)
_MOST_TEXTS = 4096

LEFT_BY_RANKS = Mapping[str, Sequence[Any]]
"""The type of what each rank left, by pass: ranks with the same work mostly leave the same text."""


class FastReader(Generic[Kind]):
    """Reads lines that hold one kind of record and, beside its fields, those of ``also``: a type for each name.

    Fields named in ``repeated`` have the same text on many lines, such as what the cases of a sweep expect: a text is
    read once, and its lines share one object. So do ranks that left the same (:data:`LEFT_BY_RANKS`).
    """

    def __init__(self, kind: type[Kind], also: Mapping[str, Any] | None = None, repeated: Collection[str] = ()) -> None:
        self.kind = kind
        self.also = also or {}
        self.repeated = repeated

    def __call__(self, line: bytes) -> Kind | None:
        """The record of a line; None where records.py has to read it."""
        structure = self.fields(line)
        return None if structure is None else self.record(structure)

    def fields(self, line: bytes) -> Any:
        """What a line holds, as attributes; None where records.py has to read it."""
        if self._decode is None or _has_long_whole_number(line):
            return None
        return self._decode(line)

    @cached_property
    def record(self) -> Callable[[Any], Kind]:
        """Makes the record of what a line holds."""
        return _record(self.kind, self.repeated)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any] | None:
        try:
            import msgspec
        except ImportError:
            return None
        decode = msgspec.json.Decoder(_mirror(self.kind, self.also, self.repeated)).decode
        hints = get_type_hints(self.kind)
        readers = {name: _text_reader(hints[name]) for name in self.repeated}
        of_ranks = {name: _text_reader(Any) for name, hint in hints.items() if hint == LEFT_BY_RANKS}

        def decoded(line: bytes) -> Any:
            try:
                structure = decode(line)
                for name, read in readers.items():
                    if isinstance(text := getattr(structure, name), msgspec.Raw):
                        setattr(structure, name, read(bytes(text)))
                for name, read in of_ranks.items():
                    by_pass = getattr(structure, name).items()
                    setattr(structure, name, {key: [read(bytes(text)) for text in texts] for key, texts in by_pass})
                return structure
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                return None

        return decoded


def _has_long_whole_number(line: bytes) -> bool:
    """Whether there is one that records.py refuses; msgspec takes any number of digits where anything may stand."""
    # Decimals can be as long: 0.00013459099864121526. The first look is ten times faster than the second.
    return _LONG in line.translate(_DIGITS) and _LONG_WHOLE.search(line) is not None


def _text_reader(hint: Any) -> Callable[[bytes], Any]:
    """What a field of this type holds, of its text as it stands in a line."""
    import msgspec

    decode, record = msgspec.json.Decoder(_allowed(hint)).decode, _inner(hint)
    return lru_cache(_MOST_TEXTS)(decode if record is None else lambda text: record(decode(text)))


def _mirror(kind: Any, also: Mapping[str, Any], repeated: Collection[str] = ()) -> Any:
    """A structure of msgspec with the fields of a dataclass; other than a dataclass it refuses unknown names.

    Fields named in ``repeated`` are left as text, and so is what each rank left.
    """
    import msgspec

    hints = get_type_hints(kind)
    members: list[Any] = [*also.items()]
    left = types.GenericAlias(dict, (str, types.GenericAlias(list, (msgspec.Raw,))))
    for field in fields(kind):
        hint = hints[field.name]
        allowed = msgspec.Raw if field.name in repeated else left if hint == LEFT_BY_RANKS else _allowed(hint)
        member = (field.name, allowed)
        if field.default is not MISSING:
            members.append((*member, field.default))
        elif field.default_factory is not MISSING:
            members.append((*member, msgspec.field(default_factory=field.default_factory)))
        else:
            members.append(member)
    return msgspec.defstruct(kind.__name__, members, forbid_unknown_fields=True, kw_only=True, gc=False)


def _allowed(hint: Any) -> Any:
    """What msgspec is to take for a field of this type: never more than records.py does."""
    from msgspec import Meta

    origin, inner = get_origin(hint), get_args(hint)
    whole = Annotated[int, Meta(ge=-MOST_WHOLE, le=MOST_WHOLE - 1)]
    if hint in (Any, str, bool, types.NoneType) or origin is Literal:
        return hint
    if hint is int:
        return whole
    if hint is float:  # a whole number stays one
        return whole | Annotated[float, Meta(ge=-MOST, le=MOST)]
    if is_dataclass(hint):
        return _mirror(hint, {})
    if hint == Sequence[Sequence[float]]:  # what was measured has no bounds
        return list[list[int | float]]
    if hint == Mapping[str, float]:
        return dict[str, int | float]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_allowed, inner))]  # noqa: UP007
    if origin is tuple:
        return types.GenericAlias(tuple, (_allowed(inner[0]), ...))
    if origin is Sequence:
        return types.GenericAlias(list, (_allowed(inner[0]),))
    if origin is Mapping:
        return types.GenericAlias(dict, (str, _allowed(inner[1])))
    raise TypeError(f"no record can hold {hint}")


def list_reader(kind: Any) -> Callable[[Sequence[Any]], list[Any] | None]:
    """Makes records of this kind of what a line held as a list; None where records.py has to read it."""
    try:
        import msgspec

        mirror = types.GenericAlias(list, (_allowed(kind),))
    except (ImportError, TypeError):
        return lambda values: None
    record = _inner(kind)

    def read(values: Sequence[Any]) -> list[Any] | None:
        are_one = all(value is values[0] for value in values)
        try:
            structures: list[Any] = msgspec.convert(values[:1] if are_one else values, mirror)
        except (msgspec.ValidationError, RecursionError):
            return None
        records = structures if record is None else list(map(record, structures))
        return records * len(values) if are_one else records

    return read


def _record(kind: Any, read: Collection[str] = ()) -> Callable[[Any], Any]:
    """What makes a dataclass of a structure with its fields; those named in ``read`` are what they should be."""
    hints, names = get_type_hints(kind), [field.name for field in fields(kind)]
    inner = {
        index: records
        for index, name in enumerate(names)
        if name not in read and (records := _inner(hints[name])) is not None
    }
    values_of = attrgetter(*names)

    def plain(structure: Any) -> Any:
        return kind(*values_of(structure))

    def nested(structure: Any) -> Any:
        values = [*values_of(structure)]
        for index, records in inner.items():
            values[index] = records(values[index])
        return kind(*values)

    if all(map(_is_plain, hints.values())):
        # Those with equal fields are one object: the cases of a sweep expect the same. Typed, as a whole number stays
        # one: 2 and 2.0 are equal.
        shared = lru_cache(maxsize=2**16, typed=True)(kind)
        return lambda structure: shared(*values_of(structure))
    return nested if inner else plain


def _is_plain(hint: Any) -> bool:
    """Whether a field of this type holds one plain value."""
    if get_origin(hint) in (Union, types.UnionType):
        return all(map(_is_plain, get_args(hint)))
    return hint in (str, bool, int, float, types.NoneType) or get_origin(hint) is Literal


def _inner(hint: Any) -> Callable[[Any], Any] | None:
    """What makes records of the structures in a field of this type; None where there are none."""
    origin, inner = get_origin(hint), [_inner(each) for each in get_args(hint)]
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint)
    record = next(filter(None, inner), None)
    if record is None:
        return None
    if origin is Mapping:
        return lambda structures: {key: record(value) for key, value in structures.items()}
    if origin is tuple:
        return lambda structures: tuple(map(record, structures))
    if origin is Sequence:
        return lambda structures: list(map(record, structures))
    return lambda structure: None if structure is None else record(structure)
