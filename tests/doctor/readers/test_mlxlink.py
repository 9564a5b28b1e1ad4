from __future__ import annotations

import json

import pytest

# Names and forms of Mellanox/mstflint, mlxlink/modules/mlxlink_commander.cpp.
PORT = {
    "State": "Active",
    "Physical state": "LinkUp",
    "Speed": "IB-NDR",
    "Width": "4x",
    "Status Opcode": "0",
    "Recommendation": "No issue was observed",
    "Temperature [C]": "54 [-5..75]",
    "Rx Power Current [dBm]": "1.886,1.989,2.281,1.976 [-10.41..6]",
    "IB Cable Width": "1x,2x,4x",
    "Tx Fault [per lane]": "0,0,0,0",
    "Rx LOS [per lane]": "1,0,1,1",
    "Effective Physical BER": "15E-255",
    "Link Down Counter": "1",
    "Raw Physical BER": "2E-8",
}
TITLES = {
    "State": "Operational Info",
    "Status Opcode": "Troubleshooting Info",
    "Temperature [C]": "Module Info",
    "Effective Physical BER": "Physical Counters and BER Info",
}


def printed(command="# mlxlink -d mlx5_0 -m -c", without=(), **changes):
    """Keys of changes are the beginnings of mlxlink's, with ``_`` for what is no letter."""
    values = {key: value for key, value in PORT.items() if key not in without}
    for begin, value in changes.items():
        values[next(key for key in PORT if key.replace(" ", "_").startswith(begin))] = value
    lines = [command] if command else []
    for key, value in values.items():
        lines += ["", TITLES[key], "-" * len(TITLES[key])] if key in TITLES else []
        lines.append(f"{key:<35}: {value} ")
    return "\n".join(lines) + "\n"


UNSOUND = printed(Status="15", Recommendation="Bad signal integrity")


def test_a_port_without_an_issue_is_in_order(examined):
    examination, kind = examined(printed())
    assert (kind, examination.word) == ("mlxlink", "HEALTHY")
    assert examination.healthy[0].what == "mlx5_0: IB-NDR 4x, no issue, no bit error"
    (healthy,) = examined(printed(without=("Effective Physical BER",)))[0].healthy
    assert healthy.what == "mlx5_0: IB-NDR 4x, no issue, bit errors are not in the text"


@pytest.mark.parametrize(
    ("changes", "severity", "what"),
    [
        (
            {"Status": "15", "Recommendation": "Bad signal integrity"},
            "warning",
            "its firmware says: Bad signal integrity",
        ),
        (
            {"State": "Polling", "Status": "2", "Recommendation": "Negotiation failure."},
            "error",
            "its firmware says: Negotiation failure",
        ),
        (
            {"Status": "20", "Recommendation": "Stamping of other cables"},
            "note",
            "its firmware says: Stamping of other cables",
        ),
        ({"Width": "1x"}, "error", "its link has 1 lane, and the cable 4"),
        ({"Effective": "3E-10"}, "error", "has a bit error rate of 3.0e-10 after correction, and may have 1e-12"),
        ({"Raw": "5E-4"}, "warning", "has a bit error rate of 5.0e-04 before correction, which can correct 2.4e-04"),
        ({"Link_Down": "12"}, "warning", "has counted 12 link_downed, and rdma-core reports more than 10"),
        ({"Tx_Fault": "0,0,1,0"}, "error", "its module says Tx Fault: 0,0,1,0"),
        ({"Temperature": "78 [-5..75]"}, "warning", "its module's temperature is 78 C, and may be -5 to 75"),
        (
            {"Rx_Power": "1.8,-40,2.2,1.9 [-10.41..6]"},
            "warning",
            "its module's rx power is -40 dBm, and may be -10.41 to 6",
        ),
    ],
)
def test_what_is_found(examined, changes, severity, what):
    text = printed(**changes)
    (found,) = examined(text)[0].found
    assert (found.name, found.where, found.severity, found.what) == ("link_signal", "mlx5_0", severity, what)
    number, _, line = found.evidence.removeprefix("said.txt:").partition(": ")
    assert text.splitlines()[int(number) - 1].strip() == line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            printed(State="Disable", Status="1024", Recommendation="Cable is unplugged."),
            "mlx5_0 has no link: Cable is unplugged",
        ),
        (
            printed(State="Disable", Status="1", Recommendation="Closed by command"),
            "mlx5_0 has no link: Closed by command",
        ),
        (
            printed(without=("Status Opcode", "Effective Physical BER", "Raw Physical BER")),
            "mlx5_0 says neither what is wrong with it nor its bit errors",
        ),
        ("Operational Info\n----------------\nPhysical state : LinkUp\n", "the text ends before a port's state"),
    ],
)
def test_what_cannot_be_judged(examined, text, why):
    examination, _ = examined(text)
    assert (examination.word, examination.not_judged[0].why) == ("NOT JUDGED", why)


def test_a_number_that_is_cut_is_no_number(examined):
    begin, _, _ = printed().partition("5E-255")
    assert examined(f"{begin}5E-2")[0].found == ()


def test_copper_names_no_limits(examined):
    text = printed(Temperature="0 [0..0]", Rx_Power="0,0,0,0 [0..0]")
    assert examined(text)[0].word == "HEALTHY"


def test_two_ports_are_told_apart(examined):
    text = printed() + UNSOUND.replace("mlx5_0 -m", "/dev/mst/mt4129_pciconf1 -p 2 -m")
    examination, _ = examined(text)
    assert [found.where for found in examination.found] == ["/dev/mst/mt4129_pciconf1 port 2"]
    assert len(examination.healthy) == 1


def test_json_is_read(examined):
    counters = {"Effective Physical BER": "3E-10", "Raw Physical Errors Per Lane": {"values": ["1", "2"]}}
    output = {"Operational Info": {"State": "Active", "Speed": "100G"}, "Physical Counters and BER Info": counters}
    output["Troubleshooting Info"] = {"Status Opcode": "0", "Recommendation": "No issue was observed"}
    said = json.dumps({"result": {"output": output}}, indent="\t")
    (found,) = examined(said)[0].found
    assert found.what == "has a bit error rate of 3.0e-10 after correction, and may have 1e-12"
