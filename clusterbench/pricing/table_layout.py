"""How ranks share a step, by a row's cells: degrees, several in one cell, and how states are sharded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clusterbench.errors import LayoutError, SuiteError
from clusterbench.layout import ParallelLayout
from clusterbench.options import as_yaml
from clusterbench.pricing.table_cells import YES_OR_NO, CannotPriceError, Cells

DEGREES = ("tp", "pp", "dp", "cp", "ep")

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
    CannotPriceError
        If a piece of it is no degree, or it says one twice.
    """
    numbers = [number for number in _PARTS_OF_NUMBERS.split(text) if number]
    if order and not re.search(r"[a-wyz]", text.lower()):
        if len(numbers) != len(order):
            raise CannotPriceError(
                f"{'/'.join(order)} is {as_yaml(text)}, which are {len(numbers)} numbers for {len(order)}"
            )
        return dict(zip(order, numbers, strict=True))
    said: dict[str, str] = {}
    for piece in filter(None, _PIECES.split(_TIMES.sub(" ", _GAP.sub("", text.strip().lower())))):
        column, value = _piece(text, piece)
        if column in said:
            raise CannotPriceError(f"layout is {as_yaml(text)}, which says {column} twice")
        said[column] = value
    return said


def _piece(text: str, piece: str) -> tuple[str, str]:
    if piece in _ALONE:
        return _ALONE[piece]
    named, numbered = _NAMED.fullmatch(piece), _NUMBERED.fullmatch(piece)
    name, number = (named[1], named[2]) if named else (numbered[2], numbered[1]) if numbered else ("", "")
    if name not in _COLUMN_OF:
        raise CannotPriceError(
            f"layout is {as_yaml(text)}, of which {as_yaml(piece)} cannot be read: write tp4-pp2-dp8, or columns tp, "
            "pp and dp, or name the column TP/PP/DP by what its numbers are"
        )
    return _COLUMN_OF[name], number


class Sharing(NamedTuple):
    """A stage of ZeRO, and the ranks that shard with HSDP.

    Attributes
    ----------
    group
        How many; None where all do, and ``_NODE`` where those of a node do.
    """

    stage: int
    group: int | None = None


_NODE = -1

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
_WORDS_OF_SHARDING = "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD"
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
    CannotPriceError
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
        return Sharing(stage, _NODE)
    of_shard, of_copies = _SHARD.search(rest), _REPLICATE.search(rest)
    if of_shard is not None or of_copies is not None:
        shard = int(of_shard[1]) if of_shard else copies // max(1, int(of_copies[1])) if of_copies else 0
        replicas = int(of_copies[1]) if of_copies else copies // max(1, shard)
    elif len(numbers) == 2:
        replicas, shard = numbers
    else:
        raise CannotPriceError(
            f"zero is {as_yaml(text)}: of {numbers[0]} ranks it cannot be told whether they shard or are copies. A "
            "column shard_group_size says how many shard"
        )
    if replicas * shard != copies:
        raise CannotPriceError(
            f"zero is {as_yaml(text)}: {replicas} copies of {shard} ranks that shard are not the {copies} of dp x cp"
        )
    return Sharing(stage, shard)


def take_apart(cells: Cells) -> None:
    """Puts what a cell of several degrees says where the columns of each are empty."""
    if not (text := cells["layout"]):
        return
    for column, value in cells_of_layout(text, cells.meanings["layout"].order).items():
        if (there := cells[column]) and there != value:
            raise CannotPriceError(f"layout is {as_yaml(text)}, and {column} is {there}: one of them is another step's")
        cells[column] = value


def layout_of(cells: Cells, gpus: int | None, per_node: int, recompute: str) -> tuple[ParallelLayout, int]:
    """How ranks share a step, and of HSDP how many of them shard; 0 where all do.

    Parameters
    ----------
    gpus
        None where only the degrees say how many.
    per_node
        GPUs of a node.
    recompute
        As read, of which ``selective+SP`` tells of sequence parallelism, too.

    Raises
    ------
    CannotPriceError
        If degrees, groups and GPUs do not make one another.
    SuiteError
        If a cell cannot be read.
    """
    degrees = {name: cells.default(name, 1) for name in DEGREES if name != "dp"}
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    dp = cells.whole("dp")
    if dp is None:
        if gpus is None or gpus % others:
            raise CannotPriceError("neither dp nor the number of GPUs says how many copies there are")
        dp = gpus // others
        cells.say(f"dp is {cells.how('dp')}: the GPUs that tp, pp and cp leave")
    zero, group = _sharing(cells, dp * degrees["cp"], per_node // degrees["tp"])
    try:
        shards = zero if dp * degrees["cp"] > 1 else 0
        layout = ParallelLayout(
            **degrees, dp=dp, zero=shards, sp=_is_sequence_parallel(cells, degrees["tp"], recompute)
        )
    except LayoutError as error:
        raise CannotPriceError(str(error)) from None
    if gpus is not None and gpus != layout.world_size:
        raise CannotPriceError(f"{layout} needs {layout.world_size} GPUs, and the row has {gpus}")
    return layout, group


def _sharing(cells: Cells, copies: int, of_node: int) -> tuple[int, int]:
    """A stage of ZeRO, and of HSDP how many ranks shard, which is 0 where all of them do.

    Parameters
    ----------
    copies
        Ranks that hold the same weights.
    of_node
        Of them those in one node.
    """
    stage, said = _fully_sharded(cells, copies)
    name = "fsdp" if stage else "zero"
    if not stage or cells["zero"]:
        of_zero, of_words = _stage(cells, "zero", copies)
        if stage and of_zero < 2:
            fsdp, zero = (as_yaml(cells[each]) for each in ("fsdp", "zero"))
            raise CannotPriceError(f"fsdp is {fsdp}, and zero is {zero}: FSDP is ZeRO 2 or 3")
        stage, said = of_zero, of_words or said
    group = _said_group(cells, copies) or said
    if said not in (None, _NODE, group):
        text = as_yaml(cells[name])
        raise CannotPriceError(f"{name} is {text}, and the column of groups that shard makes them {group}")
    if group is None or copies == 1:
        return stage, 0
    if not cells["zero"] and not stage:
        stage = 3  # who names groups that shard names HSDP
    if stage < 2:
        raise CannotPriceError(
            f"groups of {group} ranks that shard, and zero is {stage}: HSDP shards weights, ZeRO 2 or 3"
        )
    if group == _NODE:
        text = as_yaml(cells[name])
        if copies <= of_node:
            cells.say(f"{name} is {text}, and all ranks are in one node: all of them shard")
            return stage, 0
        if of_node < 2 or copies % of_node:
            raise CannotPriceError(
                f"{name} is {text}, which shards within a node, and of the {copies} ranks with the same weights a "
                f"node has {of_node}: a column shard_group_size says how many shard"
            )
        cells.say(
            f"{name} is {text}: groups of {of_node} ranks, those of a node, as PyTorch's HYBRID_SHARD has it; a "
            "column shard_group_size says otherwise"
        )
        group = of_node
    if group == 1 or copies % group:
        raise CannotPriceError(f"groups of {group} ranks that shard do not divide the {copies} ranks of dp x cp")
    if said == group < copies and name == "fsdp" and cells["fsdp"].isdigit():
        cells.say(f"fsdp is {group}, and {copies} ranks have the same weights: the others are copies (HSDP)")
    return stage, 0 if group == copies else group


def _said_group(cells: Cells, copies: int) -> int | None:
    shard, replicas = cells.whole("shard_group_size"), cells.whole("dp_replicate")
    if replicas is not None and (copies % replicas or (shard is not None and shard * replicas != copies)):
        of = f" of {shard} ranks that shard" if shard is not None else ""
        raise CannotPriceError(f"dp_replicate {replicas}{of} does not make the {copies} ranks of dp x cp")
    return copies // replicas if shard is None and replicas is not None else shard


def _fully_sharded(cells: Cells, copies: int) -> tuple[int, int | None]:
    """3 where a column ``fsdp`` says so, by a word, or by over how many ranks; 0 where it says none."""
    text = cells["fsdp"].lower()
    said = YES_OR_NO.get(text) if text != "1" else None
    if not text or said is False or copies == 1:
        return 0, None
    if said is None and text == "1":
        raise CannotPriceError("fsdp is 1, which may be 'yes' or a degree: write zero in its place")
    if said is None and not text[0].isdigit():
        return _stage(cells, "fsdp", copies)
    return 3, cells.whole("fsdp") if said is None else None


def _is_sequence_parallel(cells: Cells, tp: int, recompute: str) -> bool:
    """Whether ranks of tp share the sequence between its products, which ``selective+SP`` says, too."""
    said = cells.flag("sp")
    if tp == 1:
        return False  # nothing to share
    if said is not None:
        return said
    if not recompute.lower().endswith("+sp"):
        cells.say("sp is not said: tp taken with sequence parallelism, as is usual")
    return True


def _stage(cells: Cells, name: str, copies: int) -> tuple[int, int | None]:
    """A stage of ZeRO, as ``3 (FSDP)`` and ``FULL_SHARD`` have it, and how many ranks shard where not all do."""
    text = cells[name]
    if not text:
        return 0, None
    found = sharing_in(text, copies)
    if found is None:
        raise SuiteError(
            f"{cells.where}: {name} is {as_yaml(text)}, and must begin with a whole number or be one of "
            f"{_WORDS_OF_SHARDING}."
        )
    if found.group not in (None, _NODE) and found.group * found.group != copies and "shard" not in text.lower():
        cells.say(
            f"{name} is {as_yaml(text)}: {copies // found.group} copies of {found.group} ranks that shard, in the "
            "order of the mesh of PyTorch's fully_shard"
        )
    return found
