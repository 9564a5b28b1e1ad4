from __future__ import annotations

from clusterbench.diagnoses.moved_curve import MovedCurve
from clusterbench.rows import Row
from tests.report.synthetic import case, reading, row


def measured(world_size: int, hosts: str, **point: object) -> Row:
    planned = case(f"{world_size} {point}", world_size, num_nodes=world_size // 2, point={"size_bytes": 8, **point})
    return row(planned, hosts=hosts)


def test_a_larger_case_without_the_hosts_of_the_smaller_is_named() -> None:
    rows = [measured(2, "cb1"), measured(4, "cb3 cb4"), measured(8, "cb1 cb2 cb3 cb4")]
    (finding,) = MovedCurve().findings(reading(cases=[], rows=rows))
    assert finding.where == "hosts cb3, cb4"
    assert finding.what == "4 ranks ran on cb3, cb4, the smaller ones on cb1"
    assert finding.evidence == "in 1 case: planted/1n4/4 {}"
    assert finding.severity == "warning"


def test_a_curve_that_grows_around_its_first_hosts_is_silent() -> None:
    rows = [measured(2, "cb1"), measured(4, "cb1 cb2"), measured(8, "cb1 cb2 cb3 cb4")]
    assert MovedCurve().findings(reading(cases=[], rows=rows)) == []


def test_other_work_is_another_curve() -> None:
    rows = [measured(2, "cb1", dtype="float32"), measured(4, "cb3 cb4", dtype="bfloat16")]
    assert MovedCurve().findings(reading(cases=[], rows=rows)) == []


def test_a_case_without_a_figure_is_on_no_curve() -> None:
    rows = [measured(2, "cb1"), measured(4, "")._replace(value=None, metric="")]
    assert MovedCurve().findings(reading(cases=[], rows=rows)) == []
