"""torchrun: what it puts into a process, and what it does not say."""

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launchers import launchers

PROCESS = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "0",
    "ROLE_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
PLACE = (1, 2, 1)
"""What it puts into a process that it starts, as seen, and that process's rank, size and local rank."""


def test_without_a_word_of_where_the_head_is_nobody_guesses():
    with pytest.raises(LaunchError) as caught:
        launchers()["torchrun"].head({"RANK": "1", "WORLD_SIZE": "3"})
    assert str(caught.value) == (
        "torchrun started this process, but nothing says on which host rank 0 is.\n"
        "hint: set MASTER_ADDR to the host of rank 0 in all processes"
    )
