"""Sixty-four hosts made of real programs' output, with twelve faults of eight kinds: all found, none invented."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from clusterbench.checks import hosts_of, judge
from clusterbench.doctor import Examination, examine
from clusterbench.doctor.catalogue import sources
from clusterbench.doctor.examination_page import examination_page
from clusterbench.doctor.text import text
from tests.doctor.page_parts import articles, section, suspects
from tests.doctor.sampled import SAMPLES, Texts, machine, recorded, xid

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")

HOSTS = 64
Plant = Callable[[Texts], Texts]


def port(card: int, old: str, new: str) -> Plant:
    return lambda texts: texts.saying("ibstat", f"CA 'mlx5_ib{card}'", old, new)


def port_down(card: int) -> Plant:
    polling = port(card, '"Physical state": "LinkUp"', '"Physical state": "Polling"')
    return lambda texts: port(card, '"State": "Active"', '"State": "Down"')(polling(texts))


def gpu(address: str, old: str, new: str) -> Plant:
    return lambda texts: texts.saying("nvidia_smi", f'<gpu id="0000{address}">', old, new)


def gpu_without_answer(address: str) -> Plant:
    return lambda texts: replace(texts, dmesg=texts.dmesg + xid(address))


def lost(texts: Texts) -> Texts:
    """The last GPU is on the bus, and nvidia-smi does not list it."""
    head, _, last = texts.nvidia_smi.rpartition("    <gpu id=")
    return replace(texts, nvidia_smi=head + last.partition("</gpu>\n")[2], nvlink=texts.nvlink.partition("GPU 7:")[0])


def link_down(number: int) -> Plant:
    return lambda texts: texts.saying("nvlink", f"GPU {number}:", "Link 5: 25 GB/s", "Link 5: <inactive>")


def on_lanes(address: str, lanes: int) -> Plant:
    return gpu(address, "<current_link_width>16x", f"<current_link_width>{lanes}x")


PLANTED: dict[str, tuple[tuple[str, str, Plant], ...]] = {
    "nd07": (("port_state", "mlx5_ib3 port 1", port_down(3)),),
    "nd11": (("port_rate", "mlx5_ib5 port 1", port(5, '"Rate": "200"', '"Rate": "100"')),),
    "nd19": (
        ("port_state", "mlx5_ib1 port 1", port_down(1)),
        ("xid", "GPU 2 (0003:00:00.0", gpu_without_answer("0003:00:00.0")),
    ),
    "nd23": (("firmware", "mlx5_ib0", port(0, "20.28.4000", "20.28.1002")),),
    "nd31": (("firmware", "mlx5_ib0", port(0, "20.28.4000", "20.28.1002")),),
    "nd42": (
        ("row_remapping", "GPU 2", gpu("0003:00:00.0", "pending>No<", "pending>Yes<")),
        ("pcie_width", "GPU 4", on_lanes("000b:00:00.0", 8)),
    ),
    "nd44": (("xid", "GPU 6 (000d:00:00.0", gpu_without_answer("000d:00:00.0")),),
    "nd51": (("gpu_count", "", lost),),
    "nd60": (
        ("nvlink_state", "GPU 6", link_down(6)),
        ("pcie_width", "GPU 1", on_lanes("0002:00:00.0", 4)),
    ),
}
"""By host: the check that has to find it, where, and the words that plant it."""


def test_twelve_faults_of_eight_kinds_are_planted():
    faults = [name for faults in PLANTED.values() for name, _, _ in faults]
    assert (len(faults), len({*faults})) == (12, 8)


@pytest.fixture(scope="module")
def examination(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    """Of each planted host the files that differ are written over those of the host before it: disks may be slow."""
    folder = tmp_path_factory.mktemp("cluster")
    last = machine(recorded())
    well = json.dumps(last.host(folder).environment)
    environments = {f"nd{number:02d}": json.loads(well) for number in range(HOSTS)}
    for name, faults in PLANTED.items():
        texts = recorded()
        for _, _, plant in faults:
            texts = plant(texts)
        host = machine(texts)
        changed = {path: text for path, text in host.files.items() if text != last.files[path]}
        environments[name] = replace(host, files=changed, links={}).host(folder).environment
        last = host
    hosts = hosts_of({"hosts": environments})
    return examine([host.name for host in hosts], judge(hosts))


def test_all_are_found_where_they_are_and_nothing_else_is(examination):
    found = [(host, each.name, each.where) for each in examination.found if each.counts for host in each.hosts]
    planted = [(host, name, where) for host, faults in PLANTED.items() for name, where, _ in faults]
    for host, name, where in planted:
        assert any(said[:2] == (host, name) and said[2].startswith(where) for said in found), (host, name, where)
    assert len(found) == len(planted), found
    notes = {each.name for each in examination.found if not each.counts}
    assert notes == {"virtualised"}


def test_what_this_machine_does_not_show_is_not_judged(examination):
    unknown = {part.name for part in examination.not_judged}
    assert unknown == {"gpu_nic_distance", "rail_map", "rails_alike", "nic_pcie", "pcie_payload", "relaxed_ordering"}
    assert all(len(part.hosts) == HOSTS for part in examination.not_judged)


def test_hosts_with_two_errors_come_before_those_with_one_and_a_warning_is_last(examination):
    lines = text(examination).splitlines()
    assert lines[0].startswith("SUSPECT: 10 errors and 1 warning on 9 of 64 hosts; ")
    order = [line for line in lines if line.startswith(("nd", "2 hosts"))]
    assert {*order[:3]} == {"nd19", "nd42", "nd60"}
    assert {*order[3:-1]} == {"nd07", "nd11", "nd44", "nd51"}
    assert order[-1] == "2 hosts: nd23, nd31"


@pytest.fixture(scope="module")
def html(examination):
    return examination_page(examination, sources(), date(2026, 11, 24))


def test_on_the_page_the_hosts_with_faults_come_first_and_the_worst_of_them_at_the_top(html):
    hosts = [host for host, _, _ in suspects(html)]
    assert {*hosts[:3]} == {"nd19", "nd42", "nd60"}
    assert {*hosts[3:7]} == {"nd07", "nd11", "nd44", "nd51"}
    assert hosts[7:] == ["nd23", "nd31"]
    _, _, others = section(html, "hosts").partition("55 hosts ")
    assert others.split(", ") == [f"nd{number:02d}" for number in range(HOSTS) if f"nd{number:02d}" not in PLANTED]


def test_the_page_has_every_planted_fault_with_its_host_and_nothing_else_that_counts(html):
    table = [(host, name) for host, _, what in suspects(html) for name in re.findall(r"\[(\w+)\]", what)]
    planted = [(host, name) for host, faults in PLANTED.items() for name, _, _ in faults]
    assert sorted(table) == sorted(planted)
    below = [
        (host, name)
        for title, found in articles(html)
        for host in title.removeprefix("2 hosts: ").split(", ")
        for severity, name in found
        if severity in ("error", "warning")
    ]
    assert sorted(below) == sorted(planted)


def test_on_the_page_a_planted_fault_stands_at_its_place(html):
    of_host = {host: what for host, _, what in suspects(html)}
    assert [
        (host, where) for host, faults in PLANTED.items() for _, where, _ in faults if where not in of_host[host]
    ] == []
