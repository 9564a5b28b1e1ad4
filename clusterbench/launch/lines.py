"""Messages as lines of JSON, read as strictly as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar, get_args

from clusterbench.launch.messages import (
    GpuSamples,
    MemberEvent,
    Message,
    Order,
    RankEvent,
    Spawn,
    StoreOpen,
    WorkerOrder,
    ZygoteEvent,
    ZygoteOrder,
)
from clusterbench.run_folder.records import parsed, record_of
from clusterbench.words import short

LONGEST_LINE = 2**28
"""Bytes of a message. A rank's record of a million iterations has some 20 MiB."""


class BadLine(ValueError):
    """What arrived is no message that belongs there."""


def encode(message: Message) -> bytes:
    """The line of a message, with its end.

    Half characters, which names of files can hold, become question marks.

    Raises
    ------
    BadLine
        If the line is longer than any reader takes.
    """
    values = {"message": type(message).__name__, **vars(message)}
    line = json.dumps(values, default=_fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(line) > LONGEST_LINE:
        raise BadLine(f"{type(message).__name__} has {len(line)} bytes, and a message may have {LONGEST_LINE}")
    return line


def _fields(value: Any) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    raise TypeError(f"a message cannot hold {type(value).__name__}")


Kind = TypeVar("Kind")
Decoder = Callable[[bytes], Kind]


class _Decoder(Generic[Kind]):
    """Reads lines of the messages in a union."""

    def __init__(self, union: Any) -> None:
        self._kinds: dict[str, Any] = {kind.__name__: kind for kind in get_args(union) or (union,)}

    def __call__(self, line: bytes) -> Kind:
        """Raises ``BadLine``, which names the message and its field."""
        fields = _object(line)
        name = fields.pop("message", None)
        kind = self._kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise BadLine(f"{short(repr(name), 60)} is no message that belongs here")
        message: Kind = _made(kind, kind.__name__, fields)
        return message


decode_order: Decoder[Order] = _Decoder(Order)


decode_event: Decoder[MemberEvent] = _Decoder(MemberEvent)


decode_spawn: Decoder[Spawn] = _Decoder(Spawn)


decode_zygote_order: Decoder[ZygoteOrder] = _Decoder(ZygoteOrder)


decode_zygote_event: Decoder[ZygoteEvent] = _Decoder(ZygoteEvent)


decode_worker_order: Decoder[WorkerOrder] = _Decoder(WorkerOrder)


decode_rank_event: Decoder[RankEvent] = _Decoder(RankEvent)


decode_store_event: Decoder[StoreOpen] = _Decoder(StoreOpen)


def decode_samples(line: bytes) -> GpuSamples:
    """A line of ``python -m clusterbench.engine.telemetry``, which is a program of its own and knows no messages."""
    return decode_as(GpuSamples, line)


def decode_as(kind: type[Kind], line: bytes) -> Kind:
    """A line that holds the fields of one dataclass and nothing else. Raises ``BadLine``."""
    return _made(kind, kind.__name__, _object(line))


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = parsed(line)
    except ValueError as error:
        raise BadLine(f"the line cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine("the line is no JSON object")
    return fields


def _made(kind: type[Kind], name: str, fields: Mapping[str, Any]) -> Kind:
    try:
        return record_of(kind, fields)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"in {name} {error}") from None
