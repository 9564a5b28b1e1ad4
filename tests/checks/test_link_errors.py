from __future__ import annotations

import pytest

from clusterbench.checks.link_errors import LinkErrors
from tests.checks.cards import add_card
from tests.facts.machine import healthy, planted

COUNTERS = "/sys/class/infiniband/mlx5_3/ports/1/counters"


def judged(folder, **counters):
    machine = healthy()
    machine.files |= planted(COUNTERS, counters)
    return LinkErrors().judge(machine.host(folder))


def test_a_port_above_the_thresholds_is_named_with_its_counts(tmp_path):
    said = judged(tmp_path, symbol_error=12_000, link_downed=255)
    (fault,) = said.faults
    assert (fault.where, fault.severity) == ("mlx5_3 port 1", None)
    assert fault.what == "has counted 12,000 symbol_error, 255 link_downed, and rdma-core reports more than 10, 10"
    assert fault.evidence == f"{COUNTERS}/symbol_error: 12000; {COUNTERS}/link_downed: 255"
    assert said.healthy == "7 active RDMA ports without link errors"


@pytest.mark.parametrize(
    ("name", "count", "severity"),
    [
        ("link_downed", 11, None),
        ("link_downed", 10, "note"),
        ("link_downed", 1, "note"),
        ("port_xmit_discards", 101, None),
        ("port_xmit_discards", 100, "none"),
    ],
)
def test_few_are_a_note_or_nothing(tmp_path, name, count, severity):
    faults = judged(tmp_path, **{name: count}).faults
    assert [fault.severity for fault in faults] == ([] if severity == "none" else [severity])


def test_a_storage_port_with_errors_is_a_note(tmp_path):
    machine = healthy()
    add_card(machine, "mlx5_bond_0", rate="25 Gb/sec (1X EDR)", link_layer="Ethernet")
    machine.files |= planted("/sys/class/infiniband/mlx5_bond_0/ports/1/counters", {"link_downed": 99})
    (fault,) = LinkErrors().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("mlx5_bond_0 port 1", "note")


def test_a_virtual_function_without_counters_is_not_judged(tmp_path):
    said = LinkErrors().judge(healthy().without(COUNTERS).host(tmp_path))
    assert said.unknown[0].why == f"{COUNTERS} shows none of them"


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    assert LinkErrors().judge(healthy().without("/sys/class/infiniband").host(tmp_path)).not_applicable
