from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterbench.checks import checks
from clusterbench.diagnoses import diagnoses
from clusterbench.doctor.catalogue import KNOWN, OF_RUNS, QUESTIONS, WAITS, entries, markdown
from clusterbench.doctor.listing import listing
from clusterbench.doctor.nccl_log import RULES

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- checks -->\n", "<!-- end of checks -->"


def test_every_number_has_one_entry():
    numbers = [entry.number for entry in entries()]
    assert numbers == sorted({*numbers})
    assert {*range(1, KNOWN + 1)} <= {*numbers}


def test_a_number_stands_in_one_table_only():
    assert not OF_RUNS.keys() & QUESTIONS.keys()
    assert OF_RUNS.keys() | QUESTIONS.keys() == {*range(1, KNOWN + 1)}
    assert WAITS.keys() <= QUESTIONS.keys()


def test_what_is_named_is_there():
    for entry in entries():
        assert not entry.by or entry.by in {*checks(), *diagnoses(), *(rule.name for rule in RULES)}
        assert not entry.test or (ROOT / entry.test).exists(), entry.test
        assert entry.question.endswith("?")


def test_the_list_has_a_line_for_each():
    lines = listing().splitlines()
    numbers = [int(found[1]) for line in lines if (found := re.match(r" +(\d+)  ", line))]
    assert numbers == [entry.number for entry in entries()]


def test_the_list_says_which_program_is_run_or_none():
    lines = listing().splitlines()
    words = {line.split()[1]: line for line in lines if not line.startswith("#")}
    assert lines[1].split()[1:5] == ["number", "check", "severity", "program"]
    assert " ethtool " in words["ethernet_alike"]
    assert " dmesg, journalctl " in words["xid"]
    assert " none " in words["port_state"]


@pytest.mark.parametrize("name", [name for name, kind in checks().items() if kind.programs])
def test_a_program_that_is_run_stands_among_the_sources(name):
    kind = checks()[name]
    assert any(program in kind.source for program in kind.programs.split(", "))


def test_the_table_of_the_documentation_is_made_by_code():
    """Write it anew with 'python -m tests.doctor.write_table'."""
    text = (ROOT / "docs/doctor.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == markdown()
