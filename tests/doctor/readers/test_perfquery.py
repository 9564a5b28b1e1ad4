from __future__ import annotations

import pytest

# treydock/infiniband_exporter, collectors/fixtures/perfquery: a port with rdma-core's extended counters.
EXTENDED = """\
# Port extended counters: Lid 2052 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................178791657177235
PortRcvPkts:.....................387654829341
SymbolErrorCounter:..............{symbols}
LinkErrorRecoveryCounter:........0
LinkDownedCounter:...............{downed}
PortRcvErrors:...................0
PortRcvRemotePhysicalErrors:.....0
PortRcvSwitchRelayErrors:........7
PortXmitDiscards:................{discards}
PortXmitConstraintErrors:........0
LocalLinkIntegrityErrors:........0
ExcessiveBufferOverrunErrors:....0
VL15Dropped:.....................0
PortXmitWait:....................{wait}
"""
DISCARDS = EXTENDED.format(symbols=0, downed=1, discards=20046, wait=0)
# The names of OFED 1.x, in which counters have 8 and 16 bits.
OLD = """\
# Port counters: Lid 6 port 1
PortSelect:......................1
CounterSelect:...................0x1000
SymbolErrors:....................65535
LinkRecovers:....................255
LinkDowned:......................12
RcvErrors:.......................0
RcvRemotePhysErrors:.............0
RcvSwRelayErrors:................0
XmtDiscards:.....................0
LinkIntegrityErrors:.............0
ExcBufOverrunErrors:.............0
VL15Dropped:.....................0
XmtData:.........................4294967295
"""


def test_a_counter_above_rdma_cores_limit_is_found(examined):
    examination, kind = examined(DISCARDS)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("perfquery", "link_errors", "warning", "Lid 2052 port 1")
    assert found.what == "has counted 20,046 port_xmit_discards, and rdma-core reports more than 100"
    assert found.evidence == "said.txt:12: PortXmitDiscards:................20046"


def test_few_errors_are_a_note_and_none_are_in_order(examined):
    examination, _ = examined(EXTENDED.format(symbols=2, downed=1, discards=50, wait=0))
    assert [(found.severity, found.what) for found in examination.found] == [
        ("note", "has counted 2 symbol_error, 1 link_downed: few")
    ]
    examination, _ = examined(EXTENDED.format(symbols=0, downed=0, discards=0, wait=0))
    assert (examination.found, examination.word) == ((), "HEALTHY")
    assert examination.healthy[0].what == "1 port without link errors"


def test_waiting_for_room_is_not_judged(examined):
    examination, _ = examined(EXTENDED.format(symbols=0, downed=0, discards=0, wait=41864608))
    assert examination.word == "NOT JUDGED"
    assert examination.not_judged[0].name == "congestion"


def test_names_of_old_versions_and_counters_that_are_full(examined):
    (found,) = examined(OLD)[0].found
    assert found.what == (
        "has counted 65,535 symbol_error (the counter is full), 255 link_error_recovery (the counter is full), "
        "12 link_downed, and rdma-core reports more than 10, 10, 10"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DISCARDS[: DISCARDS.index("LinkErrorRec")], "not all error counters of Lid 2052 port 1 are in the text"),
        (DISCARDS.replace("20046", "foo"), "perfquery printed 'foo' where a number belongs: "),
    ],
)
def test_what_is_cut_or_no_number_is_not_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why.startswith(why)


def test_ports_of_one_text_are_told_apart(examined):
    both = DISCARDS + EXTENDED.format(symbols=0, downed=0, discards=0, wait=0).replace("Lid 2052", "Lid 1719")
    examination, _ = examined(both)
    assert [found.where for found in examination.found] == ["Lid 2052 port 1"]
    assert examination.healthy[0].what == "1 port without link errors"
