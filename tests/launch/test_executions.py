"""What of a plan is left to do, and in which order."""

from dataclasses import replace

from clusterbench.benchmarks import benchmarks
from clusterbench.launch.executions import Execution, again, imported_ahead, left_to_do, own_steps
from clusterbench.parallel import parallelisms
from clusterbench.run_folder.attempts import unrecorded
from clusterbench.types import MOST_REPEATS, Case, Observation, Outcome, Plan
from tests.launch.test_conductor import CLUSTER, case, conduct


def test_repeats_are_interleaved_and_resume_runs_what_has_no_outcome(tmp_path):
    cases = (case("a"), case("b"))
    plan = Plan("drill", "", CLUSTER, 2, cases, ())
    assert [(each.case.id, each.repeat) for each in left_to_do(plan, [])] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    outcomes, _, _ = conduct(tmp_path, cases)
    assert [(each.case.id, each.repeat) for each in left_to_do(plan, outcomes)] == [("a", 1), ("b", 1)]


def test_cases_that_are_judged_together_share_the_steps_it_takes_and_none_has_less_than_two():
    def steps(*counts):
        cases = [
            replace(case(f"{world_size}-{number}"), world_size=world_size, point={"layout": f"{world_size} {number}"})
            for world_size, count in counts
            for number in range(count)
        ]
        by_hash = own_steps([Execution(each, repeat, 1) for repeat in range(2) for each in cases])
        return [by_hash[each.hash] for each in cases]

    assert steps((4, 1)) == [10]
    assert steps((4, 2), (2, 1)) == [5, 5, 10]
    assert steps((4, 30)) == [2] * 30


def test_a_list_that_is_run_for_a_time_is_run_again_until_its_cases_have_taken_it():
    cases = (case("a"), case("b"))
    plan = Plan("drill", "", CLUSTER, 2, cases, (), for_s=10.0)

    def taken(seconds, repeat=0, status="ok"):
        return [Outcome(each.id, each.hash, repeat, 1, status, elapsed_s=seconds) for each in cases]

    first_two = [*taken(2.0), *taken(2.0, repeat=1)]
    assert [(each.case.id, each.repeat, each.attempt) for each in again(plan, first_two)] == [("a", 2, 1), ("b", 2, 1)]
    assert again(plan, [*first_two, *taken(1.0, repeat=2)]) == []
    assert again(replace(plan, for_s=0.0), first_two) == []
    assert again(plan, taken(0.0, repeat=MOST_REPEATS - 1)) == []
    # what never ended well is not tried again, and what did once is
    sometimes = [*taken(1.0), *taken(1.0, repeat=1, status="failed")[:1]]
    assert [each.case.id for each in again(plan, sometimes)] == ["a", "b"]
    assert again(plan, taken(1.0, status="timeout")) == []


def sized(size_bytes, num_nodes):
    name = f"all_reduce/{num_nodes}n/{size_bytes}"
    return Case(name, "all_reduce", 1, {"size_bytes": size_bytes}, "cpu", num_nodes, num_nodes, 10, 1, 5.0)


def test_with_a_budget_fewer_nodes_and_cheaper_cases_come_first_and_each_once_before_any_twice():
    cases = (sized(4096, 1), sized(8, 1), sized(64, 2), sized(8, 2))
    plan = Plan("s", "", CLUSTER, 2, cases, ())
    once = ["all_reduce/1n/8", "all_reduce/1n/4096", "all_reduce/2n/8", "all_reduce/2n/64"]
    assert [execution.case.id for execution in left_to_do(plan, [], cheapest_first=True)] == once * 2
    assert [execution.case.id for execution in left_to_do(plan, [])] == [each.id for each in cases] * 2


def outcome_of(case, status, attempt, lost_hosts=()):
    return Outcome(case.id, case.hash, 0, attempt, status, lost_hosts=lost_hosts)


def test_what_a_lost_host_ended_is_tried_once_more_and_not_for_ever():
    first, second = case("a"), case("b")
    plan = Plan("s", "", CLUSTER, 1, (first, second), ())
    lost = outcome_of(first, "failed", 1, ("cb2",))
    (again, _) = left_to_do(plan, [lost])
    assert (again.case, again.attempt) == (first, 2)
    again_lost, ok = outcome_of(first, "failed", 2, ("cb3",)), outcome_of(first, "ok", 2)
    for outcomes in ([lost, again_lost], [lost, ok], [outcome_of(first, "failed", 1)]):
        assert [execution.case.id for execution in left_to_do(plan, outcomes)] == ["b"]


def test_what_ended_well_without_a_record_that_can_be_used_is_measured_again_twice_at_most():
    first, second = cases = (case("a"), case("b"))
    plan = Plan("s", "", CLUSTER, 1, cases, ())
    record = Observation(first.id, first.hash, 0, 1, ("a",), [[0.1]] * 4, [{}] * 4)
    both = [outcome_of(each, "ok", 1) for each in cases]
    lacking = unrecorded(plan, both, [record, replace(record, hash=second.hash, seconds=[[0.1]])])
    assert lacking == {(second.hash, 0)}
    (again,) = left_to_do(plan, both, lacking)
    assert (again.case, again.attempt) == (second, 2)
    ended = [*both, outcome_of(second, "ok", 2)]
    assert unrecorded(plan, ended, [record, replace(record, hash=second.hash, attempt=2)]) == set()
    assert [execution.attempt for execution in left_to_do(plan, ended, lacking)] == [3]
    assert left_to_do(plan, [*ended, outcome_of(second, "ok", 3)], lacking) == []


def test_what_one_parallelism_alone_needs_is_imported_ahead_where_a_layout_has_it():
    def names(*layouts):
        return imported_ahead([Execution(replace(case("a"), layout=layout), 0, 1) for layout in layouts])

    benchmark = case("a").benchmark
    assert names(None) == names("dp2", "pp2-tp2+sp", None, "dp2+zero3") == (benchmark,)
    assert names("dp2", "dp2+zero1") == (benchmark, "zero")
    assert not benchmarks().keys() & parallelisms().keys()
