"""Variables that a person has set."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launchers import detect

PROCESS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29411"}
PLACE = (1, 2, None)
"""What it puts into a process that it starts, as people set them, and that process's rank, size and local rank."""


def test_variables_that_somebody_set_are_a_launcher_of_their_own():
    assert detect({"RANK": "1", "WORLD_SIZE": "2"}).local_rank is None
    assert detect({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}).local_rank == 1
    assert detect({"RANK": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'first'"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK must be a whole number, not ''"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number, not ''"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2: ranks count from 0"),
    ],
)
def test_variables_that_cannot_be_are_said(variables, said):
    with pytest.raises(LaunchError) as caught:
        detect(variables)
    assert str(caught.value) == said
