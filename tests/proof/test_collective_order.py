"""Ranks call collectives in one order, whatever seed their hashes have."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.run_folder import RunFolder

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "clusterbench"
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
ON_RANKS = ("engine", "model", "parallel", "training", "trainers", "proof", "benchmarks")


def loops_over_sets(path: Path) -> list[str]:
    """Loops over what is written as a set. The order of a set of strings differs from process to process."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        iterables = [node.iter] if isinstance(node, (ast.For, ast.comprehension)) else []
        for iterable in iterables:
            is_call = isinstance(iterable, ast.Call) and getattr(iterable.func, "id", "") in ("set", "frozenset")
            if is_call or isinstance(iterable, (ast.Set, ast.SetComp)):
                found.append(f"{path.relative_to(PACKAGE)}:{iterable.lineno}: {ast.unparse(iterable)}")
    return found


def test_nothing_that_runs_on_ranks_loops_over_a_set():
    offenders = [
        loop
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] in ON_RANKS
        for loop in loops_over_sets(path)
    ]
    assert not offenders


SUITE = """
suite: order
question: Do ranks whose sets are ordered differently meet in the same collectives?
benchmarks:
  - {benchmark: train_step, shape: llama-tiny, seq_len: 32, global_batch_size: 8, layouts: [pp2-dp2], iterations: 1,
     warmup: 0, time_limit_s: 60}
cpu: {num_ranks: 4}
"""
A_SEED_EACH = 'case $PMI_RANK in 0|3) seed=2;; *) seed=1;; esac; PYTHONHASHSEED=$seed exec "$@"'


@pytest.mark.in_turn
@pytest.mark.mpi
def test_ranks_with_different_hash_seeds_meet(tmp_path):
    """With these seeds ranks 0 and 3 had the set of a data axis and pp in another order, and all four hung."""
    assert MPIRUN, "mpirun is part of the extra 'mpi'"
    (tmp_path / "suite.yaml").write_text(SUITE)
    command = [sys.executable, "-m", "clusterbench.cli", "run", tmp_path / "suite.yaml", "--out", tmp_path / "run"]
    launcher = [MPIRUN, "-n", "4", "sh", "-c", A_SEED_EACH, "sh"]
    done = subprocess.run([*launcher, *command], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert [outcome.status for outcome in RunFolder.open(tmp_path / "run").outcomes()] == ["ok"], done.stderr
