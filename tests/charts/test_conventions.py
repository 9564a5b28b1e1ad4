import pytest

from clusterbench.charts import CAPTION, Chart, charts
from clusterbench.words import sections
from tests.report.synthetic import of_rows


@pytest.mark.parametrize("kind", charts().values(), ids=charts())
def test_the_docstring_says_how_to_read_it(kind: type[Chart]) -> None:
    assert sections(kind)[CAPTION]
    assert kind.title


@pytest.mark.parametrize("kind", charts().values(), ids=charts())
def test_without_rows_there_is_nothing_to_draw(kind: type[Chart]) -> None:
    assert kind().select(of_rows([])) is None


def test_every_chart_has_its_own_place_in_the_report() -> None:
    places = [kind.place for kind in charts().values()]
    assert places == sorted(set(places))
