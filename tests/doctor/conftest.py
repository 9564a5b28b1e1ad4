from __future__ import annotations

import pytest

from clusterbench.doctor.logs import examine_logs
from tests.doctor.samples import SAMPLES


@pytest.fixture
def examined(tmp_path):
    """What is made of a text, and what it is taken for."""

    def read(said, name="said.txt"):
        (tmp_path / name).write_text(said)
        examination, taken = examine_logs([tmp_path / name])
        return examination, taken[0].rpartition(": ")[2]

    return read


@pytest.fixture
def sample():
    """The text of real output of public origin, by its file's name."""
    if not SAMPLES.is_dir():
        pytest.skip("../shared absent")
    return lambda name: (SAMPLES / name).read_text(errors="replace")
