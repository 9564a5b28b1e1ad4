"""Plants all mutants, or some, and prints which were killed. ``python -m tests.mutants --help`` says how to choose."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fractions import Fraction

from tests.mutants import DTYPES, Mutant, mutants
from tests.mutants.running import Verdict, run_suite, run_tests
from tests.share import commit, first_drawn

HEALTHY = "healthy"
_LONGEST_CAUSE = 110
_CASES_AT_ONCE = 8
"""Of the healthy program in one run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a tally is below ``--at-least``, one survives that is not known to, or health was found ill."""
    asked = _asked(arguments)
    dtypes = asked.dtype or list(DTYPES)
    seed = asked.seed or ("" if asked.share >= 1 else commit())
    every = [mutant for mutant in mutants().values() if mutant.tests or {*mutant.dtypes} & {*dtypes}]
    chosen = asked.only or chosen_share(every, asked.share, seed)
    started, verdicts, is_health_ill = time.monotonic(), dict[str, Verdict](), False
    for code, verdict in _verdicts(chosen, dtypes, asked.jobs, with_healthy_tests=not asked.tests_run_anyway):
        if code == HEALTHY:
            is_health_ill |= set(verdict.fates.values()) != {"survived"}
        else:
            verdicts[code] = verdict
        for line in _lines_of(code, verdict):
            print(line, flush=True)
    by_code = {mutant.code: mutant for mutant in chosen}
    print(f"\n{len(chosen)} mutants in {(time.monotonic() - started) / 60:.0f} minutes, {asked.jobs} at a time")
    tallies = dict(_tallies(verdicts, by_code))
    for name, fates in tallies.items():
        print(_said(name, fates))
    for line in _survivors(verdicts, by_code):
        print(line)
    is_low = any(_share_killed(fates) < asked.at_least for fates in tallies.values())
    return 1 if is_low or is_health_ill or has_news(verdicts, by_code) else 0


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", type=_codes, metavar="CODE,...", help="these mutants")
    parser.add_argument("--share", type=Fraction, default=Fraction(1), help="of all mutants, as 1/20, drawn by --seed")
    parser.add_argument("--seed", metavar="TEXT", help="what the share follows from; the commit's hash unless given")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="one of both; may be given twice")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="exit code 1 below it: 0.97")
    parser.add_argument("--tests-run-anyway", action="store_true", help="so they are not run on the healthy program")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    return parser.parse_args(arguments)


def _codes(text: str) -> list[Mutant]:
    every = mutants()
    unknown = [code for code in text.split(",") if code not in every]
    if unknown:
        raise argparse.ArgumentTypeError(f"no mutant is called {', '.join(unknown)}")
    return [every[code] for code in text.split(",")]


def chosen_share(every: Sequence[Mutant], share: Fraction, seed: str) -> list[Mutant]:
    """A share of each kind, drawn by a text."""
    of_kinds = ([mutant for mutant in every if mutant.kind == kind] for kind in ("step", "shared"))
    return [mutant for of_kind in of_kinds for mutant in first_drawn(of_kind, lambda each: each.code, share, seed)]


def cases_by_dtypes(chosen: Sequence[Mutant], dtypes: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """Each case once, under those of the dtypes that a mutant of it is of: in others it may be refused."""
    asked = dict[str, set[str]]()
    for mutant in chosen:
        for case in mutant.cases:
            asked.setdefault(case, set()).update(mutant.dtypes)
    alike = dict[tuple[str, ...], list[str]]()
    for case, of_mutants in asked.items():
        alike.setdefault(tuple(dtype for dtype in dtypes if dtype in of_mutants), []).append(case)
    return alike


def _verdicts(
    chosen: Sequence[Mutant], dtypes: Sequence[str], jobs: int, with_healthy_tests: bool
) -> Iterator[tuple[str, Verdict]]:
    """Of the healthy program on the same cases and tests, and of each mutant, as they come."""
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(run_suite, None, cases[first : first + _CASES_AT_ONCE], here): HEALTHY
            for here, cases in cases_by_dtypes(chosen, dtypes).items()
            for first in range(0, len(cases), _CASES_AT_ONCE)
        }
        if tests and with_healthy_tests:
            waiting[pool.submit(run_tests, None, tests)] = HEALTHY
        for mutant in chosen:
            if mutant.tests:
                waiting[pool.submit(run_tests, mutant, mutant.tests)] = mutant.code
            else:
                here = [dtype for dtype in dtypes if dtype in mutant.dtypes]
                waiting[pool.submit(run_suite, mutant, mutant.cases, here)] = mutant.code
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _lines_of(code: str, verdict: Verdict) -> Iterator[str]:
    for what, fate in verdict.fates.items():
        word = {"survived": "ok", "killed": "found ill"}.get(fate, fate) if code == HEALTHY else fate
        yield f"{code:8}{what:10}{word:10}{verdict.seconds:5.0f} s  {_short(verdict.causes[what])}".rstrip()


def _short(cause: str) -> str:
    text = " ".join(cause.split())
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]} ..."


def _tallies(verdicts: Mapping[str, Verdict], by_code: Mapping[str, Mutant]) -> Iterator[tuple[str, Counter[str]]]:
    """Fates counted for each kind and dtype."""
    counted: dict[str, Counter[str]] = {}
    for code, verdict in verdicts.items():
        for what, fate in verdict.fates.items():
            counted.setdefault(f"{by_code[code].kind} {what}".removesuffix(" tests"), Counter())[fate] += 1
    yield from sorted(counted.items(), reverse=True)


def _share_killed(fates: Counter[str]) -> float:
    return fates["killed"] / fates.total()


def _said(name: str, fates: Counter[str]) -> str:
    others = "".join(f", {fates[fate]} {fate}" for fate in ("survived", "crashed", "not run") if fates[fate])
    return f"{name:16} {fates['killed']} of {fates.total()} killed, {_share_killed(fates):.1%}{others}"


def has_news(verdicts: Mapping[str, Verdict], by_code: Mapping[str, Mutant]) -> bool:
    """Whether a mutant was not killed where the list does not say so."""
    return any(
        fate != "killed" and what not in by_code[code].survives
        for code, verdict in verdicts.items()
        for what, fate in verdict.fates.items()
    )


def _survivors(verdicts: Mapping[str, Verdict], by_code: Mapping[str, Mutant]) -> Iterator[str]:
    """Every mutant that was not killed, with what is wrong with it."""
    for fate in ("survived", "crashed", "not run"):
        for code, mutant in by_code.items():
            where = [what for what, found in verdicts[code].fates.items() if found == fate]
            if where:
                known = "; ".join(dict.fromkeys(mutant.survives[what] for what in where if what in mutant.survives))
                yield f"{fate} {', '.join(where)}: {code} {mutant.wrong}" + (f" Known: {known}." if known else "")


if __name__ == "__main__":
    sys.exit(main())
