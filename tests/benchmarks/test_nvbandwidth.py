"""A program on one rank, by the whole path from a suite to rows, with an ``nvbandwidth`` of our own."""

import pytest

from clusterbench.benchmarks.nvbandwidth import Nvbandwidth
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, ToolError
from clusterbench.types import Place
from tests.benchmarks.fake_programs import processes_of, program, run_suite
from tests.tools import printed

NODES = Place(Cluster(2, 8, "cuda"), 2)
GOOD, HANGS, LIES, ERRS, WAIVED, NO_GPU, NEGATIVE, CUT, OTHER_TEST = range(1, 10)

FAKE = f"""
words = sys.argv[1:]
if words[1] == "multinode_bisect_write_ce":
    print('''{printed.NVBANDWIDTH_BISECT}''' if "STARTED" in os.environ else "worldSize is 1")
    sys.exit()
mode = words[words.index("-i") + 1]
text = '''{printed.NVBANDWIDTH}'''
if mode == "{HANGS}":
    print("nvbandwidth Version: v0.8", flush=True)
    time.sleep(600)
print(dict([
    ("{GOOD}", text),
    ("{LIES}", text.replace("551.57", "9551.57")),
    ("{ERRS}", "[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was encountered"),
    ("{WAIVED}", "Running device_to_device_memcpy_write_ce.\\nWaived:"),
    ("{NO_GPU}", "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"),
    ("{NEGATIVE}", text.replace("276.07", "-276.07")),
    ("{CUT}", text[: text.index("275.50")]),
    ("{OTHER_TEST}", text.replace("write_ce", "read_ce")),
])[mode])
print("a warning on the other stream", file=sys.stderr)
sys.exit(mode == "{NO_GPU}")
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_every_way_to_fail_is_told_and_the_good_one_is_measured(tmp_path):
    program(tmp_path / "bin", "nvbandwidth", FAKE)
    # A buffer size of its own for each mode, so that each case has a name of its own.
    entries = "\n".join(
        f"  - {{benchmark: nvbandwidth, samples: {mode}, buffer_size: {mode}MiB, tool_time_limit_s: 6}}"
        for mode in range(1, 10)
    )
    program(tmp_path / "bin", "launch", 'os.environ["STARTED"] = "1"\nos.execvp(sys.argv[3], sys.argv[3:])')
    entries += "\n  - {benchmark: nvbandwidth, test: multinode_bisect_write_ce, launcher: launch -n 4}"
    done, outcomes, rows = run_suite(tmp_path, entries, only_fakes=True)
    assert done.returncode == 1
    assert processes_of(tmp_path) == []
    cases = {mode: f"nvbandwidth/1n2/device_to_device_memcpy_write_ce-{mode}MiB-on0" for mode in range(1, 10)}
    status = {mode: outcomes[cases[mode]].status for mode in cases}
    reasons = {mode: outcomes[cases[mode]].reason for mode in cases}
    assert {mode for mode in status if status[mode] == "ok"} == {GOOD}
    assert {mode for mode in status if status[mode] == "skipped"} == {WAIVED, NO_GPU}

    assert rows[cases[GOOD], "bandwidth", ""] == pytest.approx((276.07e9 + 275.5e9) / 2)
    assert rows[cases[GOOD], "lowest_bandwidth", ""] == 275.5e9
    assert rows[cases[GOOD], "pair_bandwidth", "0to1"] == 276.07e9
    launched = "nvbandwidth/1n2/multinode_bisect_write_ce-512MiB-launched"
    assert rows[launched, "lowest_bandwidth", ""] == rows[launched, "pair_bandwidth", "3to1"] == 779.98e9
    assert "has not ended after 6 s. It printed at the end:\n    nvbandwidth Version: v0.8\n" in reasons[HANGS]
    assert "nvbandwidth printed a sum that is not that of its cells, 551.57" in reasons[LIES]
    assert "nvbandwidth printed no matrix that can be read: '[CUDA_ERROR_ILLEGAL_ADDRESS]" in reasons[ERRS]
    assert "nvbandwidth waived device_to_device_memcpy_write_ce" in reasons[WAIVED]
    assert "there is no GPU on " in reasons[NO_GPU]
    assert "nvbandwidth printed '-276.07' where a number belongs" in reasons[NEGATIVE]
    assert "nvbandwidth printed a row that does not fit its header: '1'" in reasons[CUT]
    assert (
        "was asked for device_to_device_memcpy_write_ce and printed device_to_device_memcpy_read_ce"
        in reasons[OTHER_TEST]
    )


def point(**options):
    return next(iter(Nvbandwidth.from_options(options).points(NODES)))


def test_each_node_is_a_case_of_its_own():
    assert [point["runner"] for point in Nvbandwidth().points(NODES)] == [0, 8]
    assert [point["runner"] for point in Nvbandwidth(nodes="first").points(NODES)] == [0]


def test_the_size_is_given_in_whole_mebibytes(monkeypatch):
    arguments = []
    monkeypatch.setattr(Nvbandwidth, "alone", classmethod(lambda cls, rig, point, words: arguments.extend(words)))
    Nvbandwidth.prepare(None, point(buffer_size=2**26, samples=5))
    assert arguments == ["-t", "device_to_device_memcpy_write_ce", "-b", "64", "-i", "5"]
    odd = Nvbandwidth(buffer_size=2**20 + 1)
    assert odd.objection(point(buffer_size=2**20 + 1), NODES) == "nvbandwidth takes whole MiB, and 1048577 B are none"


def test_one_way_is_held_against_the_data_sheet():
    place = Place(Cluster(1, 8, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 1)

    def expected(test):
        benchmark = Nvbandwidth(test=test)
        return benchmark.predict(next(iter(benchmark.points(place))), place)

    card = place.cluster.accelerator
    assert expected("device_to_device_memcpy_write_ce")["bandwidth"].value == card.link_bytes_per_s == 450e9
    assert expected("host_to_device_memcpy_ce")["lowest_bandwidth"].value == card.pcie_bytes_per_s == 63e9
    assert expected("host_device_latency_sm") == {}
    assert Nvbandwidth().predict(point(), NODES) == {}


def test_of_several_nodes_a_launcher_starts_a_process_for_each_gpu():
    rack = Place(Cluster(18, 4, "cuda", gpu_name="NVIDIA GB200"), 18)
    halves = Nvbandwidth(test="multinode_bisect_write_ce", launcher="mpirun -n 72")
    (only,) = halves.points(rack)
    assert (only["runner"], only["launcher"], halves.objection(only, rack)) == (0, "mpirun -n 72", None)
    assert halves.predict(only, rack)["lowest_bandwidth"].value == rack.cluster.accelerator.link_bytes_per_s == 900e9
    without = Nvbandwidth(test="multinode_bisect_write_ce")
    assert without.objection(next(iter(without.points(rack))), rack) == (
        "multinode_bisect_write_ce takes a process for each GPU: 'launcher' says what starts them, as "
        "mpirun -n 8 -host a:4,b:4"
    )
    alone = Nvbandwidth(launcher="mpirun -n 72")
    assert alone.objection(next(iter(alone.points(rack))), rack).startswith(
        "of several processes the first alone would"
    )


def test_of_several_nodes_both_ways_and_multicast_are_told():
    test = "multinode_device_to_device_bidirectional_memcpy_write_ce"
    asked = point(test=test, launcher="mpirun -n 2")
    figures = Nvbandwidth.parse(printed.NVBANDWIDTH_MULTINODE_BOTH_WAYS, asked)
    assert (figures["bandwidth_both"], figures["lowest_bandwidth"]) == (pytest.approx(1495.6e9), 740e9)
    asked = point(test="multinode_device_to_device_broadcast_one_to_all_sm", launcher="mpirun -n 2")
    assert Nvbandwidth.parse(printed.NVBANDWIDTH_ONE_TO_ALL, asked)["bandwidth"] == pytest.approx(350.65e9)
    asked = point(test="multinode_device_to_device_broadcast_all_to_all_sm", launcher="mpirun -n 2")
    assert Nvbandwidth.parse(printed.NVBANDWIDTH_ALL_TO_ALL, asked) == {
        "bandwidth": 402.5e9,
        "lowest_bandwidth": 402.5e9,
    }


OF_THREE = """\
Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2
 0       N/A    276.07    276.00
 1    275.50       N/A    100.00
 2    276.10    276.20       N/A

SUM device_to_device_memcpy_write_ce 1479.87

"""


def test_of_many_pairs_the_median_and_the_slowest_are_told_and_each_by_row_and_column():
    figures = Nvbandwidth.parse(OF_THREE, point())
    assert (figures["bandwidth"], figures["lowest_bandwidth"]) == (pytest.approx(276.035e9), 100e9)
    assert (figures["pair_bandwidth[part=1to2]"], figures["pair_bandwidth[part=2to1]"]) == (100e9, 276.2e9)


def test_latencies_have_metrics_of_their_own():
    figures = Nvbandwidth.parse(printed.NVBANDWIDTH_LATENCY, point(test="host_device_latency_sm"))
    assert figures == pytest.approx(
        {
            "latency": 776.375e-9,
            "highest_latency": 780.25e-9,
            "pair_latency[part=0to0]": 772.5e-9,
            "pair_latency[part=0to1]": 780.25e-9,
        }
    )


def test_both_ways_between_gpus_are_each_way_and_their_sum():
    asked = point(test="device_to_device_bidirectional_memcpy_write_ce")
    figures = Nvbandwidth.parse(printed.NVBANDWIDTH_BOTH_WAYS, asked)
    assert figures == pytest.approx(
        {
            "bandwidth": 250e9,
            "lowest_bandwidth": 240e9,
            "bandwidth_both": 495.6e9,
            "pair_bandwidth[part=0to1]": 250.1e9,
            "pair_bandwidth[part=1to0]": 251.2e9,
            "pair_bandwidth_both[part=0to1]": 500e9,
            "pair_bandwidth_both[part=1to0]": 491.2e9,
        }
    )
    wrong = printed.NVBANDWIDTH_BOTH_WAYS.replace("491.20", "591.20").replace("991.20", "1091.20")
    with pytest.raises(ToolError, match=r"a total of \w+ that is not that of its directions: \(1, 0\)"):
        Nvbandwidth.parse(wrong, asked)
    one_way = printed.NVBANDWIDTH.replace("write_ce", "bidirectional_memcpy_write_ce").replace("memcpy_bi", "bi")
    assert Nvbandwidth.parse(one_way, asked)["bandwidth"] == pytest.approx(275.785e9)  # up to nvbandwidth 0.5


def test_one_gpu_has_no_peer():
    text = (
        "Running device_to_device_memcpy_write_ce.\n"
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n           0\n 0       N/A\n\n"
    )
    with pytest.raises(NotHere, match="one GPU has no peer"):
        Nvbandwidth.parse(text, point())


def test_more_than_was_asked_for_is_refused():
    with pytest.raises(ToolError, match="was asked for device_to_device_memcpy_write_ce and printed device_to_device"):
        Nvbandwidth.parse(printed.NVBANDWIDTH + printed.NVBANDWIDTH_LATENCY, point())
