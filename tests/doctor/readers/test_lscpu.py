from __future__ import annotations

import json

import pytest

# util-linux, tests/expected/lscpu; the words of 2.39.
LSCPU = """\
Architecture:                         x86_64
CPU(s):                               {cpus}
On-line CPU(s) list:                  {online}
{offline}\
Vendor ID:                            GenuineIntel
Thread(s) per core:                   {threads}
Core(s) per socket:                   32
Socket(s):                            2
Frequency boost:                      {boost}
{virtual}\
NUMA node(s):                         2
NUMA node0 CPU(s):                    0-31,64-95
NUMA node1 CPU(s):                    {second}
"""
WELL = {
    "cpus": "128",
    "online": "0-127",
    "offline": "",
    "threads": "2",
    "boost": "enabled",
    "virtual": "",
    "second": "32-63,96-127",
}
OFF = {"online": "0-119", "offline": "Off-line CPU(s) list:                 120-127\n", "second": "32-63,96-119"}


FEWER = {"cpus": "96", "online": "0-95", "second": "32-63"}


def said(**changes):
    return LSCPU.format(**(WELL | changes))


OFFLINE = said(**OFF)


def test_cpus_that_are_all_there_are_in_order(examined):
    examination, kind = examined(said())
    assert (kind, examination.word, examination.found) == ("lscpu", "HEALTHY", ())
    assert examination.healthy[0].what == "128 CPUs on-line, 64 on each NUMA node"


@pytest.mark.parametrize(
    ("changes", "severity", "what", "line"),
    [
        (OFF, "warning", "8 of 128 CPUs are off-line", 4),
        (OFF | {"threads": "1"}, "note", "8 of 128 CPUs are off-line", 4),
        (FEWER, "warning", "has 32 CPUs, and most NUMA nodes have 64", 11),
        ({"boost": "disabled"}, "note", "clocks may not rise above their base (boost is off)", 8),
    ],
)
def test_what_is_found(examined, changes, severity, what, line):
    (found,) = examined(said(**changes))[0].found
    assert (found.severity, found.what, found.evidence.split(": ")[0]) == (severity, what, f"said.txt:{line}")


def test_nodes_of_a_virtual_machine_may_differ(examined):
    text = said(**FEWER | {"virtual": "Hypervisor vendor:                    KVM\n"})
    assert examined(text)[0].word == "HEALTHY"


@pytest.mark.parametrize("text", [said().partition("NUMA node1")[0], said(second="32-63,152-149")])
def test_a_text_that_is_cut_or_wrong_is_not_judged(examined, text):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why == "the text does not say the CPUs of all NUMA nodes"


def test_json_is_read(examined):
    pairs = [line.split(":", 1) for line in OFFLINE.splitlines()]
    fields = [{"field": f"{key}:", "data": value.strip()} for key, value in pairs]
    text = json.dumps({"lscpu": [*fields[:4], {"field": "rest", "children": fields[4:]}]}, indent=1)
    (found,) = examined(text)[0].found
    assert found.what == "8 of 128 CPUs are off-line"
