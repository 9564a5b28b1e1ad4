from typing import Any

from clusterbench.diagnoses.unstable import Unstable
from clusterbench.rows import Row
from tests.report.synthetic import case, observation, outcome, reading, row

ONE = case("a")


def spread(cv: float, slowest: float, of: Any = ONE, iterations: int = 20) -> list[Row]:
    return [
        row(of, "time_cv", cv, expected=0.05, iterations=iterations),
        row(of, "time_max_over_median", slowest, expected=1.5, iterations=iterations),
    ]


def test_a_wide_spread_is_one_finding_with_both_figures() -> None:
    (finding,) = Unstable().findings(reading(cases=[ONE], rows=spread(0.081, 1.7)))
    assert finding.where == "planted/1n4/a"
    assert finding.evidence == "cv 8.1 % over 20 iterations; slowest iteration 1.70 times the median"


def test_five_percent_is_still_stable() -> None:
    found = Unstable().answer(reading(cases=[ONE], rows=spread(0.05, 1.5)))
    assert (found.state, found.findings) == ("healthy", ())


def test_two_iterations_have_no_spread_to_speak_of() -> None:
    """As in reports/examples/layouts_5d-cpu, where two iterations were said to have a cv of 6.8 %."""
    two = observation(ONE, [[0.01, 0.011]] * 4)
    found = Unstable().answer(reading((outcome(ONE), two), cases=[ONE], rows=spread(0.068, 1.7, iterations=2)))
    assert found.findings == ()
    assert [part.sentence for part in found.not_judged] == [
        "1 case (2 iterations, too few to tell; it takes 3 iterations or more)"
    ]


def test_where_most_cases_are_unsteady_it_is_one_finding_about_the_machine() -> None:
    cases = [case(f"{number}") for number in range(8)]
    rows = [one for number, of in enumerate(cases) for one in spread(0.4 if number else 0.01, 1.2, of)]
    run = reading(*((outcome(of), observation(of)) for of in cases), cases=cases, rows=rows)
    run.environment["hosts"] = {"laptop": {"num_cores": 2}}  # type: ignore[index]
    (finding,) = Unstable().findings(run)
    assert finding.title == "the machine, 7 of 8 unsteady: 4 ranks share 2 cores"
    assert finding.evidence.count("\n") == 6
    assert finding.evidence.startswith("planted/1n4/1: cv 40.0 % over 20 iterations")
    for with_a_core_each in ({"laptop": {"num_cores": 4}}, {}):
        run.environment["hosts"] = with_a_core_each  # type: ignore[index]
        assert "share" not in Unstable().findings(run)[0].title


def test_of_many_cases_a_few_unsteady_ones_are_named_each() -> None:
    cases = [case(f"{number}") for number in range(20)]
    rows = [one for number, of in enumerate(cases) for one in spread(0.4 if number < 6 else 0.01, 1.2, of)]
    run = reading(*((outcome(of), observation(of)) for of in cases), cases=cases, rows=rows)
    assert len(Unstable().findings(run)) == 6


def test_a_case_that_was_timed_before_its_clocks_settled_is_a_finding() -> None:
    basis = "not settled: the last two stretches of 9.7 s of warm-up do not agree"
    drifting = row(ONE, "warm_up_drift", 0.034, expected=0.01, basis=basis)
    (finding,) = Unstable().findings(reading(cases=[ONE], rows=[*spread(0.01, 1.1), drifting]))
    assert (finding.where, finding.what) == ("planted/1n4/a", "timed before clocks had settled")
    assert finding.evidence == f"{basis}; they are 3.4 % apart"
    settled = row(ONE, "warm_up_drift", 0.004, expected=0.01, basis="the last two stretches of 1.4 s of warm-up agree")
    assert Unstable().findings(reading(cases=[ONE], rows=[*spread(0.01, 1.1), settled])) == []
