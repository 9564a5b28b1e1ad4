from __future__ import annotations

# The form by linux-rdma/rdma-core, infiniband-diags/ibqueryerrors.c.
ERRORS = """\
Errors for 0x7cfe900300a5a2a0 "MF0;sw1:MSB7800"
   GUID 0x7cfe900300a5a2a0 port ALL: [LinkDownedCounter == 33] [PortXmitWait == 1246]
   GUID 0x7cfe900300a5a2a0 port 11: [LinkDownedCounter == 33] [PortXmitWait == 1246 (1.217K)]
   GUID 0x7cfe900300a5a2a0 port 12: [PortXmitWait == 99]
Errors for "node7 mlx5_0"
   GUID 0x7cfe900300a5a2a3 port 1: [SymbolErrorCounter == 3]
"""
SUMMARY = """
## Summary: 12 nodes checked, {bad} bad nodes found
##          {ports} ports checked, {bad} ports have errors beyond threshold
## Thresholds:
## Suppressed:
"""
FOUND = ERRORS + SUMMARY.format(ports=44, bad=3)


def test_ports_are_named_by_their_node_and_the_sum_of_a_switch_is_none(examined):
    examination, kind = examined(FOUND)
    assert kind == "ibqueryerrors"
    assert [(found.severity, found.where, found.what) for found in examination.found] == [
        ("warning", "MF0;sw1:MSB7800 port 11", "has counted 33 link_downed, and rdma-core reports more than 10"),
        ("note", "node7 mlx5_0 port 1", "has counted 3 symbol_error: few"),
    ]
    assert examination.found[0].evidence.startswith("said.txt:3: GUID 0x7cfe900300a5a2a0 port 11:")
    assert examination.not_judged[0].why == (
        "2 ports waited for room to send (MF0;sw1:MSB7800 port 11, MF0;sw1:MSB7800 port 12), since when is not said"
    )


def test_a_fabric_without_errors_is_in_order(examined):
    examination, _ = examined(SUMMARY.format(ports=44, bad=0))
    assert examination.word == "HEALTHY"
    assert examination.healthy[0].what == "44 of 44 ports without link errors"


def test_a_text_that_is_cut_or_checked_nothing_is_not_judged(examined):
    assert examined(SUMMARY.format(ports=0, bad=0))[0].not_judged[0].why == "no port was checked"
    examination, _ = examined(ERRORS[ERRORS.index("   GUID 0x7cfe900300a5a2a0 port 12") :])
    assert examination.not_judged[-1].why == "the text ends before the summary"
    assert examination.healthy == ()
