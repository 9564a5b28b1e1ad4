"""Measures all numbers or the named ones, and prints each beside its target. Exits 1 if one was missed."""

from __future__ import annotations

import multiprocessing
import pkgutil
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

import tests.bench
from clusterbench.errors import nearest
from clusterbench.words import aligned
from tests.bench import Result, measured

_HEADER = ("name", "value", "unit", "target", "verdict", "note")


def main(asked: list[str]) -> int:
    names = [module.name for module in pkgutil.iter_modules(tests.bench.__path__) if module.name != "__main__"]
    for name in asked:
        if name not in names:
            print(f"there is no number '{name}'.{nearest(name, names)}\nNumbers: {', '.join(names)}.", file=sys.stderr)
            return 2
    results = [result for name in asked or names for result in _in_a_process(name)]
    print("\n".join(aligned(_HEADER, map(_cells, results))))
    return 1 if any(result.verdict == "missed" for result in results) else 0


def _in_a_process(name: str) -> list[Result]:
    print(f"{name} ...", file=sys.stderr, end=" ", flush=True)
    start_s = time.monotonic()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            results = pool.submit(measured, name).result()
        except Exception as error:  # noqa: BLE001  a number that cannot be taken is a row, and the others follow
            traceback.print_exc()
            results = [Result(name, None, "", float("nan"), "missed", f"not measured: {error}".splitlines()[0][:120])]
    print(f"{time.monotonic() - start_s:.0f} s", file=sys.stderr)
    return results


def _cells(result: Result) -> tuple[str, ...]:
    value = "-" if result.value is None else f"{result.value:.4g}"
    return (
        result.name,
        value,
        result.unit,
        "none" if result.verdict == "shown" else f"{result.target:g}",
        result.verdict,
        result.note,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
