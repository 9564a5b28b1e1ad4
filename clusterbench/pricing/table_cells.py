"""The cells of one row of a table: what is written in them, in our words and units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from clusterbench.errors import SuiteError
from clusterbench.options import as_yaml
from clusterbench.pricing.table_words import (
    NOT_MEASURED,
    NOT_SAID,
    OF_MEMORY,
    Meaning,
    meaning_of,
    without_marks,
)

MEASURED = ("step_s", "tokens_per_s_per_gpu", "mem_gb")
FIGURES = (*MEASURED, "tokens_per_s_of_all", "tflops_per_gpu", "mfu")

MOST, MOST_OF = 10**9, {"layers": 10_000}
"""The largest whole number of a cell."""
MOST_OF_FACT = {"params_b": 1e5, "tflops_per_gpu": 1e5, "mfu": 1.0}
"""Beyond any model and card: the unit is another one."""

NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:[eE][-+]?[0-9]{1,3})?")

_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_SPACED = re.compile(r"[1-9][0-9]{0,2}(?:[ '’\u00a0\u202f][0-9]{3}){1,4}(?:\.[0-9]{0,15})?")
_WITH_POINTS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){1,4},[0-9]{1,15}")
_POINT_OF_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{3}")
_FRACTION = re.compile(r"(?:0|[1-9][0-9]{0,14}),(?:[0-9]{1,2}|[0-9]{4,15})|0,[0-9]{3}")
"""A comma that parts no thousands."""
_WITH_UNIT = re.compile(r"([0-9.,]{1,20}) ?([a-zA-Z/%]{1,20})")
_UNITS: Mapping[str, Mapping[str, float]] = {
    "mem_gb": OF_MEMORY,
    "step_s": {"s": 1.0, "sec": 1.0, "ms": 1e-3},
    "params_b": {"b": 1.0, "m": 1e-3},
    "tflops_per_gpu": {"tflop/s": 1.0, "tflops": 1.0},
    "tokens_per_s_per_gpu": {"k": 1e3},
    "mfu": {"%": 0.01},
    "gpus": {"gpus": 1.0},
    "num_nodes": {"nodes": 1.0},
    "seq": {"tokens": 1.0},
}
_OF_FEW_DIGITS = ("step_s", "params_b", "mem_gb", "tflops_per_gpu", "mfu")
"""Columns in which a comma may part thousands or a fraction."""

_YES = ("1", "true", "yes", "y", "on", "enabled", "✓", "✔")
_NO = ("0", "false", "no", "n", "off", "disabled", "✗", "✘")
YES_OR_NO = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}
_FLAGS = ", ".join((*_YES[:3], *_NO[:3]))

_IN_WORDS = ("source", "model", "gpu", "note", *FIGURES)
"""Columns of which a cell is read as it stands."""
_WITH_NONE = ("recompute", "checkpointing", "zero", "fsdp", "precision", "sp", "dp_overlap", "layout")
"""Those of which ``none`` says something."""


class CannotPriceError(Exception):
    """A row that can be read, of which it cannot be told what ran; the message says why, and what would do."""


class Cells:
    """Of one row, by our columns.

    Parameters
    ----------
    where
        ``steps.csv:12``.
    written
        As they stand in the file.
    meanings
        What each of our columns is in the table.
    has_decimal_commas
        Whether a comma parts fractions elsewhere in the table.

    Attributes
    ----------
    where, meanings
        As given.
    said
        What was taken for empty cells, in words.
    marked
        Cells of which a footnote's mark was left out.
    """

    def __init__(
        self, where: str, written: Mapping[str, str], meanings: Mapping[str, Meaning], has_decimal_commas: bool
    ) -> None:
        line = where.rpartition(":")[2]
        plain = {name: text if name in ("source", "note") else without_marks(text) for name, text in written.items()}
        self.where, self.meanings = where, meanings
        self.marked = [f"{as_yaml(written[name])} in line {line}" for name in plain if plain[name] != written[name]]
        self.said: list[str] = []
        self._texts = {name: "" if _says_nothing(name, text) else text for name, text in plain.items()}
        self._has_decimal_commas = has_decimal_commas

    def __getitem__(self, name: str) -> str:
        """What is written; empty where nothing is, or the table has no such column."""
        return self._texts.get(name, "")

    def __setitem__(self, name: str, text: str) -> None:
        self._texts[name] = text

    def how(self, name: str) -> str:
        """How a cell without a text is: ``empty``, or ``not said`` where there is no such column."""
        return "empty" if name in self._texts else "not said"

    def say(self, sentence: str) -> None:
        """Keeps what was taken for an empty cell, once."""
        if sentence not in self.said:
            self.said.append(sentence)

    def flag(self, name: str) -> bool | None:
        """None where it is empty.

        Raises
        ------
        SuiteError
            If it is neither yes nor no.
        """
        text = self[name].lower()
        if text and text not in YES_OR_NO:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be one of {_FLAGS}.")
        return YES_OR_NO[text] if text else None

    def one_of(self, name: str, words: Mapping[str, str]) -> str:
        """What a word stands for; empty where the cell is.

        Raises
        ------
        SuiteError
            If it is none of them.
        """
        text = self[name].lower()
        if text and text not in words:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be one of {', '.join(words)}.")
        return words[text] if text else ""

    def needed(self, name: str) -> int:
        """A whole number that nothing else tells.

        Raises
        ------
        CannotPriceError
            If it is empty.
        """
        value = self.whole(name)
        if value is None:
            raise CannotPriceError(f"{name} is empty")
        return value

    def default(self, name: str, default: int) -> int:
        """A whole number, or what is taken in its place, which is said where that is more than 1."""
        value = self.whole(name)
        if value is None and (name in self._texts or name == "vocab") and default > 1:
            self.say(f"{name} is {self.how(name)}: {default} taken")
        return default if value is None else value

    def whole(self, name: str) -> int | None:
        """A whole number from 1; None where it is empty.

        Raises
        ------
        SuiteError
            If it is something else.
        """
        value = self.number(name)
        if value is None:
            return None
        most = MOST_OF.get(name, MOST)
        if not 1 <= value <= most or value != int(value):
            given = f"{name} is {self[name]}"
            raise SuiteError(f"{self.where}: {given}, and must be a whole number from 1 to {most:,}.")
        return int(value)

    def number(self, name: str) -> float | None:
        """In the unit of our column; None where it is empty, or was not measured.

        Raises
        ------
        SuiteError
            If it is no number, may be one of two, or is beyond what there is.
        """
        text = self[name]
        if not text:
            return None
        if name in FIGURES and (text.lower() in NOT_MEASURED or re.fullmatch(r"0+(?:\.0*)?", text)):
            self.say(f"{name} is {as_yaml(text)}: not measured")
            return None
        written, unit = _plain(name, text)
        if self._has_decimal_commas and _POINT_OF_THOUSANDS.fullmatch(text):
            whole = text.replace(".", "")
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, which may be {whole} or {text}: elsewhere in the table a "
                "comma parts fractions."
            )
        if NUMBER.fullmatch(written) is None:
            raise SuiteError(f"{self.where}: {name} is {as_yaml(text)}, and must be a number{_hint(name, text)}.")
        value = float(written)
        if value == math.inf:
            raise SuiteError(f"{self.where}: {name} is {text}, which is too large.")
        factor = self.meanings[name].factor if name in self.meanings else 1.0
        is_plain = unit is None and written.replace(".", "").isdigit()
        if factor != 1 and unit != factor and not is_plain:
            raise SuiteError(
                f"{self.where}: {name} is {as_yaml(text)}, and must be a number alone: its column has the unit."
            )
        value *= factor if unit is None else unit
        if value > (most := MOST_OF_FACT.get(name, math.inf)):
            raise SuiteError(f"{self.where}: {name} is {text}, and no more than {most:g} in its unit makes sense.")
        return value

    def rounding(self, name: str) -> float:
        """Half of the last digit of a figure that is there, in the unit of our column."""
        written, unit = _plain(name, self[name])
        return 0.5 * 10.0 ** -len(written.partition(".")[2]) * (unit or self.meanings[name].factor)


def _plain(name: str, text: str) -> tuple[str, float | None]:
    """A cell's number without what parts thousands, and what its unit makes of it; None without a unit.

    >>> _plain("tokens_per_s_per_gpu", "20,000"), _plain("mem_gb", "60 GB"), _plain("step_s", "1,420")
    (('20000', None), ('60', 1.0), ('1,420', None))
    >>> _plain("step_s", "0,42"), _plain("mfu", "57.1%"), _plain("gbs", "2 048"), _plain("tokens_per_s_per_gpu", "3.7k")
    (('0.42', None), ('57.1', 0.01), ('2048', None), ('3.7', 1000.0))
    """
    if text.isascii() and text.isdigit():
        return text, None  # most cells
    factor = None
    if (match := _WITH_UNIT.fullmatch(text)) is not None:
        unit = match[2].lower()
        found = _UNITS.get(name, {}).get(unit)
        if found is None and (meaning := meaning_of(unit)) is not None and meaning.column == name:
            found = meaning.factor  # 3760 token/gpu/sec
        if found is not None:
            text, factor = match[1], found
    if _WITH_POINTS.fullmatch(text):
        return text.replace(".", "").replace(",", "."), factor
    if _SPACED.fullmatch(text):
        return re.sub(r"[^0-9.]", "", text), factor
    if name in (*_OF_FEW_DIGITS, "tokens_per_s_per_gpu") and _FRACTION.fullmatch(text):
        return text.replace(",", "."), factor
    grouped = name not in _OF_FEW_DIGITS and _GROUPED.fullmatch(text)
    return (text.replace(",", "") if grouped else text), factor


def parts_fraction(text: str) -> bool:
    """Whether the comma of a cell does, and no thousands."""
    return _FRACTION.fullmatch(text) is not None or _WITH_POINTS.fullmatch(text) is not None


def _hint(name: str, text: str) -> str:
    """What a person may have meant, where that is more than one number."""
    if name in _OF_FEW_DIGITS and _GROUPED.fullmatch(text):
        return f": {text.replace(',', '')} or {text.replace(',', '.', 1).replace(',', '')}"
    if (match := re.fullmatch(r"([0-9]{1,5})[kK]", text)) is not None:
        return f": {int(match[1]) * 1000} or {int(match[1]) * 1024}"
    if re.fullmatch(r"[0-9.,]{1,20} ?\([0-9.,]{1,20}\)", text) is not None:
        return ": two, of which a row has one"
    if re.fullmatch(r"-[0-9.,]{1,20}", text) is not None:
        return " of 0 and more"
    return f": write {text[1:].strip()} if it is near enough" if text[:1] in "~≈" else ""


def _says_nothing(name: str, text: str) -> bool:
    """Whether a cell stands for an empty one."""
    return name not in _IN_WORDS and (text.lower() in NOT_SAID or (text.lower() == "none" and name not in _WITH_NONE))
