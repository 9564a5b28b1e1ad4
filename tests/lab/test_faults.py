"""The table of faults: whatever breaks, the outcome names phase, rank and host, and every finished case is kept."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusterbench.run_folder import RunFolder
from tests.lab import launchers
from tests.lab.hosts import LOGIN

pytestmark = [
    pytest.mark.lab,
    pytest.mark.mpi,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_ignored_signals"),
]

VICTIM = "cb2"
LAUNCHING = Path(__file__).parents[2] / "docs" / "launching.md"

DRILL = """
suite: drill
question: Does every fault come to light?
num_nodes: [2]
benchmarks:
  - {benchmark: fault_drill, sleep_s: [0.01, 0.02, 0.4, 0.03], iterations: 10, warmup: 1, time_limit_s: 40}
"""
"""Four cases; the third, four seconds on both hosts, is the one that is disturbed."""
DISTURBED, BEFORE, ALL = "[3/4]", 2, 4
ON_ONE_HOST_FIRST = DRILL.replace("[2]", "[1, 2]")
"""Eight cases: half of them on one host, while the agent of the other waits."""

EVERY_FAULT = """
suite: faults
question: Does every fault come to light as a row that names its rank?
num_nodes: [2]
benchmarks:
  - {benchmark: fault_drill, iterations: 6}     # the first start has torch imported
  - benchmark: fault_drill
    fault: [raise, exit, segfault, kill]
    rank: 1
    phase: [prepare, check, run]
    iterations: 6
    warmup: 1
    time_limit_s: 120
    expect: [failed]
  - benchmark: fault_drill
    fault: [stop, hang]
    rank: 1
    phase: [prepare, check, run]
    iterations: 6
    warmup: 1
    time_limit_s: 5
    expect: [timeout]
  - {benchmark: fault_drill, fault: [out_of_memory, out_of_shared_memory], rank: 1, expect: [out_of_memory]}
  - {benchmark: fault_drill, fault: wrong, phase: check, rank: 1, expect: [wrong]}
  - {benchmark: fault_drill, fault: slow, phase: run, rank: 1, iterations: 10}
  - {benchmark: all_reduce, max_size: 64, iterations: 5}
"""

MPICH = (launchers.mpich, launchers.why_not_mpich)
OPENMPI = (launchers.openmpi, launchers.why_not_openmpi)
"""A crash of a host, which each launcher notices in its own way, is tried under both; every other fault under one."""


CLI = ("-m", "clusterbench.cli", "run")
IMPATIENT = ("-c", "import sys; from pathlib import Path; from clusterbench.launch.run import RunOptions, run; "
             "sys.exit(run(RunOptions(Path(sys.argv[1]), out=Path(sys.argv[3]), silence_s=8.0)))")  # fmt: skip
"""``SUITE --out FOLDER`` of a run that waits eight seconds for a silent agent."""
BRISK = ("-c", "import sys; from pathlib import Path; from clusterbench.launch import run, supervisor; "
         "supervisor.SECONDS_TO_PROBE, supervisor.SECONDS_TO_LEAVE = 12.0, 6.0; "
         "options = run.RunOptions(Path(sys.argv[1]), out=Path(sys.argv[3])); "
         "sys.exit(supervisor.supervise(sys.argv[5], options))")  # fmt: skip
"""``SUITE --out FOLDER --launch COMMAND`` that waits less for hosts without an answer, and for a launcher's end."""


class Run:
    """A run in the lab, of which everything it says is kept."""

    def __init__(self, lab, launcher, *arguments, outer=(), program=CLI):
        command = [launcher.python, *map(str, [*program, *arguments])]
        prefix = outer and ["--launch", shlex.join(outer)]
        words = [*command, *prefix] if outer else launcher.command(*command[1:])
        self.said: list[str] = []
        self.process = lab.login(words, env=launcher.environment, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stderr:
            self.said.append(line)

    @property
    def text(self):
        return "".join(self.said)

    def until(self, begins, timeout_s=200):
        deadline = time.monotonic() + timeout_s
        while not any(line.startswith(begins) for line in self.said):
            assert time.monotonic() < deadline, f"never said {begins}:\n{self.text}"
            assert self.process.poll() is None, self.text
            time.sleep(0.02)
        time.sleep(0.7)  # into the middle of the case

    def end(self, timeout_s):
        """The exit code; -1 if it had to be ended after that long."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
            return -1


@pytest.fixture
def drill(tmp_path):
    path = tmp_path / "drill.yaml"
    path.write_text(DRILL)
    return path


def on_two_hosts(lab, launch, why_not, ranks_per_host=1):
    if reason := why_not():
        pytest.skip(reason)
    return launch(lab, ["cb1", VICTIM], ranks_per_host)


def outcomes(folder):
    return RunFolder.open(folder).outcomes()


def measured(folder):
    return [outcome.case for outcome in outcomes(folder) if outcome.status == "ok"]


def assert_nothing_runs(lab, within_s=60):
    assert lab.left_running(within_s=within_s) == {}


def assert_one_run(folder, cases):
    """Every case once measured, its report shows one run, and every line of what was observed can be read."""
    assert sorted(set(measured(folder))) == sorted(measured(folder))
    assert len(measured(folder)) == cases
    run = RunFolder.open(folder)
    assert len({observation.hash for observation in run.observations()}) == cases
    assert run.problems == []
    assert "COMPLETE" in (folder / "index.html").read_text()


def test_every_fault_of_a_worker_costs_its_own_case_and_names_rank_and_host(lab, tmp_path):
    (tmp_path / "faults.yaml").write_text(EVERY_FAULT)
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    assert lab.run(VICTIM, ["mount", "-o", "remount,size=64m", "/dev/shm"]).returncode == 0
    run = Run(lab, launcher, tmp_path / "faults.yaml", "--out", tmp_path / "run")
    assert run.end(400) == 1, run.text  # every fault was expected, and the slow rank is a suspect
    found = {outcome.case.split("/", 2)[2]: outcome for outcome in outcomes(tmp_path / "run")}
    wanted = {
        "raise": ("failed", "RuntimeError: planted by fault_drill"),
        "exit": ("failed", "ended by itself with exit code 7"),
        "segfault": ("failed", "was killed by signal 11 (SIGSEGV)"),
        "kill": ("failed", "was killed by signal 9 (SIGKILL)"),
        "stop": ("timeout", "its process is stopped (SIGSTOP)"),
        "hang": ("timeout", "stopped after 5 s"),
    }
    standing = {"prepare": "rendezvous", "check": "prepared", "run": "warm"}
    for fault, (status, words) in wanted.items():
        for phase, after in standing.items():
            outcome = found[f"{fault}-in-{phase}"]
            assert (outcome.status, outcome.rank, outcome.host) == (status, 1, VICTIM), outcome
            assert words in outcome.reason
            assert outcome.phase == after
            # Some seconds on an idle machine, on top of a deadline of 5 s where there is one: far from the 120 s of the
            # others, and from the 76 s after which the transport of those that wait gives up.
            assert outcome.elapsed_s < 60
            log = (tmp_path / "run" / outcome.log).read_text()
            assert fault not in ("raise", "segfault", "hang") or "fault_drill.py" in log  # where it stood
    for fault in ("out_of_memory", "out_of_shared_memory"):
        outcome = found[f"{fault}-in-run"]
        assert (outcome.status, outcome.rank, outcome.host) == ("out_of_memory", 1, VICTIM)
    assert re.search(r"tried to allocate \d+ bytes", found["out_of_memory-in-run"].reason)
    assert re.search(r"/dev/shm holds \d+ MiB, of which \d+ MiB", found["out_of_shared_memory-in-run"].reason)
    assert (found["wrong-in-check"].status, found["wrong-in-check"].rank) == ("wrong", 1)
    assert found["wrong-in-check"].reason.startswith(
        f"fault_drill gave wrong results on rank 1 (host {VICTIM}): 1 of 1000 elements differ. "
        "First at index 700: got 0.0, expected 1.0."
    ), found["wrong-in-check"].reason
    assert found["slow-in-run"].status == "ok"  # measured and found, not killed
    page = (tmp_path / "run" / "index.html").read_text()
    assert f"Straggler: rank 1 on {VICTIM}, " in page
    judged = json.loads((tmp_path / "run" / "hosts.json").read_text())["hosts"]
    assert {evidence["kind"] for evidence in judged[VICTIM]["evidence"]} == {"straggler"}  # nothing of what programs do
    assert {host: said["judged"] for host, said in judged.items()} == {"cb1": "not judged", VICTIM: "bad"}
    assert found["32B-float32"].status == "ok"
    assert_nothing_runs(lab)


def test_a_host_limit_on_memory_is_named_with_its_figure(lab, tmp_path):
    group = Path("/sys/fs/cgroup/memory")
    if not group.is_dir():
        pytest.skip("no cgroup of version 1 for memory")
    own = group / next(
        line.split(":")[2].lstrip("/")
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.split(":")[1] == "memory"
    )
    limited = own / f"clusterbench-test-{os.getpid()}"
    limited.mkdir()
    try:
        (limited / "memory.limit_in_bytes").write_text(str(3 * 2**29))
        (tmp_path / "memory.yaml").write_text(
            "suite: memory\nbenchmarks:\n"
            "  - {benchmark: fault_drill, fault: [out_of_host_memory, none], rank: 1, iterations: 6}\n"
            "cpu: {num_ranks: 2}\n"
        )
        words = [
            "python",
            "-m",
            "clusterbench.cli",
            "run",
            str(tmp_path / "memory.yaml"),
            "--out",
            str(tmp_path / "run"),
        ]
        launcher = launchers.mpich(lab, ["cb1"], 1)
        script = f"echo $$ > {limited}/cgroup.procs; exec {shlex.join([launcher.python, *words[1:]])}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 1, done.stderr
        first, second = outcomes(tmp_path / "run")
        assert (first.status, first.rank) == ("out_of_memory", 1)
        assert first.reason.endswith("was killed by the kernel for want of memory: processes there may use 1.50 GiB")
        assert second.status == "ok"
    finally:
        for _ in range(50):
            try:
                limited.rmdir()
                break
            except OSError:
                time.sleep(0.1)


@pytest.mark.in_turn
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("launch", "why_not", "suite", "disturbed", "before", "cases"),
    [(*MPICH, ON_ONE_HOST_FIRST, "[7/8]", 6, 8), (*OPENMPI, DRILL, DISTURBED, BEFORE, ALL)],
    ids=["mpich", "openmpi"],
)
def test_a_host_that_crashes_ends_mpirun_and_resume_does_the_rest(
    lab, drill, tmp_path, launch, why_not, suite, disturbed, before, cases
):
    launcher = on_two_hosts(lab, launch, why_not)
    drill.write_text(suite)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder)
    run.until(disturbed)
    lab.crash(VICTIM)
    assert run.end(200) != -1, run.text  # Open MPI ends with 0 here: nobody may trust an exit code
    assert len(measured(folder)) == before
    assert_nothing_runs(lab)
    lab.revive(VICTIM)
    again = Run(lab, launcher, "--resume", folder)
    assert again.end(200) == 0, again.text
    assert_one_run(folder, cases)
    assert_nothing_runs(lab)


@pytest.mark.matrix
@pytest.mark.parametrize(("fault", "limit_s"), [("cut", 40), ("drop", 6)])
def test_a_host_that_falls_silent_is_named_and_the_run_ends_in_order(lab, drill, tmp_path, fault, limit_s):
    """Whichever ends first: the time of the case, or the silence after which the agent is lost."""
    drill.write_text(DRILL.replace("time_limit_s: 40", f"time_limit_s: {limit_s}"))
    launcher = on_two_hosts(lab, launchers.openmpi, launchers.why_not_openmpi)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder, program=IMPATIENT)
    run.until(DISTURBED)
    getattr(lab, fault)(VICTIM)
    assert run.end(200) != -1, run.text  # Open MPI ends with 0 here, too
    assert len(measured(folder)) == BEFORE
    last = outcomes(folder)[-1]
    assert (last.status, last.rank, last.host, last.lost_hosts) == ("failed", 1, VICTIM, (VICTIM,))
    assert last.phase == "warm"
    assert last.reason == f"rank 1 (host {VICTIM}) was lost: the agent there said nothing for 8 s"
    assert "hint: 'clusterbench run --resume" in run.text
    assert (folder / "index.html").exists()
    assert_nothing_runs(lab)  # on the host that was cut off neither


@pytest.mark.matrix
def test_the_heads_own_host_that_falls_silent_is_named_by_who_else_does_not_answer(lab, drill, tmp_path):
    """Of two hosts, and no interface says that it went down: mpirun's host answered when the run began."""
    launcher = on_two_hosts(lab, launchers.openmpi, launchers.why_not_openmpi)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder, program=IMPATIENT)
    run.until(DISTURBED)
    lab.drop("cb1")
    assert run.end(200) != -1, run.text
    assert_nothing_runs(lab)  # on the head's host, which mpirun hears no more
    last = outcomes(folder)[-1]
    assert (last.status, last.rank, last.host, last.lost_hosts) == ("failed", None, "cb1", (VICTIM,)), run.text
    assert last.reason == (
        f"rank 1 (host {VICTIM}) was lost: the agent there said nothing for 8 s; no other host is heard, and "
        f"{lab.address(LOGIN)}, which answered cb1 when the run began, does not any more: it is the link of the head's "
        "own, cb1"
    )


@pytest.mark.in_turn
def test_a_link_that_comes_back_in_time_costs_nothing_but_time(lab, drill, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    run = Run(lab, launcher, drill, "--out", tmp_path / "run")
    run.until(DISTURBED)
    lab.cut(VICTIM)
    time.sleep(6)
    lab.heal(VICTIM)
    assert run.end(200) == 0, run.text
    assert_one_run(tmp_path / "run", ALL)
    assert_nothing_runs(lab)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("launch", "why_not", "fault", "program", "spares", "said"),
    [
        (*MPICH, "crash", CLI, ("--spares", "1"), f"no answer from {VICTIM}; spare cb3 takes the place of {VICTIM}"),
        (*OPENMPI, "cut", BRISK, (), f"no answer from {VICTIM}; left are cb1, cb3"),
    ],
    ids=["mpich-crash", "openmpi-cut"],
)
def test_the_outer_form_goes_on_with_the_hosts_that_are_left(
    lab, drill, tmp_path, launch, why_not, fault, program, spares, said
):
    """Under MPICH the third is a spare: the launcher is always given two."""
    if reason := why_not():
        pytest.skip(reason)
    launcher = launch(lab, ["cb1", VICTIM, "cb3"], 1)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder, *spares, outer=launcher.prefix, program=program)
    run.until(DISTURBED)
    getattr(lab, fault)(VICTIM)
    assert run.end(400) == 1, run.text  # all is measured; a host is lost
    assert said in run.text
    (lost,) = [outcome for outcome in outcomes(folder) if outcome.status != "ok"]
    assert (lost.status, lost.host, lost.lost_hosts, lost.attempt) == ("failed", VICTIM, (VICTIM,), 1)
    silent = f"rank 1 (host {VICTIM}) was lost: the agent there said nothing for 20 s"  # unless a test asks for less
    assert fault != "cut" or lost.reason == silent
    assert not spares or lost.reason.endswith(f"; cb3 takes the place of {VICTIM}")
    assert_one_run(folder, ALL)
    moved = [observation.hosts for observation in RunFolder.open(folder).observations()][-1]
    assert moved == ("cb1", "cb3")
    assert (folder / "bad_hosts.txt").read_text() == f"{VICTIM}\n"
    assert json.loads((folder / "hosts.json").read_text())["not_judged"] == ["cb1", "cb3"]  # a drill compares nothing
    assert f"hint: --exclude {folder}/bad_hosts.txt leaves the bad ones out" in run.text
    assert_nothing_runs(lab)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("launch", "why_not", "number"),
    [(*MPICH, signal.SIGKILL), (*OPENMPI, signal.SIGTERM), (*MPICH, signal.SIGINT)],
    ids=["mpich-SIGKILL", "openmpi-SIGTERM", "mpich-SIGINT"],
)
def test_ending_mpirun_keeps_what_is_finished_and_resume_does_the_rest(lab, drill, tmp_path, launch, why_not, number):
    launcher = on_two_hosts(lab, launch, why_not)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder)
    run.until(DISTURBED)
    run.process.send_signal(number)
    assert run.end(200) not in (0, -1), run.text
    assert len(measured(folder)) == BEFORE
    assert_nothing_runs(lab)
    again = Run(lab, launcher, "--resume", folder)
    assert again.end(200) == 0, again.text
    assert_one_run(folder, ALL)


@pytest.mark.in_turn
def test_all_ends_with_a_supervisor_that_is_killed_and_another_goes_on_at_once(lab, drill, tmp_path):
    """Though the head was on a host of which the second one knows nothing by itself."""
    drill.write_text(DRILL.replace("0.4", "2.5"))  # a case of 28 s, in which the launcher has nothing to pass on
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    folder = tmp_path / "run"
    run = Run(lab, launcher, drill, "--out", folder, outer=launcher.prefix)
    run.until(DISTURBED)
    run.process.kill()
    assert_nothing_runs(lab, within_s=15)
    assert len(measured(folder)) == BEFORE
    again = Run(lab, launcher, "--resume", folder, outer=launcher.prefix)
    assert again.end(200) == 0, again.text
    assert "still write there" not in again.text
    assert_one_run(folder, ALL)


@pytest.mark.in_turn
def test_ending_srun_keeps_what_is_finished(lab, slurm, drill, tmp_path):
    launcher = launchers.srun(lab, ["cb1", VICTIM], 1)
    before = lab.left_running()
    run = Run(lab, launcher, drill, "--out", tmp_path / "run")
    run.until(DISTURBED)
    run.process.kill()
    run.process.wait(60)
    assert len(measured(tmp_path / "run")) == BEFORE
    deadline = time.monotonic() + 200
    while "clusterbench.cli" in json.dumps(lab.left_running()):
        assert time.monotonic() < deadline, lab.left_running()
        time.sleep(0.5)
    assert set(lab.left_running()) == set(before)
    again = Run(lab, launcher, "--resume", tmp_path / "run")
    assert again.end(200) == 0, again.text
    assert_one_run(tmp_path / "run", ALL)


@pytest.mark.in_turn
def test_the_batch_script_of_the_docs_ends_in_order_before_its_limit(lab, slurm, tmp_path):
    """With the limit and the time before it made short."""
    (script,) = re.findall(r"^```sh\n(#!/bin/sh\n#SBATCH.*?)^```", LAUNCHING.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "s.yaml").write_text(DRILL.replace("0.4", "20.0").replace("time_limit_s: 40", "time_limit_s: 900"))
    python = shlex.quote(sys.executable)
    for written, here in (
        ("--ntasks-per-node=4", "--ntasks-per-node=1"),
        ("--time=1:00:00", "--time=1"),
        ("USR1@120", "USR1@20"),
        ("clusterbench-%j.txt", f"{tmp_path}/said"),
        ("clusterbench run", f"{python} -m clusterbench.cli run"),
        ("suites/tp_scale.yaml", f"{tmp_path}/s.yaml --out {tmp_path}/run"),
    ):
        assert script.count(written) == 1
        script = script.replace(written, here)
    (tmp_path / "script").write_text(script)
    done = lab.run(LOGIN, ["sbatch", "--wait", str(tmp_path / "script")], timeout=200)
    said = (tmp_path / "said").read_text()
    assert done.returncode == 1, said
    assert f"stopped before the end: it was interrupted by SIGUSR1; everything finished is in {tmp_path}/run.\n" in said
    assert "TIME LIMIT" not in said
    # how many come before the signal is up to the machine
    assert len(measured(tmp_path / "run")) == len(re.findall(r"^\[.* ok(?:: | \()", said, re.MULTILINE))
    assert (tmp_path / "run" / "index.html").exists()
    assert "clusterbench.cli" not in json.dumps(lab.left_running())


def test_a_lost_connection_between_agents_is_a_lost_host_under_srun(lab, slurm, drill, tmp_path):
    launcher = launchers.srun(lab, ["cb1", VICTIM], 1)
    run = Run(lab, launcher, drill, "--out", tmp_path / "run")
    run.until(DISTURBED)
    agent = lab.run(VICTIM, ["pgrep", "-o", "-f", "clusterbench.cli run"]).stdout.split()[0]
    lab.run(VICTIM, ["kill", "-KILL", agent])
    assert run.end(200) not in (0, -1), run.text
    last = outcomes(tmp_path / "run")[-1]
    assert (last.status, last.rank, last.host) == ("failed", 1, VICTIM)
    assert last.reason == f"rank 1 (host {VICTIM}) was lost: the agent there closed its connection"


@pytest.mark.in_turn
def test_the_budget_of_a_run_ends_it_in_order(lab, drill, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    cases = [thousandth / 1000 for thousandth in range(60, 100)]  # 35 s of them, to which the start is added
    drill.write_text(DRILL.replace("[0.01, 0.02, 0.4, 0.03]", str(cases)))
    run = Run(lab, launcher, drill, "--out", tmp_path / "run", "--time-limit", "34s")
    assert run.end(200) == 1, run.text
    assert 1 <= len(measured(tmp_path / "run")) < len(cases)
    assert "the run's time limit was reached" in run.text
    assert {outcome.status for outcome in outcomes(tmp_path / "run")} == {"ok"}  # the one under way has no outcome
    again = Run(lab, launcher, "--resume", tmp_path / "run")
    assert again.end(200) == 0, again.text
    assert_one_run(tmp_path / "run", len(cases))


def test_a_host_that_does_not_see_the_runs_folder_still_gives_its_logs(lab, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    (tmp_path / "s.yaml").write_text(
        "suite: s\nnum_nodes: [2]\nbenchmarks:\n"
        "  - {benchmark: fault_drill, fault: raise, rank: 1, iterations: 6, expect: [failed]}\n"
    )
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    assert lab.run(VICTIM, ["mount", "-t", "tmpfs", "tmpfs", str(hidden)]).returncode == 0
    run = Run(lab, launcher, tmp_path / "s.yaml", "--out", hidden / "run")
    assert run.end(200) == 0, run.text
    (outcome,) = outcomes(hidden / "run")
    assert (outcome.status, outcome.rank, outcome.host) == ("failed", 1, VICTIM)
    assert "RuntimeError: planted by fault_drill" in (hidden / "run" / outcome.log).read_text()


@pytest.mark.in_turn
def test_a_disk_that_fills_up_ends_every_agent_in_order_and_resume_does_the_rest(lab, drill, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    drill.write_text(ON_ONE_HOST_FIRST.replace("0.4", "0.04"))
    small = tmp_path / "small"
    small.mkdir()
    for host in ("cb1", VICTIM):
        assert lab.run(host, ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(small)]).returncode == 0
    run = Run(lab, launcher, drill, "--out", small / "run")
    assert run.end(200) == 1, run.text
    assert re.search(rf"error: {small}\S* cannot be written: No space left on device\.\nhint: free space", run.text)
    assert "Traceback" not in run.text
    assert_nothing_runs(lab)
    for host in ("cb1", VICTIM):
        assert lab.run(host, ["mount", "-o", "remount,size=64m", str(small)]).returncode == 0
    again = Run(lab, launcher, "--resume", small / "run")
    assert again.end(200) == 0, again.text
    assert "measured  COMPLETE" in again.text


def test_a_folder_that_cannot_be_written_is_known_at_the_start(lab, drill, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    readonly = tmp_path / "readonly"
    readonly.mkdir()
    for host in ("cb1", VICTIM):
        assert lab.run(host, ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(readonly)]).returncode == 0
    run = Run(lab, launcher, drill, "--out", readonly / "run")
    assert run.end(200) == 2, run.text
    assert f"error: {readonly}/run" in run.text
    assert "cannot be written: Read-only file system.\nhint: make it writable" in run.text
    assert_nothing_runs(lab)


def test_a_folder_that_vanishes_ends_the_run_in_order(lab, drill, tmp_path):
    launcher = on_two_hosts(lab, launchers.mpich, launchers.why_not_mpich)
    run = Run(lab, launcher, drill, "--out", tmp_path / "run")
    run.until(DISTURBED)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert run.end(200) == 1, run.text
    assert f"error: {tmp_path}/run/outcomes.jsonl cannot be written: No such file or directory." in run.text or (
        f"error: {tmp_path}/run/observations.jsonl cannot be written: No such file or directory." in run.text
    ), run.text
    assert "Traceback" not in run.text
    assert measured(tmp_path / "elsewhere")
    assert_nothing_runs(lab)
