"""What one asks of a run needs no plotting library, and each case is one object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clusterbench.cases.trained import Trained, groups_that_differ
from tests.charts.steps import trained
from tests.report.synthetic import of_rows

EXAMPLE = Path(__file__).parents[2] / "reports" / "examples" / "layouts_5d-cpu"

VERDICT_AND_RANKING = f"""
import sys
from pathlib import Path
from clusterbench.cases.ranking import Contest
from clusterbench.derive import read
from clusterbench.diagnoses import diagnoses, examine
from clusterbench.verdict import verdict
from clusterbench.run_folder import RunFolder

reading = read(RunFolder.open(Path({str(EXAMPLE)!r})))
assert diagnoses()
assert verdict(reading, examine(reading)).measured.word == "COMPLETE"
assert Contest(reading.trained).fastest
print(sorted(name for name in sys.modules if name.startswith(("matplotlib", "torch"))))
"""


def test_a_verdict_and_a_ranking_load_no_plotting_library() -> None:
    done = subprocess.run([sys.executable, "-c", VERDICT_AND_RANKING], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_case_is_one_object_with_all_its_figures() -> None:
    reading = of_rows([*trained("dp2", {"tokens_per_s": 9, "peak_memory/total": 5}), *trained("tp2", status="failed")])
    done, lost = reading.trained
    assert (done.value("tokens_per_s"), done.value("peak_memory", "total"), lost.is_measured) == (9, 5, False)
    assert reading.trained_with("tokens_per_s")[0] is reading.trained_with("peak_memory")[0] is done
    assert reading.trained_with("bubble") == [lost]


def test_rows_of_several_metrics_come_in_the_order_of_all_rows() -> None:
    first, second = (trained(layout, {"tokens_per_s": 9, "bubble": 0.1, "mfu": 0.5}) for layout in ("dp2", "tp2"))
    reading = of_rows([*first, *second])
    wanted = [row for row in reading.rows if row.metric in ("tokens_per_s", "bubble")]
    assert reading.rows_of("bubble", "tokens_per_s") == wanted
    assert len(wanted) == 4
    assert reading.rows_of("bubble", "no_such_metric") == reading.rows_of("bubble") == [wanted[1], wanted[3]]


def test_of_a_case_the_first_row_with_a_figure_stands_for_it() -> None:
    done, lost = trained("dp2", {"mfu": None, "tokens_per_s": 9, "bubble": 0.1}), trained("tp2", status="failed")
    assert [row.metric for row in of_rows([*done, *lost]).measured] == ["tokens_per_s"]


def test_groups_are_those_with_enough_values_and_none_is_looked_for_where_all_cases_have_too_few() -> None:
    cases = of_rows([row for layout in ("tp1", "pp2", "pp4", "dp2", "tp2") for row in trained(layout, {"mfu": 0.5})])
    asked: list[str] = []

    def of_all(case: Trained) -> tuple[object, ...]:
        asked.append(str(case.layout))
        return (case.layout.tp,)

    (group,) = groups_that_differ(cases.trained, lambda case: case.layout.pp, of_all)
    assert ([str(case.layout) for case in group], len(asked)) == (["tp1", "pp2", "pp4", "dp2"], 5)
    assert groups_that_differ(cases.trained, lambda case: case.layout.pp, of_all, fewest=4) == []
    assert groups_that_differ(cases.trained, lambda case: case.layout.pp if case.layout.pp > 2 else None, of_all) == []
    assert len(asked) == 5


def test_workloads_that_are_a_choice_are_looked_for_once() -> None:
    reading = of_rows([*trained("dp2", {"tokens_per_s": 9}), *trained("tp2", {"tokens_per_s": 8})])
    assert reading.heatmaps is reading.heatmaps
