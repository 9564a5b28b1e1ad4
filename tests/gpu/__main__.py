"""Runs all blocks or the named ones, and prints each figure beside what was predicted of it. Exits 1 if one failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.gpu import ROOT, machine

BLOCKS = ("smoke", "tests", "ladder", "ranks", "random", "ceilings", "fake", "memory")
PROOFS = ("smoke", "tests", "ranks", "random")
"""They tell no speed, so on a card they run beside one another, and half the time is left for the others."""
HALF_AN_HOUR_S = 1740.0


def main(words: Sequence[str]) -> int:
    asked = _parsed(words)
    lacking = machine.missing_modules(machine.requirements())
    if lacking:
        return _refused(lacking)
    return _session(asked)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python3 -m tests.gpu", description=__doc__)
    parser.add_argument("block", nargs="*", help=f"of {', '.join(BLOCKS)}; all of them by default")
    parser.add_argument("--budget", type=float, default=HALF_AN_HOUR_S, metavar="SECONDS", help="for all blocks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu is the rehearsal")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for results; by default reports/gpu-DATE-TIME")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.block if name not in BLOCKS]:
        parser.error(f"there is no block '{unknown[0]}'; there are {', '.join(BLOCKS)}")
    asked.block = [name for name in BLOCKS if name in (asked.block or BLOCKS)]
    asked.out = asked.out or ROOT / "reports" / f"gpu-{datetime.now():%Y-%m-%d-%H%M%S}"
    return asked


def _refused(lacking: Sequence[str]) -> int:
    print("\n".join(f"missing: {what}" for what in lacking), file=sys.stderr)
    print("hint: docs/gpu.md says what a machine needs", file=sys.stderr)
    return 2


def _session(asked: argparse.Namespace) -> int:
    # What these import may be missing, so they come after it was looked for.
    from tests.gpu.blocks import all_blocks
    from tests.gpu.session import Session, environment_for, table

    seen = machine.seen_by_torch(environment_for())
    if lacking := unusable(seen, asked.device):
        return _refused(lacking)
    print("\n".join(about(seen)), flush=True)
    session = Session(asked.out.resolve(), asked.device, asked.budget, seen)
    blocks = all_blocks(asked.device)
    try:
        session.run({name: blocks[name] for name in asked.block}, PROOFS if asked.device == "cuda" else ())
    finally:
        print(table(session.rows))
        print(f"# {asked.out}: results.json, table.txt, and the folder and log of each process")
    return session.exit_code


def unusable(seen: Mapping[str, Any], device: str) -> list[str]:
    """Why nothing can be run with what torch sees."""
    if "error" in seen:
        return [f"a torch that can be used: {seen['error']}"]
    if device == "cuda" and seen["gpu"] is None:
        return [f"a GPU: torch {seen['torch']} sees none (--device cpu rehearses without)"]
    return []


def about(seen: Mapping[str, Any]) -> list[str]:
    """The machine, and names that this torch lacks: each costs a part of a case, and no more."""
    gpu = seen["gpu"] or "no GPU"
    lines = [f"# Python {seen['python']}, torch {seen['torch']}, CUDA {seen['cuda']}, NCCL {seen.get('nccl')}, {gpu}"]
    return lines + [f"# this torch has no {name}: what needs it may fail, or say less" for name in seen["vanished"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
