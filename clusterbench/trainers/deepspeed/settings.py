"""What DeepSpeed is told of a step: its configuration, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, of_kind
from clusterbench.parallel.data import DataParallel
from clusterbench.trainers.deepspeed.expected import BUCKET, MASTER_BYTES

_DTYPES = {2: "bf16", 4: "fp32"}


PREFETCHED, PERSISTENT = 50_000_000, 100_000
"""Elements by default: of what stage 3 gathers in advance, and of the largest weight that stays gathered."""

NEVER = 2**31 - 1
"""Steps until it prints something."""


def settings_of(job: TrainingJob, every: Sequence[Parallelism]) -> dict[str, Any]:
    """The configuration of ``deepspeed.initialize``: what the job asks for, and DeepSpeed's defaults for the rest.

    A bucket is no larger than the model, as DeepSpeed allocates all of it. A twin has smaller ones, so that there are
    several, and of its weights only norms stay gathered in stage 3, as of large models.

    Source: https://www.deepspeed.ai/docs/config-json/
    """
    gradients = _DTYPES[job.gradient_bytes]
    bucket, prefetched, persistent = min(BUCKET, job.shape.num_parameters), PREFETCHED, PERSISTENT
    data = of_kind(DataParallel, every)
    if data is not None and data.bucket_mb is not None:
        width = job.shape.hidden_size
        bucket, prefetched, persistent = int(data.bucket_mb * 2**20 / MASTER_BYTES), width**2, width
    return {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "gradient_clipping": job.max_grad_norm or 0.0,
        "bf16": {"enabled": job.compute_bytes == 2},
        "data_types": {"grad_accum_dtype": gradients},
        "communication_data_type": gradients,
        "zero_optimization": {
            "stage": job.layout.zero,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": prefetched,
            "stage3_param_persistence_threshold": persistent,
        },
        "zero_allow_untested_optimizer": True,
        "steps_per_print": NEVER,
    }
