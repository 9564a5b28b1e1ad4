"""The numbers this project promises, each beside its target: ``python -m tests.bench [NAME ...]``, or ``tox -e bench``.

A file is a number, or two that one run gives. Its ``measure()`` returns a :class:`Result` for each. Every file is
measured in a process of its own: what one has imported, or left in memory, must not change another's figure.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import Literal, TypeVar

from clusterbench.formulas.statistics import ratio_of_medians

ROOT = Path(__file__).parents[2]

INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a process that a person waits for: with it the package is compiled once, as by an installation,
and not in each process, which takes a third of a second of CPU."""

Verdict = Literal["within", "missed", "undecided", "shown"]
"""``shown``: a number without a target."""
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """One number beside its target. ``value`` is None where there is none; ``note`` then says why."""

    name: str
    value: float | None
    unit: str
    target: float
    verdict: Verdict
    note: str = ""


def measured(name: str) -> list[Result]:
    """What the file of this name measures. It stands here, and not in ``__main__``, to be found by a new process."""
    results: list[Result] = importlib.import_module(f"tests.bench.{name}").measure()
    return results


def at_most(name: str, value: float, unit: str, target: float, note: str = "") -> Result:
    return Result(name, value, unit, target, "within" if value <= target else "missed", note)


def alternate(
    rounds: int, contenders: Mapping[str, Callable[[], T]], is_enough: Callable[[int], bool] = lambda done: False
) -> dict[str, list[T]]:
    """What each contender returned in each round; all orders come in turn: none always runs behind the same other.

    When all orders have come once more, ``is_enough`` is asked with the rounds so far, and may end it.
    """
    returned: dict[str, list[T]] = {name: [] for name in contenders}
    orders = list(permutations(contenders))
    for done, order in enumerate(islice(cycle(orders), rounds)):
        if done and done % len(orders) == 0 and is_enough(done):
            break
        for name in order:
            returned[name].append(contenders[name]())
    return returned


def ratio(name: str, ours: Sequence[float], rival: Sequence[float], again: Sequence[float], target: float) -> Result:
    """Our median time over the rival's, judged by its bootstrap interval and by the rival against itself.

    Parameters
    ----------
    ours, rival, again
        Seconds, taken alternately in one run; ``again`` is the rival once more, the A/A control.
    target
        Above 1. What it allows beyond 1 is the margin.

    Notes
    -----
    Within: the interval contains a value at or below the target. The control's true ratio is 1; where its interval,
    stretched to reach 1, is wider than the margin, the machine cannot tell so small a difference and the result is
    undecided. It is missed even then if the excess is more than the control's width explains.
    """
    found, control = ratio_of_medians(ours, rival), ratio_of_medians(again, rival)
    width = max(control.high, 1.0) - min(control.low, 1.0)
    verdict: Verdict
    if width > target - 1:
        verdict = "missed" if found.low > target + width else "undecided"
    else:
        verdict = "within" if found.low <= target else "missed"
    note = (
        f"{found.low:.4f} to {found.high:.4f}, A/A {control.low:.4f} to {control.high:.4f}, "
        f"{len(ours)} samples, median {sorted(rival)[len(rival) // 2] * 1e3:.3g} ms"
    )
    return Result(name, found.value, "ratio", target, verdict, note)
