from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.compression import Compression
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import MIB, trained
from tests.report.synthetic import case, observation, of_rows


def step(speed: float, sent: float, layout: str = "dp2", **options: object) -> list[Row]:
    figures = {"tokens_per_s_per_rank": speed, "traffic_bytes/dp": sent * MIB, "peak_memory/total": 10.0 * MIB}
    return trained(layout, figures, **options)


WHOLE, HALVED = step(1000, 8), step(1200, 4, compress="bf16")
LARGEST = step(400, 0.16, compress="topk", topk_share=0.01)


def run(*steps: list[Row], spread: float = 0.001) -> Reading:
    """With samples of each, so many seconds apart."""
    histories = []
    for (first, *_), value in ((rows, rows[0].value) for rows in steps):
        planned = case(str(first.point["layout"]), first.world_size, id=first.case)
        seconds = [[(1 + spread * (number % 5)) / (value or 1.0) for number in range(20)]] * first.world_size
        histories.append(History(planned, observations=(observation(planned, seconds),)))
    return replace(of_rows([row for rows in steps for row in rows]), histories=tuple(histories))


def answer(reading: Reading) -> str:
    data = Compression().select(reading)
    assert data is not None
    return Compression().answer(data)


def test_what_each_way_saves_and_costs_is_said() -> None:
    assert answer(run(WHOLE, HALVED, LARGEST)) == (
        "With dp2, against gradients that are sent whole: bf16 sends 50 % of the bytes and is 20 % faster; topk of "
        "1 % sends 2.0 % of the bytes and is 60 % slower."
    )


def test_what_samples_do_not_tell_apart_is_not_called_faster() -> None:
    assert answer(run(WHOLE, HALVED, spread=0.5)) == (
        "With dp2, against gradients that are sent whole: bf16 sends 50 % of the bytes; the samples show no "
        "difference in speed for bf16."
    )


def test_those_not_told_apart_are_named_once() -> None:
    ways = (step(1000, 4 + rank, compress="powersgd", powersgd_rank=rank) for rank in (1, 2))
    assert answer(run(WHOLE, LARGEST, *ways)).endswith(
        "; the samples show no difference in speed for powersgd of rank 1, powersgd of rank 2."
    )
    slower = step(990, 2, compress="powersgd")
    assert answer(run(WHOLE, HALVED, slower, spread=2.0)).endswith("; the samples show no difference in speed for any.")


def test_each_layout_has_its_sentence_and_panels() -> None:
    four = step(900, 12, "dp4"), step(900, 6, "dp4", compress="powersgd", powersgd_rank=4)
    data = Compression().select(run(WHOLE, HALVED, *four))
    assert data is not None
    assert Compression().answer(data).splitlines()[1] == (
        "With dp4, against gradients that are sent whole: powersgd of rank 4 sends 50 % of the bytes; the "
        "samples show no difference in speed for powersgd of rank 4."
    )
    assert len(Compression().draw(data)) == 6


def test_without_whole_gradients_there_is_nothing_to_hold_against() -> None:
    assert Compression().select(of_rows([*HALVED, *LARGEST])) is None
    failed = trained("dp2", status="failed")
    assert Compression().select(of_rows([*failed, *HALVED, *LARGEST])) is None


def test_where_traffic_is_not_known_speed_is_still_told() -> None:
    fast = trained("dp2", {"tokens_per_s_per_rank": 1500.0}, compress="bf16")
    assert answer(run(WHOLE, fast)) == ("With dp2, against gradients that are sent whole: bf16 is 50 % faster.")


def test_a_run_about_something_else_shows_nothing() -> None:
    others = [row for degree in (1, 2, 4, 8) for row in step(9, 9, f"tp{degree}")]
    assert Compression().select(of_rows([*WHOLE, *HALVED, *others])) is None
