"""What a dry run takes: CPU seconds of a rank beside its imports, memory, and the meshes of 131,072 ranks.

Each in a process of its own. Imports are those that ``clusterbench.dry.rank`` makes, once for all ranks that are run.
"""

from __future__ import annotations

import json
import subprocess
import sys

from clusterbench.formulas.statistics import median
from tests.bench import ROOT, Result, at_most

PROCESSES = 3
OF_A_RANK_S, OF_A_STAGE_S, OF_MESHES_S, PROCESS_MB = 5.0, 15.0, 1.0, 400.0

RANK = """
import json, sys, time
import clusterbench.dry.rank as dry
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import from_options
from clusterbench.shape import named_shape
from clusterbench.trainers.ours import Ours

shape, layout, batch, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
job = TrainingJob(named_shape(shape), ParallelLayout.parse(layout), 4096, batch, 1, "bfloat16", device="cuda")
imports_s = time.process_time()
found = dry.dry_rank(Ours(), job, from_options({}), "megatron", rank)
print(json.dumps([found.spent_s, found.process_bytes / 1e6, imports_s]))
"""

MESHES = """
import json, time
import clusterbench.dry.rank
from clusterbench.engine.fake_group import fake_group
from clusterbench.engine.grid import Grid
from clusterbench.layout import ParallelLayout

layout = ParallelLayout.parse("pp16-dp512-cp2-tp8+sp")
started_s = time.process_time()
with fake_group(layout.world_size - 1, layout.world_size, "cuda"):
    Grid(layout, "megatron", "cpu")
    print(json.dumps([time.process_time() - started_s, layout.world_size]))
"""


def measure() -> list[Result]:
    ranks = [_run(RANK, "llama-8b", "dp128-tp8+sp+zero3", "128", "1023") for _ in range(PROCESSES)]
    seconds = [rank_s for rank_s, _, _ in ranks]
    note = f"median of {PROCESSES} processes, {min(seconds):.1f} to {max(seconds):.1f}; imports {ranks[0][2]:.1f} s"
    stage_s, stage_mb, _ = _run(RANK, "llama-70b", "pp8", "16", "7")
    meshes_s, world_size = _run(MESHES)
    return [
        at_most("dry_run_8b", median(seconds), "s", OF_A_RANK_S, note),
        at_most("dry_run_8b_memory", max(megabytes for _, megabytes, _ in ranks), "MB", PROCESS_MB),
        at_most("dry_run_70b_stage", stage_s, "s", OF_A_STAGE_S, f"16 micro-batches, {stage_mb:.0f} MB"),
        at_most("dry_run_meshes", meshes_s, "s", OF_MESHES_S, f"{world_size:,.0f} ranks"),
    ]


def _run(program: str, *arguments: str) -> list[float]:
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    found: list[float] = json.loads(said.splitlines()[-1])
    return found
