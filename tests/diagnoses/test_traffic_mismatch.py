from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.diagnoses.traffic_mismatch import TrafficMismatch
from clusterbench.rows import Row
from clusterbench.types import Expected
from tests.report.synthetic import case, observation, outcome, plant, reading, row, write_run

ONE = case("a")


def along(axis: str, counted: float | None, formula: float | None, basis: str = "") -> Row:
    iterations = 0 if counted is None else 1
    detail = {"axis": axis}
    return row(
        ONE, "traffic_bytes", counted, unit="B", expected=formula, basis=basis, iterations=iterations, detail=detail
    )


def findings(counted: float | None, formula: float | None, basis: str = "") -> list:
    return TrafficMismatch().findings(reading(cases=[ONE], rows=[along("tp", counted, formula, basis)]))


def test_one_all_reduce_too_many_is_named_with_its_axis() -> None:
    (finding,) = findings(counted=33 * 2**20, formula=32 * 2**20)
    assert finding.where == "planted/1n4/a, axis tp"
    assert finding.what == "counted +3.1 % against the formula"
    assert finding.evidence == "counted 33MiB (34,603,008 B), formula 32MiB (33,554,432 B) per rank and step"
    assert finding.severity == "error"


def test_traffic_where_the_formula_has_none_is_named() -> None:
    assert findings(counted=8.0, formula=0.0)[0].what == "counted traffic where the formula has none"


def test_equal_bytes_are_silent() -> None:
    assert findings(counted=32 * 2**20, formula=32 * 2**20) == []


def test_without_a_formula_there_is_nothing_to_say() -> None:
    assert findings(counted=1.0, formula=None) == []
    assert findings(counted=None, formula=1.0) == []


def test_bytes_that_a_router_decides_are_not_judged() -> None:
    assert findings(counted=2.0, formula=1.0, basis="about; bytes of an even load; the router decides") == []


def test_an_axis_that_the_formula_does_not_have_is_named() -> None:
    rows = [along("tp", 8.0, 8.0), along("world", 4.0, None)]
    (finding,) = TrafficMismatch().findings(reading(cases=[ONE], rows=rows))
    assert (finding.where, finding.what) == (f"{ONE.id}, axis world", "counted traffic where the formula has none")


def test_an_axis_on_which_nothing_was_sent_is_named_if_there_was_a_count() -> None:
    seen = observation(ONE)
    counted = replace(seen, passes={"traffic": [[]] * 4})
    for record, expected in ((seen, []), (counted, ["counted -100.0 % against the formula"])):
        found = TrafficMismatch().findings(reading((outcome(ONE), record), cases=[ONE], rows=[along("dp", None, 8.0)]))
        assert [finding.what for finding in found] == expected


@pytest.mark.parametrize(
    ("counted", "basis", "exit_code", "verdict"),
    [
        (
            4096,
            "2 all-reduces a layer",
            1,
            "measured  WRONG       1 of 1 case; wrong: traffic_mismatch: planted/1n4/a, axis dp: counted +300.0 % "
            "against the formula\n",
        ),
        (4096, "about; the router decides", 0, "measured  COMPLETE    1 of 1 case\n"),
        (1024, "2 all-reduces a layer", 0, "measured  COMPLETE    1 of 1 case\n"),
    ],
)
def test_a_report_of_bytes_that_differ_from_an_exact_formula_ends_with_1(
    tmp_path: Path, counted: float, basis: str, exit_code: int, verdict: str
) -> None:
    one = case("a", expected={"traffic_bytes[axis=dp]": Expected(1024.0, "B", basis)})
    seen = observation(
        one, figures=[{"name": "traffic_bytes", "unit": "B", "value": counted, "detail": {"axis": "dp"}}]
    )
    write_run(tmp_path / "run", [one], [(outcome(one), seen)])
    undo = plant()
    try:
        done = CliRunner().invoke(main, ["report", str(tmp_path / "run")])
    finally:
        undo()
    assert done.exit_code == exit_code
    assert done.stderr.startswith(verdict)
