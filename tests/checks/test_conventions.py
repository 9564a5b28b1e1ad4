"""What holds for every check, whatever it asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterbench.checks import AlikeCheck, checks
from clusterbench.facts import Host, gather
from clusterbench.types import Severity
from tests.facts.machine import healthy, others

NAMES = sorted(checks())
PAIR = ("n1", "n2")


@pytest.fixture(scope="module")
def well(tmp_path_factory):
    """Of each kind of machine two hosts that are alike and well."""
    kinds = {"usual": healthy(), **others()}
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    return {kind: [machine.host(folders[kind], name) for name in PAIR] for kind, machine in kinds.items()}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_asks_where_from_and_what_to_do(name):
    kind = checks()[name]
    assert kind.__doc__
    assert kind.question.endswith("?")
    assert kind.severity in Severity.__args__
    assert kind.source
    assert kind.confirm
    assert kind.fix
    assert kind.right in ("", "root")


def test_no_two_have_one_number():
    numbers = [kind.number for kind in checks().values()]
    assert len({*numbers}) == len(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_test_of_its_own(name):
    assert (Path(__file__).parent / f"test_{name}.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_healthy_hosts_have_no_finding_and_a_kind_of_them_is_in_order(name, well):
    said = {kind: checks()[name]().judge_all(hosts) for kind, hosts in well.items()}
    assert not [(kind, one.faults) for kind, judged in said.items() for one in judged.values() if one.faults]
    assert any(all(one.healthy for one in judged.values()) for judged in said.values()), said


@pytest.mark.parametrize("name", NAMES)
def test_a_host_of_which_nothing_is_known_is_neither_well_nor_ill(name):
    said = checks()[name]().judge_all([Host("n1", {}), Host("n2", {})])
    assert all(judged.unknown and not judged.healthy and not judged.faults for judged in said.values()), said


@pytest.mark.parametrize("name", NAMES)
def test_a_host_whose_files_are_all_absent_is_neither_well_nor_ill(name, tmp_path):
    def no_program(words):
        raise FileNotFoundError(2, "No such file or directory", words[0])

    facts = json.loads(json.dumps(gather(tmp_path, no_program)))
    hosts = [Host(each, {"facts": facts}) for each in PAIR]
    said = checks()[name]().judge_all(hosts)
    assert not any(judged.healthy or judged.faults for judged in said.values()), said


@pytest.mark.parametrize("name", [name for name in NAMES if issubclass(checks()[name], AlikeCheck)])
def test_one_host_is_like_no_other(name, well):
    said = [one for hosts in well.values() for one in checks()[name]().judge_all(hosts[:1]).values()]
    assert any(judged.unknown for judged in said)
    assert not any(judged.healthy for judged in said)
