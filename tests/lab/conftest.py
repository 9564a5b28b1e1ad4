"""A lab of four hosts for a test; skipped, with the reason, where there can be none."""

from collections.abc import Iterator

import pytest

from tests.lab import slurm as slurm_of_a_lab
from tests.lab.hosts import Lab, why_not

collect_ignore = ["init.py", "ssh.py", "on_each.py", "skewed_clock"]  # scripts: they run on hosts, nobody imports them


@pytest.fixture
def needs_lab() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def lab(needs_lab: None) -> Iterator[Lab]:
    with Lab(4) as lab:
        yield lab


@pytest.fixture
def slurm(lab: Lab) -> Iterator[slurm_of_a_lab.Slurm]:
    if reason := slurm_of_a_lab.why_not():
        pytest.skip(reason)
    with slurm_of_a_lab.Slurm(lab) as slurm:
        yield slurm
