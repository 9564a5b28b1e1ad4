import math
import random
from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.forced_settings import ForcedSettings
from clusterbench.run_folder.attempts import History
from tests.report.synthetic import case, observation, of_rows, row

SIZES = (1024, 8192, 65536)
OWN = {size: 1e-5 * (1 + number) for number, size in enumerate(SIZES)}


def run(*calls: tuple[dict[str, str], dict[int, float]], repeats: int = 3, spread: float = 0.01) -> Reading:
    """Calls with these variables take so long, by size; repeats are apart by ``spread``."""
    return repeated(
        *(
            (
                variables,
                {size: [second * (1 + spread * number) for number in range(repeats)] for size, second in of.items()},
            )
            for variables, of in calls
        )
    )


def repeated(*calls: tuple[dict[str, str], dict[int, list[float]]]) -> Reading:
    """The same with the seconds of each repeat."""
    rows, histories = [], []
    for variables, seconds in calls:
        for size, of_repeats in seconds.items():
            planned = case(f"{size}-{variables}", 4, point={**variables, "size_bytes": size, "dtype": "float32"})
            seen = [
                replace(observation(planned, [[second] * 5] * 4), repeat=repeat)
                for repeat, second in enumerate(of_repeats)
            ]
            rows.append(row(planned, "latency", of_repeats[0], unit="s"))
            histories.append(History(planned, observations=tuple(seen)))
    return replace(of_rows(rows), histories=tuple(histories))


def answer(reading: Reading) -> str:
    chart = ForcedSettings()
    data = chart.select(reading)
    assert data is not None
    return chart.answer(data)


def times(factors: tuple[float, float, float]) -> dict[int, float]:
    return {size: OWN[size] / factor for size, factor in zip(SIZES, factors, strict=True)}


def test_a_setting_that_is_ahead_at_two_sizes_is_named_with_them_and_by_how_much() -> None:
    tree, ring = {"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"}
    reading = run(({}, OWN), (tree, times((1.5, 1.3, 0.4))), (ring, times((0.5, 0.9, 1.0))))
    assert (
        answer(reading)
        == "planted: faster is NCCL_ALGO=Tree from 1KiB to 8KiB, up to 1.50 times as fast; 1 other is not."
    )


def test_what_is_ahead_at_one_size_alone_or_by_little_is_not() -> None:
    once = {"NCCL_PROTO": "LL"}, times((1.5, 0.9, 1.0))
    little = {"NCCL_PROTO": "Simple"}, times((1.04, 1.04, 1.04))
    assert answer(run(({}, OWN), once, little)) == "planted: none of 2 settings is 5 % faster at two sizes in a row."
    assert (
        answer(run(({}, OWN), once))
        == "planted: the one setting that was tried is not 5 % faster at two sizes in a row."
    )


def test_of_many_settings_that_change_nothing_none_is_named() -> None:
    """In ten runs, whose repeats are 10 % apart."""
    draw = random.Random(1)
    sizes = [8.0**number for number in range(1, 9)]
    for _ in range(10):
        calls = []
        for setting in range(13):
            seconds = {int(size): [1e-5 * math.exp(draw.gauss(0, 0.1)) for _ in range(3)] for size in sizes}
            calls.append(({"NCCL_A": str(setting)} if setting else {}, seconds))
        assert answer(repeated(*calls)) == "planted: none of 12 settings is 5 % faster at two sizes in a row."


def test_two_repeats_judge_nothing() -> None:
    reading = run(({}, OWN), ({"NCCL_PROTO": "LL"}, times((2, 2, 2))), repeats=2)
    assert answer(reading) == "planted: not judged: it takes 3 repeats to tell a setting from the library's own choice."


def test_variables_that_all_cases_have_are_of_the_default_and_pairs_of_values_have_none() -> None:
    debug = {"NCCL_DEBUG": "INFO"}
    forced = run((debug, OWN), ({**debug, "NCCL_ALGO": "Tree"}, times((2, 2, 2))))
    assert answer(forced) == "planted: faster is NCCL_ALGO=Tree from 1KiB to 64KiB, up to 2.00 times as fast."
    pair = run(({"NCCL_P2P_DISABLE": "0"}, OWN), ({"NCCL_P2P_DISABLE": "1"}, times((0.5, 0.5, 0.5))))
    assert ForcedSettings().select(pair) is None
    assert ForcedSettings().select(run(({}, OWN))) is None


def test_a_setting_that_fails_is_a_cross_and_the_level_of_the_default_is_drawn() -> None:
    broken = case("broken", 4, point={"NCCL_ALGO": "NVLS", "size_bytes": 1024, "dtype": "float32"})
    reading = run(({}, OWN), ({"NCCL_ALGO": "Tree"}, times((1, 1, 1))))
    reading = replace(reading, rows=[*reading.rows, row(broken, "", None, status="failed")])
    chart = ForcedSettings()
    data = chart.select(reading)
    assert data is not None
    (panel,) = chart.draw(data)
    words = [text.get_text() for text in panel.figure.axes[0].texts]
    assert "failed" in words
    assert "own choice" in words


def test_a_size_at_which_the_default_failed_compares_nothing() -> None:
    broken = case("broken", 4, point={"size_bytes": 8, "dtype": "float32"})
    forced = ({"NCCL_ALGO": "Tree"}, {8: 1e-5, **times((2, 2, 2))})
    reading = run(({}, OWN), forced)
    data = ForcedSettings().select(replace(reading, rows=[*reading.rows, row(broken, "", None, status="timeout")]))
    assert data is not None
    (curve,) = data[0].series
    assert [mark.x for mark in curve.marks] == [*SIZES]
