"""Nodes that run the same step each: the figures of each, and the one that computes something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.benchmarks.node_step import NodeStep, _on
from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.errors import WrongResult
from clusterbench.measured.agreement import STATISTICS
from clusterbench.run_folder.attempts import History
from clusterbench.types import Agreement, Place
from tests.measured.test_agreement import GRADIENTS, HONEST, seen


def on_nodes(num_nodes: int, other: dict[str, float] | None = None, at: int = 1, dtype: str = "float32") -> History:
    """A case of two ranks a node, of which one shows something else."""
    history = seen("dp2", 2, dtype=dtype)
    shown = [{**HONEST, **(other or {})} if rank // 2 == at else HONEST for rank in range(2 * num_nodes)]
    observation = replace(
        history.observations[0],
        hosts=tuple(f"n{number}" for number in range(num_nodes)),
        seconds=[[1.0 + rank // 2, 1.0] for rank in range(2 * num_nodes)],
        evidence=shown,
    )
    case = replace(history.case, benchmark="node_step", num_nodes=num_nodes, world_size=2 * num_nodes)
    return History(case, history.outcomes, (observation,))


def agreement(history: History) -> Agreement:
    return NodeStep.agreements([history])[history.case.hash]


@pytest.mark.parametrize("name", [statistic.name for statistic in STATISTICS if statistic.is_one_number])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_of_three_nodes_the_one_that_shows_something_else_is_wrong_and_named(name: str, dtype: str) -> None:
    limit = next(statistic for statistic in STATISTICS if statistic.name == name).limits[dtype][0]
    for off, is_wrong in ((0.0, False), (0.5, False), (2.0, True)):
        found = agreement(on_nodes(3, {name: HONEST[name] * (1 + off * limit)}, dtype=dtype))
        assert ("on n1, and" in found.wrong) == is_wrong
        assert bool(found.wrong) == is_wrong


def test_of_three_nodes_the_one_whose_gradients_are_others_is_wrong_and_named() -> None:
    turned = {name: -value if name.endswith("_3") else value for name, value in GRADIENTS.items()}
    history = on_nodes(3, GRADIENTS)
    ranks = [{**HONEST, **(turned if rank // 2 == 1 else GRADIENTS)} for rank in range(6)]
    found = agreement(replace(history, observations=(replace(history.observations[0], evidence=ranks),)))
    assert "the gradient of" in found.wrong
    assert "in the first step is of norm 2 on n1, and of norm 2 on the middle one of 3 nodes" in found.wrong


def test_of_two_nodes_neither_is_said_to_be_right() -> None:
    found = agreement(on_nodes(2, {"loss": 6.0}))
    assert found.wrong == ""
    assert [metric.detail["source"] for metric in found.metrics if metric.value is None] == ["loss"]
    assert all(metric.basis.startswith("not proven") for metric in found.metrics if metric.value is None)
    assert agreement(on_nodes(2)).metrics[0].value == 0.0


def with_losses(*losses: float) -> History:
    """A case whose nodes show these."""
    history = on_nodes(len(losses))
    evidence = [{**HONEST, "loss": loss} for loss in losses for _ in range(2)]
    return replace(history, observations=(replace(history.observations[0], evidence=evidence),))


def test_all_nodes_that_most_others_refute_are_named_and_where_half_differ_none() -> None:
    two_of_five = agreement(with_losses(5.5, 4.0, 5.5, 6.0, 5.5))
    assert "is 4 on n1, 6 on n3, and 5.5 on the middle one of 5 nodes" in two_of_five.wrong
    two_of_four = agreement(with_losses(5.5, 4.0, 5.5, 6.0))
    assert two_of_four.wrong == ""
    (loss,) = (metric for metric in two_of_four.metrics if metric.detail["source"] == "loss")
    assert loss.value is None


def test_a_dispute_in_one_repeat_is_not_settled_by_the_next() -> None:
    disputed, near = on_nodes(2, {"loss": 6.0}), on_nodes(2, {"loss": HONEST["loss"] * (1 + 1e-6)})
    for histories in ((disputed, near), (near, disputed)):
        both = replace(disputed, observations=tuple(history.observations[0] for history in histories))
        (loss,) = (metric for metric in agreement(both).metrics if metric.detail["source"] == "loss")
        assert loss.value is None


def test_figures_are_told_of_each_node() -> None:
    place = Place(Cluster(3, 2, "cpu"), 3)
    (point,) = TrainStep(layouts=("dp*",), seq_len=64, each_node=True).points(place)
    history = on_nodes(3)
    case = replace(history.case, point=point)
    metrics = list(NodeStep.derive(case, history.observations[0], place))
    times = {metric.detail["part"]: metric.high for metric in metrics if metric.name == "step_time"}
    assert times == {"n2": pytest.approx(3.0), "n1": pytest.approx(2.0), "n0": pytest.approx(1.0)}
    assert [*times] == ["n2", "n1", "n0"]  # a table shows the first
    speeds = [metric for metric in metrics if metric.name == "tokens_per_s_per_rank"]
    assert speeds[-1].value == pytest.approx(64 * 8 / 2)  # of a node's two ranks
    assert len({(metric.name, *metric.detail.items()) for metric in metrics}) == len(metrics)


def test_what_is_wrong_on_a_node_says_where() -> None:
    def check() -> dict[str, float]:
        raise WrongResult("dp2 does not compute what one rank computes", {"parity_loss": 1.0})

    with pytest.raises(WrongResult, match=r"^on n1: dp2 does not compute") as caught:
        _on("n1", check)
    assert caught.value.evidence == {"parity_loss": 1.0}


def test_one_node_by_itself_is_a_training_step() -> None:
    (point,) = TrainStep(layouts=("dp*",), each_node=True).points(Place(Cluster(2, 2, "cpu"), 1))
    assert point == next(iter(TrainStep(layouts=("dp*",)).points(Place(Cluster(2, 2, "cpu"), 1))))


@pytest.mark.parametrize(
    ("num_nodes", "layout", "changes", "why"),
    [
        (2, "dp2", {}, None),
        (
            2,
            "dp4",
            {},
            "each_node: true runs a layout inside each node: dp4 is of 4 ranks, and a node has 2; 'dp*' takes those "
            "that are left",
        ),
        (
            2,
            "dp2",
            {"communication": "fake"},
            "each_node: true has every rank of a node take part, and communication: fake one alone",
        ),
    ],
)
def test_what_no_node_can_run_by_itself_is_refused(num_nodes: int, layout: str, changes: dict, why: str | None) -> None:
    place = Place(Cluster(2, 2, "cpu"), num_nodes)
    step = TrainStep(layouts=(layout,), each_node=True, **changes)
    (point,) = step.points(place)
    assert step.objection(point, place) == why
