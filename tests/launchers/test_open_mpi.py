"""Open MPI: what its mpirun puts into a process."""

from clusterbench.launchers import detect, launchers
from tests.launchers.test_slurm import PROCESS as SRUN

PROCESS = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
PLACE = (3, 4, 1)
"""What it puts into a process that it starts, as seen, and that process's rank, size and local rank."""


def test_open_mpi_that_srun_started_through_pmix_is_slurms():
    assert detect({**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}).launcher is launchers()["slurm"]
