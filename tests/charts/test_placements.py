from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.placements import Placements
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows

Placed = tuple[str, str, float]
"""Layout, order of ranks, and tokens per second and rank."""


def run(*steps: Placed, num_nodes: int = 2, spread: float = 0.001, batch: int = 8) -> Reading:
    rows: list[Row] = []
    histories = []
    for layout, order, speed in steps:
        own = trained(layout, {"tokens_per_s_per_rank": speed}, rank_order=order, global_batch_size=batch)
        rows += [row._replace(num_nodes=num_nodes) for row in own]
        planned = case(layout, own[0].world_size, id=own[0].case)
        seconds = [[(1 + spread * (step % 5)) / speed for step in range(20)]] * own[0].world_size
        histories.append(History(planned, observations=(observation(planned, seconds),)))
    return replace(of_rows(rows), histories=tuple(histories))


def answer(reading: Reading) -> str:
    data = Placements().select(reading)
    assert data is not None
    return Placements().answer(data)


PIPELINE_INSIDE = ("pp2-dp2", "llama3", 130.0), ("pp2-dp2", "megatron", 100.0)


def test_the_order_that_is_faster_is_named_with_the_axis_that_leaves_the_node() -> None:
    assert answer(run(*PIPELINE_INSIDE, ("pp2-dp4", "llama3", 110.0), ("pp2-dp4", "megatron", 100.0))) == (
        "Ranks as llama3 are faster in 2 of 2 comparisons, most in pp2-dp2, where dp leaves the node and the other "
        "order takes 30 % longer."
    )


def test_orders_that_win_in_turn_are_both_named_and_what_noise_hides_is_counted() -> None:
    noisy = run(("pp2-dp8", "llama3", 101.0), ("pp2-dp8", "megatron", 100.0), spread=0.1)
    other = run(("pp4-dp2", "llama3", 100.0), ("pp4-dp2", "megatron", 105.0))
    both = run(*PIPELINE_INSIDE)
    reading = replace(
        both,
        rows=[*both.rows, *other.rows, *noisy.rows],
        histories=(*both.histories, *other.histories, *noisy.histories),
    )
    assert answer(reading) == (
        "Ranks as llama3 are faster in 1 of 3 comparisons, most in pp2-dp2, where dp leaves the node and the other "
        "order takes 30 % longer; ranks as megatron are faster in 1 of 3 comparisons, most in pp4-dp2, where pp leaves "
        "the node and the other order takes 5.0 % longer; 1 is not told apart."
    )
    assert answer(noisy) == "In none of 1 comparison do samples tell one order of ranks from the other."


def test_bars_say_what_leaves_the_node_and_on_one_node_nothing_does() -> None:
    for num_nodes, said in ((2, "pp leaves the node"), (1, "none leaves the node")):
        data = Placements().select(run(*PIPELINE_INSIDE, num_nodes=num_nodes))
        assert data is not None
        (panel,) = Placements().draw(data)
        assert said in str(panel.entries[1].cells[0])


def test_one_order_alone_and_orders_that_nobody_knows_show_nothing() -> None:
    assert Placements().select(run(("pp2-dp2", "mine", 9.0), ("pp2-dp2", "yours", 8.0))) is None
    assert Placements().select(run(("pp2-dp2", "megatron", 9.0), ("pp4", "megatron", 8.0))) is None
