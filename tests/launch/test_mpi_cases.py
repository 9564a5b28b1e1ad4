"""Cases of MPI where the agents are its ranks: who may run them, how they end, and that the run does not hang."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from clusterbench.cluster import Cluster
from clusterbench.launch import mpi_cases
from clusterbench.launch.conductor import Conductor
from clusterbench.launch.executions import Execution
from clusterbench.launch.members import Member
from clusterbench.launch.messages import EndMpi, InspectMpi, MpiEnded, RankDone, RankFailed, RankReached
from clusterbench.launch.mpi_cases import MpiRank, as_of_its_ranks, in_agents, needs_mpirun, objection
from clusterbench.run_folder import RunFolder
from clusterbench.types import Case, Plan

ROOT = Path(__file__).parents[2]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def case(world_size=4, benchmark="mpi", **more):
    return Case("mpi/1n4/barrier", benchmark, 1, {"op": "barrier"}, "cpu", 1, world_size, 1, 0, 5.0, **more)


def members(*ranks_of_each):
    first, made = 0, []
    for agent, count in enumerate(ranks_of_each):
        made.append(Member(agent, "a", first, tuple(range(count))))
        first += count
    return made


# Who may run them


def test_only_a_case_that_measures_mpi_is_run_by_agents():
    assert in_agents(case())
    assert not in_agents(case(benchmark="all_reduce"))
    assert not in_agents(case(benchmark="of another version"))


def test_agents_of_several_ranks_are_told_how_many_processes_it_takes():
    assert objection(case(), members(2, 2)) == (
        "every process of mpirun is one MPI rank, but here each owns 2 of the 4 ranks.\n"
        "hint: have mpirun start 4 processes, and leave --ranks-per-agent out"
    )


def test_variables_come_too_late_for_a_library_that_has_been_loaded():
    assert objection(case(environment={"UCX_TLS": "tcp"}), members(1, 1, 1, 1)) == (
        "an MPI library reads UCX_TLS when mpirun starts it, which has happened.\n"
        "hint: set it for mpirun, or run the suite without one: each case then starts an mpirun of its own"
    )


def conduct(tmp_path, agents):
    plan = Plan("mpi", "", Cluster(1, 4, "cpu", hosts=("a",)), 1, (case(),), ())
    run = RunFolder.create(tmp_path / "run", b"", plan, {})
    silent = SimpleNamespace(begin=lambda *_: None, reach=lambda *_: None, end=lambda *_: None)
    Conductor(agents, run, silent).conduct([Execution(case(), 0, 1)])
    return run.outcomes()


def test_agents_that_no_mpi_started_skip_it_and_say_what_would_run_it(tmp_path):
    agents = SimpleNamespace(
        order=lambda *_, **__: None, is_alone=lambda: False, mpi=None, lost={}, disabled={}, lost_hosts=()
    )
    (outcome,) = conduct(tmp_path, agents)
    assert (outcome.status, outcome.reason) == ("skipped", needs_mpirun(case()))
    assert outcome.reason == (
        "'mpi' measures MPI, and these processes were not started by an mpirun.\n"
        "hint: 'mpirun -n 4 clusterbench run SUITE' runs it on any hosts, 'clusterbench run SUITE' on this one"
    )


def test_a_workers_record_has_the_seconds_of_its_mpi_rank():
    record = RankDone(1, "a", [9.0], {}, {"seconds": [0.5, 0.25]})
    assert as_of_its_ranks(record) == RankDone(1, "a", [0.5, 0.25], {}, {})


# One rank, without MPI

CHECKED = RankReached(2, "a", "checked")


@pytest.fixture
def rank(monkeypatch):
    """A rank whose stages do what a test plants as ``rank.work``."""
    monkeypatch.setattr(mpi_cases, "traceback", SimpleNamespace(print_exc=lambda: None))
    return MpiRank("a")


def began(rank, work, limit_s=10.0):
    rank._rank = 2
    rank._begin("prepared", work, limit_s)
    return rank


def test_a_stage_that_ends_is_an_event_and_nothing_disturbs_it_before(rank):
    go = threading.Event()
    began(rank, lambda: CHECKED if go.wait(60) else None)
    assert rank.is_undisturbed()
    assert rank.events(0.01) == []
    go.set()
    assert rank.events(60) == [CHECKED]
    assert not rank.is_undisturbed()


def test_a_stage_whose_time_is_over_may_be_asked_about_and_is_stuck(rank):
    go = threading.Event()
    began(rank, lambda: CHECKED if go.wait(60) else None, limit_s=0.01)
    while rank.is_undisturbed():
        time.sleep(0.01)
    rank.execute(EndMpi())
    assert rank.events() == [MpiEnded("a", True)]
    go.set()
    rank._thread.join()
    rank.execute(EndMpi())
    assert rank.events()[-1] == MpiEnded("a", False)


def fails(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (mpi_cases.WrongResult("5 of 9 differ"), "wrong", "5 of 9 differ"),
        (mpi_cases.NotHere("no GPU"), "skipped", "no GPU"),
        (MemoryError("40 GiB"), "out_of_memory", "MemoryError: 40 GiB"),
        (RuntimeError("truncated"), "failed", "RuntimeError: truncated"),
    ],
)
def test_what_goes_wrong_in_a_stage_is_a_record(rank, error, status, reason):
    (said,) = began(rank, fails(error)).events(60)
    assert said == RankFailed(2, "a", status, reason, "prepared")


def test_a_rank_says_where_in_the_code_it_stands():
    rank, go, is_there = MpiRank("a"), threading.Event(), threading.Event()

    def waits_here():
        is_there.set()
        go.wait(60)
        return CHECKED

    began(rank, waits_here)
    is_there.wait(60)
    rank._at(7, False)
    rank.execute(InspectMpi())
    (said,) = rank.events()
    go.set()
    (place,) = said.ranks
    assert (place.rank, place.phase, place.iteration) == (2, "warm", 7)
    assert any(" in waits_here" in frame for frame in place.stack)


# Under mpirun

SUITE = """
suite: inside
question: Does MPI measure itself?
repeats: 2
benchmarks:
  - {benchmark: mpi, op: [latency, all_gather], min_size: 1000, max_size: 1000, iterations: 5, warmup: 1}
  - {benchmark: all_reduce, min_size: 8, max_size: 8, iterations: 5}
cpu: {num_ranks: 3}
"""
ENDLESS = """
suite: endless
question: What if a rank stops?
benchmarks:
  - benchmark: mpi
    op: [all_reduce, barrier]
    min_size: 48KiB
    max_size: 48KiB
    iterations: 1000000
    time_limit_s: 7
  - {benchmark: all_reduce, min_size: 8, max_size: 8, iterations: 5}
cpu: {num_ranks: 3}
"""


@pytest.fixture
def suite(tmp_path):
    def write(text):
        (tmp_path / "suite.yaml").write_text(text)
        return tmp_path / "suite.yaml"

    return write


def command(*arguments, launcher=()):
    return [*launcher, sys.executable, "-m", "clusterbench.cli", "run", *map(str, arguments)]


def run(*arguments, **how):
    return subprocess.run(command(*arguments, **how), capture_output=True, text=True, timeout=250, cwd=ROOT)


def mpirun(number):
    assert MPIRUN, "mpirun is part of the extra 'mpi'"
    return [MPIRUN, "-n", str(number)]


def values(folder, metric):
    """The values of a metric by case."""
    import clusterbench

    rows = clusterbench.read_rows(folder)
    return {row.case: row.value for row in rows[rows.metric == metric].itertuples()}


@pytest.mark.in_turn
@pytest.mark.mpi
def test_a_plain_run_and_one_under_mpirun_have_the_same_cases_and_figures(suite, tmp_path):
    plain, inside = tmp_path / "plain", tmp_path / "inside"
    for folder, launcher in ((plain, ()), (inside, mpirun(3))):
        done = run(suite(SUITE), "--out", folder, launcher=launcher)
        assert done.returncode == 0, done.stderr
    ended = {folder: RunFolder.open(folder).outcomes() for folder in (plain, inside)}
    names = ["mpi/1n3/latency-1000B-float32-0to1", "mpi/1n3/all_gather-996B-float32", "all_reduce/1n3/8B-float32"]
    assert [outcome.case for outcome in ended[plain]] == names * 2
    assert [outcome.case for outcome in ended[inside]] == [names[2]] * 2 + names[:2] * 2  # those of MPI are the last
    for folder in (plain, inside):
        assert {outcome.status for outcome in ended[folder]} == {"ok"}
        assert values(folder, "latency").keys() == {*names}
        assert min(values(folder, "latency").values()) > 0
        for seen in RunFolder.open(folder).observations():
            assert [len(seconds) for seconds in seen.seconds] == [5] * 3
            assert list(seen.evidence) == [{"wrong_elements": 0.0}] * 3


@pytest.mark.mpi
def test_processes_that_own_several_ranks_skip_it_and_run_the_rest(suite, tmp_path):
    folder = tmp_path / "run"
    done = run(suite(SUITE.replace("repeats: 2", "")), "--out", folder, "--ranks-per-agent", 2, launcher=mpirun(2))
    assert done.returncode == 0, done.stderr
    outcomes = {outcome.case.split("/")[0]: outcome for outcome in RunFolder.open(folder).outcomes()}
    assert outcomes["all_reduce"].status == "ok"
    assert outcomes["mpi"].status == "skipped"
    assert outcomes["mpi"].reason.startswith("every process of mpirun is one MPI rank, but here each owns 2 of")


def rank_of(folder, number):
    """The agent that is rank ``number`` of an mpirun."""
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in (process.info["cmdline"] or ()):
            variables = process.environ()
            if number == variables.get("PMI_RANK", variables.get("OMPI_COMM_WORLD_RANK")):
                return process
    raise AssertionError(f"rank {number} is not there")


def until_inside(process, folder):
    """Returns once the first case of MPI is being timed."""
    alive = folder / "alive"
    while not alive.exists() or not re.search(r'"case": "mpi/.*"phase": "checked"', alive.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    time.sleep(0.5)


def start(*arguments, launcher):
    return subprocess.Popen(
        command(*arguments, launcher=launcher), stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )


@pytest.mark.in_turn
@pytest.mark.mpi
def test_a_rank_that_is_stopped_inside_mpi_is_named_and_the_run_ends_in_order(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(ENDLESS), "--out", folder, launcher=mpirun(3))
    until_inside(process, folder)
    stopped = rank_of(folder, "1")
    stopped.send_signal(signal.SIGSTOP)
    _, said = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "stopped before the end: a call of MPI has not returned, and MPI cannot be left before it does" in said
    before, late = RunFolder.open(folder).outcomes()
    assert (before.case, before.status) == ("all_reduce/1n3/8B-float32", "ok")
    assert (late.case, late.status, late.rank) == ("mpi/1n3/all_reduce-48KiB-float32", "timeout", 1)
    assert re.fullmatch(
        r"stopped after 7 s: rank 1 \(host .*\) does not answer within 5 s, stopped or gone without a word; 2 other "
        r"ranks wait for it",
        late.reason,
    )
    assert (folder / "index.html").exists()
    psutil.wait_procs([stopped], timeout=60)
    assert not stopped.is_running()


@pytest.mark.in_turn
@pytest.mark.mpi
def test_a_plain_run_says_that_it_sees_an_mpirun_and_not_its_ranks(suite, tmp_path):
    folder = tmp_path / "run"
    done = run(suite(ENDLESS.replace("[all_reduce, barrier]", "all_reduce")), "--out", folder)
    assert done.returncode == 1
    late, after = RunFolder.open(folder).outcomes()
    assert (late.status, late.rank, after.status) == ("timeout", None, "ok")
    assert re.fullmatch(
        r"stopped after 7 s: the mpirun of 3 ranks on host .* has not ended; which of its ranks is behind is not "
        r"known\.\nhint: 'mpirun -n 3 clusterbench run SUITE' names it",
        late.reason,
    )


@pytest.mark.in_turn
@pytest.mark.mpi
def test_a_case_that_is_only_slow_names_how_far_it_got(suite, tmp_path):
    folder = tmp_path / "run"
    done = run(suite(ENDLESS), "--out", folder, launcher=mpirun(3))
    assert done.returncode == 1
    late = RunFolder.open(folder).outcomes()[-1]
    assert late.status == "timeout"
    assert re.search(r"stopped after 7 s: ranks? .* not finished iteration \d+", late.reason)


@pytest.mark.mpi
def test_what_a_killed_rank_took_with_it_is_known_and_resumed(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(ENDLESS), "--out", folder, launcher=mpirun(3))
    until_inside(process, folder)
    rank_of(folder, "1").kill()
    process.communicate(timeout=200)
    assert process.returncode != 0
    assert [outcome.case for outcome in RunFolder.open(folder).outcomes()] == ["all_reduce/1n3/8B-float32"]
    assert RunFolder.open(folder).cut_off()["case"] == "mpi/1n3/all_reduce-48KiB-float32"
