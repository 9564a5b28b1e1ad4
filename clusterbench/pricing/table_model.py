"""The model of a row: its shape on record or in a file, or what columns make of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from clusterbench.errors import SuiteError
from clusterbench.options import as_yaml
from clusterbench.pricing.published_models import published_model
from clusterbench.pricing.table_cells import CannotPriceError, Cells
from clusterbench.pricing.table_words import name_on_record, names_experts
from clusterbench.shape import ModelShape
from clusterbench.shape_file import SUFFIXES, shape_in_file

OF_SHAPE = ("layers", "hidden", "heads")
"""Of a model whose shape is not on record, what nothing else tells."""

SEQ_LEN, VOCAB_SIZE = 2048, 51_200
"""Taken where a table does not say."""

_SIZE_OF_PARAMETERS = 0.02  # a published number of parameters is rounded
_SAME_MODEL = 1.2  # a name's number is rounded, and may leave out tables
_ANOTHER_MODEL = 2.0
"""By how much a published number of parameters may be off before columns are those of another model."""


class Model(NamedTuple):
    """A shape, and whether its feed-forward is gated: one of two matrices stands as a gated one of 2/3 its width."""

    shape: ModelShape
    is_gated: bool


class _Rest(NamedTuple):
    """What columns say of a model beside its feed-forward; ``attention`` is parameters of a layer's."""

    layers: int
    hidden: int
    vocab: int
    attention: int
    has_own_keys: bool


class _FeedForward(NamedTuple):
    """Its width as a gated one, whether it is one, and whether the tables are tied."""

    size: int
    is_gated: bool = True
    is_tied: bool = False


def model_of(cells: Cells, folder: Path) -> Model:
    """The model that a row trained; paths of shapes in its cells are from ``folder``.

    Raises
    ------
    CannotPriceError
        If cells do not tell it, or are of two models.
    SuiteError
        If a cell or a file that it names cannot be read.
    """
    if not any(cells[name] for name in OF_SHAPE):
        return _known_model(cells, folder)
    if names_experts(model := cells["model"]):
        raise CannotPriceError(
            f"{as_yaml(model)} has experts, of which columns say nothing: leave layers, hidden and heads empty, "
            "with the path of its config.json as model"
        )
    layers, hidden, heads = (cells.needed(name) for name in OF_SHAPE)
    vocab = cells.default("vocab", VOCAB_SIZE)
    kv_heads = cells.whole("kv_heads")
    if kv_heads is None:
        kv_heads = heads
        cells.say(f"kv_heads is {cells.how('kv_heads')}: as many as heads")
    if hidden % heads:
        raise CannotPriceError(f"hidden {hidden} is no multiple of heads {heads}")
    of_head = hidden // heads
    attention = 2 * hidden * of_head * (heads + kv_heads)
    ffn = _feed_forward(cells, _Rest(layers, hidden, vocab, attention, kv_heads == heads))
    try:
        shape = ModelShape(
            name=cells["model"] or f"row of {cells.where}",
            num_layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=ffn.size,
            num_heads=heads,
            num_kv_heads=kv_heads,
            vocab_size=vocab,
            head_dim=of_head,
            tied_embeddings=ffn.is_tied,
            rope_theta=10_000.0,
            norm_eps=1e-5,
            source=cells.where,
        )
    except SuiteError as error:
        raise CannotPriceError(str(error)) from None
    return Model(shape, ffn.is_gated)


def _known_model(cells: Cells, folder: Path) -> Model:
    """The published shape of a model of this name, or the one in a file that the table names."""
    given = cells["model"]
    if given.endswith(SUFFIXES):  # a slash alone may be of words: DeepSeekV3 (w/o MTP), meta-llama/Llama-3.1-8B
        try:
            return Model(shape_in_file(folder / given, given)[0], is_gated=True)
        except SuiteError as error:
            raise SuiteError(f"{cells.where}: {error}") from None
    name = name_on_record(given)
    found = published_model(name)
    if found is None:
        raise CannotPriceError(
            f"layers, hidden and heads are empty, and {as_yaml(given.lower())} is no shape on record: write them, "
            "or the path of its config.json as model"
        )
    size = found.shape.num_parameters / 1e9
    cells.say(
        f"the shape is empty: {name} as on record, {size:.3g} B parameters, a vocabulary of {found.shape.vocab_size:,}"
    )
    parameters = cells.number("params_b")
    if parameters is not None and not 1 / _SAME_MODEL <= parameters / size <= _SAME_MODEL:
        raise CannotPriceError(f"params_b is {parameters:g}, and {name} on record has {size:.3g}: another model")
    return Model(found.shape, found.is_gated)


def _feed_forward(cells: Cells, rest: _Rest) -> _FeedForward:
    """What comes nearest to ``params_b``.

    One of two matrices stands as a gated one of two thirds of its width: as many products. Where nothing comes near,
    one of four times the hidden size without shared keys is of two matrices (Vaswani et al. 2017; gated ones are of
    two thirds of that, Shazeer 2020, arXiv:2002.05202).
    """
    size, parameters = cells.whole("ffn"), cells.number("params_b")
    if size is None:
        return _worked_out(cells, parameters, rest)
    why = "is empty"
    if parameters is not None:
        if (found := _told_by_parameters(cells, size, parameters, rest)) is not None:
            return found
        why = "fits no such model to 2 %"
    if size == 4 * rest.hidden and rest.has_own_keys:
        cells.say(
            f"params_b {why}, ffn is 4 x hidden: a feed-forward of two matrices, priced as a gated one of 2/3, "
            "tables not tied"
        )
        return _FeedForward(2 * size // 3, is_gated=False)
    cells.say(f"params_b {why}: a gated feed-forward, tables not tied")
    return _FeedForward(size)


def _worked_out(cells: Cells, parameters: float | None, rest: _Rest) -> _FeedForward:
    """From billions of parameters, where there is no width."""
    how = cells.how("ffn")
    if parameters is None:
        raise CannotPriceError(f"ffn is {how}, and without params_b it cannot be worked out")
    if rest.has_own_keys and (tables := _tables_of_a_gpt(cells, parameters, rest)):
        cells.say(f"ffn is {how}: 4 x hidden of two matrices, as params_b tells, priced as a gated one of 2/3")
        return _FeedForward(8 * rest.hidden // 3, is_gated=False, is_tied=tables == 1)
    left = 1e9 * parameters - 2 * rest.vocab * rest.hidden - rest.layers * rest.attention
    if left <= 0:
        raise CannotPriceError(f"ffn is {how}, and {parameters:g} B parameters leave nothing for it")
    cells.say(f"ffn is {how}: worked out from params_b, gated, tables not tied")
    return _FeedForward(max(1, round(left / (3 * rest.layers * rest.hidden))))


def _tables_of_a_gpt(cells: Cells, parameters: float, rest: _Rest) -> int:
    """How many tables a model of two matrices of four times the hidden size has, by its parameters; 0 for none."""
    of_layers = rest.layers * (rest.attention + 2 * rest.hidden * 4 * rest.hidden)
    positions = _positions(cells, rest)
    off = {
        (tables, learned): abs(
            (of_layers + tables * rest.vocab * rest.hidden + learned * positions) / (1e9 * parameters) - 1
        )
        for tables in (2, 1)
        for learned in (0, 1)
    }
    kind = min(off, key=lambda kind: off[kind])
    return kind[0] if off[kind] <= max(_SIZE_OF_PARAMETERS, cells.rounding("params_b") / parameters) else 0


def _positions(cells: Cells, rest: _Rest) -> int:
    """Parameters of positions, where a model learns them, as GPT, OPT and MPT do."""
    return (cells.whole("seq") or SEQ_LEN) * rest.hidden


def _told_by_parameters(cells: Cells, size: int, parameters: float, rest: _Rest) -> _FeedForward | None:
    """The kind of model that has so many billions of parameters; None where none has."""
    positions = _positions(cells, rest)
    kinds = {
        (matrices, tables, learned): rest.layers * (rest.attention + matrices * rest.hidden * size)
        + tables * rest.vocab * rest.hidden
        + learned * positions
        for matrices, learned in ((3, 0), (2, 0), (2, 1))
        for tables in (2, 1)
    }
    off = {kind: abs(number / (1e9 * parameters) - 1) for kind, number in kinds.items()}
    matrices, tables, _ = min(off, key=lambda kind: off[kind])
    if min(off.values()) <= _SIZE_OF_PARAMETERS:
        if matrices == 2:
            cells.say("params_b tells a feed-forward of two matrices: priced as a gated one of 2/3")
        return _FeedForward(2 * size // 3 if matrices == 2 else size, matrices == 3, tables == 1)
    nearest_b = min(kinds.values(), key=lambda number: abs(math.log(number / (1e9 * parameters)))) / 1e9
    if not 1 / _ANOTHER_MODEL <= nearest_b / parameters <= _ANOTHER_MODEL:
        raise CannotPriceError(
            f"params_b is {parameters:g}, and layers, hidden, ffn and vocab make {nearest_b:.3g}: another model"
        )
    return None
