"""What a suite asks of figures: missed, met, and what noise or an unknown reference leaves open."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.floor import Floor
from clusterbench.formulas.statistics import Summary, median_interval, summarise
from clusterbench.types import Case, metric_key
from clusterbench.types import Floor as Asked
from tests.report.synthetic import case, observation, outcome, reading, row

BASIS = "430.2 GB/s: published by somebody"


def asked(bound: float | None = 300e9, **changes: Any) -> Asked:
    fields: dict[str, Any] = {"metric": "busbw", "side": "at_least", "asked": "0.7 of typical", "unit": "B/s"}
    return Asked(**{**fields, "bound": bound, "basis": BASIS, **changes})


def of(value: float | None, floor: Asked | None = None, spread: float = 0.01, **changes: Any) -> Answer:
    """The answer on one case with one figure, of 20 iterations that lie within ``spread`` of it."""
    one = case("a", floors=(floor or asked(),))
    band = {} if value is None else {"low": value * (1 - spread), "high": value * (1 + spread)}
    figure = row(one, "busbw", value, **{"unit": "B/s", "iterations": 20, **band, **changes})
    return Floor().answer(reading((outcome(one), observation(one)), cases=[one], rows=[figure]))


def test_a_figure_below_its_floor_is_named_with_what_was_asked_and_its_source() -> None:
    (finding,) = of(180e9).findings
    assert finding.title == "planted/1n4/a, busbw, 180.0 GB/s, 40 % below 300.0 GB/s"
    assert finding.what == "180.0 GB/s, 40 % below the 300.0 GB/s that the suite asks for"
    assert finding.evidence == f"at_least: 0.7 of typical; {BASIS}"
    assert finding.severity == "warning"


def test_a_time_above_what_it_may_take_is_named() -> None:
    late = Asked("latency", "at_most", "3 ms", "s", 0.003)
    one = case("a", floors=(late,))
    rows = [row(one, "latency", 0.0045, low=0.0044, high=0.0046, iterations=20)]
    (finding,) = Floor().answer(reading((outcome(one), observation(one)), cases=[one], rows=rows)).findings
    assert finding.title == "planted/1n4/a, latency, 4.500 ms, 50 % above 3.000 ms"


def test_of_a_time_the_upper_end_decides_whether_it_is_met_and_the_lower_whether_it_is_missed() -> None:
    """Times have a tail above: one whose low end is within the bound and whose high end is not is not judged."""
    late = Asked("latency", "at_most", "3 ms", "s", 0.003)
    one = case("a", floors=(late,))

    def state(value: float, low: float, high: float) -> str:
        figure = row(one, "latency", value, low=low, high=high, iterations=20)
        return Floor().answer(reading((outcome(one), observation(one)), cases=[one], rows=[figure])).state

    assert state(0.0029, low=0.00289, high=0.0045) == "not judged"
    assert state(0.0031, low=0.0015, high=0.00311) == "not judged"
    assert state(0.0020, low=0.0019, high=0.0022) == "healthy"
    assert state(0.0040, low=0.0039, high=0.0060) == "found"


def test_more_than_nothing_is_no_number_of_percent() -> None:
    """'3, 300 % above the 0 that the suite asks for'; and the worst stood last."""
    cases = [case(label, floors=(Asked("errors", "at_most", "0", "1", 0.0),)) for label in "abc"]
    rows = [row(one, "errors", count, unit="1") for one, count in zip(cases, (1.0, 3.0, 0.0), strict=True)]
    ends = [(outcome(one), observation(one)) for one in cases]
    answer = Floor().answer(reading(*ends, cases=cases, rows=rows))
    assert [finding.title for finding in answer.findings] == [
        "planted/1n4/b, errors, 3, above 0",
        "planted/1n4/a, errors, 1, above 0",
    ]
    assert answer.findings[0].what == "3, above the 0 that the suite asks for"
    assert answer.healthy[0].startswith("1 floor of planted is met")


def test_a_floor_that_is_met_says_by_how_much() -> None:
    answer = of(330e9)
    assert (answer.state, answer.findings, answer.not_judged) == ("healthy", (), ())
    assert answer.healthy == ("1 floor of planted is met (the nearest is busbw of planted/1n4/a, by 10 %)",)


def test_of_floors_that_are_met_the_nearest_is_named() -> None:
    cases = [case(label, floors=(asked(),)) for label in "abc"]
    rows = [row(one, "busbw", value, unit="B/s") for one, value in zip(cases, (360e9, 315e9, 330e9), strict=True)]
    ends = [(outcome(one), observation(one)) for one in cases]
    (said,) = Floor().answer(reading(*ends, cases=cases, rows=rows)).healthy
    assert said == "3 floors of planted are met (the nearest is busbw of planted/1n4/b, by 5 %)"


@pytest.mark.parametrize("value", [298e9, 302e9])
def test_what_noise_decides_is_neither_missed_nor_met(value: float) -> None:
    answer = of(value, spread=0.1)
    assert (answer.findings, answer.healthy) == ((), ())
    (part,) = answer.not_judged
    assert part.what == "planted/1n4/a, busbw at least 0.7 of typical"
    assert "on both sides of 300.0 GB/s" in part.why
    assert part.takes == "more iterations or repeats"


def test_a_doubtful_bound_is_no_bound_to_the_last_digit() -> None:
    assert of(298e9, spread=0.001).state == "found"
    assert of(298e9, asked(doubt=5e9), spread=0.001).state == "not judged"
    assert of(280e9, asked(doubt=5e9), spread=0.001).state == "found"


def test_a_figure_that_was_taken_once_is_held_as_it_is() -> None:
    assert of(299e9, spread=0.2, iterations=1).state == "found"
    assert of(300e9, spread=0.2, iterations=1).state == "healthy"


@pytest.mark.parametrize(
    ("share", "takes"),
    [
        ("0.7 of typical", "a figure with its source in clusterbench/hardware/typical"),
        ("0.5 of expected", "a GPU whose data sheet is in clusterbench/hardware"),
        ("0.9 of baseline", "a baseline run that measured it"),
    ],
)
def test_without_a_reference_nothing_is_judged(share: str, takes: str) -> None:
    answer = of(1.0, asked(None, asked=share, basis="nothing is known"))
    (part,) = answer.not_judged
    assert part.sentence == (f"planted on 1 node: busbw at least {share} (nothing is known; it takes {takes})")
    assert (answer.findings, answer.healthy) == ((), ())


def test_a_figure_that_is_missing_or_void_is_not_judged() -> None:
    (part,) = of(None, basis="void: it did not execute what it should have").not_judged
    assert part.why == "planted/1n4/a: void: it did not execute what it should have"
    one = case("a", floors=(asked(),))
    (part,) = Floor().answer(reading((outcome(one), observation(one)), cases=[one])).not_judged
    assert part.why == "planted/1n4/a: its record has no such figure"


def test_a_case_that_was_not_measured_is_not_judged() -> None:
    one = case("a", floors=(asked(),))
    skipped = outcome(one, "skipped", reason="nvbandwidth was not found.")
    (part,) = Floor().answer(reading((skipped, None), cases=[one])).not_judged
    assert (part.why, part.takes) == ("planted/1n4/a: nvbandwidth was not found", "a case that ends well")
    (part,) = Floor().answer(reading(cases=[one])).not_judged
    assert part.why == "planted/1n4/a: it was not measured"


def sweep(*bounds: float | None, num_nodes: int = 1) -> tuple[list[Case], Reading]:
    cases = [
        case(f"{number}-{num_nodes}", num_nodes=num_nodes, floors=(asked(bound, basis=f"why {number}"),))
        for number, bound in enumerate(bounds)
    ]
    ends = [(outcome(one), observation(one)) for one in cases]
    rows = [row(one, "busbw", 310e9, unit="B/s", iterations=1) for one in cases]
    return cases, reading(*ends, cases=cases, rows=rows)


def test_of_a_sweep_those_with_a_reference_are_judged() -> None:
    answer = Floor().answer(sweep(None, None, 300e9)[1])
    assert answer.state == "healthy"
    assert answer.healthy[0].startswith("1 floor of planted is met")


def test_a_case_with_a_bound_and_without_the_figure_is_said_beside_those_that_meet_it() -> None:
    """Of GPUs that one host could not pair the floor of all others was 'met', and the machine healthy."""
    cases, of_all = sweep(300e9, 300e9, 300e9)
    lacking = reading(*((outcome(one), observation(one)) for one in cases), cases=cases, rows=of_all.rows[:2])
    answer = Floor().answer(lacking)
    assert answer.healthy[0].startswith("2 floors of planted are met")
    assert [part.why for part in answer.not_judged] == ["planted/1n4/2-1: its record has no such figure"]


def test_each_number_of_nodes_is_judged_or_not_by_itself() -> None:
    cases, one_node = sweep(None, 300e9)
    more, two_nodes = sweep(None, None, num_nodes=2)
    together = reading(
        *((outcome(one), observation(one)) for one in (*cases, *more)),
        cases=[*cases, *more],
        rows=[*one_node.rows, *two_nodes.rows],
    )
    answer = Floor().answer(together)
    assert [part.what for part in answer.not_judged] == ["planted on 2 nodes: busbw at least 0.7 of typical"]
    assert len(answer.healthy) == 1


def test_a_name_alone_means_every_figure_and_a_key_one() -> None:
    both = [{"category": "peer"}, {"category": "host"}]
    for metric, titles in (
        ("median_bandwidth", 2),
        ("median_bandwidth[category=peer]", 1),
        ("median_bandwidth[category=none]", 0),
    ):
        one = case("a", floors=(asked(metric=metric),))
        rows = [row(one, "median_bandwidth", 1e9, unit="B/s", iterations=1, detail=detail) for detail in both]
        answer = Floor().answer(reading((outcome(one), observation(one)), cases=[one], rows=rows))
        assert len(answer.findings) == titles
        assert [found.where for found in answer.findings] == [
            f"planted/1n4/a, {metric_key('median_bandwidth', **detail)}" for detail in both[:titles]
        ]


# Of the best


def best_of(
    *speeds: float | str,
    bounds: float | list[float | None] | None = 0.24,
    side: str = "at_least",
    expected: tuple[str, ...] = ("out_of_memory", "timeout"),
    took_s: float = 2.5,
    spreads: Sequence[float] = (0.01,) * 9,
    **options: Any,
) -> Answer:
    """The answer on cases of one job in several layouts: each has a figure, or the status with which it ended."""
    bounds = bounds if isinstance(bounds, list) else [bounds] * len(speeds)
    cases, rows, ends = [], [], []
    for number, (speed, bound) in enumerate(zip(speeds, bounds, strict=True)):
        floor = asked(bound, metric="mfu", unit="fraction", asked="0.6 of typical", best=True, side=side)
        point = {"shape": "llama-8b", "layout": f"layout{number}", **{name: of[number] for name, of in options.items()}}
        one = case(f"{number}", benchmark="train_step", floors=(floor,), point=point, expected_outcomes=expected)
        cases.append(one)
        if isinstance(speed, str):
            ends += [(outcome(one, speed, reason=f"it was {speed}."), None)] if speed != "not_run" else []
            continue
        ends.append((outcome(one, elapsed_s=took_s), observation(one)))
        low, high = speed * (1 - spreads[number]), speed * (1 + spreads[number])
        rows.append(row(one, "mfu", speed, unit="fraction", low=low, high=high, iterations=20))
    return Floor().answer(reading(*ends, cases=cases, rows=rows))


def test_where_one_meets_it_what_is_asked_of_the_best_is_met() -> None:
    answer = best_of(0.05, 0.30, 0.2, "out_of_memory")
    assert (answer.findings, answer.not_judged) == ((), ())
    assert answer.healthy == ("1 floor of train_step is met (the nearest is mfu of planted/1n4/1, by 25 %)",)


def test_where_all_miss_it_the_best_is_named() -> None:
    answer = best_of(0.05, 0.18, "out_of_memory", 0.1, "skipped")
    (finding,) = answer.findings
    assert finding.title == "planted/1n4/1, mfu, 18.0 %, 25 % below 24.0 %, and the best of 3 cases"
    assert finding.what == "18.0 %, 25 % below the 24.0 % that the suite asks of the best of 3 cases"
    assert finding.evidence == f"at_least: best 0.6 of typical; {BASIS}"
    assert (answer.healthy, answer.not_judged) == ((), ())


def test_at_most_the_best_is_the_lowest() -> None:
    assert best_of(0.9, 0.2, side="at_most").state == "healthy"
    (finding,) = best_of(0.9, 0.3, 0.4, side="at_most").findings
    assert finding.title == "planted/1n4/1, mfu, 30.0 %, 25 % above 24.0 %, and the best of 3 cases"


@pytest.mark.parametrize("status", ["not_run", "failed", "timeout", "out_of_memory"])
def test_the_best_is_not_known_while_one_may_be_better(status: str) -> None:
    answer = best_of(0.18, status, expected=())
    (part,) = answer.not_judged
    assert answer.findings == ()
    assert part.sentence.startswith("planted/1n4/0, best mfu at least 0.6 of typical (18.0 %, 25 % below 24.0 %, but ")
    assert "1 other case may be better (planted/1n4/1: it was " in part.sentence
    assert best_of(0.3, status, expected=()).state == "healthy", "one that meets it is enough"


@pytest.mark.parametrize(("took_s", "state"), [(10.0, "found"), (29.9, "found"), (31.0, "not judged")])
def test_what_was_stopped_at_its_limit_is_slower_than_what_needed_half_of_it(took_s: float, state: str) -> None:
    """The limit is 60 s, and being stopped there is expected."""
    assert best_of(0.18, "timeout", took_s=took_s).state == state


def test_noise_may_leave_the_best_open() -> None:
    for best in (0.2401, 0.2399):
        answer = best_of(best, 0.1)
        assert answer.state == "not judged"
        assert "on both sides of 24.0 %" in answer.not_judged[0].why
    assert best_of(0.2401, 0.3).state == "healthy"
    assert best_of(0.26, 0.25, spreads=[0.5, 0.01]).state == "healthy", "a lower figure that is certain decides"
    assert best_of(0.22, 0.21, spreads=[0.01, 0.5]).state == "not judged", "a lower one may be above the floor"


def test_only_cases_that_train_the_same_are_held_against_each_other() -> None:
    assert best_of(0.3, 0.18, global_batch_size=[32, 64]).state == "found"
    assert best_of(0.3, 0.18, recompute=["none", "full"]).state == "healthy"
    assert best_of(0.3, 0.18, micro_batch_size=[1, 2]).state == "healthy"


def test_the_strictest_bound_is_that_of_the_best() -> None:
    """Of a baseline run each case has its own: then the best of now is held against the best of then."""
    assert best_of(0.3, 0.2, bounds=[0.1, 0.4]).state == "found"
    assert best_of(0.3, 0.5, bounds=[0.1, 0.4]).state == "healthy"
    assert best_of(0.3, 0.5, bounds=[0.1, None]).state == "healthy"
    assert best_of(0.3, 0.15, bounds=[0.2, 0.1], side="at_most").state == "found"
    assert best_of(0.3, 0.09, bounds=[0.2, 0.1], side="at_most").state == "healthy"


def test_without_any_figure_or_bound_the_best_is_not_judged() -> None:
    (part,) = best_of("out_of_memory", "out_of_memory").not_judged
    assert part.what == "train_step on 1 node: best mfu at least 0.6 of typical"
    assert part.why == "planted/1n4/0: it was out_of_memory"
    (part,) = best_of(0.1, 0.2, bounds=None).not_judged
    assert part.takes == "a figure with its source in clusterbench/hardware/typical"


def test_the_worst_miss_comes_first() -> None:
    one, two = case("a", floors=(asked(),)), case("b", floors=(asked(),))
    rows = [row(one, "busbw", 290e9, iterations=1), row(two, "busbw", 100e9, iterations=1)]
    ends = [(outcome(each), observation(each)) for each in (one, two)]
    found = Floor().answer(reading(*ends, cases=[one, two], rows=rows)).findings
    assert [finding.where.partition(",")[0] for finding in found] == [two.id, one.id]


@pytest.mark.parametrize("n", [3, 5, 10, 20, 60])
def test_the_interval_holds_the_true_median(n: int) -> None:
    """In 95 of 100 samples; here 4,000 of each number, and half a percent for chance."""
    draw = random.Random(n)
    inside = 0
    for _ in range(4000):
        low, high = median_interval(summarise([draw.gauss(1.0, 0.05) for _ in range(n)]))
        inside += low <= 1.0 <= high
    assert inside >= 4000 * 0.94, inside / 4000


def test_one_sample_has_no_interval_and_two_have_a_wide_one() -> None:
    assert median_interval(Summary(2.0, 1.0, 3.0, 1)) == (2.0, 2.0)
    low, high = median_interval(summarise([1.0, 1.01]))
    assert high - low > 0.1
