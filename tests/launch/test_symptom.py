"""When two runs of a case have failed in the same way."""

import pytest

from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.launch.symptom import LOST_HOST, NO_END, NO_OUTCOME, symptom_of
from clusterbench.run_folder.attempts import History
from clusterbench.types import Case, Outcome, Plan

CASE = Case("all_reduce/4n4/1MiB", "all_reduce", 1, {}, "cpu", 4, 4, 5, 1, 60.0)


def symptom(*outcomes):
    written = [
        Outcome(CASE.id, CASE.hash, number, 1, status, reason, lost_hosts=lost)
        for number, (status, reason, lost) in enumerate(outcomes)
    ]
    plan = Plan("s", "", Cluster(4, 1, "cpu", hosts=("a", "b", "c", "d")), 1, (CASE,), ())
    return symptom_of(Reading("run", plan, (History(CASE, tuple(written)),), []), CASE.id, ["a", "node", "node-b"])


def kind(status, reason, lost=()):
    found = symptom((status, reason, lost))
    assert found is not None
    assert found.sentence == f"{status}: {reason.splitlines()[0]}"
    return found.kind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 1 (host cb2): RuntimeError: CUDA error 700", "rank 0 (host cb4): RuntimeError: CUDA error 700"),
        ("rank 3 (host cb2) was killed by signal 9 (SIGKILL)", "rank 1 (host cb3) was killed by signal 9 (SIGKILL)"),
        ("rank 1 (host a): ValueError: x (ranks 2-3 failed alike)", "rank 0 (host a): ValueError: x"),
        ("rank 0 (host a): /tmp on a has no room", "rank 1 (host node-b): /tmp on node-b has no room"),
        ("ranks 0-1 (hosts a, b): it broke after 7 s", "ranks 2-3 (hosts c, d): it broke after 12 s"),
    ],
)
def test_ranks_hosts_and_numbers_make_no_other_failure(one, other):
    assert kind("failed", one) == kind("failed", other)


def test_another_exception_another_signal_and_another_status_are_other_failures():
    kinds = [
        kind("failed", "rank 1 (host b): ValueError: x"),
        kind("failed", "rank 1 (host b): KeyError: x"),
        kind("failed", "rank 1 (host b) ended by itself"),
        kind("out_of_memory", "rank 1 (host b): x"),
        kind("wrong", "all_reduce gave wrong results on rank 1"),
        kind("timeout", "stopped after 5 s"),
        kind("failed", "rank 1 (host b) was lost", ("b",)),
        kind("skipped", "no such tool"),
    ]
    assert len(set(kinds)) == len(kinds)
    assert kinds[-2] == LOST_HOST


def test_ranks_that_wait_end_by_the_limit_or_by_what_their_transport_says():
    assert kind("timeout", "stopped after 5 s: rank 1 (host b) has not finished") == NO_END
    assert kind("failed", "rank 1 (host b): DistBackendError: Connection closed by peer [10.0.0.2]:4711") == NO_END


def test_a_repeat_that_failed_counts_beside_a_good_one():
    found = symptom(("ok", "", ()), ("failed", "rank 0 (host a): KeyError: x", ()), ("ok", "", ()))
    assert found is not None
    assert found.kind == "failed: KeyError: x"


def test_a_case_without_an_outcome_is_no_failure():
    found = symptom()
    assert found is not None
    assert found.kind == NO_OUTCOME
