"""Rates as a file that a person may write: a name, the framework they were fitted to, and a value for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from clusterbench.errors import SuiteError, nearest
from clusterbench.expectation import ORIGINS, Expectation
from clusterbench.fingerprint import FIELDS, OPTION, UNKNOWN, Fingerprint, nearest_machine
from clusterbench.pricing.rates import LEAST, RATES, KnownRates, objection_to_key
from clusterbench.pricing.typical import NO_FIGURE
from clusterbench.types import split_key
from clusterbench.units import format_value, parse_value
from clusterbench.words import short
from clusterbench.yaml_lines import Node, Scalar, Table, read_yaml

VERSION = "1"
"""Of the file; one that a person wrote need not say it."""

FASTER_THAN_ITS_DATASHEET = 1.25
"""By what factor a card may be: clocks may be higher than those of its datasheet, which a slip of units is not."""

SHARE_OF_ITS_DATASHEET = 0.02
"""What a card's rate is at least: each of 16 ranks that share one has 0.06, and a slip of a unit is 0.001."""

_TOP = ("version", "of", "profile", "machine", "num_rates", "rates")
_OF_A_RATE = ("value", "low", "high", "origin", "source")


def read_rates(
    path: Path, known: KnownRates, here: Fingerprint = UNKNOWN, accepted: Collection[str] = (), called: str = ""
) -> KnownRates:
    """``known`` with the rates of a file in their place.

    Parameters
    ----------
    here, accepted
        The machine that they are meant for, and the fields in which that of the file may be another.
    called
        What the file is called where it is a source; by default its path.

    Raises
    ------
    SuiteError
        For every mistake, with file and line, what was given and what is allowed; and where the file is damaged, of
        another version, or of another machine.
    """
    found = _Reader(called or str(path)).rates(read_yaml(_read(path), str(path), "file of rates", "'rates'"), known)
    nearest_machine([found.machine], here, accepted, f"--rates {path}")
    return found


def rates_of(
    path: Path,
    known: KnownRates,
    profile: str,
    here: Fingerprint | None = None,
    accepted: Collection[str] = (),
    called: str = "",
) -> KnownRates:
    """:func:`read_rates`, for steps of this framework only; on the machine of ``known``, unless said.

    Raises
    ------
    SuiteError
        Also if the file was fitted to steps of another one.
    """
    found = read_rates(path, known, known.machine if here is None else here, accepted, called)
    if found.profile and found.profile != profile:
        raise SuiteError(
            f"--rates {path} was fitted to steps of {found.profile}, and --profile is {profile}: other software "
            "has other rates.\nhint: take 'profile' out of the file if you want them all the same"
        )
    return found


def given_names(path: Path | None) -> frozenset[str]:
    """Names of the rates that a file gives; none without a file.

    Raises
    ------
    SuiteError
        If it is mistaken.
    """
    return (
        frozenset()
        if path is None
        else _Reader(str(path)).names(read_yaml(_read(path), str(path), "file of rates", "'rates'"))
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = f"\nhint: of a run 'clusterbench calibrate {path} --out FILE' writes it" if path.is_dir() else ""
        raise SuiteError(f"--rates {path} cannot be read: {error.strerror}.{hint}") from None


def expect_effect(path: Path | None, accepted: Collection[str]) -> None:
    """That a field in which a machine may be another is named where there is a file of one.

    Raises
    ------
    SuiteError
        Otherwise.
    """
    if accepted and path is None:
        raise SuiteError(f"{OPTION} has no effect without --rates, whose machine it is about.")


def _left_as_they_are(found: Mapping[str, Expectation], known: KnownRates) -> Iterator[tuple[str, Expectation]]:
    """Of each operation bus bandwidth within a node, where a file has only that between nodes, and the other way round.

    What is left between nodes is no faster than what the file has of the links within one and of what one sends, as
    rings pass there, too. And attention of smaller heads than those of a file, which is slower. All other rates of
    one name stand or fall together: :meth:`KnownRates.but`.
    """
    given: dict[str, set[bool]] = {}
    for key in found:
        if key.startswith("busbw["):
            given.setdefault(split_key(key)[1]["op"], set()).add(_is_within_a_node(key))
    smallest = min((_head_dim(key) for key in found if key.startswith("attention[")), default=0)
    for key, rate in known.by_key.items():
        if key.startswith("attention[") and _head_dim(key) < smallest:
            yield key, rate
        if not key.startswith("busbw["):
            continue
        op = split_key(key)[1]["op"]
        if _is_within_a_node(key) not in given.get(op, {True, False}):
            passed = () if _is_within_a_node(key) else (f"busbw[nodes=1,op={op}]", "node_network")
            yield key, _at_most(rate, min((found[name].value for name in passed if name in found), default=rate.high))


def _at_most(rate: Expectation, most: float) -> Expectation:
    low, value, high = (min(each, most) for each in (rate.low, rate.value, rate.high))
    return replace(rate, low=low, value=value, high=high)


def _head_dim(key: str) -> int:
    return int(split_key(key)[1]["head_dim"])


def _is_within_a_node(key: str) -> bool:
    return split_key(key)[1]["nodes"] == "1"


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path

    def rates(self, root: Node, known: KnownRates) -> KnownRates:
        top = self._top(root)
        given = self._given(top)
        name = self._text(top, "of") or f"rates of {self.path}"
        found = dict(self._each(given))
        for key, rate in found.items():
            self._expect_possible(key, rate, known, given.lines[key])
        self._expect_whole(top, len(found))
        found |= (left := dict(_left_as_they_are(found, known)))
        self._expect_figures(left, top.lines["rates"])
        return replace(known.but(found, name, self._text(top, "profile")), machine=self._machine(top))

    def names(self, root: Node) -> frozenset[str]:
        return frozenset(split_key(key)[0] for key in self._given(self._top(root)).values)

    def _top(self, root: Node) -> Table:
        if isinstance(root, Table) and (rates := [key for key in root.lines if objection_to_key(key) is None]):
            raise self._error(root.lines[rates[0]], f"'{short(rates[0])}' must stand below 'rates:', indented.")
        top = self._table(root, "a file of rates", _TOP)
        self._expect_version(top)
        return top

    def _given(self, top: Table) -> Table:
        if "rates" not in top.values:
            raise self._error(top.line, "no 'rates': a name and a value for each, as 'matmul: 600 TFLOP/s'.")
        given = top.values["rates"]
        if not isinstance(given, Table):
            raise self._error(top.lines["rates"], "'rates' is a name and a value for each, as 'matmul: 600 TFLOP/s'.")
        return given

    def _expect_version(self, top: Table) -> None:
        version = self._text(top, "version") or VERSION
        if version != VERSION:
            raise self._error(
                top.lines["version"],
                f"'version: {short(version)}' is not {VERSION}, which this clusterbench reads.\n"
                "hint: write it again with 'clusterbench calibrate', or read it with the clusterbench that wrote it",
            )

    def _expect_whole(self, top: Table, number: int) -> None:
        said = self._text(top, "num_rates")
        if said and said != str(number):
            raise self._error(
                top.lines["num_rates"],
                f"damaged: 'num_rates: {short(said)}', but there are {number}.\nhint: write it again with "
                "'clusterbench calibrate', or take 'num_rates' out where you changed the list yourself",
            )

    def _expect_possible(self, key: str, rate: Expectation, known: KnownRates, line: int) -> None:
        """That a person's figure is no slip of units: prices follow from it, however fast or slow they are."""
        name, told = split_key(key)[0], f"'{key}: {format_value(rate.value, rate.unit)}'"
        if rate.value < (least := LEAST.get(name, 0.0)):
            raise self._error(line, f"{told} must be {least:g} or more: {RATES[name][1]}.")
        most = known.of_datasheet.get(name)
        if most is None or rate.origin != "file":
            return
        by_sheet = f"what the card's datasheet has: {format_value(most, rate.unit)}."
        allowed = (
            f"\nhint: {SHARE_OF_ITS_DATASHEET:g} to {FASTER_THAN_ITS_DATASHEET:g} times that is taken; look at the unit"
        )
        if rate.value > FASTER_THAN_ITS_DATASHEET * most:
            raise self._error(line, f"{told} is {rate.value / most:.1f} times {by_sheet}{allowed}")
        if rate.value < SHARE_OF_ITS_DATASHEET * most:
            raise self._error(line, f"{told} is {rate.value / most:.2g} of {by_sheet}{allowed}")

    def _expect_figures(self, left: Mapping[str, Expectation], line: int) -> None:
        """That none of the rates that a file leaves out follows from a figure that is not on record."""
        if unknown := [key for key, rate in left.items() if rate.origin == "datasheet" and rate.value <= NO_FIGURE]:
            raise self._error(
                line,
                f"no '{unknown[0]}', and the card's datasheet on record has no figure that it follows from.\n"
                "hint: give it beside the others",
            )

    def _machine(self, top: Table) -> Fingerprint:
        if "machine" not in top.values:
            return UNKNOWN
        table = self._table(top.values["machine"], "'machine'", FIELDS)
        return Fingerprint(**{name: self._text(table, name) for name in table.values})

    def _each(self, given: Table) -> Iterator[tuple[str, Expectation]]:
        for key, node in given.values.items():
            line = given.lines[key]
            if (why := objection_to_key(key)) is not None:
                raise self._error(line, why)
            unit = RATES[split_key(key)[0]][0]
            if isinstance(node, Scalar):
                value = self._value(key, node, unit)
                yield key, Expectation(value, unit, value, value, "file", f"{self.path}:{line}")
            else:
                yield key, self._with_interval(key, self._table(node, f"'{key}'", _OF_A_RATE), unit, line)

    def _with_interval(self, key: str, of: Table, unit: str, line: int) -> Expectation:
        if "value" not in of.values:
            raise self._error(line, f"'{key}' has no 'value'.")
        numbers = {
            name: self._value(f"{key}: {name}", cast(Scalar, of.values[name]), unit)
            for name in ("value", "low", "high")
            if name in of.values
        }
        value = numbers["value"]
        origin = self._text(of, "origin") or "file"
        if origin not in ORIGINS:
            raise self._error(line, f"'{key}': origin is one of {', '.join(ORIGINS)}.{nearest(origin, ORIGINS)}")
        source = self._text(of, "source") or f"{self.path}:{line}"
        low, high = numbers.get("low", value), numbers.get("high", value)
        if not low <= value <= high:
            told = [format_value(each, unit) for each in (value, low, high)]
            raise self._error(line, f"'{key}: {told[0]}' must be within its own interval, {told[1]} to {told[2]}.")
        return Expectation(value, unit, low, high, origin, source)

    def _value(self, key: str, node: Node, unit: str) -> float:
        text = node.text if isinstance(node, Scalar) else ""
        try:
            value = parse_value(text, unit)
        except ValueError as error:
            raise self._error(node.line, f"'{key}: {short(text)}' must be {error}.") from None
        if value <= 0:
            raise self._error(node.line, f"'{key}: {short(text)}' must be above 0.")
        return value

    def _text(self, table: Table, key: str) -> str:
        node = table.values.get(key)
        if node is None:
            return ""
        if not isinstance(node, Scalar):
            raise self._error(node.line, f"'{key}' is text.")
        return node.text

    def _table(self, node: Node, what: str, allowed: tuple[str, ...]) -> Table:
        if not isinstance(node, Table):
            raise self._error(node.line, f"{what} is keys and values: {', '.join(allowed)}.")
        for key, line in node.lines.items():
            if key not in allowed:
                hint = nearest(key, allowed)
                raise self._error(line, f"unknown key '{short(key)}'.{hint} Allowed: {', '.join(allowed)}.")
        return node

    def _error(self, line: int, what: str) -> SuiteError:
        return SuiteError(f"{self.path}:{line}: {what}")


def rates_text(known: KnownRates) -> str:
    """A file that :func:`read_rates` reads as ``known``, to a millionth."""
    lines = [f"version: {VERSION}", f"of: {_quoted(known.name)}"]
    if known.profile:
        lines.append(f"profile: {known.profile}")
    machine = [f"  {name}: {_quoted(value)}" for name in FIELDS if (value := getattr(known.machine, name))]
    lines += ["machine:", *machine] if machine else []
    lines += [f"num_rates: {len(known.by_key)}", "rates:"]
    for key, rate in known.by_key.items():
        lines.append(f"  {key}:  # {RATES[split_key(key)[0]][1]}: {format_value(rate.value, rate.unit)}")
        lines.append(
            f"    {{ value: {_plain(rate.value, rate.unit)}, low: {_plain(rate.low, rate.unit)}, "
            f"high: {_plain(rate.high, rate.unit)}, origin: {rate.origin}, source: {_quoted(rate.source)} }}"
        )
    return "\n".join(lines) + "\n"


def _plain(value: float, unit: str) -> str:
    if unit == "B":
        return f"{max(1, round(value))} B"  # a size is a whole number
    divisor, written = _WRITTEN[unit]
    return f"{value / divisor:.7f} {written}".strip()


_WRITTEN: Mapping[str, tuple[float, str]] = {
    "FLOP/s": (1e12, "TFLOP/s"),
    "B/s": (1e9, "GB/s"),
    "s": (1e-6, "us"),
    "1": (1.0, ""),
}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
