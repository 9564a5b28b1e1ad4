"""Pipeline orders against torch's own tables, and steps played through against closed forms and published rates."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.formulas.pipeline import bubble_fraction, microbatches_in_flight, zero_bubble_h1, zero_bubble_h2
from clusterbench.formulas.schedules import SCHEDULES, default_chunks, objection, order, stages_of
from clusterbench.formulas.schedules.memory import (
    backwards,
    behind_forwards,
    fullest_moments,
    in_flight,
    last_moments,
    peak_held,
    rank_order,
)
from clusterbench.formulas.schedules.messages import Messages, messages
from clusterbench.formulas.schedules.orders import Action
from clusterbench.formulas.schedules.timeline import bubble_formula, costs_in_torch, placement, play

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
TORCHS = [schedule for schedule in SCHEDULES if SCHEDULES[schedule].torch_class]
UNIT = {"F": 1.0, "I": 1.0, "W": 1.0}


def words(actions):
    return " ".join(map(str, actions))


@st.composite
def accepted(draw):
    """A schedule with sizes that torch accepts."""
    schedule = draw(st.sampled_from(list(SCHEDULES)))
    chunks = draw(st.integers(1, 4)) if SCHEDULES[schedule].any_chunks else default_chunks(schedule)
    num_ranks = draw(st.integers(1, 8))
    sizes = [m for m in range(1, 25) if objection(schedule, num_ranks, m, chunks) is None]
    return schedule, num_ranks, draw(st.sampled_from(sizes)), chunks


# --- The orders -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchs_orders():
    command = [sys.executable, "-m", "tests.formulas.torch_orders"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("schedule", TORCHS)
def test_the_order_is_torchs(torchs_orders, schedule):
    cases = [(sizes, table) for name, *sizes, table in torchs_orders if name == schedule and isinstance(table, list)]
    assert len(cases) > 15
    for sizes, table in cases:
        mine = [list(map(str, actions)) for actions in order(schedule, *sizes)]
        if schedule == "1f1b":  # torch 2.13's table starts the last rank with microbatch 1; its training does not
            mine, table = mine[:-1], table[:-1]
        assert mine == table, sizes


@pytest.mark.parametrize("schedule", TORCHS)
def test_what_torch_refuses_has_an_objection_and_nothing_else_has(torchs_orders, schedule):
    refusals = {tuple(sizes): isinstance(table, str) for name, *sizes, table in torchs_orders if name == schedule}
    assert refusals == {sizes: objection(schedule, *sizes) is not None for sizes in refusals}


def test_the_last_rank_of_1f1b_alternates_from_the_start():
    assert words(order("1f1b", 4, 4, 1)[-1]) == "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3"


def test_the_first_rank_of_1f1b_is_three_forwards_ahead_of_four():
    assert words(order("1f1b", 4, 5, 1)[0]) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4"


def test_a_naive_rank_finishes_a_microbatch_before_the_next():
    assert words(order("naive", 4, 2, 1)[1]) == "1F0 1B0 1F1 1B1"


@given(accepted())
def test_every_stage_computes_every_microbatch_once_and_the_step_ends(case):
    schedule, num_ranks, num_microbatches, chunks = case
    orders = order(*case)
    counts = Counter(action for actions in orders for action in actions)
    for rank in range(num_ranks):
        for stage in stages_of(schedule, num_ranks, chunks, rank):
            for microbatch in range(num_microbatches):
                forward, whole, *split = (counts.pop(Action(kind, stage, microbatch), 0) for kind in "FBIW")
                assert forward == 1
                assert (whole, *split) in [(1, 0, 0), (0, 1, 1)]
    assert not counts
    timeline = play(orders, UNIT, send_s=0.5)
    assert timeline.busy_s == (3.0 * num_microbatches * chunks,) * num_ranks
    assert timeline.makespan_s >= 3.0 * num_microbatches * chunks


@given(accepted())
def test_stages_are_where_they_are_said_to_be(case):
    schedule, num_ranks, _, chunks = case
    rank_of = {stage: rank for rank in range(num_ranks) for stage in stages_of(schedule, num_ranks, chunks, rank)}
    assert placement(order(*case)) == rank_of
    assert sorted(rank_of) == list(range(num_ranks * chunks))


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (("gpipe", 4, 8, 2), "gpipe needs exactly 1 chunk per rank, not 2."),
        (("zbv", 4, 8, 3), "zbv needs exactly 2 chunks per rank, not 3."),
        (("1f1b", 4, 3, 1), "1f1b needs as many microbatches as stages: at least 4, not 3; gpipe takes fewer."),
        (("looped_bfs", 4, 0, 2), "looped_bfs needs at least 1 microbatch, not 0."),
        (
            ("dualpipev", 8, 12, 2),
            "dualpipev needs as many microbatches as stages: at least 16 for 8 ranks of 2 chunks, not 12.",
        ),
        (
            ("interleaved_1f1b", 3, 10, 2),
            "interleaved_1f1b on 3 ranks runs 10 microbatches in 3 rounds, but 10 is not a multiple of 3; "
            "9 and 12 microbatches are accepted.",
        ),
    ],
)
def test_an_objection_says_what_would_do(case, sentence):
    assert objection(*case) == sentence
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        order(*case)


@given(st.integers(1, 8), st.integers(1, 24), st.integers(1, 3))
def test_the_sizes_an_objection_proposes_are_accepted(num_ranks, num_microbatches, chunks):
    sentence = objection("interleaved_zero_bubble", num_ranks, num_microbatches, chunks)
    if sentence:
        proposed = sentence.split("; ")[1].split(" microbatches")[0].split(" and ")
        assert [objection("interleaved_zero_bubble", num_ranks, int(m), chunks) for m in proposed] == [None, None]


def test_an_unknown_schedule_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'1b1f' is no pipeline schedule; there are naive, gpipe, 1f1b, "):
        order("1b1f", 4, 8, 1)


# --- Time -------------------------------------------------------------------------------------------------------------

# Largest idle share of torch's tables at F = I = W, B = 2 F, for (ranks, microbatches).
GOLDEN = {
    "gpipe": {(4, 8): 0.2727, (8, 16): 0.3043, (16, 64): 0.1899},
    "1f1b": {(4, 8): 0.2727, (8, 16): 0.3043, (16, 64): 0.1899},
    "interleaved_1f1b": {(4, 8): 0.1579, (8, 16): 0.1795, (16, 64): 0.1049},
    "looped_bfs": {(4, 8): 0.1579, (8, 16): 0.1795, (16, 64): 0.1049},
    "interleaved_zero_bubble": {(4, 8): 0.0588, (8, 16): 0.0680, (16, 64): 0.0376},
    "zbv": {(4, 8): 0.0588, (8, 16): 0.0680, (16, 64): 0.0376},
    "dualpipev": {(4, 8): 0.0588, (8, 16): 0.0680, (16, 64): 0.0376},
}


@pytest.mark.parametrize("schedule", GOLDEN)
def test_the_idle_share_is_that_of_torchs_table(schedule):
    for (p, m), bubble in GOLDEN[schedule].items():
        assert play(order(schedule, p, m, default_chunks(schedule)), UNIT).bubble == pytest.approx(bubble, abs=5e-5)


@given(accepted())
def test_where_there_is_a_closed_form_the_step_played_through_has_it(case):
    formula = bubble_formula(*case)
    if formula:
        assert play(order(*case), UNIT).bubble == pytest.approx(formula.value)


@pytest.mark.parametrize(("forward_s", "backward_s"), [(1.0, 1.0), (2.0, 3.0), (1.0, 4.0)])
@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"])
def test_without_split_backward_the_closed_form_is_that_of_any_costs(schedule, forward_s, backward_s):
    timeline = play(order(schedule, 4, 8, default_chunks(schedule)), {"F": forward_s, "B": backward_s})
    assert timeline.bubble == pytest.approx(bubble_formula(schedule, 4, 8, default_chunks(schedule)).value)


@pytest.mark.parametrize("case", [("interleaved_1f1b", 4, 3, 2), ("zbv", 4, 6, 2), ("1f1b", 4, 3, 1)])
def test_where_no_closed_form_is_right_there_is_none(case):
    assert bubble_formula(*case) is None


def test_one_chunk_of_interleaved_zero_bubble_is_zb_h1():
    step = play(order("interleaved_zero_bubble", 4, 12, 1), {"F": 2.0, "I": 3.0, "W": 1.0})
    assert step.bubble == pytest.approx(zero_bubble_h1(4, 12, forward_s=2.0, inputs_s=3.0, weights_s=1.0))


def zb_h2(p, m):
    """Twice the forwards of ZB-H1 ahead, and each W twice as late; figure 3 of Qi et al. 2023, arXiv:2401.10241."""
    orders = []
    for rank in range(p):
        ahead, late = min(2 * (p - 1 - rank), m), 2 * rank
        actions = [Action("F", rank, k) for k in range(ahead)]
        for k in range(m):
            actions += [Action("F", rank, ahead + k)] if ahead + k < m else []
            actions += [Action("I", rank, k), *([Action("W", rank, k - late)] if k >= late else [])]
        orders.append(actions + [Action("W", rank, k) for k in range(max(0, m - late), m)])
    return orders


@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 12), (8, 24)])
def test_zb_h2_idles_on_no_stage_and_yet_a_step_with_one_end_is_no_shorter_than_zb_h1(p, m):
    """So it needs steps without a norm over all stages, as the paper's have; ours clip by one."""
    step, orders = play(zb_h2(p, m), UNIT), zb_h2(p, m)
    assert [played[-1].end_s - played[0].start_s for played in step.ranks] == [3.0 * m] * p
    assert zero_bubble_h2(p, m, 1.0, 1.0, 1.0) == 0
    assert [peak_held(actions, lambda stage: 1) for actions in orders] == [2 * p - 1] * p
    assert step.makespan_s == play(order("interleaved_zero_bubble", p, m, 1), UNIT).makespan_s == 3 * m + p - 1


@pytest.mark.skipif(not DATA.exists(), reason="../shared absent")
@pytest.mark.parametrize("schedule", ["1F1B", "ZB-H1", "ZB-H2"])
def test_bubble_rates_are_those_of_the_zero_bubble_paper(schedule):
    with (DATA / "zero_bubble_profile_times.csv").open(newline="") as file:
        times = {
            row["model"]: [float(row[f"{t}_ms"]) for t in ("tf", "tb", "tw", "tcomm")] for row in csv.DictReader(file)
        }
    with (DATA / "zero_bubble_table5_bubble_rates.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["schedule"] == schedule]
    assert len(rows) == 12
    for row in rows:
        p, m = int(row["pp"]), int(row["microbatches"])
        forward, inputs, weights, send = times[row["model"].removeprefix("GPT-")]
        if schedule == "1F1B":
            rate = play(order("1f1b", p, m, 1), {"F": forward, "I": inputs, "W": weights}, send).bubble
        else:
            closed_form = {"ZB-H1": zero_bubble_h1, "ZB-H2": zero_bubble_h2}[schedule]
            rate = closed_form(p, m, forward, inputs, weights, send)
        # The paper's rates at 3 microbatches per stage follow from its times; at more they lie a little above.
        assert rate == pytest.approx(float(row["bubble_rate"]), abs=5e-5 if m == 3 * p else 6e-3), row


def test_a_send_delays_the_next_rank_and_not_the_next_chunk():
    down_the_v_and_up = [[Action("F", 0, 0), Action("F", 3, 0)], [Action("F", 1, 0), Action("F", 2, 0)]]
    timeline = play(down_the_v_and_up, {"F": 1.0}, send_s=10.0)
    assert [[(start, end) for _, start, end in played] for played in timeline.ranks] == [
        [(0.0, 1.0), (23.0, 24.0)],
        [(11.0, 12.0), (12.0, 13.0)],
    ]


def test_the_slowest_stage_sets_the_pace():
    timeline = play(order("1f1b", 3, 30, 1), {"F": [1.0, 2.0, 1.0], "B": [2.0, 4.0, 2.0]})
    assert timeline.bubbles[1] < 0.05
    assert timeline.bubble == timeline.bubbles[0] > 0.5


def test_a_gradient_leaves_when_a_whole_backward_ends_and_before_the_weights_of_a_split_one():
    whole = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("F", 1, 0), Action("B", 1, 0)]]
    split = [
        [Action(kind, 0, 0) for kind in ("F", "I", "W")],
        [Action(kind, 1, 0) for kind in ("F", "I", "W")],
    ]
    assert play(whole, UNIT).makespan_s == 6.0
    assert play(split, UNIT).makespan_s == 5.0


def test_torchs_first_stage_leaves_its_whole_backward_to_the_weights():
    costs = costs_in_torch(4, forward_s=1.0, inputs_s=2.0, weights_s=1.0)
    step = play(order("interleaved_zero_bubble", 2, 4, 2), costs)
    assert step.busy_s == (4 * 2 * 4.0, 4 * 2 * 4.0)
    first, *_ = [played for played in step.ranks[0] if played.action.kind == "I" and played.action.stage == 0]
    assert first.start_s == first.end_s


def test_ranks_that_wait_for_each_other_are_named():
    orders = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("B", 1, 0), Action("F", 1, 0)]]
    with pytest.raises(ValueError, match="never ends") as deadlock:
        play(orders, UNIT)
    assert str(deadlock.value) == (
        "the schedule never ends: rank 0 waits for 1I0 before 0B0, rank 1 waits for 1F0 before 1B0."
    )


def test_a_kind_of_action_without_a_cost_is_refused():
    with pytest.raises(ValueError, match="the schedule has actions of kind I, but only F, B have a cost"):
        play(order("zbv", 2, 4, 2), {"F": 1.0, "B": 2.0})


def test_costs_for_other_stages_are_refused():
    with pytest.raises(ValueError, match="F has costs for 3 stages, but the schedule has 4"):
        play(order("gpipe", 4, 4, 1), {"F": [1.0, 1.0, 1.0], "B": 2.0})


# --- Memory and messages ----------------------------------------------------------------------------------------------


def test_1f1b_holds_what_its_formula_says_and_gpipe_everything():
    for p, m in [(1, 4), (4, 4), (4, 12), (8, 8)]:
        held = [peak_held(actions, lambda stage: 1) for actions in order("1f1b", p, m, 1)]
        assert held == [microbatches_in_flight(p, m, stage) for stage in range(p)]
        assert [peak_held(actions, lambda stage: 1) for actions in order("gpipe", p, m, 1)] == [m] * p


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (4, 12, 3), (8, 16, 2)])
def test_interleaving_holds_the_published_share_more(p, m, v):
    """Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3: 1 + (p-1)/(p v) times what 1F1B holds."""
    held = peak_held(order("interleaved_1f1b", p, m, v)[0], lambda stage: 1 / v)
    assert held == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv"])
def test_zero_bubble_holds_on_every_rank_what_1f1b_holds_on_the_first(schedule):
    """Qi et al. 2023, arXiv:2401.10241: ZB-1p and ZB-V hold p microbatches."""
    assert [peak_held(actions, lambda stage: 0.5) for actions in order(schedule, 8, 24, 2)] == [8] * 8


def test_stages_are_weighed():
    assert peak_held(order("zbv", 2, 4, 2)[0], lambda stage: {0: 10.0, 3: 0.0}[stage]) == 40.0
    assert in_flight(order("zbv", 2, 4, 2)[0]) == {0: 4, 3: 1}


@given(accepted())
def test_what_is_sent_is_received(case):
    orders, counts = order(*case), messages(*case)
    rank_of = placement(orders)
    for rank, count in enumerate(counts):
        steps = [("F", 1), ("F", -1), ("BI", -1), ("BI", 1)]
        sent = [
            sum(kind in kinds and rank_of.get(stage + step, rank) != rank for kind, stage, _ in orders[rank])
            for kinds, step in steps
        ]
        assert list(count) == sent
    assert sum(c.activations_sent for c in counts) == sum(c.activations_received for c in counts)
    assert sum(c.gradients_sent for c in counts) == sum(c.gradients_received for c in counts)


def test_a_v_needs_no_message_at_its_turn_and_a_loop_goes_round():
    assert messages("zbv", 4, 8, 2)[3] == Messages(8, 8, 8, 8) == messages("zbv", 4, 8, 2)[0]
    assert messages("interleaved_1f1b", 4, 8, 2)[3] == Messages(8, 16, 16, 8)
    assert messages("interleaved_1f1b", 1, 8, 2) == (Messages(0, 0, 0, 0),)


@pytest.mark.parametrize(("p", "m"), [(1, 4), (4, 12), (8, 24)])
def test_played_through_with_free_sending_1f1b_is_the_closed_form(p, m):
    assert play(order("1f1b", p, m, 1), {"F": 1.0, "B": 2.0}).bubble == pytest.approx(bubble_fraction(p, m))


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_moments_of_a_rank_order_peak_where_its_actions_do(schedule: str, p: int, rounds: int, random) -> None:
    chunks = default_chunks(schedule)
    for rank, actions in enumerate(order(schedule, p, 2 * p * rounds, chunks)):
        planned = rank_order(schedule, p, 2 * p * rounds, chunks, rank)
        kept, sent, more = ({stage: random.randint(0, 9) for stage in range(p * chunks)} for _ in range(3))
        held, begun, peaks = Counter(), Counter(), [0, 0]  # where what was sent goes with the backward, and stays
        for kind, stage, _ in actions:
            held[stage] += kind == "F"
            begun[stage] += kind == "F"
            for which, outputs in enumerate((held, begun)):
                now = sum(kept[at] * held[at] + sent[at] * outputs[at] for at in held)
                peaks[which] = max(peaks[which], now + (more[stage] if kind == "F" else 2 * more[stage]))
            held[stage] -= kind in "BW"
        for which, peak in enumerate(peaks):
            assert peak == max(
                sum(kept[at] * at_once[at] + sent[at] * (at_once, begun)[which][at] for at in at_once)
                + (more[stage] if kind == "F" else 2 * more[stage])
                for kind, stage, at_once, begun, *_ in planned.full
            )
        backwards = [(stage, at) for at, (kind, stage, _) in enumerate(actions) if kind != "F"]
        for stage, (first, last) in planned.backwards.items():
            assert [at for other, at in backwards if other == stage][:: len(backwards)] == [first]
            assert max(at for other, at in backwards if other == stage) == last
        for stage, number in planned.behind_forwards.items():
            kinds = [action.kind for action in actions if action.stage == stage]
            assert number == sum(before == "F" for before in ["F", *kinds[:-1]])


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 4), st.integers(1, 3), st.integers(0, 12))
def test_what_follows_from_two_short_orders_is_what_follows_from_all_actions(schedule, p, chunks, more):
    chunks = chunks if SCHEDULES[schedule].any_chunks else default_chunks(schedule)
    m = next(m for m in range(5 * p + more, 9 * p + 13) if objection(schedule, p, m, chunks) is None)
    for rank in range(p):
        planned = rank_order(schedule, p, m, chunks, rank)
        assert planned.in_flight == in_flight(planned.actions)
        assert planned.backwards == backwards(planned.actions)
        assert planned.behind_forwards == behind_forwards(planned.actions)
        assert planned.full == fullest_moments(planned.actions)
        assert planned.ends == last_moments(planned.actions)


def test_nothing_is_written_down_of_many_microbatches():
    planned = rank_order("1f1b", 8, 1_000_000, 1, 0)
    (end,) = planned.ends
    assert (end.begun, planned.backwards) == ({0: 1_000_000}, {0: (8, 1_999_999)})
    assert "actions" not in vars(planned)
