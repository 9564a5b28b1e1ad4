"""Workloads of which several configurations were tried, as maps from a shape and a number of ranks to their cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from clusterbench.cases.names import sharing
from clusterbench.cases.ranking import configuration, imported_mfu
from clusterbench.cases.trained import Trained, unlike
from clusterbench.layout import FOLLOWS_LAYOUT
from clusterbench.run_folder.attempts import History
from clusterbench.shape import OWN_SHAPE
from clusterbench.words import legible, plural

FEWEST = 3  # layouts that make a choice

CHOSEN = frozenset(("micro_batch_size", "attempt"))
"""Options that are chosen together with the layout: the batch of a step stays the same."""

_BATCH = ("global_batch_size", "seq_len")

Cell = tuple[str, int]
"""The name of a row, which is a shape or a length of sequences, and a number of ranks."""

Options = frozenset[tuple[str, object]]


@dataclass(frozen=True)
class Heatmap:
    """One workload: what was tried of each shape, or at each length of sequences, on each number of ranks.

    Attributes
    ----------
    name
        The batch of a step, and what else tells it from the other workloads of the run.
    shape
        The one that all rows are of, which then are lengths of sequences; otherwise rows are shapes.
    histories
        The samples, by case.
    num_refused_alone
        Refusals for numbers of ranks on which nothing was to run.
    """

    name: str
    cells: Mapping[Cell, Sequence[Trained]]
    shape: str = ""
    histories: Mapping[str, History] = field(default_factory=dict)
    num_refused_alone: int = 0

    @cached_property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @cached_property
    def world_sizes(self) -> list[int]:
        return sorted({world_size for _, world_size in self.cells})

    @cached_property
    def num_nodes(self) -> dict[int, int]:
        """Nodes by ranks, where several node counts were run and each is one number of ranks; otherwise empty.

        Of a number of ranks for which all was refused the refusals tell it.
        """
        run = [case for case in self.trained if case.row.status != "refused"]
        sizes_run = {case.layout.world_size for case in run}
        refused_alone = [case for case in self.trained if case.layout.world_size not in sizes_run]
        pairs = {(case.layout.world_size, case.row.num_nodes) for case in (*run, *refused_alone)}
        sizes, nodes = ({pair[place] for pair in pairs} for place in (0, 1))
        return dict(sorted(pairs)) if len(nodes) > 1 and len(sizes) == len(nodes) == len(pairs) else {}

    @cached_property
    def trained(self) -> list[Trained]:
        return [case for cases in self.cells.values() for case in cases]

    @property
    def noun(self) -> str:
        """What a rank is called."""
        return "GPU" if self.trained[0].row.device == "cuda" else "rank"

    @property
    def has_imported_mfu(self) -> bool:
        return any(imported_mfu(case) for case in self.trained)

    def row_in_words(self, row: str) -> str:
        return f"{self.shape}, sequences of {row}," if self.shape else row

    def where(self, world_size: int) -> str:
        """``16 GPUs of 2 nodes``."""
        ranks = plural(world_size, self.noun)
        nodes = self.num_nodes.get(world_size)
        return f"{ranks} of {plural(nodes, 'node')}" if nodes else ranks


def heatmaps(trained: Sequence[Trained], histories: Mapping[str, History]) -> list[Heatmap]:
    """One for each workload that is a choice; and for a shape with several lengths of sequences one of its own."""
    by_work: dict[Options, list[Trained]] = defaultdict(list)
    left_out = FOLLOWS_LAYOUT | sharing().keys() | CHOSEN | {"shape", OWN_SHAPE, *_BATCH}
    telling = unlike([case.point for case in trained], left_out)
    for case in trained:
        by_work[_options(case, telling)].append(case)
    own: tuple[tuple[str, object], ...]
    cells_by_work: dict[tuple[Options, tuple[tuple[str, object], ...]], tuple[str, dict[Cell, list[Trained]]]] = {}
    for work, cases in by_work.items():
        long = _of_several_lengths(cases)
        for case in cases:
            shape, point = _text(case, "shape"), case.point
            if shape in long:
                own, of, row = (("shape", shape),), shape, _tokens(point.get("seq_len"))
            else:
                own, of, row = tuple((name, _plain(point.get(name))) for name in _BATCH), "", shape
            cells_by_work.setdefault((work, own), (of, defaultdict(list)))[1][row, case.layout.world_size].append(case)
    heatmaps = {
        work.union(own): _heatmap(of, cells, histories)
        for (work, own), (of, cells) in cells_by_work.items()
        if any(len(cases) >= FEWEST for cases in cells.values())
    }
    choices = {key: heatmap for key, heatmap in heatmaps.items() if _is_a_choice(heatmap.cells)}
    common = frozenset.intersection(*choices) if choices else frozenset()
    return [replace(heatmap, name=_name(key - common, heatmap.trained)) for key, heatmap in choices.items()]


def _heatmap(shape: str, cells: Mapping[Cell, Sequence[Trained]], histories: Mapping[str, History]) -> Heatmap:
    """Without columns of refusals alone, and without refusals of what was run with other nodes."""
    run = {size for (_, size), cases in cells.items() if any(case.row.status != "refused" for case in cases)}
    drawn = {cell: _once(cases) for cell, cases in cells.items() if cell[1] in run}
    alone = sum(len(cases) for (_, size), cases in cells.items() if size not in run)
    return Heatmap("", drawn, shape, histories, alone)


def _options(case: Trained, names: Sequence[str]) -> Options:
    return frozenset((name, _plain(case.point[name])) for name in names if name in case.point)


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float)) else str(value)


def _text(case: Trained, name: str) -> str:
    return _shown(str(case.point.get(name) or ""))


@lru_cache
def _shown(text: str) -> str:
    return legible(" ".join(text.split()), 48)


def _tokens(length: object) -> str:
    return f"{length:,} tokens" if isinstance(length, int) else legible(f"{length} tokens", 24)


def _of_several_lengths(cases: Sequence[Trained]) -> set[str]:
    """Shapes that were run with several lengths of sequences, each with one batch."""
    batches: dict[str, dict[object, set[object]]] = defaultdict(lambda: defaultdict(set))
    for case in cases:
        length, batch = (_plain(case.point.get(name)) for name in ("seq_len", "global_batch_size"))
        batches[_text(case, "shape")][length].add(batch)
    return {
        shape
        for shape, lengths in batches.items()
        if len(lengths) > 1 and all(len(batch) == 1 for batch in lengths.values())
    }


def _once(cases: Sequence[Trained]) -> list[Trained]:
    ran = {configuration(case) for case in cases if case.row.status != "refused"}
    kept: dict[tuple[object, ...], Trained] = {}
    for case in cases:
        if case.row.status != "refused":
            kept[(case.row.case,)] = case
        elif configuration(case) not in ran:
            kept.setdefault(configuration(case), case)
    return list(kept.values())


def _name(own: Options, cases: Sequence[Trained]) -> str:
    """The batch of a step, where all have one, and what tells a workload from the others."""
    batch, length = ({_plain(case.point.get(name)) for case in cases} for name in _BATCH)
    one = [value for values in (batch, length) if len(values) == 1 for value in values if isinstance(value, int)]
    step = "{:,} sequences of {:,} tokens a step".format(*one) if len(one) == 2 else ""
    without = {"shape", *(_BATCH if step else ())}
    texts = sorted((name, str(value)) for name, value in own if name not in without)
    return ", ".join([*filter(None, [step]), *(f"{name} {value}" for name, value in texts)])


def _is_a_choice(cells: Mapping[Cell, Sequence[Trained]]) -> bool:
    """Several cells, of which some had layouts of two axes to choose from, each tried in one way only."""
    choice = [cases for cases in cells.values() if sum(case.is_measured for case in cases) >= FEWEST]
    mixed = [cases for cases in choice if len({case.layout.axes for case in cases}) >= FEWEST]
    once = all(len({_tried(case) for case in cases}) == len(cases) for cases in cells.values())
    return len(cells) > 1 and bool(mixed) and once


def _tried(case: Trained) -> tuple[object, ...]:
    return *configuration(case), _plain(case.point.get("attempt"))
