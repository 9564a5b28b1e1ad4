"""PyTorch's log of a job that failed: what is found, of which rank, and how bad it is."""

from __future__ import annotations

import pytest

from clusterbench.doctor.logs import examine_logs
from clusterbench.errors import SuiteError
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
        ("RuntimeError: CUDA error: system not yet initialized", "fabric_state", "error"),
        ("Error 802: system not yet initialized (Triggered internally)", "fabric_state", "error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_failure", "warning"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_failure", "note"),
        ("ncclRemoteError: A call failed possibly due to a network error", "peer_gone", "warning"),
        ("[rank1]: ncclSystemError: System call (e.g. socket, malloc) failed", "nccl_failed", "warning"),
        ("  traceback : Signal 9 (SIGKILL) received by PID 4711", "rank_killed", "warning"),
        ("RuntimeError: HIP error: an illegal memory access was encountered", "cuda_failure", "warning"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cuda_failure", "warning"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `c`", "cuda_failure", "warning"),
        ("RuntimeError: No CUDA GPUs are available", "cuda_failure", "warning"),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600s while trying to connect to "
            "(192.0.2.1, 29500).",
            "host_not_reached",
            "error",
        ),
        ("Timed out after 601 seconds waiting for clients. 15/16 clients joined.", "host_not_reached", "error"),
        (
            "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: "
            "-98, name: EADDRINUSE, message: address already in use",
            "address_in_use",
            "error",
        ),
        (
            "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            "address_in_use",
            "error",
        ),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. ", "shared_memory_full", "error"),
        (
            "RuntimeError: [../gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.7]:9",
            "peer_gone",
            "warning",
        ),
        (
            "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: Connection reset by peer",
            "peer_gone",
            "warning",
        ),
        ("[rank3]: RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuda_failure", "warning"),
        ("RuntimeError: CUDNN_STATUS_EXECUTION_FAILED", "cuda_failure", "warning"),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
            "driver",
            "driver_mismatch",
            "error",
        ),
        ("[rank1]: OSError: [Errno 24] Too many open files: '/data/shard-7.bin'", "open_files", "error"),
        ("RuntimeError: received 0 items of ancdata", "open_files", "error"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_1000.pt'", "disk_full", "error"),
        (
            "[enforce fail at inline_container.cc:862] . PytorchStreamWriter failed writing file data/91: file write",
            "disk_full",
            "error",
        ),
        (
            "RuntimeError: unable to write to file </torch_4711_2>: No space left on device (28)",
            "shared_memory_full",
            "error",
        ),
        ("Fatal Python error: Segmentation fault", "rank_killed", "warning"),
        (
            "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "nccl_failed",
            "warning",
        ),
    ],
)
def test_each_failure_is_found(examined, said, name, severity):
    examination, kind = examined(f"step 7, loss 2.1\n{said}\n")
    assert (kind, [(found.name, found.severity) for found in examination.found]) == (
        "PyTorch's log",
        [(name, severity)],
    )
    assert examination.word == ("NOT JUDGED" if severity == "note" else "SUSPECT")


_CALL = "CollectiveFingerPrint(SequenceNumber={0}, OpType={1}, TensorShape=[{2}], TensorDtypes=Float)"
_MISMATCH = "Detected mismatch between collectives on ranks. Rank 1 is running collective: "


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (_CALL.format(7, "ALLREDUCE", 20), "rank 1 called ALLREDUCE where rank 0 called ALLREDUCE"),
        (_CALL.format(7, "_ALLGATHER_BASE", 8), "rank 1 called ALLREDUCE where rank 0 called _ALLGATHER_BASE"),
        ("CollectiveFingerPrint(SequenceNumber=0OpType=REDUCE)", "rank 1 called ALLREDUCE where rank 0 called REDUCE"),
        ("REDUCE", "rank 1 called ALLREDUCE where rank 0 called REDUCE"),
    ],
)
def test_collectives_that_do_not_match_are_named(examined, other, what):
    """Forms of pytorch/pytorch, pull requests 79901 and 100214."""
    said = f"[rank1]: RuntimeError: {_MISMATCH}{_CALL.format(7, 'ALLREDUCE', 10)}, but Rank 0 is running collective: "
    (found,) = examined(f"{said}{other}.\n")[0].found
    assert (found.name, found.severity) == ("mismatched_collectives", "error")
    assert found.what == f"{what}: the calls or the sizes differ"


def test_collectives_that_do_not_match_are_found_on_a_line_of_their_own(examined):
    (found,) = examined(f"{_MISMATCH}\n{_CALL.format(7, 'SCATTER', 1)}\n")[0].found
    assert found.what == "rank 1 called another collective than the others, or with another size"


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


DIST = """\
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled error, NCCL version 2.26.2
[rank0]: {kind}: A call failed
[rank0]: Last error:
[rank0]: {last}
"""
SHM = "Error while creating shared memory segment /dev/shm/nccl-abcdef (size 9637888), error: No space left (28)"
RETRY = "NET/IB: Got completion from peer 192.0.2.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) vendor_err=129 hca mlx5_3"
CUDA_802 = "Cuda failure 802 'system not yet initialized'"


@pytest.mark.parametrize(
    ("kind", "last", "name"),
    [
        ("ncclSystemError", SHM, "shared_memory_full"),
        ("ncclRemoteError", RETRY, "transfer_given_up"),
        ("ncclUnhandledCudaError", CUDA_802, "fabric_state"),
    ],
)
def test_the_last_error_of_nccl_is_judged_by_its_own_rules_instead_of_its_kind(examined, kind, last, name):
    """Of each rank apart, since the lines of several alternate."""
    both = [DIST.format(kind=kind, last=last), DIST.format(kind=kind, last=last).replace("rank0", "rank1")]
    alternating = "".join(f"{a}\n{b}\n" for a, b in zip(*(text.splitlines() for text in both), strict=True))
    for said in (both[0], alternating):
        (found,) = examined(said)[0].found
        assert (found.name, found.severity, found.evidence.partition(": ")[2]) == (name, "error", last)


def test_a_last_error_that_no_rule_knows_leaves_its_kind(examined):
    said = DIST.format(kind="ncclInternalError", last="something that is new")
    assert [found.what for found in examined(said)[0].found] == ["a call of NCCL failed: ncclInternalError"]


def test_a_last_error_of_which_nccl_warned_is_said_once(examined):
    said = WHOLE + f"node-a:700:711 [0] misc/shmutils.cc:72 NCCL WARN {SHM}\n"
    (found,) = examined(said + DIST.format(kind="ncclSystemError", last=SHM))[0].found
    assert found.hosts == ("node-a",)


EXITED = (
    "E0620 10:11:12.123000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -{signal}) "
    "local_rank: 3 (pid: 1234) of binary: /usr/bin/python3\n"
)
SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2025-06-20_10:11:12
  host      : n17
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 1234)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 1234
"""


@pytest.mark.parametrize(
    ("said", "host", "where"),
    [
        (EXITED.format(signal=9), "said.txt", "local rank 3"),
        (SUMMARY, "n17", "rank 11"),
        (EXITED.format(signal=9) + SUMMARY, "n17", "rank 11"),
        (SUMMARY + EXITED.format(signal=9), "n17", "rank 11"),
    ],
)
def test_a_rank_that_was_killed_is_named_once_with_its_host(examined, said, host, where):
    """What torchrun logs, and its summary below it."""
    examination, _ = examined(said)
    (found,) = examination.found
    assert (found.hosts, examination.hosts, found.where, found.what) == ((host,), (host,), where, "was killed: SIGKILL")


def test_ranks_that_were_killed_alike_are_one_finding(examined):
    (found,) = examined(SUMMARY + SUMMARY.replace("1234", "1235").replace(": 11", ": 12"))[0].found
    assert (found.where, found.what) == ("rank 11, rank 12", "2 ranks were killed: SIGKILL")


def test_a_rank_that_torchrun_ended_itself_is_no_finding(tmp_path):
    (tmp_path / "said.txt").write_text(EXITED.format(signal=15))
    with pytest.raises(SuiteError, match="nothing in it is known"):
        examine_logs([tmp_path / "said.txt"])


def test_what_a_healthy_job_says_is_silent(examined):
    said = (
        "[rank0]:[W321 02:07:08.408271257 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not "
        "called before program exit\nexcept ncclRemoteError as error:\nSignal 15 (SIGTERM) received by PID 4711\n"
    )
    examination, kind = examined(WHOLE + said)
    assert (kind, examination.found, examination.word) == ("NCCL's log", (), "HEALTHY")
