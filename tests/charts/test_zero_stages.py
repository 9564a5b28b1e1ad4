from clusterbench.charts._memory_colours import memory_colours
from clusterbench.charts._traffic_colours import traffic_colours
from clusterbench.charts.zero_stages import ZeroStages
from clusterbench.job.passes import CATEGORIES
from clusterbench.rows import Row
from tests.charts.steps import MIB, trained
from tests.report.synthetic import of_rows


def step(layout: str, at_rest: float, peak: float, sent: float, **options: object) -> list[Row]:
    figures = {
        "memory_at_rest/parameters": at_rest * MIB,
        "peak_memory/parameters": peak * MIB,
        "peak_memory/total": peak * MIB,
        "traffic_bytes/dp": sent * MIB,
        "traffic_bytes/dp!": sent * MIB,
    }
    return trained(layout, figures, **options)


ROWS = [*step("dp4", 16, 20, 6), *step("dp4+zero1", 10, 14, 9), *step("dp4+zero3", 4, 10, 18)]


def test_the_answer_names_what_each_stage_saves_and_sends() -> None:
    chart = ZeroStages()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "On 4 ranks ZeRO 1 lowers memory at rest by 38 %, from 16 to 10 MiB, the peak by 30 %, and sends 1.5 times the "
        "bytes; ZeRO 3 lowers memory at rest by 75 %, from 16 to 4 MiB, the peak by 50 %, and sends 3 times the bytes."
    )


def test_groups_and_offload_are_bars_of_their_own() -> None:
    rows = [*ROWS, *step("dp4+zero3", 8, 12, 15, shard_group_size=2), *step("dp4+zero3", 4, 9, 18, offload=True)]
    at_rest, at_peak, traffic = ZeroStages().draw(ZeroStages().select(of_rows(rows)) or [])
    labels = [label.get_text() for label in at_rest.figure.axes[0].get_yticklabels()]
    assert labels == ["dp4", "dp4+zero1", "dp4+zero3", "dp4+zero3, groups of 2", "dp4+zero3, offload"]
    assert len(at_peak.figure.axes[0].patches) == len(traffic.figure.axes[0].patches) == 5


def test_no_axis_has_the_colour_of_a_category_of_memory() -> None:
    axes = traffic_colours([f"along {axis}" for axis in ("cp", "dp", "dp_cp", "shard", "tp")])
    assert len(set(axes.values())) == len(axes)
    assert not {colour for colour, _ in axes.values()} & {colour for colour, _ in memory_colours(CATEGORIES).values()}
    at_rest, _, traffic = ZeroStages().draw(ZeroStages().select(of_rows(ROWS)) or [])
    memory, sent = (
        {patch.get_facecolor()[:3] for patch in panel.figure.axes[0].patches} for panel in (at_rest, traffic)
    )
    assert not memory & sent


def test_stages_of_different_mixes_show_nothing() -> None:
    assert ZeroStages().select(of_rows([*ROWS, *step("dp2-tp2", 9, 9, 9)])) is None


def test_two_stages_are_no_comparison() -> None:
    assert ZeroStages().select(of_rows(ROWS[:8])) is None


def test_options_that_one_stage_alone_has_do_not_tell_the_others_apart() -> None:
    """Only DDP, of no stage and of stage 1, has an option ``compress``."""
    plain = [*step("dp4", 16, 20, 6, compress="none"), *step("dp4+zero1", 10, 14, 9, compress="none")]
    data = ZeroStages().select(of_rows([*plain, *step("dp4+zero3", 4, 10, 18)]))
    assert data is not None
    assert [len(group) for group in data] == [3]


def test_stages_are_compared_on_each_number_of_nodes() -> None:
    wide = [row._replace(case=f"{row.case} wide", num_nodes=2) for row in ROWS]
    assert len(ZeroStages().select(of_rows([*ROWS, *wide])) or []) == 2


def test_where_the_first_stage_has_no_figure_the_next_is_what_others_are_held_against() -> None:
    lost = trained("dp4", status="out_of_memory")
    chart = ZeroStages()
    data = chart.select(of_rows([*lost, *ROWS[4:], *step("dp4+zero2", 10, 15, 9)]))
    assert data is not None
    assert chart.answer(data) == (
        "On 4 ranks, against ZeRO 1, ZeRO 2 leaves memory at rest at 10 MiB, raises the peak by 7 %, and sends as many "
        "bytes; ZeRO 3 lowers memory at rest by 60 %, from 10 to 4 MiB, the peak by 29 %, and sends 2 times the bytes."
    )
