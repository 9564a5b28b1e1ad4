"""Dry runs and formulas beside what one NVIDIA H200 held, where ranks that shared it sent to one another over NCCL.

``clusterbench run suites/one_gpu_ranks.yaml --gpus-per-node 1 --ranks-per-gpu 4``, torch 2.11.0, NCCL 2.28.9, on
2026-11-26: docs/measurements.md. A dry run needs no GPU. Steps with zero2 and zero3 are not among them: FSDP had one
group around the layers then and has three now, which no card has held yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from clusterbench.dry.processes import DryRunFailed, DryTask, dry_answers
from clusterbench.expected.memory import TOTAL, held_memory, not_predicted
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import active_in, from_options, part_of
from clusterbench.shape import named_shape
from clusterbench.torch_release import makes_buffers_for_messages
from clusterbench.trainers.ours import Ours
from tests.share import some_of


@dataclass(frozen=True)
class Held:
    """Bytes of all live tensors at most, of the first rank of each stage."""

    layout: str
    total_bytes: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    shape: str = "llama-tiny"
    sizes: tuple[int, int, int] = (128, 8, 1)  # tokens of a sequence, sequences of a step, of a micro-batch
    dtype: str = "bfloat16"

    @property
    def job(self) -> TrainingJob:
        layout = ParallelLayout.parse(self.layout)
        return TrainingJob(named_shape(self.shape), layout, *self.sizes, self.dtype, device="cuda")

    def __str__(self) -> str:
        return "-".join([self.layout, *map(str, self.options.values()), self.dtype])


ALONE = (512, 4, 2)
"""Of ``suites/one_gpu_smoke.yaml``."""

ON_AN_H200 = [
    Held("dp2", (23_061_488,)),
    Held("dp2+zero1", (18_863_012,)),
    Held("tp2", (12_121_224,)),
    Held("tp2+sp", (11_971_464,)),
    Held("cp2", (20_982_464,), {"context": "ring"}),
    Held("cp2", (20_982_464,), {"context": "zigzag"}),
    Held("cp2", (21_048_000,), {"context": "all_gather"}),
    Held("cp2", (21_048_064,), {"context": "ulysses"}),
    Held("pp2", (19_045_676, 25_310_316), {"schedule": "gpipe"}),
    Held("pp2", (12_506_252, 12_892_052), {"schedule": "1f1b"}),
    Held("pp2", (13_731_996, 14_019_492), {"schedule": "interleaved_1f1b"}),
    Held("pp2", (22_879_260, 12_693_832), {"schedule": "zbv"}),
    Held("dp2+ep2", (34_342_080,), {"routing": "balanced"}, "moe-tiny"),
    Held("tp1", (52_158_952,), sizes=ALONE),
    Held("tp1", (152_189_096,), sizes=ALONE, dtype="float32"),  # no kernel takes heads that share keys in float32
    Held("tp1", (304_345_268,), sizes=ALONE, dtype="float64"),  # and none float64
    Held("tp1", (140_100_008,), {"attention_backend": "math"}, sizes=ALONE),
]
SCALARS_BYTES = 256
"""Losses of micro-batches, which a step for real keeps in another way."""


OF_THIS_TORCH = [each for each in ON_AN_H200 if not (each.job.layout.uses("pp") and makes_buffers_for_messages())]
"""Since 2.15 a pipeline makes a buffer for each message, and no card has held that."""

DRAWN = some_of(OF_THIS_TORCH, str)


@pytest.mark.gloo
@pytest.mark.timeout(900)  # all 21 ranks: 45 s of two free cores
def test_a_dry_run_holds_what_the_card_held() -> None:
    held = {
        DryTask(Ours(), each.job, from_options(each.options), "megatron", rank): (each, size_bytes)
        for each in DRAWN
        for rank, size_bytes in enumerate(each.total_bytes)
    }
    answers = list(dry_answers(held))
    assert len(answers) == sum(len(each.total_bytes) for each in DRAWN)
    for task, answer in answers:
        each, size_bytes = held[task]
        assert not isinstance(answer, DryRunFailed), each
        assert answer.memory["total"] == pytest.approx(size_bytes, abs=SCALARS_BYTES), (str(each), task.rank)


@pytest.mark.parametrize("each", OF_THIS_TORCH, ids=str)
def test_a_formula_is_within_three_tenths_of_a_percent_or_says_nothing(each: Held) -> None:
    active = active_in(each.job.layout, from_options(each.options))
    if TOTAL in not_predicted(each.job, active):
        unknown = ({"schedule": "zbv"}, {"attention_backend": "math"})
        assert each.options in unknown or each.dtype != "bfloat16"
        return
    for rank, size_bytes in enumerate(each.total_bytes):
        assert held_memory(active, part_of(each.job, active, rank))[TOTAL] == pytest.approx(size_bytes, rel=0.003)
