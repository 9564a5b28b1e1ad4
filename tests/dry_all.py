"""Training steps of the shipped suites on GPUs, run dry: ``python -m tests.dry_all [kinds | layouts | whole | ways]``.

Of ``whole`` each is what a run would run, which takes 15 to 130 CPU seconds: for all 8,019 some days. Of ``layouts``
each has as few layers, copies and micro-batches as its schedule takes, and those that then are alike are run once; of
``kinds``, the default, degrees above one count as alike, too. ``ways`` is why that is enough: whole steps, each beside
the smallest of its kind, and whether one goes through a line of ours, a collective or an operator that the other does
not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from clusterbench.dry.processes import DryRunFailed, DryTask, dry_answers
from tests.dry.shipped import of_each_kind, tasks_of_suites
from tests.dry.ways import ways, whole_ones

WHOLE_ONES = 5
WHICH = ("kinds", "layouts", "whole", "ways")


def chosen_of(first: Mapping[DryTask, str], which: str) -> dict[DryTask, str]:
    """What to run, each with the case that asks for it."""
    if which == "whole":
        return dict(first)
    return {few: first[task] for task, few in of_each_kind(first, smallest=which == "kinds")}


def compared_ways(first: Mapping[DryTask, str]) -> int:
    more = 0
    for whole, smallest in whole_ones(first, WHOLE_ONES).items():
        of_whole, of_smallest = ways(whole), ways(smallest)
        beyond = sorted(of_whole - of_smallest)
        more += len(beyond)
        print(
            f"{first[whole]}, rank {whole.rank}: {len(of_whole)} ways, in the smallest {len(of_smallest)}", flush=True
        )
        print("\n".join(f"  only in the whole: {way}" for way in beyond), end="\n" * bool(beyond), flush=True)
    return 1 if more else 0


def main(which: str) -> int:
    if which not in WHICH:
        print(f"usage: python -m tests.dry_all [{' | '.join(WHICH)}]", file=sys.stderr)
        return 2
    first = tasks_of_suites()
    if which == "ways":
        return compared_ways(first)
    chosen = chosen_of(first, which)
    print(f"{len(first):,} ranks of the shipped suites, {len(chosen):,} to run", flush=True)
    spent_s, failed = 0.0, 0
    for number, (task, answer) in enumerate(dry_answers(chosen), 1):
        if isinstance(answer, DryRunFailed):
            failed += 1
            print(f"{chosen[task]}: {answer}", flush=True)
        else:
            spent_s += answer.spent_s
        if number % 100 == 0:
            print(f"{number:,} done, {failed} failed, {spent_s:.0f} CPU seconds", flush=True)
    print(f"{len(chosen) - failed:,} ran, {failed} failed, {spent_s:.0f} CPU seconds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "kinds"))
