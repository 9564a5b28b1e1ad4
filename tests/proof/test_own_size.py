"""What one rank computes of the job itself is what the ranks of a layout show together, at its own size."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.job.passes import kind_of_projection
from clusterbench.measured.agreement import STATISTICS, distances, limit_of, updates_compared
from clusterbench.shape import point_of_shape
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

MOE = {"shape": "moe-tiny"}


def _both(
    layout: str, options: dict[str, Any], changes: dict[str, Any], most_s: float = 600.0, asked_calls: int = 3
) -> Any:
    """What timed steps show, and what one rank does behind them."""
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof import own_size
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job, every = make_job(layout, **changes), from_options(options)
    rig = make_rig(job.layout)
    rig.asked_calls = asked_calls
    own_size.MOST_SECONDS = most_s
    step = TrainingStep(job, every, rig.grid, rig.device)
    timed = TimedStep(step, rig.asked_calls, active_in(job.layout, every))
    for _ in range(rig.asked_calls):
        timed()
    return timed.confirm(rig, is_first=True), own_size.on_one_rank(step, every, rig)


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "options", "changes"),
    [
        ("dp2", {}, {}),
        ("pp2", {}, {"global_batch_size": 8}),
        ("dp2", {"loss_chunks": 2}, {}),
        ("tp2+sp", {}, {}),
        ("dp2+ep2", {"aux_loss": 0.01}, MOE),
        ("tp1", {"recompute": "full"}, {}),
    ],
    ids=str,
)
def test_one_rank_shows_what_a_layout_shows(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    (seen, alone), *others = run_ranks(make_job(layout).layout.world_size, _both, layout, options, changes)
    assert alone.pop("seconds") > 0
    gradients = {name: alone.pop(name) for name in [*alone] if kind_of_projection(name)}
    assert len(gradients) >= 9 * 12  # of each kind of weight
    assert gradients == pytest.approx({name: seen[name] for name in gradients}, rel=1e-4, abs=1e-5)
    assert alone == pytest.approx({name: seen[name] for name in alone}, rel=1e-9)
    between = {"update_2_loss", "update_2_norm"}
    assert alone.keys() == {"first_loss", "first_norm", "loss", "norm", "num_updates"} | between
    assert all(of_rank == {} for _, of_rank in others)


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "asked_calls"), [("dp2", 1), ("dp2", 3), ("pp2", 3), ("dp2+zero3", 3)])
def test_without_clipping_there_is_the_norm_of_the_gradients_of_the_last_step(layout: str, asked_calls: int) -> None:
    changes = {"max_grad_norm": None, "global_batch_size": 8}
    seen, alone = run_ranks(2, _both, layout, {}, changes, 600.0, asked_calls)[0]
    names = {"norm", "first_norm"} if asked_calls == 1 else {"norm"}
    assert {name for name in seen if "norm" in name and not kind_of_projection(name)} == names
    assert {name: alone[name] for name in names} == pytest.approx({name: seen[name] for name in names}, rel=1e-9)


@pytest.mark.gloo
def test_what_a_call_reports_is_held_against_what_its_parts_compute() -> None:
    seen, alone = run_ranks(2, _both_late)[0]
    assert alone["first_loss"] == pytest.approx(seen["first_loss"], rel=1e-9)
    for name in ("update_2_loss", "update_2_norm", "loss", "norm"):
        assert abs(seen[name] / alone[name] - 1) > 1e-3, name


def _both_late() -> Any:
    """Of steps that show the loss and norm of the one before, on one rank as on many."""
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.__call__

    def late(self: Any) -> Any:
        before = getattr(self, "computed", None)
        honest(self)
        self.computed = self.last_loss, self.last_norm
        self.last_loss, self.last_norm = before or self.computed
        return self.last_loss

    TrainingStep.__call__ = late  # type: ignore[method-assign]
    return _both("dp2", {}, {})


@pytest.mark.gloo
def test_of_gradients_that_only_approximate_the_first_step_is_shown() -> None:
    (seen, alone), _ = run_ranks(2, _both, "dp2", {"compress": "powersgd"}, {})
    assert {name for name in alone if not kind_of_projection(name)} == {"first_loss", "first_norm", "seconds"}
    assert alone["first_loss"] == pytest.approx(seen["first_loss"], rel=1e-9)
    assert alone["first_norm"] == pytest.approx(seen["first_norm"], rel=1e-9)


@pytest.mark.in_turn
@pytest.mark.gloo
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rounding_of_many_updates_makes_no_deep_model_wrong(dtype: str) -> None:
    """Of 16 layers a healthy tp2+sp was beyond what is allowed in bfloat16 after 13 updates."""
    changes = {"shape": "llama-tiny-16", "seq_len": 64, "global_batch_size": 2, "dtype": dtype}
    (seen, alone), _ = run_ranks(2, _both, "tp2+sp", {}, changes, 600.0, 16)
    point = {**changes, **point_of_shape(make_job(**changes).shape), "layout": "tp2+sp"}
    compared = set()
    for statistic in STATISTICS:
        numbers, reference = (statistic.numbers(of, updates_compared(point)) for of in (seen, alone))
        both = {label: number for label, number in numbers.items() if label in reference}
        for label, off in distances(both, reference).items():
            assert off <= 0.7 * limit_of(point, statistic), (statistic.name, label)
            compared.add((statistic.name, label))
    last = {"bfloat16": 3, "float32": 15}[dtype]
    assert {int(label) for name, label in compared if name == "norms_between"} == {*range(2, last + 1)}
    assert (("norm", "") in compared) == (dtype == "float32")


@pytest.mark.gloo
def test_what_takes_too_long_is_left_out() -> None:
    (_, alone), _ = run_ranks(2, _both, "dp2", {}, {}, 0.0)
    assert alone == {}


@pytest.mark.gloo
def test_on_a_busy_host_the_first_step_alone_is_shown() -> None:
    (alone,) = run_ranks(1, _late)
    assert {name for name in alone if not kind_of_projection(name)} == {"first_loss", "first_norm"}
    assert any(map(kind_of_projection, alone))


def _late() -> dict[str, float]:
    import torch

    from clusterbench.proof.own_size import _of_steps
    from clusterbench.training.step import TrainingStep

    return dict(_of_steps(TrainingStep(make_job("tp1"), (), None, torch.device("cpu")), 3, 3, 0.0))
