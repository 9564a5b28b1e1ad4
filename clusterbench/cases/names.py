"""What cases are called in figures: what tells them apart, in few words, whatever options there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from clusterbench.benchmarks import benchmarks
from clusterbench.cases.trained import Trained
from clusterbench.layout import FOLLOWS_LAYOUT
from clusterbench.options import Option, options_of, say
from clusterbench.parallel import PHASES, parallelisms
from clusterbench.rows import Row
from clusterbench.shape import OWN_SHAPE
from clusterbench.types import Point
from clusterbench.words import plural

NODES = "num_nodes"
"""Told beside options, as the same step may run on more nodes."""


@cache
def sharing() -> Mapping[str, Option]:
    """Options of parallelisms: how a step is shared or carried out; what is applied last is first."""
    kinds = sorted(parallelisms().values(), key=lambda kind: -PHASES.index(kind.phase))
    return {name: option for kind in kinds for name, option in options_of(kind).items()}


def names(rows: Iterable[Row], quiet: Collection[str] = (), without: Collection[str] = ()) -> Callable[[Row], str]:
    """Tells cases of ``rows`` apart in few words: the layout, how the step is shared, and what else differs.

    ``pp2-dp2, zbv, mbs 2``. Of how a step is shared the ``quiet`` options are said only where they differ; options
    ``without`` which a case can be named, as the figure says them elsewhere, never.
    """
    rows = _one_a_case(rows)
    others = [option for option in _differing(rows) if option not in sharing() and option not in without]
    chosen = choices(rows, quiet, without)
    return lambda row: ", ".join([str(row.point.get("layout") or row.benchmark), *chosen(row), *_words(row, others)])


def choices(rows: Iterable[Row], quiet: Collection[str], without: Collection[str] = ()) -> Callable[[Row], list[str]]:
    """How the step of a row is shared beside its layout, in words; the ``quiet`` options only where they differ.

    An option that only some layouts have differs where two that have it do, or two cases of one layout.
    """
    points = [row.point for row in _one_a_case(rows)]
    having = {option: [point for point in points if option in point] for option in quiet}
    differing = {
        option
        for option, those in having.items()
        for layouts in [{point.get("layout") for point in those}]
        if len({point.get(option) for point in points if point.get("layout") in layouts}) > 1
    }
    silent = {option for option in quiet if option not in differing} | set(without)
    said = [option for option in sharing() if option not in silent]
    return lambda row: list(_choices(row.point, said))


def apart(rows: Sequence[Row], without: Collection[str] = ()) -> list[str]:
    """What tells each row from the others, in words: nothing where all have the same options, or only one has them."""
    differing = [option for option in _differing(rows) if option not in without]
    shared = [option for option in differing if option in sharing()]
    others = [option for option in differing if option not in sharing()]
    return [", ".join([*_choices(row.point, shared), *_words(row, others)]) for row in rows]


def titles(groups: Sequence[Sequence[Trained]], heads: Sequence[object] = ()) -> list[str]:
    """A second line for the title of each group's panels, where there are several: what tells it from the others."""
    words = groups_apart([[case.row for case in group] for group in groups], heads)
    return [f"\n{said}" if said else "" for said in words]


def groups_apart(groups: Sequence[Sequence[Row]], heads: Sequence[object] = ()) -> list[str]:
    """What tells each group from the others, in words; nothing of one group alone.

    The layout of a group's first row tells where options do not. ``heads`` are what is said of each anyway.
    """
    firsts = [group[0] for group in groups]
    words = apart(firsts, {option for group in groups for option in _differing(_one_a_case(group))})
    if len(set(zip(words, heads or words, strict=True))) == len(words):
        return words
    return [
        ", ".join(filter(None, [str(row.point.get("layout", "")), said]))
        for row, said in zip(firsts, words, strict=True)
    ]


def _one_a_case(rows: Iterable[Row]) -> list[Row]:
    # Rows of a case share one point object.
    return list({id(row.point): row for row in rows}.values())


def _differing(rows: Sequence[Row]) -> list[str]:
    """Options, variables and numbers of nodes in which rows differ, but for what a layout says; the most telling first.

    What comes with a run (its name, the options of an import) stands before options of benchmarks, variables come last.
    """
    if len(rows) < 2:
        return []
    points = [row.point for row in rows]
    options = set().union(*points) - FOLLOWS_LAYOUT - {"num_ranks", OWN_SHAPE}
    # One that is None here and absent there does not differ.
    differing = {option for option in options if len({point.get(option) for point in points}) > 1}
    known = list(_options(rows[0].benchmark))
    ordered = sorted(
        differing, key=lambda option: (option.isupper(), known.index(option) if option in known else -1, option)
    )
    return [*ordered, *([NODES] if len({row.num_nodes for row in rows}) > 1 else [])]


def _choices(point: Point, shared: Iterable[str]) -> Iterator[str]:
    """Words of options of parallelisms, but for values that ask for nothing."""
    sharing_options = sharing()
    for option in shared:
        if option in point and (
            sharing_options[option].is_choice_of_kinds or point[option] != sharing_options[option].default
        ):
            yield sharing_options[option].words(point[option])


def _words(row: Row, options: Iterable[str]) -> Iterator[str]:
    known = _options(row.benchmark)
    for option in options:
        if option == NODES:
            yield plural(row.num_nodes, "node")
        elif option in row.point:
            value = row.point[option]
            if option in known:
                yield known[option].words(value)
            elif option.isupper():
                yield f"{option}={value}"
            else:
                yield f"run {value}" if option == "run" else say(option.replace("_", " "), value)


@cache
def _options(benchmark: str) -> Mapping[str, Option]:
    """A benchmark's; of figures of another tool those of a training step, in whose words their steps are told."""
    kind = benchmarks().get("train_step" if benchmark == "imported" else benchmark)
    return kind.options() if kind else {}
