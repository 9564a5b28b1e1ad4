from clusterbench.diagnoses.traffic_mismatch import TrafficMismatch
from tests.report.synthetic import case, reading, row

ONE = case("a")


def findings(counted: float | None, formula: float | None) -> list:
    traffic = row(ONE, "traffic_bytes", counted, unit="B", expected=formula, detail={"axis": "tp"})
    return TrafficMismatch().findings(reading(cases=[ONE], rows=[traffic]))


def test_one_all_reduce_too_many_is_named_with_its_axis() -> None:
    (finding,) = findings(counted=33 * 2**20, formula=32 * 2**20)
    assert finding.where == "planted/1n4/a, axis tp"
    assert finding.what == "counted +3.1 % against the formula"
    assert finding.evidence == "counted 33MiB (34,603,008 B), formula 32MiB (33,554,432 B) per rank and step"


def test_traffic_where_the_formula_has_none_is_named() -> None:
    assert findings(counted=8.0, formula=0.0)[0].what == "counted traffic where the formula has none"


def test_equal_bytes_are_silent() -> None:
    assert findings(counted=32 * 2**20, formula=32 * 2**20) == []


def test_without_a_formula_there_is_nothing_to_say() -> None:
    assert findings(counted=1.0, formula=None) == []
    assert findings(counted=None, formula=1.0) == []
