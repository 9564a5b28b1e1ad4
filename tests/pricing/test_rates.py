"""Rates: what is asked of them, how a shared network divides, and the file that a person writes."""

import pytest

from clusterbench.cluster import accelerators
from clusterbench.errors import SuiteError
from clusterbench.expectation import Expectation
from clusterbench.formulas.collectives import traffic_bytes
from clusterbench.pricing.rates import PROBED_BYTES, RATES, KnownRates
from clusterbench.pricing.rates_file import rates_text, read_rates
from clusterbench.pricing.typical import OF_MATMUL, typical_rates

H100 = accelerators()["h100-sxm-80gb"]


@pytest.fixture(scope="module")
def typical():
    return typical_rates(H100, 400e9)


def test_a_network_that_groups_share_is_in_series_with_what_rings_lose(typical):
    """The Playbook's cluster at 32 nodes: 65, 54, 40 and 27 GB/s for tp 1, 2, 4 and 8 (docs/prediction.md)."""
    rate = Expectation(64.93e9, "B/s", 64.93e9, 64.93e9, "file", "")
    rates = typical.but({"busbw[nodes=32,op=all_reduce]": rate}).rates
    shared = [rates.busbw_of("all_reduce", 32, sharing) / 1e9 for sharing in (1, 2, 4, 8)]
    assert [round(each) for each in shared] == [65, 54, 40, 27]


def test_within_a_node_groups_do_not_share(typical):
    rates = typical.rates
    assert rates.busbw_of("all_gather", 1, 4) == rates.busbw_of("all_gather", 1, 1)


def test_of_nodes_that_are_not_on_record_the_next_larger_number_counts(typical):
    rate = [Expectation(value, "B/s", value, value, "file", "") for value in (300e9, 100e9, 50e9)]
    keys = [f"busbw[nodes={nodes},op=all_gather]" for nodes in (1, 4, 16)]
    rates = typical.but(dict(zip(keys, rate, strict=True))).rates
    assert [rates.busbw_of("all_gather", nodes, 1) for nodes in (1, 2, 4, 5, 16, 99)] == [
        300e9,
        100e9,
        100e9,
        50e9,
        50e9,
        50e9,
    ]
    assert rates.busbw_of("all_to_all", 2, 1) == 100e9


@pytest.mark.parametrize("nodes", [2, 16, 128])
@pytest.mark.parametrize("size_bytes", [2.0**20, 2.0**28, 2.0**33])
def test_no_message_passes_faster_than_what_a_node_can_send(typical, nodes, size_bytes):
    rates = typical.rates
    for op in ("all_gather", "all_reduce"):
        seconds = rates.collective_s(op, size_bytes, 8 * nodes, nodes, 1)
        of_any_size = 1 + 16 * rates.half_size / PROBED_BYTES
        assert traffic_bytes(op, size_bytes, 8 * nodes) / seconds < rates.busbw_of(op, nodes, 1) * of_any_size
        alone = rates.collective_s(op, size_bytes, nodes, nodes, 8)  # one rank of each node, with seven others beside
        assert 8 * traffic_bytes(op, size_bytes, nodes) / alone < rates.node_network * of_any_size


def test_a_gpu_has_its_share_of_the_nics_of_its_node(typical):
    of_four = typical_rates(accelerators()["gb200"], 200e9).rates
    assert of_four.p2p_bandwidth == typical.rates.p2p_bandwidth == pytest.approx(0.8 * 50e9)
    for network in (4 * 50e9, None):
        of_half_a_server = typical_rates(H100, network, gpus_per_node=4).rates
        assert of_half_a_server.p2p_bandwidth == typical.rates.p2p_bandwidth
        assert of_half_a_server.node_network == typical.rates.node_network / 2


def test_attention_is_taken_at_the_largest_head_on_record_that_is_no_larger(typical):
    rates = typical.rates
    assert rates.attention_at(96) == rates.attention_at(64) < rates.attention_at(128) == rates.attention_at(256)
    assert rates.attention_at(32) == rates.attention_at(64)


def test_every_typical_rate_has_an_interval_and_a_source(typical):
    assert {key.split("[")[0] for key in typical.by_key} == set(RATES)
    for key, rate in typical.by_key.items():
        assert rate.source
        assert rate.low < rate.high or key == "model_error"


def test_nics_that_were_not_said_are_less_sure_than_nics_that_were(typical):
    unknown = typical_rates(H100, None).by_key["node_network"]
    assert unknown.value == typical.by_key["node_network"].value
    assert unknown.low < typical.by_key["node_network"].low
    assert unknown.high > typical.by_key["node_network"].high


def test_a_card_without_a_figure_is_not_priced():
    with pytest.raises(SuiteError, match="has no memory_bytes_per_s"):
        typical_rates(accelerators()["h100-nvl"], None)


def test_a_gpu_alone_in_its_node_needs_no_link_on_record():
    l40s = accelerators()["l40s"]
    with pytest.raises(SuiteError, match="has no link_bytes_per_s"):
        typical_rates(l40s, None)
    alone = typical_rates(l40s, 25e9, gpus_per_node=1).rates
    assert alone.busbw_of("all_gather", 4, 1) == alone.node_network == pytest.approx(0.8 * 25e9)


def test_products_are_of_the_first_type_that_a_card_multiplies():
    v100 = accelerators()["v100-sxm2-32gb"]
    with pytest.raises(SuiteError, match=r"has no peak_flops_per_s\.bfloat16"):
        typical_rates(v100, None)
    in_float16 = typical_rates(v100, None, dtypes=("bfloat16", "float16")).rates
    assert in_float16.matmul == pytest.approx(OF_MATMUL[1] * 125e12)


def test_the_a100_of_40_gb_reads_its_memory_at_three_quarters_of_the_larger_ones_rate():
    small, large = (typical_rates(accelerators()[f"a100-sxm4-{size}gb"], None).rates for size in (40, 80))
    assert small.memory / large.memory == pytest.approx(1555 / 2000)
    assert small.matmul == large.matmul


def test_each_rate_that_is_not_sure_has_two_ends(typical):
    ends = [*typical.ends.values()]
    assert len(ends) == len(RATES) - 1  # the model's own error is no rate
    sure = typical.but({key: Expectation(1.0, rate.unit, 1.0, 1.0, "file", "") for key, rate in typical.by_key.items()})
    assert [*sure.ends] == []


def test_a_rate_that_is_missing_or_in_another_unit_is_said(typical):
    without = {key: rate for key, rate in typical.by_key.items() if key != "memory"}
    with pytest.raises(ValueError, match="no rate 'memory': what operators bound by memory"):
        KnownRates(without)
    with pytest.raises(ValueError, match="memory is in s, not in B/s"):
        typical.but({"memory": Expectation(1.0, "s", 1.0, 1.0, "file", "")})


def test_a_file_of_rates_reads_as_it_was_written(typical, tmp_path):
    file = tmp_path / "rates.yaml"
    file.write_text(rates_text(typical))
    again = read_rates(file, typical_rates(H100, None))
    assert again.name == typical.name
    assert again.by_key.keys() == typical.by_key.keys()
    for key, rate in typical.by_key.items():
        other = again.by_key[key]
        assert (other.origin, other.source, other.unit) == (rate.origin, rate.source, rate.unit)
        assert [other.low, other.value, other.high] == pytest.approx([rate.low, rate.value, rate.high], rel=1e-5)


def test_what_a_file_does_not_say_stays(typical, tmp_path):
    file = tmp_path / "rates.yaml"
    file.write_text("of: mine\nrates:\n  matmul: 600 TFLOP/s\n")
    mine = read_rates(file, typical)
    assert mine.by_key["matmul"] == Expectation(600e12, "FLOP/s", 600e12, 600e12, "file", f"{file}:3")
    assert mine.by_key["memory"] == typical.by_key["memory"]
    assert mine.name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rates:\n  matmull: 1 TFLOP/s\n", ":2: no rate 'matmull'. Did you mean 'matmul'?"),
        ("matmul: 600 TFLOP/s\n", ":1: 'matmul' must stand below 'rates:', indented."),
        (
            "rates:\n  matmul: {value: 600 TFLOP/s, low: 700 TFLOP/s}\n",
            ":2: 'matmul: 600.0 TFLOP/s' must be within its own interval, 700.0 TFLOP/s to 600.0 TFLOP/s.",
        ),
        ("rates:\n  busbw: 1 GB/s\n", ":2: 'busbw' is written 'busbw[nodes=2,op=all_gather]'."),
        ("rates:\n  attention: 1 TFLOP/s\n", ":2: 'attention' is written 'attention[head_dim=128]'."),
        ("rates:\n  memory[op=x]: 1 GB/s\n", ":2: 'memory[op=x]' is written 'memory'."),
        ("rates:\n  busbw[nodes=2,op=gather]: 1 GB/s\n", ":2: 'busbw[nodes=2,op=gather]': op is one of all_gather, "),
        ("rates:\n  busbw[nodes=0,op=all_gather]: 1 GB/s\n", "head_dim and nodes are whole numbers of 1 or more."),
        ("rates:\n  memory: 3\n", ":2: 'memory: 3' must be a number with TB/s, GB/s, MB/s, kB/s or B/s."),
        ("rates:\n  memory: 0 GB/s\n", ":2: 'memory: 0 GB/s' must be above 0."),
        ("rates:\n  memory: { low: 1 GB/s }\n", ":2: 'memory' has no 'value'."),
        ("rates:\n  memory: { value: 1 GB/s, lwo: 1 GB/s }\n", ":2: unknown key 'lwo'. Did you mean 'low'?"),
        ("rates:\n  memory: { value: 3 GB/s, low: 4 GB/s }\n", "'memory: 3.0 GB/s' must be within its own interval"),
        ("rates:\n  memory: { value: 3 GB/s, origin: hearsay }\n", "origin is one of file, baseline, calibrated"),
        ("rates:\n  memory: [1, 2]\n", ":2: 'memory' is keys and values: value, low, high, origin, source."),
        ("rates: 3\n", ":1: 'rates' is a name and a value for each"),
        ("of: mine\n", ":1: no 'rates'"),
        ("rate:\n  memory: 3 GB/s\n", ":1: unknown key 'rate'. Did you mean 'rates'?"),
    ],
)
def test_a_mistake_in_a_file_of_rates_is_said_with_its_line(typical, tmp_path, text, said):
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    with pytest.raises(SuiteError) as error:
        read_rates(file, typical)
    assert str(error.value).startswith(str(file))
    assert said in str(error.value)


def test_a_file_of_rates_that_is_not_there_is_said(typical, tmp_path):
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        read_rates(tmp_path / "none.yaml", typical)


def test_a_file_of_the_network_leaves_the_links_within_a_node(typical, tmp_path):
    """The example of docs/prediction.md: NVLink is not as slow as the NICs because a file says nothing of it."""
    file = tmp_path / "rates.yaml"
    file.write_text("rates:\n  busbw[nodes=2,op=all_gather]: 184 GB/s\n")
    found = read_rates(file, typical).rates
    assert found.busbw_of("all_gather", 2, 1) == found.busbw_of("reduce_scatter", 4, 1) == 184e9
    assert found.busbw_of("all_gather", 1, 1) == typical.rates.busbw_of("all_gather", 1, 1) == 315e9
    file.write_text("rates:\n  busbw[nodes=1,op=all_gather]: 200 GB/s\n")
    found = read_rates(file, typical).rates
    assert found.busbw_of("all_gather", 1, 1) == 200e9
    assert typical.rates.busbw_of("all_gather", 2, 1) > found.busbw_of("all_gather", 2, 1) == 200e9
    file.write_text("rates:\n  busbw[nodes=1,op=all_gather]: 200 GB/s\n  node_network: 10 GB/s\n")
    assert read_rates(file, typical).rates.busbw_of("all_gather", 2, 1) == 10e9


def test_what_a_file_leaves_out_follows_from_no_figure_that_is_missing(tmp_path):
    """Steps took 1.59e+08 s on two nodes of RTX 4090, and 1.54e+13 s on V100 with a rate for heads of 128 alone."""
    file = tmp_path / "rates.yaml"
    file.write_text("rates:\n  busbw[nodes=1,op=all_gather]: 20 GB/s\n")
    card = typical_rates(accelerators()["rtx-4090"], 400e9, given=("busbw",))
    assert read_rates(file, card).rates.busbw_of("all_gather", 2, 1) == 20e9
    file.write_text("rates:\n  busbw[nodes=2,op=all_gather]: 20 GB/s\n")
    with pytest.raises(SuiteError) as error:
        read_rates(file, card)
    assert str(error.value) == (
        f"{file}:1: no 'busbw[nodes=1,op=all_gather]', and the card's datasheet on record has no figure that it "
        "follows from.\nhint: give it beside the others"
    )
    file.write_text("rates:\n  matmul: 80 TFLOP/s\n  attention[head_dim=128]: 30 TFLOP/s\n")
    card = typical_rates(accelerators()["v100-sxm2-32gb"], 50e9, given=("matmul", "attention"))
    with pytest.raises(SuiteError, match=r"rates.yaml:1: no 'attention\[head_dim=64\]', and"):
        read_rates(file, card)


@pytest.mark.parametrize(("card", "share"), [("a100-sxm4-80gb", 0.72), ("h100-sxm-80gb", 0.85), ("mi300x", 0.72)])
def test_an_all_reduce_is_faster_where_the_switch_reduces(card, share):
    link = accelerators()[card].link_bytes_per_s
    assert typical_rates(accelerators()[card], 400e9).rates.busbw_of("all_reduce", 1, 1) == pytest.approx(share * link)


@pytest.mark.parametrize(("card", "best"), [("mi300x", 668.4e12), ("mi355x", 1565.0e12)])
def test_products_on_amd_are_no_faster_than_what_was_measured(card, best):
    """The 0.68 of the peak that an H100's products have is 889 TFLOP/s on an MI300X, whose best shape reaches 668."""
    known = typical_rates(accelerators()[card], 400e9)
    rate = known.by_key["matmul"]
    assert (rate.low, rate.value, rate.high) == pytest.approx((0.75 * best, 0.85 * best, 0.95 * best))
    assert "mamf-finder's best shape" in rate.source


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "matmul: 5000 TFLOP/s",
            "'matmul: 5,000.0 TFLOP/s' is 5.1 times what the card's datasheet has: 989.0 TFLOP/s.",
        ),
        ("attention[head_dim=128]: 1979 TFLOP/s", "is 2.0 times what the card's datasheet has"),
        ("matmul: 700 GFLOP/s", "'matmul: 700.0 GFLOP/s' is 0.00071 of what the card's datasheet has: 989.0 TFLOP/s."),
        ("memory: 3 GB/s", "is 0.0009 of what the card's datasheet has"),
        ("memory: 33500 GB/s", "is 10.0 times what the card's datasheet has"),
        (
            "model_error: 0.5",
            "'model_error: 0.5' must be 1 or more: the factor within which 80 % of measured steps lie",
        ),
        ("pipeline_factor: 0.1", "'pipeline_factor: 0.1' must be 1 or more"),
    ],
)
def test_a_rate_that_cannot_be_is_refused_with_its_line(tmp_path, typical, written, said):
    """Prices follow from it: of 5,000 TFLOP/s on an H100 they were five times too fast, without a word."""
    file = tmp_path / "rates.yaml"
    file.write_text(f"rates:\n  {written}\n")
    with pytest.raises(SuiteError) as error:
        read_rates(file, typical)
    assert str(error.value).startswith(f"{file}:2: ")
    assert said in str(error.value)


def test_a_rate_may_be_above_its_datasheet_as_clocks_are_and_of_a_card_without_one(tmp_path, typical):
    file = tmp_path / "rates.yaml"
    file.write_text("rates:\n  matmul: 1050 TFLOP/s\n  memory: 3.4 TB/s\n")
    assert read_rates(file, typical).rates.matmul == 1050e12
    file.write_text("rates:\n  memory: 3.4e3 GB/s\n")
    unknown = typical_rates(accelerators()["h100-nvl"], None, given=("memory", "busbw"))
    assert read_rates(file, unknown).rates.memory == 3.4e12


def test_attention_of_smaller_heads_than_those_of_a_file_stays(tmp_path, typical):
    """Heads of 64 channels had the rate that a file gives for 128, which is that of a faster kernel."""
    file = tmp_path / "rates.yaml"
    file.write_text("rates:\n  attention[head_dim=128]: 300 TFLOP/s\n")
    found = read_rates(file, typical).rates
    assert found.attention_at(64) == typical.rates.attention_at(64)
    assert found.attention_at(128) == found.attention_at(256) == 300e12
    file.write_text("rates:\n  attention[head_dim=64]: 200 TFLOP/s\n")
    assert read_rates(file, typical).rates.attention == {64: 200e12}
