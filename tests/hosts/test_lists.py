"""The lists beside hosts.json, each in its program's own form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clusterbench.hosts import Evidence, Host, Hosts, Judged
from clusterbench.hosts.lists import accepted_in_words, hosts_in_words, list_texts, write_lists
from clusterbench.launchers import named_hosts
from clusterbench.report import render_report
from clusterbench.run_folder import RunFolder
from tests.report.synthetic import good_run

LISTS = {"good_hosts.mpich", "good_hosts.openmpi", "bad_hosts.txt", "affinity.yaml"}


def hosts(**judged: Judged) -> Hosts:
    return Hosts(
        tuple(
            Host(name, word, (Evidence("planted", "as planted"),), ("more",) if word == "not judged" else ())
            for name, word in judged.items()
        ),
        4,
    )


MIXED = hosts(n1="good", n2="bad", n3="not judged", n4="good", n5="bad")


def test_each_list_has_the_form_of_the_program_that_reads_it(tmp_path: Path) -> None:
    texts = list_texts(MIXED, with_not_judged=False)
    assert texts["good_hosts.mpich"] == "n1:4\nn4:4\n"
    assert texts["good_hosts.openmpi"] == "n1 slots=4\nn4 slots=4\n"
    assert texts["bad_hosts.txt"] == "n2\nn5\n"
    (tmp_path / "bad_hosts.txt").write_text(texts["bad_hosts.txt"])
    assert named_hosts(str(tmp_path / "bad_hosts.txt")) == ["n2", "n5"]


def test_a_pod_with_the_affinity_goes_to_no_bad_host() -> None:
    affinity = yaml.safe_load(list_texts(MIXED, with_not_judged=False)["affinity.yaml"])["affinity"]
    ((term,),) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].values()
    assert term == {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n2", "n5"]}]
    }


def test_hosts_that_are_not_judged_are_in_a_list_only_where_that_is_asked_for() -> None:
    texts = list_texts(MIXED, with_not_judged=True)
    assert texts["good_hosts.mpich"] == "n1:4\nn3:4\nn4:4\n"
    assert texts["bad_hosts.txt"] == "n2\nn5\n"
    assert json.loads(texts["hosts.json"])["not_judged"] == ["n3"]


def test_hosts_json_has_each_host_with_its_evidence() -> None:
    found = json.loads(list_texts(MIXED, with_not_judged=False)["hosts.json"])
    assert (found["good"], found["bad"], found["not_judged"]) == (["n1", "n4"], ["n2", "n5"], ["n3"])
    planted = [{"kind": "planted", "sentence": "as planted"}]
    assert found["hosts"]["n2"] == {"judged": "bad", "evidence": planted}
    assert found["hosts"]["n3"] == {"judged": "not judged", "evidence": planted, "takes": ["more"]}


def test_no_list_is_empty_and_one_that_would_be_is_removed(tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    write_lists(run, MIXED)
    assert {path.name for path in run.path.iterdir()} >= LISTS
    write_lists(run, hosts(n1="not judged"))
    assert {path.name for path in run.path.iterdir()} & {*LISTS, "hosts.json"} == {"hosts.json"}
    write_lists(run, None)
    assert not (run.path / "hosts.json").exists()


@pytest.mark.parametrize(
    "name", ["n1\nn9", "n[1-4]", "-x", "a,b", "a b", "n1:8", "$(id)", "..", "a/b", "", "é", "\x1b[2J"]
)
def test_a_name_that_means_something_to_a_program_is_in_no_list(name: str) -> None:
    for word in ("good", "bad"):
        texts = list_texts(hosts(**{name: word, "ok": word}), with_not_judged=False)  # type: ignore[arg-type]
        listed = [line for file in LISTS & texts.keys() - {"affinity.yaml"} for line in texts[file].splitlines()]
        assert {line.split()[0].partition(":")[0] for line in listed} == {"ok"}
        assert name in json.loads(texts["hosts.json"])["hosts"]
        if name:
            assert name not in hosts_in_words(hosts(**{name: word, "ok": word}), Path("run"))  # type: ignore[arg-type]


def test_the_terminal_says_what_there_is_and_what_to_do_with_it() -> None:
    assert hosts_in_words(MIXED, Path("reports/x")) == (
        "hosts: 2 bad (n2, n5), 2 good, 1 not judged; reports/x/hosts.json says why\n"
        "hint: --exclude reports/x/bad_hosts.txt leaves the bad ones out, also with srun"
    )
    assert hosts_in_words(hosts(n1="good", n2="good"), Path("x")) == (
        "hosts: 2 good; x/hosts.json says why\n"
        "hint: --hostfile x/good_hosts.mpich (Open MPI: good_hosts.openmpi) gives mpirun the good ones"
    )


def test_the_terminal_says_nothing_of_one_host_or_where_nothing_is_known() -> None:
    assert hosts_in_words(hosts(n1="bad"), Path("x")) == ""
    assert hosts_in_words(hosts(n1="not judged", n2="not judged"), Path("x")) == ""
    assert hosts_in_words(None, Path("x")) == ""


def test_an_acceptance_says_of_each_host_whether_it_is_accepted_and_why() -> None:
    assert accepted_in_words(MIXED) == (
        "not accepted  n2  planted: as planted\n"
        "not accepted  n5  planted: as planted\n"
        "not judged    n3  to be judged: more\n"
        "accepted      n1  planted: as planted\n"
        "accepted      n4  planted: as planted"
    )
    (link,) = hosts(n6="not judged").hosts
    assert accepted_in_words(Hosts((replace(link, num_against=1),), 4)) == (
        "not judged    n6  planted: as planted; to be judged: more"  # one end of a slow link, of which nothing was told
    )
    assert accepted_in_words(hosts(**{"\x1b[2J": "good"})) == "accepted      '\\x1b[2J'  planted: as planted"  # type: ignore[arg-type]
    assert accepted_in_words(None) == ""


def test_of_many_hosts_those_that_are_not_accepted_are_shown_first() -> None:
    many = {f"n{number}": "good" for number in range(99)} | {"worst": "bad"}
    lines = accepted_in_words(hosts(**many)).splitlines()  # type: ignore[arg-type]
    assert lines[0] == "not accepted  worst  planted: as planted"
    assert (len(lines), lines[-1]) == (65, "and 36 more hosts in hosts.json")


def test_only_where_what_is_not_judged_counts_each_host_has_its_line(tmp_path: Path) -> None:
    run = good_run(tmp_path / "run")
    assert "  laptop  to be judged: " not in render_report(run).text
    assert "\nnot judged    laptop  to be judged: " in render_report(run, ["not-judged"]).text


def test_a_run_is_said_again_with_the_hosts_that_are_not_judged(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from clusterbench.cli import main

    run = good_run(tmp_path / "run")
    CliRunner().invoke(main, ["report", str(run.path)])
    assert not (run.path / "good_hosts.mpich").exists()
    CliRunner().invoke(main, ["report", str(run.path), "--with-not-judged"])
    assert (run.path / "good_hosts.mpich").read_text() == "laptop:4\n"
    assert RunFolder.open(run.path).problems == []
    two = good_run(tmp_path / "two")
    done = CliRunner().invoke(
        main, ["report", str(run.path), str(two.path), "--out", str(tmp_path / "both"), "--with-not-judged"]
    )
    assert (done.exit_code, "--with-not-judged has no effect" in done.output) == (2, True)
