"""What a suite asks for: each combination of the values of its items."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import SuiteError
from clusterbench.suite import Item, Settings, Suite, Written
from clusterbench.types import Place, Point

MOST_CASES = 100_000


@dataclass(frozen=True)
class Request:
    """One point of an item at one place.

    ``swept`` are the written values that were chosen for it, ``elements`` those of its lists that bring it about;
    ``objection`` says why it can never be.
    """

    benchmark: Benchmark
    point: Point
    place: Place
    environment: Mapping[str, str]
    swept: tuple[Written, ...]
    elements: tuple[Written, ...]
    objection: str

    @cached_property
    def by(self) -> tuple[Written, ...]:
        """All values that ask for it, the most specific first: what is in a list, what was swept last, variables."""
        last_first = self.swept[::-1]
        return (*self.elements, *sorted(last_first, key=lambda written: written.name in self.environment))

    def features(self) -> dict[str, Any]:
        """All values in which it may differ from another point of the same label; swept ones first."""
        options = {
            name: getattr(self.benchmark, name, option.default if option.is_later else None)
            for name, option in self.benchmark.options().items()
            if not option.is_list
        }
        values = {**options, **self.point, **self.environment}
        return {**{written.name: values[written.name] for written in self.swept if written.name in values}, **values}


def requests_of(suite: Suite, item: Item, places: Sequence[Place]) -> Iterator[Request]:
    """Every point at every place, for every combination of swept options and variables."""
    for place in places:
        earlier: set[object] = set()
        for values, swept in combinations(item.settings):
            benchmark, points = _points(suite, item, values, swept, place)
            points = _new(benchmark, points, earlier)
            elements = _elements(item, values, place, points)
            objections = [sentence(benchmark.objection(point, place) or "") for point in points]
            for variables, swept_variables in combinations(item.environment):
                chosen = (*swept, *swept_variables)
                for point, by, objection in zip(points, elements, objections, strict=True):
                    yield Request(benchmark, point, place, variables, chosen, by, objection)


def _new(benchmark: Benchmark, points: Sequence[Point], earlier: set[object]) -> list[Point]:
    """Points no earlier combination had: an option that does not concern a layout gives it once, not once a value."""
    common = tuple(getattr(benchmark, name) for name in Benchmark.options())
    keys = [(common, _key(point)) for point in points]
    new = [point for key, point in zip(keys, points, strict=True) if key not in earlier]
    earlier.update(keys)
    return new


def combinations(settings: Settings) -> Iterator[tuple[dict[str, Any], tuple[Written, ...]]]:
    """One value for each setting, in all combinations, and which of them were swept; the last key varies fastest."""
    lists = {
        name: tuple(written.value for written in setting.values)
        for name, setting in settings.items()
        if setting.is_list
    }
    single = [setting for setting in settings.values() if not setting.is_list]
    for chosen in product(*(setting.values for setting in single)):
        swept = tuple(written for written, setting in zip(chosen, single, strict=True) if len(setting.values) > 1)
        yield {**lists, **{written.name: written.value for written in chosen}}, swept


def _points(
    suite: Suite, item: Item, values: Mapping[str, Any], swept: Sequence[Written], place: Place
) -> tuple[Benchmark, list[Point]]:
    """The benchmark with these values and all it measures at ``place``; what it cannot read is a mistake."""
    try:
        benchmark = item.kind.from_options(values)
        return benchmark, _all_points(benchmark, place)
    except SuiteError as error:
        unreadable = [element for element, points in _one_by_one(item, values, place) if points is None]
        named = [setting.line for name, setting in item.settings.items() if re.search(rf"\b{name}\b", str(error))]
        lines = [*(written.line for written in (*unreadable, *swept)), *named, item.line]
        raise suite.mistake(lines[0], error) from None


def _elements(
    item: Item, values: Mapping[str, Any], place: Place, points: Sequence[Point]
) -> list[tuple[Written, ...]]:
    """For each point the elements of the item's lists that bring it about: those that do so alone."""
    if len(listed := list(_listed(item))) == 1:
        return [tuple(listed)] * len(points)
    bringing: dict[Any, list[Written]] = defaultdict(list)
    for element, brought in _one_by_one(item, values, place):
        for point in brought or ():
            bringing[_key(point)].append(element)
    times: Counter[Any] = Counter()
    elements_of_points = []
    for point in points:
        elements = bringing.get(_key(point), [])
        elements_of_points.append(
            tuple(elements[times[_key(point)] :])
        )  # of 'dp2, dp*' the second asks for the second dp2
        times[_key(point)] += 1
    return elements_of_points


def _one_by_one(
    item: Item, values: Mapping[str, Any], place: Place
) -> Iterator[tuple[Written, Sequence[Point] | None]]:
    """Each element of each list, and the points it has alone in its list; None where it cannot be read alone."""
    for element in _listed(item):
        try:
            alone = item.kind.from_options({**values, element.name: (element.value,)})
            points: Sequence[Point] | None = _all_points(alone, place)
        except SuiteError:
            points = None
        yield element, points


def _listed(item: Item) -> Iterator[Written]:
    """The elements of the item's lists, but of those that all benchmarks share: they bring no points."""
    for setting in item.settings.values():
        if setting.is_list and setting.name not in Benchmark.options():
            yield from setting.values


def _all_points(benchmark: Benchmark, place: Place) -> list[Point]:
    return list(islice(benchmark.points(place), MOST_CASES + 1))  # one too many is enough to see


def _key(point: Point) -> frozenset[tuple[str, Any]]:
    return frozenset(point.items())


def sentence(text: str) -> str:
    """Benchmarks say why in their own way; what is printed ends with a period."""
    return text if not text or text.endswith((".", "?")) else f"{text}."
