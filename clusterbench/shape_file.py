"""Shapes of one's own: a mapping in a suite, or a file with one, which may be a model's ``config.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterbench.errors import SuiteError, nearest
from clusterbench.hf_config import Given, is_config, numbers_of_config
from clusterbench.options import as_yaml, option, options_of
from clusterbench.shape import SHAPES, ModelShape, named_shape
from clusterbench.yaml_lines import MOST_BYTES, Node, Scalar, Table, read_yaml

SUFFIXES = (".json", ".yaml", ".yml")
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MOST = 2**24


@dataclass(frozen=True)
class Numbers:
    """The keys of a mapping, which are options like any other."""

    num_layers: int = option(help="layers", minimum=1, maximum=10_000)
    hidden_size: int = option(help="width of the residual stream", minimum=1, maximum=MOST)
    ffn_hidden_size: int = option(help="width of the feed-forward; of one expert", minimum=1, maximum=MOST)
    num_heads: int = option(help="of queries", minimum=1, maximum=MOST)
    vocab_size: int = option(help="rows of the embedding, padded as trained", minimum=1, maximum=MOST)
    num_kv_heads: int = option(0, "of keys and values; as many as num_heads where left out", minimum=1, maximum=MOST)
    head_dim: int = option(0, "channels of a head; hidden_size over num_heads where left out", minimum=2, maximum=MOST)
    tied_embeddings: bool = option(False, "the output head is the input embedding")
    rope_theta: float = option(10_000.0, "base of the rotary frequencies", minimum=1, maximum=1e12)
    norm_eps: float = option(1e-5, "what keeps a norm from dividing by zero", minimum=0, maximum=1)
    num_experts: int = option(0, "routed experts of a layer", minimum=0, maximum=65_536)
    experts_per_token: int = option(0, "of them, those that a token goes to", minimum=0, maximum=65_536)
    num_shared_experts: int = option(0, "experts that every token goes to beside", minimum=0, maximum=65_536)


def is_path(text: object) -> bool:
    """Whether a value names a file, and no shape on record."""
    return isinstance(text, str) and ("/" in text or text.endswith(SUFFIXES))


def asked_shape(text: str) -> ModelShape:
    """The shape that a command line asks for: a name on record, or the path of a file.

    Raises
    ------
    SuiteError
        If there is none of this name, or the file cannot be read as one.
    """
    path = Path(text)
    if text not in SHAPES and path.is_dir():
        inside = path / "config.json"
        hint = f"\nhint: name the file in it, {inside}" if inside.is_file() else ""
        raise SuiteError(f"shape '{text}' is a folder, and a file or a name on record is wanted.{hint}")
    if is_path(text):
        return shape_in_file(path, text)[0]
    if text not in SHAPES and path.is_file():
        raise SuiteError(f"shape '{text}' is a file, and those of shapes end in {', '.join(SUFFIXES)}.")
    return named_shape(text)


def shape_in_file(path: Path, told: str) -> tuple[ModelShape, bytes]:
    """The shape in a file, and the file as it was read.

    Parameters
    ----------
    told
        The path as it was written, from which a shape without ``name`` has its name: that of the folder of a
        ``config.json``, otherwise of the file.

    Raises
    ------
    SuiteError
        With file and line, what was given and what is allowed.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SuiteError(f"{path}: the file of a shape cannot be read: {why}.") from None
    root = read_yaml(data, str(path), "shape", "its numbers, such as num_layers")
    if not isinstance(root, Table):
        raise SuiteError(f"{path}:{root.line}: a shape is keys and values, such as num_layers: 32.")
    return shape_in(root, str(path), _name_by_path(told)), data


def shape_in(table: Table, path: str, name: str = "") -> ModelShape:
    """The shape that a mapping describes, in our words or in those of Hugging Face.

    Parameters
    ----------
    name
        Where the mapping has none.

    Raises
    ------
    SuiteError
        With file and line, what was given and what is allowed.
    """
    name = _name(table, path, name)
    numbers = Table({key: node for key, node in table.values.items() if key != "name"}, table.line, table.lines)
    given = numbers_of_config(numbers, path) if is_config(table) else _given(numbers, path)
    values = _values(given, table, path, name)
    try:
        return ModelShape(name=name, source=path, **values)
    except SuiteError as error:
        raise SuiteError(f"{path}:{table.line}: {error}") from None


def _name_by_path(told: str) -> str:
    path = Path(told)
    return path.parent.name if path.stem == "config" and NAME.fullmatch(path.parent.name) else path.stem


def _name(table: Table, path: str, default: str) -> str:
    node = table.values.get("name")
    if node is None and not default:
        raise SuiteError(f"{path}:{table.line}: a shape needs 'name', by which figures call it.")
    text: object = default if node is None else node.value if isinstance(node, Scalar) else None
    line = table.line if node is None else node.line
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise SuiteError(
            f"{path}:{line}: the name of a shape is 1 to 64 letters, digits, '_', '-' and '.', not {as_yaml(text)}.\n"
            "hint: write 'name: ...' beside its numbers"
        )
    if text in SHAPES:
        raise SuiteError(
            f"{path}:{line}: the shape on record has the name '{text}'; one of your own needs another.\n"
            "hint: write 'name: ...' beside its numbers"
        )
    return text


def _given(table: Table, path: str) -> Given:
    keys = options_of(Numbers)
    for key, line in table.lines.items():
        if key not in keys and key != "name":
            allowed = ", ".join(("name", *keys))
            raise SuiteError(
                f"{path}:{line}: a shape has no key {as_yaml(key)}.{nearest(key, keys)}\n"
                f"Keys: {allowed}; or those of a config.json, which has 'model_type'."
            )
    for needed in keys.values():
        if needed.required and needed.name not in table.values:
            raise SuiteError(f"{path}:{table.line}: a shape needs '{needed.name}', {needed.allowed()}.")
    return {name: (name, _scalar(name, node, path)) for name, node in table.values.items()}


def _scalar(key: str, node: Node, path: str) -> Scalar:
    if not isinstance(node, Scalar):
        raise SuiteError(f"{path}:{node.line}: '{key}' must be one value: {options_of(Numbers)[key].allowed()}.")
    return node


def _values(given: Given, table: Table, path: str, name: str) -> dict[str, Any]:
    """Every number of a shape, with what follows where none is given."""
    keys = options_of(Numbers)
    values: dict[str, Any] = {}
    for number, (key, node) in given.items():
        try:
            values[number] = keys[number].parse(node.value)
        except ValueError as error:
            raise SuiteError(f"{path}:{node.line}: shape '{name}': '{key}' {error}") from None
    values.setdefault("num_kv_heads", values["num_heads"])
    if "head_dim" not in values:
        if values["hidden_size"] % values["num_heads"]:
            sizes = f"hidden_size {values['hidden_size']} is no multiple of num_heads {values['num_heads']}"
            raise SuiteError(f"{path}:{table.line}: shape '{name}': {sizes}, so it needs 'head_dim'.")
        values["head_dim"] = values["hidden_size"] // values["num_heads"]
    return {number: key.default for number, key in keys.items() if not key.required} | values


def mapping_of(shape: ModelShape) -> str:
    """A shape as a suite writes it, on one line: its name, or for one that is not on record all of it.

    >>> from dataclasses import replace
    >>> mapping_of(replace(named_shape("llama-tiny"), name="mine"))[:40]
    '{name: "mine", num_layers: 4, hidden_siz'
    """
    if SHAPES.get(shape.name) == shape:
        return shape.name
    numbers = (f"{key}: {str(getattr(shape, key)).lower()}" for key in options_of(Numbers))
    return f'{{name: "{shape.name}", ' + ", ".join(numbers) + "}"
