"""A step that is wrong in the job's own dtype only, where float64 cannot see it, is wrong; the honest one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbench.precision import NARROW, WIDE
from tests.ranks import run_ranks
from tests.training.jobs import parity_of

pytestmark = pytest.mark.gloo


def verdicts(layout: str, dtype: str, by_chance: bool = False, gradient_dtype: str = WIDE) -> dict[str, str]:
    """What the comparison says of a step with each defect, which acts on many ranks in this dtype alone.

    ``by_chance``: with weights in bfloat16, of which updates are rounded by chance.
    """
    import torch

    from clusterbench.model import half_moments
    from clusterbench.proof import parity
    from clusterbench.training.step import TrainingStep

    changes = {"dtype": dtype, "gradient_dtype": gradient_dtype}
    changes |= {"precision": "pure_bfloat16"} if by_chance else {}
    options = {"update_rounding": "stochastic"} if by_chance else {}
    honest = {name: getattr(TrainingStep, name) for name in ("reduce", "update", "clip", "forward_backward")}

    def acts(step: TrainingStep) -> bool:
        return step.grid is not None and step.job.dtype == dtype

    def planted(name: str, defect: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda step: defect(step) if acts(step) else honest[name](step)

    def scaled(weight_name: str, factor: float) -> Callable[[Any], None]:
        def reduce(step: TrainingStep) -> None:
            honest["reduce"](step)
            for weight in step.weights:
                if weight.name == weight_name:
                    weight.gradient.mul_(factor)

        return reduce

    def slower(step: TrainingStep) -> None:
        for optimizer in step.optimizers:
            for group in optimizer.param_groups:
                group["lr"] /= 3
        honest["update"](step)
        for optimizer in step.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 3

    def on_rank_0_alone(step: TrainingStep) -> None:
        assert step.grid is not None
        if step.grid.rank("dp") == step.grid.rank("tp") == step.grid.rank("pp") == 0:
            honest["update"](step)
        else:
            step.num_steps += 1

    def rounded_by(low_bits: int) -> Callable[[Any], None]:
        def update(step: TrainingStep) -> None:
            by_bits = half_moments.rounded
            half_moments.rounded = lambda values, bits: by_bits(values, torch.full_like(bits, low_bits))
            honest["update"](step)
            half_moments.rounded = by_bits

        return update

    def of_other_bits(step: TrainingStep) -> None:
        assert step.assembly.rounding is not None
        object.__setattr__(step.assembly.rounding, "seed", 1 + torch.distributed.get_rank())
        honest["update"](step)

    names = [f"layers.{at}.{leaf}.weight" for at in (0, 1) for leaf in ("attention.query", "feed_forward.down")]
    names += ["embedding.weight", "layers.1.attention_norm.weight"]
    defects: dict[str, tuple[str, Callable[[Any], Any]]] = {
        **{f"{name} by 3 %": ("reduce", scaled(name, 1.03)) for name in names},
        **{f"{name} dropped": ("reduce", scaled(name, 0.0)) for name in names},
        "no step": ("update", lambda step: None),
        "a third of the learning rate": ("update", slower),
        "one rank steps": ("update", on_rank_0_alone),
    }
    if by_chance:
        defects |= {
            "away from zero": ("update", rounded_by(0xFFFF)),
            "toward zero": ("update", rounded_by(0)),
            "to nearest": ("update", rounded_by(0x8000)),
            "by other bits": ("update", of_other_bits),
        }
    two_steps, in_float64 = parity.two_steps, list[Any]()

    def shown(step: Any) -> Any:
        """Steps of other dtypes are honest whatever the defect: they show once what they show."""
        if acts(step) or step.grid is None:
            return two_steps(step)
        assert step.job.dtype == "float64"
        if not in_float64:
            in_float64.append(two_steps(step))
        return in_float64[0]

    parity.two_steps = shown
    said = {"honest": parity_of(layout, options, changes)}
    for defect, (method, instead) in defects.items():
        setattr(TrainingStep, method, planted(method, instead))
        said[defect] = parity_of(layout, options, changes)
        setattr(TrainingStep, method, honest[method])
    return {defect: what if isinstance(what, str) else "" for defect, what in said.items()}


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["dp2", "tp2+sp", "pp2", "dp2+zero3"])
def test_what_is_wrong_in_one_dtype_alone_is_wrong(layout: str, dtype: str) -> None:
    said = run_ranks(2, verdicts, layout, dtype, timeout_s=280)[0]
    assert said.pop("honest") == ""
    assert {defect: what for defect, what in said.items() if f" in {dtype}; allowed is " not in what} == {}


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["dp2", "tp2+sp", "pp2", "dp2+zero3"])
def test_what_is_wrong_where_gradients_are_in_bfloat16_is_wrong(layout: str) -> None:
    said = run_ranks(2, verdicts, layout, "bfloat16", False, NARROW, timeout_s=280)[0]
    assert said.pop("honest") == ""
    assert {defect: what for defect, what in said.items() if " in bfloat16; allowed is " not in what} == {}


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["dp2", "tp2+sp"])
def test_what_is_wrong_in_weights_that_are_rounded_by_chance_is_wrong(layout: str) -> None:
    said = run_ranks(2, verdicts, layout, "bfloat16", True, timeout_s=280)[0]
    assert said.pop("honest") == ""
    assert {defect: what for defect, what in said.items() if " in bfloat16; allowed is " not in what} == {}
