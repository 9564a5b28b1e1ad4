"""The Playbook's rules: meant for what it says, and named where the fastest layout that follows is slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterbench.cluster import accelerators
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.pricing.advice import Candidate, Question
from clusterbench.pricing.knee import OnNodes, knee
from clusterbench.pricing.playbook_rules import Checked, checked
from clusterbench.pricing.profiles import PricedJob
from clusterbench.shape import named_shape

CARD = accelerators()["h100-sxm-80gb"]


def question(shape: str, num_nodes: int, seq_len: int = 4096) -> Question:
    return Question(named_shape(shape), CARD, num_nodes, 8, seq_len, 4096)


def ranked(of: Question, **seconds: float) -> list[Candidate]:
    """Layouts by their text with _ for - and +; the fastest first, as an answer has them."""
    found = []
    for text, step_s in seconds.items():
        layout = ParallelLayout.parse(text.replace("__", "+").replace("_", "-"))
        job = TrainingJob(of.shape, layout, of.seq_len, of.global_batch_size, 1, "bfloat16", device="cuda")
        found.append(Candidate(PricedJob(job, 8), 1.0, step_s, "fits"))
    return found


def said(of: Question, candidates: Sequence[Candidate]) -> dict[str, Checked]:
    return {each.rule.says.partition(":")[0].partition(" (")[0]: each for each in checked(of, candidates)}


SMALL, MIDDLE = "below 10 B parameters one parallelism alone is enough", "10 to 100 B on more than 8 GPUs"
MANY, MOST = "from 512 GPUs on dp with tp or pp in place of ZeRO-3 alone", "from 1,024 GPUs on tp8 with dp and pp"


def test_each_rule_is_meant_for_the_sizes_that_the_playbook_says() -> None:
    def meant(shape: str, num_nodes: int) -> set[str]:
        of = question(shape, num_nodes)
        return {*said(of, ranked(of, **{f"dp{8 * num_nodes}": 1.0}))} & {SMALL, MIDDLE, MANY, MOST}

    assert meant("llama-8b", 1) == meant("llama-8b", 32) == {SMALL}
    assert meant("llama-70b", 1) == set()
    assert meant("llama-70b", 2) == {MIDDLE}
    assert meant("llama-70b", 64) == {MANY}
    assert meant("llama-8b", 128) == meant("llama-405b", 128) == {MANY, MOST}


def test_a_rule_holds_where_following_it_costs_next_to_nothing() -> None:
    of = question("llama-8b", 2)
    rule = said(of, ranked(of, dp8_tp2__sp=1.00, dp16__zero3=1.04))[SMALL]
    assert rule.holds
    assert str(rule.follows.layout if rule.follows else "") == "dp16+zero3"
    rule = said(of, ranked(of, dp8_tp2__sp=1.00, dp16__zero3=1.06))[SMALL]
    assert not rule.holds
    assert round(rule.slower_by, 3) == 0.06


def test_a_rule_that_no_fitting_layout_follows_does_not_hold() -> None:
    of = question("llama-70b", 2)
    rule = said(of, ranked(of, pp2_dp4_tp2__sp=1.0))[MIDDLE]
    assert (rule.follows, rule.holds) == (None, False)


def test_what_each_rule_asks_for() -> None:
    of = question("llama-70b", 128)
    of_all = said(of, ranked(of, dp1024__zero3=1.0, dp512_tp2__sp=1.1, pp2_dp64_tp8__sp=1.3, dp64_tp16__sp=1.4))
    assert str(of_all[MANY].follows.layout) == "dp512-tp2+sp"  # type: ignore[union-attr]
    assert str(of_all[MOST].follows.layout) == "pp2-dp64-tp8+sp"  # type: ignore[union-attr]
    assert of_all["tp stays within a node"].holds
    wide = said(of, ranked(of, dp64_tp16__sp=1.0, dp1024__zero3=1.2))
    assert not wide["tp stays within a node"].holds
    odd = replace(of, num_nodes=2, gpus_per_node=7)
    crossing = said(odd, ranked(odd, dp7_tp2__sp=1.0, dp14=1.2))
    assert not crossing["tp stays within a node"].holds  # ranks 6 and 7


def test_sequences_decide_about_cp_and_experts_about_ep() -> None:
    long = question("llama-8b", 2, seq_len=131_072)
    assert not said(long, ranked(long, dp16__zero3=1.0, dp8_cp2=1.1))["cp for very long sequences"].holds
    short = question("llama-8b", 2)
    assert not said(short, ranked(short, dp8_cp2=1.0, dp16=1.1))["no need of cp for shorter sequences"].holds
    experts = question("mixtral-8x7b", 2)
    assert said(experts, ranked(experts, dp16__ep8=1.0, dp16=1.1))["ep for mixtures of experts"].holds


def test_where_nothing_fits_no_rule_is_checked() -> None:
    assert [*checked(question("llama-70b", 1), [])] == []


# The knee


def on_nodes(*seconds: float | None) -> list[OnNodes]:
    """Of 1, 2, 4 ... nodes, the step of each."""
    found = []
    for power, step_s in enumerate(seconds):
        of = question("llama-8b", 2**power)
        best = None if step_s is None else ranked(of, **{f"dp{of.world_size}": step_s})[0]
        found.append(OnNodes(2**power, best))
    return found


def test_the_knee_is_where_a_gpu_brings_a_fifth_less_than_on_fewer_nodes() -> None:
    assert knee(on_nodes(8.0, 4.0, 2.0, 1.0)) is None
    assert knee(on_nodes(8.0, 4.4, 2.4, 1.24)) is None
    found = knee(on_nodes(8.0, 4.4, 2.6, 1.2))
    assert found is not None
    assert found.num_nodes == 4


def test_nodes_on_which_nothing_fits_are_no_knee() -> None:
    assert knee(on_nodes(None, None, 2.0, 1.0)) is None
    assert knee([]) is None


def test_one_gpu_breaks_no_rule_on_how_many_parallelisms_there_are():
    alone = Question(named_shape("llama-1b"), CARD, 1, 1, 4096, 64)
    assert SMALL not in said(alone, ranked(alone, tp1=1.0))
