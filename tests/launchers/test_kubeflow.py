"""Variables of the pods of Kubeflow's operators."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launchers import detect, launchers

PROCESS = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "llama-node-0-0.llama",
    "PET_MASTER_PORT": "29500",
}
"""Of a TrainJob's pod. A PyTorchJob's has more."""
PLACE = (1, 2, None)
"""What it puts into a process that it starts, by its source, and that process's rank, size and local rank."""

PYTORCH_JOB = {
    "MASTER_ADDR": "llama-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "16",
    "RANK": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
}


def test_a_pod_is_one_process_though_its_world_size_counts_eight_of_each():
    """Two pods waited for the 14 others that only a torchrun in each would have started."""
    started = detect(PYTORCH_JOB)
    assert (type(started.launcher).__name__, started.rank, started.size) == ("Kubeflow", 1, 2)
    assert started.launcher.head(PYTORCH_JOB) == "llama-master-0"
    assert launchers()["kubeflow"].head(PROCESS) == "llama-node-0-0.llama"


def test_pods_of_a_job_that_says_no_rank_are_one_run():
    """Each pod of a TrainJob made the same run for itself."""
    assert detect(PROCESS).size == 2
    assert detect({**PROCESS, "PET_NNODES": "1", "PET_NODE_RANK": "0"}) is None


def test_what_a_script_in_the_pod_has_set_counts():
    processes = {**PYTORCH_JOB, "RANK": "9", "LOCAL_RANK": "1"}
    assert (detect(processes).rank, detect(processes).size) == (9, 16)
    assert detect({**processes, "RANK": "1", "LOCAL_RANK": "1"}).size == 16
    assert detect({**PYTORCH_JOB, "TORCHELASTIC_RUN_ID": "7"}).launcher.program == "torchrun"


def test_a_number_of_pods_that_may_change_is_refused():
    with pytest.raises(LaunchError, match="PET_NNODES must be a whole number, not '1:4'"):
        detect({**PYTORCH_JOB, "PET_NNODES": "1:4"})
