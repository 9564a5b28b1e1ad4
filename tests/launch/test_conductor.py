"""Who is named when something goes wrong, from events as agents send them."""

import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from clusterbench.cluster import Cluster
from clusterbench.engine.telemetry import GpuSample
from clusterbench.errors import LaunchError
from clusterbench.launch import conductor, events
from clusterbench.launch.conductor import Conductor, LostHosts, OutOfTime
from clusterbench.launch.culprit import Heard, gpus_in_words
from clusterbench.launch.executions import Execution
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    AskRas,
    End,
    Ended,
    GoOn,
    GpuSamples,
    GpusSampled,
    Inspect,
    Inspected,
    LostAgent,
    LostStore,
    LostZygote,
    MpiEnded,
    RankDone,
    RankExited,
    RankFailed,
    RankPlace,
    RankReached,
    RankReady,
    RasTold,
    RunCase,
    Start,
    StoreOpen,
)
from clusterbench.run_folder import RunFolder
from clusterbench.tools.nccl_ras import Lag, Process, Stall
from clusterbench.types import Case, Plan

CLUSTER = Cluster(num_nodes=1, ranks_per_node=4, device="cpu", hosts=("a",))


def case(name="drill/1n4/x", world_size=4, time_limit_s=5.0, **more):
    point = {"name": name}
    return Case(name, "drill", 1, point, "cpu", 1, world_size, 10, 1, time_limit_s, **more)


class Clock:
    """Stands still, except where agents are waited for that have nothing to say."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    for module in (conductor, events):
        monkeypatch.setattr(module, "time", CLOCK)


@dataclass(frozen=True)
class Later:
    """An event that comes when it has been waited for so many seconds."""

    after_s: float
    event: object


class Turns:
    """Other events at each turn; of the last ones there is no end."""

    def __init__(self, *turns):
        self.turns = deque(turns)

    def __iter__(self):
        return iter(self.turns.popleft() if len(self.turns) > 1 else self.turns[0])


class ScriptedAgents:
    """Answers each order with the events a test planted for it."""

    members = (Member(0, "a", 0, (0, 1, 2, 3)),)
    hosts = ("a",)
    silence_s = 20.0
    lost: ClassVar = {}
    disabled: ClassVar = {}
    lost_hosts = ()
    silent_hosts: ClassVar = frozenset()
    links_down = ()
    gone = ()

    def __init__(self, **answers):
        self.present = self.members
        self.answers = answers
        self.waiting = deque()
        self.orders = []

    @property
    def losses(self):
        return {member.host: self.lost[member.agent] for member in self.members if member.agent in self.lost}

    def heard(self):
        speaking = {member.host for member in self.present} - self.silent_hosts
        return Heard("a", speaking, len({member.host for member in self.members}), self.links_down)

    def heard_at_loss(self):
        return replace(self.heard(), gone=self.gone)

    def order(self, order):
        name = {Start: "start", RunCase: "case", Inspect: "inspect", End: "end"}.get(type(order))
        name = order.to if isinstance(order, GoOn) else name
        self.orders.append(name)
        self.waiting.extend(
            [Ended(order.start, {})] * len(self.present) if name == "end" else self.answers.get(name, ())
        )

    def order_some(self, members, order):
        assert isinstance(order, AskRas)
        self.orders.append("ras")
        self.waiting.extend(self.answers.get("ras", ())[: len(members)])

    def events(self, timeout_s):
        events = []
        while self.waiting and not isinstance(self.waiting[0], Later):
            events.append(self.waiting.popleft())
        if not events:
            CLOCK.now_s += timeout_s
            if self.waiting:
                later = self.waiting.popleft()
                left_s = later.after_s - timeout_s
                self.waiting.appendleft(Later(left_s, later.event) if left_s > 0 else later.event)
        return events


def ready():
    return [RankReady(rank, "a") for rank in range(4)]


def reached(stage, ranks=range(4)):
    return [RankReached(rank, "a", stage) for rank in ranks]


def done(ranks=range(4)):
    return [RankDone(rank, "a", [0.1], {}, {}) for rank in ranks]


def failed(rank, reason, status="failed", phase="prepared"):
    return RankFailed(rank, "a", status, reason, phase)


def seen(rank, phase="warm", iteration=-1, state="S", stack=()):
    return RankPlace(rank, "a", phase, iteration, state, tuple(stack), f"/logs/start-0000-rank-{rank:04d}.log")


HEALTHY = {
    "start": ready(),
    "case": reached("prepared"),
    "check": reached("checked"),
    "time": done(),
    "inspect": [Inspected(tuple(map(seen, range(4))))],
}


class Silent:
    def begin(self, number, total, execution): ...
    def reach(self, phase): ...
    def end(self, outcome, observation): ...


def conduct(tmp_path, cases, **answers):
    agents = ScriptedAgents(**{**HEALTHY, **answers})
    plan = Plan("drill", "", CLUSTER, 1, tuple(cases), ())
    run = RunFolder.create(tmp_path / "run", b"", plan, {})
    Conductor(agents, run, Silent()).conduct([Execution(case, 0, 1) for case in cases])
    return run.outcomes(), list(run.observations()), agents.orders


def test_a_case_is_ok_when_every_rank_has_a_record(tmp_path):
    (outcome,), (observation,), _ = conduct(tmp_path, [case()])
    assert outcome.status == "ok"
    assert observation.seconds == [[0.1]] * 4


def test_neighbours_share_a_start_and_training_cases_do_not(tmp_path):
    together = [case("a"), case("b")]
    _, _, orders = conduct(tmp_path, together)
    assert orders.count("start") == 1
    apart = [case("a", own_start=True), case("b", own_start=True)]
    _, _, orders = conduct(tmp_path / "2", apart)
    assert orders.count("start") == 2


def test_the_rank_that_was_killed_is_named_and_not_its_victims(tmp_path):
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1733"
    events = [failed(0, lost), failed(3, lost), RankExited(2, "a", -9, "")]
    (outcome,), _, _ = conduct(tmp_path, [case()], time=events)
    assert (outcome.status, outcome.rank, outcome.host, outcome.phase) == ("failed", 2, "a", "warm")
    assert outcome.reason == (
        "rank 2 (host a) was killed by signal 9 (SIGKILL) after the phase 'warm': by someone, by the batch system, or "
        "by the kernel for want of memory (dmesg tells)"
    )


def test_the_first_error_is_named_and_not_the_lost_connections_it_caused(tmp_path):
    lost = "RuntimeError: Connection reset by peer"
    (outcome,), _, _ = conduct(tmp_path, [case()], check=[failed(1, lost), failed(3, "ValueError: planted")])
    assert (outcome.rank, outcome.reason) == (3, "rank 3 (host a): ValueError: planted")


def test_ranks_that_fail_alike_are_counted(tmp_path):
    (outcome,), _, _ = conduct(tmp_path, [case()], case=[failed(rank, "KeyError: 'x'") for rank in range(4)])
    assert outcome.reason == "rank 0 (host a): KeyError: 'x' (ranks 1-3 failed alike)"


def test_ranks_that_took_different_passes_are_a_failure_and_no_traceback(tmp_path):
    other = [RankDone(3, "a", [0.1], {}, {"memory": {}})]
    (outcome,), _, _ = conduct(tmp_path, [case()], time=[*done(range(3)), *other])
    assert (outcome.status, outcome.rank) == ("failed", 3)
    assert outcome.reason == "rank 3 (host a) took the passes memory; rank 0 took none"


def test_the_next_case_runs_in_a_new_start(tmp_path):
    answers = {"check": [failed(1, "ValueError: planted")]}
    outcomes, _, orders = conduct(tmp_path, [case("a"), case("b")], **answers)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
    assert orders.count("start") == 2


def hang(tmp_path, *ranks, **answers):
    late = case()
    object.__setattr__(late, "time_limit_s", 0.05)
    inspected = [Inspected(ranks)]
    (outcome,), _, _ = conduct(tmp_path, [late], time=[], inspect=inspected, **answers)
    assert outcome.status == "timeout"
    return outcome


WAITING = ['File "/x/torch/distributed/distributed_c10d.py", line 3 in all_reduce']


def test_the_ranks_behind_are_named_and_not_those_that_wait(tmp_path):
    outcome = hang(tmp_path, seen(0, iteration=3), seen(1, iteration=3), seen(2, iteration=2), seen(3, iteration=2))
    assert outcome.reason == (
        "stopped after 0.05 s: ranks 2-3 (host a) have not finished iteration 3; the other 2 ranks wait for them"
    )
    assert outcome.rank == 2


def test_the_gpu_of_the_rank_behind_is_described(tmp_path):
    gpus = tuple(GpuSample(index, power_w=100.0 + index, utilization=1.0) for index in range(4))
    sample = GpusSampled("a", GpuSamples(1.0, gpus))
    ranks = [seen(rank, iteration=3 - (rank == 2)) for rank in range(4)]
    outcome = hang(tmp_path, *ranks, check=[sample, *reached("checked")])
    assert outcome.reason.endswith("wait for it; its GPU 2 drew 102 W and was busy 100 % of the time")


def test_ranks_that_share_a_gpu_are_told_of_that_one():
    gpus = {index: GpuSample(index, power_w=100.0 + index) for index in range(2)}
    words = gpus_in_words((Member(0, "a", 0, (0, 1, 2, 3)),), {"a": gpus}, ranks_per_gpu=2)
    assert [said[:12] for said in words.values()] == ["; its GPU 0 ", "; its GPU 0 ", "; its GPU 1 ", "; its GPU 1 "]


def on_gpus(tmp_path, told, *ranks):
    """A case of GPUs that hangs; ``told`` is what NCCL says of it."""
    late = case()
    object.__setattr__(late, "time_limit_s", 0.05)
    object.__setattr__(late, "device", "cuda")
    places = ranks or [seen(rank, iteration=2, stack=WAITING) for rank in range(4)]
    answers = {"time": [], "inspect": [Inspected(tuple(places))], "ras": told}
    (outcome,), _, orders = conduct(tmp_path, [late], **answers)
    assert orders.count("ras") == 1
    return outcome


LAGS = Stall("lagging", Lag(4, "AllReduce", 640, 641, 1, (Process(3, "10.0.0.1", 77, 3),)))


def test_where_all_wait_the_rank_is_named_that_nccl_says_lags(tmp_path):
    outcome = on_gpus(tmp_path, [RasTold("a", LAGS)])
    assert (outcome.rank, outcome.host, outcome.blame) == (3, "a", "process")
    assert outcome.reason.endswith(
        "; NCCL says that rank 3 (GPU 3, process 77 on 10.0.0.1) of a communicator of 4 has launched 640 AllReduce, "
        "others 641"
    )


def test_a_rank_that_is_behind_by_its_own_word_stays_named(tmp_path):
    ranks = [seen(rank, iteration=2 - (rank == 1), stack=WAITING) for rank in range(4)]
    outcome = on_gpus(tmp_path, [RasTold("a", LAGS)], *ranks)
    assert outcome.rank == 1
    assert "NCCL says that rank 3" in outcome.reason


def test_a_rank_of_a_smaller_communicator_is_not_taken_for_one_of_the_case(tmp_path):
    outcome = on_gpus(tmp_path, [RasTold("a", Stall("lagging", replace(LAGS.lag, size=2)))])
    assert outcome.rank is None


def test_ranks_that_are_stuck_in_one_collective_are_said_to_be(tmp_path):
    outcome = on_gpus(tmp_path, [RasTold("a", Stall("stuck"))])
    assert outcome.rank is None
    assert outcome.reason.endswith("none more within 2 s: they are stuck in one")


def test_why_nccl_says_nothing_is_said(tmp_path):
    outcome = on_gpus(tmp_path, [RasTold("a", None, "NCCL's RAS does not listen at localhost:28028: refused")])
    assert outcome.reason.endswith(
        "; NCCL was asked what its ranks do, in vain: NCCL's RAS does not listen at localhost:28028: refused"
    )
    assert on_gpus(tmp_path / "2", []).reason.endswith("in vain: nothing came back in time")


def test_a_gpu_that_is_busy_and_draws_little_is_said_to_spin(tmp_path):
    gpus = tuple(GpuSample(index, power_w=power_w, utilization=1.0) for index, power_w in enumerate((233.0, 234.0)))
    limits_w = {("a", index): 700.0 for index in range(2)}
    words = gpus_in_words((Member(0, "a", 0, (0, 1)),), {"a": dict(enumerate(gpus))}, limits_w=limits_w)
    assert words[0] == (
        "; its GPU 0 drew 233 W and was busy 100 % of the time, little of its limit of 700 W: it looks as if it spins "
        "in a kernel that waits"
    )
    assert words[1] == "; its GPU 1 drew 234 W and was busy 100 % of the time"
    idle = {0: replace(gpus[0], utilization=0.9)}
    assert "spins" not in gpus_in_words((Member(0, "a", 0, (0,)),), {"a": idle}, limits_w=limits_w)[0]


def test_a_stopped_process_is_named_among_equals(tmp_path):
    others = [seen(rank, iteration=2, stack=WAITING) for rank in (0, 2, 3)]
    outcome = hang(tmp_path, seen(1, iteration=2, state="T"), *others)
    assert outcome.reason == (
        "stopped after 0.05 s: rank 1 (host a) has not finished iteration 3: its process is stopped (SIGSTOP); "
        "the other 3 ranks wait for it"
    )


def test_among_equals_the_one_outside_a_collective_is_named(tmp_path):
    asleep = ['File "/x/model.py", line 12 in forward']
    others = [seen(rank, iteration=2, stack=WAITING) for rank in (0, 1, 2)]
    outcome = hang(tmp_path, *others, seen(3, iteration=2, stack=asleep))
    assert outcome.reason == (
        "stopped after 0.05 s: rank 3 (host a) has not finished iteration 3, in forward (model.py:12); "
        "the other 3 ranks wait for it"
    )


def test_a_stopped_rank_is_named_where_the_least_advanced_only_wait(tmp_path):
    others = [seen(rank, iteration=2, stack=WAITING) for rank in (0, 1, 2)]
    assert hang(tmp_path, *others, seen(3, iteration=4, state="T")).rank == 3


def test_a_rank_that_hangs_is_named_before_one_that_stopped_ahead_of_it(tmp_path):
    asleep = seen(0, iteration=1, stack=['File "/x/model.py", line 12 in forward'])
    others = [seen(rank, iteration=2, stack=WAITING) for rank in (1, 2)]
    assert hang(tmp_path, asleep, *others, seen(3, iteration=2, state="T")).rank == 0


def test_a_rank_that_never_arrives_is_behind(tmp_path):
    others = [seen(rank, phase="device", stack=WAITING) for rank in (0, 1, 3)]
    outcome = hang(tmp_path, *others, seen(2, phase="spawned"))
    assert outcome.reason == (
        "stopped after 0.05 s: rank 2 (host a) has not left the phase after 'spawned'; the other 3 ranks wait for it"
    )


def test_that_torch_is_still_imported_is_told(tmp_path):
    outcome = hang(tmp_path, *[replace(seen(rank, phase="spawned"), can_begin=False) for rank in range(4)])
    assert outcome.reason.startswith(
        "stopped after 0.05 s: ranks 0-3 (host a) have not begun: torch is still being imported on a. From a slow "
    )


def test_a_run_out_of_time_leaves_the_case_under_way_without_an_outcome(tmp_path):
    late = case(time_limit_s=60.0)
    agents = ScriptedAgents(**{**HEALTHY, "time": []})
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (late,), ()), {})
    with pytest.raises(OutOfTime):
        Conductor(agents, run, Silent(), ends_at=CLOCK.now_s + 0.1).conduct([Execution(late, 0, 1)])
    assert run.outcomes() == []
    assert agents.orders[-1] == "end"


def test_a_case_is_not_begun_where_the_disk_has_no_room_for_its_ranks_to_meet(tmp_path, monkeypatch):
    class OfAFullDisk:
        name = str(tmp_path / "scratch")
        cleanup = staticmethod(lambda: None)

    (tmp_path / "scratch").mkdir()
    real = Path.write_bytes
    monkeypatch.setattr(conductor, "scratch_folder", lambda purpose: OfAFullDisk)
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: real(Path("/dev/full"), data))
    with pytest.raises(LaunchError) as caught:
        conduct(tmp_path, [case()])
    assert str(caught.value) == (
        f"the temporary folder {tmp_path}/scratch, in which ranks of one host meet, cannot be written: No space left "
        "on device (free space, or set TMPDIR to a folder on another disk)"
    )
    assert RunFolder.open(tmp_path / "run").outcomes() == []  # so that --resume runs it


def test_a_lost_agent_ends_the_run_once_its_case_has_an_outcome(tmp_path):
    gone = LostAgent(0, "a", "said nothing for 20 s")
    agents = ScriptedAgents(**{**HEALTHY, "time": [gone]})
    agents.lost, agents.lost_hosts, agents.present = {0: "said nothing for 20 s"}, ("a",), ()
    cases = [case("first"), case("second")]
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, tuple(cases), ()), {})
    with pytest.raises(LostHosts, match=r"^host a was lost: its agent said nothing for 20 s$"):
        Conductor(agents, run, Silent()).conduct([Execution(planned, 0, 1) for planned in cases])
    (outcome,) = run.outcomes()
    assert (outcome.case, outcome.status, outcome.lost_hosts) == ("first", "failed", ("a",))
    assert outcome.reason == "ranks 0-3 (host a) were lost: the agent there said nothing for 20 s"


RESET = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:5043: Connection reset by peer"


def test_a_start_that_an_outsider_disturbs_is_named_and_made_again_once(tmp_path):
    """Of the ranks that meet, all complain of each other and none is gone."""
    disturbed = [failed(rank, RESET, phase="device") for rank in (0, 3)]
    again = Turns(disturbed, reached("prepared"))
    (first, second, after), _, orders = conduct(tmp_path, [case("a"), case("b")], case=again)
    assert (first.case, first.status, first.attempt) == ("a", "failed", 1)
    assert first.reason.startswith(f"rank 0 (host a): {RESET} (rank 3 failed alike). No rank is known to have caused")
    assert (second.case, second.status, second.attempt) == ("a", "ok", 2)
    assert (after.case, after.status, after.attempt) == ("b", "ok", 1)
    assert orders.count("start") == 2


def test_a_length_that_no_rank_wrote_is_a_disturbance_and_no_want_of_memory(tmp_path):
    """Who overwrote keys of the store had a rank and a host named that had done nothing."""
    read = failed(1, "MemoryError: std::bad_alloc", "out_of_memory", "device")
    first, second = conduct(tmp_path, [case("a")], start=Turns([read], ready()))[0]
    assert (first.status, first.blame, second.status, second.attempt) == ("failed", "unknown", "ok", 2)
    assert "any program that reaches their ports can disturb that" in first.reason


@pytest.mark.parametrize(
    ("reason", "phase"), [("MemoryError: std::bad_alloc", "prepared"), ("MemoryError: planted", "device")]
)
def test_elsewhere_or_in_other_words_it_is_want_of_memory(tmp_path, reason, phase):
    (only,) = conduct(tmp_path, [case("a")], case=[failed(1, reason, "out_of_memory", phase)])[0]
    assert (only.status, only.blame, only.rank) == ("out_of_memory", "process", 1)


def test_ranks_that_wait_for_each_other_while_they_meet_start_again(tmp_path):
    waiting = Inspected(tuple(seen(rank, phase="device", stack=WAITING) for rank in range(4)))
    first, second = conduct(tmp_path, [case()], start=Turns([], ready()), inspect=[waiting])[0]
    assert (first.status, second.status) == ("timeout", "ok")


def test_ranks_that_can_never_meet_start_again_in_the_first_case_only(tmp_path):
    disturbed = [failed(0, RESET, phase="device")]
    outcomes, _, orders = conduct(tmp_path, [case("a"), case("b")], start=disturbed)
    assert [(outcome.case, outcome.attempt) for outcome in outcomes] == [("a", 1), ("a", 2), ("b", 1)]
    assert orders.count("start") == 3


@pytest.mark.parametrize(
    "bad",
    [RankExited(2, "a", -9, ""), failed(2, "ValueError: planted", phase="device"), failed(2, RESET, phase="prepared")],
)
def test_a_rank_at_fault_or_a_later_loss_starts_nothing_again(tmp_path, bad):
    (outcome,), _, _ = conduct(tmp_path, [case()], start=[failed(0, RESET, phase=getattr(bad, "phase", "device")), bad])
    assert (outcome.status, outcome.attempt) == ("failed", 1)


class TwoHosts(ScriptedAgents):
    """An agent with two ranks on each of ``a`` and ``b``, and an idle one on ``c``."""

    members = (Member(0, "a", 0, (0, 1)), Member(1, "b", 2, (0, 1)), Member(2, "c", 4, (0, 1)))
    hosts = ("a", "b", "c")


AT_A = Inspected((seen(0, stack=WAITING), seen(1, stack=WAITING)))
AT_B = Inspected(tuple(RankPlace(rank, "b", "warm", -1, "T", (), "") for rank in (2, 3)))
AT_C = Inspected(())
LOST_B, LOST_C = (LostAgent(agent, host, "said nothing for 20 s") for agent, host in ((1, "b"), (2, "c")))


def two_hosts(tmp_path, kind=TwoHosts, **answers):
    late = case()
    agents = kind(**{**HEALTHY, **answers})
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (late,), ()), {})
    Conductor(agents, run, Silent()).conduct([Execution(late, 0, 1)])
    (outcome,) = run.outcomes()
    return outcome


def test_a_host_that_falls_silent_is_named_where_the_limit_of_the_case_ends_first(tmp_path):
    outcome = two_hosts(tmp_path, time=[], inspect=[AT_A, AT_C, Later(12.0, LOST_B)])
    assert (outcome.status, outcome.rank, outcome.host) == ("failed", 2, "b")
    assert outcome.reason == "ranks 2-3 (host b) were lost: the agent there said nothing for 20 s"


def test_an_agent_that_answers_late_is_waited_for(tmp_path):
    outcome = two_hosts(tmp_path, time=[], inspect=[AT_A, AT_C, Later(12.0, AT_B)])
    assert (outcome.status, outcome.rank, outcome.host) == ("timeout", 2, "b")
    assert "its process is stopped (SIGSTOP)" in outcome.reason


class StoppedFor12Seconds(TwoHosts):
    """The agent on ``b``, beyond the limit of the case; the ranks there go on."""

    def __init__(self, **answers):
        super().__init__(**answers)
        self.began_s = CLOCK.now_s

    @property
    def silent_hosts(self):
        return frozenset("b" if CLOCK.now_s < self.began_s + 12.0 else "")


def test_what_ranks_did_is_heard_of_an_agent_that_is_silent_as_the_time_is_over(tmp_path):
    outcome = two_hosts(
        tmp_path, StoppedFor12Seconds, time=[*done((0, 1)), Later(12.0, RankDone(2, "b", [0.1], {}, {})), *done((3,))]
    )
    assert outcome.status == "ok"


@pytest.mark.parametrize("iteration", [2, 3, 4])
def test_the_agent_that_was_silent_as_the_time_was_over_is_named_wherever_ranks_stand_later(tmp_path, iteration):
    """They go on as soon as its link is back, and any of them may be the last when they are looked at."""
    at_a = Inspected((seen(0, iteration=3), seen(1, iteration=3, stack=WAITING)))
    at_b = Inspected(tuple(RankPlace(rank, "b", "warm", iteration, "S", WAITING, "") for rank in (2, 3)))
    outcome = two_hosts(tmp_path, StoppedFor12Seconds, time=[], inspect=[at_a, AT_C, at_b])
    assert (outcome.status, outcome.rank, outcome.host, outcome.blame) == ("timeout", 2, "b", "process")
    assert outcome.reason == "stopped after 5 s: the agent on host b gave no sign then, and came back later"


def test_a_rank_that_is_stopped_is_named_before_an_agent_that_was_silent(tmp_path):
    stopped = Inspected((seen(0, iteration=3), seen(1, iteration=3, state="T")))
    at_b = Inspected(tuple(RankPlace(rank, "b", "warm", 3, "S", WAITING, "") for rank in (2, 3)))
    outcome = two_hosts(tmp_path, StoppedFor12Seconds, time=[], inspect=[stopped, AT_C, at_b])
    assert (outcome.status, outcome.rank, outcome.host) == ("timeout", 1, "a")


def test_an_agent_that_gives_signs_and_no_answer_is_named(tmp_path):
    outcome = two_hosts(tmp_path, time=[], inspect=[AT_A, AT_C])
    assert (outcome.status, outcome.rank, outcome.host) == ("timeout", 2, "b")
    assert outcome.reason == (
        "stopped after 5 s: ranks 2-3 (host b) do not answer within 25 s, stopped or gone without a word; "
        "2 other ranks wait for them"
    )


@pytest.mark.parametrize("when", ["start", "case", "check", "time"])
def test_a_case_goes_on_where_a_host_is_lost_that_it_does_not_use(tmp_path, when):
    assert two_hosts(tmp_path, **{when: [LOST_C, *HEALTHY[when]]}).status == "ok"


def test_a_host_that_a_case_does_not_use_is_not_named_where_it_fails(tmp_path):
    outcome = two_hosts(tmp_path, time=[failed(1, "ValueError: planted"), LOST_C])
    assert (outcome.rank, outcome.reason) == (1, "rank 1 (host a): ValueError: planted")
    late = two_hosts(tmp_path / "2", time=[], inspect=[AT_A, AT_B, LOST_C])
    assert (late.status, late.rank) == ("timeout", 2)


def on_both(reason, status="failed"):
    return [RankFailed(rank, "ab"[rank // 2], status, reason, "prepared") for rank in range(4)]


SILENT_B, STRANGE_B = LOST_B, LostAgent(1, "b", "spoke for rank 0, which is not its own")
CLOSED_B = LostAgent(1, "b", "closed its connection")


@pytest.mark.parametrize(
    ("time", "blame"),
    [
        ([CLOSED_B], "host"),
        ([SILENT_B], "host"),  # c speaks, too
        ([STRANGE_B], "process"),
        ([RankExited(2, "b", -11, "")], "process"),
        ([RankExited(2, "b", -9, "", memory_limit_bytes=2**30)], "process"),
        (on_both("ValueError: planted")[:1], "process"),
        (on_both("ValueError: planted")[:2], "process"),  # both ranks of one host
        (on_both("ValueError: planted"), "program"),
        (on_both("CUDA out of memory", "out_of_memory"), "program"),
        (on_both(RESET), "unknown"),
        ([LostZygote("b", "the zygote is gone")], "process"),
    ],
)
def test_an_outcome_says_whom_it_speaks_against(tmp_path, time, blame):
    assert two_hosts(tmp_path, time=time).blame == blame


def test_an_outcome_at_the_time_limit_says_so_too(tmp_path):
    assert two_hosts(tmp_path / "1", time=[], inspect=[AT_A, AT_B, AT_C]).blame == "process"
    at_b = Inspected(tuple(RankPlace(rank, "b", "warm", -1, "S", tuple(WAITING), "") for rank in (2, 3)))
    all_wait = two_hosts(tmp_path / "2", time=[], inspect=[AT_A, at_b, AT_C])
    assert (all_wait.blame, all_wait.rank, all_wait.host) == ("unknown", None, "")  # as where two of them are apart
    assert "ranks 0-3 (hosts a, b) have not left the phase after 'warm', in " in all_wait.reason
    assert two_hosts(tmp_path / "3").blame == ""


class NobodyElse(TwoHosts):
    """The same without the idle one."""

    members = TwoHosts.members[:2]
    hosts = ("a", "b")


def outcome_with(tmp_path, members, event):
    """Of a case on hosts a and b during whose timing this happens."""
    late = case()
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (late,), ()), {})
    Conductor(members(**{**HEALTHY, "time": [event]}), run, Silent()).conduct([Execution(late, 0, 1)])
    (outcome,) = run.outcomes()
    return outcome


@pytest.mark.parametrize(("event", "blame"), [(SILENT_B, "link"), (CLOSED_B, "host")])
def test_where_the_head_alone_is_left_silence_may_be_its_own_link(tmp_path, event, blame):
    assert outcome_with(tmp_path, NobodyElse, event).blame == blame


class CutOff(TwoHosts):
    """The head hears nobody any more, of whom one is not yet counted as lost."""

    silent_hosts = frozenset({"b", "c"})


def test_where_all_others_fall_silent_at_once_none_of_them_is_named(tmp_path):
    outcome = outcome_with(tmp_path, CutOff, SILENT_B)
    assert (outcome.status, outcome.rank, outcome.host, outcome.blame) == ("failed", None, "", "link")
    assert outcome.reason == (
        "ranks 2-3 (host b) were lost: the agent there said nothing for 20 s; no other host is heard either, so it may "
        "be the link of the head's own, a"
    )


class Unplugged(NobodyElse):
    """The head hears nobody any more, because its own cable was pulled."""

    links_down = ("ib0",)


class UnpluggedOfThree(CutOff):
    """The same of three."""

    links_down = ("ib0",)


@pytest.mark.parametrize("members", [Unplugged, UnpluggedOfThree])
def test_where_nobody_is_heard_and_the_own_link_went_down_it_is_the_own_host(tmp_path, members):
    outcome = outcome_with(tmp_path, members, SILENT_B)
    assert (outcome.status, outcome.rank, outcome.host, outcome.blame) == ("failed", None, "a", "link")
    assert outcome.reason == (
        "ranks 2-3 (host b) were lost: the agent there said nothing for 20 s; no other host is heard, and interface "
        "ib0 of a went down since the run began: it is the link of the head's own, a"
    )


class Muted(NobodyElse):
    """The head hears nobody any more, nor does its login node answer."""

    gone = ("10.1.0.254",)


def test_where_no_other_of_two_hosts_is_heard_and_nobody_else_answers_either_it_is_the_own_host(tmp_path):
    outcome = outcome_with(tmp_path, Muted, SILENT_B)
    assert (outcome.status, outcome.rank, outcome.host, outcome.blame) == ("failed", None, "a", "link")
    assert outcome.reason == (
        "ranks 2-3 (host b) were lost: the agent there said nothing for 20 s; no other host is heard, and 10.1.0.254, "
        "which answered a when the run began, does not any more: it is the link of the head's own, a"
    )


class OneCableFewer(TwoHosts):
    """An interface of the head went down that nobody needs: other hosts are heard."""

    links_down = ("docker0",)


def test_a_link_that_is_down_is_not_to_blame_while_another_host_is_heard(tmp_path):
    outcome = outcome_with(tmp_path, OneCableFewer, SILENT_B)
    assert (outcome.rank, outcome.host, outcome.blame) == (2, "b", "host")


def test_a_link_that_went_down_between_two_cases_is_noted_and_said(tmp_path):
    small = case(world_size=2)
    lost = LostAgent(1, "b", "said nothing for 20 s")
    answers = {
        "start": ready()[:2],
        "case": reached("prepared", range(2)),
        "check": reached("checked", range(2)),
        "time": [lost, *done(range(2))],
    }
    agents = Unplugged(**answers)
    agents.lost, agents.lost_hosts, agents.present = {1: lost.why}, ("b",), Unplugged.members[:1]
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (small,), ()), {})
    with pytest.raises(
        LostHosts, match=r"host b was lost: .*; no other host is heard, and interface ib0 of a went down"
    ):
        Conductor(agents, run, Silent()).conduct([Execution(small, 0, 1)])
    assert run.environment() == {"hosts without link": {"a": "interface ib0 of a went down since the run began"}}


@pytest.mark.parametrize(
    ("members", "heading", "why"),
    [
        (TwoHosts, "lost hosts", "said nothing for 20 s"),
        (TwoHosts, "lost hosts", "closed its connection"),
        (NobodyElse, "lost hosts", "closed its connection"),
        (NobodyElse, "silent hosts", "said nothing for 20 s"),
    ],
)
def test_a_host_that_is_lost_while_no_case_uses_it_is_noted(tmp_path, members, heading, why):
    lost = members.members[-1]
    small = case(world_size=2)
    answers = {
        "start": ready()[:2],
        "case": reached("prepared", range(2)),
        "check": reached("checked", range(2)),
        "time": [LostAgent(lost.agent, lost.host, why), *done(range(2))],
    }
    agents = members(**answers)
    agents.lost, agents.lost_hosts, agents.present = {lost.agent: why}, (lost.host,), members.members[:-1]
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (small,), ()), {})
    with pytest.raises(LostHosts):
        Conductor(agents, run, Silent()).conduct([Execution(small, 0, 1)])
    assert [outcome.status for outcome in run.outcomes()] == ["ok"]
    assert run.environment() == {heading: {lost.host: f"its agent {why}"}}


class InsideMpi:
    """Two agents inside a case of MPI, which say at its end whether they are still in a call."""

    present = lost_hosts = ()
    lost: ClassVar = {}
    disabled: ClassVar = {}
    is_stuck, all_answer = False, True

    def __init__(self, *answers):
        self.answers = [MpiEnded("a", answer) for answer in answers]

    def order_mpi(self, members, order): ...
    def expect_silence(self, seconds): ...

    def events(self, timeout_s):
        events, self.answers = self.answers, []
        if not events:
            CLOCK.now_s += timeout_s
        return events


@pytest.mark.parametrize(
    ("answers", "is_stuck", "all_answer"),
    [((False, False), False, True), ((False, True), True, True), ((True, False), True, True), ((True,), True, False)],
)
def test_after_a_case_of_mpi_it_is_known_who_is_stuck_and_whether_all_answer(tmp_path, answers, is_stuck, all_answer):
    agents = InsideMpi(*answers)
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (), ()), {})
    conductor_inside_mpi = Conductor(agents, run, Silent())
    conductor_inside_mpi._events.inside_mpi = (Member(0, "a", 0, (0,)), Member(1, "a", 1, (1,)))
    conductor_inside_mpi.conduct([])
    assert (agents.is_stuck, agents.all_answer) == (is_stuck, all_answer)


class ListenedTo(ScriptedAgents):
    """Agents whose head has looked for what they say three times since it was last asked to."""

    def __init__(self, **answers):
        super().__init__(**answers)
        self.looks = 0
        self.were_heard = threading.Event()

    def events(self, timeout_s):
        self.looks += 1
        if self.looks == 3:
            self.were_heard.set()
        return super().events(timeout_s)

    def are_heard(self):
        self.looks = 0
        self.were_heard.clear()
        return self.were_heard.wait(60)


@pytest.mark.parametrize("stalls", ["record", "under_way"])
def test_agents_are_heard_while_the_disk_stalls_which_is_no_fault_of_the_case(tmp_path, stalls):
    """As a network disk does: the head says and hears nothing meanwhile, and agents take it for lost."""
    agents = ListenedTo(**HEALTHY)

    class Stalling(RunFolder):
        def stall(self):
            assert agents.are_heard()
            CLOCK.now_s += 30.0  # more than the case may take

        def record(self, *what):
            if stalls == "record":
                self.stall()
            super().record(*what)

        def under_way(self, what):
            if stalls == "under_way":
                self.stall()
            super().under_way(what)

    run = Stalling.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (case(),), ()), {})
    Conductor(agents, run, Silent()).conduct([Execution(case(), 0, 1)])
    assert [outcome.status for outcome in run.outcomes()] == ["ok"]


@pytest.mark.parametrize("phase", ["case", "check", "time"])
def test_a_head_that_stood_still_finds_what_came_meanwhile_and_takes_no_time_from_the_case(tmp_path, phase):
    """As one that was stopped for longer than the case may take, however far that was."""

    class Stopped(ScriptedAgents):
        def events(self, timeout_s):
            if self.orders[-1] == phase and not self.has_stopped:
                self.has_stopped = True
                CLOCK.now_s += 30.0
                return []
            return super().events(timeout_s)

    agents = Stopped(**HEALTHY)
    agents.has_stopped = False
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (case(),), ()), {})
    Conductor(agents, run, Silent()).conduct([Execution(case(), 0, 1)])
    assert agents.has_stopped
    assert [outcome.status for outcome in run.outcomes()] == ["ok"]


def test_an_interruption_waits_for_what_is_being_written_and_is_raised_then(tmp_path):
    class Interrupting(ScriptedAgents):
        is_writing = False

        def events(self, timeout_s):
            if self.is_writing:
                self.is_writing = False
                interrupted.set()
                raise KeyboardInterrupt
            return super().events(timeout_s)

    agents, interrupted = Interrupting(**HEALTHY), threading.Event()

    class Stalling(RunFolder):
        def record(self, *what):
            agents.is_writing = True
            assert interrupted.wait(60)
            super().record(*what)

    run = Stalling.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (case(),), ()), {})
    with pytest.raises(KeyboardInterrupt):
        Conductor(agents, run, Silent()).conduct([Execution(case(), 0, 1)])
    assert [outcome.status for outcome in run.outcomes()] == ["ok"]


LOST_STORE = LostStore("a", "the store on host a, at which ranks meet, was killed by signal 9 (SIGKILL)")


def test_a_store_that_dies_while_ranks_meet_is_named_and_not_whoever_reaches_their_ports(tmp_path):
    lost = failed(1, "DistNetworkError: Connection reset by peer", phase="device")
    for number, heard in enumerate(([LOST_STORE], [lost, LOST_STORE])):
        (outcome,), _, _ = conduct(tmp_path / str(number), [case()], start=heard)
        assert (outcome.status, outcome.host, outcome.rank) == ("failed", "a", None)
        assert outcome.reason == LOST_STORE.reason


def test_a_store_that_dies_when_ranks_have_met_costs_no_case_and_the_next_gets_another(tmp_path):
    outcomes, _, orders = conduct(tmp_path, [case("a"), case("b")], case=Turns([LOST_STORE, *reached("prepared")]))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert orders.count("start") == 2


def test_a_store_that_a_case_still_needed_is_named(tmp_path):
    lost = failed(1, "DistNetworkError: Connection reset by peer", phase="device")
    (outcome,), _, _ = conduct(tmp_path, [case()], case=[LOST_STORE, lost])
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", None, LOST_STORE.reason)
    waiting = tuple(
        seen(rank, "device", stack=['File "/x/torch/distributed/distributed_c10d.py", line 1 in new_group'])
        for rank in range(4)
    )
    inspected = [Inspected(waiting)]
    (outcome,), _, _ = conduct(tmp_path / "late", [case()], case=[LOST_STORE], inspect=inspected)
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", None, LOST_STORE.reason)
    other = failed(2, "ValueError: planted")
    (outcome,), _, _ = conduct(tmp_path / "other", [case()], case=[LOST_STORE, other])
    assert (outcome.rank, outcome.reason) == (2, "rank 2 (host a): ValueError: planted")


def test_a_gpu_that_fell_off_the_bus_is_said_where_its_rank_failed(tmp_path):
    gpus = (GpuSample(0, power_w=650.0, utilization=1.0), GpuSample(1, error="GPU is lost"), GpuSample(2), GpuSample(3))
    lost = GpusSampled("a", GpuSamples(1.0, gpus))
    broken = failed(1, "RuntimeError: CUDA error: unspecified launch failure")
    for number, (first, words) in enumerate(
        (
            (broken, "rank 1 (host a): RuntimeError: CUDA error: unspecified launch failure"),
            (RankExited(1, "a", -6, ""), "rank 1 (host a) was killed by signal 6 (SIGABRT) after the phase 'warm'"),
        )
    ):
        peer = failed(0, "RuntimeError: Connection reset by peer")
        (outcome,), _, _ = conduct(tmp_path / str(number), [case()], time=[lost, peer, first])
        assert (outcome.rank, outcome.reason) == (1, f"{words}; NVML says of its GPU 1: GPU is lost")
    well = [lost, failed(2, "ValueError: planted")]
    (outcome,), _, _ = conduct(tmp_path / "other", [case()], time=well)
    assert (outcome.rank, outcome.reason) == (2, "rank 2 (host a): ValueError: planted")


def test_a_gpu_that_fell_off_the_bus_and_hangs_its_rank_is_said(tmp_path):
    gpus = tuple(GpuSample(index, error="GPU is lost" if index == 2 else None) for index in range(4))
    ranks = [seen(rank, iteration=3 if rank == 2 else 4) for rank in range(4)]
    outcome = hang(tmp_path, *ranks, case=[GpusSampled("a", GpuSamples(1.0, gpus)), *reached("prepared")])
    assert outcome.rank == 2
    assert outcome.reason.endswith("; the other 3 ranks wait for it; NVML says of its GPU 2: GPU is lost")


class OfTwoHosts(ScriptedAgents):
    def order_head(self, order):
        self.waiting.append(StoreOpen(4711))


def meeting(tmp_path, stacks):
    """The first outcome of a case whose ranks do not meet, each of them waiting there."""
    places = [seen(rank, "device", stack=[stack]) for rank, stack in enumerate(stacks)]
    inspected = Inspected(tuple(places))
    agents = OfTwoHosts(**{**HEALTHY, "start": [], "inspect": [inspected]})
    run = RunFolder.create(tmp_path / "run", b"", Plan("drill", "", CLUSTER, 1, (case(),), ()), {})
    Conductor(agents, run, Silent(), "10.99.0.1").conduct([Execution(case(), 0, 1)])
    return run.outcomes()[0]


IN_INIT = 'File "/x/torch/distributed/distributed_c10d.py", line 1 in init_process_group'
JOINING = 'File "/x/clusterbench/launch/store.py", line 45 in join'


def test_of_ranks_that_all_wait_for_each_other_while_they_meet_none_is_named(tmp_path):
    """As where two of several hosts do not reach each other."""
    outcome = meeting(tmp_path, [IN_INIT] * 4)
    assert (outcome.status, outcome.rank, outcome.host, outcome.blame) == ("timeout", None, "", "unknown")
    assert outcome.reason.startswith(
        "stopped after 65 s: ranks 0-3 (host a) have not left the phase after 'device', in init_process_group "
        "(distributed_c10d.py:1). Ranks meet at 10.99.0.1 of the head's host, and then connect to each other: where "
        "that network does not join all of them, --interface names another. No rank is known to have caused this: "
    )


def test_a_rank_that_cannot_reach_the_others_is_named_with_the_address_at_which_they_meet(tmp_path):
    """As where an interface is up and leads nowhere."""
    outcome = meeting(tmp_path, [IN_INIT] * 3 + [JOINING])
    assert (outcome.status, outcome.rank, outcome.phase) == ("timeout", 3, "device")
    assert outcome.reason == (
        "stopped after 65 s: rank 3 (host a) has not left the phase after 'device', in join (store.py:45); the other 3 "
        "ranks wait for it. Ranks meet at 10.99.0.1 of the head's host: where it cannot be reached from a, --interface "
        "names another network"
    )
