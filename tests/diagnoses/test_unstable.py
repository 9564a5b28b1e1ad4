from clusterbench.diagnoses.unstable import Unstable
from tests.report.synthetic import case, reading, row

ONE = case("a")


def spread(cv: float, slowest: float) -> list:
    return [
        row(ONE, "time_cv", cv, expected=0.05, iterations=20),
        row(ONE, "time_max_over_median", slowest, expected=1.5, iterations=20),
    ]


def test_a_wide_spread_is_one_finding_with_both_figures() -> None:
    (finding,) = Unstable().findings(reading(cases=[ONE], rows=spread(0.081, 1.7)))
    assert finding.where == "planted/1n4/a"
    assert finding.evidence == "cv 8.1 % over 20 iterations; slowest iteration 1.70 times the median"


def test_five_percent_is_still_stable() -> None:
    assert Unstable().findings(reading(cases=[ONE], rows=spread(0.05, 1.5))) == []
