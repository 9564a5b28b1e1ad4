from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from clusterbench.checks import checks
from clusterbench.diagnoses import diagnoses
from clusterbench.doctor.catalogue import IN_LOGS, KNOWN, OF_LOGS, OF_RUNS, QUESTIONS, WAITS, entries, markdown
from clusterbench.doctor.listing import listing
from clusterbench.doctor.logs import _NO_TABLE
from clusterbench.doctor.nccl_log import RULES
from clusterbench.doctor.torch_log import MESSAGES

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- checks -->\n", "<!-- end of checks -->"


def test_every_number_has_one_entry():
    numbers = [entry.number for entry in entries()]
    assert numbers == sorted({*numbers})
    assert {*range(1, KNOWN + 1)} <= {*numbers}


def test_a_number_stands_in_one_table_only():
    assert not OF_RUNS.keys() & QUESTIONS.keys()
    assert OF_RUNS.keys() | QUESTIONS.keys() >= {*range(1, KNOWN + 1)}
    assert max(QUESTIONS) <= KNOWN
    assert not OF_LOGS.keys() & (OF_RUNS.keys() | QUESTIONS.keys())
    assert WAITS.keys() <= QUESTIONS.keys()


def test_what_is_named_is_there():
    for entry in entries():
        known = {*checks(), *diagnoses(), *(rule.name for rule in RULES), *(log.names[0] for log in OF_LOGS.values())}
        assert not entry.by or entry.by in known
        assert not entry.test or (ROOT / entry.test).exists(), entry.test
        assert entry.question.endswith("?")


ELSEWHERE = {
    "message.name": tuple(message.name for message in MESSAGES),
    "rule.name": tuple(rule.name for rule in RULES),
    "check": ("gpu_lost", "device_lost", *(name for name, *_ in _NO_TABLE.values())),
    "name": (*checks(), *diagnoses()),
}
"""Names of findings that are not written where a finding is made, by the words that stand there."""


def files() -> list[Path]:
    return [*(ROOT / "clusterbench/doctor").rglob("*.py")]


def makes_findings(node: ast.AST) -> bool:
    """Whether it is a function whose callers say the name of a finding first, as those of ``Found`` do."""
    return isinstance(node, ast.FunctionDef) and any(each.arg == "check" for each in node.args.args[:1])


def made(path: Path, makers: Collection[str]) -> Iterator[str]:
    """Names of the findings that a file makes: the first argument of what makes one, or its ``name``."""
    tree = ast.parse(path.read_text())
    passed_on = {id(call) for maker in ast.walk(tree) if makes_findings(maker) for call in ast.walk(maker)}
    constants = dict(assigned(tree))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers):
            continue
        names = [keyword.value for keyword in node.keywords if keyword.arg == "name"] or node.args[:1]
        for name in names:
            word = ast.unparse(name)
            written = [part.value for part in ast.walk(name) if isinstance(part, ast.Constant)]
            written += [constants[word]] if word in constants else []
            yield from written or (() if id(node) in passed_on else ELSEWHERE[word])


def assigned(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a file gives to a word, ``_NAME = "fabric_links"``, or to several in one line."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            yield from (
                (name.id, value.value)
                for name, value in pairs
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
            )


def test_no_finding_can_be_made_whose_name_has_no_row():
    trees = [ast.parse(path.read_text()) for path in files()]
    makers = {node.name for tree in trees for node in ast.walk(tree) if makes_findings(node)} | {"Found"}
    names = {name for path in files() for name in made(path, makers)}
    assert {"gpu_lost", "gpu_sensor", "driver_not_loaded", "not_reached", "p2p_disabled", "weak_pair"} <= names
    assert {"burn_in", "fabric_links", "weak_copy"} <= names
    rows = {name for entry in entries() for name in (entry.by, *entry.in_logs)}
    assert names - rows - {*diagnoses()} == set()


def test_a_name_of_logs_stands_in_one_row():
    rows = Counter(name for entry in entries() for name in {entry.by, *entry.in_logs} if name not in diagnoses())
    assert {name for name, number in rows.items() if name and number > 1} == set()
    assert not IN_LOGS.keys() & OF_LOGS.keys()


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
