from __future__ import annotations

import json

import pytest


def matrix(test, rows, title="memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"):
    header = "".join(f"{column:10}" for column in range(len(rows[0])))
    lines = [f"{index:2}" + "".join(f"{cell:>10}" for cell in row) for index, row in enumerate(rows)]
    return "\n".join([f"Running {test}.", title, header, *lines]) + "\n\n"


def pairs(number=4, rate="276.07", **cells):
    rows = [["N/A" if row == column else rate for column in range(number)] for row in range(number)]
    for cell, value in cells.items():
        rows[int(cell[1])][int(cell[2])] = value
    return matrix("device_to_device_memcpy_write_ce", rows)


SLOW = pairs(_13="41.20")
HOST = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"


def test_pairs_that_are_alike_are_in_order(examined):
    examination, kind = examined(pairs())
    assert (kind, examination.word) == ("nvbandwidth", "HEALTHY")


def test_a_prompt_right_behind_the_matrix_is_no_row_of_it(examined):
    assert examined(f"{pairs().rstrip()}\n[root@cb01 ~]# exit\n")[0].word == "HEALTHY"
    assert examined(f"{SLOW.rstrip()}\n[root@cb01 ~]# exit\n")[0].word == "SUSPECT"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (SLOW, "GPU 1 and GPU 3", "41.2 GB/s, the median pair 276.1 GB/s"),
        (pairs(_13="N/A"), "GPU 1 and GPU 3", "N/A, the median pair 276.1 GB/s"),
        (pairs(_01="9.5", _10="9.5", _12="9.1", _21="9.5", _13="9.5", _31="9.5"), "GPU 1 and all others", "9.1 GB/s"),
    ],
)
def test_a_pair_that_is_far_slower_than_its_peers_is_found(examined, text, where, what):
    (found,) = examined(text)[0].found
    assert found.where == where
    assert what in found.what


def test_of_several_hosts_a_pair_is_named_by_its_processes_hosts(examined):
    hosts = "".join(
        f"Process {process} (tray-{'ab'[process // 2]}): device {process % 2}: NVIDIA GB200 (00000008:01:00)\n"
        for process in range(4)
    )
    (found,) = examined(hosts + "\n" + SLOW.replace("device_to_device", "multinode_device_to_device"))[0].found
    assert found.where == "GPU 1 of tray-a and GPU 1 of tray-b"


def test_data_that_a_copy_changed_is_found(examined):
    """NVIDIA/nvbandwidth, issue 34."""
    said = (
        "nvbandwidth Version: v0.7\n\nRunning device_to_device_memcpy_read_ce.\n"
        " Invalid value when checking the pattern at 0x70a640000000\n Current offset : 11136 \n"
        "ASSERT in expression h_errorFlag == 0 in void memcmpPatternHelper() : memcpy.cpp:165\n"
    )
    examination, kind = examined(said)
    (found,) = examination.found
    assert (kind, found.name, found.severity) == ("nvbandwidth", "wrong_result", "error")
    assert found.evidence == "said.txt:4: Invalid value when checking the pattern at 0x70a640000000"


@pytest.mark.parametrize("sum_of", ["", "SUM device_to_device_memcpy_write_ce 3100.00\n"])
def test_a_matrix_whose_test_is_not_named_is_judged_all_the_same(examined, sum_of):
    """NVIDIA/nvbandwidth, issue 50: only the matrix was copied, and its sum."""
    lines = SLOW.replace("41.20", "63.16").partition("\n")[2]
    (found,) = examined(f"nvbandwidth Version: v0.8\n\n...\n\n{lines}{sum_of}")[0].found
    assert found.where == "GPU 1 and GPU 3"


def test_a_gpu_that_copies_half_of_its_peers_from_the_host_is_found(examined):
    examination, _ = examined(matrix("host_to_device_memcpy_ce", [["55.2", "55.3", "27.4", "55.2"]], HOST))
    (found,) = examination.found
    assert (found.name, found.where) == ("weak_copy", "GPU 2")
    assert found.what == "host_to_device_memcpy_ce: 27.4 GB/s, the median GPU 55.2 GB/s"


def test_cells_that_differ_are_not_called_alike_and_those_of_other_matrices_are(examined):
    rows = [["55.20", "55.20", "41.00", "55.20"]]
    examination, _ = examined(matrix("host_to_device_memcpy_ce", rows, HOST) + pairs())
    assert (examination.word, [part.why for part in examination.not_judged]) == (
        "NOT JUDGED",
        ["GPU 2 reaches 74 % of the median GPU: another socket and a slower link look the same"],
    )
    assert [healthy.what for healthy in examination.healthy] == ["12 cells of 1 matrix alike for every GPU"]


def test_gpus_that_copy_all_at_once_share_the_host_and_are_not_held_against_each_other(examined):
    cells = [["30.13", "41.15", "20.38", "38.47", "35.57", "31.79", "23.19", "32.49"]]
    title = "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)"
    assert examined(matrix("all_to_host_bidirectional_memcpy_sm", cells, title))[0].found == ()


def test_several_matrices_of_one_test_and_the_report_as_json_are_read(examined):
    titles = [f"memcpy CE GPU(row) <-> GPU(column) {word} bandwidth (GB/s)" for word in ("Read1", "Read2")]
    tables = [pairs().replace("memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)", title) for title in titles]
    both = tables[0] + tables[1].partition("\n")[2].replace("276.07", "41.20", 1)
    assert examined(tables[0] + tables[1].partition("\n")[2])[0].word == "HEALTHY"
    assert [found.where for found in examined(both)[0].found] == ["GPU 0 and GPU 1"]
    rows = [["N/A" if a == b else "41.2" if (a, b) == (1, 2) else "276.3" for b in range(3)] for a in range(3)]
    case = {"name": "device_to_device_memcpy_write_ce", "status": "Passed", "bandwidth_matrix": rows}
    case["bandwidth_description"] = "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"
    (found,) = examined(json.dumps({"nvbandwidth": {"testcases": [case]}}))[0].found
    assert found.where == "GPU 1 and GPU 2"


def test_a_latency_is_better_where_it_is_less(examined):
    title = "memory latency SM CPU(row) <-> GPU(column) (ns)"
    assert examined(matrix("host_device_latency_sm", [["700.0", "772.0", "400.0"]], title))[0].word == "HEALTHY"
    (found,) = examined(matrix("host_device_latency_sm", [["700.0", "772.0", "1800.0"]], title))[0].found
    assert found.what == "host_device_latency_sm: 1800 ns, the median GPU 772 ns"


def test_pairs_that_all_refuse_access_are_no_fault_of_one(examined):
    text = pairs(number=2, rate="N/A") + matrix("host_to_device_memcpy_ce", [["25.1", "25.0"]], HOST)
    assert examined(text)[0].found == ()


def test_a_program_that_failed_is_found(examined):
    said = "nvbandwidth Version: v0.6\n[CUDA_ERROR_NO_DEVICE] no CUDA-capable device is detected in cuInit(0)\n"
    assert [found.name for found in examined(said)[0].found] == ["nvbandwidth"]


def test_a_matrix_that_is_cut_is_not_judged(examined):
    examination, _ = examined(SLOW[:150])
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


def test_a_slow_pair_in_a_real_text_is_found(examined, sample):
    text = sample("nvbandwidth_readme_d2d_write.txt")
    assert examined(text)[0].word == "HEALTHY"
    (found,) = examined(text.replace("276.67", " 76.67"))[0].found
    assert found.where == "GPU 6 and GPU 3"
    assert found.evidence.startswith("said.txt:10: 6    274.89    276.41    276.38     76.67")


def test_a_real_text_whose_matrix_has_more_gpus_than_its_list_is_not_judged(examined, sample):
    examination, _ = examined(sample("nvbandwidth_superbench.txt"))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


@pytest.mark.parametrize("text", [SLOW + pairs(), pairs() + SLOW])
def test_a_slow_pair_of_one_of_two_runs_is_found(examined, text):
    (found,) = examined(text)[0].found
    assert (found.name, found.where) == ("weak_pair", "GPU 1 and GPU 3")
    assert "41.2" in found.evidence
