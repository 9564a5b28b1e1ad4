"""Who takes part, from what agents say first; over planes that follow a script."""

import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from clusterbench.checks.gpu_count import GpuCount
from clusterbench.checks.nvlink_state import NvlinkState
from clusterbench.checks.peer_access import PeerAccess
from clusterbench.checks.row_remapping import RowRemapping
from clusterbench.cluster import Found
from clusterbench.errors import LaunchError, SuiteError
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.gpus import Gpus
from clusterbench.launch import allocation
from clusterbench.launch.allocation import Allocation, gather, hello, measure_clocks, variables_of
from clusterbench.launch.members import members_of
from clusterbench.launch.messages import Hello, Interrupted, PackageCopy, Sign, TellTime, TimeTold
from clusterbench.launch.run import excluded_hosts
from clusterbench.launchers import named_hosts
from tests.facts.machine import healthy


class Plane:
    """Gives the head one batch of messages at each look, and notes what it sends."""

    rank = 0

    def __init__(self, size, *batches, lost=None, answer=None):
        self.size = size
        self.batches = deque(batches)
        self.sent = []
        self._lost = lost or {}
        self._answer = answer

    def send(self, to, message):
        self.sent.append((to, message))
        if self._answer:
            self.batches.append([(to, self._answer(to, message))])

    def receive(self):
        return self.batches.popleft() if self.batches else []

    def lost(self):
        return {} if self.batches else self._lost


COPY = PackageCopy("/x/clusterbench", "0123456789abcdef")


def said(host, local_rank=0, **environment):
    return Hello(host, local_rank, COPY, environment)


@pytest.fixture
def soon(monkeypatch):
    """Nobody waits long for what does not come."""
    monkeypatch.setattr(allocation, "SECONDS_TO_GATHER", 0.05)
    monkeypatch.setattr(allocation, "_SECONDS_FOR_CLOCKS", 0.05)


def refusal(plane, own):
    with pytest.raises(LaunchError) as caught:
        gather(plane, own)
    return str(caught.value)


DESCRIBES = """
import sys
from clusterbench import own_copy
from clusterbench.launch import allocation
own_copy.command = lambda *_: [sys.executable, "-c", sys.argv[1]]
allocation._described()
"""


def test_hosts_are_those_of_the_agents_in_the_order_of_their_ranks():
    plane = Plane(4, [(3, said("b", 1))], [(2, said("b", cores=2)), (1, said("a", 1))])
    found = gather(plane, said("a", cores=1))
    assert found.hosts == ("a", "a", "b", "b")
    assert found.names == ("a", "b")
    assert found.environments == {"a": {"cores": 1}, "b": {"cores": 2}}


def test_a_launcher_that_deals_its_processes_out_in_turn_names_each_host_once():
    plane = Plane(4, [(1, said("b", x=2)), (2, said("a", 1)), (3, said("b", 1))])
    found = gather(plane, said("a", x=1))
    assert (found.hosts, found.names) == (("a", "b", "a", "b"), ("a", "b"))


def test_agents_that_were_started_for_two_suites_are_refused():
    """'mpirun -n 1 clusterbench run a.yaml : -n 1 clusterbench run b.yaml' ran the first alone, with exit code 0."""
    own, other = (replace(said(host), asked=f"suite {host}.yaml") for host in ("a", "b"))
    assert refusal(Plane(2, [(1, other)]), own) == (
        "a was started for suite a.yaml, and b for suite b.yaml: all that a launcher starts together do one thing.\n"
        "hint: start the launcher once for each"
    )
    assert gather(Plane(2, [(1, replace(other, asked=own.asked))]), own).names == ("a", "b")


def test_signs_of_life_are_no_hello():
    plane = Plane(2, [(1, Sign())], [(1, said("b", x=1))])
    assert gather(plane, said("a", x=1)).names == ("a", "b")


@pytest.mark.usefixtures("soon")
def test_agents_that_say_nothing_are_named():
    plane = Plane(4, [(2, said("b"))])
    assert refusal(plane, said("a")) == "2 of 4 agents said nothing for 0.05 s: 1, 3"


@pytest.mark.usefixtures("soon")
def test_of_many_that_say_nothing_some_are_named():
    first = ", ".join(str(rank) for rank in range(1, 17))
    assert refusal(Plane(1024), said("a")) == f"1023 of 1024 agents said nothing for 0.05 s: {first} and 1,007 more"


def test_an_agent_that_went_away_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(allocation, "SECONDS_TO_GATHER", 60)
    plane = Plane(3, [(1, said("b"))], lost={2: "closed its connection"})
    assert refusal(plane, said("a")) == "1 of 3 agents closed their connection: 2"


def test_two_hosts_of_one_name_are_found_out():
    plane = Plane(2, [(1, said("node"))])
    assert refusal(plane, said("node")) == (
        "two hosts go by the name node: each has a local rank 0.\nhint: give every host or container a name of its own"
    )


def test_the_same_package_may_lie_elsewhere_on_another_host():
    plane = Plane(2, [(1, replace(said("b", x=1), copy=replace(COPY, place="/y/clusterbench")))])
    assert gather(plane, said("a", x=1)).names == ("a", "b")


def test_another_package_on_another_host_is_refused_with_both_places():
    plane = Plane(2, [(1, replace(said("b", x=1), copy=PackageCopy("/y/clusterbench", "fedcba9876543210")))])
    assert refusal(plane, said("a", x=1)) == (
        "the hosts run different copies of clusterbench: a has /x/clusterbench with sources 0123456789abcdef, b has "
        "/y/clusterbench with sources fedcba9876543210.\n"
        "hint: install the same version on all hosts, or one copy where all see it"
    )


def test_where_nobody_counted_the_processes_of_a_host_two_may_be_on_it():
    plane = Plane(2, [(1, said("node", None, x=1))])
    assert gather(plane, said("node", None, x=1)).hosts == ("node", "node")


def test_whoever_asks_for_the_end_before_anything_began_is_heard():
    with pytest.raises(KeyboardInterrupt):
        gather(Plane(2, [(1, Interrupted())]), said("a"))


def gpu(number, index=0):
    return {"index": index, "uuid": f"GPU-{number}", "name": "NVIDIA H200", "error": None}


def test_a_host_has_the_gpus_of_all_agents_where_a_launcher_shows_each_its_own():
    # srun --gpus-per-task=1: each process sees one, and CUDA calls it 0
    others = [(1, said("a", 1, gpus=[gpu(8)])), (2, said("b", gpus=[gpu(7)])), (3, said("b", 1, gpus=[gpu(5)]))]
    found = gather(Plane(4, others), said("a", cores=2, gpus=[gpu(9)]))
    assert found.environments["a"] == {"cores": 2, "gpus": [gpu(9), gpu(8, 1)]}
    assert found.first_gpus == {0: 0, 1: 1, 2: 0, 3: 1}
    assert found.found(("a", "b")).gpu_names == ("NVIDIA H200",) * 2


def test_gpus_that_several_agents_see_are_there_once_and_sampled_by_one():
    both = [gpu(9), gpu(8, 1)]
    for seen in ({}, {"gpus": both}, {"gpus": both[:1]}):
        found = gather(Plane(2, [(1, said("a", 1, **seen))]), said("a", gpus=both))
        assert found.environments["a"] == {"gpus": both}
        assert found.first_gpus == {0: 0}


def bound(sockets):
    """A host of four GPUs whose processes see those of their socket, 0 or 1, as with 'srun --gpu-bind=closest'."""
    of_socket = [[gpu(0), gpu(1, 1)], [gpu(2), gpu(3, 1)]]
    hellos = [said("a", rank, gpus=of_socket[socket]) for rank, socket in enumerate(sockets)]
    return gather(Plane(len(hellos), list(enumerate(hellos))[1:]), hellos[0]), of_socket


@pytest.mark.parametrize("sockets", [(0, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1)])
def test_ranks_dealt_out_over_sockets_have_a_gpu_each(sockets):
    """Of four in turn ranks 0 and 2 were both on GPU 0, and ranks 1 and 3 on GPU 3."""
    allocation, of_socket = bound(sockets)
    used = [
        of_socket[sockets[member.agent]][member.local_ranks[0] % 2]["uuid"]  # as a worker chooses it
        for member in allocation.members(len(sockets), ("a",), 1)
    ]
    assert len({*used}) == len(sockets)


def test_a_rank_is_told_with_the_number_of_its_gpu_on_the_host():
    """With fewer ranks than GPUs the second of two was told with what GPU 1 did, though it ran on GPU 3."""
    allocation, _ = bound((0, 1))
    assert [member.gpu_of(member.local_ranks[0], 1) for member in allocation.members(2, ("a",), 1)] == [0, 3]


def test_more_ranks_than_gpus_that_a_launcher_shows_them_are_refused():
    allocation, _ = bound((0, 0, 0, 1))
    with pytest.raises(LaunchError) as caught:
        allocation.members(4, ("a",), 1)
    assert str(caught.value) == (
        "ranks 0, 2 of host a would share GPU 0 of its 4, as the launcher shows them GPUs, while others idle.\n"
        "hint: have the launcher show each process all GPUs of its host, or one of its own (srun --gpus-per-task=1)"
    )
    assert len(allocation.members(4, ("a",), 2)) == 4


def test_ranks_on_cpus_may_be_more_than_the_gpus_that_their_host_has():
    """'run --device cpu --num-ranks 8' was refused on a host of four GPUs."""
    allocation = gather(Plane(1), said("a", gpus=[gpu(number, number) for number in range(4)]))
    (member,) = allocation.members(8, ("a",), None)
    assert (len(member.local_ranks), member.shown) == (8, None)


@pytest.mark.parametrize(
    ("first", "second", "known", "is_shared"),
    [
        ([1, 2], [0, 1], [1, 2, 0], True),  # ended in a traceback: GPU 0 was in no list
        ([0, 1], [1, 0], [0, 1], True),  # each its nearest first: both ran on GPU 0
        ([0, 1], [1, 2], [0, 1, 2], False),
    ],
)
def test_gpus_that_processes_see_in_part_or_in_another_order_are_counted_once_and_shared_by_none(
    first, second, known, is_shared
):
    seen = [[gpu(number, place) for place, number in enumerate(numbers)] for numbers in (first, second)]
    allocation = gather(Plane(2, [(1, said("a", 1, gpus=seen[1]))]), said("a", gpus=seen[0]))
    assert [each["uuid"] for each in allocation.environments["a"]["gpus"]] == [f"GPU-{number}" for number in known]
    if is_shared:
        with pytest.raises(LaunchError, match=f"ranks 0, 1 of host a would share GPU 0 of its {len(known)}"):
            allocation.members(2, ("a",), 1)
    else:
        used = [member.gpu_of(member.local_ranks[0], 1) for member in allocation.members(2, ("a",), 1)]
        assert used == [0, 2]


def of_process(host, number):
    """What the driver says to a process of a healthy host that is shown one of its GPUs."""
    gpus, links = host["facts"]["gpus"], host["facts"]["nvlinks"]
    return {
        "gpus": [{**host["gpus"][number], "index": 0}],
        "facts": {
            "gpus": {**gpus, "gpus": [{**gpus["gpus"][number], "index": 0}]},
            "nvlinks": {**links, "gpus": [{**links["gpus"][number], "gpu": 0}], "num_pairs": 0},
        },
    }


def test_a_host_that_shows_each_process_its_own_gpu_is_judged_by_all_of_them(tmp_path):
    """Its first process spoke for it: what only another sees was not judged, and said to be hidden from the job."""
    whole = dict(healthy().host(tmp_path).environment)
    whole["gpus"] = [gpu(number, number) for number in range(8)]
    shown = [of_process(whole, number) for number in range(8)]
    shown[5]["facts"]["gpus"]["gpus"][0]["remap_failed"] = True
    first = {**whole, **shown[0], "facts": {**whole["facts"], **shown[0]["facts"]}}
    others = [(rank, said("n1", rank, **shown[rank])) for rank in range(1, 8)]
    host = Host("n1", gather(Plane(8, others), said("n1", **first)).environments["n1"])
    assert GpuCount().judge(host) == GpuCount().judge(Host("n1", whole))
    (fault,) = RowRemapping().judge(host).faults
    assert fault.where == host.of(Gpus).gpus[5].place
    assert NvlinkState().judge(host) == NvlinkState().judge(Host("n1", whole))
    with pytest.raises(NotKnown, match="was not asked of GPUs that different processes see"):
        PeerAccess().judge(host)


def test_an_agent_that_a_launcher_shows_some_gpus_says_which(monkeypatch):
    described = {(): {"cores": 2, "gpus": [gpu(8)]}, ("--gpus",): {"gpus": [gpu(8)]}}
    monkeypatch.setattr(allocation, "_described", lambda *options: described[options])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert hello("a", 1, COPY) == said("a", 1, gpus=[gpu(8)])
    assert hello("a", 0, COPY) == said("a", 0, cores=2, gpus=[gpu(8)])


def test_only_the_first_agent_of_a_host_describes_it(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(allocation, "_described", lambda *_: {"cores": 2})
    assert hello("a", 0, COPY) == said("a", 0, cores=2)
    assert hello("a", None, COPY) == said("a", None, cores=2)
    assert hello("a", 1, COPY) == said("a", 1)


def test_the_process_that_describes_a_host_ends_with_an_agent_that_is_killed(tmp_path):
    pid = tmp_path / "pid"
    waits = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(f'{{os.getpid()}}.'); time.sleep(300)"
    agent = subprocess.Popen([sys.executable, "-c", DESCRIBES, waits])
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text().endswith(".")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    agent.kill()
    agent.wait()
    described = int(pid.read_text().strip("."))
    while psutil.pid_exists(described):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_host_that_cannot_be_described_in_time_is_named(monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(allocation.socket, "gethostname", lambda: "cb3")
    with pytest.raises(LaunchError) as caught:
        hello("cb3", 0, COPY)
    assert str(caught.value) == (
        "host cb3 could not be described within 60 s.\n"
        "hint: 'python -m clusterbench.facts' does it; a driver that hangs is what usually holds it up"
    )


def test_a_description_that_failed_is_quoted(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ImportError: no psutil\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(allocation.socket, "gethostname", lambda: "cb3")
    with pytest.raises(LaunchError) as caught:
        hello("cb3", 0, COPY)
    assert str(caught.value) == "host cb3 could not be described: ImportError: no psutil"


# Clocks. The head's stands still, so that every answer takes no time.


def offsets(monkeypatch, hosts, answer, now_s=1000.0):
    monkeypatch.setattr(allocation.time, "time", lambda: now_s)
    plane = Plane(len(hosts), answer=answer)
    found = Allocation(tuple(hosts), {host: {} for host in hosts})
    measure_clocks(plane, found)
    return {host: environment.get("clock_offset_s") for host, environment in found.environments.items()}, plane


def test_a_clock_that_is_ahead_is_noted_with_its_host(monkeypatch):
    shown_s = {1: 1180.0, 2: 999.5}
    found, plane = offsets(monkeypatch, "abc", lambda to, _: TimeTold(shown_s[to]))
    assert found == {"a": None, "b": 180.0, "c": -0.5}
    assert plane.sent[:2] == [(1, TellTime()), (2, TellTime())]
    assert len(plane.sent) == 6  # in three rounds


def test_one_agent_of_each_other_host_is_asked(monkeypatch):
    _, plane = offsets(monkeypatch, "aabb", lambda to, _: TimeTold(1000.0))
    assert {to for to, _ in plane.sent} == {2}


@pytest.mark.usefixtures("soon")
def test_a_host_that_does_not_answer_has_no_offset(monkeypatch):
    found, _ = offsets(monkeypatch, "ab", lambda to, _: Sign())
    assert found == {"a": None, "b": None}


def test_of_several_answers_the_quickest_counts(monkeypatch):
    # Asked at 0, answered at 4 by a clock that shows 12; asked at 10, answered at 10.2 by one that shows 15.1.
    marks = deque([0.0, 4.0, 10.0, 10.2, 20.0, 26.0])
    monkeypatch.setattr(allocation.time, "time", marks.popleft)
    shown_s = deque([12.0, 15.1, 40.0])
    plane = Plane(2, answer=lambda to, _: TimeTold(shown_s.popleft()))
    found = Allocation(("a", "b"), {"a": {}, "b": {}})
    measure_clocks(plane, found)
    assert found.environments["b"] == {"clock_offset_s": 5.0}


def test_alone_there_is_no_other_clock(monkeypatch):
    found, plane = offsets(monkeypatch, "a", None)
    assert (found, plane.sent) == ({"a": None}, [])


# Which hosts take part.

FOUR = Allocation(("cb1", "cb2", "cb3", "cb4"))


def test_hosts_are_taken_in_the_order_in_which_they_are_named():
    assert FOUR.only(("cb3", "cb2"), None) == ("cb3", "cb2")
    assert FOUR.only(("cb3", "cb2"), 1) == ("cb3",)
    assert FOUR.only(None, 2) == ("cb1", "cb2")
    assert FOUR.only(None, None) == FOUR.names
    assert FOUR.only(("cb3.fabric.example", "cb2"), None) == ("cb3", "cb2")
    assert Allocation(("w-0.svc", "w-1.svc")).only(("w-1", "w-0.svc"), None) == ("w-1.svc", "w-0.svc")


@pytest.mark.parametrize("data", [b"a\n\xff\xfe\n", bytes(100)])
def test_a_file_of_hosts_that_is_no_text_is_one_error(data: bytes, tmp_path: Path) -> None:
    """It ended in UnicodeDecodeError's traceback, or was the name of a host."""
    (tmp_path / "bin").write_bytes(data)
    with pytest.raises(SuiteError, match=r"/bin is no text file, and should name a host a line\.$"):
        named_hosts(str(tmp_path / "bin"))


@pytest.mark.parametrize("text", ["a[1-99999999]", "a[1-1000][1-1000]", "a[1-1,2-99999999]"])
def test_a_range_beyond_any_cluster_is_refused_at_once(text: str) -> None:
    """There was no answer in 20 s, and half a gigabyte was taken."""
    with pytest.raises(SuiteError, match=r"is no list of hosts: write names as a,b or n\[1-4\]"):
        named_hosts(text)


def test_hosts_that_are_excluded_take_no_part_whatever_their_domain_is_called():
    assert FOUR.only(None, None, ["cb2", "cb7"]) == ("cb1", "cb3", "cb4")
    assert FOUR.only(None, 1, ["cb1"]) == ("cb2",)
    assert FOUR.only(("cb3", "cb2"), None, ["cb1"]) == ("cb3", "cb2")
    assert FOUR.only(None, None, ["cb2.fabric.example", "cb3x"]) == ("cb1", "cb3", "cb4")
    with pytest.raises(SuiteError, match=r"^--exclude leaves out every host: cb1, cb2, cb3, cb4\.$"):
        FOUR.only(None, None, FOUR.names)
    with pytest.raises(SuiteError, match=r"^--hosts names cb2, which --exclude leaves out\.$"):
        FOUR.only(("cb1", "cb2"), None, ["cb2"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cb2,cb[3-4]", "--exclude leaves out cb2, cb3, cb4\n"),
        ("cb2,cb9", "--exclude leaves out cb2; cb9 is not in the allocation\n"),
        ("cb9", "--exclude leaves out no host; cb9 is not in the allocation\n"),
        ("./bad_hosts.txt", "--exclude leaves out cb2, cb4; cb9 is not in the allocation\n"),
        ("./empty", "--exclude leaves out no host\n"),
    ],
)
def test_what_is_excluded_is_said_and_may_stand_in_a_file(text, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad_hosts.txt").write_text("cb2\n# since Monday\ncb4,cb9\n\n")
    (tmp_path / "empty").touch()
    excluded_hosts(text, FOUR.names)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("text", ["./none", "cb[1-x]"])
def test_a_list_of_hosts_that_cannot_be_read_is_a_mistake(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuiteError, match=r"cannot be read: No such file|is no list of hosts: write names as"):
        excluded_hosts(text, FOUR.names)


@pytest.mark.parametrize(
    ("hosts", "num_nodes", "message"),
    [
        (
            ("cb1", "cb22"),
            None,
            "--hosts names cb22, which is not in the allocation. Did you mean 'cb2'?\nHosts: cb1, cb2, cb3, cb4.",
        ),
        (("cb1", "cb1"), None, "--hosts names cb1 twice."),
        (
            ("cb1", "cb2"),
            3,
            "--num-nodes 3 needs as many hosts, but there are 2: cb1, cb2.\n"
            "hint: have the launcher start agents on more hosts",
        ),
    ],
)
def test_hosts_that_cannot_be_taken(hosts, num_nodes, message):
    with pytest.raises(SuiteError) as caught:
        FOUR.only(hosts, num_nodes)
    assert str(caught.value) == message


def test_hosts_of_a_plain_run_are_what_a_launcher_would_give():
    with pytest.raises(SuiteError) as caught:
        Allocation(("a",)).only(("b",), None)
    assert str(caught.value) == (
        "--hosts names b, which is not in the allocation.\nHosts: a.\n"
        "hint: only a launcher starts clusterbench on other hosts: 'mpirun -n 2 -host a,b clusterbench ...'"
    )


# The machine of those that take part.

H200 = {"cpu_model": "AMD EPYC", "gpus": [{"name": "NVIDIA H200"}] * 8, "gpus_reason": None}
NO_GPU = {"cpu_model": "Xeon", "gpus": [], "gpus_reason": "no driver"}


def test_what_is_found_is_what_the_first_host_that_takes_part_said_of_itself():
    both = Allocation(("a", "a", "b", "b"), {"a": H200, "b": NO_GPU})
    assert both.found(("a", "b")) == Found(("NVIDIA H200",) * 8, None, "AMD EPYC", ("a", "b"), agents_per_node=2)
    assert both.found(("b",)) == Found((), "no driver", "Xeon", ("b",), agents_per_node=2)


def test_a_plain_run_has_no_agents_of_a_launcher():
    assert Allocation(("a",), {"a": H200}).found(("a",)).agents_per_node is None


def test_the_ranks_of_a_host_are_shared_by_its_agents():
    assert Allocation(("a", "a", "b", "b")).ranks_of_agents(4, ("a", "b")) == [2, 2, 2, 2]
    assert Allocation(("a", "a", "b")).ranks_of_agents(4, ("b",)) == [4, 4, 4]


@pytest.mark.parametrize(
    ("hosts", "counts"), [("aaab", "a has 3, b has 1"), ("aaaabb", "a has 4, b has 2"), ("abbb", "a has 1, b has 3")]
)
def test_hosts_with_unequally_many_processes_are_refused(hosts, counts):
    uneven = Allocation(tuple(hosts))
    shares = uneven.ranks_of_agents(uneven.hosts.count("a"), uneven.names)
    with pytest.raises(LaunchError, match=f"nodes must own equally many ranks, but {counts}"):
        members_of(uneven.hosts, shares, uneven.names)


def test_the_interface_of_each_host_reaches_its_ranks_and_its_description():
    networks = {
        host: {"network": [{"name": "eth0", "addresses": [f"10.0.0.{number}/24"]}]}
        for number, host in enumerate("ab", 1)
    }
    both = Allocation(("a", "b"), networks)
    chosen = both.interfaces(("a", "b"), None)
    assert [environment["interface"] for environment in both.environments.values()] == ["eth0", "eth0"]
    assert variables_of(chosen, is_wanted=False) == {host: {"GLOO_SOCKET_IFNAME": "eth0"} for host in "ab"}
    assert variables_of(chosen, is_wanted=True)["b"] == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}


def test_one_host_needs_no_interface():
    assert Allocation(("a",), {"a": {}}).interfaces(("a",), None) == {}
