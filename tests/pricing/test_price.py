"""What a step costs follows from amounts and rates, one effect at a time."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from clusterbench.cluster import accelerators
from clusterbench.expectation import Expectation
from clusterbench.pricing import CALLS_OF_AN_OPERATOR, PARTS, parts_of, price, step_seconds, unread_rates
from clusterbench.pricing.profiles.nanotron import Nanotron
from clusterbench.pricing.rates import RATES, KnownRates
from clusterbench.pricing.table import read_steps
from clusterbench.pricing.typical import typical_rates
from clusterbench.pricing.work import Messages, StageWork, StepWork

VALUES = {
    "matmul": 100.0,
    "attention[head_dim=64]": 50.0,
    "memory": 10.0,
    "operator_time": 0.001,
    "half_size": 1e-9,
    "collective_time": 0.001,
    "pipeline_factor": 6.0,
    "busbw[nodes=1,op=all_gather]": 8.0,
    "busbw[nodes=2,op=all_gather]": 4.0,
    "node_network": 8.0,
    "p2p_time": 0.25,
    "p2p_bandwidth": 2.0,
    "step_time": 3.0,
    "model_error": 1.2,
}


def known(**others):
    """Rates that make sums easy, exact unless an interval is given."""
    by_key = {}
    for key, value in (VALUES | others).items():
        low, middle, high = value if isinstance(value, tuple) else (value, value, value)
        by_key[key] = Expectation(middle, RATES[key.split("[")[0]][0], low, high, "file", "made up")
    return KnownRates(by_key)


def stage(**amounts):
    return replace(StageWork(600.0, 100.0, 20.0, 0.0, (), 40.0), **amounts)


def step(*stages, **amounts):
    return replace(
        StepWork(
            head_dim=64,
            num_micro_batches=4,
            stages=stages or (stage(),),
            boundary_bytes=1.0,
            pipeline_nodes=1,
            gradients=(),
            after=(),
            overlap=0.0,
            exposed=1.0,
            optimizer_bytes=50.0,
        ),
        **amounts,
    )


def gather(**how):
    return replace(Messages("tp", "all_gather", ranks=2, nodes=1, sharing=1, size_bytes=16.0), **how)


def test_a_step_of_one_stage_is_its_micro_batches_the_update_and_what_every_step_takes():
    parts = parts_of(step(), known().rates)
    assert parts["compute"] == 4 * (600 / 100 + 100 / 50)
    assert parts["memory"] == 4 * 20 / 10
    assert (parts["optimizer"], parts["overhead"], parts["dp"], parts["bubble"]) == (5.0, 3.0, 0.0, 0.0)
    assert step_seconds(step(), known().rates) == 32 + 8 + 5 + 3


def test_every_part_has_a_name_and_they_add_up():
    work = step(
        stage(messages=(gather(), gather(axis="dp", is_waited_for=False)), operators=9000.0, neighbours=1),
        stage(neighbours=1),
        gradients=(gather(axis="dp"),),
    )
    of = price(work, known())
    assert set(of.parts) <= set(PARTS)
    assert sum(of.parts.values()) == pytest.approx(of.step_s)


def test_a_pipeline_waits_for_its_slowest_stage_and_once_for_each_other():
    work = step(stage(), stage(matmul_flops=1600.0), stage(stages=2))
    parts = parts_of(work, known().rates)
    assert parts["compute"] == 4 * (1600 / 100 + 2)
    assert parts["bubble"] == 3 * (6 + 2 + 2)


def test_stages_within_a_node_send_over_the_link_and_between_nodes_over_a_nic():
    work = step(stage(neighbours=1), stage(neighbours=1), boundary_bytes=16.0)
    within, between = (parts_of(replace(work, pipeline_nodes=nodes), known().rates)["p2p"] for nodes in (1, 2))
    assert within == pytest.approx(4 * 2 * (0.25 + 16 / 8))
    assert between == pytest.approx(4 * 2 * (0.25 + 16 / 2))
    assert "busbw" not in unread_rates(work)
    assert "busbw" in unread_rates(replace(work, pipeline_nodes=2))


def test_interleaving_shortens_the_bubble():
    work = step(stage(), stage(), bubble=0.25)
    assert parts_of(work, known().rates)["bubble"] == 0.25 * 10


def test_messages_cost_their_start_and_their_bytes_over_the_bus():
    # 16 B x 1/2 over 8 B/s three times, in each of four micro-batches
    parts = parts_of(step(stage(messages=(gather(count=3),))), known(collective_time=1e-9).rates)
    assert parts["tp"] == pytest.approx(4 * 3 * 1.0)
    # a message of half_size has half of the bandwidth, and one of 256 MiB what is on record
    sized = known(half_size=2.0**26).rates
    per_byte = [sized.collective_s("all_gather", size, 2, 1, 1) / size for size in (2.0**27, 2.0**28, 2.0**60)]
    assert per_byte[1] == pytest.approx(0.5 / 8)
    assert per_byte[0] == pytest.approx(2 * per_byte[2])


def test_what_passes_behind_products_is_not_paid():
    hidden = parts_of(step(stage(messages=(gather(behind_flops=100.0),))), known().rates)["tp"]
    assert hidden == pytest.approx(0.0, abs=1e-6)
    shown = parts_of(step(stage(messages=(gather(behind_flops=50.0),))), known().rates)["tp"]
    assert shown == pytest.approx(4 * 0.5)
    of_ring = gather(behind_attention=known().rates.attention_at(64) / 4)  # a quarter of the second that it takes
    assert parts_of(step(stage(messages=(of_ring,))), known().rates)["tp"] == pytest.approx(4 * 0.75)


def test_what_shards_send_in_micro_batches_is_paid_beside_what_is_sent_after_them():
    of_shards, of_norm = gather(axis="dp", is_waited_for=False), gather(axis="dp")
    parts = parts_of(step(stage(messages=(of_shards,)), after=(of_norm,)), known().rates)
    assert parts["dp"] == pytest.approx(4 * 1.0 + 1.0)


def test_calls_in_python_take_the_host_as_long_as_operators():
    by_operators = parts_of(step(stage(operators=100_000.0)), known().rates)
    by_calls = parts_of(step(stage(operators=0.0, host_calls=100_000.0 * CALLS_OF_AN_OPERATOR)), known().rates)
    assert by_calls == by_operators


def test_a_host_that_computes_itself_does_one_thing_after_the_other():
    hidden = gather(behind_flops=1e6, is_waited_for=False)
    work = step(
        stage(messages=(hidden,), operators=1000.0), gradients=(gather(axis="dp"),), is_in_turn=True, exposed=0.0
    )
    parts = parts_of(work, known(collective_time=0.5).rates)
    assert parts["tp"] == pytest.approx(4 * 1.0)
    assert parts["launch"] + parts["latency"] == pytest.approx(4 * (1000.0 * known().rates.operator_time + 2 * 0.5))
    assert parts["dp"] == pytest.approx(1.0)
    assert "collective_time" not in unread_rates(work)
    assert "collective_time" in unread_rates(replace(work, is_in_turn=False))


def test_a_send_and_its_receive_wait_for_two_ranks_and_a_collective_for_all_of_its_group():
    ring = stage(messages=(gather(op="send_recv", ranks=8, count=10_000, size_bytes=0.0),))
    pair = stage(messages=(gather(op="all_gather", ranks=2, count=10_000, size_bytes=0.0),))
    one, other = (parts_of(step(each), known().rates)["latency"] for each in (ring, pair))
    assert one == pytest.approx(other, rel=1e-6)


def test_a_host_that_launches_slower_than_the_card_computes_sets_the_pace():
    lots = step(stage(operators=100_000.0))
    parts = parts_of(lots, known().rates)
    assert sum(parts.values()) == pytest.approx(4 * 100 + 8, rel=1e-3)
    assert parts["launch"] > 0
    assert parts.get("latency", 0.0) == 0.0
    few = parts_of(step(stage(operators=100.0)), known().rates)
    assert few["launch"] < 1e-3


def test_collectives_that_wait_for_one_another_are_a_floor_that_pipelines_over_nodes_raise():
    chain = stage(messages=(gather(count=20_000, ranks=8, size_bytes=0.0),))
    rates = known().rates
    alone = step_seconds(step(chain), rates)
    assert alone == pytest.approx(4 * 160 + 8, rel=1e-3)
    assert step_seconds(step(chain, pipeline_nodes=2), rates) == alone
    spread = step_seconds(step(chain, stage(), pipeline_nodes=2), rates)
    assert spread == pytest.approx(4 * 6 * 160 + 8 + 10, rel=1e-3)
    not_waited = stage(messages=(gather(count=20_000, ranks=8, size_bytes=0.0, is_waited_for=False),))
    assert step_seconds(step(not_waited), rates) < 60


def test_gradients_pass_behind_the_last_backward_but_for_what_never_does():
    sent = (gather(axis="dp", size_bytes=160.0),)  # 10 s
    assert parts_of(step(gradients=sent), known().rates)["dp"] == pytest.approx(10)
    assert parts_of(step(after=sent, overlap=1e6, exposed=0.1), known().rates)["dp"] == pytest.approx(10)
    backward = 10 * 2 / 3
    half = parts_of(step(gradients=sent, overlap=0.5, exposed=0.1), known().rates)["dp"]
    assert half == pytest.approx(10 - backward / 2)
    assert parts_of(step(gradients=sent, overlap=1e6, exposed=0.1), known().rates)["dp"] == pytest.approx(1.0)


def test_a_stage_pays_for_its_neighbours():
    parts = parts_of(step(stage(neighbours=2), stage(neighbours=1), pipeline_nodes=2), known().rates)
    assert parts["p2p"] == pytest.approx(4 * 2 * 2 * (0.25 + 1 / 2))


def test_the_interval_is_the_models_where_all_rates_are_sure():
    of = price(step(), known())
    assert of.step_s / of.low_s == pytest.approx(1.2)
    assert of.high_s / of.step_s == pytest.approx(1.2)


def test_a_rate_that_may_only_be_slower_widens_one_side():
    of = price(step(), known(matmul=(50.0, 100.0, 100.0)))
    slower = math.log(step_seconds(step(), known(matmul=50.0).rates) / of.step_s)
    assert of.step_s / of.low_s == pytest.approx(1.2)
    assert math.log(of.high_s / of.step_s) == pytest.approx(math.hypot(math.log(1.2), slower))


def test_a_part_ranges_as_far_as_the_ends_of_its_rate_move_it():
    of = price(step(), known(matmul=(50.0, 100.0, 200.0)))
    assert of.part_ranges["compute"] == (4 * (3 + 2), 4 * (12 + 2))
    assert of.part_ranges["memory"] == (8.0, 8.0)
    assert of.low_s < sum(low for low, _ in of.part_ranges.values())


def test_rates_move_a_part_independently():
    of = price(step(), known(matmul=(80.0, 100.0, 100.0), **{"attention[head_dim=64]": (40.0, 50.0, 50.0)}))
    low, high = of.part_ranges["compute"]
    assert low == of.parts["compute"] == 32
    assert high - 32 == pytest.approx(math.hypot(4 * (600 / 80 - 6), 4 * (100 / 40 - 2)))


def test_a_part_that_is_hidden_may_show_and_none_takes_less_than_nothing():
    """A message of 1 s behind products of 1.5 s, or of 0.75 s where those are twice as fast."""
    hidden = step(stage(messages=(gather(behind_flops=150.0, is_waited_for=False),)))
    of = price(hidden, known(matmul=(100.0, 100.0, 200.0)))
    assert of.parts["tp"] == 0
    assert of.part_ranges["tp"] == (0, pytest.approx(4 * 0.25))
    slow = step(stage(operators=20_000.0))
    latest = price(slow, known(operator_time=(1e-6, 0.001, 0.001), matmul=(10.0, 100.0, 100.0))).part_ranges["launch"]
    assert latest[0] == 0


def test_where_another_stage_becomes_the_slowest_its_parts_are_there_too():
    """The first stage waits for products, the second sends: it is the slower one where products are fast."""
    work = step(stage(), stage(matmul_flops=400.0, messages=(gather(),)))
    of = price(work, known(matmul=(100.0, 100.0, 400.0)))
    assert "tp" not in of.parts
    assert of.part_ranges["tp"] == (0, pytest.approx(4.0, rel=1e-3))


def test_the_step_time_rate_moves_one_part_alone():
    """So its ends are not priced, which saves a tenth of the time."""
    rates = known(step_time=(1.0, 3.0, 9.0))
    of = price(step(), rates)
    for end, seconds in zip(rates.ends["step_time"], of.part_ranges["overhead"], strict=True):
        assert parts_of(step(), end) == of.parts | {"overhead": seconds}


def test_a_rate_that_does_not_matter_widens_nothing():
    assert price(step(), known(p2p_time=(0.01, 0.25, 9.0))).high_s == pytest.approx(price(step(), known()).high_s)


def test_rates_that_a_step_does_not_ask_for_move_nothing():
    """Their ends are not priced, which saves a sixth of the time."""
    typical = typical_rates(accelerators()["h100-sxm-80gb"], 400e9)
    skipped = set()
    for row in read_steps(Path(__file__).parent / "playbook_sample.csv", 8).rows:
        work = Nanotron().work(row.priced)
        for name in unread_rates(work):
            skipped.add(name)
            whole = step_seconds(work, typical.rates)
            assert [step_seconds(work, end) for end in typical.ends[name]] == [whole, whole], name
    assert skipped >= {"p2p_time", "p2p_bandwidth", "pipeline_factor", "node_network", "collective_time"}


def test_a_rate_that_was_taken_elsewhere_is_named_where_it_may_move_the_price_and_one_of_the_machine_is_not():
    own = known(matmul=(50.0, 100.0, 200.0))
    typical = KnownRates(own.by_key | {"matmul": replace(own.by_key["matmul"], origin="typical")})
    assert price(step(), own).unmeasured == {}
    assert [*price(step(), typical).unmeasured] == ["matmul"]
