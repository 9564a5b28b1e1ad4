"""Linear layers in float8: three products, each as near to the exact one as the format allows."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clusterbench.model import float8
from clusterbench.model.float8 import float8_linear

SCALINGS = ("tensorwise", "rowwise")
TOKENS, INPUTS, OUTPUTS = 64, 48, 32


def results(scaling: str, x_scale: float = 1.0, outlier: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """Output and both gradients, each beside the exact one; the first token is ``outlier`` times as large as others."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, TOKENS // 2, INPUTS, generator=generator) * x_scale
    x[0, 0] *= outlier
    weight, incoming = (
        torch.randn(OUTPUTS, INPUTS, generator=generator),
        torch.randn(2, 32, OUTPUTS, generator=generator),
    )
    found: list[list[Tensor]] = []
    for dtype in (torch.bfloat16, torch.float64):
        # what both begin with is rounded to bfloat16
        own_x = x.bfloat16().to(dtype).requires_grad_()
        own_weight = weight.bfloat16().to(dtype).requires_grad_()
        y = float8_linear(own_x, own_weight, scaling) if dtype == torch.bfloat16 else F.linear(own_x, own_weight)
        y.backward(incoming.bfloat16().to(dtype))
        assert own_x.grad is not None
        assert own_weight.grad is not None
        found.append([each.detach().double() for each in (y, own_x.grad, own_weight.grad)])
    return list(zip(*found, strict=True))


def off(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("x_scale", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_products_are_off_by_the_rounding_of_their_operands_at_any_scale(scaling: str, x_scale: float) -> None:
    for got, exact in results(scaling, x_scale):
        assert 0.005 < off(got, exact) < 0.08


def test_an_outlier_costs_others_nothing_where_rows_have_their_own_scale() -> None:
    def of_others(scaling: str) -> float:
        (y, exact), _, _ = results(scaling, outlier=1e5)
        return off(y[0, 1:], exact[0, 1:])

    assert of_others("rowwise") < 0.08 < of_others("tensorwise")


@pytest.mark.parametrize("scaling", SCALINGS)
def test_zeros_give_zeros(scaling: str) -> None:
    x, weight = torch.zeros(16, 16, dtype=torch.bfloat16), torch.zeros(16, 16, dtype=torch.bfloat16)
    assert torch.equal(float8_linear(x, weight, scaling), torch.zeros(16, 16, dtype=torch.bfloat16))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_scale_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch, scaling: str) -> None:
    rounded = float8._rounded

    def unscaled(*arguments: object) -> tuple[Tensor, Tensor]:
        tensor, scale = rounded(*arguments)  # type: ignore[arg-type]
        return tensor, torch.ones_like(scale)

    monkeypatch.setattr(float8, "_rounded", unscaled)
    assert all(off(got, exact) > 1 for got, exact in results(scaling))


BOTH_KERNELS = """
import torch
from clusterbench.engine.compat import scaled_product, widen_scaled_products

torch.manual_seed(3)

def products():
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        a, b = a_wide.to(kind), b_wide.to(torch.float8_e4m3fn).t()
        for scale_a, scale_b in ((rows, columns), (rows[:1], columns[:, :1])):
            for dtype in (torch.bfloat16, torch.float32):
                yield scaled_product(a, b, scale_a, scale_b, dtype)
                yield scaled_product(a, b, scale_a, scale_b, dtype, out=torch.empty(24, 40, dtype=dtype))

a_wide, b_wide = torch.randn(24, 48) * 50, torch.randn(40, 48) * 50
rows, columns = torch.rand(24, 1) + 0.1, torch.rand(1, 40) + 0.1
theirs = list(products())
widen_scaled_products()
for own, other in zip(products(), theirs, strict=True):
    assert own.dtype == other.dtype
    off = float((own.double() - other.double()).norm() / other.double().norm())
    assert off <= (4e-3 if own.dtype == torch.bfloat16 else 1e-6), off
print(len(theirs))
"""


def test_on_a_processor_a_product_is_that_of_torchs_own_kernel() -> None:
    """In a process in which nothing has replaced that yet."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", BOTH_KERNELS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
