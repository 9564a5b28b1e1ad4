from __future__ import annotations

import pytest

# kellyjonbrazil/jc, tests/fixtures/generic/ethtool--default1.out; the partner's modes as in
# ethtool--link-partner-advertised-link-modes.out.
SETTINGS = """\
Settings for enp0s3:
\tSupported ports: [ TP ]
\tSupported link modes:   10baseT/Half 10baseT/Full
\t                        100baseT/Half 100baseT/Full
\t                        1000baseT/Full
\tSupported pause frame use: No
\tAdvertised link modes:  10baseT/Half 10baseT/Full
\t                        1000baseT/Full
{partner}\
\tSpeed: {speed}
\tDuplex: {duplex}
\tPort: Twisted Pair
\tAuto-negotiation: on
\tLink detected: {link}
"""
PARTNER = """\
\tLink partner advertised link modes:  10baseT/Half 10baseT/Full
\t                                     1000baseT/Full
\tLink partner advertised pause frame use: Symmetric
"""
WELL = {"partner": PARTNER, "speed": "1000Mb/s", "duplex": "Full", "link": "yes"}
SLOW = SETTINGS.format(**(WELL | {"speed": "100Mb/s"}))


def test_a_link_below_what_both_ends_could_is_found(examined):
    examination, kind = examined(SLOW)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == ("ethtool NIC", "ethernet_link", "warning", "enp0s3")
    assert found.what == "runs at 0.1 Gb/s, and both ends could at 1 Gb/s"
    assert found.evidence == "said.txt:12: Speed: 100Mb/s"


def test_the_fastest_link_is_in_order(examined):
    examination, _ = examined(SETTINGS.format(**WELL))
    assert (examination.found, examination.word) == ((), "HEALTHY")
    assert examination.healthy[0].what == "enp0s3 runs at 1 Gb/s, the fastest that both ends can"


@pytest.mark.parametrize(
    ("changes", "severity", "what"),
    [
        ({"partner": "", "speed": "100Mb/s"}, "note", "runs at 0.1 Gb/s, and it could at 1 Gb/s"),
        ({"duplex": "Half"}, "warning", "its link is in half duplex"),
    ],
)
def test_what_else_is_found(examined, changes, severity, what):
    (found,) = examined(SETTINGS.format(**(WELL | changes)))[0].found
    assert (found.severity, found.what) == (severity, what)


def test_no_link_and_a_virtual_driver_are_not_judged(examined):
    text = SETTINGS.format(**(WELL | {"speed": "Unknown!", "duplex": "Unknown! (255)", "link": "no"}))
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why == "enp0s3 has no link"
    # Azure/azhpc-diagnostics, Linux/test/samples/endure/ethtool.out.
    text = "Settings for eth1:\n\tSupported link modes:   Not reported\n\tSpeed: 54000Mb/s\n\tLink detected: yes\n"
    examination, _ = examined(text)
    assert examination.not_judged[0].why.startswith("the driver of eth1 does not say which speeds it supports")
