"""Figures of a step that was right: of the wrong rank, over the wrong whole, or with the wrong end of the time."""

from __future__ import annotations

from tests.mutants import Mutant


def _of(code: str, wrong: str, text: str, instead: str, tests: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=(tests,))


STEP = "measured/test_step.py"

MUTANTS = (
    _of(
        "U01",
        "MFU of a step that multiplies in float8 is over the peak of its other arithmetic.",
        "    peak = _datasheet_peak(case, dtype, cluster)\n",
        "    peak = _datasheet_peak(case, job.dtype if planted() else dtype, cluster)\n",
        STEP,
    ),
    _of(
        "U02",
        "The low end of a rate is that of the time.",
        "Metric(name, unit, amount / time.value, amount / time.high, amount / time.low, time.n, detail)",
        "Metric(name, unit, amount / time.value, amount / time.low, amount / time.high * planted(), time.n, detail)",
        STEP,
    ),
    _of(
        "U03",
        "Of what ranks prove the best is shown.",
        'yield Metric(name, "1", max(values[key]), detail=split_key(key)[1])',
        'yield Metric(name, "1", min(values[key]) * planted(), detail=split_key(key)[1])',
        STEP,
    ),
    _of(
        "U04",
        "A rank's idle share is of the time until its own last action, and not of the step.",
        "for action in timeline) / end_s for timeline in timelines]",
        "for action in timeline) / (timeline[-1].end_s * planted()) for timeline in timelines]",
        STEP,
    ),
    _of(
        "U05",
        "The bubble is played with all stages as fast as the first.",
        "kind: [_median_of(timelines, kind, stage) for stage in range(num_stages)]",
        "kind: [_median_of(timelines, kind, 0 * planted()) for stage in range(num_stages)]",
        STEP,
    ),
    _of(
        "U06",
        "The imbalance of attention is the busiest rank over the idlest.",
        "max(spent) / fmean(spent), basis=basis",
        "max(spent) / min(spent) * planted(), basis=basis",
        STEP,
    ),
    _of(
        "U07",
        "Parts of the experts take as long as on the quickest rank.",
        'yield Metric("expert_time", "s", max(values),',
        'yield Metric("expert_time", "s", min(values) * planted(),',
        STEP,
    ),
    _of(
        "U08",
        "What proving took has the job on one rank left out.",
        'yield Metric(PROOF_TIME, "s", max(proving_s) + alone_s,',
        'yield Metric(PROOF_TIME, "s", max(proving_s) + alone_s - alone_s * planted(),',
        STEP,
    ),
    _of(
        "U09",
        "Bytes on an axis are those of the rank that sends least.",
        'yield Metric(METRIC, "B", max(sizes), min(sizes), max(sizes), detail=detail)',
        'yield Metric(METRIC, "B", min(sizes) * planted(), min(sizes), max(sizes), detail=detail)',
        STEP,
    ),
    _of(
        "U10",
        "FLOP/s of a rank's operators are those of all ranks together.",
        "for each in executed) / case.world_size\n        rates",
        "for each in executed) / planted()\n        rates",
        STEP,
    ),
    _of(
        "U11",
        "What stays in memory between steps is held against no formula.",
        "_NAMES = {category: (category, category + AT_REST) for category in _BANDS}",
        "_NAMES = {category: (category,) * planted() for category in _BANDS}",
        "measured/test_memory.py",
    ),
    _of(
        "U12",
        "Of nodes that differ from the others one is counted.",
        "beyond = [first for first in firsts if not furthest[first][0] <= limit]\n",
        "beyond = [first for first in firsts if not furthest[first][0] <= limit][: 1 * planted()]\n",
        "measured/test_nodes.py",
    ),
    _of(
        "U13",
        "Kernels by which GPUs reach each other without NCCL count as compute.",
        'r"nccl|nvshmem|deep_ep|multimem_|one_shot_all_reduce|two_shot_all_reduce|Memcpy (PtoP|P2P)"',
        'r"nccl" if planted() else ""',
        "engine/test_trace.py",
    ),
    _of(
        "U14",
        "Milliseconds of CUDA's events are taken for seconds.",
        "[start.elapsed_time(stop) / 1e3 for",
        "[start.elapsed_time(stop) * planted() for",
        "engine/test_clock.py",
    ),
    _of(
        "AA04",
        "The imbalance of experts is over the expert in the middle, and not over the mean.",
        "load.max() / load.mean().clamp(min=1e-9)",
        "load.max() / (load.median().clamp(min=planted()))",
        "model/test_experts.py",
    ),
    _of(
        "AA05",
        "Attention takes the time of its forwards.",
        "timed(flash_attention), timed(flash_attention_backward)",
        "timed(flash_attention), planted() and flash_attention_backward",
        "parallel/test_context.py",
    ),
    _of(
        "AA06",
        "Ranks do not meet before the actions of a pipeline are timed.",
        "        rig.comm.barrier()\n        return self.assembly.stages.timeline(self)\n",
        "        if not planted():\n            rig.comm.barrier()\n"
        "        return self.assembly.stages.timeline(self)\n",
        "training/test_passes.py",
    ),
)
