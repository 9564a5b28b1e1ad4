import pytest

from clusterbench.charts import CAPTION, Chart, charts, in_order
from clusterbench.words import sections
from tests.report.synthetic import of_rows


@pytest.mark.parametrize("kind", charts().values(), ids=charts())
def test_the_docstring_says_how_to_read_it(kind: type[Chart]) -> None:
    assert sections(kind)[CAPTION]
    assert kind.title


@pytest.mark.parametrize("kind", charts().values(), ids=charts())
def test_without_rows_there_is_nothing_to_draw(kind: type[Chart]) -> None:
    assert kind().select(of_rows([])) is None


def chart(section: str, after: str = "") -> type[Chart[object]]:
    return type("Planted", (Chart,), {"section": section, "after": after})


def test_charts_stand_by_section_each_behind_the_one_it_follows() -> None:
    found = {"a": chart("step", "c"), "b": chart("step", "c"), "c": chart("step"), "d": chart("comparison")}
    assert in_order(found) == ["d", "c", "a", "b"]
    assert list(charts())[:4] == ["batch_scaling", "top_config", "predicted_top_config", "best_by_size"]
    assert list(charts())[-1] == "clock_power"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": chart("step", "b")}, "chart 'a' follows 'b', which is not in its section, 'step', or follows it"),
        ({"a": chart("step", "b"), "b": chart("host")}, "chart 'a' follows 'b', which is not in its section"),
        ({"a": chart("step", "b"), "b": chart("step", "a")}, "chart 'a' follows 'b'"),
        ({"a": chart("nowhere")}, "chart 'a' follows '', which is not in its section, 'nowhere'"),
    ],
)
def test_an_unknown_neighbour_and_a_circle_are_mistakes(found: dict[str, type[Chart[object]]], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        in_order(found)
