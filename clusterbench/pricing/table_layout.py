"""Cells of a table that say how ranks share a step: several degrees in one, and how states are sharded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clusterbench.options import as_yaml

_PIECES = re.compile(r"[\s,;/+_|()\[\]&-]+")
_PARTS_OF_NUMBERS = re.compile(r"[^0-9]+")
_NAMED = re.compile(r"([a-z]+) ?[=:]? ?([0-9]{1,9})")
_NUMBERED = re.compile(r"([0-9]{1,9})([a-z]+)")
_GAP = re.compile(r"(?<=[a-z])(?: ?[=:_-] ?| +)(?=[0-9])")
_TIMES = re.compile(r"(?<=[0-9]) ?[x×*] ?(?=[a-z])")
_COLUMN_OF = {
    **{axis: axis for axis in ("tp", "pp", "dp", "cp", "ep", "vpp", "mbs", "gbs", "zero", "fsdp")},
    "vp": "vpp",
    "stage": "zero",
}
_ALONE = {
    "sp": ("sp", "1"),
    "fsdp": ("zero", "3"),
    "fsdp1": ("zero", "3"),
    "fsdp2": ("zero", "3"),
    "ddp": ("zero", "0"),
}


class CannotRead(Exception):
    """A cell of which it cannot be told what it says; the message names it and what would do."""


def cells_of_layout(text: str, order: Sequence[str] = ()) -> Mapping[str, str]:
    """What a cell with several degrees says, by our columns.

    Parameters
    ----------
    order
        Of a column named ``TP/PP/DP``, which number is which.

    >>> cells_of_layout("tp4-pp2"), cells_of_layout("TP=8, PP=2, DP 4 + zero1"), cells_of_layout("FSDP 8, CP 2")
    ({'tp': '4', 'pp': '2'}, {'tp': '8', 'pp': '2', 'dp': '4', 'zero': '1'}, {'fsdp': '8', 'cp': '2'})
    >>> cells_of_layout("8x4x2", ("tp", "pp", "dp"))
    {'tp': '8', 'pp': '4', 'dp': '2'}

    Raises
    ------
    CannotRead
        If a piece of it is no degree, or it says one twice.
    """
    numbers = [number for number in _PARTS_OF_NUMBERS.split(text) if number]
    if order and not re.search(r"[a-wyz]", text.lower()):
        if len(numbers) != len(order):
            raise CannotRead(f"{'/'.join(order)} is {as_yaml(text)}, which are {len(numbers)} numbers for {len(order)}")
        return dict(zip(order, numbers, strict=True))
    said: dict[str, str] = {}
    for piece in filter(None, _PIECES.split(_TIMES.sub(" ", _GAP.sub("", text.strip().lower())))):
        column, value = _piece(text, piece)
        if column in said:
            raise CannotRead(f"layout is {as_yaml(text)}, which says {column} twice")
        said[column] = value
    return said


def _piece(text: str, piece: str) -> tuple[str, str]:
    if piece in _ALONE:
        return _ALONE[piece]
    named, numbered = _NAMED.fullmatch(piece), _NUMBERED.fullmatch(piece)
    name, number = (named[1], named[2]) if named else (numbered[2], numbered[1]) if numbered else ("", "")
    if name not in _COLUMN_OF:
        raise CannotRead(
            f"layout is {as_yaml(text)}, of which {as_yaml(piece)} cannot be read: write tp4-pp2-dp8, or columns tp, "
            "pp and dp, or name the column TP/PP/DP by what its numbers are"
        )
    return _COLUMN_OF[name], number


class Sharing(NamedTuple):
    """A stage of ZeRO, and the ranks that shard with HSDP.

    Attributes
    ----------
    group
        How many; None where all do, and ``NODE`` where those of a node do.
    """

    stage: int
    group: int | None = None


NODE = -1

_STAGE = re.compile(r"(?:(?:zero|stage)[- ]?(?:stage[- ]?)?)?([0-9]{1,15})", re.IGNORECASE)
_WORDS: Mapping[str, int] = {
    # ZeRO's stages as FSDP calls them: pytorch/pytorch, torch/distributed/fsdp/api.py, ShardingStrategy
    "fullshard": 3,
    "shardgradop": 2,
    "noshard": 0,
    "fsdp": 3,
    "fsdp1": 3,
    "fsdp2": 3,
    "fullyshard": 3,
    "fullysharded": 3,
    "no": 0,
    "none": 0,
    "ddp": 0,
    "false": 0,
    "distributedoptimizer": 1,
    "distopt": 1,
    "distributedoptim": 1,
}
WORDS_OF_SHARDING = "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD"
_HYBRID = re.compile(r"hsdp|hybrid")
_SHARD = re.compile(r"shard\D{0,10}?([0-9]{1,9})")
_REPLICATE = re.compile(r"repli[a-z]*\D{0,3}([0-9]{1,9})")


def sharing_in(text: str, copies: int) -> Sharing | None:
    """What a cell ``zero`` says of ranks that hold the same weights; None where it says nothing that is known.

    Two numbers are copies and ranks that shard, as the two dims of the mesh that PyTorch's ``fully_shard`` takes.

    >>> [sharing_in(text, 128) for text in ("ZeRO-3", "FULL_SHARD", "HYBRID_SHARD", "HSDP 8x16")]
    [Sharing(stage=3, group=None), Sharing(stage=3, group=None), Sharing(stage=3, group=-1), Sharing(stage=3, group=16)]
    >>> sharing_in("hsdp (shard 8, replicate 16)", 128)
    Sharing(stage=3, group=8)

    Raises
    ------
    CannotRead
        If its numbers are not those of the ranks.
    """
    words = text.lower()
    letters = re.sub(r"[^a-z0-9]", "", words)
    if _HYBRID.search(words) is None:
        if letters in _WORDS:
            return Sharing(_WORDS[letters])
        match = _STAGE.match(text)
        return None if match is None else Sharing(int(match[1]))
    rest = re.sub(r"hsdp(?:2\b)?|zero[- _]?[0-9]|stage[- _]?[0-9]", " ", words)
    stage = 2 if re.search(r"zero[- _]?2|grad[- _]?op", words) else 3
    numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", rest)]
    if not numbers:
        return Sharing(stage, NODE)
    of_shard, of_copies = _SHARD.search(rest), _REPLICATE.search(rest)
    if of_shard is not None or of_copies is not None:
        shard = int(of_shard[1]) if of_shard else copies // max(1, int(of_copies[1])) if of_copies else 0
        replicas = int(of_copies[1]) if of_copies else copies // max(1, shard)
    elif len(numbers) == 2:
        replicas, shard = numbers
    else:
        raise CannotRead(
            f"zero is {as_yaml(text)}: of {numbers[0]} ranks it cannot be told whether they shard or are copies. A "
            "column shard_group_size says how many shard"
        )
    if replicas * shard != copies:
        raise CannotRead(
            f"zero is {as_yaml(text)}: {replicas} copies of {shard} ranks that shard are not the {copies} of dp x cp"
        )
    return Sharing(stage, shard)
