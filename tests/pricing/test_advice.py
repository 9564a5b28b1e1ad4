"""``advise``: what fits, which batch, which layout; the ranking, and what a person reads."""

import os
import re
import signal
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import Cluster, Found, MachineOptions, accelerators
from clusterbench.errors import ClusterbenchError
from clusterbench.job import TrainingJob
from clusterbench.launch.dry import plan_of
from clusterbench.layout import ParallelLayout, every_layout
from clusterbench.parallel.recompute import KINDS
from clusterbench.planning import make_plan
from clusterbench.pricing import step_seconds
from clusterbench.pricing.advice import Advice, Candidate, Question, advise, order_words, ranking
from clusterbench.pricing.advice_text import advice_text
from clusterbench.pricing.advised_suite import advised_suite
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.profiles.ours import Ours
from clusterbench.pricing.typical import typical_rates
from clusterbench.shape import named_shape
from clusterbench.suite import load_suite

CARD = accelerators()["h100-sxm-80gb"]
KNOWN = typical_rates(CARD, 400e9)
HERE = ("--gpu", "NVIDIA H100 80GB HBM3", "--seq-len", "4096")


def question(shape="llama-8b", num_nodes=1, gpus_per_node=4, batch=32):
    return Question(named_shape(shape), CARD, num_nodes, gpus_per_node, 4096, batch)


@pytest.fixture(scope="module")
def advice():
    return advise(question(), Ours(), KNOWN)


def run(*arguments):
    return CliRunner().invoke(main, ("advise", *arguments))


def test_the_fastest_is_the_fastest_of_every_form_there_is(advice):
    """Whatever the search leaves out is slower, or does not fit."""
    of, best = question(), None
    for layout in every_layout(of.world_size):
        for power in range(6):
            for recompute in KINDS:
                job = TrainingJob(of.shape, layout, 4096, 32, 2**power, "bfloat16", device="cuda")
                priced = PricedJob(job, 4, recompute=recompute)
                if Ours().objection(priced) is None:
                    held = max(sum(part.values()) for part in Ours().memory(priced))
                    step_s = step_seconds(Ours().work(priced), KNOWN.rates)
                    if held <= CARD.memory_bytes and (best is None or step_s < best[0]):
                        best = (step_s, str(layout))
    assert (advice.ranked[0].step_s, str(advice.ranked[0].layout)) == best


@pytest.mark.parametrize("cores", [1, 3])
def test_layouts_that_are_priced_in_parts_are_ranked_as_all_at_once(monkeypatch, cores):
    of = question("moe-tiny", 2)
    at_once = ranking(of, Ours(), KNOWN)
    monkeypatch.setattr("clusterbench.forked.cores", lambda: cores)
    monkeypatch.setattr("clusterbench.pricing.advice.FEWEST_LAYOUTS", 7)
    assert ranking(of, Ours(), KNOWN) == at_once
    assert list(ranking(of, Ours(), KNOWN).refused) == list(at_once.refused)


def test_a_part_that_was_not_priced_is_an_error(monkeypatch):
    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("clusterbench.forked.cores", lambda: 2)
    monkeypatch.setattr("clusterbench.pricing.advice.FEWEST_LAYOUTS", 7)
    monkeypatch.setattr("clusterbench.pricing.advice.step_seconds", killed)
    with pytest.raises(ClusterbenchError, match=r"layouts 1 to \d+ were not priced: its process ended with -9"):
        ranking(question("moe-tiny", 2), Ours(), KNOWN)


def test_a_batch_of_nine_sequences_a_rank_is_not_cut_into_single_ones():
    """Sizes that are no power of two count, too: 63 sequences on 28 GPUs were advised 9 times slower than they can."""
    of = replace(question("mixtral-8x7b", 4, 7, batch=63), seq_len=2048)
    best = advise(of, Ours(), KNOWN).ranked[0]
    assert best.priced.job.micro_batch_size == 9


def test_layouts_are_ranked_once_each_and_all_of_them_fit(advice):
    names = [str(each.layout) for each in advice.ranked]
    assert len(names) == len(set(names)) > 5
    assert [each.step_s for each in advice.ranked] == sorted(each.step_s for each in advice.ranked)
    assert all(each.memory_bytes <= CARD.memory_bytes for each in advice.ranked)
    assert [price.step_s for price in advice.prices] == pytest.approx([each.step_s for each in advice.ranked[:5]])
    kinds = [each.kind for each in advice.of_other_kinds]
    assert advice.ranked[0].kind not in kinds
    assert len(kinds) == len(set(kinds))


def test_the_suite_of_the_first_five_is_planned_without_a_refusal(advice, tmp_path):
    file = tmp_path / "advised.yaml"
    file.write_text(advised_suite([advice], "ours").text)
    plan = make_plan(load_suite(str(file)), Cluster(1, 4, "cuda", "NVIDIA H100 80GB HBM3"))
    assert plan.refusals == ()
    assert [case.point["layout"] for case in plan.cases] == [str(each.layout) for each in advice.ranked[:5]]
    assert [case.point["micro_batch_size"] for case in plan.cases] == [
        each.priced.job.micro_batch_size for each in advice.ranked[:5]
    ]


def test_the_suite_of_experts_is_one_that_can_be_run_dry(tmp_path):
    """Real routing, which is the default, takes data: each case of such a suite was refused."""
    file = tmp_path / "advised.yaml"
    of = replace(question("moe-flat-tiny", 1, 8), seq_len=4098)
    jobs = [TrainingJob(of.shape, ParallelLayout.parse("dp8+ep4"), 4098, 32, size, "bfloat16") for size in (2, 1)]
    ranked = [Candidate(PricedJob(job, 8), 1e9, 1.0, "fits") for job in jobs]
    advice = Advice(of, ranked, (), None, Counter(), tried=2, num_fitting=2)
    suite = advised_suite([advice], "ours")
    file.write_text(suite.text)
    plan = plan_of(load_suite(file), MachineOptions(gpu="h100-sxm-80gb"), Found())
    assert [case.point["routing"] for case in plan.cases] == ["balanced"]
    assert suite.remarks == [
        "Every expert gets as many tokens, as it was priced: with routing balanced, which 'run --dry' takes as well. "
        "With 'routing: real' tokens go where the router sends them.",
        "Tokens go where the router sends them, which 'run --dry' refuses, in dp8+ep4, micro-batch 1: they do not come "
        "out even over the experts.",
    ]


def test_where_nothing_fits_no_suite_is_written(tmp_path):
    file = tmp_path / "advised.yaml"
    done = run("--shape", "llama-405b", *HERE, "--global-batch-size", "8", "--out", str(file))
    assert done.exit_code == 2
    assert done.stderr == "error: there is no suite to write: nothing fits, so there is nothing to measure.\n"
    assert not file.exists()


def test_the_suite_of_two_networks_has_the_first_five_of_both(advice):
    suite = advised_suite([advice, replace(advice, ranked=advice.ranked[3:])], "ours")
    measured = [line.split("[")[1][:-1] for line in suite.text.splitlines() if "layouts:" in line]
    assert measured == [str(each.layout) for each in advice.ranked[:8]]
    (said,) = suite.remarks
    assert said == "The first 5 of each of 2 networks, each layout once: 8 cases."
    assert suite.text.startswith(f"# {said}\nsuite: advised\n")


def test_the_suite_asks_for_the_nodes_that_were_asked_about(tmp_path):
    """A dry run takes as many nodes as its suite asks for: on one of 8 GPUs each case of two was refused."""
    file = tmp_path / "advised.yaml"
    assert run(
        "--shape", "llama-8b", *HERE, "--num-nodes", "2", "--tokens", "2^17", "--nics", "8x400Gb", "--out", str(file)
    )
    plan = plan_of(load_suite(file), MachineOptions(gpu="h100-sxm-80gb"), Found())
    assert [(case.num_nodes, case.world_size) for case in plan.cases] == [(2, 16)] * 5


def test_the_suite_of_another_framework_says_that_it_runs_our_step_and_leaves_out_what_that_cannot_hold(tmp_path):
    file = tmp_path / "advised.yaml"
    of = (*HERE, "--profile", "megatron_core", "--out", str(file))
    none = run("--shape", "llama-8b", *of, "--global-batch-size", "64")
    assert none.stderr.startswith("error: there is no suite to write: our step runs none of the layouts.\nleft out: ")
    assert none.stderr.endswith("\nhint: --profile ours ranks those that a suite can run\n")
    done = run("--shape", "llama2-7b", *of, "--global-batch-size", "64")
    text = file.read_text().replace("\n#  ", "")
    assert "# Priced were steps of megatron_core; this suite runs clusterbench's own step" in text
    assert "# left out: " in text
    assert "our step needs " in text
    assert "and the card has 80 GB." in text
    assert 1 <= text.count("benchmark: train_step") < 5
    assert "left out: " in done.stdout


def test_where_nothing_fits_it_is_said_what_it_takes():
    nothing = advise(question("llama-405b", gpus_per_node=8), Ours(), KNOWN)
    assert nothing.ranked == []
    assert nothing.least.memory_bytes > CARD.memory_bytes
    done = run("--shape", "llama-405b", *HERE, "--global-batch-size", "64")
    assert done.exit_code == 0
    assert "1. What fits: nothing, in 80 GB." in done.stdout
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert "Of twice, four times ... as many nodes the same batch first fits on 16, as " in text
    assert "GB; or a card of " in text


def test_a_single_gpu_is_told_of_more_gpus_and_not_of_a_larger_batch():
    """Nothing is shared on one GPU, whatever the batch."""
    on_one = ("--shape", "llama-8b", *HERE, "--gpus-per-node", "1", "--global-batch-size", "1")
    done = run(*on_one)
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert "1. What fits: nothing, in 80 GB. tp1, micro-batch 1, full recompute needs least: " in text
    assert "Of twice, four times ... as many nodes the same batch first fits on 2, as " in text
    assert "larger batch" not in text
    held = re.search(r"With 'precision: pure_bfloat16' \(.*: 8 bytes a parameter\) tp1.* needs ([0-9.]+) GB and", text)
    assert 8 * named_shape("llama-8b").num_parameters < 1e9 * float(held[1]) < CARD.memory_bytes
    other = run(*on_one, "--profile", "nanotron")  # which trains so and not otherwise
    assert "1. What fits: nothing, in 80 GB." in other.stdout
    assert "precision" not in other.stdout
    assert "1 NVIDIA H100 80GB HBM3: 1 sequence of 4,096 = 4,096 tokens a step" in text


def test_degrees_that_were_not_asked_about_are_said_where_there_are_any():
    """cp3 runs on 12 ranks, and no ranking has it."""
    of = ("--shape", "llama-8b", *HERE, "--num-nodes", "2", "--global-batch-size", "12", "--nics", "8x400Gb")
    text = " ".join(run(*of, "--gpus-per-node", "6").stdout.replace("\n#", "").split())
    said = (
        "Left out are layouts whose cp is no power of two, such as 3, and a tp that neither is one nor divides a node."
    )
    assert said in text
    assert "but not 12 sequences" not in text
    assert "Left out" not in run(*of, "--gpus-per-node", "2").stdout


def test_stages_take_the_factor_of_the_ranks_that_a_batch_lacks():
    """Of 256 sequences nothing was legal on 6 nodes of 8: they are no multiple of 3, which dp alone could take."""
    found = advise(question(num_nodes=6, gpus_per_node=8, batch=256), Ours(), KNOWN)
    assert len(found.ranked) > 50
    assert {each.layout.pp % 3 for each in found.ranked} == {0}
    assert found.other_batches == (240, 288)
    text = " ".join(advice_text(found, Ours(), KNOWN, None).replace("\n#", "").split())
    assert (
        "3 divides 48 ranks, but not 256 sequences: what dp cannot take of it is left to pp. With 240 or 288 sequences "
        "dp can, which may be faster: ask about those, too."
    ) in text


def test_a_node_of_six_is_cut_over_three_and_six():
    """Without sp, as 3 ranks cannot share 4,096 tokens."""
    shape = replace(named_shape("llama-8b"), name="mine", num_heads=48, num_kv_heads=12, ffn_hidden_size=14400)
    found = advise(Question(shape, CARD, 2, 6, 4096, 48), Ours(), KNOWN)
    assert {each.layout.tp for each in found.ranked} >= {1, 2, 3, 4, 6}


def test_where_nothing_fits_a_batch_that_dp_could_take_more_of_is_named():
    done = run("--shape", "llama-70b", *HERE, "--gpus-per-node", "5", "--global-batch-size", "64")
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert "1. What fits: nothing, in 80 GB." in text
    assert "With 60 or 65 sequences dp can, which may fit: ask about those, too." in text


@pytest.mark.parametrize(
    ("num_nodes", "gpus_per_node", "batch", "layers", "experts", "first"),
    [
        (5, 8, 60, 30, 0, "dp"),
        (7, 8, 64, 61, 20, "pp7"),
        (1, 5, 128, 36, 0, "pp5"),
        (2, 6, 16, 12, 6, "pp3"),
    ],
)
def test_what_is_advised_of_any_cluster_is_planned_there(
    num_nodes, gpus_per_node, batch, layers, experts, first, tmp_path
):
    of_experts = {"num_experts": experts, "experts_per_token": 2, "ffn_hidden_size": 768} if experts else {}
    shape = replace(named_shape("llama-1b"), name="mine", num_layers=layers, num_heads=24, num_kv_heads=6, **of_experts)
    found = advise(Question(shape, CARD, num_nodes, gpus_per_node, 4096, batch), Ours(), KNOWN)
    assert str(found.ranked[0].layout).startswith(first)
    file = tmp_path / "advised.yaml"
    file.write_text(advised_suite([replace(found, ranked=found.ranked[::9])], "ours").text)
    plan = make_plan(load_suite(str(file)), Cluster(num_nodes, gpus_per_node, "cuda", "NVIDIA H100 80GB HBM3"))
    assert plan.refusals == ()
    assert [case.point["layout"] for case in plan.cases] == [str(each.layout) for each in found.ranked[::9][:5]]


def test_experts_are_spread_over_any_number_of_ranks_that_divides_theirs():
    shape = replace(named_shape("olmoe-1b-7b"), name="mine", num_experts=40)
    found = advise(Question(shape, CARD, 5, 4, 4096, 40), Ours(), KNOWN)
    assert {each.layout.ep for each in found.ranked} >= {1, 5, 10, 20}


def test_the_form_that_needs_least_is_named_though_it_is_slow(advice):
    """The fastest form of each layout recomputes no more than it has to, and so needs more."""
    assert advice.least.words == "cp2-tp2+sp+zero3, micro-batch 1, full recompute"
    assert advice.least.memory_bytes < 0.6 * min(each.memory_bytes for each in advice.ranked)
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "4", "--tokens", "2^17")
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert f"The least is needed by {advice.least.words}: {advice.least.memory_bytes / 1e9:.1f} GB." in text


def test_a_mixture_of_experts_is_advised_too():
    found = advise(question("olmoe-1b-7b"), Ours(), KNOWN)
    assert any(each.layout.ep > 1 for each in found.ranked)
    spread = next(each for each in found.ranked if each.layout.ep > 1)
    assert step_seconds(Ours().work(spread.priced), KNOWN.rates) == spread.step_s


def test_more_memory_never_makes_the_best_slower():
    speeds = []
    for name in ("a100-sxm4-80gb", "h200-sxm-141gb"):
        card = accelerators()[name]
        of = Question(named_shape("llama-8b"), card, 1, 4, 4096, 32)
        speeds.append(advise(of, Ours(), KNOWN).ranked[0].tokens_per_s_per_rank)
    assert speeds[0] <= speeds[1]


@pytest.mark.parametrize(
    ("other", "words"), [(1.0, "as fast"), (1.049, "as fast"), (1.06, "probably slower"), (1.25, "slower")]
)
def test_small_gaps_are_no_order(other, words):
    assert order_words(1.0, other) == words


def test_the_answer_says_first_that_nothing_was_measured():
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "4", "--tokens", "2^17", "--gpu-hour", "2")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# NOT MEASURED: datasheet of h100-sxm-80gb x typical. Nothing was run on this machine")
    text = " ".join(done.stdout.replace("\n#", "").split())
    for words in (
        "llama-8b on 1 node x 4 NVIDIA H100 80GB HBM3: 32 sequences",
        "2. Which batch: ",
        "3. Which layout: ",
    ):
        assert words in text
    assert "10^12 tokens with the first: " in text
    assert " at 2 an hour." in text
    assert done.stdout.count("NOT MEASURED") == 1


def test_the_answer_has_the_parts_of_the_fastest_with_their_ranges():
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "4", "--tokens", "2^17")
    said, _, table = done.stdout.partition("# A step of the first: ")[2].partition("# part")
    assert "of steps only:" in said
    rows = [line.split() for line in table.partition("#\n")[0].splitlines()[2:]]
    assert rows[0][0] == "compute"
    for _, part_s, low_s, high_s in rows:
        assert float(low_s) <= float(part_s) <= float(high_s)


def test_the_answer_has_the_playbooks_rules_and_where_asked_the_knee():
    of = ("--shape", "llama-8b", *HERE, "--gpus-per-node", "4", "--num-nodes", "2", "--nics", "4x400Gb")
    plain = run(*of, "--global-batch-size", "16")
    text = " ".join(plain.stdout.replace("\n#", "").split())
    assert "The Playbook's rules by these prices: " in text
    assert "tp stays within a node" in text
    assert "knee" not in text
    asked = run(*of, "--global-batch-size", "16", "--knee")
    text = " ".join(asked.stdout.replace("\n#", "").split())
    assert "On fewer nodes, with the same batch: " in text
    assert "The knee, from where on tokens/s per GPU falls by more than 20% of what fewer nodes reach: " in text


def test_a_network_that_is_not_said_gives_two_answers():
    of = ("--shape", "llama-8b", *HERE, "--num-nodes", "2", "--gpus-per-node", "2", "--global-batch-size", "16")
    both = run(*of)
    assert [line for line in both.stdout.splitlines() if "If the NICs" in line] == [
        "# If the NICs of a node are 2x400Gb:",
        "# If the NICs of a node are 2x100Gb:",
    ]
    said = run(*of, "--nics", "2x400Gb")
    assert said.stdout.count("3. Which layout") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "error: say the batch once: --global-batch-size SEQUENCES or --tokens TOKENS."),
        (("--tokens", "4096", "--global-batch-size", "1"), "error: say the batch once"),
        (
            ("--tokens", "2097153"),  # was 'no multiple of --seq-len 4096: 512 sequences'
            "error: --tokens 2097153 is no multiple of --seq-len 4096.\n"
            "hint: 2097152 are 512 sequences and 2101248 are 513 sequences",
        ),
        (("--tokens", "5"), "error: --tokens 5 is no multiple of --seq-len 4096.\nhint: 4096 are 1 sequence"),
        (
            ("--tokens", "2^99"),
            "error: --tokens '2^99' is no number of tokens a step: 1 to 2^30, whole, or a power as 2^22",
        ),
        (("--tokens", "\u00b2"), "error: --tokens '\u00b2' is no number of tokens a step"),
        (("--tokens", "2**22"), "error: --tokens '2**22' is no number of tokens a step"),
        (
            ("--tokens", "4096", "--nics", "8x400Gb"),  # was taken, and changed nothing
            "error: --nics 8x400Gb has no effect on one node: nothing leaves it.",
        ),
        (("--tokens", "4096", "--nics", "400"), "error: --nics '400' is not of the form 8x400Gb"),
        (("--tokens", "4096", "--profile", "mine"), "error: no profile 'mine'."),
        (("--tokens", "4096", "--rates", "none.yaml"), "error: --rates none.yaml cannot be read"),
        (("--tokens", "4096", "--rates", "."), "error: --rates . cannot be read: Is a directory.\nhint: of a run 'cl"),
    ],
)
def test_a_mistake_is_said_with_exit_code_2(arguments, said):
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "2", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(said)


def test_a_batch_that_no_layout_can_share_has_its_reasons():
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "3", "--global-batch-size", "1")
    assert done.exit_code == 0
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert "1. What fits: no layout is legal for this model, batch and number of ranks; the reasons are below." in text
    assert "A batch of 3 sequences would have some." in text
    assert "refused" in done.stdout


def test_a_sequence_that_tp_does_not_divide_is_cut_without_sp():
    """Of 4,100 tokens on 8 GPUs no layout was called legal, and 'plan' took tp8."""
    of = replace(question(gpus_per_node=8, batch=1), seq_len=4100)
    ranked = advise(of, Ours(), KNOWN).ranked
    assert {str(each.layout) for each in ranked} == {"tp8", "cp2-tp4", "cp2-tp4+zero1", "cp2-tp4+zero3"}


def test_too_few_layers_are_the_reason_and_not_too_small_a_batch():
    """On 97 nodes it was first that 1f1b needs 97 micro-batches, which no layout of 32 layers over 97 stages has."""
    found = advise(question(num_nodes=97, gpus_per_node=8, batch=1024), Ours(), KNOWN)
    (first, *_) = [line for line in advice_text(found, Ours(), KNOWN, None).splitlines() if "refused" in line]
    assert first.startswith(
        "# refused, 527 forms: pp97 with 1 chunk per rank has 97 stages, and llama-8b has 32 layers"
    )


def test_no_batch_is_named_that_has_no_layout_either(tmp_path):
    """Megatron's profile knows no experts, and with 24 sequences it had no layout of mixtral-8x7b either."""
    of = ("--shape", "mixtral-8x7b", *HERE, "--num-nodes", "6", "--global-batch-size", "25", "--nics", "8x400Gb")
    done = run(*of, "--profile", "megatron_core", "--out", str(tmp_path / "advised.yaml"))
    assert "no layout is legal" in done.stdout
    assert "A batch of" not in done.stdout
    assert (done.exit_code, done.stderr) == (
        2,
        "error: there is no suite to write: no layout is legal, so there is nothing to measure.\n",
    )


def test_refusals_that_differ_in_figures_only_are_said_once():
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "8", "--global-batch-size", "2")
    text = done.stdout.replace("\n#  ", "")
    refused = [line for line in text.splitlines() if line.startswith("# refused")]
    kinds = [
        "".join(word for word in line.split(":", 1)[1].split() if not any(map(str.isdigit, word))) for line in refused
    ]
    assert len(kinds) == len(set(kinds)) > 1
    assert any("others alike)" in line for line in refused)


def test_a_card_without_a_link_is_priced_where_a_file_gives_what_the_datasheet_lacks(tmp_path):
    of = ("--shape", "llama-1b", "--gpu", "l40s", "--gpus-per-node", "2", "--tokens", "2^15")
    without = run(*of)
    assert without.exit_code == 2
    assert without.stderr == (
        "error: nothing can be priced on l40s: its datasheet on record has no link_bytes_per_s.\n"
        "hint: give busbw with --rates FILE\n"
    )
    rates = tmp_path / "rates.yaml"
    rates.write_text("rates:\n  busbw[nodes=1,op=all_gather]: 20 GB/s\n")
    given = run(*of, "--rates", str(rates))
    assert given.exit_code == 0, given.stderr
    assert "3. Which layout" in given.stdout


def test_a_binary_file_of_rates_is_called_one(tmp_path):
    rates = tmp_path / "rates.yaml"
    rates.write_bytes(b"\x93NUMPY\xff")
    done = run("--shape", "llama-1b", *HERE, "--tokens", "2^15", "--rates", str(rates))
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {rates}:1: byte 0x93 is not UTF-8; a file of rates is a text file.\n",
    )


def test_a_file_of_one_rate_says_that_the_others_were_not_measured(tmp_path):
    rates = tmp_path / "rates.yaml"
    rates.write_text("of: our cluster\nrates:\n  matmul: 600 TFLOP/s\n")
    done = run("--shape", "llama-8b", *HERE, "--gpus-per-node", "2", "--tokens", "2^15", "--rates", str(rates))
    head = " ".join(done.stdout.partition("llama-8b on")[0].replace("\n#", "").split())
    assert head.startswith("# rates: our cluster given or measured: matmul NOT MEASURED: attention, memory, busbw, ")
    assert "(datasheet); operator_time, half_size, " in head
    assert "Where these decide, believe the range and not the value." in head


def test_rates_of_nodes_with_other_gpus_are_refused(tmp_path):
    """Rates of a machine with one GPU priced nodes of eight: what stays within a node differs (the fingerprint)."""
    rates = tmp_path / "rates.yaml"
    rates.write_text("machine: {gpu: h100-sxm-80gb, gpus_per_node: 1}\nrates:\n  matmul: 600 TFLOP/s\n")
    of = ("--shape", "llama-1b", *HERE, "--tokens", "2^15", "--rates", str(rates))
    assert run(*of, "--gpus-per-node", "1").exit_code == 0
    refused = run(*of)
    assert refused.exit_code == 2
    assert "it has gpus_per_node 1, and this one gpus_per_node 8." in refused.stderr
    assert run(*of, "--accept-other", "gpus_per_node").exit_code == 0


def test_rates_of_another_machine_that_are_accepted_are_said_to_be_of_it(tmp_path):
    rates = tmp_path / "rates.yaml"
    rates.write_text("of: box\nmachine: {gpu: a100-sxm4-80gb}\nrates: {}\n")
    of = ("--shape", "llama-1b", *HERE, "--gpus-per-node", "2", "--tokens", "2^15", "--rates", str(rates))
    assert run(*of).exit_code == 2
    head = run(*of, "--accept-other", "gpu").stdout.splitlines()[:3]
    assert head == ["# rates: box", "# of gpu a100-sxm4-80gb", "# given or measured: nothing"]


def test_a_file_that_says_nothing_of_the_network_leaves_two_answers(tmp_path):
    rates = tmp_path / "rates.yaml"
    of = ("--shape", "llama-8b", *HERE, "--num-nodes", "2", "--gpus-per-node", "2", "--global-batch-size", "16")
    rates.write_text("rates:\n  matmul: 600 TFLOP/s\n")
    unsaid = run(*of, "--rates", str(rates)).stdout
    assert unsaid.count("If the NICs of a node are ") == 2
    assert "NICs as said" not in unsaid
    rates.write_text("rates:\n  busbw[nodes=2,op=all_gather]: 20 GB/s\n  node_network: 40 GB/s\n")
    given = run(*of, "--rates", str(rates)).stdout
    assert "If the NICs of a node are " not in given
    assert f"a node sends 40.0 GB/s: {rates}:3" in given.replace("\n#  ", "")
    assert "given or measured: busbw[nodes=2,op=all_gather], node_network\n" in given
    assert " busbw[nodes=1,op=all_gather] (datasheet)" in " ".join(given.replace("\n#", "").split())


def test_a_node_has_as_many_gpus_as_the_usual_server_of_its_card():
    done = run("--shape", "llama-8b", "--gpu", "gb200", "--tokens", "2^17")
    text = " ".join(done.stdout.replace("\n#", "").split())
    assert "4 GPUs a node, as --gpus-per-node was not said: NVIDIA GB200 NVL72: 18 compute trays of four GPUs" in text
    assert "llama-8b on 1 node x 4 NVIDIA GB200" in text


def test_a_suite_that_a_person_wrote_is_not_written_over(tmp_path):
    """As 'baseline --out' keeps what is there; a suite of before that advise wrote is made again."""
    file = tmp_path / "s.yaml"
    of = ("--shape", "llama-1b", *HERE, "--gpus-per-node", "2", "--tokens", "2^15", "--out", str(file))
    file.write_text("suite: mine\n")
    done = run(*of)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--out {file} is there already, and advise did not write it: what it holds would be lost." in done.stderr
    assert file.read_text() == "suite: mine\n"
    file.write_text("")
    assert run(*of).exit_code == 0
    written = file.read_text()
    assert run(*of).exit_code == 0
    assert file.read_text() == written
