"""The bounds themselves are tested in tests/measured/test_bounds.py."""

from clusterbench.diagnoses.beyond_bound import BeyondBound
from clusterbench.measured.bounds import BEYOND
from tests.report.synthetic import case, reading, row

WHY = "busbw 900 GB/s is above 450 GB/s, the link of one GPU, one direction"


def test_a_figure_that_is_void_for_its_bound_is_an_error_with_both_figures() -> None:
    one = case("a")
    rows = [row(one, "busbw", None, unit="B/s", basis=f"{BEYOND}: {WHY}"), row(one, "step_time", 1.0)]
    (finding,) = BeyondBound().answer(reading(cases=[one], rows=rows)).findings
    assert (finding.where, finding.what, finding.severity) == ("planted/1n4/a", WHY, "error")


def test_a_figure_that_is_void_for_another_reason_is_not_its_finding() -> None:
    one = case("a")
    rows = [row(one, "busbw", None, unit="B/s", basis="void: while it ran mlx5_3 port 1 on n1: the link went down")]
    assert BeyondBound().answer(reading(cases=[one], rows=rows)).findings == ()
