"""Operations of MPI, on ranks that an mpirun started: every result is right, and a wrong one is found where it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbench.benchmarks.mpi import BARRIER, IN_PARTS, OF_PAIRS, WHOLE, WINDOW, Mpi
from clusterbench.cluster import Cluster
from clusterbench.engine import mpi
from clusterbench.types import Place

pytestmark = [pytest.mark.mpi]

ROOT = Path(__file__).parents[2]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
OPS = (*OF_PAIRS, *WHOLE, *IN_PARTS, BARRIER)


def points(num_ranks, op, **options):
    place = Place(Cluster(1, num_ranks, "cpu"), 1)
    return list(Mpi(op=op, **options).points(place))


def under_mpirun(num_ranks, folder, cases, fault=""):
    """What each rank found at each point: ``found[rank][point] = [evidence or message, seconds]``."""
    assert MPIRUN, "mpirun is part of the extra 'mpi'"
    words = [MPIRUN, "-n", str(num_ranks), sys.executable, "-m", "tests.engine.mpi_ranks", str(folder)]
    done = subprocess.run([*words, json.dumps(cases), fault], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_every_operation_is_right_in_odd_and_even_sizes_and_in_every_dtype(num_ranks, tmp_path):
    cases = []
    for op in OPS:
        if num_ranks == 1 and op in OF_PAIRS:
            continue
        for dtype, size_bytes in (
            ("uint8", 1),
            ("uint8", 4099),
            ("float32", 4 * 1013),
            ("float64", 8 * 257),
            ("int32", 4096),
        ):
            cases += points(num_ranks, op, dtype=dtype, min_size=size_bytes, max_size=size_bytes)
    cases = [point for number, point in enumerate(cases) if point not in cases[:number]]
    for rank, records in enumerate(under_mpirun(num_ranks, tmp_path, cases)):
        for point, (evidence, seconds) in zip(cases, records, strict=True):
            proof = "early_ranks" if point["op"] == BARRIER else "wrong_elements"
            assert evidence == {proof: 0.0}, (rank, point)
            assert len(seconds) == 3
            assert min(seconds) > 0


def test_ranks_outside_a_pair_have_its_times(tmp_path):
    cases = points(3, "latency", min_size=8, max_size=8)
    first, second, third = under_mpirun(3, tmp_path, cases)
    assert first[0][1] == second[0][1] == third[0][1]


def test_of_a_pair_the_clock_of_the_sender_counts(tmp_path):
    cases = [points(2, op, min_size=8, max_size=8)[0] for op in OF_PAIRS]
    assert {(point["sender"], point["receiver"]) for point in cases} == {(0, 1)}
    for of_rank in under_mpirun(2, tmp_path, cases, "clock"):
        assert all(max(seconds) < 3600 for _, seconds in of_rank)


def test_one_wrong_element_on_one_rank_is_found_there(tmp_path):
    cases = points(3, "all_reduce", min_size=4096, max_size=4096)
    (right,), (wrong,), (third,) = under_mpirun(3, tmp_path, cases, "Allreduce")
    assert right[0] == third[0] == {"wrong_elements": 0.0}
    assert wrong[0] == (
        "all_reduce gave wrong results on rank 1 (host here): 1 of 1024 elements differ. "
        "First at index 5: got 3.0, expected 2.0."
    )


ONE_CALL = {
    "all_reduce": "Allreduce",
    "reduce": "Reduce",
    "broadcast": "Bcast",
    "all_gather": "Allgather",
    "reduce_scatter": "Reduce_scatter_block",
    "all_to_all": "Alltoall",
    "gather": "Gather",
    "scatter": "Scatter",
}


def test_an_iteration_moves_as_many_bytes_in_as_many_messages_as_its_figures_count(tmp_path):
    """Of two ranks: windows of 64 messages, as OSU's, and of collectives the whole array in one call."""
    first, second = under_mpirun(2, tmp_path, [points(2, op, min_size=4096, max_size=4096)[0] for op in OPS], "noted")
    by_op = {op: (of_first, of_second) for op, of_first, of_second in zip(OPS, first, second, strict=True)}
    assert by_op.pop("latency") == ({"Send 4096": 1, "Recv 4096": 1},) * 2
    assert by_op.pop("bandwidth") == ({"Isend 4096": 64, "Recv 4": 1}, {"Irecv 4096": 64, "Send 4": 1})
    both = {"Isend 4096": 64, "Irecv 4096": 64}
    assert by_op.pop("bi_bandwidth") == ({**both, "Recv 4": 1}, {**both, "Send 4": 1})
    assert by_op.pop("barrier") == ({"Barrier 0": 1},) * 2
    parts = {"gather": 2048, "scatter": 2048}  # of ranks that are no root
    assert by_op == {op: ({f"{name} 4096": 1}, {f"{name} {parts.get(op, 4096)}": 1}) for op, name in ONE_CALL.items()}


def test_what_stops_moving_once_it_was_proven_is_found_behind_the_clock(tmp_path):
    cases = [points(3, op, min_size=4096, max_size=4096)[0] for op in (*WHOLE, *IN_PARTS, BARRIER)]
    for point, *of_ranks in zip(cases, *under_mpirun(3, tmp_path, cases, "later"), strict=True):
        wrong = [evidence for evidence, seconds in of_ranks if str(evidence).startswith(f"{point['op']} gave wrong")]
        assert wrong, point


def test_a_barrier_that_holds_nobody_is_found_by_who_comes_last(tmp_path):
    *_, (last,) = under_mpirun(3, tmp_path, points(3, "barrier"), "barrier")
    assert last[0] == (
        "barrier gave wrong results on rank 2 (host here): 2 of 2 ranks had left it before rank 2 entered. "
        "The first is rank 0."
    )


def test_the_window_is_the_one_that_bandwidth_is_derived_from():
    assert mpi.WINDOW == WINDOW


def test_the_library_is_named_without_its_build():
    program = "from clusterbench.engine import mpi; print(mpi.library()); print(mpi.takes_cuda_memory())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=200)
    name, takes_cuda = done.stdout.splitlines()
    assert re.fullmatch(r"(MPICH|Open MPI v)\s?\d+\.\d+\.\d+\w*", name)
    assert takes_cuda == "False"


def test_cuda_memory_is_not_given_to_a_library_that_does_not_take_it():
    code = (
        "from mpi4py import MPI\n"
        "from clusterbench.engine import mpi\n"
        "from clusterbench.errors import NotHere\n"
        "mpi.library, mpi.takes_cuda_memory = lambda: 'Some MPI 1.0', lambda: {able}\n"
        "try:\n"
        "    mpi.prepare(MPI.COMM_SELF, dict(op='barrier', memory='cuda'), 'here', 0)\n"
        "except NotHere as error:\n"
        "    print(error)\n"
    )
    hint = "hint: load one that is CUDA-aware, or write memory: host, which needs no such library\n"
    for able, says in ((False, "says that it does not take"), (None, "does not say whether it takes")):
        program = [sys.executable, "-c", code.format(able=able)]
        done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=200)
        assert done.stdout == f"the MPI library (Some MPI 1.0) {says} CUDA memory.\n{hint}", done.stderr
