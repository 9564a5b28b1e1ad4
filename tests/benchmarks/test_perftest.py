"""A server and a client on two ranks, by the whole path from a suite to rows, with an ``ib_write_bw`` of our own."""

import os

import pytest

from clusterbench.benchmarks.perftest import Perftest
from clusterbench.cluster import Cluster
from clusterbench.engine.tool import run_tool
from clusterbench.errors import SuiteError, ToolError
from clusterbench.host_facts import cpus
from clusterbench.types import Place
from tests.benchmarks.fake_programs import processes_of, program, run_suite
from tests.tools import printed

NODES = Place(Cluster(3, 8, "cuda"), 3)

FAKE = """
words = sys.argv[1:]
option = lambda name: words[words.index(name) + 1]
mode = option("-d")
is_client = words[-1].startswith("127.")

def table(size, rate="0.375000", average=None):
    average = average or f"{int(size) * 375000 / 2**20:.2f}"
    print(" #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]")
    print(f" {size}      {option('-n')}             {average}            {average}             {rate}")

if not is_client:
    if mode == "no_nic":
        sys.exit("IB device no_nic not found\\n Unable to find the Infiniband/RoCE device")
    server = socket.create_server(("127.0.0.1", int(option("-p"))))
    print("Waiting for client to connect...", flush=True)
    connection, _ = server.accept()
    if mode == "server_knows":
        print("Couldn't allocate MR", flush=True)
        connection.close()
        sys.exit(1)
    connection.recv(1)
    time.sleep(600 if mode in ("hangs", "dies") else 0)
    sys.exit(0)

connection = socket.create_connection((words[-1], int(option("-p"))))
if mode == "hangs":
    print("begun", flush=True)
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[0]])
if mode == "dies":
    os.kill(os.getpid(), 9)
if mode == "server_knows":
    connection.recv(1)
    sys.exit("Unable to read to socket/rdma_cm")
connection.send(b"x")
if mode == "good":
    table(option("-s"))
elif mode == "zero":
    table(option("-s"), average="0.00")
elif mode == "gigabits":
    table(option("-s"), average="1.97")
elif mode == "many":
    table(option("-s")); table("128")
elif mode == "other":
    table("128")
elif mode == "error":
    print("Failed to modify QP 37 to RTR")
elif mode == "cut":
    print(" #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\\n 65536  1000  234")
"""


def case(mode):
    return f"perftest/1n2/ib_write_bw-64KiB-0to1-{mode}"


@pytest.mark.in_turn
@pytest.mark.gloo
def test_every_way_to_fail_is_told_and_the_good_one_is_measured(tmp_path):
    program(tmp_path / "bin", "ib_write_bw", FAKE)
    modes = "good, zero, gigabits, many, other, error, cut, no_nic, dies, server_knows, hangs"
    entry = f"""
  - benchmark: perftest
    device: [{modes}]
    min_size: 64KiB
    max_size: 64KiB
    tool_time_limit_s: 6
"""
    done, outcomes, rows = run_suite(tmp_path, entry)
    assert done.returncode == 1
    assert processes_of(tmp_path) == []
    reasons = {mode: outcomes[case(mode)].reason for mode in modes.split(", ")}
    assert {mode for mode in reasons if outcomes[case(mode)].status == "ok"} == {"good"}
    assert {mode for mode in reasons if outcomes[case(mode)].status == "skipped"} == {"no_nic"}
    assert rows[case("good"), "bandwidth", ""] == pytest.approx(65536 * 375000, rel=1e-4)
    assert rows[case("good"), "message_rate", ""] == 375000

    assert "perftest printed '0.00' where a number above zero belongs" in reasons["zero"]
    assert "but 3.75e+05 messages of 65536 bytes a second are 2.458e+10 B/s" in reasons["gigabits"]
    assert "ib_write_bw was asked for 65536 bytes and printed rows of 65536, 128" in reasons["many"]
    assert "ib_write_bw was asked for 65536 bytes and printed rows of 128" in reasons["other"]
    assert "perftest printed no table that can be read: 'Failed to modify QP 37 to RTR'" in reasons["error"]
    assert "perftest printed a row that does not fit its header: '65536  1000  234'" in reasons["cut"]
    assert "no such RDMA device on " in reasons["no_nic"]
    assert "was ended by signal 9 (Killed). It printed nothing." in reasons["dies"]
    assert "ended with exit code 1. It printed at the end:\n    Unable to read to socket" in reasons["server_knows"]
    assert "the server, on 127.0.0.1, printed last: Couldn't allocate MR" in reasons["server_knows"]
    assert "has not ended after 6 s. It printed at the end:\n    begun\n" in reasons["hangs"]


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_case_that_is_stopped_before_its_program_leaves_nothing_running(tmp_path):
    program(tmp_path / "bin", "ib_write_bw", FAKE)
    entry = "  - {benchmark: perftest, device: hangs, min_size: 64KiB, max_size: 64KiB, time_limit_s: 3}"
    done, outcomes, _ = run_suite(tmp_path, entry)
    assert (done.returncode, outcomes[case("hangs")].status) == (1, "timeout")
    assert processes_of(tmp_path) == []


@pytest.mark.gloo
def test_a_missing_program_is_a_skipped_row_that_says_how_to_install_it(tmp_path):
    (tmp_path / "bin").mkdir()
    entry = "  - {benchmark: perftest, test: ib_read_lat, min_size: 8, max_size: 8}"
    done, outcomes, _ = run_suite(tmp_path, entry, only_fakes=True)
    (outcome,) = outcomes.values()
    assert (done.returncode, outcome.status) == (0, "skipped")
    assert "ib_read_lat is not on PATH on " in outcome.reason
    assert "\nhint: Debian: apt install perftest; for GPU memory see docs/rdma.md" in outcome.reason


def points(**options):
    benchmark = Perftest.from_options({"min_size": 8, "max_size": 8, **options})
    return benchmark, list(benchmark.points(NODES))


def test_pairs_are_of_the_first_ranks_of_nodes():
    def pairs(which):
        return [(point["server"], point["client"]) for point in points(pairs=which)[1]]

    assert pairs("neighbours") == [(0, 8), (8, 16)]
    assert pairs("all") == [(0, 8), (0, 16), (8, 16)]
    assert pairs("itself") == [(0, 0), (8, 8), (16, 16)]
    assert pairs("first") == [(0, 8)]


def test_a_label_says_what_is_not_ordinary():
    benchmark, (point, *_) = points(
        device="mlx5_0", gid_index=3, qps=4, bidirectional=True, memory="cuda_dmabuf", gpu_index=2
    )
    assert benchmark.label(point) == "ib_write_bw-8B-0to8-mlx5_0-gid3-4qps-bidirectional-cuda_dmabuf2"
    assert benchmark.objection(point, NODES) is None


def test_latency_has_one_queue_pair_and_gpu_memory_needs_gpus():
    benchmark, (point, *_) = points(test="ib_write_lat", qps=2)
    assert benchmark.objection(point, NODES) == (
        "ib_write_lat measures one message at a time: it has one queue pair and one direction"
    )
    benchmark, (point, *_) = points(memory="cuda")
    assert benchmark.objection(point, Place(Cluster(1, 2, "cpu"), 1)) == (
        "memory cuda is a GPU's, and there are none here"
    )


def test_the_program_is_the_one_of_the_point_and_both_sides_get_the_same_words(monkeypatch):
    arguments = []
    monkeypatch.setattr(Perftest, "between", classmethod(lambda cls, rig, point, *words: arguments.extend(words)))
    _, (point, *_) = points(device="mlx5_1", gid_index=3, qps=4, memory="cuda_dmabuf", gpu_index=2, bidirectional=True)
    Perftest.prepare(None, point)
    server, client = (" ".join(words) for words in arguments)
    assert Perftest.program_of(point) == "ib_write_bw"
    assert server == "-F -p {port} -s 8 -n 1000 -d mlx5_1 -x 3 -q 4 -b --use_cuda=2 --use_cuda_dmabuf"
    assert client == f"{server} {{host}}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, to be kept on one")
def test_the_program_runs_beside_the_nic_that_is_named(monkeypatch, tmp_path):
    last = max(os.sched_getaffinity(0))
    (nic := tmp_path / "mlx5_1" / "device").mkdir(parents=True)
    (nic / "local_cpulist").write_text(f"{last}\n")
    (program := tmp_path / "ib_write_bw").write_text("#!/bin/sh\ngrep Cpus_allowed_list /proc/self/status\n")
    program.chmod(0o700)
    monkeypatch.setattr("clusterbench.benchmarks.perftest.NICS", tmp_path)
    monkeypatch.setattr("clusterbench.engine.near_cpus.FEWEST", 1)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for device, allowed in (("mlx5_1", {last}), ("mlx5_2", os.sched_getaffinity(0)), ("", os.sched_getaffinity(0))):
        _, (point, *_) = points(device=device)
        words = Perftest.program_words(point)
        assert words[-1] == str(program)
        assert cpus(run_tool(words, 10.0).text.split()[-1]) == allowed


def test_percentiles_need_messages_enough():
    _, (point, *_) = points(test="ib_write_lat")
    assert set(Perftest.parse(printed.PERFTEST_LATENCY, point)) == {
        "latency",
        "latency_min",
        "latency_max",
        "latency_p99",
        "latency_p999",
    }
    few = printed.PERFTEST_LATENCY.replace("1000  ", "99    ")
    assert set(Perftest.parse(few, point)) == {"latency", "latency_min", "latency_max"}


def test_a_table_of_another_kind_is_refused():
    _, (point, *_) = points()
    with pytest.raises(ToolError) as caught:
        Perftest.parse(printed.PERFTEST_LATENCY, point)
    assert str(caught.value) == "ib_write_bw printed the table of a test of latency"


def test_a_run_may_take_as_long_as_its_program_and_sizes_must_grow():
    assert Perftest.from_options({"iterations": 3, "tool_time_limit_s": 20.0}).time_limit_s == 60 + 3 * 30
    assert Perftest.from_options({"time_limit_s": 5.0}).time_limit_s == 5
    with pytest.raises(SuiteError) as caught:
        Perftest.from_options({"min_size": 64, "max_size": 8})
    assert str(caught.value) == "max_size is 8B, below min_size, 64B: there is nothing to measure"


@pytest.mark.parametrize(
    ("messages", "tails"),
    [
        (99, {}),
        (100, {"latency_p99": 2.1e-6}),
        (999, {"latency_p99": 2.1e-6}),
        (1000, {"latency_p99": 2.1e-6, "latency_p999": 4.9e-6}),
    ],
)
def test_a_tail_is_of_messages_enough_to_have_one(messages, tails):
    text = printed.PERFTEST_LATENCY.replace(" 1000  ", f" {messages}  ")
    figures = Perftest.parse(text, {"test": "ib_write_lat", "size_bytes": 8, "messages": messages})
    assert figures == pytest.approx({"latency": 1.75e-6, "latency_min": 1.71e-6, "latency_max": 5.2e-6, **tails})
