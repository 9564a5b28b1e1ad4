"""One suite across hosts under every launcher: the same cases, on the right hosts, to the end, and nothing left behind.

All tests share one lab with Slurm in it. A run takes some seconds however little it measures, so the suites are small.
"""

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from clusterbench.cluster import Cluster
from clusterbench.launch.rendezvous import ports_of
from clusterbench.launchers import detect
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from tests.lab import launchers
from tests.lab import slurm as slurm_of_a_lab
from tests.lab.hosts import LOGIN, Lab
from tests.lab.launchers import Launcher

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

HOSTS = ["cb1", "cb2", "cb3", "cb4"]
SUITE = """
suite: {name}
question: Does it run across hosts?
num_nodes: {num_nodes}
benchmarks:
  - {{benchmark: all_reduce, min_size: 1MiB, max_size: 4MiB, iterations: 3, time_limit_s: 300}}
  - benchmark: train_step
    layouts: [dp*]
    seq_len: 32
    global_batch_size: 8
    iterations: 2
    warmup: 1
    time_limit_s: 300
"""
EACH_NODE = """
  - {{benchmark: train_step, layouts: [dp*], each_node: true, seq_len: 32, iterations: 2, warmup: 1, time_limit_s: 300}}
"""
SMALL_SUITE = """
suite: {name}
question: Does it run at all?
num_nodes: {num_nodes}
benchmarks: [{{benchmark: all_reduce, min_size: 1MiB, max_size: 1MiB, iterations: 3}}]
"""
SLURM_DAEMONS = re.compile(r"munged |slurmctld|slurmd|: slurmscriptd")


@pytest.fixture(scope="module")
def lab(lab_of_all: Lab) -> Iterator[Lab]:
    """Not renewed between tests, as one Slurm serves them all."""
    yield lab_of_all
    lab_of_all.renew()


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Iterator[slurm_of_a_lab.Slurm]:
    if reason := slurm_of_a_lab.why_not():
        pytest.skip(reason)
    with slurm_of_a_lab.Slurm(lab) as slurm:
        yield slurm


@pytest.fixture
def suite(tmp_path):
    """Writes a suite and gives its path."""

    def write(text, num_nodes):
        path = tmp_path / "suite.yaml"
        path.write_text(text.format(name="hosts", num_nodes=num_nodes))
        return path

    return write


@pytest.fixture
def launcher_of(lab, request):
    """A launcher by its name; skipped where there is none."""

    def find(name, hosts=HOSTS, ranks_per_host=1) -> Launcher:
        why = getattr(launchers, f"why_not_{name}", lambda: None)()
        if why:
            pytest.skip(why)
        if name == "srun":
            request.getfixturevalue("slurm")
        return getattr(launchers, name)(lab, hosts, ranks_per_host)

    return find


def left_running(lab, within_s=60.0):
    """What runs in the lab beside Slurm's daemons."""
    deadline = time.monotonic() + within_s
    while True:
        left = [
            (host, process)
            for host in [LOGIN, *HOSTS]
            for process in lab.processes(host)
            if not SLURM_DAEMONS.match(process)
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def clusterbench(launcher, *arguments):
    return launcher.command("-m", "clusterbench.cli", "run", *map(str, arguments))


def run(lab, launcher, suite, out, *arguments, exit_code=0):
    """A run that must end so, and leave nothing behind; what it said."""
    # hosts of the lab share two cores: which of them is slower is not what these runs are about
    command = clusterbench(launcher, suite, "--out", out, "--fail-on", "incomplete", *arguments)
    done = lab.run(LOGIN, command, env=launcher.environment, timeout=500)
    assert done.returncode == exit_code, done.stderr
    assert left_running(lab) == []
    return done.stderr


def outcomes_of(out):
    return RunFolder.open(out).outcomes()


def rows_of(out):
    with open(out / "rows.csv", newline="") as file:
        return list(csv.DictReader(file))


def hosts_by_case(out):
    """The hosts of each case, as its rows say."""
    return {row["case"]: row["hosts"].split() for row in rows_of(out)}


# Every launcher

WHAT_RUNS = [
    pytest.param("mpich", marks=pytest.mark.mpi),
    pytest.param("openmpi", marks=pytest.mark.mpi),
    "srun",
    "torchrun",
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", WHAT_RUNS)
def test_every_launcher_runs_the_same_cases_on_the_same_hosts(lab, launcher_of, suite, tmp_path, name):
    path = suite(SUITE, [1, 2, 4])
    out = tmp_path / "out"
    run(lab, launcher_of(name), path, out)
    planned = make_plan(load_suite(path), Cluster(4, 1, "cpu", hosts=tuple(HOSTS))).cases
    ended = outcomes_of(out)
    assert [(outcome.case, outcome.hash, outcome.status) for outcome in ended] == [
        (case.id, case.hash, "ok") for case in planned
    ]
    assert hosts_by_case(out) == {case.id: HOSTS[: case.num_nodes] for case in planned}
    assert sorted({case.num_nodes for case in planned}) == [1, 2, 4]
    parity = [row for row in rows_of(out) if row["metric"].startswith("parity_")]
    assert {row["case"] for row in parity} == {case.id for case in planned if case.benchmark == "train_step"}
    assert all(0 <= float(row["value"]) <= float(row["expected"]) for row in parity)


@pytest.mark.in_turn
@pytest.mark.matrix
@pytest.mark.mpi
@pytest.mark.parametrize("ranks_per_agent", ["2", "all"])
def test_one_agent_may_own_all_ranks_of_its_host(lab, launcher_of, suite, tmp_path, ranks_per_agent):
    out = tmp_path / "out"
    launcher = launcher_of("mpich", ["cb1", "cb2"])
    text = SUITE + EACH_NODE
    run(lab, launcher, suite(text, [2]), out, "--ranks-per-agent", ranks_per_agent, "--num-ranks", "2")
    cluster = RunFolder.open(out).plan().cluster
    assert (cluster.num_nodes, cluster.ranks_per_node) == (2, 2)
    assert [outcome.status for outcome in outcomes_of(out)] == ["ok"] * 4
    assert hosts_by_case(out).keys() == {
        "all_reduce/2n4/1MiB-float32",
        "all_reduce/2n4/4MiB-float32",
        "train_step/2n4/dp4",
        "node_step/2n4/dp2",
    }
    rows = [row for row in rows_of(out) if row["case"] == "node_step/2n4/dp2" and row["value"]]
    assert {row["part"] for row in rows if row["metric"] == "step_time"} == {"cb1", "cb2"}
    proven = json.loads((out / "verdict.json").read_text())["proven"]
    assert (proven["training_cases"], proven["proven"]) == (2, 2)
    apart = {row["source"]: float(row["value"]) for row in rows if row["metric"] == "agreement"}
    assert apart.keys() == {"first_loss", "first_norm", "first_gradients", "loss", "norm", "last_gradients"}
    assert max(apart.values()) < 1e-6  # both computed the same


OTHER_STEP = """
import socket, sys

class HalfTheRate:
    def find_spec(self, name, *_):
        if name == "clusterbench.proof.timed_step":
            sys.meta_path.remove(self)
            from clusterbench.training.step import TrainingStep
            update = TrainingStep.update
            def half(step):
                for optimizer in step.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.5
                update(step)
            TrainingStep.update = half

if socket.gethostname() == "cb2":
    sys.meta_path.insert(0, HalfTheRate())
"""


def test_a_node_that_computes_something_else_is_named(lab, suite, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(OTHER_STEP)
    hosts = HOSTS[:3]
    launcher = launchers.by_hand(hosts)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    command = ["env", f"PYTHONPATH={path}"]
    text = SUITE.split("benchmarks:")[0] + "benchmarks:" + EACH_NODE
    out = tmp_path / "out"
    run(lab, replace(launcher, prefix=[*launcher.prefix, *command]), suite(text, [3]), out, exit_code=1)
    (wrong,) = outcomes_of(out)
    assert (wrong.status, wrong.host) == ("wrong", "cb2")
    assert wrong.reason.startswith("on cb2: ")


@pytest.mark.in_turn
@pytest.mark.mpi
def test_one_agent_per_rank_is_the_default(lab, launcher_of, suite, tmp_path):
    out = tmp_path / "out"
    run(lab, launcher_of("mpich", ["cb1", "cb2"], ranks_per_host=2), suite(SMALL_SUITE, [2]), out)
    assert RunFolder.open(out).plan().cluster.ranks_per_node == 2
    assert [(outcome.case, outcome.status) for outcome in outcomes_of(out)] == [("all_reduce/2n4/1MiB-float32", "ok")]


# Slurm


def batch(lab, tmp_path, script):
    """What a batch script on two hosts, with two tasks, printed; and its exit code."""
    file, output = tmp_path / "batch.sh", tmp_path / "output"
    file.write_text(f"#!/bin/sh\n{script}\n")
    command = [
        "sbatch",
        "--wait",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--nodelist=cb1,cb2",
        f"--output={output}",
        str(file),
    ]
    done = lab.run(LOGIN, command, timeout=500)
    return done.returncode, output.read_text()


@pytest.mark.in_turn
def test_srun_in_a_batch_script_runs_on_all_its_hosts(lab, slurm, suite, tmp_path):
    line = f"srun {sys.executable} -m clusterbench.cli run {suite(SMALL_SUITE, [2])} --out {tmp_path}/out"
    exit_code, said = batch(lab, tmp_path, line)
    assert exit_code == 0, said
    assert hosts_by_case(tmp_path / "out") == {"all_reduce/2n2/1MiB-float32": ["cb1", "cb2"]}
    assert left_running(lab) == []


def test_a_batch_script_without_srun_is_a_plain_run_and_waits_for_nobody(lab, slurm, suite, tmp_path):
    line = f"{sys.executable} -m clusterbench.cli run {suite(SMALL_SUITE, [1])} --out {tmp_path}/out"
    exit_code, said = batch(lab, tmp_path, line)
    assert exit_code == 0, said
    assert hosts_by_case(tmp_path / "out") == {"all_reduce/1n2/1MiB-float32": ["cb1"]}
    assert left_running(lab) == []


@pytest.mark.matrix
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_mpirun_in_an_allocation_is_mpis_run(lab, slurm, launcher_of, suite, tmp_path, name):
    launcher = launcher_of(name, ["cb1", "cb2"])
    allocation = launchers.salloc(lab, ["cb1", "cb2"], 1)
    # mpirun finds the hosts itself. Its daemons are srun's, and so each rank carries SLURM_PROCID of its daemon.
    inside = replace(launcher, prefix=[*allocation.prefix, launcher.prefix[0]])
    run(lab, inside, suite(SMALL_SUITE, [2]), tmp_path / "out")
    assert hosts_by_case(tmp_path / "out") == {"all_reduce/2n2/1MiB-float32": ["cb1", "cb2"]}


# A part of the hosts


@pytest.mark.in_turn
@pytest.mark.mpi
def test_hosts_are_taken_in_the_order_in_which_they_are_named(lab, launcher_of, suite, tmp_path):
    out = tmp_path / "out"
    run(lab, launcher_of("mpich"), suite(SMALL_SUITE, [1, 2]), out, "--hosts", "cb3,cb2", "--interface", "eth0")
    assert hosts_by_case(out) == {
        "all_reduce/1n1/1MiB-float32": ["cb3"],
        "all_reduce/2n2/1MiB-float32": ["cb3", "cb2"],
    }
    hosts = RunFolder.open(out).environment()["hosts"]
    assert {host: hosts[host]["interface"] for host in ("cb2", "cb3")} == {"cb2": "eth0", "cb3": "eth0"}


@pytest.mark.in_turn
def test_the_first_nodes_are_taken(lab, launcher_of, suite, tmp_path):
    run(lab, launcher_of("srun"), suite(SMALL_SUITE, [2]), tmp_path / "out", "--num-nodes", "2")
    assert hosts_by_case(tmp_path / "out") == {"all_reduce/2n2/1MiB-float32": ["cb1", "cb2"]}


@pytest.fixture
def fabric_on_three(lab):
    """An interface that the fourth host does not have."""
    for index, host in enumerate(HOSTS[:3], 1):
        for words in (
            "link add fab0 type veth peer name fab1",
            f"address add 10.88.0.{index}/24 dev fab0",
            "link set fab1 up",
            "link set fab0 up",
        ):
            lab.run(host, ["ip", *words.split()], check=True)
    yield
    for host in HOSTS[:3]:
        lab.run(host, ["ip", "link", "del", "fab0"], check=True)


@pytest.mark.parametrize("name", [pytest.param("mpich", marks=pytest.mark.mpi), "srun"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--hosts", "cb1,cb7"],
            "error: --hosts names cb7, which is not in the allocation. Did you mean 'cb4'?\n"
            "Hosts: cb1, cb2, cb3, cb4.\n",
        ),
        (
            ["--interface", "eth9"],
            "error: --interface eth9: there is none of this name with an address on cb1 (eth0 10.77.0.1, fab0 "
            "10.88.0.1, lo 127.0.0.1), cb2 (eth0 10.77.0.2, fab0 10.88.0.2, lo 127.0.0.1), cb3 (eth0 10.77.0.3, fab0 "
            "10.88.0.3, lo 127.0.0.1), cb4 (eth0 10.77.0.4, lo 127.0.0.1).\n"
            "hint: 'ip -brief address' on a host lists its own\n",
        ),
        (
            ["--interface", "fab0"],
            "error: --interface fab0: there is none of this name with an address on cb4 (eth0 10.77.0.4, lo "
            "127.0.0.1).\nhint: 'ip -brief address' on a host lists its own\n",
        ),
    ],
    ids=["unknown host", "unknown interface", "interface of three"],
)
def test_a_mistake_ends_every_rank_within_seconds(
    lab, launcher_of, suite, tmp_path, fabric_on_three, name, options, message
):
    launcher = launcher_of(name)
    path, out = suite(SMALL_SUITE, [2]), tmp_path / "out"
    inner = " ".join([launcher.python, "-m", "clusterbench.cli", "run", str(path), "--out", str(out), *options])
    began = time.monotonic()
    command = [*launcher.prefix, "sh", "-c", f'{inner}; code=$?; echo "ended with $code"; exit $code']
    # MPICH would wait for its own messages on fab0, which leads nowhere.
    environment = {**launcher.environment, "UCX_NET_DEVICES": "eth0"}
    done = lab.run(LOGIN, command, env=environment, timeout=200)
    assert time.monotonic() - began < 55  # and not when the head has waited a minute for all to come
    assert done.returncode == 2
    lines = [line for line in done.stdout.splitlines() if "UCX" not in line]  # its warnings go to stdout
    assert lines == ["ended with 2"] * 4
    assert message in done.stderr
    assert done.stderr.count("error: --") == 1
    assert not out.exists()
    assert left_running(lab) == []


@pytest.fixture
def interface_that_leads_nowhere(lab):
    """The first in the list, up, with a network of its own on both hosts."""
    for index, host in enumerate(HOSTS[:2], 1):
        for words in (
            "link add aaa0 type veth peer name aaa1",
            f"address add 10.99.0.{index}/24 dev aaa0",
            "link set aaa1 up",
            "link set aaa0 up",
        ):
            lab.run(host, ["ip", *words.split()], check=True)
    yield
    for host in HOSTS[:2]:
        lab.run(host, ["ip", "link", "del", "aaa0"], check=True)


@pytest.mark.in_turn
def test_an_interface_that_leads_nowhere_is_passed_over_once(lab, suite, tmp_path, interface_that_leads_nowhere):
    launcher, out = launchers.torchrun(lab, HOSTS[:2], 1), tmp_path / "out"
    said = run(lab, launcher, suite(SUITE, [1, 2]), out)
    assert re.search(r"^warning: cb2 does not reach 10\.99\.0\.1 of cb1 \(aaa0\) within 20 s: ", said, re.MULTILINE)
    assert "warning: ranks talk over eth0, 10.77.0.1 of cb1, which all hosts reach\n" in said
    assert {each.status for each in RunFolder.open(out).outcomes()} == {"ok"}
    hosts = RunFolder.open(out).environment()["hosts"]
    assert [hosts[host]["interface"] for host in HOSTS[:2]] == ["eth0", "eth0"]


@pytest.mark.in_turn
def test_an_interface_that_was_asked_for_and_leads_nowhere_ends_the_run_before_it_begins(
    lab, suite, tmp_path, interface_that_leads_nowhere
):
    launcher, out = launchers.torchrun(lab, HOSTS[:2], 1), tmp_path / "out"
    said = run(lab, launcher, suite(SUITE, [1, 2]), out, "--interface", "aaa0", exit_code=1)  # torchrun's own
    assert re.search(
        r"^error: --interface aaa0: cb2 does not reach 10\.99\.0\.1 of cb1 over it within 20 s: .*\.\nhint: 'ping ",
        said,
        re.MULTILINE,
    )
    assert not out.exists()


# What hosts are like


@pytest.mark.in_turn
def test_unlike_hosts_are_told_before_anything_is_timed(lab, launcher_of, suite, tmp_path):
    out = tmp_path / "out"
    lab.skew("cb2", 180)
    lab.run("cb3", ["ip", "link", "set", "eth0", "mtu", "1400"], check=True)
    try:
        said = run(lab, launcher_of("srun"), suite(SMALL_SUITE, [4]), out, "--fail-on", "suspect", exit_code=1)
    finally:
        lab.skew("cb2", 0)
        lab.run("cb3", ["ip", "link", "set", "eth0", "mtu", "1500"], check=True)
    clock = re.search(r"the clock of cb2 is (1[78]\d\.\d) s ahead of that of cb1", said)
    mtu = said.index("the MTU of the interface that carries the run is 1400 B on cb3 and 1500 B on the other 3 hosts")
    assert clock
    assert float(clock[1]) == pytest.approx(180, abs=9)
    assert max(clock.start(), mtu) < said.index("[1/1]")
    assert re.search(
        r"^machine   SUSPECT     Unfit host: host cb2: the clock is 1[78]\d\.\d s ahead of that of most hosts; "
        r"Unlike hosts: host cb3: the MTU",
        said,
        re.MULTILINE,
    )
    page = (out / "index.html").read_text()
    assert clock[0] in page
    assert "1400 B on cb3" in page


@pytest.mark.in_turn
def test_no_time_is_negative_where_clocks_disagree(lab, launcher_of, suite, tmp_path):
    lab.skew("cb2", -7200)
    try:
        run(lab, launcher_of("srun", ["cb1", "cb2"]), suite(SUITE, [2]), tmp_path / "out")
    finally:
        lab.skew("cb2", 0)
    directory = RunFolder.open(tmp_path / "out")
    offset_s = directory.environment()["hosts"]["cb2"]["clock_offset_s"]
    assert offset_s == pytest.approx(-7200, abs=5)
    for seen in directory.observations():
        assert all(0 < second < 600 for seconds in seen.seconds for second in seconds)
    assert all(0 < outcome.elapsed_s < 600 for outcome in directory.outcomes())
    times_s = [row["value"] for row in rows_of(tmp_path / "out") if row["unit"] == "s" and row["value"]]
    assert times_s
    negative = [time_s for time_s in times_s if float(time_s) < 0]
    assert negative == []


# Unauthenticated connections

INTRUDER = """
import hmac, json, socket, sys, time
from clusterbench.errors import LaunchError
from clusterbench.launch.control import TcpMember

def dial():
    while True:
        try:
            return socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
        except ConnectionRefusedError:
            time.sleep(0.02)

def is_closed(said):
    with dial() as one:
        one.recv(4096)
        one.sendall(said)
        try:
            return one.recv(4096) == b""
        except ConnectionResetError:
            return True

proof = hmac.new(b"a guess", b"member:00:00:1", "sha256").hexdigest()
wrong = json.dumps({"rank": 1, "nonce": "00", "proof": proof}).encode() + b"\\n"
garbage = [b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\xff" * 5000, b"{}\\n", b"[[[[\\n", wrong, wrong]
print([is_closed(line) for line in garbage])
try:
    TcpMember((sys.argv[1], int(sys.argv[2])), 2, 1, b"a guess")
except LaunchError as error:
    print(str(error).split(":")[0])
silent = [socket.socket() for _ in range(200)]
for one in silent:
    one.setblocking(False)
    one.connect_ex((sys.argv[1], int(sys.argv[2])))
print("silent", flush=True)
time.sleep(300)
"""


def test_unauthenticated_connections_change_nothing(lab, suite, tmp_path):
    job = {"MASTER_ADDR": "cb1", "MASTER_PORT": "29411", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    path, out = suite(SMALL_SUITE, [2]), tmp_path / "out"
    command = [sys.executable, "-m", "clusterbench.cli", "run", str(path), "--out", str(out)]

    def start(rank):
        environment = {**launchers.Launcher([]).environment, **job, "RANK": str(rank)}
        return lab.start(f"cb{rank + 1}", command, env=environment, stderr=subprocess.PIPE, text=True)

    head = start(0)
    port = ports_of(detect({**job, "RANK": "0"}).launcher.job_of(job))[0]
    knock = [sys.executable, "-c", INTRUDER, "cb1", str(port)]
    intruder = lab.start("cb4", knock, stdout=subprocess.PIPE, text=True)
    assert json.loads(intruder.stdout.readline().lower()) == [True] * 6
    assert intruder.stdout.readline() == "agent 1 found no head of this run at cb1\n"
    assert intruder.stdout.readline() == "silent\n"
    member = start(1)
    said = [process.communicate(timeout=200)[1] for process in (head, member)]
    assert (head.returncode, member.returncode) == (0, 0), said
    assert hosts_by_case(out) == {"all_reduce/2n2/1MiB-float32": ["cb1", "cb2"]}
    intruder.kill()
    intruder.communicate()
    assert left_running(lab) == []
