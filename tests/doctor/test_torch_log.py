"""PyTorch's log of a job that failed: what is found, of which rank, and how bad it is."""

from __future__ import annotations

import pytest

from tests.tools.test_nccl_log import WHOLE

WATCHDOG = (
    "[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
    "600060 milliseconds before timing out.\n"
)
TIMEOUTS = "".join(WATCHDOG.format(rank=rank, number=1580) for rank in (0, 1, 2))


def test_a_collective_that_does_not_end_is_found_beside_good_connections(examined):
    """Wording of hiyouga/LlamaFactory, issue 7396."""
    examination, kind = examined(WHOLE + TIMEOUTS)
    assert kind == "NCCL's log and PyTorch's log"
    (found,) = examination.found
    assert (found.name, found.severity, found.where) == ("collective_timeout", "error", "")
    assert found.what == "ALLREDUCE (SeqNum 1580) did not end in 600 s on 3 ranks (0, 1, 2)"
    assert found.evidence.startswith(f"said.txt:{len(WHOLE.splitlines()) + 1}: ")


def test_a_rank_at_an_earlier_collective_is_behind(examined):
    """As in pytorch/pytorch, issue 118369."""
    examination, _ = examined(TIMEOUTS + WATCHDOG.format(rank=7, number=64))
    (found,) = examination.found
    assert (found.where, found.what.endswith("; behind the others: rank 7")) == ("rank 7", True)


def test_no_rank_is_behind_where_no_collective_is_that_of_most(examined):
    examination, _ = examined(WATCHDOG.format(rank=0, number=9) + WATCHDOG.format(rank=1, number=8))
    assert [found.where for found in examination.found] == [""]


def test_older_versions_name_no_number(examined):
    said = (
        "[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) "
        "ran for 1802710 milliseconds before timing out.\n"
    )
    assert [found.what for found in examined(said)[0].found] == ["BROADCAST did not end in 1803 s on 1 rank (5)"]


@pytest.mark.parametrize(
    ("said", "name", "severity"),
    [
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 7] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
            "making progress in monitoring enqueued collectives.",
            "collective_timeout",
            "error",
        ),
        ("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered", "uncorrectable_ecc", "error"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "cuda_failure", "error"),
        ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink", "cuda_failure", "error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_failure", "warning"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_failure", "note"),
        ("ncclRemoteError: A call failed possibly due to a network error", "peer_gone", "warning"),
        ("[rank1]: ncclSystemError: System call (e.g. socket, malloc) failed", "nccl_failed", "warning"),
        ("  traceback : Signal 9 (SIGKILL) received by PID 4711", "rank_killed", "warning"),
    ],
)
def test_each_failure_is_found(examined, said, name, severity):
    examination, kind = examined(f"step 7, loss 2.1\n{said}\n")
    assert (kind, [(found.name, found.severity) for found in examination.found]) == (
        "PyTorch's log",
        [(name, severity)],
    )
    assert examination.word == ("NOT JUDGED" if severity == "note" else "SUSPECT")


@pytest.mark.parametrize(
    "said",
    [
        "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchronous nature",
        "[rank0]:[E326 18:44:16.1 ProcessGroupNCCL.cpp:1709] [PG 1 Rank 0] Timeout at NCCL work: 7753, last completed",
        "[rank5]:[E326 16:48:25.4 ProcessGroupNCCL.cpp:2268] [PG ID 0 Rank 5]  failure detected by watchdog at work "
        "sequence id: 12 PG status: last enqueued work: 14",
    ],
)
def test_that_the_watchdog_ended_a_job_is_found_where_the_reason_is_left_out(examined, said):
    """Wording of salesforce/MUST, issue 7, hiyouga/LlamaFactory, issue 6269, and snowflakedb/ArcticTraining, 219."""
    (found,) = examined(f"{said}\n")[0].found
    assert (found.name, found.severity, found.what[:24]) == ("collective_timeout", "error", "PyTorch's watchdog ended")
    assert [each.what[:9] for each in examined(TIMEOUTS + said + "\n")[0].found] == ["ALLREDUCE"]


def test_what_a_healthy_job_says_is_silent(examined):
    said = (
        "[rank0]:[W321 02:07:08.408271257 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not "
        "called before program exit\nexcept ncclRemoteError as error:\nSignal 15 (SIGTERM) received by PID 4711\n"
    )
    examination, kind = examined(WHOLE + said)
    assert (kind, examination.found, examination.word) == ("NCCL's log", (), "HEALTHY")
