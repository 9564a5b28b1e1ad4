from __future__ import annotations

from clusterbench.checks.foreign_processes import ForeignProcesses
from clusterbench.facts.gpus import Process
from tests.checks.gpus import host, only


def test_what_an_earlier_job_left_is_found_with_its_pid_and_memory():
    fault = only(ForeignProcesses(), processes=(Process(4711, "python3", 3 * 2**29),))
    assert fault.what == "is in use by python3 (pid 4711, 1.5 GiB)"
    assert fault.evidence == "NVML compute processes: python3 (pid 4711, 1.5 GiB)"
    assert fault.severity is None


def test_one_of_another_container_has_no_name():
    fault = only(ForeignProcesses(), processes=(Process(9, None, None),))
    assert fault.what == "is in use by a process (pid 9)"


def test_an_mps_server_alone_is_a_note_and_not_counted_beside_others():
    server = Process(7, "nvidia-cuda-mps-server", 30 * 2**20)
    assert only(ForeignProcesses(), processes=(server,)).severity == "note"
    assert only(ForeignProcesses(), processes=(server, Process(8, "train", None))).what == "is in use by train (pid 8)"


def test_idle_gpus_are_in_order():
    assert ForeignProcesses().judge(host()).healthy == "8 NVIDIA GPUs have no compute process of others"
