"""MPICH: what Hydra puts into a process."""

from clusterbench.launchers import detect, launchers
from tests.launchers.test_slurm import PROCESS as SRUN

PROCESS = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "b"}
PLACE = (2, 4, 0)
"""What it puts into a process that it starts, as seen, and that process's rank, size and local rank."""


def test_srun_with_pmi2_is_not_taken_for_mpich():
    assert detect({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3"}).launcher is launchers()["slurm"]
