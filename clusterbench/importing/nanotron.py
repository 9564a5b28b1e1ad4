"""The CSV that nanotron's benchmarks append to, a row a run.

Source: huggingface/nanotron, ``src/nanotron/helpers.py``, ``create_table_log``. Only runs that ended have a
row. Its "GB" of memory are divided by 1024**3. Its ``ep`` multiplies ranks and here it does not, so that 1 alone is
taken. Sequence parallelism is its ``tp_mode`` REDUCE_SCATTER.
"""

from __future__ import annotations

from collections.abc import Iterable

SIGNS = ("batch_accum", "mTFLOPs", "tok/s/gpu", "zero_stage")
"""Columns by which such a file is known."""

MAPPING = b"""\
import: nanotron
question: What does each configuration of nanotron reach?
source: nanotron's benchmark CSV
attempts: true
case:
  shape: {columns: {L: num_layers, h: hidden_size, v: vocab_size}}
  pp: pp
  dp: dp
  cp: cp
  tp: tp
  sp:
    column: tp_mode
    words:
      TensorParallelLinearMode.REDUCE_SCATTER: true
      TensorParallelLinearMode.ALL_REDUCE: false
      REDUCE_SCATTER: true
      ALL_REDUCE: false
  ep: {column: ep, words: {1: 1}}
  zero: zero_stage
  num_nodes: nodes
  seq_len: seq_len
  micro_batch_size: mbs
  gradient_accumulation_steps: batch_accum
  global_batch_size: gbs
  dtype:
    column: dtype
    words: {torch.bfloat16: bfloat16, torch.float16: float16, torch.float32: float32}
figures:
  tokens_per_s_per_rank: tok/s/gpu
  model_flops_per_s_per_rank: {column: mTFLOPs, unit: TFLOP/s}
  hardware_flops_per_s_per_rank: {column: hTFLOPs, unit: TFLOP/s}
  peak_memory[category=allocated]: {column: Mem Alloc (GB), unit: GiB}
  peak_memory[category=reserved]: {column: Mem Res (GB), unit: GiB}
"""


def is_nanotron(header: Iterable[str]) -> bool:
    """Whether a file with these columns is one of nanotron's."""
    return set(SIGNS) <= set(header)
