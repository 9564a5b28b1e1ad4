from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.errors import LayoutError, SuiteError
from clusterbench.planning import SECONDS_TO_COMPILE, default_time_limit_s, make_plan
from clusterbench.planning.requests import MOST_CASES
from clusterbench.planning.text import idle_sentence, plan_text
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from tests.invented import HEAD, Ping, plan_of, suite_of


def mistake(folder, text, **cluster):
    with pytest.raises(SuiteError) as error:
        plan_of(folder, text, **cluster)
    assert error.value.exit_code == 2
    return str(error.value).replace(f"{folder}/", "")


def ids(plan):
    return [case.id for case in plan.cases]


def refused(plan):
    return {refusal.id: refusal.reason for refusal in plan.refusals}


def test_a_case_says_all_that_a_worker_needs(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: [tp2], expect: out_of_memory}\nrepeats: 3\n"
    (case,) = plan_of(tmp_path, text, ranks_per_node=2).cases
    assert case.id == "train/1n2/tp2"
    assert case.point == {"layout": "tp2", "seq_len": 512}
    assert (case.device, case.num_nodes, case.world_size, case.layout) == ("cuda", 1, 2, "tp2")
    assert (case.iterations, case.warmup, case.repeats) == (20, 3, 3)
    assert case.time_limit_s == default_time_limit_s(2, 20)
    assert case.expected_outcomes == ("out_of_memory",)
    assert case.expected["latency"].value == 2e-6
    assert case.source == f"{tmp_path}/s.yaml:3"


def test_a_case_may_take_as_long_as_its_bytes_need_on_the_slowest_link():
    assert default_time_limit_s(8, 20) == 60 + 2 * 8 + 5 * 20
    assert default_time_limit_s(8, 20, 10**9) == 60 + 2 * 8 + 5 * 20 + 20 * 10**9 / 50e6
    assert default_time_limit_s(8, 20, 10**9, "cuda") == 60 + 2 * 8 + 5 * 20 + 20


def test_a_case_may_take_as_long_as_a_compiler_needs_beside(tmp_path):
    def limits(more=""):
        suite = tmp_path / "s.yaml"
        suite.write_text(f"suite: s\nbenchmarks:\n  - {{benchmark: train_step, compile: [false, true]{more}}}\n")
        return [case.time_limit_s for case in make_plan(load_suite(suite), Cluster(1, 1, "cpu")).cases]

    eager_s, compiled_s = limits()
    assert compiled_s == eager_s + SECONDS_TO_COMPILE
    assert limits(", time_limit_s: 50") == [50, 50]


def test_fewer_nodes_come_first_and_else_the_order_of_the_suite(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: dp*-tp2}\n  - {benchmark: ping, max_size: 8}\nnum_nodes: [2, 1]\n"
    assert ids(plan_of(tmp_path, text, num_nodes=2, ranks_per_node=4)) == [
        "train/1n4/dp2-tp2",
        "ping/1n4/8B",
        "train/2n8/dp4-tp2",
        "ping/2n8/8B",
    ]


PINGS = HEAD + "  - {benchmark: ping, max_size: 8}\n"


def test_a_suite_that_names_no_number_of_nodes_uses_all(tmp_path):
    assert ids(plan_of(tmp_path, PINGS, num_nodes=3)) == ["ping/3n24/8B"]
    assert ids(plan_of(tmp_path, PINGS + "cpu: {num_nodes: [1]}\n", num_nodes=3, device="cpu")) == ["ping/1n8/8B"]


def test_nodes_that_no_case_uses_are_named(tmp_path):
    plan = plan_of(tmp_path, PINGS + "num_nodes: [1, 2]\n", num_nodes=4)
    assert "\n# idle: 2 of 4 nodes, as no case uses more than 2.\n" in plan_text(plan)
    assert idle_sentence(plan.cases, replace(plan.cluster, hosts=("a", "b", "c", "d"))) == (
        "idle: 2 of 4 nodes (c, d), as no case uses more than 2.\n"
        "hint: add 4 to the suite's num_nodes, or leave num_nodes out to use all"
    )
    assert idle_sentence(plan.cases, replace(plan.cluster, num_nodes=2)) == ""
    assert "idle" not in plan_text(plan_of(tmp_path, PINGS, num_nodes=4))


def test_the_last_of_two_swept_keys_varies_fastest_and_ids_show_what_labels_do_not(tmp_path):
    text = HEAD + "  - {benchmark: train, seq_len: [128, 256], layouts: [tp8], iterations: [5, 10]}\n"
    assert ids(plan_of(tmp_path, text)) == [
        "train/1n8/tp8-seq_len=128-iterations=5",
        "train/1n8/tp8-seq_len=128-iterations=10",
        "train/1n8/tp8-seq_len=256-iterations=5",
        "train/1n8/tp8-seq_len=256-iterations=10",
    ]


def test_a_swept_value_that_the_label_shows_is_not_said_again(tmp_path):
    text = HEAD + "  - {benchmark: ping, min_size: [8, 64], max_size: 8}\n"
    assert ids(plan_of(tmp_path, text)) == ["ping/1n8/8B"]
    text = HEAD + "  - {benchmark: ping, min_size: 8, max_size: 8, dtype: [float32, bfloat16]}\n"
    assert ids(plan_of(tmp_path, text)) == ["ping/1n8/8B-dtype=float32", "ping/1n8/8B-dtype=bfloat16"]


def test_swept_variables_reach_the_case_and_its_id(tmp_path):
    text = HEAD + "  - {benchmark: ping, max_size: 8, environment: {NCCL_ALGO: [Ring, a b/c], X: 1}}\n"
    plan = plan_of(tmp_path, text)
    assert ids(plan) == ["ping/1n8/8B-NCCL_ALGO=Ring", "ping/1n8/8B-NCCL_ALGO=a_b_c"]
    assert [case.environment for case in plan.cases] == [
        {"NCCL_ALGO": "Ring", "X": "1"},
        {"NCCL_ALGO": "a b/c", "X": "1"},
    ]


def test_values_that_look_alike_in_an_id_get_a_number(tmp_path):
    text = HEAD + "  - {benchmark: ping, max_size: 8, environment: {A: [a b, a/b]}}\n"
    assert ids(plan_of(tmp_path, text)) == ["ping/1n8/8B", "ping/1n8/8B-2"]


def test_two_entries_of_one_benchmark_are_told_apart_by_what_differs(tmp_path):
    text = HEAD + "  - {benchmark: ping, max_size: 8}\n  - {benchmark: ping, max_size: 8, warmup: 9}\n"
    assert ids(plan_of(tmp_path, text)) == ["ping/1n8/8B-warmup=3", "ping/1n8/8B-warmup=9"]


def test_the_source_is_the_line_of_the_value_that_asked(tmp_path):
    text = HEAD + "  - benchmark: train\n    layouts:\n      - tp4\n      - tp8\n  - benchmark: ping\n    max_size: 8\n"
    plan = plan_of(tmp_path, text)
    assert [case.source.removeprefix(f"{tmp_path}/") for case in plan.cases] == ["s.yaml:5", "s.yaml:6", "s.yaml:7"]


def test_the_block_of_the_device_decides(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: tp8}\ncpu: {train: {layouts: tp2}, repeats: 5}\n"
    assert ids(plan_of(tmp_path, text)) == ["train/1n8/tp8"]
    on_cpu = plan_of(tmp_path, text, device="cpu", ranks_per_node=4)
    assert (ids(on_cpu), on_cpu.repeats) == (["train/1n2/tp2"], 5)


def test_planning_twice_gives_the_same(tmp_path):
    suite = suite_of(tmp_path, HEAD + "  - {benchmark: train, layouts: [tp1, tp16], seq_len: [1, 2]}\n")
    cluster = Cluster(1, 8, "cuda")
    assert make_plan(suite, cluster) == make_plan(suite, cluster)


def test_a_plan_survives_its_file(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: [tp1, tp16], environment: {A: [0, 1]}, expect: failed}\n"
    plan = plan_of(tmp_path, text)
    assert plan.cases
    assert plan.refusals
    assert RunFolder.create(tmp_path / "run", text.encode(), plan, {}).plan() == plan


# Refusals


def test_more_ranks_than_there_are_is_a_refusal_with_the_equation(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: train, layouts: [tp1, tp8]}\n", ranks_per_node=4, device="cpu")
    (refusal,) = plan.refusals
    assert refusal.id == "train/1n8/tp8"
    assert refusal.reason == "layout 'tp8' needs 8 ranks, but 1 node x 4 CPU ranks give 4."
    assert refusal.hint == "give it more CPU ranks with '--num-ranks 8'"


def test_one_rank_is_said_in_the_singular(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: train, layouts: [tp1, tp8]}\n", ranks_per_node=1)
    assert refused(plan) == {"train/1n8/tp8": "layout 'tp8' needs 8 ranks, but 1 node x 1 GPU gives 1."}


def test_ranks_that_do_not_come_out_even_are_a_refusal(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: train, layouts: [tp1, dp*-tp4]}\n", ranks_per_node=6)
    assert refused(plan) == {"train/1n8/dp2-tp4": "layout 'dp2-tp4' needs 8 ranks, but 1 node x 6 GPUs give 6."}


def test_more_nodes_than_there_are_is_a_refusal(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: ping, max_size: 8}\nnum_nodes: [1, 4]\n", num_nodes=2)
    (refusal,) = plan.refusals
    assert refusal.reason == "'ping' needs 4 nodes, but the allocation has 2."
    assert refusal.hint == "run it on 4 nodes, or take 4 out of num_nodes"


def test_a_layout_that_leaves_nodes_idle_is_a_refusal(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: train, layouts: tp8}\nnum_nodes: [1, 3]\n", num_nodes=3)
    (refusal,) = plan.refusals
    assert refusal.reason == "layout 'tp8' leaves 2 of 3 nodes idle: 8 ranks fit on 1 node."
    assert refusal.hint == "write 'dp*' to let data parallelism take the ranks that are left"


def test_an_objection_to_some_combinations_refuses_those(tmp_path):
    plan = plan_of(tmp_path, HEAD + "  - {benchmark: train, layouts: [tp2, tp2+sp], seq_len: [511, 512]}\n")
    assert refused(plan) == {"train/1n2/tp2+sp-seq_len=511": "layout 'tp2+sp': seq_len 511 is not divisible by tp 2."}
    assert len(plan.cases) == 3


def test_an_entry_that_finds_no_place_is_refused_where_another_runs(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: tp8}\n  - {benchmark: ping, max_size: 8}\n"
    plan = plan_of(tmp_path, text, ranks_per_node=4)
    assert ids(plan) == ["ping/1n4/8B"]
    assert refused(plan) == {"train/1n8/tp8": "layout 'tp8' needs 8 ranks, but 1 node x 4 GPUs give 4."}


def test_what_can_be_elsewhere_is_refused_and_what_can_be_nowhere_is_a_mistake(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Pairs(Ping):
        def objection(self, point, place):
            if self.max_size == 9:
                return "nine is odd"
            return "one rank has nobody to send to" if place.world_size == 1 and self.max_size == 8 else None

        def ineffective(self, keys, place):
            return [("max_size", "eight nodes send everything")] if place.num_nodes == 8 else []

    text = HEAD + "  - benchmark: pairs\n    max_size:\n      - 8\n      - 64\n"
    plan = make_plan(suite_of(tmp_path, text, {"pairs": Pairs}), Cluster(1, 1, "cuda"))
    assert list(refused(plan).values()) == ["one rank has nobody to send to."]
    assert len(plan.cases) == 1
    with pytest.raises(SuiteError) as error:
        make_plan(suite_of(tmp_path, text.replace("- 8", "- 9"), {"pairs": Pairs}), Cluster(1, 1, "cuda"))
    assert str(error.value).endswith("s.yaml:5: nine is odd.")


# Mistakes


def test_a_layout_that_can_never_be_is_a_mistake_at_its_line(tmp_path):
    text = HEAD + "  - benchmark: train\n    layouts:\n      - tp1\n      - tp3\nnum_nodes: [1, 2]\n"
    assert mistake(tmp_path, text) == "s.yaml:6: layout 'tp3': 32 heads are not divisible by tp 3."


def test_a_swept_value_that_can_never_be_is_a_mistake_at_its_line(tmp_path):
    text = HEAD + "  - benchmark: train\n    layouts: [tp2+sp, tp4+sp]\n    seq_len:\n      - 512\n      - 511\n"
    assert mistake(tmp_path, text) == "s.yaml:7: layout 'tp2+sp': seq_len 511 is not divisible by tp 2."


def test_a_layout_in_another_spelling_is_a_mistake_at_its_line(tmp_path):
    text = HEAD + "  - benchmark: train\n    layouts:\n      - tp1\n      - tp2-dp2\n"
    assert mistake(tmp_path, text) == "s.yaml:6: layout 'tp2-dp2' is written 'dp2-tp2'."


def test_what_a_benchmark_cannot_take_is_a_mistake_of_the_swept_value(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Picky(Ping):
        def __post_init__(self):
            if self.max_size < self.min_size:
                raise LayoutError(f"max_size {self.max_size} is below min_size {self.min_size}.")

    text = HEAD + "  - benchmark: picky\n    min_size: 9\n    max_size:\n      - 9\n      - 8\n"
    suite = suite_of(tmp_path, text, {"picky": Picky})
    with pytest.raises(SuiteError) as error:
        make_plan(suite, Cluster(1, 8, "cuda"))
    assert str(error.value).endswith("s.yaml:7: max_size 8 is below min_size 9.")


def test_an_error_that_names_an_option_is_at_its_line(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Picky(Ping):
        def __post_init__(self):
            raise SuiteError(f"warmup {self.warmup} is an odd number.")

    text = HEAD + "  - benchmark: picky\n    max_size: 8\n    warmup: 3\n"
    with pytest.raises(SuiteError) as error:
        make_plan(suite_of(tmp_path, text, {"picky": Picky}), Cluster(1, 8, "cuda"))
    assert str(error.value).endswith("s.yaml:5: warmup 3 is an odd number.")


def test_a_suite_of_which_nothing_fits_is_a_mistake(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: [tp16, tp32]}\n"
    assert mistake(tmp_path, text) == (
        "s.yaml:3: layout 'tp16' needs 16 ranks, but 1 node x 8 GPUs give 8.\nhint: ask for 2 nodes"
    )


def test_a_suite_of_which_nothing_runs_names_the_layout_that_is_objected_to(tmp_path):
    """``rank_order`` on 2 nodes of 4 said 'dp and cp are 1' of pp2-dp*-tp4+sp+zero1, and no layout."""
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "  - {benchmark: train_step, shape: llama-8b, layouts: [dp*-tp8+zero1]}\n")
    shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", "h100-sxm-80gb"])
    assert shown.exit_code == 2
    assert shown.stderr == (
        f"error: {path}:3: layout 'tp8+zero1': +zero1 shares optimizer states among ranks that hold the same weights, "
        "but dp and cp are 1.\n"
    )


def test_an_entry_without_points_is_a_mistake(tmp_path):
    text = HEAD + "  - {benchmark: ping, min_size: 64, max_size: 8}\n"
    assert mistake(tmp_path, text) == "s.yaml:3: benchmark 'ping' has nothing to measure here."


def test_an_option_without_effect_is_a_mistake_at_its_line(tmp_path):
    text = HEAD + "  - benchmark: train\n    layouts: [tp1, tp2]\n    schedule: 1f1b\n"
    assert mistake(tmp_path, text) == "s.yaml:5: benchmark 'train': option 'schedule' has no effect: no layout has pp."


def test_a_device_may_take_away_what_an_inherited_option_works_on(tmp_path):
    text = HEAD + "  - {benchmark: train, layouts: [tp1, pp2], schedule: 1f1b}\ncpu: {train: {layouts: tp1}}\n"
    assert ids(plan_of(tmp_path, text, device="cpu")) == ["train/1n1/tp1"]
    text = HEAD + "  - {benchmark: train, layouts: [tp1, pp2]}\ncpu:\n  train: {layouts: tp1, schedule: gpipe}\n"
    assert mistake(tmp_path, text, device="cpu") == (
        "s.yaml:5: benchmark 'train': option 'schedule' has no effect: no layout has pp."
    )


def test_one_case_asked_for_twice_names_both_lines(tmp_path):
    text = HEAD + "  - benchmark: ping\n  - benchmark: ping\n    max_size: 8\n"
    assert mistake(tmp_path, text) == "s.yaml:4: ping/1n8/8B is asked for twice, first at s.yaml:3."
    text = HEAD + "  - benchmark: train\n    layouts:\n      - dp4-tp2\n      - dp*-tp2\n"
    assert mistake(tmp_path, text) == "s.yaml:6: train/1n8/dp4-tp2 is asked for twice, first at s.yaml:5."


def test_too_many_combinations_are_counted_and_not_made(tmp_path):
    numbers = ", ".join(str(number) for number in range(1, 400))
    text = (
        HEAD
        + f"  - {{benchmark: ping, iterations: [{numbers}], warmup: [{numbers}], environment: {{A: [{numbers}]}}}}\n"
    )
    assert mistake(tmp_path, text) == (
        "s.yaml:3: with benchmark 'ping' the suite asks for 63521199 or more cases; 100000 are the most."
    )


def test_too_many_points_are_not_made_either(tmp_path):
    class Endless(Ping):
        def points(self, place):
            number = 0
            while True:
                yield {"number": (number := number + 1)}

        def label(self, point):
            return str(point["number"])

    with pytest.raises(SuiteError, match=rf"more than {MOST_CASES} cases; {MOST_CASES} are the most"):
        make_plan(suite_of(tmp_path, HEAD + "  - benchmark: endless\n", {"endless": Endless}), Cluster(1, 1, "cpu"))


# For people


def test_a_plan_reads_well_and_fits_120_columns(tmp_path):
    text = (
        HEAD
        + "  - benchmark: train\n    layouts: [tp1, tp2, tp16]\n  - {benchmark: ping, max_size: 8}\nquestion: Why?\n"
    )
    shown = plan_text(plan_of(tmp_path, text)).replace(f"{tmp_path}/", "")
    assert (
        shown
        == """\
# s: Why?
# 1 node x 8 GPUs: 3 cases, 1 repeat, 1 refused
#
# case           nodes  ranks  iterations  limit  asked for by
#                                            (s)
  train/1n1/tp1      1      1          20    162  s.yaml:4
  train/1n2/tp2      1      2          20    164  s.yaml:4
  ping/1n8/8B        1      8          20    176  s.yaml:5
#
# refused: layout 'tp16' needs 16 ranks, but 1 node x 8 GPUs give 8.
# hint: ask for 2 nodes
  train/1n16/tp16  s.yaml:4
#
# case           metric   expected  basis
  train/1n1/tp1  latency  8.00 us   [1]
  train/1n2/tp2  latency  8.00 us   [1]
  ping/1n8/8B    latency  8.00 us   [1]
# [1] one microsecond a rank"""
    )


def test_a_plan_for_a_card_says_which_training_cases_fit(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        HEAD + "  - benchmark: train_step\n    shape: llama-8b\n    dtype: bfloat16\n    seq_len: 4096\n"
        "    layouts: [dp8, dp8+zero3]\n"
    )
    shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", "NVIDIA H100 80GB HBM3"]).output
    fits = shown[shown.index("of the 80 GB of NVIDIA H100 80GB HBM3") : shown.index("By formula")].splitlines()
    answers = {line.split()[0]: line for line in fits if line.startswith("  train_step")}
    assert "does not fit" in answers["train_step/1n8/dp8"]
    assert "  fits, " in answers["train_step/1n8/dp8+zero3"]
    assert shown.splitlines()[2] == "# memory is predicted of 2 training cases: fits 1, close 0, does not fit 1"
    without = CliRunner().invoke(main, ["plan", str(path), "--gpus-per-node", "8"]).output
    assert "fits, " not in without
    assert "memory is predicted" not in without


def test_ranks_that_share_a_card_have_to_fit_together_and_one_that_runs_alone_by_itself(tmp_path):
    """Four ranks of 41.5 GB on one of 48 GB were said to fit, and of one with nothing sent nothing was said."""
    path = tmp_path / "s.yaml"
    step = "{benchmark: train_step, shape: llama-8b, dtype: bfloat16, seq_len: 4096, layouts: [dp8+zero3]"
    path.write_text(HEAD + f"  - {step}}}\n  - {step}, communication: fake}}\n")
    shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", "l40s", "--ranks-per-gpu", "4"]).output
    fits = [" ".join(line.split()) for line in shown.splitlines() if "fit" in line]
    assert fits[:3] == [
        "# memory is predicted of 2 training cases: fits 1, close 0, does not fit 1",
        "train_step/1n8/dp8+zero3 4 x 41.5 does not fit, 118.0 GB too much",
        "rank_step/1n1/dp8+zero3 41.5 fits, 6.5 GB left",
    ]


def test_a_plan_says_of_which_cases_it_does_not_know_whether_they_fit(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        HEAD + "  - benchmark: train_step\n    shape: llama-8b\n    dtype: bfloat16\n"
        "    layouts: [dp8, pp2-dp4+zero3]\n"
    )
    shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", "NVIDIA H200"]).output
    fits = shown[shown.index("of the 141 GB of NVIDIA H200") :]
    assert "train_step/1n8/pp2-dp4+zero3  -        not predicted [1]\n" in fits
    assert "# [1] FSDP gathers and reduces stages of a pipeline one after the other" in fits


def test_an_entry_that_a_card_has_no_units_for_leaves_the_rest_of_its_suite(tmp_path):
    """A V100's ``acceptance`` was a mistake as a whole: nodes of 16 ranks have no place for ``each_node`` of dp8."""
    path = tmp_path / "s.yaml"
    path.write_text(
        HEAD + "  - {benchmark: matmul, dtype: float32, sizes: [1024]}\n"
        "  - {benchmark: train_step, dtype: bfloat16, each_node: true, layouts: [dp8+zero3], global_batch_size: 8}\n"
    )
    shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", "v100-sxm2-32gb", "--json"])
    assert shown.exit_code == 0, shown.output
    (refusal,) = json.loads(shown.stdout)["refusals"]
    assert refusal["reason"].startswith("dtype bfloat16: v100-sxm2-32gb has no units for it.")


def test_dtypes_that_a_card_has_no_units_for_are_refused_on_it(tmp_path):
    """A V100 was asked for bfloat16 and an A100 for float8 without a word; the shipped suites ask for both."""
    path = tmp_path / "s.yaml"
    path.write_text(
        HEAD + "  - {benchmark: train_step, shape: llama-1b, dtype: [float32, bfloat16], layouts: [dp8]}\n"
        "  - {benchmark: train_step, shape: llama-1b, dtype: bfloat16, float8: [none, rowwise], layouts: [tp8]}\n"
        "  - {benchmark: matmul, dtype: [bfloat16, float8], sizes: [8192]}\n"
    )

    def reasons(card):
        shown = CliRunner().invoke(main, ["plan", str(path), "--gpu", card, "--json"])
        assert shown.exit_code == 0, shown.output
        return {refusal["reason"].rstrip(".") for refusal in json.loads(shown.stdout)["refusals"]}

    of_float8 = "float8: {0} has no units for e4m3fn, the float8 that operands are rounded to"
    assert reasons("h100-sxm-80gb") == set()
    for card in ("a100-sxm4-80gb", "mi300x"):
        assert reasons(card) == {of_float8.format(card), f"{card} has no units for float8 (e4m3fn)"}
    assert reasons("v100-sxm2-32gb") == {
        "dtype bfloat16: v100-sxm2-32gb has no units for it. torch emulates it slowly, and with other kernels of "
        "attention than those whose memory is told. It has units for float32",
        "v100-sxm2-32gb has no units for float8 (e4m3fn)",
    }
