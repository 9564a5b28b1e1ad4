"""Real output of public origin: what the doctor says of each, healthy, faulty or nothing, and by which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbench.doctor.logs import examine_logs
from clusterbench.errors import SuiteError
from tests.doctor import samples_table
from tests.doctor.samples import FAULTY, HEALTHY, NOT_WHOLE, SAMPLES, UNREAD

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- samples -->\n", "<!-- end of samples -->"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")


def counted(name: str) -> set[str]:
    examination, _ = examine_logs([SAMPLES / name])
    return {found.name for found in examination.found if found.counts}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_one_has_no_finding(name: str) -> None:
    examination, _ = examine_logs([SAMPLES / name])
    assert counted(name) == set()
    assert examination.healthy


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_of_a_faulty_one_is_found_and_nothing_else(name: str) -> None:
    finding, line = FAULTY[name]
    assert line in (SAMPLES / name).read_text()
    assert counted(name) == {finding}


@pytest.mark.parametrize("name", NOT_WHOLE)
def test_of_what_cannot_be_told_nothing_is_said_that_counts(name: str) -> None:
    examination, _ = examine_logs([SAMPLES / name])
    assert counted(name) == set()
    assert examination.not_judged


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_refused(name: str) -> None:
    with pytest.raises(SuiteError, match="nothing in it is known"):
        examine_logs([SAMPLES / name])


def test_every_sample_is_in_this_table() -> None:
    files = {path.name for path in SAMPLES.iterdir() if path.suffix != ".source" and path.name != "README.md"}
    assert files == {*HEALTHY, *FAULTY, *NOT_WHOLE, *UNREAD}


def test_the_table_of_the_documentation_is_made_by_code() -> None:
    """Write it anew with 'python -m tests.doctor.write_table'."""
    text = (ROOT / "docs/samples.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == samples_table.markdown()


def test_the_table_says_what_is_known_of_each_sample() -> None:
    verdicts = {row.name: row.verdict for row in samples_table.rows()}
    known = (
        dict.fromkeys(HEALTHY, "healthy") | dict.fromkeys(FAULTY, "faulty") | dict.fromkeys(NOT_WHOLE, "cannot tell")
    )
    assert verdicts == known | dict.fromkeys(UNREAD, "refused")
