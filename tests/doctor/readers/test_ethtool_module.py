from __future__ import annotations

import pytest

# SFF-8636, as in ethtool's qsfp.c and in the tests of netdata and of kellyjonbrazil/jc.
MODULE = """\
# ethtool -m ens1
\tIdentifier                                : 0x11 (QSFP28)
\tVendor name                               : ACME
\tModule temperature                        : 42.17 degrees C / 107.90 degrees F
\tAlarm/warning flags implemented           : Yes
{lanes}\
\tModule temperature high alarm             : {hot}
\tModule temperature high warning           : {hot}
\tLaser rx power low alarm   (Channel 2)    : {low}
\tLaser rx power low warning (Channel 2)    : {low}
\tLaser rx power low alarm threshold        : 0.0741 mW / -11.30 dBm
"""
LANE = """\
\tLaser tx bias current (Channel {lane})         : {bias} mA
\tTransmit avg optical power (Channel {lane})    : {sent} dBm
\tRcvr signal avg optical power(Channel {lane})  : {received} dBm
"""
LIT, DARK = "0.7119 mW / -1.48", "0.0000 mW / -inf"


def module(received=(LIT,) * 4, sent=(LIT,) * 4, hot="Off", low="Off"):
    lanes = (
        LANE.format(lane=lane, bias="0.000" if out == DARK else "6.662", sent=out, received=light)
        for lane, (light, out) in enumerate(zip(received, sent, strict=True), 1)
    )
    return MODULE.format(lanes="".join(lanes), hot=hot, low=low)


HOT = module(hot="On")


def test_a_module_without_alarms_is_in_order(examined):
    examination, kind = examined(module())
    assert (kind, examination.word, examination.found) == ("ethtool -m", "HEALTHY", ())
    assert examination.healthy[0].what == "ens1: 4 lanes in the light, -1.48 dBm at least, and no alarm"


@pytest.mark.parametrize(
    ("text", "severity", "what"),
    [
        (HOT, "warning", "raises the alarm that its temperature is too high"),
        (module((LIT, DARK, LIT, LIT), low="On"), "error", "receives no light on lane 2, beside 3 lanes in the light"),
        (module((DARK,) * 4, low="On"), "warning", "receives no light, though it sends"),
        (
            module((LIT, "0.0603 mW / -12.20", LIT, LIT), low="On"),
            "warning",
            "receives -12.2 dBm on lane 2, less than its limit of -11.3 dBm",
        ),
        (
            module((LIT, "0.1500 mW / -8.24", LIT, LIT)),
            "warning",
            "receives -8.24 dBm on lane 2, and most of its lanes -1.48 dBm",
        ),
    ],
)
def test_what_is_found(examined, text, severity, what):
    (found,) = examined(text)[0].found
    assert (found.name, found.where, found.severity, found.what) == ("optical_module", "ens1", severity, what)


def test_a_warning_without_an_alarm_is_a_note(examined):
    text = HOT.replace("high alarm             : On", "high alarm             : Off")
    (found,) = examined(text)[0].found
    assert (found.severity, found.evidence) == ("note", "said.txt:19: Module temperature high warning           : On")


def test_lanes_whose_laser_is_off_are_not_used(examined):
    dark = (LIT, DARK, DARK, DARK)
    (healthy,) = examined(module(dark, dark, low="On"))[0].healthy
    assert healthy.what.startswith("ens1: 1 lane in the light")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (module((DARK,) * 4, (DARK,) * 4, low="On"), "no laser of ens1 is on: the port is down, or meant to be"),
        (
            "Identifier : 0x11 (QSFP28)\nConnector : 0x23 (No separable connector)\nVendor name : ACME\n",
            "the module of the interface measures no light: copper, or one without diagnostics",
        ),
        (
            module().replace("On", "").replace("Off", "").replace("-11.30", "-inf"),
            "the module of ens1 has no alarms, and says no limits",
        ),
    ],
)
def test_what_cannot_be_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.word, examination.not_judged[0].why) == ("NOT JUDGED", why)


def test_a_transmitter_that_failed_is_found(examined):
    said = "Tx fault                                  : [ No, Yes, No, No ]"
    (found,) = examined(module().replace("Module temperature  ", f"{said}\n\tModule temperature  "))[0].found
    assert (found.severity, found.what) == ("error", "its transmitter failed on lane 2")
    assert found.evidence.endswith(said)


def test_two_modules_are_told_apart(examined):
    examination, _ = examined(module() + HOT.replace("ens1", "ens2"))
    assert [found.where for found in examination.found] == ["ens2"]
    assert [healthy.what[:5] for healthy in examination.healthy] == ["ens1:"]


def test_a_module_of_one_lane_has_none_in_its_words(examined):
    text = """\
Identifier                                : 0x03 (SFP)
Vendor name                               : ACME
Laser bias current                        : 12.768 mA
Laser output power                        : 3.0487 mW / 4.84 dBm
Receiver signal average optical power     : 0.0001 mW / -40.00 dBm
Laser rx power low alarm                  : On
Laser rx power low warning                : On
"""
    (found,) = examined(text)[0].found
    assert (found.what, found.evidence.split(":")[1]) == ("receives no light, though it sends", "5")
