"""What frameworks do, against what was published of them; no constant here was fitted to these tables."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from clusterbench.cluster import accelerators
from clusterbench.confront import steps_of_run
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.pricing import price, step_seconds
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.profiles import PricedJob, Reach, profiles, reach, reach_of_shards
from clusterbench.pricing.profiles.nanotron import stages_of
from clusterbench.pricing.table import read_steps
from clusterbench.pricing.typical import typical_rates
from clusterbench.shape import named_shape

HERE = Path(__file__).parent
LADDER = HERE.parents[1] / "reports" / "examples" / "one_gpu-h200"


def priced(layout, shape="playbook-8b", mbs=1, micro_batches=16, recompute="none", chunks=1, seq_len=4096):
    layout = ParallelLayout.parse(layout)
    batch = mbs * micro_batches * layout.dp
    job = TrainingJob(named_shape(shape), layout, seq_len, batch, mbs, "bfloat16", device="cuda")
    return PricedJob(job, 8, chunks, recompute)


@pytest.mark.parametrize("name", profiles())
def test_every_profile_names_its_source_and_prices_one_rank(name):
    profile = profiles()[name]()
    assert profile.source
    job = priced("tp1")
    assert profile.objection(job) is None
    work = profile.work(job)
    (stage,) = work.stages
    weights = named_shape("playbook-8b").num_parameters
    assert stage.parameters == weights
    tokens = 4096
    of_products = 6 * tokens * (weights - 131072 * 4096)
    assert stage.matmul_flops == pytest.approx(of_products, rel=1e-3)
    assert not any(sent.ranks > 1 for sent in stage.messages)
    (held,) = profile.memory(job)
    assert sum(held.values()) > 16 * weights


@pytest.mark.parametrize("name", profiles())
def test_tensor_parallelism_halves_work_and_adds_messages(name):
    profile = profiles()[name]()
    one, two = (profile.work(priced(layout)).stages[0] for layout in ("tp1", "tp2+sp"))
    assert two.matmul_flops == one.matmul_flops / 2
    assert two.attention_flops == one.attention_flops / 2
    assert two.parameters == pytest.approx(one.parameters / 2, rel=1e-4)  # norms are whole
    assert sum(sent.count for sent in two.messages) >= 8 * 32


@pytest.mark.parametrize("name", profiles())
@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("float8", "rowwise", "float8: no rate of products in it is known"),
        ("offload", True, "offload: what passes between host and GPU is not priced"),
        ("attention_backend", "math", "attention_backend math: the rate of attention is that of fused kernels"),
        ("compress", "powersgd", "compress powersgd: the products of its factors are not priced"),
        ("compress", "topk", "compress topk: finding the largest elements is not priced"),
    ],
)
def test_an_option_of_which_no_rate_is_known_is_refused(name, option, value, why):
    job = replace(priced("tp1"), options={option: value})
    assert profiles()[name]().objection(job).startswith(why)


NOT_COMPILED = "compile: what a compiled layer launches, reads and writes is not priced"


@pytest.mark.parametrize(("layout", "shape"), [("tp2", "playbook-8b"), ("cp2", "playbook-8b"), ("dp2", "moe-tiny")])
def test_compiled_layers_that_are_cut_or_have_experts_are_refused(layout, shape):
    assert profiles()["ours"]().objection(replace(priced(layout, shape), options={"compile": True})) == NOT_COMPILED


def test_compiled_layers_on_a_cpu_are_refused_and_by_profiles_that_have_no_such_choice():
    job = replace(priced("dp2"), options={"compile": True})
    assert profiles()["ours"]().objection(replace(job, job=replace(job.job, device="cpu"))) == NOT_COMPILED
    assert {profiles()[name]().objection(job) for name in profiles() if name != "ours"} == {NOT_COMPILED}


def test_a_compiled_layer_reads_and_writes_less_and_launches_less():
    profile = profiles()["ours"]()
    eager = priced("dp2+zero3")
    compiled = replace(eager, options={"compile": True})
    assert profile.objection(compiled) is None
    (one,), (other,) = profile.work(eager).stages, profile.work(compiled).stages
    assert other.memory_bytes < 0.9 * one.memory_bytes
    assert other.operators < 0.8 * one.operators
    assert (other.matmul_flops, other.attention_flops) == (one.matmul_flops, one.attention_flops)


def test_the_compiled_steps_of_an_h200_are_priced_from_its_data_sheet():
    """The run is docs/measurements.md's; no rate here comes from it."""
    ours, known = profiles()["ours"](), typical_rates(accelerators()["h200-sxm-141gb"], None)
    rows = [row for row in steps_of_run(LADDER).rows if row.step_s and ours.objection(row.priced) is None]
    assert [round(row.step_s, 2) for row in rows] == [3.16, 2.71, 2.63]  # recomputed; not, with a loss in chunks; whole
    prices = [price(ours.work(row.priced), known) for row in rows]
    assert all(each.low_s < row.step_s < each.high_s for each, row in zip(prices, rows, strict=True))
    assert max(abs(each.step_s / row.step_s - 1) for each, row in zip(prices, rows, strict=True)) < 0.15


@pytest.mark.parametrize("name", profiles())
def test_products_in_float32_on_a_gpu_have_no_rate_and_on_a_cpu_have(name):
    job = priced("tp1")
    on_gpu, on_cpu = (replace(job, job=replace(job.job, dtype="float32", device=device)) for device in ("cuda", "cpu"))
    assert profiles()[name]().objection(on_gpu) == "dtype float32: rates of products on a GPU are those of bfloat16"
    assert profiles()[name]().objection(on_cpu) is None


@pytest.mark.parametrize("zero", [2, 3])
def test_memory_of_sharded_stages_is_left_to_a_dry_run(zero):
    said = [f"ZeRO-{zero} in a pipeline (dry-run tells its memory)"]
    assert not_validated(priced(f"pp2-dp8+zero{zero}")) == said
    assert not_validated(priced("pp2-dp8+zero1")) == []


def test_fp8_is_not_validated():
    assert not_validated(replace(priced("dp2+zero3"), options={"float8": "rowwise"})) == ["ZeRO-3", "FP8"]


@pytest.mark.parametrize("name", profiles())
def test_what_a_profile_does_not_know_is_refused_with_a_reason(name):
    profile = profiles()[name]()
    mixes = [] if name == "ours" else [("dp2+ep2", "mixtral-8x7b")]
    mixes += [("cp2", "playbook-8b")] if name in ("nanotron", "fsdp2") else []
    for layout, shape in (*mixes, ("tp64+sp", "playbook-8b")):
        assert profile.objection(priced(layout, shape))
    uneven = priced("dp3")
    assert "no multiple" in profile.objection(replace(uneven, job=replace(uneven.job, global_batch_size=17)))


def test_nanotron_asserts_enough_micro_batches_for_its_stages():
    profile = profiles()["nanotron"]()
    assert profile.objection(priced("pp8", micro_batches=7)) is None
    assert "1F1B asserts at least 7" in profile.objection(priced("pp8", micro_batches=6))
    assert "knows ZeRO 0 and 1" in profile.objection(priced("dp2+zero3"))


def test_nanotron_gives_the_last_stage_fewer_layers_for_its_head():
    assert [stage.layers for stage in stages_of(named_shape("playbook-1b"), 2)] == [11, 5]
    assert sum(stage.layers for stage in stages_of(named_shape("playbook-80b"), 16)) == 80
    assert [stage.has_head for stage in stages_of(named_shape("playbook-3b"), 4)] == [False, False, False, True]


def test_nanotrons_loss_goes_over_the_logits_in_float32_thirteen_times():
    """Half of the vocabulary less: 13 x 4 B of each logit, and 10 B of each weight of its one table."""
    whole = priced("tp1", "playbook-1b", mbs=2)
    shape = replace(whole.job.shape, vocab_size=whole.job.shape.vocab_size // 2)
    (more,), (less,) = (
        profiles()["nanotron"]().work(job).stages
        for job in (whole, replace(whole, job=replace(whole.job, shape=shape)))
    )
    tokens, words, hidden = 2 * 4096, 65536, 2048
    assert more.memory_bytes - less.memory_bytes == tokens * words * 52 + words * hidden * 10


def test_nanotron_reduces_once_over_all_copies_and_gathers_what_zero_shards():
    profile = profiles()["nanotron"]()
    plain, sharded = (profile.work(priced(layout)) for layout in ("dp8", "dp8+zero1"))
    assert [sent.op for sent in plain.gradients] == ["all_reduce"]
    assert [sent.op for sent in sharded.after] == ["all_reduce", "all_gather"]
    assert plain.after == sharded.gradients == []
    assert sharded.optimizer_bytes < plain.optimizer_bytes / 2


def test_fsdp_gathers_each_layer_twice_and_scatters_its_gradient_once_for_each_micro_batch():
    stage = profiles()["fsdp2"]().work(priced("dp16+zero3")).stages[0]
    counts = {sent.op: sent.count for sent in stage.messages}
    assert counts == {"all_gather": 64, "reduce_scatter": 32}
    assert not any(sent.is_waited_for for sent in stage.messages)
    assert all(sent.nodes == 2 for sent in stage.messages)


def test_torchtitans_selective_computes_every_second_product_again():
    """activation_checkpoint.py: of a layer of Llama 3 8B keys, attention's output and the up projection, 0.365."""
    profile = profiles()["fsdp2"]()
    none, selective, full = (
        profile.work(priced("dp8+zero3", "llama-8b", recompute=how)).stages[0] for how in ("none", "selective", "full")
    )
    of_head = 2 * 3 * 4096 * named_shape("llama-8b").embedding_parameters
    layers = (none.matmul_flops - of_head) / 3
    assert (selective.matmul_flops - none.matmul_flops) / layers == pytest.approx(0.365, abs=1e-3)
    assert selective.attention_flops == none.attention_flops
    assert none.memory_bytes < selective.memory_bytes == full.memory_bytes


def test_torchtitans_memory_with_selective_recomputation():
    """benchmarks/llama3_h100_202412_torchtitan.md: 8B on 8 and 128 H100, two sequences of 8,192, reserved at most."""
    profile = profiles()["fsdp2"]()
    for layout, published in (("dp8+zero3", 82.7e9), ("dp128+zero3", 66.6e9)):
        (held,) = profile.memory(priced(layout, "llama-8b", mbs=2, seq_len=8192, recompute="selective"))
        assert 0.7 * published < sum(held.values()) < published


def test_megatron_counts_embedding_and_loss_as_layers_where_layers_do_not_divide():
    """Llama 3's 126 layers on 16 stages: arXiv:2407.21783, section 3.3.2, has one layer less on the first and last."""
    profile = profiles()["megatron_core"]()
    job = priced("pp16-tp8+sp", "llama-405b")
    assert profile.objection(job) is None
    first, middle, last = profile.work(job).stages
    shape = named_shape("llama-405b")
    assert (middle.parameters, middle.stages) == (8 * shape.parameters_per_layer / 8, 14)
    for end in (first, last):
        assert end.parameters - shape.embedding_parameters / 8 == pytest.approx(7 / 8 * middle.parameters, rel=1e-4)
    assert first.operators == last.operators == middle.operators * 7 / 8
    assert len(profile.memory(job)) == 16


def test_megatrons_ends_take_the_layers_that_stages_of_as_many_leave():
    """decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers; every rank's memory, one for each."""
    profile, shape = profiles()["megatron_core"](), named_shape("playbook-8b")
    first, middle, last = profile.work(priced("pp5")).stages
    assert [round(stage.operators / 120) for stage in (first, middle, last)] == [6, 7, 5]
    assert middle.stages == 3
    assert middle.parameters == 7 * shape.parameters_per_layer
    assert len(profile.memory(priced("pp5"))) == 5


def test_megatron_computes_layers_again_as_its_paper_says():
    """Korthikanti et al. 2022, arXiv:2205.05198: full recomputation is one more forward."""
    profile = profiles()["megatron_core"]()
    none, full = (profile.work(priced("pp4", recompute=how)).stages[1] for how in ("none", "full"))
    assert full.matmul_flops == pytest.approx(none.matmul_flops * 4 / 3)
    selective = profile.work(priced("pp4", recompute="selective")).stages[1]
    assert selective.matmul_flops == none.matmul_flops
    assert selective.attention_flops == full.attention_flops == pytest.approx(none.attention_flops * 4.5 / 3.5)
    assert "32 layers are no multiple of pp 3 x 2 chunks" in profile.objection(priced("pp3", chunks=2))
    assert "32 layers give 64 stages not one each" in profile.objection(priced("pp64"))
    assert "interleaving needs a multiple" in profile.objection(priced("pp4", chunks=2, micro_batches=6))


@pytest.mark.parametrize(("name", "of_gated"), [("megatron_core", 8 + 8 + 6 * 8 / 3), ("fsdp2", 18 + 8 * 8 / 3)])
def test_a_layer_of_two_matrices_keeps_34_h_of_each_token(name, of_gated):
    """Equation 1 of Korthikanti et al. 2022 without what a fused attention does not keep.

    39.3 h if it were gated, of two operators and with dropout; 32 h of Megatron-Core's one operator and without.
    """
    profile, hidden = profiles()[name](), 4096
    shape = replace(named_shape("playbook-8b"), ffn_hidden_size=8 * hidden // 3, num_kv_heads=32)
    job = priced("tp1")
    job = replace(job, job=replace(job.job, shape=shape))
    less, more = (
        profile.memory(each)[0]["activations"] / (4096 * hidden * shape.num_layers)
        for each in (replace(job, is_gated=False), job)
    )
    of_head = (4 if name == "fsdp2" else 6) * shape.vocab_size / hidden / shape.num_layers
    assert less - of_head == pytest.approx(34, abs=0.01)
    assert more - of_head == pytest.approx(of_gated, abs=0.01)


def test_megatron_keeps_shared_keys_once():
    """Of Llama 3.1 70B, 8 kv heads of 64: 4.5 h in place of 8. NVIDIA's recipes ran where 'does not fit' was said."""
    job = priced("pp4-dp2-tp4+sp", shape="llama-70b")
    own = replace(job, job=replace(job.job, shape=replace(job.job.shape, num_kv_heads=64)))
    less, more = (profiles()["megatron_core"]().memory(each)[1]["activations"] for each in (job, own))
    assert (more - less) / (4096 * 8192 / 4 * 20) == pytest.approx(3 * 3.5)  # 20 layers of 3 micro-batches in flight


@pytest.mark.parametrize(("name", "of_residuals", "kept_of"), [("megatron_core", 60, 8), ("fsdp2", 44, 10)])
def test_without_sequence_parallelism_what_lies_between_products_is_whole_on_each_rank(name, of_residuals, kept_of):
    """Korthikanti et al. 2022, arXiv:2205.05198: equation 2 keeps 10 h of each token whole, equation 4 shares it."""
    profile, shape = profiles()[name](), named_shape("playbook-8b")
    shared, whole = (priced(layout) for layout in ("tp4+sp", "tp4"))
    kept = [sum(profile.memory(job)[0].values()) for job in (shared, whole)]
    assert kept[1] - kept[0] == pytest.approx(0.75 * kept_of * 4096 * shape.hidden_size * shape.num_layers)
    (one,), (other,) = (profile.work(job).stages for job in (shared, whole))
    more = other.memory_bytes - one.memory_bytes
    assert more == pytest.approx(0.75 * of_residuals * 4096 * shape.hidden_size * shape.num_layers)
    assert other.matmul_flops == one.matmul_flops
    assert {(sent.op, sent.count) for sent in other.messages} == {("all_reduce", 4 * shape.num_layers)}
    again = [sum(profile.memory(replace(job, recompute="full"))[0].values()) for job in (shared, whole)]
    # of each layer its input, and of the one that is computed again all
    of_hidden = 2 * shape.num_layers + kept_of
    assert again[1] - again[0] == pytest.approx(0.75 * of_hidden * 4096 * shape.hidden_size)


def test_megatron_hides_what_it_scatters_and_gathers_again_behind_products():
    """megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward."""
    stage = profiles()["megatron_core"]().work(priced("tp4+sp")).stages[0]
    sent = [(each.op, each.count / 32, each.behind_flops > 0) for each in stage.messages]
    assert sent == [("all_gather", 6, False), ("reduce_scatter", 2, True), ("all_gather", 2, True)]


def test_megatrons_ranks_of_cp_share_tokens_and_gradients_and_pass_keys_and_values_on():
    """Megatron-Core's docs/user-guide/features/context_parallel.md: a ring, and every rank with as much to attend."""
    profile, shape = profiles()["megatron_core"](), named_shape("playbook-8b")
    odd = priced("dp2-cp4+zero1", seq_len=4100)
    assert profile.objection(odd).startswith("each rank of cp 4 takes two of 8 chunks")
    alone, job = priced("dp2+zero1"), priced("dp2-cp4+zero1")
    one, four = (profile.work(each).stages[0] for each in (alone, job))
    assert four.matmul_flops == one.matmul_flops / 4
    assert four.attention_flops == one.attention_flops / 4
    assert four.parameters == one.parameters
    rings = [(sent.op, sent.count / shape.num_layers, sent.size_bytes) for sent in four.messages]
    block = 2 * 2 * 1024 * shape.num_kv_heads * shape.head_dim
    assert rings == [("send_recv", 3, block), ("send_recv", 7, block)]
    behind = sum(sent.behind_attention for sent in four.messages)
    assert behind == pytest.approx(3 / 4 * four.attention_flops)
    assert {sent.ranks for sent in profile.work(job).gradients} == {8}
    held = [profile.memory(each)[0] for each in (alone, job)]
    assert held[1]["activations"] == held[0]["activations"] / 4
    assert held[1]["optimizer_state"] == held[0]["optimizer_state"] / 4
    assert not_validated(job) == ["CP"]


def test_megatron_hides_gradients_and_weights_of_zero_1_but_those_of_a_layer():
    """NeMo's communication_overlap.rst: one chunk is exposed; buckets of Megatron-Core's DistributedDataParallel."""
    profile = profiles()["megatron_core"]()
    hidden, plain = profile.work(priced("dp64+zero1")), profile.work(priced("dp64"))
    assert [sent.op for sent in hidden.gradients] == ["reduce_scatter", "all_gather"]
    assert {sent.count for sent in hidden.gradients} == {ceil(named_shape("playbook-8b").num_parameters / 64e6)}
    assert (hidden.overlap, hidden.exposed, hidden.after) == (1.5, 1 / 32, [])
    assert [(sent.op, sent.count) for sent in plain.after] == [("all_reduce", 1)]
    for layout, said in (("dp64+zero1", False), ("dp64", True)):
        work = profile.work(replace(priced(layout), dp_overlap=said))
        assert bool(work.gradients) == said == (not work.after)


def test_nanotron_is_known_with_sequence_parallelism_alone():
    assert "knows tp_mode REDUCE_SCATTER" in profiles()["nanotron"]().objection(priced("tp4"))


def test_groups_reach_over_nodes_and_share_them():
    layout = ParallelLayout.parse("pp2-dp8-tp4")
    assert reach(layout, "tp", 8, "megatron") == Reach(1, 1)
    assert reach(layout, "dp", 8, "megatron") == Reach(4, 4)
    assert reach(ParallelLayout.parse("tp16+sp"), "tp", 8, "megatron") == Reach(2, 1)
    assert reach(ParallelLayout.parse("dp64"), "dp", 8, "megatron") == Reach(8, 1)
    assert reach(ParallelLayout.parse("dp2-tp8"), "dp", 8, "megatron") == Reach(2, 8)


def test_megatrons_published_steps_are_priced_from_the_datasheet_alone():
    """Table 5 of Korthikanti et al. 2022: 22B to 1T on 8 to 2,240 A100, with two ways to recompute."""
    table = read_steps(HERE / "korthikanti2022_table5.csv", 8)
    rates = typical_rates(accelerators()["a100-sxm4-80gb"], 8 * 25e9).rates
    profile = profiles()["megatron_core"]()
    errors = [step_seconds(profile.work(row.priced), rates) / row.step_s - 1 for row in table.rows]
    assert len(errors) == 9
    assert sum(map(abs, errors)) / 9 < 0.12
    assert max(map(abs, errors)) < 0.25


def test_memory_of_nanotrons_first_stage_is_what_the_sweep_shows():
    """Rows with tp 1, where the build of nanotron does not matter: 50.2 GB as its log has it, in GiB."""
    profile = profiles()["nanotron"]()
    held = profile.memory(priced("dp8", "playbook-1b", mbs=2))[0]
    assert sum(held.values()) / 2**30 == pytest.approx(50.2, rel=0.05)
    held = profile.memory(priced("pp2-dp4+zero1", "playbook-3b", micro_batches=64))[0]
    assert sum(held.values()) / 2**30 == pytest.approx(41.5, rel=0.05)
    assert set(held) == {"parameters", "gradients", "optimizer_state", "communication", "activations"}


def hybrid(layout, ranks, **more):
    return replace(priced(layout, "llama2-13b", **more), options={"shard_group_size": ranks})


@pytest.mark.parametrize("name", ["fsdp2", "ours"])
def test_hsdp_shards_within_a_group_and_all_reduces_the_shards_of_gradients(name):
    """fully_shard on a mesh of two dims: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce."""
    profile, shape = profiles()[name](), named_shape("llama2-13b")
    job = hybrid("dp128+zero3", 8)
    assert profile.objection(job) is None
    sent = {each.op: each for each in profile.work(job).stages[0].messages if each.size_bytes > 1e8}
    assert {op: (each.ranks, each.nodes, each.sharing) for op, each in sent.items()} == {
        "all_gather": (8, 1, 1),
        "reduce_scatter": (8, 1, 1),
        "all_reduce": (16, 16, 8),
    }
    gradients = {
        op: sum(each.count * each.size_bytes for each in profile.work(job).stages[0].messages if each.op == op)
        for op in ("reduce_scatter", "all_reduce")
    }
    assert gradients["reduce_scatter"] == pytest.approx(4 * shape.num_parameters, rel=1e-3)
    assert gradients["all_reduce"] == pytest.approx(gradients["reduce_scatter"] / 8, rel=1e-3)


@pytest.mark.parametrize("name", ["fsdp2", "ours"])
def test_hsdp_holds_as_much_as_a_group_alone(name):
    profile = profiles()[name]()
    of_all, of_groups, alone = (
        profile.held(job)
        for job in (priced("dp128+zero3", "llama2-13b"), hybrid("dp128+zero3", 8), priced("dp8+zero3", "llama2-13b"))
    )
    share = 4 * named_shape("llama2-13b").num_parameters / 8
    # ours keeps what was summed over copies until backward is over, too: clusterbench/job/backward.py
    assert alone * (1 - 1e-3) <= of_groups <= alone + 1.01 * share * (name == "ours") + 1e-3 * alone
    assert of_groups - of_all > 0.9 * 16 * named_shape("llama2-13b").num_parameters * (1 / 8 - 1 / 128)


@pytest.mark.parametrize("name", ["fsdp2", "ours"])
def test_hsdp_reduces_between_nodes_while_it_gathers_within_them(name):
    """FSDPCommContext.lazy_init: all-reduces have a stream of their own, as they use another network."""
    stage = profiles()[name]().work(hybrid("dp128+zero3", 8)).stages[0]
    behind = {
        op: sum(each.behind_flops for each in stage.messages if each.op == op)
        for op in ("all_gather", "reduce_scatter", "all_reduce")
    }
    assert behind["all_gather"] + behind["reduce_scatter"] == pytest.approx(stage.matmul_flops)
    assert behind["all_reduce"] == pytest.approx(2 / 3 * stage.matmul_flops)
    wide = profiles()[name]().work(hybrid("dp128+zero3", 16)).stages[0]  # over the same NICs
    assert sum(each.behind_flops for each in wide.messages) == pytest.approx(wide.matmul_flops)


@pytest.mark.parametrize("name", ["nanotron", "megatron_core"])
def test_frameworks_without_hsdp_refuse_it(name):
    assert profiles()[name]().objection(hybrid("dp128+zero3", 8)).endswith("and not HSDP, groups of 8 ranks that shard")


def test_groups_of_hsdp_divide_the_ranks():
    assert profiles()["fsdp2"]().objection(hybrid("dp12+zero3", 8)) == (
        "shard_group_size 8 has to be a divisor of the 12 ranks of dp x cp, more than 1 and fewer than all"
    )
    assert not_validated(hybrid("dp128+zero3", 8)) == ["ZeRO-3", "HSDP"]


def test_gradients_may_be_sent_in_bfloat16():
    """MixedPrecisionPolicy(reduce_dtype=...) of fully_shard; foundation-model-stack/fms-fsdp has bfloat16 there."""
    profile, wide = profiles()["fsdp2"](), hybrid("dp128+zero3", 8)
    narrow = replace(wide, reduce_dtype="bfloat16")
    for op, ratio in (("all_gather", 1), ("reduce_scatter", 2), ("all_reduce", 2)):
        one, other = (
            sum(sent.size_bytes for sent in profile.work(job).stages[0].messages if sent.op == op)
            for job in (wide, narrow)
        )
        assert one == ratio * other
    assert profile.memory(wide) == profile.memory(narrow)  # the shard of each rank is kept in float32


@pytest.mark.parametrize(
    ("layout", "ranks_per_node", "axis", "lies"),
    [
        ("dp7-tp2+sp", 7, "tp", Reach(2, 7)),  # ranks 6 and 7
        ("pp8-dp3", 8, "dp", Reach(2, 8)),  # ranks 6 to 8
        ("dp6-tp4+sp", 8, "tp", Reach(1, 1)),
        ("dp12-tp2+sp", 8, "dp", Reach(3, 2)),
    ],
)
def test_a_group_lies_where_the_widest_of_its_kind_does(layout, ranks_per_node, axis, lies):
    """The group of rank 0 was taken for all: dp7-tp2+sp+zero3 of llama-8b on 2 x 7 GPUs was priced 29 % too short."""
    assert reach(ParallelLayout.parse(layout), axis, ranks_per_node, "megatron") == lies


def test_groups_that_shard_lie_where_the_widest_of_them_does():
    layout = ParallelLayout.parse("dp24+zero3")
    assert reach_of_shards(layout, "shard", 6, 8, "megatron") == Reach(2, 4)  # ranks 6 to 11
    assert reach_of_shards(layout, "shard", 4, 8, "megatron") == Reach(1, 1)
