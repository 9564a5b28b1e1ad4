"""A JSON Schema of suites, by which editors complete keys, explain them and mark mistakes while one types.

It is made of the options that benchmarks and parallelisms have, so it knows what this version knows. It refuses no
suite that is read here. Some mistakes it does not see: sizes with a unit out of range, a value that is listed twice in
two spellings, what is asked of a figure, secrets, misspelt variables of NCCL, and what only a plan shows.

Draft 7, the latest that yaml-language-server and editors' other validators know in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.floors import SIDES, may_be_under
from clusterbench.launchers import launchers_variables
from clusterbench.options import Option, options_of
from clusterbench.own_copy import version
from clusterbench.shape_file import NAME as SHAPE_NAME
from clusterbench.shape_file import SUFFIXES, Numbers
from clusterbench.suite import MOST_CHARACTERS, NAME, VARIABLE, BlockKeys, SuiteKeys
from clusterbench.types import MetricKind, Side
from clusterbench.units import SIZE_FORM, TIME_FORM, UNITS, format_bytes

Schema = dict[str, Any]

_TYPES: Mapping[type, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


def suite_schema(kinds: Mapping[str, type[Benchmark]] | None = None) -> Schema:
    """The schema of suites of some benchmarks; by default of all in the folder."""
    kinds = benchmarks() if kinds is None else kinds
    definitions: Schema = {"_environment": _environment(), "_time": _time(), "_floor": _floor(), "_shape": _own_shape()}
    for name, kind in kinds.items():
        definitions[name] = _table(_keys_of(kind), _about(kind))
        definitions[f"{name}.item"] = _item(name, definitions[name])
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"suite of clusterbench {version()}",
        "type": "object",
        "required": ["suite", "benchmarks"],
        "additionalProperties": False,
        "properties": {
            **{name: _fixed(option) for name, option in options_of(SuiteKeys).items()},
            "suite": {"type": "string", "pattern": _whole(NAME), "description": options_of(SuiteKeys)["suite"].help},
            **_of_every_level(),
            "benchmarks": {"type": "array", "minItems": 1, "items": _items(kinds)},
            "cpu": _block("CPU ranks", options_of(BlockKeys).values(), kinds),
            "gpu": _block("GPUs", (key for key in options_of(BlockKeys).values() if key.name != "num_ranks"), kinds),
        },
        "definitions": definitions,
    }


def _of_every_level() -> Schema:
    return {"for": _ref("_time"), "environment": _ref("_environment")}


def _block(of: str, keys: Iterable[Option], kinds: Iterable[str]) -> Schema:
    """What the block ``cpu`` or ``gpu`` may change."""
    own = {key.name: _fixed(key) for key in keys}
    return _table({**own, **_of_every_level(), **{name: _ref(name) for name in kinds}}, f"what differs on {of}")


def _items(kinds: Mapping[str, type[Benchmark]]) -> Schema:
    """An item of ``benchmarks``: its name says which keys it has."""
    about = "\n".join(f"{name}: {_about(kind)}" for name, kind in kinds.items())
    return {
        "type": "object",
        "required": ["benchmark"],
        "properties": {"benchmark": {"enum": [*kinds], "description": about}},
        "allOf": [
            {
                "if": {"required": ["benchmark"], "properties": {"benchmark": {"const": name}}},
                "then": _ref(f"{name}.item"),
            }
            for name in kinds
        ],
    }


def _item(name: str, own: Schema) -> Schema:
    inherited = {key: {"$ref": f"#/definitions/{name}/properties/{key}"} for key in own["properties"]}
    blocks = {device: {**_ref(name), "description": f"what differs on {device}"} for device in ("cpu", "gpu")}
    return _table({"benchmark": True, **inherited, **blocks}, own["description"])


def _keys_of(kind: type[Benchmark]) -> Schema:
    """What an item, or a block about its benchmark, may hold."""
    options = {name: _swept(option) for name, option in kind.options().items()}
    floors: Schema = {side: _floors(side, kind.metrics) for side in SIDES}
    return {**options, "environment": _ref("_environment"), **floors}


def _floors(side: Side, metrics: Sequence[MetricKind]) -> Schema:
    """Metrics of which this is the better side, by name or with what tells figures of one name apart."""
    may = [metric for metric in metrics if may_be_under(side, metric)]
    schema = _table(
        {
            metric.name: {**_ref("_floor"), "description": f"{metric.meaning}; in {UNITS[metric.unit]}"}
            for metric in may
        },
        f"what figures must {'reach' if side == 'at_least' else 'stay below'}; missing it is exit code 1",
    )
    if may:
        names = "|".join(metric.name for metric in may)
        schema["patternProperties"] = {rf"^({names})\[.+\]$": _ref("_floor")}
    return schema


def _floor() -> Schema:
    examples = ["100 GB/s", "0.8 of expected", "0.9 of typical", "0.95 of baseline", "best 0.8 of expected"]
    return {"type": ["number", "string"], "examples": examples}


def _environment() -> Schema:
    value = {
        "anyOf": [{"type": "string", "maxLength": MOST_CHARACTERS}, {"type": "number"}, {"type": "boolean"}],
    }
    return {
        "type": "object",
        "description": "environment variables of the ranks; a list is tried value by value",
        "propertyNames": {"pattern": _whole(VARIABLE), "not": {"pattern": _whole(launchers_variables())}},
        "additionalProperties": _one_or_several(value),
    }


def _time() -> Schema:
    said = "runs the list again and again until its cases have taken so long, such as 30m or 2h"
    return {"description": said, "anyOf": [{"type": "number", "minimum": 1}, _text_of(TIME_FORM)]}


def _fixed(option: Option) -> Schema:
    """A key with one value; a list where that is one value."""
    one = _value(option)
    return _explained(_one_or_several(one, unique=True) if option.is_list else one, option)


def _swept(option: Option) -> Schema:
    """An option of a benchmark, of which several values are tried in turn, or a list is one value."""
    return _explained(_one_or_several(_value(option), unique=True), option)


def _one_or_several(one: Schema, unique: bool = False) -> Schema:
    several = {"type": "array", "minItems": 1, "items": one, **({"uniqueItems": True} if unique else {})}
    return {"anyOf": [one, several]}


def _value(option: Option) -> Schema:
    """One value of an option, as :meth:`~clusterbench.options.Option.parse` takes it."""
    ways: list[Schema]
    if option.choices is not None:
        ways = [{"enum": [*option.choices]}]
    else:
        bounds = {"minimum": option.minimum, "maximum": option.maximum}
        ways = [{"type": _TYPES[option.kind], **{name: bound for name, bound in bounds.items() if bound is not None}}]
    if option.unit == "B":
        ways.append(_text_of(SIZE_FORM))
    if option.is_shape:
        suffixes = "|".join(suffix.replace(".", r"\.") for suffix in SUFFIXES)
        ways += [{"type": "string", "pattern": f"/|({suffixes})$"}, _ref("_shape")]
    if option.optional:
        ways.append({"type": "null"})
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


def _own_shape() -> Schema:
    """A model that is described in place, in our words or in those of its config.json."""
    numbers = options_of(Numbers)
    ours = _table(
        {
            "name": {"type": "string", "pattern": _whole(SHAPE_NAME.pattern)},
            **{name: _explained(_value(option), option) for name, option in numbers.items()},
        },
        "a model by its numbers",
    )
    ours["required"] = ["name", *(name for name, option in numbers.items() if option.required)]
    config = {
        "type": "object",
        "anyOf": [{"required": ["model_type"]}, {"required": ["architectures"]}],
        "description": "a model's config.json, with a name",
        "required": ["name"],
    }
    return {"anyOf": [ours, config]}


def _explained(schema: Schema, option: Option) -> Schema:
    unit = f", in {option.unit}" if option.unit and option.unit != "B" else ""
    lines = [option.help, f"Accepted: {option.allowed()}{unit}."]
    told = {"description": "\n".join(lines)}
    if option.required or option.default in ((), None):  # an editor would write it
        return {**schema, **told}
    return {**schema, **told, "default": _default(option)}


def _default(option: Option) -> Any:
    def written(value: Any) -> Any:
        return format_bytes(value) if option.unit == "B" and value else value

    return [*map(written, option.default)] if option.is_list else written(option.default)


def _table(properties: Schema, description: str) -> Schema:
    """A mapping that has none but these keys."""
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


def _about(kind: type[Benchmark]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def _text_of(form: str) -> Schema:
    return {"type": "string", "pattern": _whole(form)}


def _whole(form: str) -> str:
    """A pattern that a whole text has to match: in a schema it is enough that a part does."""
    return f"^(?:{form})$"


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}
