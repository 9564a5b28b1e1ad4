"""The CPU seconds of ``clusterbench price`` and of ``clusterbench advise`` for 20,000 layouts, from the command to the
printed ranking.

Each in a process of its own with its imports, as a person waits for it. The layouts of ``price`` are those of one model
on 8 to 512 GPUs with each micro-batch and stage of ZeRO, none twice. ``advise`` makes its own: those of a mixture of
experts on 1,024 GPUs, of which it works out the memory as well, and refuses half as many more.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tests.bench import ROOT, Result, at_most

LAYOUTS, TARGET_S = 20_000, 25.0
BATCHES = tuple(256 * factor for factor in range(1, 33))
SHAPE = {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "vocab": 131072, "seq": 4096}


def measure() -> list[Result]:
    return [_price(), _advise()]


def _advise() -> Result:
    asked = ["--shape", "mixtral-8x7b", "--gpu", "h100-sxm-80gb", "--num-nodes", "128", "--nics", "8x400Gb"]
    said, seconds = _timed(["advise", *asked, "--global-batch-size", "8192"])
    tried = int(re.search(r"of ([0-9,]+)\s+#?\s*forms", said)[1].replace(",", ""))  # type: ignore[index]
    assert tried >= LAYOUTS, tried
    return at_most("advise_20000", seconds * LAYOUTS / tried, "s", TARGET_S, f"{seconds:.1f} s for {tried:,} forms")


def _price() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "layouts.csv"
        with table.open("w", newline="") as file:
            rows = [SHAPE | row for row in _layouts()][:LAYOUTS]
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        asked = [str(table), "--profile", "megatron_core", "--gpu", "h100-sxm-80gb", "--nics", "8x400Gb"]
        said, seconds = _timed(["price", *asked])
    priced = sum(bool(row["step_s"]) for row in csv.DictReader(said.splitlines()))
    assert priced == LAYOUTS, f"{priced} of {LAYOUTS}"
    return at_most("price_20000", seconds, "s", TARGET_S, f"{priced:,} rows priced")


def _timed(command: list[str]) -> tuple[str, float]:
    """What a command prints, and its CPU seconds."""
    before = os.times()
    asked = [sys.executable, "-m", "clusterbench", *command]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    after = os.times()
    return said, sum(after[2:4]) - sum(before[2:4])


def _layouts() -> Iterator[dict[str, int]]:
    powers = [2**power for power in range(10)]
    for gbs, tp, pp, dp, zero, mbs in product(BATCHES, powers[:4], powers[:5], powers, (0, 1), powers[:4]):
        gpus = tp * pp * dp
        if 8 <= gpus <= 512 and gbs % (dp * mbs) == 0 and gbs // (dp * mbs) >= pp and (dp > 1 or not zero):
            yield {"gpus": gpus, "tp": tp, "pp": pp, "dp": dp, "zero": zero, "mbs": mbs, "gbs": gbs}
