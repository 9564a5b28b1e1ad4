"""What CUDA's operators allocate and keep, on tensors without data that say they are a CPU's.

Of the operators of a step one differs: on a CPU a norm is taken apart into plain operators, on CUDA it is one of its
own, which keeps its input and one float32 a row. Both attentions keep the output and a log-sum-exp in float32; CUDA's
keeps 24 bytes more. tests/dry/test_fake_cuda.py holds this against true fake CUDA tensors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from clusterbench.engine.compat import undivided_on_cpu


def cuda_operators() -> AbstractContextManager[None]:
    """Meanwhile a norm of tensors without data is one operator on a CPU too."""
    return undivided_on_cpu("_fused_rms_norm")
