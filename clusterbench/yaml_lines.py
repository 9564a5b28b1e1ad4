"""YAML as a tree that knows its lines.

The tree is built from the parser's events, so nothing is ever constructed: no tag can name a Python object, and depth,
size and aliases are bounded while reading. Plain words mean what YAML 1.2 says: ``no`` and ``1:30`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from clusterbench.errors import SuiteError
from clusterbench.words import short

MOST_BYTES = 2**20
MOST_VALUES = 20_000
MOST_LEVELS = 16

Value = str | int | float | bool | None

_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,4})?|[-+]?\.(inf|Inf|INF)|\.nan"
)
# What YAML calls printable, less the characters that only Unicode calls a line's end: they would shift line numbers.
_UNPRINTABLE = re.compile("[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Scalar:
    """A word or number as it is written; ``plain`` when without quotes."""

    text: str
    line: int
    plain: bool = True

    @property
    def value(self) -> Value:
        """What the text stands for.

        >>> Scalar("1e9", 1).value, Scalar("no", 1).value, Scalar("8", 1, plain=False).value
        (1000000000.0, 'no', '8')
        """
        if not self.plain:
            return self.text
        if self.text.lower() in _WORDS:
            return _WORDS[self.text.lower()]
        if _INT.fullmatch(self.text):
            return int(self.text)
        if _FLOAT.fullmatch(self.text):
            return float(self.text.replace(".inf", "inf").replace(".nan", "nan"))
        return self.text


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Table:
    """Keys and values, in the order of the file; ``lines`` are those of the keys."""

    values: dict[str, Node]
    line: int
    lines: dict[str, int] = field(default_factory=dict)


Node = Scalar | Items | Table


def read_yaml(data: bytes, name: str, kind: str = "suite", needs: str = "'suite' and 'benchmarks'") -> Node:
    """The one document in ``data``; JSON is YAML as well.

    Parameters
    ----------
    kind, needs
        What such a file is called, and what it has at least: for messages.

    Raises
    ------
    SuiteError
        ``name:line:`` and what is wrong, if this is not plain YAML of a reasonable size.
    """
    return _Builder(name, _text(data, name, kind, needs), kind, needs).document()


def _text(data: bytes, name: str, kind: str, needs: str) -> str:
    if len(data) > MOST_BYTES:
        raise SuiteError(f"{name} is larger than {MOST_BYTES // 2**20} MiB; a {kind} is a page of text.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"0x{data[error.start]:02x}"
        raise SuiteError(f"{name}:{line}: byte {byte} is not UTF-8; a {kind} is a text file.") from None
    unprintable = _UNPRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        character = f"U+{ord(unprintable[0]):04X}"
        raise SuiteError(f"{name}:{line}: control character {character} in a text file. Remove it.")
    if not text.strip():
        raise SuiteError(f"{name} is empty. A {kind} needs at least {needs}.")
    return text


class _Builder:
    """Turns events into nodes, and counts what it builds."""

    def __init__(self, name: str, text: str, kind: str, needs: str) -> None:
        self.name, self.kind, self.needs = name, kind, needs
        self.events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.count = 0

    def document(self) -> Node:
        try:
            self._next()  # the stream starts
            start = self._next()
            if isinstance(start, yaml.StreamEndEvent):
                raise SuiteError(f"{self.name} holds nothing but comments. A {self.kind} needs {self.needs}.")
            root = self._node(self._next(), level=0)
            self._next()  # the document ends
            after = self._next()
        except yaml.MarkedYAMLError as error:
            mark: Any = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            problem = error.problem or error.context or "cannot be read"
            hint = "\nhint: indent with spaces" if "'\\t'" in problem else ""
            raise SuiteError(f"{self.name}:{line}: not YAML: {problem}.{hint}") from None
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._error(after, f"a second document starts here; a file holds one {self.kind}.")
        return root

    def _next(self) -> Any:
        return next(self.events)

    def _error(self, event: Any, what: str) -> SuiteError:
        return SuiteError(f"{self.name}:{_line(event)}: {what}")

    def _node(self, event: Any, level: int) -> Node:
        before = self.count
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event)
        self._grow(event, 1)
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self._error(event, f"tag '{short(tag)}' is not allowed; a {self.kind} is plain values.")
        if level > MOST_LEVELS:
            raise self._error(event, f"nested deeper than {MOST_LEVELS} levels.")
        node: Node
        if isinstance(event, yaml.SequenceStartEvent):
            node = self._items(event, level)
        elif isinstance(event, yaml.MappingStartEvent):
            node = self._table(event, level)
        else:
            node = self._scalar(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = node, self.count - before
        return node

    def _scalar(self, event: Any) -> Scalar:
        escaped = _UNPRINTABLE.search(event.value)
        if escaped:
            raise self._error(event, f"control character U+{ord(escaped[0]):04X} in a value.")
        return Scalar(event.value, _line(event), plain=event.style is None)

    def _items(self, start: Any, level: int) -> Items:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, level + 1))
        return Items(tuple(items), _line(start))

    def _table(self, start: Any, level: int) -> Table:
        table = Table({}, _line(start))
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, level + 1)
            if not isinstance(key, Scalar):
                raise self._error(event, "a key must be one word.")
            if key.text in table.values:
                first = table.lines[key.text]
                raise self._error(event, f"key '{short(key.text)}' is given twice, first in line {first}.")
            table.values[key.text] = self._node(self._next(), level + 1)
            table.lines[key.text] = key.line
        return table

    def _aliased(self, event: Any) -> Node:
        # A collection gets its anchor when it is complete, so one that contains itself is unknown here.
        if event.anchor not in self.anchors:
            raise self._error(event, f"'*{short(event.anchor)}' refers to nothing above it.")
        node, size = self.anchors[event.anchor]
        self._grow(event, size)
        return node

    def _grow(self, event: Any, size: int) -> None:
        self.count += size
        if self.count > MOST_VALUES:
            raise self._error(event, f"more than {MOST_VALUES} values, aliases written out.")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
