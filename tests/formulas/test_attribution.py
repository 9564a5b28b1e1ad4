"""Steps small enough to take apart by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.formulas.attribution import (
    BUBBLE,
    COMPUTE,
    EXPOSED,
    IMBALANCE,
    PARTS,
    REST,
    Carried,
    Claim,
    Line,
    Part,
    RankStep,
    attribute,
    loss_by_part,
    mean_share,
    shared_out,
    waited_for,
)
from clusterbench.formulas.intervals import exposed_communication

DP, TP, PP = Line("dp", 0), Line("tp", 0), Line("pp", 0, "0>1")


def shown(*seconds: float) -> list[Carried]:
    """Transfers that nothing hides."""
    return [Carried(second, second) for second in seconds]


def nonzero(parts: dict[Part, float]) -> dict[str, float]:
    return {"/".join(filter(None, part)): round(seconds, 9) for part, seconds in parts.items() if seconds}


def means(ranks: list[RankStep]) -> dict[str, float]:
    """The parts of a step of 1 s."""
    return {"/".join(filter(None, part)): share for part, (share, _, _) in mean_share(attribute(ranks)).items()}


def test_equal_ranks_lose_nothing_to_each_other() -> None:
    ranks = [RankStep(0, 10.0, 6.0, {DP: shown(1.0, 2.0)}) for _ in range(4)]
    assert [nonzero(parts) for parts in attribute(ranks)] == [
        {"compute": 6.0, "exposed_communication/dp": 3.0, "rest": 1.0}
    ] * 4


def test_the_whole_delay_of_one_slow_rank_is_imbalance_whether_it_idles_or_computes() -> None:
    waits = RankStep(0, 10.0, 6.0, {DP: shown(4.0)})
    expected = {"compute": 6.0, "exposed_communication/dp": 1.0, "imbalance": 3.0}
    for slow in (RankStep(0, 10.0, 6.0, {DP: shown(1.0)}), RankStep(0, 10.0, 9.0, {DP: shown(1.0)})):
        for parts in attribute([slow, waits, waits]):
            assert nonzero(parts) == expected


def test_ranks_that_are_late_in_turn_are_out_of_balance_though_they_compute_equally_long() -> None:
    ranks = [RankStep(0, 10.0, 5.0, {TP: shown(1.0, 4.0)}), RankStep(0, 10.0, 5.0, {TP: shown(4.0, 1.0)})]
    for parts in attribute(ranks):
        assert nonzero(parts) == {"compute": 5.0, "exposed_communication/tp": 2.0, "imbalance": 3.0}


def test_a_slower_axis_is_exposed_communication_of_that_axis() -> None:
    def parts(tp_s: float) -> dict[str, float]:
        ranks = [RankStep(0, 8.0 + tp_s, 5.0, {TP: shown(tp_s), DP: shown(1.0)}) for _ in range(2)]
        return nonzero(attribute(ranks)[0])

    assert parts(4.0) == {**parts(1.0), "exposed_communication/tp": 4.0}


def test_waiting_for_another_stage_is_bubble() -> None:
    first = RankStep(0, 10.0, 5.0, {PP: shown(1.0, 1.0), Line("pp", 0, "1>0"): shown(3.0)})
    last = RankStep(1, 10.0, 8.0, {PP: shown(1.0, 0.0), Line("pp", 0, "1>0"): shown(1.0)})
    assert [nonzero(parts) for parts in attribute([first, last])] == [
        {"compute": 5.0, "exposed_communication/pp": 2.0, "bubble": 3.0},
        {"compute": 8.0, "exposed_communication/pp": 2.0},
    ]


def test_a_collective_between_stages_is_waited_for_in_the_bubble_too() -> None:
    line = Line("pp", 0)
    parts = attribute([RankStep(0, 10.0, 9.0, {line: shown(1.0)}), RankStep(1, 10.0, 4.0, {line: shown(6.0)})])
    assert nonzero(parts[1]) == {"compute": 4.0, "exposed_communication/pp": 1.0, "bubble": 5.0}


def test_a_stage_that_idles_longer_than_another_is_a_bubble_on_both() -> None:
    ranks = [RankStep(0, 10.0, 5.0, {PP: shown(4.0)}), RankStep(1, 10.0, 5.0, {PP: shown(1.0)})]
    for parts in attribute(ranks):
        assert nonzero(parts) == {"compute": 5.0, "exposed_communication/pp": 1.0, "bubble": 3.0, "rest": 1.0}


def test_a_slow_rank_of_one_stage_is_imbalance_also_where_the_next_stage_waits_for_it() -> None:
    # dp2 x pp2; the first rank of stage 0 idles for 3 s more, its next stage and its dp peer wait for it
    def rank(place: int, dp_s: float, pp_s: float, replica: int) -> RankStep:
        return RankStep(place, 10.0, 5.0, {Line("dp", 2 * place): shown(dp_s), Line("pp", replica, "0>1"): shown(pp_s)})

    ranks = [rank(0, 1.0, 0.5, 0), rank(0, 4.0, 0.5, 1), rank(1, 1.0, 3.5, 0), rank(1, 4.0, 0.5, 1)]
    for parts in attribute(ranks):
        assert parts[IMBALANCE, ""] == pytest.approx(3.0)
        assert parts[BUBBLE, ""] == pytest.approx(0.0)


def staged(place: int, replica: int, dp_s: float, received_s: float = 0.5) -> RankStep:
    """A rank of dp2 and so many stages, which sends to the next and waits for its row of the one before."""
    lines = {Line("dp", 2 * place): shown(dp_s), Line("pp", replica, f"{place}>{place + 1}"): shown(0.5)}
    if place:
        lines[Line("pp", replica, f"{place - 1}>{place}")] = shown(received_s)
    return RankStep(place, 10.0, 3.0, lines)


def test_a_rank_that_came_late_since_it_waited_for_a_stage_is_not_the_one_that_was_waited_for() -> None:
    slow, slowed, slowed_too = staged(0, 1, 1.0), staged(1, 1, 1.0, 3.5), staged(2, 1, 1.0, 3.5)
    ranks = [staged(0, 0, 4.0), slow, staged(1, 0, 4.0), slowed, staged(2, 0, 4.0), slowed_too]
    assert waited_for(ranks) == pytest.approx([0, 9.0, 0, 0, 0, 0])


def test_a_delay_that_several_replicas_wait_for_is_passed_on_whole() -> None:
    first = [staged(0, 0, 4.0), staged(0, 1, 1.0), staged(0, 2, 4.0), staged(0, 3, 4.0)]
    ranks = [*first, staged(1, 0, 4.0), staged(1, 1, 1.0, 3.5), staged(1, 2, 4.0), staged(1, 3, 4.0)]
    assert waited_for(ranks) == pytest.approx([0, 18.0, *[0] * 6])


def test_what_a_later_stage_was_late_by_itself_stays_with_it() -> None:
    ranks = [staged(0, 0, 4.0), staged(0, 1, 1.0), staged(1, 0, 6.0), staged(1, 1, 1.0, 3.5)]
    assert waited_for(ranks) == pytest.approx([0, 6.0, 0, 2.0])


def test_what_compute_hid_of_a_wait_is_nobodys_loss() -> None:
    early = RankStep(0, 10.0, 9.0, {DP: [Carried(1.0, 6.0)]})
    late = RankStep(0, 10.0, 9.0, {DP: [Carried(1.0, 2.0)]})
    for parts in attribute([early, late]):
        assert nonzero(parts) == {"compute": 9.0, "exposed_communication/dp": 1.0}


def test_transfers_that_the_peer_did_not_record_stay_exposed() -> None:
    rank = RankStep(0, 10.0, 6.0, {DP: shown(4.0)})
    for peer in (RankStep(0, 10.0, 6.0, {DP: shown(1.0, 3.0)}), RankStep(0, 10.0, 10.0)):
        assert nonzero(attribute([rank, peer])[0])["exposed_communication/dp"] == 4.0


def test_a_step_shorter_than_its_parts_is_no_step() -> None:
    with pytest.raises(ValueError, match=r"^a rank computed for 6 s and communicated for 5 s in a step of 10 s$"):
        attribute([RankStep(0, 10.0, 6.0, {DP: shown(5.0)})])


seconds = st.floats(0, 5)


@st.composite
def steps(draw: st.DrawFn) -> list[RankStep]:
    """Four ranks, in two stages of two, each with its own time for everything."""
    ranks = []
    for number in range(4):
        place, replica = divmod(number, 2)
        count = 3
        lines = [Line("dp", 2 * place), Line("pp", replica), Line("pp", replica, "0>1")]
        transfers = {line: [Carried(*sorted((draw(seconds), draw(seconds)))) for _ in range(count)] for line in lines}
        busy_s = sum(transfer.exposed_s for of_line in transfers.values() for transfer in of_line)
        compute_s = draw(seconds)
        ranks.append(RankStep(place, busy_s + compute_s + draw(seconds) + 1e-3, compute_s, transfers))
    return ranks


@given(steps())
def test_the_parts_of_every_rank_sum_to_its_step_and_none_is_negative(ranks: list[RankStep]) -> None:
    for rank, parts in zip(ranks, attribute(ranks), strict=True):
        assert sum(parts.values()) == pytest.approx(rank.step_s)
        assert min(parts.values()) > -1e-9
        assert {name for name, _ in parts} <= set(PARTS)
    assert sum(means(ranks).values()) == pytest.approx(1.0)


claims = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 3)).map(
        lambda drawn: Claim(drawn[0], drawn[0] + drawn[1], drawn[2])
    ),
    max_size=8,
)
busy = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=8)


@given(claims, busy)
def test_every_moment_of_exposed_communication_has_one_owner(
    claimed: list[Claim], taken: list[tuple[float, float]]
) -> None:
    assert sum(shared_out(claimed, taken).values()) == exposed_communication([claim[:2] for claim in claimed], taken)


def test_a_moment_belongs_to_what_began_last() -> None:
    background, waited_for = Claim(0.0, 10.0, 0), Claim(2.0, 5.0, 1)
    assert shared_out([background, waited_for], []) == {0: 7.0, 1: 3.0}


def test_the_parts_of_a_loss_sum_to_it() -> None:
    # strong scaling from 1 rank to 4: 2 s would be ideal, 3.5 s it took
    lost = loss_by_part({(COMPUTE, ""): 2.5, (EXPOSED, "tp"): 1.0}, {(COMPUTE, ""): 7.0, (REST, ""): 1.0}, 1 / 4)
    assert lost == {(COMPUTE, ""): 0.75, (EXPOSED, "tp"): 1.0, (REST, ""): -0.25}
    assert sum(lost.values()) == 3.5 - 8.0 / 4
