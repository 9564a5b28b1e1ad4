"""What proof costs: the CPU seconds of all ranks for each case, beside those of commit f044351, and for two suites.

f044351 proved in one dtype, with two micro-batches of one sequence, and every repeat anew; what is proven now is taken
over by repeats. Both run by turns on the same cores, and a ratio is that of medians. A suite is the sum of its cases,
with its number of repeats on a CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterbench.formulas.statistics import median
from tests.bench import ROOT, Result, alternate, at_most

BEFORE, TARGET, ROUNDS = "f044351", 1.5, 5
SUITES = {"tp_scale": 2, "zero_stages": 1}
"""Name -> its repeats on a CPU."""

CASES = """\
suite: {name}
question: What does proof cost?
benchmarks:
  - benchmark: train_step
    layouts: [{layouts}]
    shape: {shape}
    seq_len: 64
    global_batch_size: 8
    micro_batch_size: 1
    dtype: {dtype}
cpu:
  num_ranks: 4
"""
GROUPS = {
    "tp_scale": ("llama-tiny", "float32", "tp2, tp2+sp, tp4, tp4+sp"),
    "zero_stages": ("llama-tiny", "float32", "dp4, dp4+zero1, dp4+zero2, dp4+zero3"),
    "mixed": ("llama-tiny", "float32", "pp2, cp2, dp2-tp2+sp"),
    "experts": ("moe-tiny", "float32", "dp2+ep2"),
    "half": ("llama-tiny", "bfloat16", "tp2, dp4+zero3"),
}
"""Group -> shape, dtype and layouts; those of a suite are what it proves."""


@dataclass(frozen=True)
class _Cost:
    """CPU seconds of all ranks, the median of the rounds."""

    before_s: float
    now_s: float


def measure() -> list[Result]:
    if subprocess.run(["git", "cat-file", "-e", BEFORE], cwd=ROOT, capture_output=True, check=False).returncode:
        return [Result("proof_cost", None, "ratio", TARGET, "undecided", f"this clone does not have {BEFORE}")]
    costs: dict[str, dict[str, _Cost]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        checkouts = {"now": ROOT, "before": _checkout(Path(folder, BEFORE))}
        provers = {name: stack.enter_context(_prover(checkout)) for name, checkout in checkouts.items()}
        for group, (shape, dtype, layouts) in GROUPS.items():
            suite = Path(folder, f"{group}.yaml")
            suite.write_text(CASES.format(name=group, shape=shape, dtype=dtype, layouts=layouts))
            planned = [_planned(suite, checkouts[name]) for name in ("now", "before")]
            costs[group] = {
                f"{now['layout']} {dtype}": _raced(provers, {"now": now, "before": before})
                for now, before in zip(*planned, strict=True)
            }
    cases = [_result(f"proof_{name}", cost) for group in costs.values() for name, cost in group.items()]
    return cases + [_of_suite(name, repeats, [*costs[name].values()]) for name, repeats in SUITES.items()]


def _result(name: str, cost: _Cost) -> Result:
    note = f"{cost.now_s:.2f} CPU s of all ranks, {cost.before_s:.2f} at {BEFORE}; medians of {ROUNDS}"
    return at_most(name.replace(" ", "_"), cost.now_s / cost.before_s, "ratio", TARGET, note)


def _of_suite(name: str, repeats: int, costs: Sequence[_Cost]) -> Result:
    cost = _Cost(repeats * sum(cost.before_s for cost in costs), sum(cost.now_s for cost in costs))
    return _result(f"proof_suite_{name}", cost)


def _raced(provers: Mapping[str, subprocess.Popen[str]], cases: Mapping[str, Mapping[str, object]]) -> _Cost:
    def seconds(name: str) -> float:
        prover = provers[name]
        assert prover.stdin is not None
        assert prover.stdout is not None
        print(json.dumps(cases[name]), file=prover.stdin, flush=True)
        return sum(json.loads(prover.stdout.readline()))

    returned = alternate(ROUNDS, {name: lambda name=name: seconds(name) for name in provers})
    return _Cost(median(returned["before"]), median(returned["now"]))


def _checkout(path: Path) -> Path:
    with subprocess.Popen(["git", "archive", BEFORE], cwd=ROOT, stdout=subprocess.PIPE) as archive:
        path.mkdir()
        subprocess.run(["tar", "-x", "-C", str(path)], stdin=archive.stdout, check=True)
    return path


@contextmanager
def _prover(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(ROOT / "tests" / "proof" / "seconds.py"), str(checkout)]
    with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prover:
        yield prover
        assert prover.stdin is not None
        prover.stdin.close()


def _planned(suite: Path, checkout: Path) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "clusterbench.cli", "plan", str(suite), "--json"]
    planned = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout
    cases: list[dict[str, object]] = json.loads(planned)["cases"]
    return cases
