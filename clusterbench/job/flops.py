"""The FLOPs of one step of a job: of all ranks together by a convention, and the names of what one rank executes."""

from __future__ import annotations

from functools import cache

from clusterbench.formulas.transformer import hardware_flops
from clusterbench.job import TrainingJob
from clusterbench.shape import ModelShape

PRODUCTS = "products"
FLOAT8_PRODUCTS = "float8 products"
FLOAT8_GRADIENTS = "float8 products with e5m2"
BATCHED_PRODUCTS = "batched products"
GROUPED_PRODUCTS = "grouped products"
ATTENTION = "attention"
CAUSAL_ATTENTION = "causal attention"
UNKNOWN = "unknown"
"""Kinds of operators that multiply matrices: two matrices, two that are rounded to float8 (both to e4m3; one, a
gradient, to e5m2), as many pairs of one size, those of many experts at once, attention of every query to every key of a
block, attention under the causal mask, and what has no formula."""

FORWARD, BACKWARD = "forward", "backward"
"""When an operator runs; what is computed again runs in backward."""

_of_shape = cache(hardware_flops)  # a report asks again for every case


def step_flops(job: TrainingJob, recompute: str, convention: str) -> float:
    """FLOPs of one step of all ranks: the model's for ``recompute`` none, else what is executed.

    ``convention`` is one of :data:`clusterbench.formulas.transformer.CONVENTIONS`.
    """
    return _of_shape(job.shape, job.seq_len, job.global_batch_size, recompute, convention)


def executed_over_needed(shape: ModelShape, seq_len: int, recompute: str, convention: str) -> float:
    """FLOPs that are executed over those that the mathematics needs: more than 1 where layers are computed again."""
    return _of_shape(shape, seq_len, 1, recompute, convention) / _of_shape(shape, seq_len, 1, "none", convention)
