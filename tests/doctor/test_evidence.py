"""Evidence names the line that shows a fault, also where other lines of the file are alike or the words are its own."""

from __future__ import annotations

import json

import pytest

from clusterbench.doctor.logs import examine_logs
from tests.doctor import test_logs as said
from tests.tools.test_nccl_log import WHOLE


def evidence(examined, text, name):
    examination, _ = examined(text)
    return next(found.evidence for found in examination.found if found.name == name)


def line(text, words, after=""):
    """The number of the first line that has these words, behind others."""
    start = text.index(words, text.index(after))
    return text.count("\n", 0, start) + 1


def test_the_counter_of_the_gpu_at_fault_and_not_of_the_first_one(examined):
    well = said.SMI.replace("Volatile\n", "Volatile\n            DRAM Uncorrectable            : 0\n")
    ill = (
        well[well.index("GPU 00000000") :]
        .replace("1B:00.0", "43:00.0")
        .replace("rectable            : 0", "rectable: 2")
    )
    text = well.replace("GPUs                             : 1", "GPUs                             : 2") + ill
    number = line(text, "DRAM Uncorrectable", "43:00.0")
    assert evidence(examined, text, "dram_ecc") == f"said.txt:{number}: DRAM Uncorrectable: 2"


MATRIX = """\
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2         3
 0       N/A    390.00    390.00    {rate}
 1    390.00       N/A    390.00    390.00
 2    390.00    390.00       N/A    390.00
 3    390.00    390.00    390.00       N/A
"""


def test_a_row_of_the_matrix_at_fault_and_not_its_head(examined):
    text = (
        "nvbandwidth Version: v0.5\nRunning device_to_device_memcpy_read_ce.\n"
        + MATRIX.format(rate="390.00")
        + "\nRunning device_to_device_memcpy_write_ce.\n"
        + MATRIX.format(rate="150.00")
        + "\n"
    )
    words = "0       N/A    390.00    390.00    150.00"
    assert evidence(examined, text, "weak_pair") == f"said.txt:{line(text, words)}: {words}"


def test_the_test_of_a_matrix_in_json(examined):
    names = [f"device_to_device_memcpy_{way}_ce" for way in ("read", "write")]
    rows = {
        name: [
            ["N/A" if row == column else rate if row + column == 1 else "390.00" for column in range(4)]
            for row in range(4)
        ]
        for name, rate in zip(names, ("390.00", "150.00"), strict=True)
    }
    title = "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"
    cases = [{"name": name, "bandwidth_description": title, "bandwidth_matrix": rows[name]} for name in names]
    text = json.dumps({"nvbandwidth": {"testcases": cases}}, indent=1)
    said = evidence(examined, text, "weak_pair")
    assert said == f"said.txt:{line(text, names[1])}: 0 N/A 150.00 390.00 390.00"


def test_the_row_of_copies_between_gpus(examined):
    text = said.P2P.format(there="5.32", weak="22.10")
    number = line(text, "801.28  5.32")
    assert evidence(examined, text, "weak_pair").startswith(f"said.txt:{number}: with peer access 5.3 GB/s")


def test_a_link_that_is_not_listed_is_not_called_all_links(examined):
    links = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    of_gpus = [f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})\n{links}" for gpu in range(2)]
    text = of_gpus[0].replace("\t Link 7: 26.562 GB/s\n", "") + of_gpus[1]
    assert evidence(examined, text, "nvlink_inactive") == "said.txt:1: NVIDIA H100 80GB HBM3, not listed: 7"


def test_the_connection_that_takes_another_way(examined):
    text = WHOLE.replace("NET/IB/", "NET/Socket/").replace("/GDRDMA", "")
    words = evidence(examined, text, "sockets")
    number = line(text, " [send] via NET/Socket/")
    assert words.startswith(f"said.txt:{number}: Channel ")
    assert " [send] via NET/Socket/" in words
    assert ", the first of " in words


@pytest.mark.parametrize("devices", [1, 2])
def test_the_list_in_which_a_device_is_missing(tmp_path, devices):
    port = said.IBSTAT.format(state="Active", physical="LinkUp")
    listed = [port.replace("mlx5_0", f"mlx5_{number}") for number in range(3)]
    for host, ports in {"a": listed, "b": listed, "c": listed[:devices]}.items():
        (tmp_path / host).write_text("\n" + "".join(ports))
    examination, _ = examine_logs([tmp_path / host for host in "abc"])
    (found,) = examination.found
    assert (found.name, found.hosts) == ("rdma_device_count", ("c",))
    assert found.evidence.startswith("c:2, in the words of /sys/class/infiniband: mlx5_0")
