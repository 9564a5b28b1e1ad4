"""What the fastest configuration of each size reaches: per GPU, in hours, in memory, and where the knee is."""

from clusterbench.charts.best_by_size import BestBySize, Sizes
from clusterbench.cluster import Cluster
from clusterbench.drawing.panel import Panel
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import of_rows

GIB = 2.0**30
SPEEDS = {4: {"dp4": 400, "tp4": 300, "pp4": 350}, 8: {"dp8": 720, "tp8": 700}, 16: {"dp16": 900, "dp2-tp8": 1000}}
"""Per rank 100, 90 and 62.5 of the fastest."""


def step(layout: str, speed: float | None, shape: str = "small", status: str = "ok") -> list[Row]:
    figures = None if speed is None else {"tokens_per_s": speed, "peak_memory/total": speed * GIB}
    return trained(layout, figures, status=status, shape=shape)


SWEEP = [row for of_size in SPEEDS.values() for layout, speed in of_size.items() for row in step(layout, speed)]


def selected(rows: list[Row]) -> list[Sizes]:
    return BestBySize().select(of_rows(rows)) or []


def values(panel: Panel) -> dict[tuple[object, object], object]:
    return {(entry.cells[0], entry.cells[1]): entry.cells[2] for entry in panel.entries}


def test_each_size_has_the_figures_of_its_fastest_configuration() -> None:
    share, hours, memory = BestBySize().draw(selected(SWEEP))
    assert values(share) == {("small", "4"): 1.0, ("small", "8"): 0.9, ("small", "16"): 0.625}
    assert values(hours)["small", "4"] == 1e12 / 100 / 3600  # 2,778 hours of one rank, for 100 tokens a second
    assert values(memory) == {("small", "4"): 400 * GIB, ("small", "8"): 720 * GIB, ("small", "16"): 1000 * GIB}
    (largest,) = (entry for entry in share.entries if entry.cells[1] == "16")
    assert "/dp2-tp8 " in largest.case


def test_the_knee_is_the_first_size_that_lost_more_than_a_fifth() -> None:
    (sizes,) = selected(SWEEP)
    assert sizes.knee("small") == 16
    assert BestBySize().answer([sizes]) == (
        "The knee, the first size on which a rank does over 20 % less than on fewer: small on 16 ranks."
    )


def test_a_row_without_a_knee_says_how_far_it_was_looked_for() -> None:
    (sizes,) = selected([row for row in SWEEP if row.world_size < 16])
    assert BestBySize().answer([sizes]).endswith("small none up to 8.")


def test_a_size_on_which_nothing_has_a_figure_is_a_cross_that_says_why() -> None:
    large = [*step("dp4", None, "large", "out_of_memory"), *step("tp8", 70, "large"), *step("tp16", 90, "large")]
    share, *_ = BestBySize().draw(selected([*SWEEP, *large]))
    of_large = {
        entry.cells[1]: (entry.cells[2], entry.cells[6]) for entry in share.entries if entry.cells[0] == "large"
    }
    assert of_large == {"4": (None, "out of memory"), "8": (1.0, ""), "16": (90 / 16 / (70 / 8), "")}


def test_memory_of_the_device_is_a_level_where_it_is_on_record() -> None:
    reading = of_rows(SWEEP)
    assert selected(SWEEP)[0].device_bytes is None  # of a CPU
    on_gpus = reading.plan.__class__(**{**vars(reading.plan), "cluster": Cluster(2, 8, "cuda", "NVIDIA H200")})
    (sizes,) = BestBySize().select(reading.__class__(**{**vars(reading), "plan": on_gpus})) or []
    assert sizes.device_bytes is not None
    assert sizes.device_bytes > 140e9


def test_with_one_size_for_each_shape_there_is_no_picture() -> None:
    assert selected([row for row in SWEEP if row.world_size == 4]) == []
