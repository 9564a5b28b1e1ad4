"""Rows of tokens by rank and layer: who gets more than an even share, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.expert_load import ExpertLoad, Loads
from clusterbench.drawing.svg import svg
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Case
from tests.report.synthetic import case, observation, of_rows, outcome, row
from tests.report.synthetic import reading as read

UNEVEN = [[100, 160], [100, 80], [100, 80], [100, 80]]
EVEN = [[100, 100]] * 4


def moe(layout: str = "dp4+ep4", **options: object) -> Case:
    return case(layout + str(options), point={"layout": layout, "routing": "real", **options})


def figures(planned: Case, worst: float) -> list[Row]:
    parts = {"ranks": worst, "experts": 1.5}
    return [row(planned, "expert_imbalance", value, unit="1", detail={"part": part}) for part, value in parts.items()]


def history(planned: Case, of_ranks: Sequence[Any]) -> History:
    seen = replace(observation(planned), passes={"experts": of_ranks})
    return read((outcome(planned), seen), cases=[planned]).histories[0]


def recorded(rows: Sequence[Sequence[int]], experts: Sequence[Any] = ()) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"seconds": {}, "imbalance": 1.5, "rows": own} for own in rows]
    return [load | {"expert_rows": own} for load, own in zip(found, experts, strict=True)] if experts else found


def reading(*cases: tuple[Case, Sequence[Any]]) -> Reading:
    rows = [figure for planned, _ in cases for figure in figures(planned, 1.6)]
    return replace(read(cases=[], rows=rows), histories=tuple(history(planned, ranks) for planned, ranks in cases))


def loads(*cases: tuple[Case, Sequence[Any]]) -> Loads:
    data = ExpertLoad().select(reading(*cases))
    assert data is not None
    return data


def test_the_fullest_rank_is_named_with_its_layer_and_its_share() -> None:
    assert ExpertLoad().answer(loads((moe(), recorded(UNEVEN)))) == (
        "dp4+ep4, real routing: in layer 1 rank 0 gets 1.60 times the even load (160 rows, even is 100), and the "
        "others wait for it; it is the fullest in 1 of 2 layers."
    )


def test_an_even_load_has_no_heatmap_and_is_said_to_be_even() -> None:
    planned = moe()
    found = replace(read(cases=[], rows=figures(planned, 1.0)), histories=(history(planned, recorded(EVEN)),))
    data = ExpertLoad().select(found)
    assert data is not None
    assert ExpertLoad().answer(data) == "Every rank gets an even load of tokens in every layer."
    assert [panel.title for panel in ExpertLoad().draw(data)] == [
        "Rows of the fullest rank over the mean",
        "A rank's fullest expert over its mean",
    ]


def test_each_cell_is_a_rank_and_a_layer_over_the_even_load() -> None:
    *_, panel = ExpertLoad().draw(loads((moe(), recorded(UNEVEN))))
    assert panel.title == "Load of each rank over the even one dp4+ep4, real routing"
    assert panel.words(panel.entries[1]) == "rank 0; layer 1; rows 160; over even 1.6; even is 100"
    assert len(panel.entries) == 8
    texts = [text.get_text() for text in panel.figure.axes[0].texts]
    assert texts == ["1.00", "1.60", "1.00", "0.80", "1.00", "0.80", "1.00", "0.80"]


def test_the_experts_of_the_worst_layer_are_drawn_where_they_were_recorded() -> None:
    experts = [[[50, 50], [120, 40]], *[[[50, 50], [40, 40]]] * 3]
    *_, panel = ExpertLoad().draw(loads((moe(), recorded(UNEVEN, experts))))
    assert panel.title == "Load of each expert over the even one dp4+ep4, real routing, layer 1"
    assert panel.words(panel.entries[0]) == "rank 0; expert 0; rows 120; over even 2.4; even is 50"


def test_one_load_is_drawn_once_however_its_rows_travel() -> None:
    plain, overlapped = moe(), moe(expert_overlap=True)
    data = loads((plain, recorded(UNEVEN)), (overlapped, recorded(UNEVEN)))
    assert [load.case for load in data.uneven] == [plain.id]


def test_the_worst_cases_are_drawn_and_the_rest_counted() -> None:
    cases = [(moe(seed=number), recorded([[100 + number], *[[100]] * 3])) for number in range(1, 8)]
    data = loads(*cases)
    assert data.uneven[0].case == cases[-1][0].id
    assert len(ExpertLoad().draw(data)) == 2 + 4
    assert ExpertLoad().left_out(data) == (
        "Drawn are the first 4 of 7 uneven loads, layer by layer; the others are in observations.jsonl."
    )


def test_a_large_job_shows_its_fullest_ranks_and_first_layers() -> None:
    many = case("many", 512, point={"layout": "dp512+ep8"})
    *_, panel = ExpertLoad().draw(loads((many, recorded([[100 + rank] * 80 for rank in range(512)]))))
    assert len(panel.entries) == 24 * 64
    assert panel.entries[-1].cells[0] == "rank 511"


def test_dense_models_show_nothing() -> None:
    assert ExpertLoad().select(of_rows([row(case("a", point={"layout": "dp4"}), "tokens_per_s")])) is None


STRANGE: list[Any] = [
    None, 3, "rows", [], {}, {"rows": 3}, {"rows": [1]}, {"rows": [1, None]}, {"rows": [float("nan"), 1]},
    {"rows": [1, -1]}, {"rows": [0, 10**18]}, {"rows": [1, 10**400]}, {"rows": ["<b>", True]},
    {"rows": [1, 2], "expert_rows": "x"}, {"rows": [1, 2], "expert_rows": [[1], None]},
]  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
def test_a_damaged_record_is_left_out(strange: Any) -> None:
    named = moe(routing="<script>" + "x" * 100_000)
    for ranks in ([*recorded(UNEVEN[:3]), strange], [strange] * 4):
        data = loads((named, ranks))
        assert len(ExpertLoad().answer(data)) < 500
        assert all(len(load.ranks) == 4 for load in data.uneven)
    assert "<script>" not in "".join(svg(panel, "n", "l") for panel in ExpertLoad().draw(data))
