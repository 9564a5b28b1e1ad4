"""Whole runs through the command line, and what a person or a batch system can do to them in the middle."""

import json
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clusterbench.job.passes import FIRST, kind_of_projection
from clusterbench.run_folder import RunFolder
from tests.engine.test_telemetry import driver, environment, needs_compiler

__all__ = ["driver"]

ROOT = Path(__file__).parent.parent
CLUSTERBENCH = [sys.executable, "-m", "clusterbench.cli"]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

SUITE = """
suite: drill
question: Does everything come to light?
repeats: {repeats}
benchmarks:
  - benchmark: fault_drill
    sleep_s: {sleep_s}
    iterations: 10
    warmup: 1
    time_limit_s: 12
  - benchmark: all_reduce
    max_size: 128B
    iterations: 5
cpu:
  num_ranks: 3
"""


@pytest.fixture
def suite(tmp_path):
    def write(repeats=1, sleep_s="[0.05, 0.06, 0.07]"):
        path = tmp_path / "drill.yaml"
        path.write_text(SUITE.format(repeats=repeats, sleep_s=sleep_s))
        return path

    return write


def run(*arguments, launcher=(), **more):
    command = [*launcher, *CLUSTERBENCH, "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT, check=False, **more)


def start(*arguments, launcher=()):
    command = [*launcher, *CLUSTERBENCH, "run", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def statuses(folder):
    return [outcome.status for outcome in RunFolder.open(folder).outcomes()]


def until(process, pattern):
    """Reads what a run says until it says this; the lines up to there."""
    said = []
    for line in process.stderr:
        said.append(line)
        if re.search(pattern, line):
            return said
    raise AssertionError(f"never said {pattern!r}:\n{''.join(said)}")


def until_timed(process, folder, case):
    """Returns once the ranks have begun the iterations of a case."""
    alive = folder / "alive"
    while not alive.exists() or not re.search(rf'"case": "{case}".*"phase": "checked"', alive.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    time.sleep(0.5)


def workers():
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, log = (entry / "cmdline").read_text(), os.readlink(entry / "fd/2")
            except OSError:
                continue
            if "clusterbench.launch.zygote" in command and (rank := re.search(r"-rank-(\d+)\.log", log)):
                found[log, int(rank[1])] = int(entry.name)
    return found


def worker_of(folder, rank):
    """The pid of a running rank of the run in ``folder``."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for (log, number), pid in workers().items():
            if log.startswith(str(folder)) and number == rank:
                return pid
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} never came")


def nobody_is_left(folder):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(log.startswith(str(folder)) for log, _ in workers()):
            return True
        time.sleep(0.05)
    return False


pytestmark = [pytest.mark.gloo, pytest.mark.usefixtures("no_ignored_signals")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a plain run of the suite, which nobody changes, and what it said."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "drill.yaml").write_text(SUITE.format(repeats=1, sleep_s="[0.05, 0.06, 0.07]"))
    done = run(folder / "drill.yaml", "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stderr


@pytest.mark.quick
def test_a_suite_becomes_a_folder_with_a_report(plain):
    folder, _ = plain
    assert statuses(folder) == ["ok"] * 6
    names = (
        "suite.yaml environment.json plan.jsonl observations.jsonl outcomes.jsonl rows.csv logs index.html "
        "verdict.json hosts.json"
    )
    assert {path.name for path in folder.iterdir()} == {*names.split()}
    environment = json.loads((folder / "environment.json").read_text())
    assert all(loaded["torch"].startswith("2.") for loaded in environment["loaded"].values())


def test_progress_says_which_case_of_how_many_and_how_long(plain):
    _, said = plain
    assert "[2/6] fault_drill/1n3/none-in-run-sleep_s=0.06 ...\n" in said
    took = r"\(\d+\.\d s; \d+:\d\d elapsed, about \d+:\d\d left\)\n"
    assert re.search(r"\[2/6\] fault_drill/1n3/none-in-run-sleep_s=0\.06 ok: 6\d\.\d+ ms " + took, said)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGKILL, "failed", r"rank 1 \(host {host}\) was killed by signal 9 \(SIGKILL\)"),
        (
            signal.SIGSTOP,
            "timeout",
            r"rank 1 \(host {host}\) has not finished (warm-up )?iteration \d+: its process is stopped \(SIGSTOP\)",
        ),
    ],
)
def test_a_signal_to_a_worker_costs_exactly_one_case(suite, tmp_path, number, status, words):
    folder = tmp_path / "run"
    path = suite(sleep_s="[0.05, 0.5, 0.07]")
    path.write_text(path.read_text().replace("time_limit_s: 12", "time_limit_s: 7"))  # which a stopped rank waits for
    process = start(path, "--out", folder)
    until_timed(process, folder, "fault_drill/1n3/none-in-run-sleep_s=0.5")
    os.kill(worker_of(folder, 1), number)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1, said
    outcomes = RunFolder.open(folder).outcomes()
    assert [outcome.status for outcome in outcomes] == ["ok", status, "ok", "ok", "ok", "ok"]
    assert outcomes[1].rank == 1
    assert re.search(words.replace("{host}", re.escape(outcomes[1].host)), outcomes[1].reason)
    assert "fault_drill" in (folder / "index.html").read_text()


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_stopping_keeps_what_was_finished_and_resume_does_the_rest(suite, tmp_path, number):
    folder = tmp_path / "run"
    process = start(suite(repeats=2, sleep_s="[0.05, 0.06, 0.5]"), "--out", folder)
    until_timed(process, folder, "fault_drill/1n3/none-in-run-sleep_s=0.5")
    process.send_signal(number)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert f"stopped before the end: it was interrupted by {number.name}; everything finished is in {folder}." in said
    assert re.search(r"^measured  INCOMPLETE  +2 of 6 cases; 4 not run yet", said, re.MULTILINE)
    assert (folder / "index.html").exists()
    assert nobody_is_left(folder)
    assert statuses(folder) == ["ok"] * 2
    resumed = run("--resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{folder}: 10 repeats of 6 cases to run on 3 ranks" in resumed.stderr
    assert statuses(folder) == ["ok"] * 12
    assert run("--resume", folder).returncode == 0


def test_a_case_whose_record_is_damaged_is_measured_again(suite, tmp_path):
    """The line of the first case is cut, and in that of the second two bytes are others."""
    folder = tmp_path / "run"
    assert run(suite(sleep_s="[0.01, 0.02]"), "--out", folder).returncode == 0
    first, second, *others = (folder / "observations.jsonl").read_bytes().splitlines(keepends=True)
    damaged = b"".join([first[:90], b"\n", second[:40], b"\xff\x00", second[42:], *others])
    (folder / "observations.jsonl").write_bytes(damaged)
    resumed = run("--resume", folder)
    assert f"{folder}: 2 cases to run on 3 ranks" in resumed.stderr, resumed.stderr
    assert (
        "2 of them ended well, but their records in observations.jsonl are missing or damaged: they are measured again"
    ) in resumed.stderr
    assert statuses(folder) == ["ok"] * 7
    assert re.search(r"^measured +\w+ +5 of 5 cases", resumed.stderr, re.MULTILINE), resumed.stderr
    assert "nothing is left to run on 3 ranks" in run("--resume", folder).stderr


def test_a_list_is_run_again_for_a_time_and_a_resumed_run_goes_on_where_it_was(suite, tmp_path):
    """A round takes a second or more: of nine, drift isn't judged, as it would be where other tests come and go."""
    path, folder = suite(sleep_s="[0.15]"), tmp_path / "run"
    path.write_text(f"for: 9s\n{path.read_text()}")
    process = start(path, "--out", folder)
    outcomes = folder / "outcomes.jsonl"
    while not outcomes.exists() or outcomes.read_text().count("\n") < 5:  # in the second round
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert f"{folder}: 4 cases to run on 3 ranks, and again until they have taken 0:09\n" in said
    assert re.search(r"^\[2/4\] .* ok: .* \(\d+\.\d s; 0:0\d of 0:09\)$", said, re.MULTILINE)
    assert re.search(r"^measured +INCOMPLETE +4 of 4 cases; run for 0:0\d of 0:09", said, re.MULTILINE)
    assert process.returncode == 1
    command = [*CLUSTERBENCH, "report", str(folder)]
    reported = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)
    assert reported.returncode == 1
    assert "exit code 1: incomplete" in reported.stderr
    resumed = run("--resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    left = r": 4 cases to run again and again on 3 ranks: they have taken 0:0\d of 0:09\n"
    assert re.search(left, resumed.stderr)
    assert re.search(r"^measured +COMPLETE +4 of 4 cases", resumed.stderr, re.MULTILINE)
    outcomes = RunFolder.open(folder).outcomes()
    last = max(outcome.repeat for outcome in outcomes)
    before = [outcome.elapsed_s for outcome in outcomes if outcome.repeat < last]
    assert sum(before) < 9 <= sum(outcome.elapsed_s for outcome in outcomes)
    assert sorted({outcome.repeat for outcome in outcomes}) == list(range(last + 1))
    again = run("--resume", folder)
    assert again.returncode == 0
    assert f"{folder}: nothing is left to run on 3 ranks\n" in again.stderr
    assert len(RunFolder.open(folder).outcomes()) == len(outcomes)


def test_a_run_whose_output_is_not_read_any_more_ends_in_order(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(sleep_s="[0.05, 0.5, 0.07]"), "--out", folder)
    until(process, r"\[1/6\] fault_drill")
    process.stderr.close()  # as when piped into head
    assert process.wait(200) == 1
    assert statuses(folder) == ["ok"]
    assert (folder / "index.html").exists()
    assert nobody_is_left(folder)


def test_killing_the_run_itself_leaves_no_process_and_a_folder_that_can_be_resumed(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(sleep_s="[0.05, 0.06, 1.0]"), "--out", folder)  # it is still there when the next one comes
    until(process, r"\[3/6\] fault_drill")
    refused = run("--resume", folder)
    assert refused.returncode == 2
    assert re.fullmatch(
        rf"error: {folder} is being written by another run: process {process.pid} on host \S+, since .*\.\nhint: .*\n",
        refused.stderr,
    )
    process.kill()
    process.wait()
    process.stderr.close()
    assert nobody_is_left(folder)
    assert run("--resume", folder).returncode == 0
    assert statuses(folder) == ["ok"] * 6


def test_a_disk_that_fills_up_ends_the_run_in_order_and_resume_does_the_rest(suite, tmp_path):
    folder = tmp_path / "run"
    path = suite(repeats=9, sleep_s=0.0)
    # Stands in for a full disk: no file may grow beyond so many bytes.
    done = run(path, "--out", folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000)))
    assert done.returncode == 1, done.stderr
    assert f"error: {folder} cannot be written: File too large.\n" in done.stderr
    assert f"continue with --resume {folder}" in done.stderr
    assert "Traceback" not in done.stderr
    finished = len(statuses(folder))
    assert 3 < finished < 36
    resumed = run("--resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{36 - finished} repeats of 4 cases to run" in resumed.stderr
    assert statuses(folder) == ["ok"] * 36


def test_a_mistake_is_one_message_and_exit_code_2(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("suite: bad\nquestion: q\nbenchmarks:\n  - benchmark: all_reduse\n")
    done = run(path, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}:4: ")
    assert "Did you mean 'all_reduce'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_resuming_on_another_number_of_ranks_is_refused(plain):
    folder, _ = plain
    done = run("--resume", folder, "--num-ranks", 2)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {folder} was begun on 1 node x 3 CPU ranks, but this is 1 node x 2 CPU ranks.\n"
        "hint: resume it on the same number of nodes and ranks, or start a new run\n"
    )


def test_a_run_that_is_resumed_has_the_ranks_with_which_it_began(suite, tmp_path):
    folder = tmp_path / "run"
    begun = run(suite(), "--out", folder, "--num-ranks", 2, "--time-limit", "1s")
    assert begun.returncode == 1, begun.stderr
    done = run("--resume", folder)
    assert done.returncode == 0, done.stderr
    assert statuses(folder) == ["ok"] * 6


def mpirun(number):
    assert MPIRUN, "mpirun is part of the extra 'mpi'"
    return [MPIRUN, "-n", str(number)]


@pytest.mark.mpi
def test_under_mpirun_the_cases_are_those_of_a_plain_run(plain, suite, tmp_path):
    mpi = tmp_path / "mpi"
    done = run(suite(), "--out", mpi, launcher=mpirun(3))
    assert done.returncode == 0, done.stderr
    assert [case.hash for case in RunFolder.open(mpi).plan().cases] == [
        case.hash for case in RunFolder.open(plain[0]).plan().cases
    ]
    assert statuses(mpi) == ["ok"] * 6


@pytest.mark.mpi
def test_an_agent_may_own_several_ranks(suite, tmp_path):
    done = run(suite(), "--out", tmp_path / "run", "--ranks-per-agent", 2, launcher=mpirun(2))
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(tmp_path / "run").plan().cluster.world_size == 4
    assert statuses(tmp_path / "run") == ["ok"] * 6


@pytest.mark.mpi
def test_under_mpirun_a_killed_worker_costs_one_case(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(sleep_s="[0.05, 0.5, 0.07]"), "--out", folder, launcher=mpirun(3))
    until_timed(process, folder, "fault_drill/1n3/none-in-run-sleep_s=0.5")
    os.kill(worker_of(folder, 2), signal.SIGKILL)
    process.communicate(timeout=200)
    assert process.returncode == 1
    outcomes = RunFolder.open(folder).outcomes()
    assert [outcome.status for outcome in outcomes] == ["ok", "failed", "ok", "ok", "ok", "ok"]
    assert outcomes[1].rank == 2


@pytest.mark.mpi
def test_under_mpirun_a_mistake_ends_every_agent_with_code_2(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("suite: bad\n")
    done = run(path, launcher=mpirun(3))
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.mpi
def test_under_mpirun_stopping_keeps_what_was_finished(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(), "--out", folder, launcher=mpirun(3))
    until(process, r"\[3/6\] fault_drill")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    assert process.returncode != 0
    assert nobody_is_left(folder)
    assert run("--resume", folder).returncode == 0
    assert statuses(folder) == ["ok"] * 6


@pytest.mark.mpi
def test_under_mpirun_a_signal_to_one_agent_ends_all_in_order_whatever_mpi_does_with_it(suite, tmp_path):
    folder = tmp_path / "run"
    process = start(suite(sleep_s="[0.05, 0.5, 0.07]"), "--out", folder, launcher=mpirun(2))
    until_timed(process, folder, "fault_drill/1n2/none-in-run-sleep_s=0.5")
    agents = [child for child in psutil.Process(process.pid).children(recursive=True) if "run" in child.cmdline()[3:4]]
    agents[-1].send_signal(signal.SIGHUP)  # which UCX takes, for a debug mode of its own
    _, said = process.communicate(timeout=200)
    assert "stopped before the end: it was interrupted; everything finished is in" in said
    assert statuses(folder) == ["ok"]
    assert (folder / "index.html").exists()


@needs_compiler
def test_gpus_without_a_torch_that_sees_them_are_skipped_with_the_reason(suite, tmp_path, driver):
    # NVML shows eight GPUs; whether torch can use them only a worker finds out, and never the agent.
    folder = tmp_path / "run"
    path = suite(sleep_s=0.0)
    # Two CPUs for eight GPUs are a finding about the machine, and rightly so.
    done = run(path, "--out", folder, "--fail-on", "incomplete", env=environment(driver["new"], FAKE_NVML_GPUS="8"))
    assert done.returncode == 0, done.stderr
    plan = RunFolder.open(folder).plan()
    assert (plan.cluster.device, plan.cluster.ranks_per_node) == ("cuda", 8)
    outcomes = RunFolder.open(folder).outcomes()
    assert {outcome.status for outcome in outcomes} == {"skipped"}
    assert "sees no CUDA device; install a CUDA build of torch" in outcomes[0].reason


def said_by_two_agents(command):
    """What each of two processes that only variables join says, when both have ended well."""
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(secrets.randbelow(2**32)), "CLUSTERBENCH_SECRET": secrets.token_hex(16)}
    agents = [
        subprocess.Popen(
            command, env={**common, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for rank in ("0", "1")
    ]
    said = [agent.communicate(timeout=250)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    return said


def test_two_processes_that_only_variables_join_are_one_run(suite, tmp_path):
    command = [*CLUSTERBENCH, "run", str(suite(sleep_s=0.0)), "--out", str(tmp_path / "run")]
    said = said_by_two_agents(command)
    assert "cases to run on 2 ranks" in said[0]
    assert said[1] == ""
    assert set(statuses(tmp_path / "run")) == {"ok"}


PLANS_SLOWLY = """
import sys, time
from pathlib import Path
from clusterbench.launch import run

def slowly(*asked, plan=run.make_plan, **more):
    time.sleep(9)
    return plan(*asked, **more)

run.make_plan = slowly
sys.exit(run.run(run.RunOptions(Path(sys.argv[1]), out=Path(sys.argv[2]), silence_s=6.0)))
"""


def test_no_agent_is_lost_while_the_head_plans_longer_than_its_silence_may_be(suite, tmp_path):
    command = [sys.executable, "-c", PLANS_SLOWLY, str(suite(sleep_s=0.0)), str(tmp_path / "run")]
    started = time.monotonic()
    said = said_by_two_agents(command)
    assert time.monotonic() - started > 9.0
    assert said[1] == ""
    outcomes = RunFolder.open(tmp_path / "run").outcomes()
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert not any(outcome.lost_hosts for outcome in outcomes)


@pytest.mark.gloo
def test_a_case_that_shares_a_proof_has_no_gradients_of_the_steps_of_another(tmp_path):
    suite = tmp_path / "shared_proof.yaml"
    suite.write_text("""
suite: shared_proof
benchmarks:
  - {benchmark: train_step, layouts: tp1, shape: llama-tiny, seq_len: 16, global_batch_size: 2, iterations: 2}
  - {benchmark: train_step, layouts: tp1, shape: llama-tiny, seq_len: 32, global_batch_size: 2, warmup: 0}
cpu: {num_ranks: 1}
""")
    done = run(suite, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    first, second = RunFolder.open(tmp_path / "run").observations()
    assert (first.proven_by, second.proven_by) == ("", "train_step/1n1/tp1-iterations=2, repeat 0")
    (seen,), (of_other_steps,) = first.evidence, second.evidence
    assert any(kind_of_projection(name, FIRST) for name in seen)
    assert not any(kind_of_projection(name, FIRST) for name in of_other_steps)
    assert {name for name in seen if "parity" in name} == {name for name in of_other_steps if "parity" in name}
