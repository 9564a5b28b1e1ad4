"""What a compiled layer launches, reads and writes, as torch's own compiler counts it when it compiles one."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from clusterbench.pricing.profiles.ours import (
    COMPILED_FFN,
    COMPILED_HEADS,
    COMPILED_HIDDEN,
    KERNELS_OF_A_COMPILED_LAYER,
)
from clusterbench.shape import ModelShape, named_shape
from tests.ranks import run_ranks

TOKENS, HEAD_DIM = 256, 64


def counted(shape: ModelShape) -> tuple[float, int]:
    """Bytes for each token that fused kernels read and write, and all kernels, of forward and backward."""
    import torch
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode

    from clusterbench.model.decoder import Layer

    fused, others = list[int](), 0
    compile_to_module = GraphLowering.compile_to_module

    def counting(graph: GraphLowering) -> object:
        nonlocal others
        module = compile_to_module(graph)
        for node in graph.scheduler.nodes:
            size_bytes = node.get_read_write_buffers_sizes()
            if isinstance(node, ExternKernelSchedulerNode):
                others += bool(size_bytes)  # what only takes apart several results has none
            elif size_bytes:
                fused.append(size_bytes)
        return module

    GraphLowering.compile_to_module = counting  # type: ignore[method-assign,assignment]
    config.force_disable_caches = True  # a compiled layer of before would not be compiled again
    layer = Layer(shape).bfloat16()
    layer.compile()
    x_BSH = torch.randn(1, TOKENS, shape.hidden_size).bfloat16().requires_grad_()
    cos_SD, sin_SD = torch.randn(2, TOKENS, HEAD_DIM).bfloat16()
    layer(x_BSH, cos_SD, sin_SD).sum().backward()
    return sum(fused) / TOKENS, len(fused) + others


@pytest.mark.gloo
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU")
@pytest.mark.parametrize(("hidden", "heads", "kv_heads", "ffn"), [(512, 8, 2, 1792), (1024, 16, 4, 3584)])
def test_bytes_and_kernels_are_those_that_the_compiler_counts(hidden: int, heads: int, kv_heads: int, ffn: int) -> None:
    sizes = {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": kv_heads, "ffn_hidden_size": ffn}
    ((size_bytes, kernels),) = run_ranks(1, counted, replace(named_shape("llama-tiny"), head_dim=HEAD_DIM, **sizes))
    formula = COMPILED_HIDDEN * hidden + COMPILED_HEADS * HEAD_DIM * (heads + kv_heads) + COMPILED_FFN * ffn
    assert size_bytes == pytest.approx(formula, rel=0.03)
    assert kernels == KERNELS_OF_A_COMPILED_LAYER
