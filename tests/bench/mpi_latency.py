"""What Python costs a message: latency through mpi4py over that of the same ping-pong in C, on the same MPI library.

Both are compiled or run here, against one library: two ranks, the same sizes, as many round trips, each timed by the
monotonic clock, at the same thread level. There is no target: the cost is shown so that nobody takes it for MPI's.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from clusterbench.formulas.statistics import median
from clusterbench.units import format_bytes
from tests.bench import ROOT, Result, alternate

SIZES = (1, 64, 1024, 16 * 1024, 256 * 1024, 4 * 2**20)
ROUNDS = 4
WARMUP = 50
TIMEOUT_S = 120.0

SOURCE = r"""
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As numpy allocates: in huge pages where there are any, or memory is what would be compared. */
static char *touched(size_t size) {
    char *array = malloc(size);
    size_t offset = 4096 - (size_t)array % 4096;
    if (size >= 1 << 22)
        madvise(array + offset, size - offset, MADV_HUGEPAGE);
    return memset(array, 1, size);
}

/* Arguments: warm-up, then pairs of size and round trips. Rank 0 prints the median latency of each size in seconds. */
int main(int argc, char **argv) {
    int level, rank, warmup = atoi(argv[1]);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int at = 2; at + 1 < argc; at += 2) {
        int size = atoi(argv[at]), trips = atoi(argv[at + 1]);
        char *sent = touched(size), *received = touched(size);
        double *seconds = malloc(trips * sizeof(double)), mark = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int trip = -warmup; trip < trips; trip++) {
            if (trip <= 0)
                mark = now();
            if (rank == 0) {
                MPI_Send(sent, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
                MPI_Recv(received, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(received, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(sent, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
            }
            if (trip >= 0) {
                double after = now();
                seconds[trip] = (after - mark) / 2;
                mark = after;
            }
        }
        qsort(seconds, trips, sizeof(double), ascending);
        if (rank == 0)
            printf("%.9e\n", seconds[trips / 2]);
        free(sent), free(received), free(seconds);
    }
    return MPI_Finalize();
}
"""


def measure() -> list[Result]:
    beside = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    mpirun, mpicc = shutil.which("mpirun", path=beside), shutil.which("mpicc", path=beside)
    if mpirun is None or mpicc is None or shutil.which("cc") is None:
        why = "there is no mpirun, no mpicc, or no C compiler behind it"
        return [Result("mpi_latency", None, "ratio", math.inf, "undecided", why)]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ping_pong"
        program.with_suffix(".c").write_text(SOURCE)
        _said(mpicc, "-O2", "-o", str(program), f"{program}.c")
        sizes = [str(number) for size in SIZES for number in (size, _trips(size))]
        start = [mpirun, "-n", "2"]
        found = alternate(
            ROUNDS,
            {
                "c": lambda: _latencies(_said(*start, str(program), str(WARMUP), *sizes)),
                "python": lambda: _latencies(_said(*start, sys.executable, "-m", "tests.bench.mpi_latency")),
            },
        )
    results = []
    for number, size in enumerate(SIZES):
        c, python = (median([latencies[number] for latencies in found[name]]) for name in ("c", "python"))
        note = f"mpi4py {python * 1e6:.2f} us, C {c * 1e6:.2f} us, {_trips(size)} round trips x {ROUNDS}"
        name = f"mpi_latency_{format_bytes(size)}"
        results.append(Result(name, python / c, "ratio", math.inf, "shown", note))
    return results


def _trips(size: int) -> int:
    return 2000 if size <= 2**14 else 300


def _latencies(text: str) -> list[float]:
    return [float(line) for line in text.splitlines()]


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{os.path.basename(words[0])} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _one_of_two() -> None:
    """What mpirun starts: the loop of the benchmark ``mpi`` itself."""
    from mpi4py import MPI

    from clusterbench.benchmarks.mpi import Mpi
    from clusterbench.cluster import Cluster
    from clusterbench.engine.mpi import prepare, seconds_of
    from clusterbench.types import Place

    comm = MPI.COMM_WORLD.Dup()
    place = Place(Cluster(1, 2, "cpu"), 1)
    for size in SIZES:
        (point,) = Mpi(op="latency", dtype="uint8", min_size=size, max_size=size).points(place)
        step = prepare(comm, point, "here", 0)
        step.check()
        seconds = seconds_of(step, comm, point, _trips(size), WARMUP, lambda *_: None)
        if comm.Get_rank() == 0:
            print(json.dumps(median(seconds) / 2))


if __name__ == "__main__":
    _one_of_two()
