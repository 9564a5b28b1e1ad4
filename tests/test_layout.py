"""Layouts: one spelling each, and the rank orders of the frameworks, against their published examples."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.errors import LayoutError
from clusterbench.layout import AXES, GROUPS, RANK_ORDERS, RIDERS, ParallelLayout, every_layout

degrees = st.sampled_from([1, 2, 3, 4, 8])
layouts = st.builds(ParallelLayout, pp=degrees, dp=degrees, cp=degrees, tp=degrees, zero=st.integers(0, 3))


@given(layouts)
def test_text_and_layout_are_the_same_thing(layout):
    assert ParallelLayout.parse(str(layout)) == layout


def test_riders_come_in_the_order_sp_ep_zero():
    layout = ParallelLayout(pp=2, dp=2, cp=2, tp=2, sp=True, ep=2, zero=1)
    assert str(layout) == "pp2-dp2-cp2-tp2+sp+ep2+zero1"
    assert ParallelLayout.parse(str(layout)) == layout
    assert layout.riders == ("sp", "ep", "zero")
    assert layout.world_size == 16


def test_every_rider_is_read_written_and_offered():
    whole = ParallelLayout(pp=2, dp=2, cp=2, tp=2, **{name: rider.idle + 1 for name, rider in RIDERS.items()})
    assert str(whole).startswith("pp2-dp2-cp2-tp2+sp+ep2+zero1")
    assert ParallelLayout.parse(str(whole)) == whole
    assert tuple(RIDERS) == whole.riders
    assert list(whole.columns) == [*AXES, *RIDERS]
    with pytest.raises(LayoutError) as error:
        ParallelLayout.parse("fsdp")
    assert "Allowed are the axes pp, dp, cp, tp with a degree, then +sp, +epN, +zeroN" in str(error.value)
    assert all(f"+{name}" in str(error.value) for name in RIDERS)


@pytest.mark.parametrize("name", RIDERS)
def test_a_rider_alone_is_idle_and_is_not_written(name):
    rider, idle = RIDERS[name], ParallelLayout(tp=4)
    assert getattr(idle, name) == rider.idle
    assert name not in idle.riders
    assert rider.stands_alone == bool(rider.over) == bool(rider.does) == (not rider.refusal)


@pytest.mark.parametrize(("name", "number"), [("ep", 0), ("zero", 4), ("zero", -1)])
def test_a_number_that_a_rider_cannot_have_is_refused_with_those_that_it_can(name, number):
    with pytest.raises(LayoutError, match=f" {number}; allowed are "):
        ParallelLayout(**{name: number})


def test_every_group_has_one_name():
    assert len(set(GROUPS)) == len(GROUPS)


def test_one_rank_is_written_tp1():
    assert str(ParallelLayout()) == "tp1"
    assert ParallelLayout.parse("tp1") == ParallelLayout()
    assert str(ParallelLayout(zero=1)) == "tp1+zero1"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("tp2-dp2", "dp2-tp2"),
        ("dp1-tp2", "tp2"),
        ("TP2", "tp2"),
        (" tp2", "tp2"),
        ("tp02", "tp2"),
        ("tp2-sp", "tp2+sp"),
        ("tp2+", "tp2"),
        ("dp1", "tp1"),
        ("tp=2, dp=2", "dp2-tp2"),
        ("dp2+zero0", "dp2"),
        ("dp2+ep1", "dp2"),
        ("dp2+zero1+ep2", "dp2+ep2+zero1"),
        ("dp2--tp2", "dp2-tp2"),
    ],
)
def test_another_spelling_is_refused_with_the_canonical_one(written, canonical):
    with pytest.raises(LayoutError) as error:
        ParallelLayout.parse(written)
    assert str(error.value) == f"layout '{written}' is written '{canonical}'."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "layout '' is empty; one rank alone is written 'tp1'."),
        ("ttp2", "layout 'ttp2': unknown name 'ttp'. Did you mean 'tp'?"),
        ("zer1", "layout 'zer1': unknown name 'zer'. Did you mean 'zero'?"),
        ("tp", "layout 'tp': 'tp' lacks its number, as in 'tp2'."),
        ("2tp", "layout '2tp': '2tp' cannot be read. Allowed are the axes pp, dp, cp, tp with a degree"),
        ("tp0", "layout 'tp0' gives tp the degree 0; allowed are 1 to 1000000."),
        ("tp1000001", "layout 'tp1000001' gives tp the degree 1000001; allowed are 1 to 1000000."),
        ("dp1000-tp2000", "layout 'dp1000-tp2000' needs dp1000 x tp2000 = 2000000 ranks; allowed are at most 1000000."),
        ("tp2-tp2", "layout 'tp2-tp2' says tp twice."),
        ("tp*", "layout 'tp*': 'tp*' is not possible; only 'dp*' takes the ranks that are left."),
        ("tp2+sp2", "layout 'tp2+sp2': 'sp2' has a number, but sp goes over all tp ranks. Write '+sp'."),
        ("dp2+sp", "layout 'dp2+sp' has +sp, which splits the sequence over tp ranks, but tp is 1."),
        ("dp4+ep3", "layout 'dp4+ep3' has ep3, which does not divide dp4 = 4 ranks of one pipeline stage."),
        ("tp2+ep2", "layout 'tp2+ep2' has ep2 with tp2; experts over tp ranks need '+sp'"),
        ("pp2+ep2", "layout 'pp2+ep2' has ep2, which does not divide tp1 = 1 ranks of one pipeline stage."),
        ("dp2+zero4", "layout 'dp2+zero4' asks for ZeRO stage 4; allowed are zero1 (optimizer states)"),
        ("dp*-tp2", "layout 'dp*-tp2' takes the ranks that are left, but how many ranks there are is not known here."),
        ("tp-2", "layout 'tp-2': 'tp' lacks its number"),
        ("tp²", "layout 'tp²': 'tp²' cannot be read."),
    ],
)
def test_nonsense_is_answered_with_what_is_allowed(text, message):
    with pytest.raises(LayoutError) as error:
        ParallelLayout.parse(text)
    assert str(error.value).startswith(message)


def test_thousands_of_digits_are_an_error_like_any_other():
    with pytest.raises(LayoutError, match="too large") as error:
        ParallelLayout.parse("tp" + "9" * 10_000)
    assert len(str(error.value)) < 300


@given(st.text(max_size=20))
def test_any_text_is_a_layout_or_a_layout_error(text):
    with contextlib.suppress(LayoutError):
        assert str(ParallelLayout.parse(text, world_size=8)) == text or "dp*" in text


def test_dp_star_takes_the_ranks_that_are_left():
    assert ParallelLayout.parse("pp2-dp*-tp4+sp", world_size=64) == ParallelLayout(pp=2, dp=8, tp=4, sp=True)
    assert str(ParallelLayout.parse("dp*-tp4", world_size=4)) == "tp4"
    assert ParallelLayout.parse("dp*", world_size=1).world_size == 1


@pytest.mark.parametrize(
    ("text", "world_size", "message"),
    [
        ("dp*-tp3", 8, "layout 'dp*-tp3' leaves no whole number of ranks to dp: 8 ranks / (tp3 = 3) = 2.667."),
        (
            "pp2-dp*-tp8",
            8,
            "layout 'pp2-dp*-tp8' leaves no whole number of ranks to dp: 8 ranks / (pp2 x tp8 = 16) = 0.5.",
        ),
        ("tp2-dp*", 8, "layout 'tp2-dp*' is written 'dp*-tp2'."),
    ],
)
def test_dp_star_that_does_not_come_out_even_shows_the_equation(text, world_size, message):
    with pytest.raises(LayoutError) as error:
        ParallelLayout.parse(text, world_size)
    assert str(error.value) == message


def test_dp_star_beside_a_degree_of_zero_blames_the_zero():
    with pytest.raises(LayoutError, match="gives tp the degree 0"):
        ParallelLayout.parse("dp*-tp0", world_size=8)


def test_uses_covers_axes_and_riders():
    layout = ParallelLayout.parse("pp2-tp2+sp")
    used = {name for name in ("pp", "dp", "cp", "tp", "sp", "ep", "zero") if layout.uses(name)}
    assert used == {"pp", "tp", "sp"}
    with pytest.raises(LayoutError, match="not an axis"):
        layout.uses("fsdp")


def test_megatron_groups_are_those_of_its_docstring():
    # NVIDIA/Megatron-LM, parallel_state.initialize_model_parallel: 16 GPUs, TP 2, PP 4, so DP 2.
    layout = ParallelLayout(pp=4, dp=2, tp=2)
    assert layout.groups("tp") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert layout.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert layout.groups("cp") == [[rank] for rank in range(16)]


def test_llama3_groups_are_those_of_its_figure_5():
    # arXiv:2407.21783, figure 5: TP 2, CP 2, PP 2, DP 2. GPU0 and GPU1 share TP, 0 and 2 CP, 0 and 4 PP, 0 and 8 DP.
    layout = ParallelLayout(pp=2, dp=2, cp=2, tp=2)
    firsts = {axis: layout.groups(axis, "llama3")[0] for axis in AXES}
    assert firsts == {"tp": [0, 1], "cp": [0, 2], "pp": [0, 4], "dp": [0, 8]}


def test_megatron_and_llama3_differ_in_what_is_outermost():
    layout = ParallelLayout(pp=2, dp=2)
    assert layout.groups("dp", "megatron") == layout.groups("pp", "picotron") == [[0, 1], [2, 3]]
    assert layout.groups("pp", "megatron") == layout.groups("dp", "picotron") == [[0, 2], [1, 3]]


@pytest.mark.parametrize("rank_order", RANK_ORDERS)
def test_ranks_coordinates_groups_and_mesh_agree(rank_order):
    layout = ParallelLayout(pp=2, dp=3, cp=2, tp=4)
    mesh = layout.mesh_ranks(rank_order)
    for rank in range(layout.world_size):
        place = layout.coordinates(rank, rank_order)
        assert layout.rank_of(place, rank_order) == rank
        assert mesh[place["pp"]][place["dp"]][place["cp"]][place["tp"]] == rank
    for axis in AXES:
        groups = layout.groups(axis, rank_order)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert groups == sorted(groups)
        for group in groups:
            places = [layout.coordinates(rank, rank_order) for rank in group]
            assert [place.pop(axis) for place in places] == list(range(layout.degree(axis)))
            assert all(place == places[0] for place in places)


@pytest.mark.parametrize("rank_order", RANK_ORDERS)
def test_expert_groups_stay_within_a_pipeline_stage(rank_order):
    layout = ParallelLayout.parse("pp2-dp2-cp2-tp2+sp+ep4")
    groups = layout.expert_groups(rank_order)
    assert sorted(rank for group in groups for rank in group) == list(range(16))
    assert all(len({layout.coordinates(rank, rank_order)["pp"] for rank in group}) == 1 for group in groups)


def test_expert_groups_are_consecutive_when_pp_is_outermost():
    # Megatron-Core's expert generator: etp, ep, edp, pp from inner to outer.
    layout = ParallelLayout.parse("pp2-dp4+ep2")
    assert layout.expert_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # picotron has dp outside pp, so the ranks of one stage are every second one.
    assert layout.expert_groups("picotron") == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(
    ("text", "views"),
    [
        ("tp1", ()),
        ("dp4", ()),
        ("dp2-cp2", ("dp_cp",)),
        ("dp2+ep2", ("ep",)),
        ("dp4+ep2", ("ep", "edp")),
        ("pp2", ("ends",)),
        ("pp2-dp2-cp2-tp2+sp+ep2", ("dp_cp", "ep", "edp", "ends")),
    ],
)
def test_a_layout_has_a_view_where_its_groups_are_no_axis(text, views):
    layout = ParallelLayout.parse(text)
    assert layout.views == views
    for view in views:
        assert {len(group) for group in layout.groups(view)} == {layout.degree(view)}


def test_the_views_of_sixteen_ranks_with_the_pipeline_outermost():
    layout = ParallelLayout.parse("pp2-dp2-cp2-tp2+sp+ep2")
    for order in ("megatron", "torchtitan", "deepspeed", "nanotron"):
        assert layout.groups("dp_cp", order) == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
        assert layout.groups("ep", order) == [[rank, rank + 1] for rank in range(0, 16, 2)]
        assert layout.groups("edp", order) == layout.groups("dp_cp", order)  # ep is where tp is
        assert layout.groups("ends", order) == [[rank, rank + 8] for rank in range(8)]


def test_the_views_of_sixteen_ranks_with_data_outermost():
    layout = ParallelLayout.parse("pp2-dp2-cp2-tp2+sp+ep2")
    for order in ("picotron", "llama3", "calculon"):
        assert layout.groups("dp_cp", order) == [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
        assert layout.groups("ep", order) == [[rank, rank + 1] for rank in range(0, 16, 2)]
        assert layout.groups("edp", order) == layout.groups("dp_cp", order)
        assert layout.groups("ends", order) == [
            [first, first + 4] for start in (0, 8) for first in range(start, start + 4)
        ]


@pytest.mark.parametrize("rank_order", RANK_ORDERS)
def test_copies_of_an_expert_are_one_in_each_expert_group_of_a_stage(rank_order):
    layout = ParallelLayout.parse("pp2-dp2-cp2-tp2+sp+ep4")
    sets = layout.groups("ep", rank_order)
    for copies in layout.groups("edp", rank_order):
        assert len({layout.coordinates(rank, rank_order)["pp"] for rank in copies}) == 1
        homes = [next(group for group in sets if rank in group) for rank in copies]
        assert len(set(map(tuple, homes))) == len(copies) == 2
        assert len({home.index(rank) for home, rank in zip(homes, copies, strict=True)}) == 1


def test_an_unknown_rank_order_suggests_the_nearest():
    with pytest.raises(LayoutError) as error:
        ParallelLayout(tp=2).groups("tp", "megatorn")
    assert str(error.value).startswith("unknown rank order 'megatorn'. Did you mean 'megatron'? Allowed: megatron, ")


def test_a_rank_or_place_outside_the_mesh_is_refused():
    layout = ParallelLayout(tp=2)
    with pytest.raises(LayoutError, match="layout 'tp2' has ranks 0 to 1, not 2"):
        layout.coordinates(2)
    with pytest.raises(LayoutError, match="has tp coordinates 0 to 1, not 2"):
        layout.rank_of({"tp": 2})


@pytest.mark.parametrize(
    ("text", "world_size", "layout"),
    [
        ("dp*-tp4", 8, "dp2-tp4"),
        ("dp*-tp4", 2, "tp4"),
        ("dp*-tp4", 6, "dp2-tp4"),
        ("pp2-dp*-tp2+sp+ep4", 4, "pp2-dp2-tp2+sp+ep4"),  # ep takes two dp ranks
        ("dp*-tp2+sp+ep3", 8, "dp6-tp2+sp+ep3"),
        ("tp8", 2, "tp8"),
    ],
)
def test_a_layout_that_does_not_come_out_even_takes_the_next_number_of_ranks(text, world_size, layout):
    assert str(ParallelLayout.fitting(text, world_size)) == layout


def test_what_can_never_come_out_even_is_still_refused():
    with pytest.raises(LayoutError, match="degree 0"):
        ParallelLayout.fitting("dp*-tp0", world_size=8)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 24))
def test_every_layout_uses_all_ranks_and_comes_once(num_nodes, ranks_per_node, num_experts):
    found = list(every_layout(num_nodes * ranks_per_node, num_experts, ranks_per_node))
    assert {layout.world_size for layout in found} == {num_nodes * ranks_per_node}
    assert len(set(found)) == len(found)


def test_every_layout_of_four_ranks():
    # 10 ways of sharing 4 ranks among pp, dp, cp and tp; of those, pp4, pp2-tp2 and tp4 have nothing ZeRO could share
    assert len(list(every_layout(4))) == 7 * 3 + 3


def test_every_layout_of_a_shape_with_experts_spreads_them_too():
    # ep may be 2 and 4 on the 7 x 3 + 3 layouts but for pp2 (two ranks a stage: ep2 alone) and pp4 (one: none)
    found = [layout for layout in every_layout(4, num_experts=8) if layout.ep > 1]
    one_stage = 5 * 3 + 1  # dp4, dp2-tp2, dp2-cp2, cp2-tp2, cp4 with three stages of ZeRO, and tp4
    two_stages = 2 * 3 + 1
    assert len(found) == 2 * one_stage + two_stages
    assert {layout.ep for layout in every_layout(8, num_experts=6)} == {1, 2}


def test_the_layouts_of_clusters_that_are_powers_of_two_are_those_of_earlier_versions():
    """They are cases of suites on record: which there are, and in which order."""
    asked = [(world_size, experts) for world_size in (1, 2, 4, 8, 64, 512) for experts in (0, 8, 160)]
    for per_node in (1, 4, 8):
        found = [
            f"{size} {experts} {each}\n" for size, experts in asked for each in every_layout(size, experts, per_node)
        ]
        digest = hashlib.sha256("".join(found).encode()).hexdigest()
        assert (len(found), digest[:16]) == (9825, "82d752efae35e8de")


def test_stages_and_experts_take_any_divisor_of_ranks_that_are_no_power_of_two():
    """As 12 stages of BLOOM (tp4-pp12-dp8), 15 of a model with 60 layers, and 160 experts over 20 ranks."""
    found = every_layout(384, num_experts=160, ranks_per_node=8)
    assert ParallelLayout.parse("pp12-dp8-tp4+sp") in found
    assert {layout.pp for layout in every_layout(120)} == {1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120}
    assert {layout.ep for layout in every_layout(160, num_experts=160)} == {1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 80, 160}
    assert {layout.cp for layout in found} == {2**exponent for exponent in range(8)}
    assert {layout.tp for layout in found} == {2**exponent for exponent in range(8)}


def test_tp_takes_any_divisor_of_a_node_that_is_no_power_of_two():
    assert {layout.tp for layout in every_layout(24, ranks_per_node=6)} == {1, 2, 3, 4, 6, 8}
    assert {layout.tp for layout in every_layout(20, ranks_per_node=5)} == {1, 2, 4, 5}
    assert {layout.tp for layout in every_layout(20, ranks_per_node=4)} == {1, 2, 4}


def test_a_tp_that_is_no_power_of_two_comes_without_sp_too():
    """It divides no sequence whose length is a power of two, which +sp would cut."""
    found = [str(layout) for layout in every_layout(6, num_experts=3, ranks_per_node=6) if layout.tp == 3]
    assert found[:4] == ["dp2-tp3+sp", "dp2-tp3+sp+zero1", "dp2-tp3+sp+zero3", "dp2-tp3+sp+ep3"]
    assert found[6:9] == ["dp2-tp3", "dp2-tp3+zero1", "dp2-tp3+zero3"]


def test_a_tp_that_divides_no_sequence_comes_without_sp_too():
    found = every_layout(8, num_experts=8, seq_len=4100)
    without = [str(layout) for layout in found if layout.tp > 1 and not layout.sp]
    assert without == ["tp8", "cp2-tp4", "cp2-tp4+zero1", "cp2-tp4+zero3", "cp4-tp2", "cp4-tp2+zero1", "cp4-tp2+zero3"]
    assert [layout for layout in found if str(layout) not in without] == list(every_layout(8, num_experts=8))


def test_with_tp_every_layout_has_sp():
    assert all(layout.sp == (layout.tp > 1) for layout in every_layout(16))
