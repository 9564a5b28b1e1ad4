"""Sixty-four hosts of which twelve have a fault, of ten kinds: all are found, none is invented, the worst is first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterbench.checks import hosts_of, judge
from clusterbench.doctor import examine
from clusterbench.doctor.text import text
from tests.facts.healthy import gpus
from tests.facts.machine import healthy

HOSTS = 64
IB = "/sys/class/infiniband"


def port_down(machine, number):
    machine.files[f"{IB}/mlx5_{number}/ports/1/state"] = "1: DOWN\n"


def slow_port(machine):
    machine.files[f"{IB}/mlx5_5/ports/1/rate"] = "200 Gb/sec (4X HDR)\n"


def old_firmware(machine):
    machine.files[f"{IB}/mlx5_0/fw_ver"] = "28.37.1014\n"


def little_memlock(machine):
    path = "/proc/self/limits"
    rows = [line for line in machine.files[path].splitlines() if not line.startswith("Max locked memory")]
    machine.files[path] = "\n".join(
        [*rows, "Max locked memory         8388608              8388608              bytes"]
    )


def swap_on(machine):
    machine.files["/proc/swaps"] = "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 33554428 1024 -2\n"


def xid(machine):
    machine.files["/dev/kmsg"] += "3,990,99000000,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"


def gpu(machine, index, **changed):
    """What NVML says of one of the eight."""
    every = list(gpus.facts().gpus)
    every[index] = replace(every[index], **changed)
    machine.give(gpus.facts(gpus=tuple(every)))


def gpu_lost(machine):
    machine.give(gpus.facts(gpus=gpus.facts().gpus[:7]))


PLANTED = {
    "cb07": ("port_state", lambda machine: port_down(machine, 3)),
    "cb19": ("port_state", lambda machine: port_down(machine, 1)),
    "cb11": ("port_rate", slow_port),
    "cb23": ("firmware", old_firmware),
    "cb31": ("firmware", old_firmware),
    "cb05": ("memlock", little_memlock),
    "cb42": ("row_remapping", lambda machine: gpu(machine, 2, remap_pending=True)),
    "cb44": ("xid", xid),
    "cb50": ("pcie_width", lambda machine: gpu(machine, 4, pcie_width=8)),
    "cb51": ("gpu_count", gpu_lost),
    "cb60": ("swap", swap_on),
    "cb61": ("power_limit", lambda machine: gpu(machine, 6, power_limit_w=500.0)),
}


@pytest.fixture(scope="module")
def examination(tmp_path_factory):
    """The healthy ones are one that was read, under their own names."""
    folder = tmp_path_factory.mktemp("cluster")
    well = json.dumps(healthy().host(folder).environment)
    environments = {f"cb{number:02d}": json.loads(well) for number in range(HOSTS)}
    for name, (_, plant) in PLANTED.items():
        machine = healthy()
        plant(machine)
        environments[name] = machine.host(folder, name).environment
    hosts = hosts_of({"hosts": environments})
    return examine([host.name for host in hosts], judge(hosts))


def test_every_planted_fault_is_found_on_its_host(examination):
    missed = {
        host: check
        for host, (check, _) in PLANTED.items()
        if check not in {found.name for found in examination.suspects.get(host, [])}
    }
    assert missed == {}


def test_no_other_host_is_suspected_of_anything(examination):
    assert {*examination.suspects} == {*PLANTED}
    notes = [found for found in examination.found if not {*found.hosts} <= {*PLANTED}]
    assert notes == []


def test_a_fault_is_of_one_kind_where_one_was_planted(examination):
    """What follows from a fault may be found as well, but not on another place of the host."""
    said = {host: {found.name for found in against} for host, against in examination.suspects.items()}
    alone = [host for host, names in said.items() if len(names) == 1]
    assert len(alone) >= 10, said


def test_errors_come_before_warnings(examination):
    worst = [
        min(("error", "warning").index(found.severity) for found in against)
        for against in examination.suspects.values()
    ]
    assert worst == sorted(worst)
    lines = text(examination).splitlines()
    assert lines[0].startswith("SUSPECT: ")
    first = lines.index("Notes") if "Notes" in lines else len(lines)
    assert [line for line in lines[:first] if line.startswith("cb")] != []
