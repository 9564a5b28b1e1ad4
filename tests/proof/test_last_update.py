"""What the optimizer does after more updates than the twin has, on weights of the job itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from clusterbench.engine.memory import every_optimizer
from clusterbench.job.passes import kind_of_projection
from clusterbench.proof.last_update import _off_formula, _roundings, _State, _Update, by_formula
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig


def _nothing(step: Any) -> None:
    pass


def _set(name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Plants another setting of the optimizer."""

    def plant(step: Any) -> None:
        for optimizer in every_optimizer(step.optimizers):
            for group in optimizer.param_groups:
                group[name] = change(group[name])

    return plant


def _no_clipping(step: Any) -> None:
    step.clip = step.gradient_norm


def _half_the_gradients_clipped_again(step: Any) -> None:
    clip = step.clip

    def planted() -> Any:
        norm = clip()
        for weight in step.weights[::2]:
            weight.gradient.mul_(0.5)
        return norm

    step.clip = planted


def _no_step(step: Any) -> None:
    def planted() -> None:
        step.num_steps += 1

    step.update = planted


def _no_step_on_rank_1(step: Any) -> None:
    if dist.get_rank() == 1:
        _no_step(step)


def _one_weight_is_put_back_on_rank_1(step: Any) -> None:
    update, weight = step.update, step.weights[-1]

    def planted() -> None:
        before = weight.value.clone()
        update()
        if dist.get_rank() == 1:
            weight.value.copy_(before)

    step.update = planted


def _one_gradient_is_added_to_the_next(step: Any) -> None:
    forward_backward, weight = step.forward_backward, step.weights[-1]

    def planted() -> Any:
        before = weight.gradient.clone()
        loss = forward_backward()
        weight.gradient.add_(before)
        return loss

    step.forward_backward = planted


DEFECTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "honest": (_nothing, ""),
    "no decay": (_set("weight_decay", lambda decay: 0.0), "roundings from AdamW's formula"),
    "rate 0.1 % too high": (_set("lr", lambda rate: 1.001 * rate), "roundings from AdamW's formula"),
    "another beta": (_set("betas", lambda betas: (betas[0], 0.951)), "roundings from AdamW's formula"),
    "no clipping": (_no_clipping, "the norm of the gradients that the optimizer took"),
    "clipped again": (_half_the_gradients_clipped_again, "the norm of the gradients that the optimizer took"),
    "no step": (_no_step, "roundings from AdamW's formula"),
    "no step on rank 1": (_no_step_on_rank_1, " on rank 1 "),
    "one weight put back": (_one_weight_is_put_back_on_rank_1, " on rank 1 "),
    "one gradient kept": (_one_gradient_is_added_to_the_next, "gradients of the step before"),
}
_AFTER = 3  # steps: more than a twin has


def _verdicts(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What is said of each defect, planted after some honest steps."""
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig = make_rig(job.layout)
    verdicts: dict[str, Any] = {}
    for name, (plant, _) in DEFECTS.items():
        if name == "no step on rank 1" and job.layout.zero == 1:
            continue  # the others would wait for what it should send them
        step = TrainingStep(job, from_options(options), rig.grid, rig.device)
        timed = TimedStep(step)
        for _ in range(_AFTER):
            timed()
        plant(step)
        timed()
        try:
            verdicts[name] = timed.confirm(rig, is_first=True)
        except WrongResult as error:
            verdicts[name] = str(error)
    return verdicts


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "options", "changes"),
    [
        ("dp2", {}, {"dtype": "float32"}),
        ("dp2", {}, {"dtype": "bfloat16"}),
        ("dp2", {}, {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}),
        ("pp2", {}, {"dtype": "bfloat16", "shape": "llama-tiny-tied"}),
        ("dp2+zero1", {}, {"dtype": "float32"}),
        ("dp2+zero3", {"offload": True}, {"dtype": "bfloat16"}),
        ("dp2+ep2", {}, {"dtype": "float32", "shape": "moe-tiny"}),
    ],
    ids=str,
)
def test_every_rank_names_what_an_update_did_wrong(layout, options, changes):
    first, second = run_ranks(2, _verdicts, layout, options, changes)
    # rank 0 alone records them
    first["honest"] = {name: value for name, value in first["honest"].items() if not kind_of_projection(name)}
    assert first == second
    honest = first.pop("honest")
    assert honest["last_update"] < 1
    assert honest["copies"] == 0
    assert honest["clipping"] < (1e-3 if "gradient_dtype" in changes else 1e-5)
    for name, verdict in first.items():
        assert isinstance(verdict, str), name
        assert verdict.startswith(f"{layout}, after 4 updates: ")
        # gradients that another parameter got are handed over in an update, too
        untaken = name == "no step" and "gradient_dtype" in changes
        assert DEFECTS["no clipping" if untaken else name][1] in verdict, name


def _with_a_few_elements_off() -> tuple[int, str]:
    """64 elements of the largest weight are an update off on rank 1, as where the end of a buffer is not sent."""
    from clusterbench.errors import WrongResult
    from clusterbench.job import LEARNING_RATE
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job("dp2", dtype="bfloat16")
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed = TimedStep(step)
    timed()
    largest = max((weight.value for weight in step.weights), key=torch.numel)
    if dist.get_rank() == 1:
        largest.view(-1)[-64:].sub_(LEARNING_RATE)
    try:
        timed.confirm(rig, is_first=True)
    except WrongResult as error:
        return largest.numel(), str(error)
    return largest.numel(), ""


@pytest.mark.gloo
def test_copies_of_which_a_few_elements_differ_are_no_copies():
    (numel, verdict), other = run_ranks(2, _with_a_few_elements_off)
    assert other == (numel, verdict)
    assert (64 / numel) ** 0.5 < 0.1  # within what the sum of all of it may be off
    assert " on rank 1 and on rank 0" in verdict


def _clipped_by_another_factor(off: float) -> dict[str, float] | str:
    from clusterbench.engine.compat import scale_all
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training import step as training

    training.scale_all = lambda tensors, factor: scale_all(tensors, factor * (1 + off))  # type: ignore[attr-defined]
    job = make_job("dp2", dtype="bfloat16", gradient_dtype="bfloat16", max_grad_norm=0.1)
    rig = make_rig(job.layout)
    timed = TimedStep(training.TrainingStep(job, from_options({}), rig.grid, rig.device))
    timed()
    try:
        return timed.confirm(rig, is_first=True)
    except WrongResult as error:
        return str(error)


@pytest.mark.gloo
@pytest.mark.parametrize("off", [2**-8, -(2**-8)])
def test_a_factor_that_a_gpu_rounds_as_it_does_gradients_is_right(off: float) -> None:
    """Half the distance of two bfloat16 numbers just above a power of two: the most that rounding makes of one."""
    for verdict in run_ranks(2, _clipped_by_another_factor, off):
        assert isinstance(verdict, dict), verdict
        assert verdict["clipping"] > 0.003


@pytest.mark.gloo
def test_a_factor_that_is_off_by_one_percent_is_named() -> None:
    for verdict in run_ranks(2, _clipped_by_another_factor, 0.01):
        assert isinstance(verdict, str)
        assert "the norm of the gradients that the optimizer took" in verdict


# Weights that are rounded by chance

Rounding = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _to_nearest(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return values.bfloat16()


def _away_from_zero(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return honest(values, torch.full_like(bits, 0xFFFF))


def _toward_zero(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return honest(values, torch.zeros_like(bits))


def _up(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return torch.where(values > 0, _away_from_zero(honest, values, bits), _toward_zero(honest, values, bits))


def _up_more_often(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """One in ten goes up in any case."""
    return torch.where((bits >> 16) % 10 == 0, _up(honest, values, bits), honest(values, bits))


def _a_step_back(step: Any) -> None:
    _set("lr", lambda rate: -rate)(step)


def _a_tenth_of_the_rate(step: Any) -> None:
    _set("lr", lambda rate: rate / 10)(step)


def _by_bits_of(bits_of: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Plants other random bits."""

    def plant(step: Any) -> None:
        for optimizer in every_optimizer(step.optimizers):
            if hasattr(optimizer, "rounding"):  # that of ZeRO 1 has others do the arithmetic
                optimizer.rounding = bits_of(optimizer.rounding)

    return plant


class _OfOneUpdate:
    """Random bits that are those of the first update in each."""

    def __init__(self, honest: Any) -> None:
        self.honest = honest

    def pieces(self, weight: Any, update: int, tensors: Any) -> Any:
        return self.honest.pieces(weight, 1, tensors)


def _of_one_weight(honest: Any) -> Any:
    """Random bits that every weight has."""
    parts = {weight: part._replace(name="one") for weight, part in honest.find_parts().items()}
    return replace(honest, find_parts=lambda: parts)


def _by_bits_of_a_row(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return honest(values, bits[:1].expand_as(bits))


def _by_bits_of_a_column(honest: Rounding, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return honest(values, bits[:, :1].expand_as(bits))


BIASED: dict[str, Rounding | Callable[[Any], None]] = {
    "to nearest": _to_nearest,
    "away from zero": _away_from_zero,
    "toward zero": _toward_zero,
    "up": _up,
    "up more often": _up_more_often,
    "no step": _no_step,
    "a step back": _a_step_back,
    "a tenth of the rate": _a_tenth_of_the_rate,
    "the same in each update": _by_bits_of(_OfOneUpdate),
    "the same in each weight": _by_bits_of(_of_one_weight),
    "the same in each row": _by_bits_of_a_row,
    "the same in each column": _by_bits_of_a_column,
}


def _verdicts_by_chance(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What is said of an honest step, and of each that does not round by chance what the formula says."""
    import inspect
    from functools import partial

    from clusterbench.errors import WrongResult
    from clusterbench.model import half_moments
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, dtype="bfloat16", precision="pure_bfloat16", **changes)
    rig = make_rig(job.layout)
    every = from_options({"update_rounding": "stochastic", **options})
    honest, verdicts = half_moments.rounded, dict[str, Any]()
    for name, plant in {"honest": _nothing, **BIASED}.items():
        step = TrainingStep(job, every, rig.grid, rig.device)
        timed = TimedStep(step, active=active_in(job.layout, every))
        for _ in range(_AFTER):
            timed()
        if len(inspect.signature(plant).parameters) == 1:
            plant(step)  # type: ignore[call-arg]
        else:
            half_moments.rounded = partial(plant, honest)  # type: ignore[assignment,arg-type]
        timed()
        try:
            verdicts[name] = timed.confirm(rig, is_first=True)
        except WrongResult as error:
            verdicts[name] = str(error)
        half_moments.rounded = honest
    return verdicts


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "options", "changes"),
    [
        ("dp2", {}, {}),
        ("tp2+sp", {}, {"shape": "llama-tiny-tied"}),
        ("dp2+zero1", {}, {}),
        ("dp2+zero3", {"offload": True}, {"shape": "moe-tiny"}),
    ],
    ids=str,
)
def test_a_rounding_by_chance_leans_to_no_side(layout, options, changes):
    first, second = run_ranks(2, _verdicts_by_chance, layout, options, changes)
    # rank 0 alone records them
    first["honest"] = {name: value for name, value in first["honest"].items() if not kind_of_projection(name)}
    assert first == second
    honest = first.pop("honest")
    assert honest["update_bias"] < 4
    assert honest["last_update"] < 1
    assert honest["copies"] == 0
    assert "roundings from AdamW's formula" in first.pop("no step")  # of its moments
    assert {name: verdict for name, verdict in first.items() if "standard deviations" not in verdict} == {}


def test_a_step_that_should_round_by_chance_and_does_not_is_found():
    first, _ = run_ranks(2, _nearest_in_its_place)
    assert "updates of all weights are not rounded up and down by chance" in first


def _nearest_in_its_place() -> str:
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job("dp2", dtype="bfloat16", precision="pure_bfloat16")
    rig, asked = make_rig(job.layout), from_options({"update_rounding": "stochastic"})
    timed = TimedStep(TrainingStep(job, from_options({}), rig.grid, rig.device), active=active_in(job.layout, asked))
    timed()
    with pytest.raises(WrongResult) as error:
        timed.confirm(rig, is_first=True)
    return str(error.value)


# The formula, beside torch's own optimizer, which is neither fused nor of ours


def test_the_formula_is_that_of_torch_to_the_last_digits():
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(1000, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    state = _State(weight.detach().clone(), torch.zeros(1000), torch.zeros(1000), 2e-16, 2e-16)
    for update in range(1, 6):
        weight.grad = torch.randn(1000, generator=generator, dtype=torch.float64)
        state = by_formula(state, weight.grad, update)
        optimizer.step()
        torch.testing.assert_close(state.weight, weight.detach(), rtol=1e-14, atol=1e-16)


def test_a_weight_of_which_the_optimizer_was_given_no_gradient_is_infinitely_far():
    state = _State(torch.ones(3), torch.zeros(3), torch.zeros(3), 1e-7, 1e-7)
    assert list(_off_formula([_Update("norm.weight", state, None, state)])) == [("norm.weight", math.inf)]


def test_a_weight_that_is_no_number_is_infinitely_far():
    state = _State(torch.ones(3), torch.zeros(3), torch.zeros(3), 1e-7, 1e-7)
    broken = _State(torch.tensor([1.0, float("nan"), 1.0]), torch.zeros(3), torch.zeros(3), 1e-7, 1e-7)
    assert _roundings(state, state, broken) == float("inf")
    assert _roundings(state, state, state) == 0
