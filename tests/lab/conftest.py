"""A lab of four hosts, one for all tests; they are skipped, with the reason, where there can be none."""

from collections.abc import Iterator

import pytest

from tests.lab import slurm as slurm_of_a_lab
from tests.lab.hosts import Lab, why_not

collect_ignore = ["init.py", "ssh.py", "on_each.py", "skewed_clock"]  # scripts: they run on hosts, nobody imports them


@pytest.fixture
def needs_lab() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab of the whole run."""
    if reason := why_not():
        pytest.skip(reason)
    config = str(tmp_path_factory.mktemp("config"))  # not the secret of whoever tests
    with Lab(4, environment={"XDG_CONFIG_HOME": config}) as lab:
        yield lab


@pytest.fixture
def lab(lab_of_all: Lab) -> Iterator[Lab]:
    """A lab as new, which the next test gets as new."""
    yield lab_of_all
    lab_of_all.renew()


@pytest.fixture
def slurm(lab: Lab) -> Iterator[slurm_of_a_lab.Slurm]:
    if reason := slurm_of_a_lab.why_not():
        pytest.skip(reason)
    with slurm_of_a_lab.Slurm(lab) as slurm:
        yield slurm
